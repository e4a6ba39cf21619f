"""Frames that are none, at every socket of a running cluster: ``python -m tests.fault.fuzz --frames 100000``.

A dispatcher, a worker and clients run in this process, over loopback. First a few runs are recorded as they travel. Then strangers send
what mutation makes of the recorded frames (bits flipped, cut, extended, swapped, replayed, fields of other types and sizes, nested
deeply, over the limits) and raw bytes on the ports. At each end the frames go through the socket, the codec and the state, as any do.
All the while a client that does no harm must get right answers. In the end nothing may have died, hung, or grown, and every malformed
frame must have been counted. Next: ``test_fuzz`` (the short run).
"""

from __future__ import annotations

import random
import socket as sockets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import click
import msgspec
import numpy as np
import psutil
import zmq

from gt.runtime import dispatcher as dispatcher_module
from gt.runtime import exchange, remote, transport, wire, worker
from gt.runtime.dispatcher import Dispatcher
from gt.runtime.dispatcher_state import Options
from gt.runtime.errors import GtError, ProtocolError
from gt.runtime.remote import RemoteSession
from gt.runtime.transport import make_socket
from gt.runtime.worker import WorkerProcess
from tests.integration.cluster import Desk, rows

Frames = list[bytes]
CODECS: dict[str, Any] = {
    "dispatcher": wire.FROM_PEERS, "client": wire.TO_CLIENT, "worker": wire.TO_WORKER, "uploads": wire.UPLOADS,
}  # fmt: skip
NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**48, 2**62, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, float("nan"), float("inf"), "", "x" * 5000, b"",
    b"\0" * 16, b"x" * 5000, [], {}, [[]], [-1, 2**63], {"a": 1}, [[0, 2**62]], "float32", "__import__('os')", [1] * 3000,
)  # fmt: skip


# -- recording


@dataclass
class Recorder:
    """Frames as they were sent, by who reads them. ``sockets`` are told apart by what their messages may be."""

    frames: dict[str, list[Frames]] = field(default_factory=lambda: {name: [] for name in CODECS})

    def sent(self, header: bytes, data: Any) -> None:
        frames = [header] + ([] if data is None else [bytes(data)])
        for name, codec in CODECS.items():
            try:
                codec.decode(frames)
            except ProtocolError:
                continue
            self.frames[name].append(frames)

    @contextmanager
    def recording(self) -> Iterator[None]:
        def send(socket: Any, message: wire.Message, data: Any = None, peer: Any = None, header: bytes | None = None) -> None:
            self.sent(wire.encode(message) if header is None else header, data)
            transport.send(socket, message, data, peer, header)

        users: tuple[Any, ...] = (dispatcher_module, exchange, remote, worker)
        for module in users:
            module.send = send
        try:
            yield
        finally:
            for module in users:
                module.send = transport.send


# -- mutation


def mutated(frames: Frames, others: list[Frames], r: random.Random) -> Frames:
    """Give what damage makes of a message; sometimes nothing, which is a replay."""
    out = [bytearray(f[:100_000]) for f in frames]
    for _ in range(r.choice((0, 1, 1, 1, 2, 4))):
        if not out:
            return []
        at = r.randrange(len(out))
        r.choice(DAMAGES)(out, at, others, r)
    return [bytes(f) for f in out[:5]]


def flip(out: list[bytearray], at: int, others: list[Frames], r: random.Random) -> None:
    for _ in range(r.randint(1, 8)):
        if out[at]:
            out[at][r.randrange(min(len(out[at]), 400))] = r.randrange(256)


def cut(out: list[bytearray], at: int, others: list[Frames], r: random.Random) -> None:
    del out[at][r.randrange(len(out[at]) + 1) :]


def extend(out: list[bytearray], at: int, others: list[Frames], r: random.Random) -> None:
    out[at] += r.randbytes(r.choice((1, 7, 100, 4000)))


def swap(out: list[bytearray], at: int, others: list[Frames], r: random.Random) -> None:
    other = r.choice(others)
    out[at] = bytearray(r.choice(other)[:100_000])


def drop(out: list[bytearray], at: int, others: list[Frames], r: random.Random) -> None:
    del out[at]


def double(out: list[bytearray], at: int, others: list[Frames], r: random.Random) -> None:
    out.insert(at, bytearray(out[at]))


