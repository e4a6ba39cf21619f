"""What a client holds at the dispatcher and in which order its calls are served.

Owns: ``Buffer``, ``Flight``, ``Client`` and its queue. A client's calls are served strictly in order; one that has to
wait (for a plan, an upload, a worker) holds up only the calls behind it. Must not know: sockets, how plans are made.
Next: ``dispatcher_state``, which serves the queues.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from gt.ir.types import TensorType
from gt.passes.reasons import PlanReasons
from gt.runtime.errors import Fault
from gt.runtime.wire import Answer, Expect, Explain, Fetch, Free, Parent, Placed, Put, Recover, Resume, Run, Ship

if TYPE_CHECKING:
    from gt.runtime.cutting import Going
    from gt.runtime.moving import Moving
    from gt.runtime.plan_records import PlanRecord

MAX_QUEUE = 100_000
MAX_QUEUED_NBYTES = 64 << 20  # of uploads that wait in a queue; beyond it they are placed as they come
NO_REASONS = PlanReasons("")


class Buffer(msgspec.Struct, eq=False):
    """One value of a client on the workers, under a cluster-wide ``uid``. ``type`` is placed.

    ``waiting``: workers whose upload has not come yet. ``flight``: the unsettled run that makes it. ``reasons``: what the plan of
    that run says, of its output ``output``; an upload has reasons of its own.

    Of one that failed: ``failed_in``: the epoch, if the worker that was to make it knows and nobody else had a part in it, -1 if not;
    ``before``: what it was to replace. ``holders``: how many of the client's numbers name it. ``kept``: it is there though freed, because what replaced it failed.
    ``nbytes``: what it counts for in its client's quota. ``where``: the user's line that made it.
    """

    uid: int
    type: TensorType | None
    flight: Flight | None = None
    reasons: PlanReasons = NO_REASONS
    output: int = 0
    nbytes: int = 0
    where: str = ""
    waiting: set[int] = msgspec.field(default_factory=set)
    fault: Fault | None = None
    failed_in: int = -1
    before: Buffer | None = None
    holders: int = 1
    kept: bool = False

    def __repr__(self) -> str:
        if self.fault:
            return f"failed({self.fault.kind})"
        if self.waiting:
            return f"uploading{sorted(self.waiting)}"
        return f"epoch {self.flight.epoch}" if self.flight else "ready"

    @property
    def alone(self) -> bool:
        """Whether it failed, and its worker goes on without it."""
        return self.failed_in >= 0

    def failed_with(self, other: Buffer) -> bool:
        """Whether both failed in one run, or for one cause."""
        if self.fault is None or other.fault is None:
            return False
        return (self.alone and self.failed_in == other.failed_in) or self.fault.same_run(other.fault)

    def replaces(self, old: Buffer | None) -> bool:
        """Note what a failed buffer was to replace; tell whether that can be. A client may say that two replace each other."""
        at = old
        while at is not None and at is not self:
            at = at.before
        if old is None or at is self:
            return False
        self.before = old
        return True

    @property
    def lasting(self) -> Buffer | None:
        """Give the latest of what a failed buffer and those before it replaced that is still there."""
        old = self.before
        while old is not None and (old.fault is not None or not (old.holders or old.kept)):
            old = old.before
        return old


@dataclass(slots=True, eq=False)
class Flight:
    """One epoch on its way. It is *settled* once all workers, and all runs it read from, report success.

    ``replaces``: as in ``Run``. ``freed``: the buffers that went with it, by number, ``late`` those of them that
    wait until it has gone well: what is replaced, and not read or on other workers too. ``refuses``: it may fail for its values, or those it reads may have.
    ``local``: the only worker that it and its unsettled inputs touched; that worker alone knows whether it went well.
    """

    epoch: int
    client: Client | None
    waiting: set[int]
    outputs: tuple[Buffer, ...] = ()
    replaces: tuple[int, ...] = ()
    freed: dict[int, Buffer] = field(default_factory=dict)
    late: frozenset[Buffer] = frozenset()
    refuses: bool = False
    local: int | None = None
    deps: set[int] = field(default_factory=set)
    dependents: list[Flight] = field(default_factory=list)
    fetches: list[int] = field(default_factory=list)
    reads: tuple[int, Ship] | None = None  # which worker tells an output with its end
    answer: Answer | None = None  # once it has
    groups: tuple[tuple[int, ...], ...] = ()
    where: str = ""
    plan: PlanRecord | None = None
    own: bool = True  # its end is that of a run that the client asked for; else it moves values, or is a part with others behind it
    part: int = 0  # the number of the part that it is
    fault: Fault | None = None
    suspect: Fault | None = None  # a collective broke, for a reason not known yet
    given_up_at: float | None = None  # when the first worker said so
    key: int = -1  # the graph's, as its client calls it
    number: int = -1  # of the first buffer that it makes, as its client calls it
    tiers: dict[int, str] = field(default_factory=dict)  # by worker, where not all is eager


@dataclass(frozen=True, slots=True)
class OverQuota:
    """A run beyond what its client may have in flight, in its place among the calls."""

    run: Run
    fault: Fault


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in its place among the calls: those before it may make room, or need it."""

    put: Put
    data: Any

    @property
    def nbytes(self) -> int:
        """Give how much of it is here."""
        return 0 if self.data is None else int(self.data.nbytes)


