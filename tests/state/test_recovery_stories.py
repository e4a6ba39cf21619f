"""Stories of runs that fail in part: what is left of them, and what tensors are again that were to be given other values."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gt.ir.mesh import Sharding
from gt.ir.program import Compute, WireNode, WireType
from gt.passes.signal_placement import cluster_mesh
from gt.runtime import wire
from gt.runtime.dispatcher_events import Planned
from gt.runtime.errors import Fault
from gt.runtime.fair_queue import Limits
from tests.state.stories import Story, T, plans, program, sent

BROKE = Fault("index", "broke", 0, 1, "train.py:3")


def broken(kept: bool = True, frees: tuple[int, ...] = (1,), alone: bool = True) -> tuple[Story, int, tuple[int, int]]:
    """A run whose first output is to replace buffer 1 and fails; the second goes well. Gives the uids of buffer 1 and the outputs."""
    s = Story(workers=1 if alone else 2)
    s.put(1)
    s.define(1)
    (make,) = plans(s.run(1, (1,), (2, 3), frees, replaces=(1, -1)))
    (execute,) = sent(s.plan(make, outputs=2), wire.Execute, "w0")
    (old,), (first, second) = execute.inputs, execute.outputs
    out = s.done(0, 1, BROKE, ((first, BROKE),), (old,) if kept else ())
    s.log = out
    return s, old, (first, second)


def shipped(commands: list[Any]) -> list[int]:
    return [m.uid for m in sent(commands, wire.Ship)]


def test_outputs_that_did_not_fail_can_be_read_and_the_others_tell_the_cause():
    s, _, (_, second) = broken()
    assert shipped(s.fetch(3, 1)) == [second]
    assert sent(s.fetch(2, 2), wire.Failed) == [wire.Failed(2, BROKE)]


def test_once_the_client_knows_a_tensor_has_the_value_again_that_it_had():
    s, old, (first, _) = broken()
    assert sent(s.say("c0up", wire.Recover(2)), wire.Free) == [wire.Free((first,))]
    assert shipped(s.fetch(2, 1)) == [old]
    assert sent(s.say("c0up", wire.Free((2,))), wire.Free) == [wire.Free((old,))]


def test_knowing_of_one_is_knowing_of_all_that_failed_in_that_run():
    s = Story()
    s.put(1)
    s.define(1)
    (make,) = plans(s.run(1, (1,), (2, 3), (1,), replaces=(-1, 1)))
    (execute,) = sent(s.plan(make, outputs=2), wire.Execute)
    other = Fault("index", "broke elsewhere", 0, 1, "train.py:9")
    s.done(0, 1, BROKE, ((execute.outputs[0], BROKE), (execute.outputs[1], other)), execute.inputs)
    s.say("c0up", wire.Recover(2))
    assert shipped(s.fetch(3, 1)) == [execute.inputs[0]]


def test_what_the_run_had_overwritten_stays_failed():
    s, *_ = broken(kept=False)
    s.say("c0up", wire.Recover(2))
    assert sent(s.fetch(2, 2), wire.Failed) == [wire.Failed(2, BROKE)]


def test_what_was_kept_goes_with_what_failed_to_replace_it():
    s, old, (first, _) = broken()
    (free,) = sent(s.say("c0up", wire.Free((2,))), wire.Free)
    assert set(free.buffers) == {first, old}


def test_what_was_kept_for_nothing_goes_at_once():
    s = Story()
    s.put(1)
    s.define(1)
    (make,) = plans(s.run(1, (1,), (2,), (1,)))  # buffer 1 was freed, not replaced
    (execute,) = sent(s.plan(make), wire.Execute)
    out = s.done(0, 1, BROKE, ((execute.outputs[0], BROKE),), execute.inputs)
    assert sent(out, wire.Free) == [wire.Free(execute.inputs)]


def test_a_chain_of_runs_leads_back_to_the_last_value_that_was_there():
    s, old, (first, _) = broken()
    (execute,) = sent(s.run(1, (2,), (4, 5), (2,), replaces=(2, -1)), wire.Execute)
    assert execute.inputs == (first,)  # its worker knows, and runs what does not read it
    s.done(0, 2, BROKE, ((execute.outputs[0], BROKE),))
    assert sent(s.fetch(4, 1), wire.Failed) == [wire.Failed(1, BROKE)]
    s.say("c0up", wire.Recover(4))
    assert shipped(s.fetch(4, 2)) == [old]


def test_what_was_kept_goes_once_another_value_has_replaced_what_failed():
    s, old, _ = broken()
    (execute,) = sent(s.run(1, (3,), (4, 5), (2,), replaces=(2, -1)), wire.Execute)
    assert sent(s.done(0, 2), wire.Free) == [wire.Free((old,))]
    s.say("c0up", wire.Recover(4))
    assert shipped(s.fetch(4, 1)) == [execute.outputs[0]]


def test_recovering_waits_for_runs_that_may_fail_for_the_same_cause_and_holds_up_what_comes_after():
    s, old, _ = broken()
    (execute,) = sent(s.run(1, (2,), (4, 5), (2,), replaces=(2, -1)), wire.Execute)
    assert s.say("c0up", wire.Recover(4)) == [] and s.fetch(4, 1) == []
    out = s.done(0, 2, BROKE, ((execute.outputs[0], BROKE),))
    assert shipped(out) == [old]


def test_a_value_that_still_has_a_name_is_shared_until_both_let_go():
    s, old, _ = broken(frees=())
    s.say("c0up", wire.Recover(2))
    assert shipped(s.fetch(2, 1)) == shipped(s.fetch(1, 2)) == [old]
    assert old not in [u for m in sent(s.say("c0up", wire.Free((1,))), wire.Free) for u in m.buffers]
    assert sent(s.say("c0up", wire.Free((2,))), wire.Free) == [wire.Free((old,))]


def test_a_run_may_not_overwrite_what_another_name_shares():
    s, old, _ = broken(frees=())
    s.say("c0up", wire.Recover(2))
    (execute,) = sent(s.run(1, (2,), (6, 7), (2,), replaces=(2, -1)), wire.Execute)
    assert execute.inputs == (old,) and execute.frees == ()


def test_a_plan_that_fails_leaves_tensors_as_they_were():
    s = Story()
    s.put(1)
    old = s.state.clients[0].buffers[1].uid
    s.define(1)
    (make,) = plans(s.run(1, (1,), (2,), (1,), replaces=(1,)))
    s.tell(Planned(s.now, make.plan, fault=Fault("plan", "no such plan")))
    assert sent(s.fetch(2, 1), wire.Failed)
    s.say("c0up", wire.Recover(2))
    assert shipped(s.fetch(2, 2)) == [old]


def test_on_several_workers_all_of_a_run_fails():
    s, _, _ = broken(alone=False)
    assert sent(s.fetch(3, 1), wire.Failed) == [wire.Failed(1, BROKE)]
    s.done(1, 1)
    s.say("c0up", wire.Recover(2))
    assert sent(s.fetch(2, 2), wire.Failed) == [wire.Failed(2, BROKE)]


def test_what_is_kept_goes_with_its_client_and_with_its_worker():
    s, old, _ = broken()
    freed = {u for m in sent(s.say("c0up", wire.Bye()), wire.Free) for u in m.buffers}
    assert old in freed
    s, *_ = broken()
    s.gone("w0")
    s.join_worker(1)
    s.say("c0up", wire.Recover(2))
    assert sent(s.fetch(2, 2), wire.Failed)


class Beside(Story):
    """Two workers that both have buffers 1 and 2; a run that may refuse its values, on worker 0 alone, reads 1 and is to replace one of
    them. ``limits``: with them it goes in two parts.
    """

    def __init__(self, replaced: int, **limits: Any) -> None:
        super().__init__(workers=2, **limits)
        self.put(1)
        self.put(2)
        self.old = self.state.clients[0].buffers[replaced].uid
        self.define(1)
        (make,) = plans(self.run(1, (1,), (3,), (replaced,), replaces=(replaced,)))
        nodes = tuple(WireNode("inverse", (i,), (i + 1,), (WireType.of(T),), (), 0) for i in range(2))
        chain = replace(program(0, 1, 1), steps=(Compute(nodes, (0,), (2,), "a"),), outputs=((0, 2),))
        placed = T.placed(Sharding.replicated(cluster_mesh((0,), (0, 1)), T.ndim))
        self.tell(Planned(self.now, make.plan, {0: chain}, (placed,), seconds=0.1))
        (self.output,) = sent(self.log, wire.Execute, "w0")[0].outputs[:1]

    def let_go(self, peer: str) -> bool:
        """Whether a worker was told to let go of what is to be replaced."""
        frees = [u for m in sent(self.log, wire.Free, peer) for u in m.buffers]
        return self.old in frees + [u for m in sent(self.log, wire.Execute, peer) for u in m.frees]

    def end(self, fault: Fault | None = None) -> None:
        """Let its worker be through with all that it was sent."""
        while self.state.flights.by_epoch:
            (epoch, *_) = self.state.flights.by_epoch
            self.done(0, epoch, fault, fault and ((self.output, fault),))


PARTS = {"sharing": Limits(alone_s=0.05, grain_s=0.05)}
beside = pytest.mark.parametrize(
    ("replaced", "limits"), [(1, {}), (2, {}), (1, PARTS), (2, PARTS)], ids=["read", "not read", "read, parts", "not read, parts"]
)


@beside
def test_what_is_on_other_workers_too_is_whole_after_a_run_that_was_to_replace_it_has_failed(replaced: int, limits: dict[str, Any]) -> None:
    s = Beside(replaced, **limits)
    s.end(BROKE)
    s.say("c0up", wire.Recover(3))
    assert shipped(s.fetch(3, 1)) == [s.old]
    assert not s.let_go("w0") and not s.let_go("w1")


@beside
def test_what_is_on_other_workers_too_goes_everywhere_once_a_run_has_replaced_it(replaced: int, limits: dict[str, Any]) -> None:
    s = Beside(replaced, **limits)
    s.end()
    assert s.let_go("w0") and s.let_go("w1")


@beside
def test_what_is_on_other_workers_too_goes_with_the_worker_that_was_to_replace_it(replaced: int, limits: dict[str, Any]) -> None:
    s = Beside(replaced, **limits)
    s.gone("w0")
    assert s.let_go("w1")


@beside
def test_what_is_on_other_workers_too_outlives_them_while_a_run_is_to_replace_it(replaced: int, limits: dict[str, Any]) -> None:
    s = Beside(replaced, **limits)
    s.gone("w1")
    s.end(BROKE)
    s.say("c0up", wire.Recover(3))
    assert sent(s.fetch(3, 1), wire.Ship, "w0")[0].uid == s.old
    assert s.state.clients[0].buffers[3].type.sharding.mesh.workers == (0,)
