"""What a session has sent since its last snapshot, so that lost values can be made again. Pure: no sockets, no clock, no arrays read.

Owns: ``RunLog``. A value of the log is what it was when it was sent: buffers are made once and
never reused, so a run names all that it needs. Must not know: connections, workers. Next: ``recovering`` (who fills and replays it).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gt.ir.program import WireSharding
from gt.ir.signals import SignalConfig
from gt.ir.types import TensorType
from gt.runtime import wire
from gt.runtime.errors import Fault
from gt.runtime.recovery import Recovery


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A value that can be put again: its bytes, and where it was (``placed``) or was asked to be (``signal``)."""

    type: TensorType
    data: Any
    signal: SignalConfig | None = None
    placed: WireSharding | None = None

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Put:
    """An upload."""

    buffer: int
    kept: Kept


@dataclass(slots=True, eq=False)
class Asked:
    """A read. It is asked again only while it is ``open``: what the script has seen it does not see twice."""

    ticket: int
    buffer: int
    open: bool = True


Entry: TypeAlias = Put | Asked | wire.Run | wire.RanAt | wire.Free | wire.Recover | wire.Rebalance


@dataclass
class Snapshot:
    """One under way: what was alive when it began, which of it has still to come, and at which entry it began."""

    alive: frozenset[int]
    wanted: set[int]
    at: int
    began: float
    got: dict[int, Kept | Fault] = field(default_factory=dict)


