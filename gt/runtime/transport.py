"""ZMQ sockets as gt uses them: bounded, never lingering, and failing loudly where ZMQ would be silent.

Owns: ``Socket``, its options, addresses, sending and receiving of messages. Must not know: what messages mean.
Next: ``wire`` (the messages), ``numbering`` (each has its place), ``dispatcher``, ``worker`` and ``remote`` (who uses these).
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
from pathlib import Path
from typing import Any, TypeAlias, cast

import zmq
import zmq.backend

from gt.runtime.env import server_address
from gt.runtime.errors import ConnectionFailed, ProtocolError
from gt.runtime.numbering import Numbers
from gt.runtime.wire import MAX_HEADER, VERSION, Beat, Codec, Message, Part, Ping, Upload, encode
from gt.runtime.wire_arrays import MAX_DATA

BEAT_S = 0.5
ZERO_COPY = 64 << 10
MAX_CONTROL = 2 * MAX_HEADER  # bytes of a frame on a socket that is not for data
MAX_IDLE = 4096  # bytes of a frame on one where nothing but handshakes is expected
# The socket's own methods and plain numbers: what zmq.Socket does before them for each frame costs more than they do.
_raw: Any = zmq.backend.Socket
_send, _recv, _get = _raw.send, _raw.recv, _raw.get
AT_ONCE, NOT_LAST = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
EVENTS, READABLE = zmq.EVENTS, int(zmq.POLLIN)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Socket(zmq.Socket[bytes]):
    """A socket that numbers what it sends, and knows which number comes next."""

    numbers: Numbers

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.numbers = Numbers()


Context: TypeAlias = zmq.Context[zmq.Socket[bytes]]


class PeerUnreachable(Exception):
    """The peer's connection is gone."""


def make_socket(context: Context, kind: int, *, data: bool = False, identity: bytes | None = None, receives: bool = True) -> Socket:
    """Make a socket. Messages over the limits end the connection; a peer that is gone raises PeerUnreachable at a
    ROUTER. At one that does not receive, nothing piles up that strangers send."""
    s = cast(Socket, context.socket(kind, socket_class=Socket))
    s.setsockopt(zmq.LINGER, 500)
    s.setsockopt(zmq.SNDHWM, 0)
    s.setsockopt(zmq.RCVHWM, 0 if receives else 1)
    s.setsockopt(zmq.MAXMSGSIZE, (MAX_DATA if data else MAX_CONTROL) if receives else MAX_IDLE)
    s.setsockopt(zmq.HEARTBEAT_IVL, 1000)
    s.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10_000)  # longer than who listens waits for signs of life
    s.setsockopt(zmq.HANDSHAKE_IVL, 5000)
    s.setsockopt(zmq.RECONNECT_IVL, 50)
    s.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    if kind == zmq.ROUTER:
        s.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if identity is not None:
        s.setsockopt(zmq.IDENTITY, identity)
    return s


def send(socket: Socket, message: Message, data: Any = None, peer: bytes | None = None, header: bytes | None = None) -> None:
    """Send a message. Errors: PeerUnreachable; ProtocolError above the size limits, where the receiver would drop it unseen."""
    if header is None:
        header = encode(message)
    nbytes = 0
    if data is not None:
        nbytes, limit = memoryview(data).nbytes, MAX_DATA if isinstance(message, Upload | Part) else MAX_CONTROL
        if nbytes > limit:
            raise ProtocolError(f"the data of a {type(message).__name__} of {nbytes} bytes is over the limit of {limit} bytes")
    to, numbered = peer or b"", header[0] == VERSION  # to other versions goes one message, with no more than they can read
    if numbered:
        header += socket.numbers.next(to)
    try:
        if peer is not None:
            _send(socket, peer, NOT_LAST)
        if data is None:
            _send(socket, header, AT_ONCE)
        else:
            _send(socket, header, NOT_LAST)
            _send(socket, data, AT_ONCE, nbytes <= ZERO_COPY)
    except zmq.ZMQError as e:
        if e.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            raise PeerUnreachable from None
        raise
    if numbered:
        socket.numbers.gone(to, isinstance(message, Beat | Ping))


