"""A network that goes wrong where a test says so: proxies between clients, workers and the dispatcher.

``Proxy`` passes on messages. Each peer at its near end has a connection of its own at the far end, with the same identity, so that either
end takes the other for the real one; addresses of workers' data sockets in what passes are replaced by such proxies' too. ``faults`` say what
becomes of a message: it is passed on not at all, or twice, or later with all that follows it. ``TcpProxy`` passes on bytes, stops doing so
without a word, or resets its connections. Next: ``test_network``, ``chaos``.
"""

from __future__ import annotations

import itertools
import select
import socket as sockets
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from gt.runtime import launch, wire
from gt.runtime.launch import LocalCluster
from gt.runtime.numbering import SIZE, without_number

Frames = list[bytes]
WITH_ADDRESSES = "WorkerHello"
UNNAMED = 5  # bytes of a name that ZMQ gives who has chosen none
IDLE_S = 15.0  # who gives no sign of life for so long has gone


@dataclass
class Fault:
    """What becomes of ``count`` messages once ``skip`` others that fit have passed. ``kind``: drop, duplicate, delay.

    ``message``: which, by name; any if empty. ``seconds``: by how much one is late. ``done``: which met it.
    """

    kind: str
    message: str = ""
    skip: int = 0
    count: int = 1
    seconds: float = 0.0
    done: list[str] = field(default_factory=list)

    def fits(self, name: str) -> bool:
        if len(self.done) >= self.count or (self.message and name != self.message):
            return False
        self.skip -= 1
        if self.skip >= 0:
            return False
        self.done.append(name)
        return True


@dataclass(eq=False)
class Line:
    """What goes one way between two peers: in order, each message not before its time."""

    send: Callable[[Frames], None]
    waiting: deque[tuple[float, Frames]] = field(default_factory=deque)

    def put(self, at: float, frames: Frames) -> None:
        if self.waiting:
            at = max(at, self.waiting[-1][0])
        self.waiting.append((at, frames))

    def flush(self, now: float) -> None:
        while self.waiting and self.waiting[0][0] <= now:
            self.send(self.waiting[0][1])
            self.waiting.popleft()


@dataclass(eq=False)
class Pair:
    """A peer at the near end, and the connection that stands for it at the far end. ``doors``: to the data sockets of a worker."""

    far: Any
    out: Line
    back: Line
    doors: list[Door] = field(default_factory=list)
    seen: float = field(default_factory=time.monotonic)  # when something passed last


@dataclass(eq=False)
class Door:
    """What stands in front of one ROUTER, at ``target``. ``for_tokens``: clients connect there by their tokens, and say nothing."""

    target: str
    near: Any
    for_tokens: bool = False
    pairs: dict[bytes, Pair] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return self.near.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


