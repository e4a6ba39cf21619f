"""Stories of the dispatcher: what it does, told as messages. No sockets, no clock, no waiting."""

from __future__ import annotations

from typing import Any

import pytest

from gt.ir.program import WireType
from gt.ir.signals import ShardConfig, SignalConfig
from gt.ir.types import TensorType, float32
from gt.passes.reasons import PlanReasons
from gt.passes.signal_placement import signal_sharding
from gt.runtime import wire
from gt.runtime.buffer_reasons import RunsAs
from gt.runtime.dispatcher_events import Kill, Planned
from gt.runtime.errors import Fault
from gt.runtime.fair_queue import Limits
from gt.runtime.usage import ProgramState, WorkerUsage
from tests.state.stories import Story, plans, program, sent


def split(workers: int) -> TensorType:
    """Give the story's type cut over workers 0, 1, ..."""
    type_ = TensorType((4, 4), float32)
    rows = SignalConfig(shard=ShardConfig(axis=0))
    return type_.placed(signal_sharding(type_, rows, tuple(range(workers))))


NO_TURNS = Limits(linger_s=0.0, ahead_s=1.0)  # clients never compete


def started(workers: int = 1, clients: int = 1, groups: tuple[tuple[int, ...], ...] = ()) -> Story:
    """Client 0 has run graph 1 once: buffer 1 -> buffer 2, epoch 1 (after one epoch for each group)."""
    s = Story(workers, clients, sharing=NO_TURNS)
    s.put(1)
    s.define(1)
    (make,) = plans(s.run(1, (1,), (2,)))
    s.plan(make, groups=groups)
    return s


def test_a_run_waits_for_its_plan_and_then_goes_to_all_workers():
    s = Story(workers=2)
    stores = s.put(1)
    assert [c.peer for c in stores] == [b"w0", b"w1"]
    s.define(1)
    (make,) = plans(s.run(1, (1,), (2,)))
    out = s.plan(make)
    assert [type(c.message).__name__ for c in out] == ["Load", "Execute", "Load", "Execute"]
    (execute,) = sent(out, wire.Execute, "w0")
    assert execute == sent(out, wire.Execute, "w1")[0] and execute.epoch == 1


def test_a_known_graph_is_neither_planned_nor_loaded_again():
    s = started()
    out = s.run(1, (1,), (3,))
    assert plans(out) == [] and sent(out, wire.Load) == []
    assert sent(out, wire.Execute)[0].epoch == 2


def test_equal_graphs_of_two_clients_share_a_plan_and_nothing_else():
    s = started(clients=2)
    s.put(1, client=1)
    s.define(77, client=1)
    out = s.run(77, (1,), (2,), client=1)
    assert plans(out) == []
    mine, theirs = s.state.clients[0].buffers[1].uid, s.state.clients[1].buffers[1].uid
    assert sent(out, wire.Execute)[0].inputs == (theirs,) and mine != theirs


def test_a_client_cannot_name_the_buffers_of_another():
    s = started(clients=2)
    (failed,) = sent(s.fetch(2, 9, client=1), wire.Failed)
    assert failed.fault.kind == "protocol"


def test_planning_holds_up_only_the_client_that_needs_it():
    s = started(clients=2)
    s.define(2, graph=b"new")
    (make,) = plans(s.run(2, (1,), (5,)))
    assert s.fetch(5, 1) == []
    s.put(1, client=1)
    s.define(1, client=1)
    assert sent(s.run(1, (1,), (2,), client=1), wire.Execute)
    assert sent(s.plan(make), wire.Ship)


def test_a_plan_that_fails_poisons_the_outputs_and_is_asked_again_next_time():
    s = Story()
    s.put(1)
    s.define(1)
    (make,) = plans(s.run(1, (1,), (2,)))
    s.fetch(2, 5)
    out = s.tell(Planned(0.0, make.plan, fault=Fault("plan", "no rule")))
    assert sent(out, wire.Failed) == [wire.Failed(5, Fault("plan", "no rule"))]
    assert sent(out, wire.Progress) == [wire.Progress(1)]
    assert len(plans(s.run(1, (1,), (3,)))) == 1


