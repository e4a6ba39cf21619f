"""Stories of workers that join, and of values that are moved to them: nothing is let go before its copy is there."""

from __future__ import annotations

from typing import Any

from gt.ir.mesh import Sharding
from gt.ir.program import WireType
from gt.ir.signals import ShardConfig, SignalConfig
from gt.passes.signal_placement import cluster_mesh
from gt.runtime import wire
from gt.runtime.errors import Fault
from tests.state.stories import Story, T, plans, sent

ROWS = SignalConfig(shard=ShardConfig(axis=0))


def put_rows(story: Story, buffer: int) -> list[Any]:
    return story.say("c0up", wire.Put(buffer, WireType.of(T), ROWS, True), memoryview(bytes(T.nbytes)))


def over(*workers: int) -> Any:
    """Give the placement of rows over workers."""
    mesh = cluster_mesh(workers, workers)
    return T.placed(Sharding(mesh, ((mesh.axes[0][0],), ())))


def grown() -> tuple[Story, list[Any]]:
    """One worker holds a value under two numbers; another has joined, and values are to move."""
    story = Story(workers=1)
    story.define(1)
    put_rows(story, 10)
    story.join_worker(1)
    return story, story.say("c0up", wire.Rebalance(7))


def test_a_worker_that_joins_has_a_part_in_the_next_plan_and_the_next_upload():
    story = Story(workers=1)
    story.define(1)
    story.put(10)
    (make,) = plans(story.run(1, (10,), (11,)))
    assert make.workers == (0,)
    story.plan(make)
    story.join_worker(1)
    (make,) = plans(story.run(1, (10,), (12,)))
    assert make.workers == (0, 1)
    assert len(sent(put_rows(story, 13), wire.Store)) == 2


def test_values_move_once_their_copies_are_there_and_keep_their_numbers():
    story, out = grown()
    (make,) = plans(out)
    assert make.workers == (0, 1) and make.inputs[0].sharding.mesh.workers == (0,)
    out = story.plan(make, placed=over(0, 1))
    assert {m.epoch for m in sent(out, wire.Execute)} == {1} and not sent(out, wire.Free) and sent(out, wire.Execute)[0].frees == ()
    assert not story.fetch(10, 5)  # in the order of calls
    old = story.state.clients[0].buffers[10]
    story.done(0, 1)
    out = story.done(1, 1)
    assert sent(out, wire.Rebalanced) == [wire.Rebalanced(7, 1)] and sent(out, wire.Free, "w0") == [wire.Free((old.uid,))]
    assert {s.uid for s in sent(out, wire.Ship)} == {story.state.clients[0].buffers[10].uid} != {old.uid}
    assert story.state.clients[0].buffers.keys() == {10} and not sent(out, wire.Progress)
    assert sent(story.say("c0up", wire.Rebalance(8)), wire.Rebalanced) == [wire.Rebalanced(8, 0)]


def test_a_move_that_fails_leaves_the_values_where_they_were():
    story, out = grown()
    story.plan(plans(out)[0], placed=over(0, 1))
    new = [uid for n, b in story.state.clients[0].buffers.items() if n < 0 for uid in [b.uid]]
    story.done(0, 1, Fault("run", "broke", 0, 1))
    out = story.done(1, 1)
    (failed,) = sent(out, wire.Failed)
    assert failed.request == 7 and failed.fault.message == "broke"
    assert [set(m.buffers) for m in sent(out, wire.Free)] == [set(new)] * 2
    assert sent(story.fetch(10, 5), wire.Ship, "w0")


def test_the_new_worker_dies_while_values_move_to_it():
    story, out = grown()
    story.plan(plans(out)[0], placed=over(0, 1))
    story.done(0, 1)
    out = story.gone("w1")
    (failed,) = sent(out, wire.Failed)
    assert failed.request == 7 and failed.fault.kind == "worker_lost"
    assert sent(story.fetch(10, 5), wire.Ship, "w0")


def test_only_the_workers_chosen_are_used_until_all_are_again():
    story = Story(workers=3)
    story.define(1)
    assert (
        sent(story.say("c0up", wire.Rebalance(7, (0, 5))), wire.Failed)[0].fault.message
        == "workers [5] are not there to move values to"
    )
    assert sent(story.say("c0up", wire.Rebalance(7, (0, 2))), wire.Rebalanced)
    assert len(sent(put_rows(story, 10), wire.Store)) == 2
    (make,) = plans(story.run(1, (10,), (11,)))
    assert make.workers == (0, 2)
    story.plan(make)
    story.gone("w1")
    assert sent(story.fetch(10, 5), wire.Ship)
    story.join_worker(3)
    assert len(sent(put_rows(story, 12), wire.Store)) == 2
    assert plans(story.say("c0up", wire.Rebalance(8)))[0].workers == (0, 2, 3)


def test_a_client_that_goes_while_its_values_move_leaves_nothing():
    story, out = grown()
    story.plan(plans(out)[0], placed=over(0, 1))
    out = story.say("c0up", wire.Bye())
    assert {uid for m in sent(out, wire.Free, "w0") for uid in m.buffers} == {1, 2}
    story.done(0, 1), story.done(1, 1)
    assert not story.state.clients and not story.state.flights.by_epoch
