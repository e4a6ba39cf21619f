"""Who is there: clients, workers and their connections, and what they are sent.

Owns: ``Roster``, ``Worker``, ``Options``. Must not know: values, plans, what a message means. Next: ``values`` and ``epochs``, which
send through it, ``dispatcher_state``, which lets peers in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gt.runtime import wire
from gt.runtime.busy_process import BUSY_TIMEOUT_S
from gt.runtime.dispatcher_events import Command, Send
from gt.runtime.fair_queue import Limits
from gt.runtime.schedule import Client
from gt.runtime.usage import ProgramState, WorkerUsage
from gt.runtime.wire import Message


@dataclass
class Options:
    """Deadlines and limits. ``owns_workers``: worker processes are local and may be killed when they stop answering.

    ``worker_timeout_s``: how long a worker may say nothing; ``busy_timeout_s``: while its process has something to do, as ``busy`` says, given
    its host and pid. ``epoch_timeout_s``: how long a worker may be in one epoch; ``late_s``: how long once the others have given up waiting for it.
    ``generation``: which dispatcher this is, if its workers are to keep values for the next one should it be lost: for ``lease_s``
    seconds at least; 0: they need not. ``return_s``: how long a client that comes back waits for workers that have not.
    ``window``: runs a client may have in flight; ``client_nbytes``: bytes it may hold on all workers together, None for no limit;
    ``max_priority``: the most it may ask for. ``sharing``: how much may be queued on a worker. ``tag``: what tells this
    dispatcher from others in an instruction log. ``host``, ``pid``: its process.
    """

    window: int = 32
    client_nbytes: int | None = None
    max_priority: float = 1.0
    sharing: Limits = field(default_factory=Limits)
    client_lease_s: float = 10.0
    worker_timeout_s: float = 4.0
    busy_timeout_s: float = BUSY_TIMEOUT_S
    busy: Callable[[str, int], bool] = lambda host, pid: False
    no_workers_s: float = 30.0
    epoch_timeout_s: float = 1800.0
    late_s: float = 30.0
    max_plans: int = 2048
    owns_workers: bool = False
    generation: int = 0
    lease_s: float = 60.0
    return_s: float = 15.0
    job: str = ""  # of gt launch, with num_nodes nodes; 0: none
    num_nodes: int = 0
    tag: str = ""
    host: str = ""
    pid: int = 0


@dataclass(slots=True, eq=False)
class Worker:
    id: int
    token: bytes
    work: bytes
    hello: wire.WorkerHello
    link: bytes | None = None
    seen: float = 0.0
    beat: wire.Beat = field(default_factory=wire.Beat)  # the latest
    since: float = 0.0  # when it first said that it is in that epoch
    loaded: set[int] = field(default_factory=set)
    usage: WorkerUsage = field(default_factory=WorkerUsage)  # as it said last, as are
    programs: dict[int, ProgramState] = field(default_factory=dict)
    tiers: dict[int, str] = field(default_factory=dict)  # by plan, those of its latest run
    ready: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by plan, which pieces may run compiled code once the others are as far
    used: float = 0.0  # when it said so
    parent: str = ""  # as it was told last

    @property
    def process(self) -> str:
        """Give what it is, and which process, for people."""
        return f"worker {self.id} (pid {self.hello.pid} on {self.hello.host})"

    def __repr__(self) -> str:
        return f"worker {self.id} {'joined' if self.link else 'joining'}"


class Roster:
    """Clients and workers by number, and by the connections they have (``peers``). What they are told is collected in ``out``.

    ``secret()`` draws 16 random bytes (tokens and tickets). ``now`` is the time of the event being handled.
    """

    def __init__(self, secret: Callable[[], bytes], options: Options) -> None:
        self.secret, self.options = secret, options
        self.now = 0.0
        self.clients: dict[int, Client] = {}
        self.workers: dict[int, Worker] = {}
        self.peers: dict[bytes, Client | Worker] = {}
        self.out: list[Command] = []
        self.has_parents = False  # some client's calls have been under a span

    def send(self, peer: bytes | None, message: Message, data: Any = None) -> None:
        """Send a message by a connection, if there is one."""
        if peer is not None:
            self.out.append(Send(peer, message, data))

    def under(self, client: Client, workers: Iterable[int]) -> None:
        """Tell workers under which span what they do next for a client is, where they do not know."""
        if not self.has_parents:
            return
        for w in workers:
            if (worker := self.workers[w]).parent != client.parent:
                worker.parent = client.parent
                self.send(worker.work, wire.Parent(client.parent))

    @property
    def worker_ids(self) -> tuple[int, ...]:
        """Give the workers that may be given work, in order."""
        return tuple(sorted([w.id for w in self.workers.values() if w.link is not None]))

    def owner_of(self, token: bytes) -> Client | Worker | None:
        """Give whose secret a token is."""
        owners: list[Client | Worker] = [*self.clients.values(), *self.workers.values()]
        return next((owner for owner in owners if owner.token == token), None)

    @property
    def torch(self) -> str:
        """Give the version of torch that the workers have."""
        return next((w.hello.torch for w in self.workers.values()), "")

    def workers_of(self, client: Client) -> tuple[int, ...]:
        """Give the workers that a client's next value or plan may use: all there are by now, or those that it chose."""
        present = self.worker_ids
        client.workers = (tuple([w for w in present if w in client.chosen]) or present) if client.chosen else present
        return client.workers


__all__ = ["Options", "Roster", "Worker"]