def test_a_run_gets_its_epoch_once_its_uploads_are_acknowledged():
    s = started(workers=2)
    big = TensorType((512, 512), float32)
    out = s.say("c0up", wire.Put(10, WireType.of(big), SignalConfig(shard=ShardConfig(axis=0)), False))
    (placed,) = sent(out, wire.Placed)
    assert [t.bounds for t in placed.tiles] == [((0, 256), (0, 512)), ((256, 512), (0, 512))]
    assert [e.ticket for e in sent(out, wire.Expect)] == [t.ticket for t in placed.tiles]
    out = s.run(1, (10,), (11,))
    assert out == []
    uid = s.state.clients[0].buffers[10].uid
    assert s.say("l0", wire.Uploaded(uid)) == []
    assert len(plans(s.say("l1", wire.Uploaded(uid)))) == 1


def test_an_uneven_upload_is_cut_at_equal_multiples_and_padded_on_the_worker():
    s = Story(workers=2)
    out = s.say("c0up", wire.Put(1, WireType((515, 64), "float32"), SignalConfig(shard=ShardConfig(axis=0)), False))
    assert [e.type.shape for e in sent(out, wire.Expect)] == [(258, 64), (257, 64)]
    assert {e.local for e in sent(out, wire.Expect)} == {(258, 64)}


def test_a_fetch_on_one_worker_is_final_and_on_two_waits_for_both():
    s = started()
    (ship,) = sent(s.fetch(2, 1), wire.Ship)
    assert ship.final
    s = started(workers=2)
    (ship,) = sent(s.fetch(2, 1), wire.Ship)
    assert not ship.final
    assert sent(s.done(0, 1), wire.Settled) == []
    assert sent(s.done(1, 1), wire.Settled) == [wire.Settled(1)]
    (ship,) = sent(s.fetch(2, 2), wire.Ship)
    assert ship.final


def reading(s: Story, buffer: int, new: int, output: int = 0) -> list[Any]:
    """Client 0 runs graph 1 and reads an output with it, by request 7."""
    return s.say("c0up", wire.Run(1, (buffer,), (new,), (), (), reads=(output, 7)))


def test_a_small_value_that_is_read_with_its_run_comes_with_the_word_that_all_are_through():
    s = started(workers=2)
    s.get_through()
    out = reading(s, 1, 3)
    uid, token = s.state.clients[0].buffers[3].uid, s.state.clients[0].token
    type_ = WireType((4, 4), "float32")
    ship = wire.Ship(uid, token, 7, type_, ((0, 4), (0, 4)), 1, False)
    assert [e.reads for e in sent(out, wire.Execute)] == [(0, ship)] * 2 and sent(out, wire.Ship) == []
    out = s.say("w0", wire.Done(2, 0.01, value=b"x" * 64))
    assert sent(out, wire.Answer) == [] and not s.state.clients[0].queue
    out = s.say("w1", wire.Done(2, 0.01, value=b"y" * 64))  # of a worker that was not asked
    assert [type(c.message).__name__ for c in out] == ["Progress", "Answer"]
    assert sent(out, wire.Answer, "c0") == [wire.Answer(7, type_, b"x" * 64)]
    assert sent(out, wire.Settled) == []


def test_a_value_that_is_read_with_its_run_on_one_worker_is_final():
    s = started()
    (execute,) = sent(reading(s, 2, 3), wire.Execute)
    assert execute.reads[0] == 0 and execute.reads[1].final
    s.done(0, 1)
    out = s.say("w0", wire.Done(2, 0.01, value=b"x" * 64))
    assert [a.data for a in sent(out, wire.Answer, "c0")] == [b"x" * 64]


def test_a_value_that_is_read_with_its_run_and_does_not_come_so_is_settled_or_fails_as_others():
    fault = Fault("run", "broke", 1)
    s = started(workers=2)
    s.get_through()
    reading(s, 1, 3)
    s.done(0, 2)  # it was sent otherwise
    assert sent(s.done(1, 2), wire.Settled) == [wire.Settled(7)]
    reading(s, 1, 4)
    s.say("w0", wire.Done(3, 0.01, value=b"x" * 64))
    out = s.done(1, 3, fault)
    assert sent(out, wire.Failed) == [wire.Failed(7, fault)] and sent(out, wire.Answer) == []
    out = reading(s, 4, 5)  # which is skipped
    assert sent(out, wire.Failed) == [wire.Failed(7, fault)]
    (failed,) = sent(reading(s, 1, 6, output=1), wire.Failed)  # there is no such output
    assert failed.fault.kind == "protocol" and 6 in s.state.clients[0].buffers


