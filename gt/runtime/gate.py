"""Who is let in at a socket with keys, and what a handshake that failed means to the one who tried.

Owns: ``Gate`` (ZMQ's ZAP: it is asked at every handshake of its context), ``Handshake`` (how a connection comes about, read from the
socket's monitor) and ``Seldom`` (lines that strangers can cause, limited). Must not know: messages. Next: ``keys`` (whose key it is).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket as sockets
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils import z85

from gt.runtime.awake_clock import AwakeClock
from gt.runtime.errors import ConnectionRefused, ProtocolError
from gt.runtime.keys import DOMAIN, Keys, fingerprint
from gt.runtime.transport import Context, Socket

RECHECK_S = 0.5  # an unknown key is refused after so long: the word that it may come in can be on its way
MAX_WAITING = 1024
HANDSHAKE_S = 2.5
_FAILED: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "refused", zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "other key",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "protocol",
}  # fmt: skip
_EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | sum(_FAILED)


class Seldom:
    """Logs at most ``most`` lines in ``seconds``, and then how many more there were. ``count``: all that there were."""

    def __init__(self, logger: logging.Logger, most: int = 10, seconds: float = 10.0) -> None:
        self.logger, self.most, self.seconds = logger, most, seconds
        self.count = self.passed_over = 0
        self.told: deque[float] = deque()

    def tell(self, text: str, now: float, level: int = logging.ERROR) -> None:
        self.count += 1
        while self.told and now - self.told[0] > self.seconds:
            self.told.popleft()
        if len(self.told) >= self.most:
            self.passed_over += 1
            return
        self.told.append(now)
        more, self.passed_over = self.passed_over, 0
        self.logger.log(level, "%s%s", text, f" (and {more} more such attempts)" if more else "")

    def drop(self, fault: ProtocolError, now: float, level: int = logging.ERROR) -> None:
        """Tell of a message that is dropped because it is none."""
        self.tell(f"dropped a malformed message: {fault}", now, level)


class Gate:
    """Answers the handshakes of a context's sockets: only keys that ``knows`` are let in, and only by CURVE.

    Its ``sources`` are polled by whoever runs it, who then calls ``answer``. ``refused`` counts and tells.
    """

    def __init__(self, context: Context, knows: Callable[[str], bool], logger: logging.Logger) -> None:
        self.knows, self.refused = knows, Seldom(logger)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")
        self.waiting: deque[tuple[float, list[bytes]]] = deque()
        self.monitor: Socket | None = None
        self._watched: Socket | None = None
        self._addresses: dict[int, str] = {}
        self._failed = ""

    @property
    def sources(self) -> list[Any]:
        return [self.socket, *([] if self.monitor is None else [self.monitor])]

    def watch(self, socket: Socket) -> None:
        """Tell of peers without keys at a socket too, of which nobody is asked."""
        self._watched, self.monitor = socket, socket.get_monitor_socket(_EVENTS)

    def answer(self, now: float) -> None:
        """Answer what is asked; let those with unknown keys wait a while."""
        with contextlib.suppress(zmq.Again):
            while True:
                self._asked(self.socket.recv_multipart(zmq.NOBLOCK), now)
        while self.waiting and (now >= self.waiting[0][0] or len(self.waiting) > MAX_WAITING):
            self._judge(self.waiting.popleft()[1], now, last=True)
        for entry in [e for e in self.waiting if self.knows(_key_of(e[1]))]:
            self.waiting.remove(entry)
            self._judge(entry[1], now, last=True)
        if self.monitor is not None:
            self._listen(now)

    def _asked(self, frames: list[bytes], now: float) -> None:
        if len(frames) >= 3 and not self._judge(frames, now, last=False):
            self.waiting.append((now + RECHECK_S, frames))

    def _judge(self, frames: list[bytes], now: float, last: bool) -> bool:
        """Answer a request: [peer, "", version, request, domain, address, identity, mechanism, key]."""
        fits = len(frames) == 9 and frames[2] == b"1.0" and frames[4] == DOMAIN and frames[7] == b"CURVE" and len(frames[8]) == 32
        user = _key_of(frames) if fits else ""
        known = bool(user) and self.knows(user)
        if fits and not known and not last:
            return False
        if not known:
            address = frames[5].decode(errors="replace") if len(frames) > 5 else "?"
            whose = f"key {fingerprint(user)}" if user else "no key"
            self.refused.tell(f"refused a peer at {address} with {whose}: it is not allowed here", now)
        status, text = (b"200", b"OK") if known else (b"400", b"not allowed")
        request = frames[3] if len(frames) > 3 else b""
        self.socket.send_multipart([frames[0], b"", b"1.0", request, status, text, user.encode() if known else b"", b""])
        return True

    def _listen(self, now: float) -> None:
        """Follow accepted connections. A handshake that fails is followed by the end of its connection."""
        assert self.monitor is not None
        while self.monitor.poll(0):
            event, value = _event(self.monitor)
            if event == zmq.EVENT_ACCEPTED:
                self._addresses[value] = _peer_of(value)
            elif event in _FAILED:
                self._failed = _FAILED[event]
            elif event == zmq.EVENT_DISCONNECTED:
                address = self._addresses.pop(value, "?")
                if self._failed in ("other key", "protocol"):  # whom the gate refused, it has told of
                    self.refused.tell(f"refused a peer at {address}: it has no key, or one for another server", now)
                self._failed = ""

    def close(self) -> None:
        if self._watched is not None and self.monitor is not None:
            self._watched.disable_monitor()
            self.monitor.close(0)
        self.socket.close(0)


def _key_of(frames: list[bytes]) -> str:
    return z85.encode(frames[8]).decode() if len(frames) == 9 and len(frames[8]) == 32 else ""


def _event(monitor: Socket) -> tuple[int, int]:
    """Give the next event of a monitor with its value. Source: zmq_socket_monitor(3); pyzmq's own reader brings all of asyncio."""
    event, value = struct.unpack("=Hi", monitor.recv_multipart()[0])
    return event, value


