"""Stories of a run in parts: each part is an epoch, the client's later calls wait for the last, and what fails fails as a whole."""

from __future__ import annotations

from typing import Any

import msgspec

from gt.ir.mesh import Sharding
from gt.ir.program import Collective, Compute, Program, WireNode, WireType
from gt.passes.signal_placement import cluster_mesh
from gt.runtime import wire
from gt.runtime.dispatcher_events import Planned
from gt.runtime.errors import Fault
from gt.runtime.fair_queue import Limits
from tests.state.stories import Story, T, plans, program, sent

TYPE = WireType.of(T)


def chain(worker: int, length: int, everyone: tuple[int, ...]) -> Program:
    """One op after the other; on several workers their sum in the middle. The last overwrites nothing."""
    nodes = [WireNode("log", (i,), (i + 1,), (TYPE,), (), 0) for i in range(length)]
    half = length // 2
    steps: list[Any] = [Compute(tuple(nodes[:half]), (0,), (half,), "a"), Compute(tuple(nodes[half:]), (half,), (length,), "b")]
    if len(everyone) > 1:
        steps.insert(1, Collective("all_reduce", 0, half, half, TYPE, everyone, (("reduce", "sum"),)))
    return msgspec.structs.replace(program(worker, 1, 1), steps=tuple(steps), outputs=((0, length),), name="long")


class Long(Story):
    """Plans that take ``seconds``; alone, too, they go in parts."""

    def __init__(self, workers: int = 1, clients: int = 1, seconds: float = 0.08) -> None:
        super().__init__(workers, clients, sharing=Limits(alone_s=0.05))
        self.seconds = seconds
        for client in range(clients):
            self.define(1, client)
            self.put(10, client)

    def planned(self, out: list[Any]) -> list[Any]:
        (make,) = plans(out)
        placed = T.placed(Sharding.replicated(cluster_mesh(make.workers, make.workers), T.ndim))
        programs = {w: chain(w, 8, make.workers) for w in make.workers}
        return self.tell(Planned(self.now, make.plan, programs, (placed,), seconds=self.seconds))

    def done(self, worker: int, epoch: int, fault: Any = None, failed: Any = None, kept: tuple[int, ...] = ()) -> list[Any]:
        return self.say(f"w{worker}", wire.Done(epoch, self.seconds / 4, fault, failed, kept))

    def parts(self, out: list[Any], peer: str = "w0") -> list[wire.Execute]:
        return sent(out, wire.Execute, peer)


def test_a_long_run_goes_in_parts_one_ahead_and_ends_once():
    story = Long()
    out = story.planned(story.run(1, (10,), (11,), frees=(10,)))
    first = story.parts(out)
    assert len(first) == 2 and len(sent(out, wire.Load)) == 2  # as any two runs of one that is alone
    assert not story.fetch(11, 5) and 11 not in story.state.clients[0].buffers
    assert first[0].frees == (first[0].inputs[0],) and first[1].frees  # what the next part does not read
    done, sent_parts = [], list(first)
    while sent_parts:
        part = sent_parts.pop(0)
        out = story.done(0, part.epoch)
        done.append(part)
        sent_parts += story.parts(out)
        if sent(out, wire.Progress):
            break
        assert not sent(out, wire.Progress)
    assert len(done) == 4 and not sent_parts and sent(out, wire.Progress) == [wire.Progress(1)]
    assert [p.outputs[0] for p in done] == [done[0].outputs[0]] * 4
    assert sorted(set(done[0].inputs[2:])) == sorted({uid for p in done for uid in p.frees} - {done[0].inputs[0]})
    assert not story.state.flights.by_epoch and 11 in story.state.clients[0].buffers
    assert sent(story.fetch(11, 6), wire.Ship)
    again = story.run(1, (11,), (12,), frees=(11,))
    assert not sent(again, wire.Load) and story.parts(again)


def test_a_plan_whose_parts_took_no_time_goes_as_a_whole_from_then_on():
    story = Long()
    parts = story.parts(story.planned(story.run(1, (10,), (11,))))
    for part in parts:
        parts += story.parts(story.say("w0", wire.Done(part.epoch, 0.001)))
    assert len(parts) == 4
    (whole,) = story.parts(story.run(1, (11,), (12,)))
    assert whole.plan not in {part.plan for part in parts}


def test_a_value_that_a_run_reads_twice_goes_with_the_last_part_that_does():
    story = Long()
    (make,) = plans(story.run(1, (10, 10), (11,), frees=(10,)))
    long = chain(0, 8, (0,))
    last = Compute((WireNode("add", (8, 90), (9,), (TYPE,), (), 0),), (8, 90), (9,), "c")
    long = msgspec.structs.replace(long, inputs=((0, 0), (1, 90)), steps=(*long.steps, last), outputs=((0, 9),))
    placed = T.placed(Sharding.replicated(cluster_mesh((0,), (0,)), T.ndim))
    parts = story.parts(story.tell(Planned(story.now, make.plan, {0: long}, (placed,), seconds=story.seconds)))
    for part in parts:
        parts += story.parts(story.done(0, part.epoch))
    assert len(parts) > 2 and [parts[0].inputs[0] in p.frees for p in parts] == [False] * (len(parts) - 1) + [True]


