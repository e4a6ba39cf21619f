"""A program captured with its collectives: when it is ready, what moves where, and that a replay is always possible."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from gt.ir.types import float32, float64
from gt.runtime.executor import TorchEngine, TorchLoaded
from tests.unit.runtime.fake_graph import fake_graphs
from tests.unit.runtime.program_builder import Doubling, ProgramBuilder

SGD: dict[str, Any] = {"nesterov": False, "weight_decay": 0.0, "dampening": 0.0, "maximize": False, "first": False}


def step_program(size: int = 4) -> Any:
    """g = all_reduce(x * x + w); w -= lr * g in place; gives g's sum and the new w."""
    b = ProgramBuilder()
    x, w, lr = b.input(size), b.input(size), b.scalar(float64)
    g = b.collective("all_reduce", b("add", b("mul", x, x), w))
    total = b("sum", g, dims=(0,), keepdim=False, dtype=float32)
    (new,) = b.apply("sgd_step", w, g, lr, num=1, momentum=0.0, inplace=((0, 0),), **SGD)
    program = b.program(total, new)
    return type(program)(**{f: getattr(program, f) for f in program.__struct_fields__} | {"donated": (w,)})


class Steps:
    """Runs it as a worker does, beside the same in plain numbers."""

    def __init__(self) -> None:
        self.graphs, self.capturer = fake_graphs()
        self.loaded: TorchLoaded = TorchEngine(compile_after=0, graphs=self.graphs).load(step_program())
        self.comm = Doubling(captured=True)
        self.w = torch.ones(4)
        self.expected = torch.ones(4)
        assert self.loaded.joint is not None
        self.joint = self.loaded.joint

    def __call__(self, value: float, use: str = "", lr: float = 0.1) -> torch.Tensor:
        x = torch.full((4,), value)
        given = [x, self.w]
        if use == "capture":
            assert self.joint.capture(given, [lr], self.comm) == "captured"
        if use == "replay":
            total, self.w = self.joint.replay(given, [lr])
        else:
            total, self.w = self.loaded.run(given, [lr], self.comm)
        assert given == []
        g = 2 * (x * x + self.expected)
        self.expected = self.expected - lr * g
        torch.testing.assert_close(self.w, self.expected)
        torch.testing.assert_close(total, g.sum())
        return total

    def captured(self) -> Steps:
        for i in range(3):
            self(i)
        self(3.0, "capture")
        return self


def test_it_is_ready_once_the_same_memory_is_overwritten_again_and_again() -> None:
    steps = Steps()
    stages = []
    for i in range(4):
        steps(i)
        stages.append(steps.joint.stage)
    assert stages == ["", "", "ready", "ready"] and steps.loaded.tier == "eager"
    steps(4.0, "capture")
    assert steps.joint.stage == "" and steps.loaded.tier == "graph"


def test_a_capture_runs_nothing_and_replays_read_new_scalars_and_batches_where_they_come() -> None:
    steps = Steps().captured()
    held = [steps(0.1 * i, "replay", lr=0.1 / (i + 1)) for i in range(4)]
    assert len({t.data_ptr() for t in held}) == 4  # what is held does not lie in the graph's memory
    assert steps.joint.stats.replays == 4 and steps.joint.stats.misses == 0 and steps.joint.stats.copied_inputs == 1
    assert steps.loaded.stats.runs == 8 and steps.loaded.stats.graph_runs == 4
    assert steps.capturer.trimmed == 1  # once, behind the run that was captured


def test_a_parameter_that_moved_is_copied_to_where_the_graph_updates_it() -> None:
    steps = Steps().captured()
    at = steps.w.data_ptr()
    steps.w = steps.w.clone()
    steps(1.0, "replay")
    assert steps.w.data_ptr() == at and steps.joint.stats.misses == 1
    steps(2.0, "replay")
    assert steps.joint.stats.misses == 1


def test_a_value_that_somebody_keeps_leaves_the_graphs_memory_before_another_takes_it() -> None:
    steps = Steps().captured()
    before, value = steps.w, steps.w.clone()
    steps.w, steps.expected = torch.full((4,), 5.0), torch.full((4,), 5.0)
    steps(1.0, "replay")
    torch.testing.assert_close(before, value)
    assert before.data_ptr() != steps.w.data_ptr()


def test_between_replays_a_run_without_the_graph_is_right_as_well() -> None:
    steps = Steps().captured()
    for i, use in enumerate(("replay", "", "replay", "replay", "", "replay")):
        steps(float(i), use)


def test_memory_kept_for_values_that_are_gone_is_counted_and_goes_with_the_graph() -> None:
    steps = Steps().captured()
    steps(1.0, "replay")
    assert steps.joint.idle_nbytes == 0
    steps.w = torch.zeros(0)
    gc.collect()
    assert steps.joint.idle_nbytes == 16
    steps.joint.drop()
    assert steps.joint.idle_nbytes == 0 and steps.capturer.made[0].is_reset and steps.capturer.renewed == 1


def test_junk_goes_through_the_collectives_and_no_value_is_touched() -> None:
    steps = Steps().captured()
    kept, value, asked = steps.w, steps.w.clone(), len(steps.comm.asked)
    steps.joint.replay_junk()
    assert len(steps.comm.asked) == asked + 1
    torch.testing.assert_close(kept, value)
    steps(1.0, "replay")


def test_a_group_made_anew_ends_the_graph() -> None:
    steps = Steps().captured()
    (group,) = {c.group for c in steps.loaded.program.collectives}
    steps.joint.forget_group((7, 8))
    assert steps.loaded.tier == "graph"
    steps.joint.forget_group(group)
    assert steps.loaded.tier == "eager"
    for i in range(4):
        steps(i)
    assert steps.joint.stage == "ready"


def test_what_cannot_be_captured_says_so_and_its_pieces_are_captured_alone() -> None:
    steps = Steps()
    for i in range(3):
        steps(i)
    steps.capturer.fail = RuntimeError("operation not permitted when stream is capturing\nmore")
    assert steps.joint.capture([torch.ones(4), steps.w], [0.1], steps.comm) == "refused"
    assert steps.loaded.stats.notes == [
        "no CUDA graph of the whole program: RuntimeError: operation not permitted when stream is capturing"
    ]
    steps.capturer.fail = None
    for i in range(4):
        steps(i)
    assert steps.joint.stage == ""
    steps.joint.drop("worker 1 could not capture the program")
    assert len(steps.loaded.stats.notes) == 1  # its own reason is the one that counts


def test_a_program_that_is_let_go_of_takes_its_graph_along() -> None:
    steps = Steps().captured()
    capturer, graphs = steps.capturer, steps.graphs
    assert graphs.joint
    del steps
    gc.collect()
    assert capturer.made[0].is_reset and not graphs.joint


@pytest.mark.parametrize("refused", ["", "why"])
def test_without_a_graph_there_is_nothing_to_drop(refused: str) -> None:
    steps = Steps()
    steps.joint.drop(refused)
    for i in range(5):
        steps(i)
    assert steps.joint.stage == ("" if refused else "ready")