def test_what_is_large_or_split_is_read_after_its_run(monkeypatch):
    s = started(workers=2)
    s.get_through()
    monkeypatch.setattr(wire, "SMALL", 63)
    out = reading(s, 1, 3)
    assert [e.reads for e in sent(out, wire.Execute)] == [None, None] and sent(out, wire.Ship, "w0")[0].request == 7
    monkeypatch.undo()
    s = Story(workers=2)
    s.put(1)
    s.define(1)
    (make,) = plans(reading(s, 1, 2))
    out = s.plan(make, placed=split(2))
    assert [e.reads for e in sent(out, wire.Execute)] == [None, None] and len(sent(out, wire.Ship)) == 2


def test_a_value_that_is_read_with_its_run_outlives_neither_its_client_nor_the_worker_that_has_it():
    s = started(workers=2)
    s.get_through()
    reading(s, 1, 3)
    s.say("w0", wire.Done(2, 0.01, value=b"x" * 64))
    s.gone("w0")  # its client asks again, now that another has it
    assert [a.data for a in sent(s.done(1, 2), wire.Answer)] == [b"x" * 64]
    assert sent(s.fetch(3, 8), wire.Ship, "w1")[0].final
    reading(s, 1, 4)
    s.say("c0", wire.Bye())
    out = s.say("w1", wire.Done(3, 0.01, value=b"x" * 64))
    assert sent(out, wire.Answer) == []


def test_a_failing_run_poisons_what_depends_on_it_and_no_other_client():
    s = started(workers=2, clients=2)
    s.put(1, client=1)
    s.define(1, client=1)
    s.run(1, (1,), (2,), client=1)  # epoch 2
    s.run(1, (2,), (3,))  # epoch 3, reads epoch 1
    s.fetch(3, 7)
    s.fetch(2, 8, client=1)
    fault = Fault("run", "index out of range", 0, 1, "train.py:3")
    out = s.done(0, 1, fault)
    assert sent(out, wire.Failed, "c0") == [wire.Failed(7, fault)]
    for worker, epoch in ((1, 1), (0, 2), (1, 2), (0, 3), (1, 3)):
        out += s.done(worker, epoch)
    assert sent(out, wire.Settled, "c1") == [wire.Settled(8)]
    assert sent(s.fetch(3, 9), wire.Failed) == [wire.Failed(9, fault)]
    assert s.state.flights.by_epoch == {}


def test_frees_ride_with_the_run_and_every_worker_that_holds_the_buffer_hears_of_them():
    s = started(workers=2)
    uid = s.state.clients[0].buffers[1].uid
    out = s.run(1, (1,), (3,), frees=(1,))
    assert sent(out, wire.Execute, "w0")[0].frees == (uid,)
    assert 1 not in s.state.clients[0].buffers
    (free,) = sent(s.say("c0up", wire.Free((2,))), wire.Free, "w0")
    assert len(free.buffers) == 1


def test_progress_counts_runs_that_are_over():
    s = started(workers=2)
    s.run(1, (1,), (3,))
    out = s.done(0, 1) + s.done(0, 2) + s.done(1, 1)
    assert sent(out, wire.Progress) == [wire.Progress(1)]
    assert sent(s.done(1, 2), wire.Progress) == [wire.Progress(2)]


def test_epochs_told_of_together_are_over_in_order():
    s = started(workers=2)
    s.run(1, (1,), (3,))
    s.run(1, (3,), (4,))
    s.say("w1", wire.Done(3, 0.01, earlier=((1, 0.01), (2, 0.01))))
    out = s.say("w0", wire.Done(3, 0.01, Fault("run", "broke"), earlier=((1, 0.01), (2, 0.01))))
    assert sent(out, wire.Progress) == [wire.Progress(n) for n in (1, 2, 3)]
    assert not s.state.flights.by_epoch
    buffers = s.state.clients[0].buffers
    assert buffers[3].fault is None and buffers[4].fault is not None
    s.say("w0", wire.Done(3, 0.01, earlier=((1, float("nan")), (99, 0.01), (3, 0.01))))  # no news, whatever it says
    assert not s.state.flights.by_epoch


