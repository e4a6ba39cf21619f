"""Stories of losses that are got over: values put where they were, and workers that are alive but stuck."""

from __future__ import annotations

from gt.ir.mesh import Mesh, Sharding
from gt.ir.program import WireSharding, WireType
from gt.runtime import wire
from gt.runtime.dispatcher_events import Kill
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


def busy(**options: float) -> Story:
    """Epoch 2, after the making of its group, is under way on two workers, which say so."""
    s = Story(workers=2, **options)
    s.put(1)
    s.define(1)
    (make,) = plans(s.run(1, (1,), (2,)))
    s.plan(make, groups=((0, 1),))
    s.done(0, 1), s.done(1, 1)
    beat(s, 2, 3)
    return s


def beat(s: Story, epoch: int, collectives: int) -> None:
    for worker in range(2):
        s.say(f"l{worker}", wire.Beat(epoch, collectives))
        s.say("c0", wire.Beat())
        s.say("c0up", wire.Beat())


def test_a_worker_too_long_in_one_epoch_is_lost_though_it_answers():
    s = busy(owns_workers=True, epoch_timeout_s=10.0)
    for _ in range(4):
        assert not [c for c in s.wait(2.5) if isinstance(c, Kill)]
        beat(s, 2, 3)
    s.done(0, 2)
    s.fetch(2, 1)
    out = s.wait(0.5)
    assert [c for c in out if isinstance(c, Kill)] == [Kill(101)]
    assert sent(out, wire.Workers, "c0")[0].why == "worker 1 (pid 101 on host) is stuck: for 10 s in epoch 2, at collective 3"


def test_each_epoch_has_its_own_time():
    s = busy(epoch_timeout_s=10.0)
    for epoch in (2, 3, 4, 5):
        s.wait(4.0)
        beat(s, epoch, 0)
    assert s.state.roster.worker_ids == (0, 1)


def test_who_does_not_come_once_the_others_have_given_up_is_lost():
    s = busy(late_s=5.0)
    s.done(0, 2, Fault("collective", "nobody came", 0, 2))
    for _ in range(2):
        assert s.state.roster.worker_ids == (0, 1)
        s.wait(3.0)
        beat(s, 2, 3)
    out = s.log
    assert s.state.roster.worker_ids == (0,)
    assert sent(out, wire.Workers, "c0")[-1].why == (
        "worker 1 (pid 101 on host) is stuck in epoch 2, at collective 3: the others have given up waiting for it"
    )
    assert sent(out, wire.Refused, "l1")


def test_a_late_worker_that_comes_in_time_is_not_lost():
    s = busy(late_s=5.0)
    s.done(0, 2, Fault("collective", "nobody came", 0, 2))
    s.wait(3.0)
    s.done(1, 2, Fault("collective", "the others were gone", 1, 2))
    beat(s, -1, 0)
    s.wait(3.0)
    assert s.state.roster.worker_ids == (0, 1)


def test_programs_that_a_lost_worker_had_a_part_in_are_unloaded_from_the_others():
    s = busy()
    s.done(0, 2), s.done(1, 2)
    plan = next(iter(s.state.plans)).id
    assert sent(s.gone("w1"), wire.Unload, "w0") == [wire.Unload((plan,))]
    assert s.state.workers[0].loaded == set()
