"""Stories of memory: a run too large for one of its workers is begun on none, and who leaves a collective says so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gt.ir.mesh import Sharding
from gt.ir.program import Compute, WireNode, WireType
from gt.passes.signal_placement import cluster_mesh
from gt.runtime import wire
from gt.runtime.dispatcher_events import Planned
from gt.runtime.errors import Fault, OutOfMemoryError
from gt.runtime.worker_state import Got, Grouped, LoadProgram, Ran, Reply, RunProgram, SkipProgram, WorkerState
from tests.state.stories import Story, T, plans, program, sent

EACH = T.nbytes
GROUP = ((0, 1),)


class Small(Story):
    """Worker ``poor`` may use so many bytes; the others have no limit."""

    def __init__(self, limit: int, poor: int = 1, **options: Any) -> None:
        self.limit, self.poor = limit, poor
        super().__init__(**options)

    def join_worker(self, i: int) -> None:
        memory = self.limit if i == self.poor else 0
        *_, welcome = self.say(f"w{i}", wire.WorkerHello(f"u{i}", f"r{i}", "host", 100 + i, "cpu", "numpy", memory=memory))
        self.say(f"l{i}", wire.Attach(welcome.message.token, "link"))

    def planned(self, out: list[Any], peak: int, groups: tuple[tuple[int, ...], ...] = GROUP) -> list[Any]:
        """Answer a request for a plan of one output that takes ``peak`` bytes at most."""
        (make,) = plans(out)
        placed = T.placed(Sharding.replicated(cluster_mesh(make.workers, make.workers), T.ndim))
        node = WireNode("neg", (0,), (len(make.inputs),), (WireType.of(T),), (), 0)
        step = Compute((node,), (0,), (len(make.inputs),), "k")
        programs = {}
        for w in make.workers:
            p = program(w, len(make.inputs), 1, groups)
            programs[w] = msgspec.structs.replace(p, steps=(*p.steps, step), peak_nbytes=peak)
        return self.tell(Planned(self.now, make.plan, programs, (placed,)))


def test_a_run_that_one_worker_has_no_room_for_is_begun_on_none_and_what_was_there_stays():
    story = Small(3 * EACH, workers=2)
    story.define(1)
    story.put(10)
    out = story.run(1, (10,), (11,), frees=(10,), replaces=(10,))
    out = story.planned(out, 4 * EACH)
    assert not sent(out, wire.Execute) and not sent(out, wire.MakeGroup) and not sent(out, wire.Free)
    (failed,) = sent(story.fetch(11, 5), wire.Failed)
    error = failed.fault.exception()
    assert isinstance(error, OutOfMemoryError) and failed.fault.worker == 1
    for part in (f"{4 * EACH} bytes on worker 1", f"may use {3 * EACH} bytes", "Largest held: 64 bytes", "Largest in the run: 64 bytes",
                 "train.py:12", "Delete tensors"):  # fmt: skip
        assert part in str(error), part
    story.say("c0up", wire.Recover(11))
    assert sent(story.fetch(11, 6), wire.Ship)  # what was to be replaced is there again


def test_what_a_run_frees_and_what_other_clients_hold_count():
    story = Small(3 * EACH, workers=2, clients=2)
    story.define(1)
    story.define(1, client=1)
    story.put(10), story.put(20, client=1)
    out = story.planned(story.run(1, (10,), (11,), frees=(10,)), 2 * EACH)
    assert len(sent(out, wire.Execute)) == 2  # 1 of the other's, 1 in, 1 out
    for w in (0, 1):
        story.done(w, 1), story.done(w, 2)
    assert len(sent(story.run(1, (20,), (21,), client=1), wire.Execute)) == 2  # what was freed made room
    for w in (0, 1):
        story.done(w, 3)
    refused = story.run(1, (11,), (12,))
    assert not sent(refused, wire.Execute)
    (failed,) = sent(story.fetch(12, 5), wire.Failed)
    assert f"of other clients {2 * EACH} bytes" in failed.fault.message
    story.say("c1up", wire.Free((20,)))
    assert len(sent(story.run(1, (11,), (13,)), wire.Execute)) == 2
    assert sent(story.fetch(21, 7, client=1), wire.Ship)


def test_an_upload_that_does_not_fit_fails_with_its_line_and_a_client_that_leaves_makes_room():
    story = Small(2 * EACH, workers=2, clients=2)
    story.put(10), story.put(20, client=1)
    out = story.say("c0up", wire.Put(11, WireType.of(T), None, True, None, "train.py:3"), memoryview(bytes(EACH)))
    assert not sent(out, wire.Store)
    (failed,) = sent(story.fetch(11, 5), wire.Failed)
    assert "train.py:3" in str(failed.fault.exception()) and failed.fault.kind == "memory"
    story.say("c1up", wire.Bye())
    assert story.state.values.memory.workers[1].nbytes == EACH
    assert len(sent(story.put(12), wire.Store)) == 2


def test_after_all_is_freed_nothing_is_counted_whatever_failed_meanwhile():
    story = Small(100 * EACH, poor=0, workers=1)
    story.define(1)
    story.put(10)
    story.planned(story.run(1, (10,), (11,), frees=(10,), replaces=(10,)), 2 * EACH, groups=())
    (uid, old) = (story.state.clients[0].buffers[11].uid, 1)
    broke = Fault("run", "broke", 0, 1, "train.py:12")
    story.done(0, 1, broke, ((uid, broke),), (old,))
    assert story.state.values.memory.workers[0].values.keys() == {uid, old}
    story.say("c0up", wire.Recover(11))
    assert story.state.values.memory.workers[0].values.keys() == {old}
    story.say("c0up", wire.Free((11,)))
    assert not story.state.values.memory.workers[0].values and story.state.values.memory.workers[0].nbytes == 0


def test_a_worker_without_memory_in_a_run_says_what_is_large_and_the_others_hear_that_it_left():
    story = Small(0, workers=2, clients=2)
    story.define(1)
    story.put(10), story.put(20, client=1)
    story.planned(story.run(1, (10,), (11,)), EACH)
    group, run = 1, 2
    story.done(0, group), story.done(1, group)
    full = Fault("memory", "add: MemoryError: no room. x", 1, run, "train.py:12")
    out = story.say("w1", wire.Done(run, 0.1, full, left=True))
    assert sent(out, wire.Leave) == [wire.Leave(run, GROUP, "worker 1 could not go on: add: MemoryError: no room")]
    assert sent(out, wire.Leave, "l0") and not sent(out, wire.Leave, "l1")
    story.done(0, run, Fault("collective", "worker 1 could not go on", 0, run))
    (failed,) = sent(story.fetch(11, 5), wire.Failed)
    assert isinstance(failed.fault.exception(), OutOfMemoryError) and "Largest held" in failed.fault.message
    again = story.run(1, (10,), (12,))
    assert len(sent(again, wire.MakeGroup)) == 2 and len(sent(again, wire.Execute)) == 2
    reads = story.fetch(20, 6, client=1)  # another's values are what they were; its turn comes with the run's end
    for worker in (0, 1):
        for epoch in sorted({m.epoch for m in sent(again, (wire.MakeGroup, wire.Execute))}):
            reads += story.done(worker, epoch)
    assert sent(reads, wire.Ship)


def test_a_lone_worker_s_want_of_memory_is_told_by_the_dispatcher():
    story = Small(0, workers=1)
    story.define(1)
    story.put(10)
    story.planned(story.run(1, (10,), (11,)), EACH, groups=())
    uid = story.state.clients[0].buffers[11].uid
    token = story.state.clients[0].token
    full = Fault("memory", "neg: MemoryError", 0, 1, "train.py:12")
    story.done(0, 1, full)
    (failed,) = sent(story.say("w0", wire.Unshipped(uid, token, 5, full)), wire.Failed, "c0")
    assert failed.request == 5 and "Largest in the run" in failed.fault.message


@pytest.mark.parametrize("kind", ["memory", "run"])
def test_a_worker_that_left_a_collective_enters_none_of_that_group_until_it_is_made_anew(kind):
    w = WorkerState(1)
    w.handle(Got(wire.Store(10, WireType.of(T), ((0, 4), (0, 4)), (4, 4)), b""))
    assert isinstance(w.handle(Got(wire.Load(1, program(1, 1, 1, GROUP))))[0], LoadProgram)
    assert isinstance(w.handle(Got(wire.Execute(2, 1, (10,), (11,), (), ())))[0], RunProgram)
    full = Fault(kind, "no room", 1, 2)
    assert w.handle(Ran(2, 0.1, full, left=True)) == [Reply(wire.Done(2, 0.1, full, left=True))]
    (skip,) = w.handle(Got(wire.Execute(3, 1, (10,), (12,), (), ())))
    assert isinstance(skip, SkipProgram) and skip.fault.kind == "collective"  # for which no collective is entered
    w.handle(Ran(3, 0.0))
    w.handle(Grouped(4, 0.1, (0, 1)))
    assert isinstance(w.handle(Got(wire.Execute(5, 1, (10,), (13,), (), ())))[0], RunProgram)
    (reply,) = [c for c in w.handle(Got(wire.Ship(11, b"t", 5, WireType.of(T), ((0, 4), (0, 4)), 1, True)))]
    assert isinstance(reply, Reply) == (kind == "memory")  # else the client is told at once