def test_a_client_hears_at_which_tiers_its_runs_were_where_that_changes():
    s = started(workers=2)
    s.done(0, 1), s.done(1, 1)
    s.run(1, (1,), (3,))
    assert not sent(s.done(0, 2) + s.done(1, 2), wire.RanAt)
    s.run(1, (3,), (4,))
    s.say("w0", wire.Done(3, 0.01, tiers="cec"))
    s.run(1, (4,), (5,))
    s.say("w0", wire.Done(4, 0.01))  # still so, ahead of the other
    assert sent(s.say("w1", wire.Done(3, 0.01)), wire.RanAt) == [wire.RanAt(4, 1, ((0, "cec"),))]
    out = s.say("w1", wire.Done(4, 0.01, tiers="ec"))
    assert sent(out, wire.RanAt) == [wire.RanAt(5, 1, ((0, "cec"), (1, "ec")))]
    assert [type(m) for m in sent(out, wire.RanAt | wire.Progress)] == [wire.RanAt, wire.Progress]
    s.run(1, (5,), (6,))
    out = s.say("w0", wire.Done(5, 0.01, tiers="")) + s.say("w1", wire.Done(5, 0.01, tiers=""))
    assert sent(out, wire.RanAt) == [wire.RanAt(6, 1, ())]
    s.run(1, (6,), (7,))
    s.say("w0", wire.Done(6, 0.01, tiers="c"))
    assert not sent(s.say("w1", wire.Bye()), wire.RanAt)  # nobody knows how it was on the other


def test_workers_of_a_plan_run_compiled_code_from_the_same_run_on():
    s = started(workers=2)
    assert all(load.together for w in ("w0", "w1") for load in sent(s.log, wire.Load, w))
    s.say("w0", wire.Done(1, 0.01, ready=(0, 2, 3)))
    s.run(1, (1,), (3,))
    s.done(0, 2)
    s.say("w1", wire.Done(1, 0.01))
    s.say("w1", wire.Done(2, 0.01, ready=(0, 3)))
    s.run(1, (3,), (4,))
    for w in ("w0", "w1"):  # in order: what one of them runs eagerly the other does, too
        last = sent(s.log, wire.Execute | wire.Swap, w)[-3:]
        assert [type(m) for m in last] == [wire.Execute, wire.Swap, wire.Execute] and last[1] == wire.Swap(1, (0, 3))
    s.say("w0", wire.Done(3, 0.01, tiers="ceec"))
    assert sent(s.say("w1", wire.Done(3, 0.01, tiers="ceec")), wire.RanAt) == [wire.RanAt(4, 1, ((0, "ceec"), (1, "ceec")))]


def test_workers_go_on_at_the_tiers_of_a_run_that_is_made_again():
    s = started(workers=2)
    s.say("c0up", wire.Run(1, (1,), (3,), (), (), tiers=((0, "ce"), (1, "ge"))))
    s.run(1, (3,), (4,))
    assert [e.tiers for e in sent(s.log, wire.Execute, "w1")] == [None, ((0, "ce"), (1, "ge")), None]
    assert sent(s.log, wire.Swap, "w0") == [wire.Swap(1, (0,))] and not sent(s.log, wire.Swap, "w1")


def test_one_worker_runs_compiled_code_when_it_has_it():
    s = started(workers=1)
    assert not sent(s.log, wire.Load, "w0")[0].together


def test_a_run_that_is_made_again_is_at_the_tiers_it_names_and_in_no_graph():
    s = started(workers=1)
    s.say("c0up", wire.Run(1, (1,), (3,), (), (), tiers=((0, "ec"),)))
    (execute,) = sent(s.log, wire.Execute, "w0")[-1:]
    assert execute.tiers == ((0, "ec"),) and execute.graph == ""


def test_a_group_is_an_epoch_of_its_own_before_the_first_run_that_needs_it():
    s = started(workers=2, groups=((0, 1),))
    order = [type(m).__name__ for m in sent(s.log, wire.Message, "w1")]
    assert order == ["Store", "MakeGroup", "Load", "Execute"]
    assert sent(s.run(1, (1,), (3,)), wire.MakeGroup) == []