def retype(out: list[bytearray], at: int, others: list[Frames], r: random.Random) -> None:
    """Put another value in the place of one field, at any depth: well-formed, and wrong."""
    try:
        tree = msgspec.msgpack.decode(bytes(out[0][1:]))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    node = tree
    while isinstance(node, list) and node:
        i = r.randrange(len(node))
        if not isinstance(node[i], list) or not node[i] or r.random() < 0.4:
            node[i] = r.choice(NASTY)
            break
        node = node[i]
    out[0][1:] = msgspec.msgpack.encode(tree)


def nest(out: list[bytearray], at: int, others: list[Frames], r: random.Random) -> None:
    out[at] = bytearray([wire.VERSION]) + b"\x91" * r.choice((50, 2000, 100_000)) + b"\xc0"


def other_version(out: list[bytearray], at: int, others: list[Frames], r: random.Random) -> None:
    if out[0]:
        out[0][0] = r.randrange(256)


DAMAGES: tuple[Callable[[list[bytearray], int, list[Frames], random.Random], None], ...] = (
    flip, flip, cut, extend, swap, drop, double, retype, retype, retype, retype, nest, other_version,
)  # fmt: skip


# -- the cast


class Cluster:
    """A dispatcher and a worker as threads of this process, with a count of what each has dropped."""

    def __init__(self, options: Options | None = None) -> None:
        self.dispatcher = Dispatcher("tcp://127.0.0.1:*", options or Options(no_workers_s=5.0))
        self.fault: list[BaseException] = []
        self.threads = [threading.Thread(target=self._guarded, args=(self.dispatcher.run,), name="fuzz-dispatcher")]
        self.threads[0].start()
        self.worker = WorkerProcess(self.dispatcher.endpoint, "numpy", "cpu")
        self.threads.append(threading.Thread(target=self._guarded, args=(self.worker.run,), name="fuzz-worker"))
        self.threads[1].start()

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as e:
            self.fault.append(e)

    @contextmanager
    def running(self, worker: WorkerProcess) -> Iterator[WorkerProcess]:
        """Let another worker work, as a thread of this process too."""
        thread = threading.Thread(target=self._guarded, args=(worker.run,), name="fuzz-other-worker")
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join(15)

    def close(self) -> None:
        self.dispatcher.stop()
        for thread in self.threads:
            thread.join(15)
        assert not any(t.is_alive() for t in self.threads), "it hangs"