def _peer_of(fd: int) -> str:
    """Give the address at the other end of a connection, if it is still there."""
    try:
        with sockets.socket(fileno=os.dup(fd)) as other:
            return str(other.getpeername()[0])
    except (OSError, IndexError):
        return "?"


class Handshake:
    """How a socket's connection comes about, and ends. Made before it connects; ``failed`` is what went wrong first; ``over``: there
    was a connection, and it has ended.
    """

    def __init__(self, socket: Socket) -> None:
        self.socket, self.monitor = socket, socket.get_monitor_socket(_EVENTS)
        self.connected = self.done = self.over = self.cut = False
        self.failed = ""

    def look(self) -> str:
        """Take in what has happened; give what failed, if anything has."""
        while not self.failed and self.monitor.poll(0):
            event, _ = _event(self.monitor)
            self.connected |= event == zmq.EVENT_CONNECTED
            self.done |= event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self.over |= self.done and event == zmq.EVENT_DISCONNECTED
            if self.done or event not in _FAILED:
                continue
            if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and not self.cut:  # so ends one with a process that dies, too: not twice
                self.cut = True
            else:
                self.failed = _FAILED[event]
        return self.failed

    def close(self) -> None:
        if not self.socket.closed:
            self.socket.disable_monitor()
        self.monitor.close(0)


def await_answer(socket: Socket, handshake: Handshake, deadline: float, address: str, keys: Keys | None) -> bool:
    """Wait for a message until ``deadline``; tell whether there is one.

    Errors: ConnectionRefused as soon as it is known that the other end will not talk, with what to do.
    """
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(handshake.monitor, zmq.POLLIN)
    begun: float | None = None
    awake = AwakeClock()  # who has had no time has not heard the answer
    while (left := deadline - time.monotonic()) > 0:
        ready = dict(poller.poll(int(min(left, 0.25) * 1000) + 1))
        if socket in ready:
            return True
        if failed := handshake.look():
            raise ConnectionRefused(explained(failed, address, keys))
        now = awake()
        begun = begun or (now if handshake.connected else None)
        if keys is not None and begun is not None and not handshake.done and now - begun > HANDSHAKE_S:
            raise ConnectionRefused(explained("silent", address, keys))
    return bool(socket.poll(0))


def await_handshake(handshake: Handshake, address: str, keys: Keys | None, reach_s: float) -> bool:
    """Wait until a connection is there, as long as its other end is reached within ``reach_s`` seconds; tell whether it is.

    Errors: as ``await_answer``.
    """
    awake = AwakeClock()
    begun = awake()
    while not handshake.done and awake() - begun < (HANDSHAKE_S if handshake.connected else reach_s):
        handshake.monitor.poll(50)
        if failed := handshake.look():
            raise ConnectionRefused(explained(failed, address, keys))
    return handshake.done


def explained(failed: str, address: str, keys: Keys | None) -> str:
    """Say what a failed handshake means, and what to do."""
    if keys is None:
        return (
            f"the gt server at {address} lets in only those with a key: check key file: name yours with GT_KEY_FILE or the key option; "
            "on the server, `gt keygen` makes them"
        )
    if failed == "refused":
        return (
            f"the gt server at {address} does not know this key, or knows it no more: check key file {keys}; "
            "on the server, `gt keygen` puts a new one on its list"
        )
    if failed == "silent":
        return (
            f"what is at {address} does not answer with keys: it is no gt server, or was started without keys: "
            f"check key file {keys}, and the server's --key option"
        )
    return (
        f"the gt server at {address} has another key than key file {keys} says, or was started without keys: check key file and address, "
        "and the server's --key option"
    )


__all__ = ["Gate", "Handshake", "Seldom", "await_answer", "await_handshake", "explained"]