def test_members_of_a_group_meet_in_the_store():
    s = started(workers=2, groups=((0, 1),))
    s.say("s0", wire.Attach(s.state.workers[0].token, "store"))
    s.say("s1", wire.Attach(s.state.workers[1].token, "store"))
    assert s.say("s0", wire.StoreOp(1, "get", ("g1/1",))) == []
    out = s.say("s1", wire.StoreOp(4, "set", ("g1/1",), b"here"))
    assert sent(out, wire.StoreReply, "s1")[0].ok
    assert sent(out, wire.StoreReply, "s0") == [wire.StoreReply(1, True, b"here")]
    assert sent(s.say("s0", wire.StoreOp(2, "add", ("g1/n",), amount=2)), wire.StoreReply)[0].number == 2


def test_a_lost_worker_ends_waits_poisons_what_only_it_held_and_the_rest_goes_on():
    s = started(workers=2, clients=2, groups=((0, 1),))
    s.put(1, client=1)
    s.fetch(2, 5)
    out = s.gone("w1")
    (failed,) = sent(out, wire.Failed, "c0")
    assert failed.fault.kind == "worker_lost" and failed.fault.worker == 1 and failed.fault.epoch == 2
    assert failed.fault.where == "train.py:12"
    assert sent(out, wire.Abort, "l0") == [wire.Abort(1)]
    assert sent(out, wire.Refused, "l1")
    assert sent(out, wire.Workers, "c1") == [wire.Workers(((0, "u0", "r0", ""),), "worker 1 (pid 101 on host) died")]
    (ship,) = sent(s.fetch(1, 6, client=1), wire.Ship, "w0")
    assert ship.final
    s.define(9, client=1)
    (make,) = plans(s.run(9, (1,), (2,), client=1))
    assert make.workers == (0,)


def test_a_run_that_the_lost_worker_only_repeated_goes_on_with_the_copies():
    s = started(workers=2)
    s.fetch(2, 5)
    out = s.gone("w1")
    assert sent(out, wire.Failed) == [] and sent(out, wire.Progress) == []
    out = s.done(0, 1)
    assert sent(out, wire.Settled, "c0") == [wire.Settled(5)] and sent(out, wire.Progress) == [wire.Progress(1)]
    (ship,) = sent(s.fetch(2, 6), wire.Ship, "w0")
    assert ship.final and s.state.flights.by_epoch == {}


def test_a_run_that_reads_what_was_lost_fails_though_its_own_results_are_elsewhere():
    s = Story(workers=2)
    s.put(1)
    s.define(1)
    (make,) = plans(s.run(1, (1,), (2,)))
    s.plan(make, placed=split(2))  # epoch 1: half of its result is on worker 1
    (make,) = plans(s.run(1, (2,), (3,)))
    s.plan(make)  # epoch 2 is whole on both
    s.fetch(3, 5)
    (failed,) = sent(s.gone("w1"), wire.Failed)
    assert failed.request == 5 and failed.fault.kind == "worker_lost" and failed.fault.epoch == 1


def test_losing_a_worker_that_a_clients_runs_do_not_use_is_nothing_to_it():
    s = Story(workers=3)
    rows = SignalConfig(shard=ShardConfig(workers=(0, 1)))
    s.say("c0up", wire.Put(1, WireType((4, 4), "float32"), rows, True), memoryview(bytes(64)))
    s.put(7)  # no signal: whole on all three
    s.define(1)
    (make,) = plans(s.run(1, (1, 7), (2,)))
    assert make.workers == (0, 1, 2)
    out = s.plan(make, groups=((0, 1),), placed=split(2))
    assert sent(out, wire.Execute, "w2") == [] and sent(out, wire.Load, "w2") == []
    s.fetch(2, 5)
    out = s.gone("w2")
    assert sent(out, wire.Failed) == [] and (0, 1) in s.state.flights.groups
    assert sent(out, wire.Workers, "c0") == [wire.Workers(((0, "u0", "r0", ""), (1, "u1", "r1", "")), "worker 2 (pid 102 on host) died")]
    for epoch in (1, 2):
        out = s.done(0, epoch) + s.done(1, epoch)
    assert sent(out, wire.Settled) == [wire.Settled(5)]
    (make,) = plans(s.run(1, (2, 7), (3,)))
    assert make.workers == (0, 1)
    assert sent(s.plan(make), wire.Execute, "w1")
    assert all(b.fault is None for b in s.state.clients[0].buffers.values())