class RunLog:
    """Entries since the last snapshot, and what that holds. ``alive``: buffers made before the log was begun; it is ``whole`` once a
    snapshot covers them.
    """

    def __init__(self, alive: Iterable[int] = (), now: float = 0.0) -> None:
        self.alive = set(alive)
        self.base: dict[int, Kept | Fault] = {}
        self.entries: list[Entry] = []
        self.whole = not self.alive
        self.nbytes = 0  # of the uploads among the entries
        self.taken_at = now
        self.snapshot: Snapshot | None = None
        self.tiers: dict[int, wire.Tiers] = {}  # by graph, at the log's begin
        self._puts: dict[int, Kept] = {}
        self._asked: dict[int, Asked] = {}

    def __repr__(self) -> str:
        under_way = f", snapshot of {len(self.snapshot.wanted)} more to come" if self.snapshot else ""
        return f"<RunLog {len(self.base)} kept, {len(self.entries)} entries, {len(self.alive)} alive{under_way}>"

    # -- what is sent

    def put(self, buffer: int, kept: Kept) -> None:
        self.entries.append(Put(buffer, kept))
        self._puts[buffer] = kept
        self.nbytes += kept.nbytes
        self.alive.add(buffer)

    def run(self, run: wire.Run) -> None:
        self.entries.append(run)
        self.alive.update(run.outputs)
        self.alive.difference_update(run.frees)

    def ran_at(self, message: wire.RanAt) -> None:
        """Keep at which tiers a run was, and those of its graph after it, just before it; of one that is not here any more, at the begin."""
        at = next((i for i in range(len(self.entries) - 1, -1, -1) if _makes(self.entries[i], message.buffer)), None)
        if at is None:
            self.tiers[message.key] = message.tiers
            return
        self.entries.insert(at, message)
        if self.snapshot is not None and at < self.snapshot.at:
            self.snapshot.at += 1

    def free(self, free: wire.Free) -> None:
        self.entries.append(free)
        self.alive.difference_update(free.buffers)

    def recover(self, recover: wire.Recover) -> None:
        self.entries.append(recover)

    def rebalance(self, rebalance: wire.Rebalance) -> None:
        self.entries.append(rebalance)

    def ask(self, ticket: int, buffer: int) -> None:
        asked = self._asked[ticket] = Asked(ticket, buffer)
        self.entries.append(asked)

    def answered(self, ticket: int) -> None:
        """The script has what it asked for."""
        asked = self._asked.pop(ticket, None)
        if asked is not None:
            asked.open = False

    # -- snapshots

    def due(self, now: float, options: Recovery) -> bool:
        """Whether a snapshot should begin. What is dead by now is dropped first, where that may do."""
        if self.snapshot is not None or not self.entries:
            return False
        if not self.whole or now - self.taken_at >= options.interval_s:
            return True
        if self.nbytes > options.max_bytes or len(self.entries) > options.max_calls:
            self.trim()
            return 2 * self.nbytes > options.max_bytes or 2 * len(self.entries) > options.max_calls
        return False

    def begin(self, now: float) -> list[int]:
        """Begin a snapshot here; give what has to be read for it. Uploads and what the last one holds need not be."""
        assert self.snapshot is None
        known = self._puts.keys() | {b for b, kept in self.base.items() if isinstance(kept, Kept)}
        wanted = self.alive - known
        self.snapshot = Snapshot(frozenset(self.alive), set(wanted), len(self.entries), now)
        return sorted(wanted)

    def arrived(self, buffer: int, kept: Kept | Fault) -> None:
        """A value of the snapshot is here, or it is known why there is none."""
        if self.snapshot is not None and buffer in self.snapshot.wanted:
            self.snapshot.wanted.discard(buffer)
            self.snapshot.got[buffer] = kept

    def complete(self) -> Snapshot | None:
        """Once all of a snapshot is here, forget what came before it, and give it."""
        snap = self.snapshot
        if snap is None or snap.wanted or any(isinstance(e, Asked) and e.open for e in self.entries[: snap.at]):
            return None
        self.base = {b: snap.got.get(b) or self._puts.get(b) or self.base[b] for b in snap.alive}
        self.tiers.update({e.key: e.tiers for e in self.entries[: snap.at] if isinstance(e, wire.RanAt)})
        self._set(self.entries[snap.at :])
        self.snapshot, self.taken_at, self.whole = None, snap.began, True
        return snap

    def abandon(self) -> None:
        """Give up a snapshot under way: what it still waits for is lost."""
        self.snapshot = None

    # -- what a replay needs

    def trim(self) -> None:
        """Drop what no live value and no open read depends on."""
        if self.snapshot is not None:
            return
        needed: set[int] = set(self.alive)
        kept: list[Entry] = []
        for entry in reversed(self.entries):
            match entry:
                case wire.Run() if needed.isdisjoint(entry.outputs):
                    if entry.frees:
                        kept.append(wire.Free(entry.frees))
                    continue
                case wire.Run():
                    needed.update(entry.inputs)
                    needed.update(entry.replaces)  # where it fails, those are what its tensors are again
                case Put() if entry.buffer not in needed:
                    continue
                case Asked() if not entry.open:
                    continue
                case Asked() | wire.Recover():
                    needed.add(entry.buffer)
                case _:
                    pass
            kept.append(entry)
        self.base = {b: value for b, value in self.base.items() if b in needed}
        self._set(_known_frees(reversed(kept), set(self.base)))

    def _set(self, entries: list[Entry]) -> None:
        self.entries = entries
        self._puts = {e.buffer: e.kept for e in entries if isinstance(e, Put)}
        self.nbytes = sum(kept.nbytes for kept in self._puts.values())

    @property
    def num_runs(self) -> int:
        return sum(isinstance(e, wire.Run) for e in self.entries)


def _makes(entry: Entry, buffer: int) -> bool:
    """Whether an entry is the run whose first result is this buffer."""
    return isinstance(entry, wire.Run) and entry.outputs[:1] == (buffer,)


def _known_frees(entries: Iterable[Entry], known: set[int]) -> list[Entry]:
    """Leave out of frees what is not there in a replay."""
    out: list[Entry] = []
    for entry in entries:
        match entry:
            case Put():
                known.add(entry.buffer)
            case wire.Run():
                known.update(entry.outputs)
            case wire.Free(buffers):
                there = tuple([b for b in buffers if b in known])
                known.difference_update(there)
                if not there:
                    continue
                entry = wire.Free(there)
            case _:
                pass
        out.append(entry)
    return out


__all__ = ["Asked", "Entry", "Kept", "Put", "RunLog", "Snapshot"]