def confirm(socket: Socket, message: Beat | Ping) -> None:
    """Give a sign of life to whom something was sent lately, so that he notices if that did not arrive. To be called every second."""
    for peer in socket.numbers.confirm():
        with contextlib.suppress(PeerUnreachable):
            send(socket, message, peer=peer or None)


def receive(socket: Socket, codec: Codec[Any], *, routed: bool = False, copy: bool = True) -> tuple[bytes, Any, Any] | None:
    """Give (peer, message, data) if something is there, else None. What comes twice is passed over.

    Errors: ProtocolError for a malformed message; MessagesLost where others should have come before.
    """
    while True:
        frames = _frames(socket, copy)
        if not frames:
            return None
        if not copy:
            frames = [frame.buffer for frame in frames]
        peer = bytes(frames.pop(0)) if routed else b""
        if not frames or socket.numbers.is_new(peer, frames[0]):
            return peer, *_decoded(peer, frames, codec)


def receive_known(socket: Socket, codec: Codec[Any]) -> tuple[bytes, str, Any, Any] | None:
    """Give (peer, the public key it came with, message, data) at a ROUTER with keys, else as ``receive``."""
    while True:
        frames = _frames(socket, False)
        if not frames:
            return None
        peer, rest = frames[0].bytes, [frame.buffer for frame in frames[1:]]
        if not rest or socket.numbers.is_new(peer, rest[0]):
            return peer, str(frames[-1].get("User-Id")), *_decoded(peer, rest, codec)


def _frames(socket: Socket, copy: bool) -> list[Any]:
    """Give the frames of the next message, as bytes or as ZMQ's own; none if nothing is there. Asking is far cheaper than ``zmq.Again``."""
    if not _get(socket, EVENTS) & READABLE:
        return []
    frames = []
    try:
        while True:
            frame = _recv(socket, AT_ONCE, False)
            frames.append(frame.bytes if copy else frame)
            if not frame.more:
                return frames
    except zmq.Again:
        return []


def _decoded(peer: bytes, frames: list[Any], codec: Codec[Any]) -> tuple[Any, Any]:
    try:
        return codec.decode(frames)
    except ProtocolError as e:
        e.peer = peer  # type: ignore[attr-defined]
        raise


def endpoint_of(address: str) -> str:
    """Give the ZMQ endpoint of ``host:port`` (or of an endpoint). Errors: ValueError saying what is expected."""
    if "://" in server_address(address):
        return address
    host, _, port = address.rpartition(":")
    return f"tcp://{'127.0.0.1' if host == 'localhost' else host}:{port}"


def is_loopback(endpoint: str) -> bool:
    """Whether an endpoint is reachable from this host only."""
    if endpoint.startswith(("ipc://", "inproc://")):
        return True
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]") in LOOPBACK


def own_address(towards: str) -> str:
    """Give this host's address as the peer at ``towards`` reaches it. Errors: ConnectionFailed where no network leads there."""
    if is_loopback(towards):
        return "127.0.0.1"
    host, _, port = towards.removeprefix("tcp://").rpartition(":")
    try:
        with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))  # sends nothing: it only picks the interface
            return str(probe.getsockname()[0])
    except OSError as e:
        raise ConnectionFailed(f"no network of this machine leads to {host}: {e.strerror}. Check the address, and that the network is up") from None


def bind_beside(socket: Socket, dispatcher: str, name: str) -> str:
    """Bind a data socket where peers of ``dispatcher`` reach it: in its private directory, or on a port of our
    choice."""
    if dispatcher.startswith("ipc://"):
        endpoint = f"ipc://{Path(dispatcher.removeprefix('ipc://')).parent}/{name}-{os.getpid()}"
        socket.bind(endpoint)
        return endpoint
    socket.bind(f"tcp://{own_address(dispatcher)}:*")
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