class Proxy:
    """Stands at ``endpoint`` in front of the dispatcher at ``target``. ``seen`` counts what came, by name; one thread does it all."""

    names = itertools.count()

    def __init__(self, target: str, endpoint: str = "tcp://127.0.0.1:*") -> None:
        self.faults: list[Fault] = []
        self.lock = threading.Lock()
        self.seen: Counter[str] = Counter()
        self.silent: set[str] = set()  # ways on which nothing passes any more: "out" (to the dispatcher and workers), "back"
        self.context: zmq.Context[Any] = zmq.Context()
        self.poller = zmq.Poller()
        self.doors: list[Door] = []
        self.tokens: deque[bytes] = deque(maxlen=16)  # of the clients that came last
        self.main = self._door(target, endpoint)
        self.endpoint = self.main.endpoint
        self.commands: deque[Callable[[], None]] = deque()
        self.stopping = False
        self.failed: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self.thread.start()

    def inject(self, *faults: Fault) -> None:
        """Let faults happen from now on, wherever messages pass."""
        with self.lock:
            self.faults.extend(faults)

    def heal(self) -> None:
        """Let all faults end."""
        with self.lock:
            self.faults.clear()

    def cut(self, data: bool = False, which: int | None = None) -> int:
        """End the connections at the dispatcher, or, with ``data``, at the workers' data sockets; ``which``: only one of them.

        What was on its way is lost, and ZMQ makes others and tells nobody. Gives how many there were.
        """
        cut: list[int] = []
        done = threading.Event()

        def do() -> None:
            ways = [(d, name) for d in self.doors if (d is not self.main) == data for name in d.pairs]
            for door, name in ways if which is None or not ways else [ways[which % len(ways)]]:
                self._end(door, name)
                cut.append(1)
                if door.for_tokens:  # who hears there alone is the one to come again
                    self._pair(door, name)
            done.set()

        self.commands.append(do)
        assert done.wait(5), self.failed
        return len(cut)

    def hang_up(self) -> None:
        """End the connections of all peers of the dispatcher at both ends, as if it had died; they may come again."""
        self.commands.append(self._hang_up)

    def _hang_up(self) -> None:
        for name in [*self.main.pairs]:
            self._end(self.main, name)
        self.poller.unregister(self.main.near)
        self.main.near.close(0)
        self.main.near = self._socket(zmq.ROUTER)
        self.main.near.setsockopt(zmq.ROUTER_MANDATORY, 1)
        until = time.monotonic() + 5
        while True:
            try:
                self.main.near.bind(self.endpoint)
                break
            except zmq.ZMQError:  # ZMQ closes the other in its own time
                if time.monotonic() > until:
                    raise
                time.sleep(0.005)
        self.poller.register(self.main.near, zmq.POLLIN)

    def close(self) -> None:
        self.stopping = True
        self.thread.join(5)
        self.context.destroy(0)
        assert self.failed is None, self.failed

    # -- the thread

    def _socket(self, kind: int) -> Any:
        socket = self.context.socket(kind)
        for option, value in ((zmq.LINGER, 0), (zmq.SNDHWM, 0), (zmq.RCVHWM, 0)):
            socket.setsockopt(option, value)
        return socket

    def _door(self, target: str, endpoint: str, for_tokens: bool = False) -> Door:
        near = self._socket(zmq.ROUTER)
        near.setsockopt(zmq.ROUTER_MANDATORY, 1)
        near.bind(endpoint)
        self.poller.register(near, zmq.POLLIN)
        door = Door(target, near, for_tokens)
        self.doors.append(door)
        for token in self.tokens if for_tokens else ():
            self._pair(door, token)
        return door

    def _run(self) -> None:
        try:
            while not self.stopping:
                self._turn()
        except BaseException as e:
            self.failed = e
            raise

    def _turn(self) -> None:
        late = any(p.out.waiting or p.back.waiting for d in self.doors for p in d.pairs.values())
        ready = dict(self.poller.poll(5 if late else 20))
        while self.commands:
            self.commands.popleft()()
        now = time.monotonic()
        for door in [*self.doors]:
            if door not in self.doors:  # it went with its worker, a moment ago
                continue
            while door.near in ready and (got := _take(door.near)) is not None:
                pair = door.pairs.get(got[0]) or self._pair(door, got[0])
                self._pass(pair, pair.out, got[1:], now, "out")
            for peer, pair in [*door.pairs.items()]:
                while pair.far in ready and (got := _take(pair.far)) is not None:
                    self._pass(pair, pair.back, got, now, "back")
                try:
                    pair.out.flush(now)
                    pair.back.flush(now)
                except zmq.ZMQError:  # the peer is gone, or not here yet
                    if not door.for_tokens:
                        self._end(door, peer)
                if door is self.main and now - pair.seen > IDLE_S:
                    self._end(door, peer)

    def _pair(self, door: Door, peer: bytes) -> Pair:
        far = self._socket(zmq.DEALER)
        if len(peer) != UNNAMED:  # a name that the peer has chosen
            far.setsockopt(zmq.IDENTITY, peer)
        far.connect(door.target)
        self.poller.register(far, zmq.POLLIN)
        back = Line(lambda frames: door.near.send_multipart([peer, *frames], zmq.NOBLOCK))
        pair = door.pairs[peer] = Pair(far, Line(far.send_multipart), back)
        return pair

    def _end(self, door: Door, peer: bytes) -> None:
        pair = door.pairs.pop(peer, None)
        if pair is None:
            return
        self.poller.unregister(pair.far)
        pair.far.close(0)
        for inner in pair.doors:
            for name in [*inner.pairs]:
                self._end(inner, name)
            self.doors.remove(inner)
            self.poller.unregister(inner.near)
            inner.near.close(0)

    def _pass(self, pair: Pair, line: Line, frames: Frames, now: float, way: str) -> None:
        name, pair.seen = name_of(frames), now
        self.seen[name] += 1
        if way in self.silent:
            return
        if name == WITH_ADDRESSES:
            frames = self._readdressed(pair, frames)
        if name == "ClientWelcome":
            self._expect(frames)
        with self.lock:
            fault = next((f for f in self.faults if f.fits(name)), None)
            self.faults[:] = [f for f in self.faults if len(f.done) < f.count]
        later = now + (fault.seconds if fault is not None else 0.0)
        for _ in range(1 if fault is None else {"drop": 0, "duplicate": 2, "delay": 1}[fault.kind]):
            line.put(later, frames)

    def _expect(self, frames: Frames) -> None:
        """Let a client in at the doors where it says nothing by itself."""
        welcome, _ = wire.TO_CLIENT.decode([frames[0]])
        assert isinstance(welcome, wire.ClientWelcome)
        gone = [self.tokens[0]] if len(self.tokens) == self.tokens.maxlen else []
        self.tokens.append(welcome.token)
        for door in self.doors:
            if door.for_tokens:
                self._pair(door, welcome.token)
                for token in gone:
                    self._end(door, token)

    def _readdressed(self, pair: Pair, frames: Frames) -> Frames:
        """Put doors before a worker's data sockets."""
        hello, _ = wire.FROM_PEERS.decode([frames[0]])
        assert isinstance(hello, wire.WorkerHello)
        ends = {}
        for side in ("upload", "results"):
            address = getattr(hello, side)
            near = f"{address}-{next(self.names)}" if address.startswith("ipc://") else "tcp://127.0.0.1:*"
            pair.doors.append(self._door(address, near, for_tokens=side == "results"))
            ends[side] = pair.doors[-1].endpoint
        return [wire.encode(msgspec.structs.replace(hello, **ends)) + frames[0][-SIZE:]]


