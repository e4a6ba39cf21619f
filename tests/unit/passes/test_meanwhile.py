"""A tensor-parallel step of some size, in halves: what is summed, where, and what is computed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import gt
from gt import session as sessions
from gt.ir.graph import Value
from gt.ir.opdef import OPS
from gt.ir.program import Collective, Compute, Program
from gt.ir.signals import PlanOptions, SignalConfig
from gt.ir.types import TensorType, float32
from gt.nn import functional as F  # noqa: N812
from gt.passes.plan import Cluster, plan_graph
from gt.scripted import ScriptSession, ShapesOnly
from tests.property.training_steps import adamw, mean_square

WIDTH, BLOCKS, ROWS = 1024, 3, 4096
SUM = WIDTH * ROWS * 4  # bytes, in float32


class Block(gt.nn.Module):
    """A norm and two layers, split by columns and by rows, whose result is added to what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.ln = gt.nn.LayerNorm(WIDTH)
        self.up_proj = gt.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down_proj = gt.nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return x + self.down_proj(F.gelu(self.up_proj(self.ln(x))))


def planned(limit: int | None = None) -> Program:
    """Give worker 0's program of the last of three steps, with this limit on memory."""
    gt.disconnect()
    gt.get_config().clear()
    session = ScriptSession(ShapesOnly(), Cluster((0, 1)))
    with sessions.pinned(session):
        model = gt.nn.Sequential(*(Block() for _ in range(BLOCKS)))
        optim = gt.optim.AdamW(model.parameters())
        gt.load_config(str(Path(__file__).parents[3] / "examples" / "sharding" / "tensor.yaml"))
        x = gt.from_numpy(np.ones((ROWS, WIDTH), np.float32))
        for _ in range(3):
            with gt.memory_limit(limit) if limit is not None else nullcontext():
                with gt.autocast("cuda", dtype=gt.bfloat16):
                    loss = model(x).square().mean()
                loss.backward()
                optim.step()
                optim.zero_grad()
                loss.item()
    gt.get_config().clear()
    return next(reversed(session.found.values())).plan.programs[0]


@pytest.fixture(scope="module")
def program() -> Program:
    return planned()


def sums(program: Program) -> list[int]:
    """Give which steps sum activations."""
    found = enumerate(program.steps)
    return [i for i, s in found if isinstance(s, Collective) and s.kind == "all_reduce" and s.nbytes == SUM]


def meanwhile(program: Program, at: int) -> list[str]:
    """Give the ops between a sum's beginning and its wait."""
    begun, ops = program.steps[at], []
    assert isinstance(begun, Collective)
    for step in program.steps[at + 1 :]:
        if isinstance(step, Collective) and step.kind == "wait" and step.output == begun.output:
            break
        if isinstance(step, Compute):
            ops += [node.op for node in step.nodes]
    return ops


def test_weight_gradients_are_computed_while_the_input_gradient_is_summed(program: Program) -> None:
    at = sums(program)
    assert len(at) == 2 * BLOCKS, "one of each block forward, and one of the norm's gradient backward, the first's for its scale"
    for i in at[BLOCKS:]:
        begun = program.steps[i]
        assert isinstance(begun, Collective) and begun.begins
        assert meanwhile(program, i).count("matmul") == 2, "both of the block"


def test_a_parameter_is_cast_while_what_its_layer_reads_is_summed(program: Program) -> None:
    for i in sums(program)[: BLOCKS - 1]:
        assert meanwhile(program, i).count("cast") == 2, "the next block's weights"


def test_a_sum_for_a_residual_stream_is_of_what_is_new_and_in_its_memory(program: Program) -> None:
    for i in sums(program):
        begun = program.steps[i]
        assert isinstance(begun, Collective) and begun.inplace
        made = [node.op for step in program.steps[:i] if isinstance(step, Compute) for node in step.nodes if begun.input in node.outputs]
        assert made in (["linear"], ["matmul"]), "a product itself, in float32: no cast, nothing added before"


def test_under_a_limit_that_it_would_exceed_nothing_is_put_off(program: Program) -> None:
    ops = lambda p: sorted(node.op for step in p.steps if isinstance(step, Compute) for node in step.nodes)  # noqa: E731
    assert planned(program.peak_nbytes).steps == program.steps, "a limit that does not bind changes nothing"
    tight = planned(program.peak_nbytes - 1)
    assert tight.peak_nbytes < program.peak_nbytes and ops(tight) == ops(program), "and nothing is computed twice"
    assert [meanwhile(tight, i).count("matmul") for i in sums(tight)[BLOCKS:]] == [1] * BLOCKS, "as it was recorded"


def test_what_is_made_of_inputs_stays_before_what_it_is_made_for() -> None:
    """Of eight workers the count of a loss's targets takes long, and is summed before all else; parameters are made in the same run."""
    gt.disconnect()
    gt.get_config().clear()
    gt.load_config(str(Path(__file__).parents[3] / "examples" / "sharding" / "data.yaml"))
    with sessions.pinned(ScriptSession(ShapesOnly(), Cluster(tuple(range(8))))):
        model = gt.nn.Sequential(gt.nn.Embedding(1024, 256), gt.nn.Linear(256, 1024))
        with gt.signal.context("batch"):
            x, y = (gt.from_numpy(np.zeros((8, 64), np.int64)) for _ in range(2))
        loss = F.cross_entropy(model(x).reshape(-1, 1024), y.reshape(-1))
        loss.backward()
        assert loss.item() == 0.0
    gt.get_config().clear()


def test_nothing_large_is_kept_for_what_is_put_off() -> None:
    """The loss of what a row-split layer gives waits for nothing, and keeps the result: it is computed where it was recorded."""

    def loss(data: Sequence[Value], params: Sequence[Value]) -> Value:
        x = OPS["layer_norm"](data[0], params[0], params[1], eps=1e-5)[0]
        return mean_square(OPS["linear"](OPS["relu"](OPS["linear"](x, params[2])), params[3]))

    rules = SignalConfig(mesh={"tp": 8}, params={"p2": {0: ("tp",)}, "p3": {1: ("tp",)}, "*": {}})
    graph = adamw([TensorType((16384, 512), float32)], [(512,), (512,), (1024, 512), (4096, 1024)], loss, options=PlanOptions(), signals={"split": rules})
    program = plan_graph(graph, Cluster(tuple(range(8)))).programs[0]
    assert program.peak_nbytes < 2.9 * 16384 * 4096 * 4, "the gradient and what it is made of, not the result as well"