@dataclass
class Impostor:
    """A server that says to a client or a worker what it is told to say: its frames come in over their real sockets."""

    context: Any
    router: Any = None
    peers: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.router = make_socket(self.context, zmq.ROUTER, data=True)
        self.router.bind("tcp://127.0.0.1:*")
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.stopping = False
        self.lock = threading.RLock()  # whoever speaks: a socket is for one thread at a time
        self.thread = threading.Thread(target=self._run, name="fuzz-impostor", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        """Welcome whoever comes, and keep them from thinking that nobody is here."""
        pinged = 0.0
        while not self.stopping:
            with self.lock:
                while self.router.poll(0):
                    peer, header, *_ = self.router.recv_multipart()
                    try:
                        message, _ = wire.FROM_PEERS.decode([header, *_])
                    except ProtocolError:
                        continue
                    self._answer(peer, message)
                if time.monotonic() - pinged > 0.3:
                    pinged = time.monotonic()
                    for peer in self.peers:
                        self.say(peer, [wire.encode(wire.Ping())])
            time.sleep(0.002)

    def _answer(self, peer: bytes, message: wire.Message) -> None:
        match message:
            case wire.ClientHello():
                answers: list[wire.Message] = [wire.ClientWelcome(0, b"t" * 16, 8), wire.Workers(())]
            case wire.WorkerHello():
                answers = [wire.WorkerWelcome(0, b"t" * 16)]
            case wire.Attach():
                answers = [wire.Attached()]
            case _:
                return
        self.peers.append(peer)  # first: who is answered may ask for it
        for answer in answers:
            self.say(peer, [wire.encode(answer)])

    def say(self, peer: bytes, frames: Frames) -> bool:
        with self.lock:
            try:
                self.router.send_multipart([peer, *frames], zmq.NOBLOCK)
            except zmq.ZMQError:
                return False
        return True

    def close(self) -> None:
        self.stopping = True
        self.thread.join()
        self.router.close(0)


def use(desk: Desk, seed: int) -> None:
    """Do what a client does: small and large values, a run, a read; and check the answers."""
    r = np.random.default_rng(seed)
    small, large = r.random((4, 4), np.float32), r.random((200, 200), np.float32)
    a, b = desk.put(small), desk.put(large, rows())
    out = desk.run("add", (a, (4, 4)), (a, (4, 4)), frees=(a,))
    assert np.array_equal(desk.get(out), small + small) and np.array_equal(desk.get(b), large)
    desk.session.free((out, b))


def recorded() -> dict[str, list[Frames]]:
    """Record a few runs, by who reads the frames."""
    recorder = Recorder()
    with recorder.recording():
        cluster = Cluster()
        session = RemoteSession(cluster.dispatcher.endpoint, timeout=20)
        try:
            desk = Desk(session)
            for seed in range(3):
                use(desk, seed)
            session.explain(desk.put(np.ones((3, 3), np.float32))).result(20)
        finally:
            session.close()
            cluster.close()
    assert all(recorder.frames.values()), {k: len(v) for k, v in recorder.frames.items()}
    return recorder.frames


# -- the attack


@dataclass
class Tally:
    """What was sent to whom, how much of it was malformed, and how much was counted as such."""

    sent: dict[str, int] = field(default_factory=dict)
    malformed: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    growth: int = 0
    descriptors: int = 0

    def note(self, name: str, frames: Frames) -> None:
        self.sent[name] = self.sent.get(name, 0) + 1
        try:
            CODECS[name].decode(frames)
        except ProtocolError:
            self.malformed[name] = self.malformed.get(name, 0) + 1


class Strangers:
    """Peers that nobody has asked for, on a dispatcher's or a worker's ports. Each is replaced once it has sent some frames."""

    def __init__(self, context: Any, endpoint: str, hello: wire.Message | None) -> None:
        self.context, self.endpoint, self.hello = context, endpoint, hello
        self.socket: Any = None
        self.left = 0

    def send(self, frames: Frames) -> bool:
        if not self.left:
            self.close()
            self.socket, self.left = make_socket(self.context, zmq.DEALER, data=True), 500
            self.socket.connect(self.endpoint)
            if self.hello is not None:
                self.socket.send(wire.encode(self.hello))
        self.left -= 1
        if not frames:
            return False
        self.socket.send_multipart(frames)
        while self.socket.poll(0):
            self.socket.recv_multipart()
        return True

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close(20_000)


def junk(endpoint: str, r: random.Random) -> None:
    """Open a bare connection and send what is not ZMTP, or begins so."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + r.choice((b"NULL", b"CURVE", b"\xff")).ljust(20, b"\0") + bytes(32)
    with sockets.create_connection((host, int(port)), 5) as raw:
        try:
            raw.sendall(
                r.choice((b"GET / HTTP/1.1\r\n\r\n", greeting + r.randbytes(60), r.randbytes(r.randrange(1, 300)), greeting[:9]))
            )
        except OSError:
            return


def attack(frames: int, seed: int) -> Tally:
    """Send so many frames. Errors: AssertionError for whatever should not have been."""
    samples, r, tally = recorded(), random.Random(seed), Tally()
    everything = [f for fs in samples.values() for f in fs]
    context: zmq.Context[Any] = zmq.Context()
    with ExitStack() as ends:
        ends.callback(context.destroy, 0)
        cluster = Cluster()
        ends.callback(cluster.close)
        impostors = [Impostor(context), Impostor(context)]
        for impostor in impostors:
            ends.callback(impostor.close)
        lone = WorkerProcess(impostors[1].endpoint, "numpy", "cpu")
        lone_thread = threading.Thread(target=cluster._guarded, args=(lone.run,), name="fuzz-lone")
        lone_thread.start()
        ends.callback(lone_thread.join, 15)
        ends.callback(lone.stop)
        target = Target(cluster, impostors, lone, context)
        ends.callback(target.close)
        honest = RemoteSession(cluster.dispatcher.endpoint, timeout=20)
        ends.callback(honest.close)
        desk = Desk(honest)
        process = psutil.Process()
        base: tuple[int, int] | None = None
        for i in range(frames):
            name = r.choices(list(CODECS), (4, 2, 2, 2))[0]
            made = mutated(r.choice(samples[name] if r.random() < 0.9 else everything), everything, r)
            if made and target.send(name, made):
                tally.note(name, made)
            if i % 50 == 0:
                junk(r.choice(target.ports()), r)
            if i % max(200, frames // 100) == 0:
                use(desk, i)
                target.check()
            if i >= frames // 3 and base is None:
                target.settle(tally.malformed)
                base = process.memory_info().rss, process.num_fds()
        target.settle(tally.malformed)
        use(desk, seed)
        target.check()
        tally.counted = target.counted()
        assert base is not None
        tally.growth, tally.descriptors = process.memory_info().rss - base[0], process.num_fds() - base[1]
    return tally


class Target:
    """The ends that frames are sent to, each over its own socket."""

    def __init__(self, cluster: Cluster, impostors: list[Impostor], lone: WorkerProcess, context: Any) -> None:
        self.cluster, self.impostors, self.lone = cluster, impostors, lone
        self.strangers = {
            "dispatcher": [Strangers(context, cluster.dispatcher.endpoint, h) for h in (None, wire.ClientHello(1))],
            "uploads": [Strangers(context, cluster.worker.bound[0], None)],
        }
        self.sessions: list[RemoteSession] = []
        self.dropped_by_clients = 0
        self.turn = 0

    def ports(self) -> list[str]:
        return [self.cluster.dispatcher.endpoint, *self.cluster.worker.bound]

    def send(self, name: str, frames: Frames) -> bool:
        self.turn += 1
        if name in self.strangers:
            strangers = self.strangers[name]
            return strangers[self.turn % len(strangers)].send(frames)
        if name == "client":
            return self._to_client(frames)
        if ends_it(frames):
            return False
        return self._say(self.impostors[1], self.turn, frames)

    def _say(self, impostor: Impostor, turn: int, frames: Frames) -> bool:
        with impostor.lock:
            return bool(impostor.peers) and impostor.say(impostor.peers[turn % len(impostor.peers)], frames)

    def _to_client(self, frames: Frames) -> bool:
        """Say it to a client. One whose session a message has ended, in order, is replaced."""
        if not self.sessions or self.sessions[-1].closed is not None:
            self.check()
            for session in self.sessions:
                self.dropped_by_clients += session.malformed.count
                session.close()
            self.impostors[0].peers.clear()
            self.sessions = [RemoteSession(self.impostors[0].endpoint, timeout=20)]
            assert self.sessions[0].closed is None
        return self._say(self.impostors[0], 0, frames)  # the first peer is the connection that it reads

    def settle(self, malformed: dict[str, int]) -> None:
        """Wait until what was sent has been read: ``malformed`` of it at each end, and then whatever more there is."""
        for _ in range(300):
            before = self.counted()
            time.sleep(0.1)
            if self.counted() == before and all(before[name] >= count for name, count in malformed.items()):
                return

    def counted(self) -> dict[str, int]:
        return {
            "dispatcher": self.cluster.dispatcher.malformed.count, "uploads": self.cluster.worker.intake.dropped,
            "worker": self.lone.malformed.count,
            "client": self.dropped_by_clients + sum(s.malformed.count for s in self.sessions),
        }  # fmt: skip

    def check(self) -> None:
        """Nothing has died. A client's session may have ended, with a cause that is an error of gt's."""
        if self.cluster.fault:
            raise AssertionError("something died") from self.cluster.fault[0]
        for session in self.sessions:
            assert session.closed is None or isinstance(session.closed.exception(), GtError)
            assert session.closed is None or "thread failed" not in session.closed.message, session.closed
        assert not self.lone.stopping and self.lone.io.is_alive(), "the worker ended"

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        for strangers in self.strangers.values():
            for s in strangers:
                s.close()


def ends_it(frames: Frames) -> bool:
    """Whether a message ends a worker by right."""
    try:
        message, _ = wire.TO_WORKER.decode(frames)
    except ProtocolError:
        return False
    return isinstance(message, wire.Stop | wire.Refused | wire.MakeGroup | wire.StoreReply)


@click.command()
@click.option("--frames", default=100_000, show_default=True)
@click.option("--seed", type=int, help="Of a run to repeat.")
def main(frames: int, seed: int | None) -> None:
    """Send malformed frames to every socket of a cluster of this process."""
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    click.echo(f"seed {seed}")
    began = time.monotonic()
    tally = attack(frames, seed)
    for name, sent in tally.sent.items():
        click.echo(f"{name}: {sent} sent, {tally.malformed.get(name, 0)} malformed, {tally.counted[name]} dropped and counted")
    click.echo(f"memory grew by {tally.growth >> 20} MiB, descriptors by {tally.descriptors}; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