def _take(socket: Any) -> Frames | None:
    try:
        return socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None


def name_of(frames: Frames) -> str:
    """Give the name of a message; what cannot be read has none."""
    try:
        tree = msgspec.msgpack.decode(without_number(memoryview(frames[0]))[1:])
    except (msgspec.MsgspecError, ValueError, IndexError):
        return ""
    return tree[0] if isinstance(tree, list) and tree and isinstance(tree[0], str) else ""


class Proxied(LocalCluster):
    """Processes of this machine whose every message passes a proxy."""

    def start_workers(self, count: int, backend: str) -> None:
        self.proxy = Proxy(self.address, f"ipc://{self.folder}/p")
        self.address = self.proxy.endpoint
        super().start_workers(count, backend)

    def stop(self, code: int | None = None) -> None:
        super().stop(code)
        self.proxy.close()


@contextmanager
def proxied() -> Iterator[None]:
    """Let whoever starts processes of this machine start them behind a proxy."""
    before = launch.LocalCluster
    launch.LocalCluster = Proxied  # type: ignore[misc]
    try:
        yield
    finally:
        launch.LocalCluster = before  # type: ignore[misc]


class TcpProxy:
    """Passes bytes between whoever connects and ``port`` of this host, until it is told not to."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.listener = sockets.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.other: dict[sockets.socket, sockets.socket] = {}
        self.frozen = self.resetting = self.stopping = False
        self.thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self.thread.start()

    def freeze(self, frozen: bool = True) -> None:
        """Pass on nothing, of new connections neither; both ends see the other's end of TCP alive and hear nothing."""
        self.frozen = frozen

    def reset(self) -> None:
        """End all connections at once; others may come."""
        self.resetting = True
        until = time.monotonic() + 5
        while self.resetting and time.monotonic() < until:
            time.sleep(0.005)
        assert not self.resetting

    def close(self) -> None:
        self.stopping = True
        self.thread.join(5)
        self.listener.close()

    def _run(self) -> None:
        while not self.stopping:
            ready, _, _ = select.select([self.listener, *([] if self.frozen else self.other)], [], [], 0.02)
            if self.resetting:
                for end in [*self.other]:
                    self._end(end)
                self.resetting = False
                continue
            for end in ready:
                if end is self.listener:
                    near, _ = self.listener.accept()
                    far = sockets.create_connection(("127.0.0.1", self.target))
                    self.other |= {near: far, far: near}
                elif end in self.other:
                    self._pump(end)
        for end in [*self.other]:
            self._end(end)

    def _pump(self, end: sockets.socket) -> None:
        try:
            data = end.recv(1 << 16)
            if data:
                self.other[end].sendall(data)
                return
        except OSError:
            pass
        self._end(end)

    def _end(self, end: sockets.socket) -> None:
        other = self.other.pop(end, None)
        if other is not None:
            del self.other[other]
            for one in (end, other):
                one.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end in order
                one.close()


__all__ = ["Fault", "Proxied", "Proxy", "TcpProxy", "name_of", "proxied"]
