"""Stories of the worker: which values are here, which are poisoned, and what is done about it."""

from __future__ import annotations

import msgspec

from gt.runtime import wire
from gt.runtime.errors import Fault
from gt.runtime.worker_state import (
    Arrived,
    DropValues,
    Got,
    Grouped,
    LoadProgram,
    Quit,
    Ran,
    Reply,
    ReplyWith,
    RunProgram,
    ShipFault,
    ShipValue,
    SkipProgram,
    WorkerState,
)  # fmt: skip
from tests.state.stories import program

BROKE = Fault("run", "broke", 0, 1, "train.py:3")


def worker(*values: int, groups: tuple[tuple[int, ...], ...] = (), donated: tuple[int, ...] = ()) -> WorkerState:
    w = WorkerState(0)
    w.handle(Got(wire.Load(1, program(0, 1, 1, groups, donated))))
    for uid in values:
        w.handle(Arrived(uid))
    return w


def execute(
    w: WorkerState, epoch: int, inputs: tuple[int, ...], outputs: tuple[int, ...], frees: tuple[int, ...] = ()
) -> object:
    (command,) = w.handle(Got(wire.Execute(epoch, 1, inputs, outputs, (), frees)))
    return command


def ship(uid: int, final: bool = True) -> Got:
    return Got(wire.Ship(uid, b"t", 5, wire.WireType((4, 4), "float32"), ((0, 4), (0, 4)), 1, final))


def test_a_run_makes_its_outputs_and_reports():
    w = worker(10)
    assert execute(w, 1, (10,), (11,)) == RunProgram(1, 1, (10,), (11,), ())
    assert w.handle(Ran(1, 0.5)) == [Reply(wire.Done(1, 0.5))]
    assert w.values == {10, 11} and isinstance(w.handle(ship(11))[0], ShipValue)


def test_what_a_run_reads_goes_with_the_word_that_it_is_over_or_as_any_value():
    w = worker(10)
    read = ship(11).message

    def begin(epoch: int, worker: int, uid: int = 11, plan: int = 1) -> list[object]:
        asked = worker, msgspec.structs.replace(read, uid=uid)
        return w.handle(Got(wire.Execute(epoch, plan, (10,), (uid,), (), (), reads=asked)))

    begin(1, 0)
    assert w.handle(Ran(1, 0.5)) == [ReplyWith(wire.Done(1, 0.5), read)]
    begin(2, 1, 12)  # another worker's business
    assert w.handle(Ran(2, 0.5)) == [Reply(wire.Done(2, 0.5))]
    begin(3, 0, 13)
    assert w.handle(Ran(3, 0.5, BROKE)) == [Reply(wire.Done(3, 0.5, BROKE)), ShipFault(b"t", wire.PartFailed(5, BROKE))]
    begin(4, 0, 14)
    salvaged = w.handle(Ran(4, 0.5, BROKE, ()))  # something else failed
    assert isinstance(salvaged[1], ShipValue) and salvaged[1].message.uid == 14
    done, told = begin(5, 0, 15, plan=9)  # which is not loaded
    assert done.message.fault == told.message.fault and told.message.request == 5
    execute(w, 6, (10,), (16,))
    assert w.handle(Ran(6, 0.5)) == [Reply(wire.Done(6, 0.5))]


def test_a_failed_run_poisons_its_outputs_and_those_after_it():
    w = worker(10)
    execute(w, 1, (10,), (11,))
    assert w.handle(Ran(1, 0.1, BROKE)) == [Reply(wire.Done(1, 0.1, BROKE))]
    assert execute(w, 2, (11,), (12,)) == RunProgram(2, 1, (11,), (12,), (), poisoned=((0, BROKE),))  # some of it may not read it
    w.handle(Ran(2, 0.0, BROKE, ((12, BROKE),)))
    assert w.handle(ship(12)) == [ShipFault(b"t", wire.PartFailed(5, BROKE))]
    assert w.handle(ship(12, final=False)) == []  # the dispatcher tells, once it knows the cause


def test_with_collectives_what_reads_poison_only_takes_part_in_them():
    w = worker(10, groups=((0, 1),))
    execute(w, 1, (10,), (11,))
    w.handle(Ran(1, 0.1, BROKE))
    assert execute(w, 2, (11,), (12,)) == SkipProgram(2, 1, BROKE)
    assert w.handle(Ran(2, 0.0)) == [Reply(wire.Done(2, 0.0, BROKE))]


