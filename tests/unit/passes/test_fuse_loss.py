"""The loss of halves and its gradient are one op where a step has both, equal to the ops that they were; elsewhere nothing changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gt
from gt import session as sessions
from gt.ir.graph import Graph
from gt.ir.mesh import Mesh
from gt.ir.program import Collective, Compute
from gt.ir.text import parse_graph
from gt.passes.context import Context
from gt.passes.pipeline import DEFAULT, Pipeline
from gt.passes.plan import Cluster
from gt.runtime.simulator import simulate_graph
from gt.scripted import ScriptSession, ShapesOnly

FUSED = Pipeline.parse(str(DEFAULT).replace("fuse_loss", "fuse_loss{least=0}"))
NOT = Pipeline.parse(str(DEFAULT).replace("fuse_loss,", ""))
BOTH = "%3, %4 = grad(%2, %x0, %x1, has_seed=false) : {dtype}[6, 5], {dtype}[40, 5]\n  return %2, %3, %4"
STEP = """gtir 1
graph @g global {{
  input %x0: {dtype}[6, 5]
  input %x1: {dtype}[40, 5]
  input %x2: i64[6]
  %0 = linear(%x0, %x1) : {dtype}[6, 40] taped
  %1 = cast(%0, dtype=f32) : f32[6, 40] taped
  %2 = cross_entropy(%1, %x2, reduction="{reduction}", ignore_index={ignore}, label_smoothing={smoothing}) : f32[{rows}] taped
  {tail}
}}
"""


def step(tail: str = BOTH, dtype: str = "bf16", reduction: str = "mean", ignore: int = -100, smoothing: float = 0.0) -> Graph:
    rows = "6" if reduction == "none" else ""
    text = STEP.format(dtype=dtype, reduction=reduction, ignore=ignore, smoothing=smoothing, rows=rows, tail=tail.format(dtype=dtype))
    return parse_graph(text)


def arrays(ignore: int = -100) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(6, 5)), rng.normal(size=(40, 5)), np.array([3, ignore, 39, 0, 7, 7])]


def ops(graph: Graph, pipeline: Pipeline) -> list[str]:
    final = pipeline.run(graph, Context(Mesh("all", (("w", 1),), (0,))), verify="each")
    return [node.op.name for node in final.nodes]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("reduction", "ignore"), [("mean", -100), ("sum", -100), ("mean", 7)])
def test_one_op_gives_the_loss_and_the_gradients(reduction: str, ignore: int, dtype: str, workers: int) -> None:
    graph = step(dtype=dtype, reduction=reduction, ignore=ignore)
    names = ops(graph, FUSED)
    assert names.count("cross_entropy_grad") == 1 and not {"log_softmax", "nll_loss", "nll_loss_backward"} & set(names)
    data = arrays(ignore)
    got, want = (simulate_graph(graph, data, num_workers=workers, pipeline=p) for p in (FUSED, NOT))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    for a, b in zip(got[1:], want[1:], strict=True):
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=2e-2 if dtype == "bf16" else 2e-3, atol=1e-3)


def test_a_class_that_is_none_is_told_of_by_the_loss() -> None:
    assert "in_range" not in ops(step(), FUSED)


AGAIN = """%3 = log_softmax(%1, dim=1) : f32[6, 40] taped
  %4 = nll_loss(%3, %x2, reduction="sum", ignore_index=-100) : f32[] taped
  %5, %6 = grad(%4, %x0, %x1, has_seed=false) : bf16[6, 5], bf16[40, 5]
  %7 = nll_loss(%3, %x2, reduction="sum", ignore_index=-100) : f32[]
  return %7, %5, %6"""


def test_the_loss_may_be_computed_behind_its_gradient() -> None:
    """As one under another signal is, where nobody reads the first."""
    graph, (apart, whole) = step(tail=AGAIN), (Pipeline.parse(str(p).replace("cse,", "")) for p in (FUSED, NOT))
    assert "cross_entropy_grad" in ops(graph, apart)
    for a, b in zip(*(simulate_graph(graph, arrays(), pipeline=p) for p in (apart, whole)), strict=True):
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=2e-2, atol=1e-3)


LOGP = """%3 = log_softmax(%1, dim=1) : f32[6, 40] taped
  %4, %5 = grad(%2, %x0, %x1, has_seed=false) : bf16[6, 5], bf16[40, 5]
  return %2, %3, %4, %5"""
OF_ITS_OWN = """%3 = mul(%2, %2) : f32[] taped
  %4, %5 = grad(%3, %x0, %x1, has_seed=false) : bf16[6, 5], bf16[40, 5]
  return %3, %4, %5"""


@pytest.mark.parametrize(
    "graph",
    [
        step(dtype="f32"),  # as wide as the sums are
        step(tail="return %2"),  # no gradient
        step(tail=LOGP),  # the log-probabilities are read
        step(tail=OF_ITS_OWN),  # what the gradient is multiplied with is known after the loss
        step(smoothing=0.1),
    ],
)
def test_what_is_not_so_stays(graph: Graph) -> None:
    assert "cross_entropy_grad" not in ops(graph, FUSED)


def test_small_logits_stay() -> None:
    assert "cross_entropy_grad" not in ops(step(), DEFAULT)


def test_where_rows_are_split_the_count_of_targets_is_summed_first() -> None:
    gt.disconnect()
    gt.get_config().clear()
    gt.load_config(str(Path(__file__).parents[3] / "examples" / "sharding" / "data.yaml"))
    session = ScriptSession(ShapesOnly(), Cluster((0, 1)))
    with sessions.pinned(session):
        head = gt.nn.Linear(8, 1024, bias=False)
        with gt.signal.context("batch"):
            x, y = gt.from_numpy(np.ones((1024, 8), np.float32)), gt.from_numpy(np.ones(1024, np.int64))
        with gt.autocast("cpu", dtype=gt.bfloat16):
            loss = gt.nn.functional.cross_entropy(head(x).float(), y)
        loss.backward()
        loss.item()
    gt.get_config().clear()
    for program in next(reversed(session.found.values())).plan.programs.values():
        steps = [s.kind if isinstance(s, Collective) else " ".join(n.op for n in s.nodes) for s in program.steps if isinstance(s, Collective | Compute)]
        fused = next(i for i, text in enumerate(steps) if "cross_entropy_grad" in text)
        assert steps.index("all_reduce") < fused and not any("log_softmax" in text for text in steps)