def test_a_broken_collective_is_reported_as_the_loss_that_broke_it():
    s = started(workers=2, groups=((0, 1),))
    s.done(0, 1)
    s.done(1, 1)
    s.fetch(2, 5)
    out = s.done(0, 2, Fault("collective", "Connection closed by peer", 0, 2))
    assert sent(out, wire.Failed) == []
    (failed,) = sent(s.gone("w1"), wire.Failed)
    assert failed.fault.kind == "worker_lost"


def test_a_broken_collective_with_everybody_alive_fails_and_the_group_is_made_anew():
    s = started(workers=2, groups=((0, 1),))
    s.done(0, 1)
    s.done(1, 1)
    s.fetch(2, 5)
    s.done(0, 2, Fault("collective", "timed out", 0, 2))
    out = s.done(1, 2, Fault("collective", "timed out", 1, 2))
    assert sent(out, wire.Failed)[0].fault.kind == "collective"
    assert len(sent(s.run(1, (1,), (9,)), wire.MakeGroup)) == 2


def test_a_shard_on_a_lost_worker_is_lost_and_copies_are_not():
    s = Story(workers=2)
    s.put(1)
    s.say(
        "c0up",
        wire.Put(2, WireType((4, 4), "float32"), SignalConfig(shard=ShardConfig(axis=0)), True, where="train.py:3"),
        memoryview(bytes(64)),
    )
    s.gone("l0")
    assert sent(s.fetch(1, 1), wire.Ship, "w1")
    (failed,) = sent(s.fetch(2, 2), wire.Failed)
    assert failed.fault.kind == "worker_lost" and failed.fault.where == "train.py:3"


def test_a_silent_worker_is_lost_after_its_deadline_and_killed_if_it_is_ours():
    s = Story(workers=2, owns_workers=True)
    s.now = 3.0
    s.say("l0", wire.Beat())
    out = s.wait(2.0)
    assert [c for c in out if isinstance(c, Kill)] == [Kill(101)]
    assert s.state.roster.worker_ids == (0,)


def test_a_silent_worker_that_has_something_to_do_has_longer():
    busy = [True]
    s = Story(workers=1, busy=lambda host, pid: (host, pid) == ("host", 100) and busy[0])
    s.wait(29.0)
    assert s.state.roster.worker_ids == (0,)
    busy[0] = False
    s.wait(0.1)
    assert s.state.roster.worker_ids == ()
    s = Story(workers=1, busy=lambda host, pid: True)
    s.wait(30.1)
    assert s.state.roster.worker_ids == ()


def test_a_worker_that_comes_has_the_others_of_its_host_looked_for_before_it_is_let_in():
    s = Story(workers=2)
    *pings, _ = s.say("w2", wire.WorkerHello("u2", "r2", "host", 102, "cpu", "numpy"))
    assert [(c.peer, type(c.message)) for c in pings] == [(p, wire.Ping) for p in (b"w0", b"l0", b"w1", b"l1")]
    assert len(s.say("w3", wire.WorkerHello("u3", "r3", "elsewhere", 103, "cpu", "numpy"))) == 1


def test_a_worker_that_comes_back_is_refused():
    s = Story(workers=2)
    s.gone("l1")
    assert sent(s.say("l1", wire.Beat()), wire.Refused)
    assert sent(s.say("w1", wire.Done(1, 0.1)), wire.Refused)


def test_a_client_that_says_goodbye_or_falls_silent_gives_its_buffers_back():
    s = started(clients=2)
    s.put(1, client=1)
    (free,) = sent(s.say("c0up", wire.Bye()), wire.Free, "w0")
    assert len(free.buffers) == 2
    s.now = 9.0
    s.say("l0", wire.Beat())
    s.now = 12.0
    s.say("l0", wire.Beat())
    (free,) = sent(s.wait(0.5), wire.Free, "w0")
    assert len(free.buffers) == 1 and s.state.clients == {}