def test_another_client_s_run_goes_between_the_parts():
    story = Long(clients=2)
    out = story.planned(story.run(1, (10,), (11,)))
    story.define(2, client=1, graph=b"short")
    waiting = story.say("c1up", wire.Run(2, (10,), (21,), (), ()))
    (make,) = plans(waiting)
    placed = T.placed(Sharding.replicated(cluster_mesh((0,), (0,)), T.ndim))
    story.tell(Planned(story.now, make.plan, {0: program(0, 1, 1)}, (placed,), seconds=0.001))
    order = [p.epoch for p in story.parts(out)]
    seen = []
    while order:
        epoch = order.pop(0)
        out = story.say("w0", wire.Done(epoch, 0.02))
        seen.append(epoch)
        order += [p.epoch for p in story.parts(out)]
    mine = [f for f in story.log if getattr(f, "peer", b"") == b"w0" and isinstance(getattr(f, "message", None), wire.Execute)]
    kinds = ["short" if len(m.message.inputs) == 1 else "part" for m in mine]
    assert kinds.count("part") == 4 and kinds.count("short") == 1 and kinds.index("short") < 3


def test_all_workers_get_the_parts_in_one_order_and_a_part_that_fails_fails_the_run():
    story = Long(workers=2)
    out = story.planned(story.run(1, (10,), (11,)))
    assert {m.epoch for m in sent(out, wire.MakeGroup)} == {1}
    a, b = (story.parts(out, w) for w in ("w0", "w1"))
    assert [(m.epoch, m.plan) for m in a] == [(m.epoch, m.plan) for m in b] != []
    story.done(0, 1), story.done(1, 1)
    broke = Fault("run", "broke", 1, a[0].epoch, "train.py:12")
    epochs, at = [m.epoch for m in a], 0
    while at < len(epochs):
        out = story.done(0, epochs[at]) + story.done(1, epochs[at], broke if at == 0 else None)
        epochs += [m.epoch for m in story.parts(out)]
        at += 1
    assert at == 4
    (failed,) = sent(story.fetch(11, 5), wire.Failed)
    assert failed.fault == broke
    assert sent(story.fetch(10, 6), wire.Ship)  # what it read is there


def test_a_worker_lost_between_parts_fails_the_run_and_what_was_made_is_let_go():
    story = Long(workers=2)
    out = story.planned(story.run(1, (10,), (11,), frees=(10,)))
    (part, *_) = story.parts(out)
    story.done(0, 1), story.done(1, 1)
    out = story.gone("w1")
    (free,) = [m for m in sent(out, wire.Free, "w0") if set(part.outputs) <= set(m.buffers)]
    (failed,) = sent(story.fetch(11, 5), wire.Failed)
    assert "during epoch" in failed.fault.message
    assert failed.fault.kind == "worker_lost" and set(free.buffers) == set(part.outputs)


def test_a_client_that_goes_between_parts_leaves_nothing():
    story = Long()
    out = story.planned(story.run(1, (10,), (11,)))
    parts = story.parts(out)
    out = story.say("c0up", wire.Bye())
    assert set(parts[0].outputs) <= {uid for m in sent(out, wire.Free, "w0") for uid in m.buffers}
    for part in parts:
        assert not sent(story.done(0, part.epoch), wire.Execute)
    assert not story.state.flights.by_epoch and not story.state.sharing.jobs


def test_what_a_run_in_parts_replaces_stays_until_it_has_gone_well():
    story = Long()
    out = story.planned(story.run(1, (10,), (11,), frees=(10,), replaces=(10,)))
    (plan,) = [p for p in story.state.plans]
    assert not plan.refuses
    assert story.parts(out)[0].frees  # nothing of it refuses its values: it may go with the part that reads it last


def test_a_plan_that_goes_on_without_one_of_its_workers_is_not_cut():
    story = Long(workers=2)
    (make,) = plans(story.run(1, (10,), (11,)))
    placed = T.placed(Sharding.replicated(cluster_mesh(make.workers, make.workers), T.ndim))
    alike = {w: chain(w, 8, (w,)) for w in make.workers}
    out = story.tell(Planned(story.now, make.plan, alike, (placed,), seconds=10.0))
    assert [len(story.parts(out, peer)) for peer in ("w0", "w1")] == [1, 1]
    story.gone("l1")
    story.done(0, story.parts(out)[0].epoch)
    assert sent(story.fetch(11, 5), wire.Ship, "w0")