def test_outputs_that_do_not_depend_on_what_failed_are_there_and_what_was_to_be_freed_may_be_kept():
    w = WorkerState(0)
    w.handle(Got(wire.Load(1, program(0, 1, 2))))
    w.handle(Arrived(10))
    execute(w, 1, (10,), (11, 12), frees=(10,))
    assert w.values == set()
    assert w.handle(Ran(1, 0.1, BROKE, ((12, BROKE),), (10,))) == [Reply(wire.Done(1, 0.1, BROKE, ((12, BROKE),), (10,)))]
    assert w.values == {10, 11} and w.poison == {12: BROKE}
    assert isinstance(w.handle(ship(11))[0], ShipValue) and isinstance(w.handle(ship(12))[0], ShipFault)


def test_what_is_freed_leaves_before_the_run_and_its_inputs_with_it():
    w = worker(10, 20)
    dropped, run = w.handle(Got(wire.Execute(1, 1, (10,), (11,), (), (10, 20))))
    assert dropped == DropValues((20,)) and run == RunProgram(1, 1, (10,), (11,), (), takes=(10,))
    assert w.handle(Ran(1, 0.1)) == [Reply(wire.Done(1, 0.1))]
    assert w.values == {11}


def test_what_the_program_overwrites_is_copied_when_somebody_still_holds_it():
    w = worker(10, donated=(0,))
    held = execute(w, 1, (10,), (11,))
    assert isinstance(held, RunProgram) and held.copies == (0,)
    w.handle(Ran(1, 0.1))
    freed = execute(w, 2, (10,), (12,), frees=(10,))
    assert isinstance(freed, RunProgram) and freed.copies == () and freed.takes == (10,)


def test_a_run_that_took_part_in_what_is_left_without_a_lost_worker_breaks_no_group():
    w = worker(10, groups=((0, 1), (0, 2)))
    gone = Fault("collective", "worker 2 of [0, 2] is lost", 0, 1)
    execute(w, 1, (10,), (11,))
    w.handle(Ran(1, 0.1, gone))
    assert w.poison == {11: gone} and isinstance(execute(w, 2, (10,), (12,)), RunProgram)


def test_a_broken_group_fails_what_needs_it_until_it_is_made_anew():
    w = worker(10, groups=((0, 1),))
    gone = Fault("collective", "peer closed", 0, 1)
    execute(w, 1, (10,), (11,))
    w.handle(Ran(1, 0.1, gone, left=True))
    assert execute(w, 2, (10,), (12,)) == SkipProgram(2, 1, gone)
    w.handle(Ran(2, 0.0))
    assert w.handle(Grouped(3, 0.1, (0, 1))) == [Reply(wire.Done(3, 0.1))]
    assert isinstance(execute(w, 4, (10,), (13,)), RunProgram)


def test_freeing_lifts_poison_and_unknown_uids_are_passed_over():
    w = worker(10)
    execute(w, 1, (10,), (11,))
    w.handle(Ran(1, 0.1, BROKE))
    assert w.handle(Got(wire.Free((11, 10, 99)))) == [DropValues((10,))]
    assert w.poison == {} and w.values == set()


def test_a_run_of_a_plan_or_value_that_is_not_here_fails_alone():
    w = worker(10)
    drop, reply = w.handle(Got(wire.Execute(1, 9, (10,), (11,), (), (10,))))
    assert drop == DropValues((10,)) and isinstance(reply, Reply)
    assert isinstance(reply.message, wire.Done) and reply.message.fault is not None
    assert isinstance(execute(w, 2, (77,), (12,)), SkipProgram)


def test_a_run_names_values_only_as_far_as_it_is_known_where_they_will_lie():
    w = worker(10)  # whose plan came without places
    (command,) = w.handle(Got(wire.Execute(1, 1, (10,), (11,), (), (), numbers=(5,), owner=b"o" * 16)))
    assert isinstance(command, RunProgram) and not w.labels
    w.handle(Ran(1, 0.0))
    place = wire.Place(wire.WireType((4, 4), "float32"), wire.WireSharding("all", (("w", 1),), (0,), ((), ())), 3)
    w.handle(Got(wire.Load(1, program(0, 1, 1), wire.Places(3, (place.placed,), ((place.type, 0),)))))
    w.handle(Got(wire.Execute(2, 1, (10,), (12, 13), (), (), numbers=(5, 6), owner=b"o" * 16)))
    assert w.labels == {12: wire.Label(b"o" * 16, (5,), place, 2)}


def test_stop_ends_the_worker_and_the_state_reads_well():
    w = worker(10)
    assert w.handle(Got(wire.Stop())) == [Quit()]
    assert isinstance(w.handle(Got(wire.Load(2, program(0, 1, 1))))[0], LoadProgram)
    assert repr(w) == "worker 0 idle, programs [1, 2], values [10], poisoned [], broken []"
