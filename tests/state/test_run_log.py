"""Stories of the log that a lost value is made again from: what it keeps, what it forgets, and that a replay gives the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from gt.ir.types import TensorType, int64
from gt.runtime import wire
from gt.runtime.errors import Fault
from gt.runtime.recovery import Recovery
from gt.runtime.run_log import Asked, Kept, Put, RunLog

OFTEN = Recovery(interval_s=10)


def kept(value: int = 0, size: int = 1) -> Kept:
    return Kept(TensorType((size,), int64), np.full(size, value))


def run(inputs: tuple[int, ...], outputs: tuple[int, ...], frees: tuple[int, ...] = (), replaces: tuple[int, ...] = ()) -> wire.Run:
    return wire.Run(0, inputs, outputs, (), frees, replaces)


def take(log: RunLog, now: float, values: dict[int, Kept | Fault]) -> list[int]:
    """Take a whole snapshot; give what had to be read for it."""
    wanted = log.begin(now)
    for buffer in wanted:
        log.arrived(buffer, values[buffer])
    assert log.complete() is not None
    return wanted


def test_uploads_are_kept_until_a_snapshot_covers_them_and_are_not_read_for_it():
    log = RunLog()
    log.put(1, kept(1))
    log.put(2, kept(2))
    log.run(run((1, 2), (3,), (2,)))
    assert log.nbytes == 16
    assert take(log, 1.0, {3: kept(3)}) == [3]
    assert sorted(log.base) == [1, 3] and not log.entries and not log.nbytes


def test_what_has_not_changed_since_the_last_snapshot_is_not_read_again():
    log = RunLog()
    log.put(1, kept(1))
    log.run(run((1,), (2, 3)))
    assert take(log, 1.0, {2: kept(2), 3: kept(3)}) == [2, 3]
    log.run(run((2,), (4,), (2,)))
    assert take(log, 2.0, {4: kept(4)}) == [4]
    assert sorted(log.base) == [1, 3, 4]


def test_what_is_sent_while_a_snapshot_is_under_way_comes_after_it():
    log = RunLog()
    log.put(1, kept(1))
    log.run(run((1,), (2,)))
    assert log.begin(1.0) == [2]
    later = run((2,), (3,), (2,))
    log.run(later)
    assert log.complete() is None
    log.arrived(2, kept(2))
    assert log.complete() is not None
    assert log.entries == [later] and sorted(log.base) == [1, 2]


def test_a_snapshot_given_up_changes_nothing():
    log = RunLog()
    log.put(1, kept(1))
    log.run(run((1,), (2, 3)))
    log.begin(1.0)
    log.arrived(2, kept(2))
    log.abandon()
    log.arrived(3, kept(3))
    assert log.complete() is None and len(log.entries) == 2 and not log.base


def test_a_snapshot_waits_for_reads_before_it_that_are_not_answered():
    log = RunLog()
    log.put(1, kept(1))
    log.ask(7, 1)
    assert log.begin(1.0) == []
    assert log.complete() is None
    log.answered(7)
    assert log.complete() is not None


def test_a_log_begun_late_is_not_whole_until_its_first_snapshot():
    log = RunLog({1, 2})
    assert not log.whole and take(log, 1.0, {1: kept(1), 2: kept(2)}) == [1, 2] and log.whole


def test_a_snapshot_is_due_after_its_interval_and_only_if_something_was_sent():
    log = RunLog()
    assert not log.due(11.0, OFTEN)
    log.put(1, kept(1))
    assert not log.due(9.0, OFTEN) and log.due(11.0, OFTEN)
    take(log, 11.0, {})
    assert not log.due(30.0, OFTEN)


def test_a_snapshot_under_way_is_not_begun_again():
    log = RunLog()
    log.put(1, kept(1))
    log.run(run((1,), (2,)))
    log.begin(0.0)
    assert not log.due(100.0, OFTEN)


def test_a_full_quota_makes_one_due_unless_what_fills_it_is_dead():
    few = Recovery(interval_s=1000, max_bytes=100)
    log = RunLog()
    for i in range(20):
        log.put(i, kept(i))
    assert log.due(0.0, few)
    log = RunLog()
    for i in range(20):
        log.put(i, kept(i))
        log.free(wire.Free((i,)))
    assert not log.due(0.0, few) and not log.entries


def test_many_calls_make_one_due():
    few = Recovery(interval_s=1000, max_calls=10)
    log = RunLog()
    log.put(0, kept())
    for i in range(10):
        log.run(run((i,), (i + 1,), (i,)))
    assert log.due(0.0, few)


def test_a_failed_value_is_read_again_by_every_snapshot_as_it_may_be_what_it_replaced():
    log = RunLog()
    log.put(1, kept(1))
    log.run(run((1,), (2,), (1,), (1,)))
    cause = Fault("index", "out of range")
    take(log, 1.0, {2: cause})
    assert log.base == {2: cause}
    log.recover(wire.Recover(2))
    assert take(log, 2.0, {2: kept(1)}) == [2]


def test_dead_runs_go_and_live_ones_stay_with_what_they_read():
    log = RunLog()
    log.put(1, kept(1))
    used, dead = run((1,), (2,)), run((1,), (3,))
    log.run(used)
    log.run(dead)
    log.free(wire.Free((1, 3)))
    log.trim()
    assert [type(e) for e in log.entries] == [Put, wire.Run, wire.Free] and used in log.entries
    assert log.entries[-1] == wire.Free((1,))


def test_an_answered_read_is_not_in_a_replay_and_an_open_one_keeps_what_it_reads():
    log = RunLog()
    log.put(1, kept(1))
    log.ask(1, 1)
    log.ask(2, 1)
    log.free(wire.Free((1,)))
    log.answered(1)
    log.trim()
    assert [e.ticket for e in log.entries if isinstance(e, Asked)] == [2] and log.num_runs == 0
    assert isinstance(log.entries[0], Put)


# -- any history at all


@dataclass
class World:
    """What workers would hold: each value is a number that follows from what its run read."""

    values: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)

    def do(self, entry: object) -> None:
        match entry:
            case Put(buffer, value):
                self.values[buffer] = int(value.data[0])
            case wire.Run():
                seed = hash((entry.key, *(self.values[i] for i in entry.inputs)))
                for i in entry.frees:
                    self.values.pop(i, None)
                self.values |= {o: hash((seed, n)) for n, o in enumerate(entry.outputs)}
            case wire.Free(buffers):
                for i in buffers:
                    self.values.pop(i, None)
            case Asked() if entry.open:
                self.read[entry.ticket] = self.values[entry.buffer]


def replayed(log: RunLog) -> World:
    world = World({b: int(value.data[0]) for b, value in log.base.items() if isinstance(value, Kept)})
    for entry in log.entries:
        world.do(entry)
    return world


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    kinds = st.sampled_from(["put", "run", "run", "step", "free", "ask", "answer", "begin", "end", "give up", "trim"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 1 << 16), st.integers(0, 1 << 16)), max_size=60))


def numbers() -> Iterator[int]:
    n = 0
    while True:
        n += 1
        yield n


@given(steps())
def test_a_replay_gives_every_live_value_and_every_open_read(history: list[tuple[str, int, int]]) -> None:
    log, world, fresh = RunLog(), World(), numbers()
    under_way: dict[int, Kept] = {}
    for now, (kind, a, b) in enumerate(history):
        alive = sorted(world.values)
        entry: object = None
        if kind == "put" or not alive:
            entry = Put(next(fresh), kept(a))
            log.put(entry.buffer, entry.kept)
        elif kind in ("run", "step"):
            one, two = alive[a % len(alive)], alive[b % len(alive)]
            entry = wire.Run(a % 5, (one, two), (next(fresh), next(fresh)), (), (one,) if kind == "step" else (), ())
            log.run(entry)
        elif kind == "free":
            entry = wire.Free((alive[a % len(alive)],))
            log.free(entry)
        elif kind == "ask":
            entry = Asked(now, alive[a % len(alive)])
            log.ask(now, entry.buffer)
        elif kind == "answer" and world.read:
            ticket = sorted(world.read)[a % len(world.read)]
            del world.read[ticket]
            log.answered(ticket)
            log.complete()
        elif kind == "begin" and log.snapshot is None:
            under_way = {i: kept(world.values[i]) for i in log.begin(float(now))}
            log.complete()
        elif kind == "end" and log.snapshot is not None:
            for i, value in under_way.items():
                log.arrived(i, value)
            log.complete()
        elif kind == "give up":
            log.abandon()
        elif kind == "trim":
            log.trim()
        if entry is not None:
            world.do(entry)
        again = replayed(log)
        assert log.alive == set(world.values)
        assert {i: again.values[i] for i in log.alive} == world.values
        assert again.read == world.read
    log.abandon()
    log.trim()
    assert replayed(log).read == world.read and replayed(log).values == world.values


def tiers_of(log: RunLog) -> list[wire.Tiers]:
    """At which tiers each run of the log would be made again."""
    now, found = dict(log.tiers), []
    for entry in log.entries:
        if isinstance(entry, wire.RanAt):
            now[entry.key] = entry.tiers
        elif isinstance(entry, wire.Run):
            found.append(now.get(entry.key, ()))
    return found


def test_at_which_tiers_runs_were_outlasts_the_runs_that_are_forgotten():
    eager, one, two = (), ((0, "ce"),), ((0, "cg"),)
    log = RunLog()
    log.put(1, kept(1))
    for i in range(1, 7):
        log.run(run((i,), (i + 1,), (i,)))
    log.ran_at(wire.RanAt(4, 0, one))
    log.ran_at(wire.RanAt(6, 0, two))
    assert tiers_of(log) == [eager, eager, one, one, two, two]
    log.run(run((7,), (8,), (7,)))
    assert log.begin(1.0) == [8]
    log.run(run((8,), (9,), (8,)))
    log.ran_at(wire.RanAt(8, 0, one))  # heard of late, of a run before the snapshot
    log.ran_at(wire.RanAt(9, 0, two))
    assert tiers_of(log) == [eager, eager, one, one, two, two, one, two]
    log.arrived(8, kept(8))
    assert log.complete() is not None
    assert log.tiers == {0: one} and tiers_of(log) == [two]
    log.run(run((9,), (10,), (9,)))
    log.run(run((10,), (11,), (10,)))
    log.free(wire.Free((11,)))
    log.trim()
    assert not log.num_runs
    log.put(12, kept(12))
    log.run(run((12,), (13,)))
    assert tiers_of(log) == [two]
    log.ran_at(wire.RanAt(10, 0, one))  # of a run that is not here any more
    log.ran_at(wire.RanAt(5, 7, one))
    assert log.tiers[7] == one