@dataclass(slots=True, eq=False)
class Client:
    """One client: its connections, graphs, buffers by its own numbers, and its queue.

    ``owner``: its name in labels, b"" if it will have nothing back. ``resume``: what it asks to have back from a dispatcher that is gone,
    until that is ``settled``, and ``asked_at`` when it did. ``seen``, ``up_seen``: when it was last heard of, by ``down`` and by ``up``.
    ``held``: bytes of what its numbers name. ``asked`` and ``runs``: how many runs came, and how many are over. ``unplaced``: uploads that
    it has not been asked for yet, by uid, with what to say to whom then; ``uploading``: the uids of those that it has;
    ``upload_nbytes``: of all since none was on its way. ``parent``: the span of the script's under which what is served now was called.
    """

    id: int
    token: bytes
    down: bytes
    owner: bytes = b""
    resume: Resume | None = None
    asked_at: float = 0.0
    settled: bool = False
    up: bytes | None = None
    seen: float = 0.0
    up_seen: float = 0.0
    workers: tuple[int, ...] = ()
    chosen: tuple[int, ...] = ()  # the workers that it was rebalanced over, if not all
    graphs: dict[int, tuple[object, Any]] = field(default_factory=dict)  # key -> (digest, graph)
    buffers: dict[int, Buffer] = field(default_factory=dict)
    queue: deque[Run | Parent | Fetch | Explain | Free | Recover | Moving | Going | OverQuota | Upload] = field(default_factory=deque)
    homeless: list[tuple[Any, Any]] = field(default_factory=list)  # uploads that came before any worker
    unplaced: deque[tuple[int, Placed, list[tuple[int, Expect]]]] = field(default_factory=deque)
    uploading: set[int] = field(default_factory=set)
    upload_nbytes: int = 0
    blocked_since: float | None = None
    asked: int = 0
    runs: int = 0
    parent: str = ""
    held: int = 0
    queued_nbytes: int = 0  # of uploads in the queue
    graph_nbytes: int = 0  # of its graphs
    salvaged: bool = False  # something may be kept that what replaced it failed
    tiers: dict[int, dict[int, str]] = field(default_factory=dict)  # by graph, at which its latest run was, as the client has heard

    def name(self, number: int, buffer: Buffer) -> Buffer:
        """Let a number name a new buffer."""
        self.buffers[number] = buffer
        self.held += buffer.nbytes
        return buffer

    def unname(self, numbers: Iterable[int]) -> dict[int, Buffer]:
        """Let numbers name nothing; give the buffers that no number names any more, by number."""
        released: dict[int, Buffer] = {}
        for number in numbers:
            buffer = self.buffers.pop(number, None)
            if buffer is not None:
                buffer.holders -= 1
                if not buffer.holders:
                    released[number] = buffer
                    self.held -= buffer.nbytes
        return released

    def only_named(self, numbers: Iterable[int]) -> list[Buffer]:
        """Give the buffers, each once, that no number would name any more without these."""
        named = Counter(buffer for n in set(numbers) if (buffer := self.buffers.get(n)) is not None)
        return [buffer for buffer, count in named.items() if count == buffer.holders]

    def __repr__(self) -> str:
        buffers = ", ".join(f"{n}: {b!r}" for n, b in self.buffers.items())
        return f"client {self.id} {{{buffers}}} {len(self.queue)} queued"
