"""Stories of values that come back: put where they were, failed as they were, and read with their places."""

from __future__ import annotations

from gt.ir.mesh import Mesh, Sharding
from gt.ir.program import WireSharding, WireType
from gt.runtime import wire
from gt.runtime.errors import Fault
from tests.state.stories import Story, T, plans, sent

BY_COLUMNS = WireSharding.of(Sharding(Mesh("all", (("w", 2),), (0, 1)), ((), ("w",))))


def test_a_read_for_a_snapshot_says_where_the_value_is():
    s = Story(workers=2)
    s.put(1)
    (located,) = sent(s.say("c0up", wire.Fetch(1, 5, True)), wire.Located, "c0")
    assert located.request == 5 and located.placed.workers == (0, 1) and located.placed.dims == ((), ())
    assert sent(s.fetch(1, 6), wire.Located) == []


def test_a_value_is_put_where_it_was():
    s = Story(workers=2)
    data = memoryview(bytes(T.nbytes))
    out = s.say("c0up", wire.Put(1, WireType.of(T), None, True, BY_COLUMNS), data)
    assert [m.bounds for m in sent(out, wire.Store)] == [((0, 4), (0, 2)), ((0, 4), (2, 4))]
    (located,) = sent(s.say("c0up", wire.Fetch(1, 5, True)), wire.Located)
    assert located.placed == BY_COLUMNS


def test_a_place_that_cannot_be_is_passed_over():
    s = Story(workers=1)
    out = s.say("c0up", wire.Put(1, WireType.of(T), None, True, BY_COLUMNS), memoryview(bytes(T.nbytes)))
    assert [m.bounds for m in sent(out, wire.Store)] == [((0, 4), (0, 4))]


def test_a_value_that_had_failed_fails_again_for_the_same_cause_and_so_does_what_reads_it():
    s = Story()
    cause = Fault("index", "out of range", 0, 3, "train.py:4")
    assert s.say("c0up", wire.Fail(1, cause)) == []
    assert sent(s.fetch(1, 1), wire.Failed) == [wire.Failed(1, cause)]
    s.define(1)
    out = s.run(1, (1,), (2,))
    assert not plans(out) and sent(s.fetch(2, 2), wire.Failed) == [wire.Failed(2, cause)]