@pytest.mark.parametrize("limits", [{}, {"client_nbytes": 1 << 20}], ids=["", "uploads in their turn"])
def test_without_workers_calls_wait_and_fail_after_the_deadline(limits: dict[str, int]):
    s = Story(workers=0, **limits)
    assert s.put(1) == []
    s.define(1)
    s.run(1, (1,), (2,))
    s.fetch(2, 3)
    s.put(4)
    s.fetch(4, 5)
    s.now = 29.0
    s.say("c0", wire.Beat())
    s.say("c0up", wire.Beat())
    s.now = 31.0
    out = s.wait(0.0)
    assert [(f.request, f.fault.kind) for f in sent(out, wire.Failed)] == [(3, "no_workers"), (5, "no_workers")]
    s.fetch(4, 6)
    assert sent(s.log, wire.Failed)[-1].fault.kind == "no_workers"


@pytest.mark.parametrize("lost", [0, 1])
def test_an_upload_that_waits_for_a_worker_can_be_read_and_freed(lost: int):
    s = Story(workers=lost, client_lease_s=100.0)
    for w in range(lost):
        s.gone(f"w{w}")
    s.put(1)
    s.put(2)
    assert s.fetch(1, 5) == [] and s.say("c0up", wire.Free((2,))) == []
    s.join_worker(lost)
    assert len(sent(s.log, wire.Store)) == 2 and [m.request for m in sent(s.log, wire.Ship)] == [5]
    assert list(s.state.clients[0].buffers) == [1] and len(sent(s.log, wire.Free)) == 1


def test_what_waits_for_a_worker_in_vain_is_told_so_and_let_go_of():
    s = Story(workers=0, client_lease_s=100.0)
    for i in range(1, 5):
        s.put(i)
    s.fetch(1, 5)
    s.define(1)
    s.run(1, (1,), (9,), frees=(2,))
    s.say("c0up", wire.Free((3,)))
    out = s.wait(31.0)
    assert [(f.request, f.fault.kind) for f in sent(out, wire.Failed)] == [(5, "no_workers")]
    assert sorted(s.state.clients[0].buffers) == [1, 4, 9]


def test_calls_made_before_the_first_worker_are_served_when_it_joins():
    s = Story(workers=0)
    s.put(1)
    s.define(1)
    s.run(1, (1,), (2,))
    s.log.clear()
    s.join_worker(0)
    assert sent(s.log, wire.Store, "w0") and len(plans(s.log)) == 1


def test_a_client_keeps_the_workers_it_started_with():
    s = started(workers=1)
    s.join_worker(1)
    assert sent(s.run(1, (1,), (3,)), wire.Execute, "w1") == []


def test_strangers_and_made_up_tokens_are_refused():
    s = Story()
    assert sent(s.say("x", wire.Run(1, (), (), (), ())), wire.Refused)
    assert sent(s.say("x", wire.Attach(b"guess", "up")), wire.Refused)
    assert sent(s.say("x", wire.Done(1, 0.0)), wire.Refused)


def test_plans_beyond_the_limit_are_forgotten_everywhere():
    s = Story(max_plans=2)
    s.put(1)
    for key in range(3):
        s.define(key, graph=b"%d" % key)
        (make,) = plans(s.run(key, (1,), (10 + key,)))
        s.plan(make)
    assert len(s.state.plans) == 2
    assert sent(s.log, wire.Unload) == [wire.Unload((1,))]


def test_the_state_reads_well():
    s = started(workers=2)
    s.put(3)
    assert repr(s.state) == (
        "dispatcher epoch 1, flying [1], groups []\n"
        "  shares at 0.000 {0: 0.020}, 1 under way\n"
        "  worker 0 joined\n"
        "  worker 1 joined\n"
        "  client 0 {1: ready, 2: epoch 1, 3: ready} 0 queued\n"
        "  plan 1 ready"
    )


def test_all_uploads_that_waited_for_a_worker_are_placed_before_any_run_that_reads_them():
    s = Story(workers=0)
    s.put(1)
    s.put(2)
    s.define(1)
    assert s.run(1, (1, 2), (3,)) == [] and s.fetch(3, 7) == []
    s.join_worker(0)
    assert s.state.clients[0].buffers[2].fault is None and sent(s.log, wire.Failed) == []
    (make,) = plans(s.log)
    out = s.plan(make)
    assert len(sent(out, wire.Execute)) == 1 and len(sent(out, wire.Ship)) == 1


