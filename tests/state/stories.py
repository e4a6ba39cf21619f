"""A cast for state-machine stories: a dispatcher with clients and workers, told one message at a time.

Next: ``test_dispatcher_stories``.
"""

from __future__ import annotations

from typing import Any

from gt.ir.mesh import Sharding
from gt.ir.program import Collective, Program, WireType
from gt.ir.types import TensorType, float32
from gt.passes.signal_placement import cluster_mesh
from gt.runtime import wire
from gt.runtime.dispatcher_events import Event, MakePlan, PeerGone, Planned, Received, Send, Tick
from gt.runtime.dispatcher_state import DispatcherState, Options
from gt.runtime.wire import Message

T = TensorType((4, 4), float32)


class Story:
    """A dispatcher and its peers. Peers of client 0 are ``c0`` and ``c0up``; of worker 1, ``w1`` and ``l1``."""

    def __init__(self, workers: int = 1, clients: int = 1, **options: Any) -> None:
        self.now = 0.0
        self.secrets = 0
        self.state = DispatcherState(self._secret, Options(**options))
        self.log: list[Any] = []
        for i in range(workers):
            self.join_worker(i)
        for i in range(clients):
            self.join_client(i)
        self.log.clear()

    def _secret(self) -> bytes:
        self.secrets += 1
        return self.secrets.to_bytes(16, "big")

    def tell(self, event: Event) -> list[Any]:
        out = self.state.handle(event)
        self.log += out
        return out

    def say(self, peer: str, message: Message, data: Any = None) -> list[Any]:
        """A peer sends a message; give what the dispatcher does."""
        return self.tell(Received(self.now, peer.encode(), message, data))

    def join_worker(self, i: int) -> None:
        hello = wire.WorkerHello(f"u{i}", f"r{i}", "host", 100 + i, "cpu", "numpy")
        *_, welcome = self.say(f"w{i}", hello)  # after pings of the others
        self.say(f"l{i}", wire.Attach(welcome.message.token, "link"))

    def join_client(self, i: int) -> None:
        welcome, _ = self.say(f"c{i}", wire.ClientHello(1))
        self.say(f"c{i}up", wire.Attach(welcome.message.token, "up"))

    def wait(self, seconds: float) -> list[Any]:
        self.now += seconds
        return self.tell(Tick(self.now))

    def gone(self, peer: str) -> list[Any]:
        return self.tell(PeerGone(self.now, peer.encode()))

    def put(self, buffer: int, client: int = 0) -> list[Any]:
        return self.say(f"c{client}up", wire.Put(buffer, WireType.of(T), None, True), memoryview(bytes(T.nbytes)))

    def define(self, key: int, client: int = 0, graph: bytes = b"graph") -> None:
        self.say(f"c{client}up", wire.Define(key), memoryview(graph))

    def run(
        self, key: int, inputs: tuple[int, ...], outputs: tuple[int, ...], frees: tuple[int, ...] = (), client: int = 0,
        replaces: tuple[int, ...] = (),
    ) -> list[Any]:  # fmt: skip
        return self.say(f"c{client}up", wire.Run(key, inputs, outputs, (), frees, replaces))

    def fetch(self, buffer: int, request: int, client: int = 0) -> list[Any]:
        return self.say(f"c{client}up", wire.Fetch(buffer, request))

    def plan(
        self, make: MakePlan, outputs: int = 1, groups: tuple[tuple[int, ...], ...] = (), placed: TensorType | None = None
    ) -> list[Any]:
        """Answer a request for a plan: outputs are whole everywhere unless ``placed``, whose workers run it."""
        placed = placed or T.placed(Sharding.replicated(cluster_mesh(make.workers, make.workers), T.ndim))
        assert placed.sharding is not None
        return self.tell(
            Planned(
                self.now,
                make.plan,
                {w: program(w, len(make.inputs), outputs, groups) for w in placed.sharding.mesh.workers},
                (placed,) * outputs,
            )
        )

    def get_through(self) -> None:
        """Let the workers do all that they have been sent, reads among it, until there is no more."""
        told = 0
        while told < len(self.log) or any(f.waiting for f in self.state.flights.by_epoch.values()):
            for epoch, flight in list(self.state.flights.by_epoch.items()):
                for worker in sorted(flight.waiting):
                    self.done(worker, epoch)
            commands, told = self.log[told:], len(self.log)
            for c in commands:
                if isinstance(c, Send) and isinstance(c.message, wire.Ship) and c.message.job >= 0:
                    self.say(c.peer.decode(), wire.Shipped(c.message.job, 0.001))

    def done(self, worker: int, epoch: int, fault: Any = None, failed: Any = None, kept: tuple[int, ...] = ()) -> list[Any]:
        return self.say(f"w{worker}", wire.Done(epoch, 0.01, fault, failed, kept))


def program(
    worker: int, inputs: int, outputs: int, groups: tuple[tuple[int, ...], ...] = (), donated: tuple[int, ...] = ()
) -> Program:
    """A program whose inputs are slots 0.. and whose outputs follow them."""
    steps = tuple(
        Collective("all_reduce", i, 0, 0, WireType((4, 4), "float32"), group, (("reduce", "sum"),))
        for i, group in enumerate(groups)
        if worker in group
    )
    return Program(
        worker=worker,
        inputs=tuple((i, i) for i in range(inputs)),
        scalars=(),
        steps=steps,
        outputs=tuple((i, inputs + i) for i in range(outputs)),
        locations=(("train.py", 12, "step"),),
        donated=donated,
        name="story",
    )


def sent(commands: list[Any], kind: type[Any], peer: str | None = None) -> list[Any]:
    """Give the messages of a kind among commands, to one peer if named."""
    return [
        c.message for c in commands
        if isinstance(c, Send) and isinstance(c.message, kind) and (peer is None or c.peer == peer.encode())
    ]  # fmt: skip


def plans(commands: list[Any]) -> list[MakePlan]:
    return [c for c in commands if isinstance(c, MakePlan)]