def test_a_loss_tells_each_client_its_own_line_only():
    s = started(workers=2, clients=2)
    s.put(1, client=1)
    s.state.clients[1].buffers[1].type = s.state.clients[0].buffers[2].type = split(2)
    s.gone("w1")
    mine, theirs = s.state.clients[0].buffers[2].fault, s.state.clients[1].buffers[1].fault
    assert mine is not None and mine.where == "train.py:12" and mine.epoch == 1
    assert theirs is not None and theirs.kind == "worker_lost" and theirs.where == ""


def test_a_client_is_told_why_its_own_buffers_are_where_they_are_and_after_the_runs_that_make_them():
    s = Story(workers=2, clients=2)
    s.put(1)
    s.define(1)
    (make,) = plans(s.run(1, (1,), (2, 3)))
    assert s.say("c0up", wire.Explain(3, 7)) == [], "the run comes first, and waits for its plan"
    reasons = PlanReasons("flush0", ("made there", "as signal 's' says"), ((0,), (0, 1)), notes=("a note",))
    type_ = split(2)
    programs = {w: program(w, 1, 2) for w in (0, 1)}
    out = s.tell(Planned(0.0, make.plan, programs, (type_, type_), reasons=reasons))
    assert sent(out, wire.Explained) == [], "and how it runs is known once it has"
    eager = ProgramState(make.plan, "flush0", "eager", 1, 0, ("a piece stays eager",))
    for worker in (0, 1):
        s.say(f"w{worker}", wire.Used(WorkerUsage(runs=1), (eager,)))
    assert sent(s.done(1, 1), wire.Explained) == []
    (told,) = sent(s.done(0, 1), wire.Explained, "c0")
    assert told.explanation.runs == (RunsAs((0, 1), "cpu", "numpy", "eager", 1, 0, ("a piece stays eager",)),)
    assert told.request == 7 and told.explanation.why == ("made there", "as signal 's' says")
    assert (told.explanation.graph, told.explanation.notes, told.explanation.num_workers) == ("flush0", ("a note",), 2)
    assert told.explanation.placed.sharding is not None and told.explanation.placed.workers == (0, 1)
    buffers = s.state.clients[0].buffers
    assert buffers[2].reasons is buffers[3].reasons is reasons, "kept once"
    (told,) = sent(s.say("c0up", wire.Explain(1, 8)), wire.Explained, "c0")
    assert told.explanation.why == ("uploaded outside of any signal that places: whole on all workers",)
    (failed,) = sent(s.say("c1up", wire.Explain(3, 9)), wire.Failed, "c1")
    assert failed.fault.kind == "protocol", "another's buffer"


def test_why_a_failed_buffer_is_where_it_is_fails_as_reading_it_does():
    s = started(workers=2)
    s.done(0, 1, Fault("run", "broke"))
    (failed,) = sent(s.say("c0up", wire.Explain(2, 5)), wire.Failed, "c0")
    assert failed.fault.message == "broke"
    late = Story(workers=0, client_lease_s=100.0)
    late.put(1)
    late.say("c0up", wire.Explain(1, 3))
    (failed,) = sent(late.wait(31.0), wire.Failed)
    assert failed.request == 3 and failed.fault.kind == "no_workers"


def test_workers_hear_of_a_span_where_it_changes_and_of_none_without():
    s = Story(workers=2, clients=2)
    for client in (0, 1):
        s.define(1, client)
        s.put(10, client)
    s.plan(*plans(s.run(1, (10,), (11,))))
    assert not sent(s.log, wire.Parent)
    heard = []
    for number, (client, parent) in enumerate([(0, "00-a"), (0, None), (1, None), (0, None), (0, ""), (1, None)], 12):
        if parent is not None:
            s.say(f"c{client}up", wire.Parent(parent))
        out = s.run(1, (10,), (number,), client=client)
        out += [command for make in plans(out) for command in s.plan(make)]
        heard.append([message.traceparent for message in sent(out, wire.Parent, "w1")])
        kinds = [type(command.message) for command in out if getattr(command, "peer", b"") == b"w1"]
        assert wire.Parent not in kinds or kinds.index(wire.Parent) < kinds.index(wire.Execute)
        s.get_through()
    assert heard == [["00-a"], [], [""], ["00-a"], [""], []]
