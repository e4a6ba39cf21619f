"""A memory limit: what is recomputed and why, updates as soon as gradients are complete, and what is said where it cannot be met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import gt
from gt import nn
from gt.ir.graph import Graph, Node, Value
from gt.ir.opdef import OPS
from gt.ir.signals import PlanOptions, ShardConfig, SignalConfig
from gt.ir.types import TensorType, float32
from gt.passes.context import Context
from gt.passes.estimate import estimate
from gt.passes.pipeline import DEFAULT
from gt.passes.plan import Cluster
from gt.runtime.simulator import simulate_graph
from tests.property.training_steps import adamw, dense, mean_square, mlp

KEEP = PlanOptions()


pytestmark = pytest.mark.usefixtures("clean")


class Planned:
    """A step planned for one worker under a limit of so much of its peak; None: without one."""

    def __init__(self, step: Graph, share: float | None = None, workers: int = 1) -> None:
        limit: int | None = None if share is None else round(share * Planned(step, None, workers).peak)
        self.step = replace(step, options=PlanOptions(memory_limit=limit))
        self.context = Context(Cluster(tuple(range(workers))).mesh)
        self.final = DEFAULT.run(self.step, self.context, verify="each")
        assert self.context.memory is not None
        self.peak: int = self.context.memory.most
        self.limit = limit or 0
        self.notes = [n for n in self.context.placement_notes if n.startswith("memory_limit: ")]

    @property
    def again(self) -> Counter[str]:
        return Counter(node.op.name for node in self.final.nodes if node.why == "recomputed")

    @property
    def updates(self) -> list[Node]:
        return [node for node in self.final.nodes if node.op.name == "adamw_step"]

    @property
    def seconds(self) -> float:
        return estimate(self.final, self.context).seconds


def arrays(step: Graph, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.abs(rng.normal(size=v.type.shape)).astype(np.float32) * 0.1 + 0.1 for v in step.inputs]


def same_values(found: Planned, workers: int = 1) -> None:
    data = arrays(found.step)
    expected = simulate_graph(replace(found.step, options=KEEP), data, (), workers)
    for a, b in zip(expected, simulate_graph(found.step, data, (), workers), strict=True):
        assert a.tobytes() == b.tobytes()


@cache
def blocks(batch: int = 512, width: int = 32, layers: int = 6, donated: bool = True) -> Graph:
    """Norm, two linear layers with a GELU between them, and what came in."""

    def loss(data: Sequence[Value], params: Sequence[Value]) -> Value:
        x, own = data[0], iter(params)
        for _ in range(layers):
            h = OPS["layer_norm"](x, next(own), next(own), eps=1e-5)[0]
            x = OPS["add"](x, dense(OPS["gelu"](dense(h, own), approximate="tanh"), own))
        return mean_square(x)

    shapes = [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)] * layers
    return adamw([TensorType((batch, width), float32)], shapes, loss, options=KEEP)


def test_within_the_limit_nothing_changes() -> None:
    free, roomy = Planned(blocks()), Planned(blocks(), 1.0)
    assert replace(roomy.final, options=KEEP) == free.final and not roomy.notes


def test_cheap_values_go_first() -> None:
    found = Planned(blocks(8192, 1024), 0.85)
    assert found.peak <= found.limit and set(found.again) == {"gelu"}, "which takes less time than a linear layer for as many bytes"
    assert len(found.notes) == 2 and "less at the peak" in found.notes[0] and "x gelu f32[8192, 4096]" in found.notes[1]


@pytest.mark.parametrize("share", [0.7, 0.5])
def test_a_limit_is_met_with_the_same_bits(share: float) -> None:
    found = Planned(blocks(), share)
    assert found.peak <= found.limit and found.again["linear"]
    same_values(found)


def test_a_tighter_limit_takes_no_less_time() -> None:
    times = [Planned(blocks(8192, 1024), share).seconds for share in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)]
    assert times == sorted(times)


def test_what_cannot_be_met_is_said_with_its_figure() -> None:
    found = Planned(blocks(), 0.01)
    assert found.limit < found.peak < Planned(blocks()).peak / 2
    assert f"a run takes up to {found.peak / 1e6:.4g} MB" in found.notes[-1]
    same_values(found)


def test_updates_follow_their_gradients() -> None:
    """Of a batch of few rows the gradients are what fills the memory."""
    step = mlp(4, (256,) * 13, options=KEEP)
    free, found = Planned(step), Planned(step, 0.85)
    assert len(free.updates) == 1 and len(found.updates) > 8 and not found.again
    assert found.peak <= found.limit and any("updated in 13 groups" in n for n in found.notes)
    assert found.context.memory is not None and len(found.context.memory.inplace) == len(found.updates), "all in place"
    assert found.seconds <= 1.03 * free.seconds
    same_values(found)


def test_gradients_that_are_kept_are_updated_from_at_once() -> None:
    step = mlp(4, (64,) * 7, options=KEEP)
    grad = next(n for n in step.nodes if n.op.name == "grad")
    found = Planned(replace(step, outputs=(*step.outputs, *grad.outputs)), 0.8)
    assert len(found.updates) == 1, "groups would free nothing"
    same_values(found)


def test_a_view_of_what_is_updated_is_read_first() -> None:
    """Tied weights are read by the first layer's backward, too; no update may stand before that."""

    def loss(data: Sequence[Value], params: Sequence[Value]) -> Value:
        x = data[0]
        for w in (*params, *params):
            x = OPS["relu"](OPS["matmul"](x, OPS["permute"](w, dims=(1, 0))))
        return mean_square(x)

    found = Planned(adamw([TensorType((4, 64), float32)], [(64, 64)] * 8, loss, options=KEEP), 0.9)
    assert found.context.memory is not None and len(found.context.memory.inplace) == len(found.updates)
    same_values(found)


@pytest.mark.parametrize("split", [{0: "dp"}, {1: "dp"}], ids=["rows", "columns"])
def test_collectives_are_not_repeated(split: dict[int, str | tuple[str, ...]]) -> None:
    def loss(data: Sequence[Value], params: Sequence[Value]) -> Value:
        x, own = data[0], iter(params)
        for _ in range(4):
            x = OPS["add"](x, dense(OPS["gelu"](dense(x, own), approximate="none"), own))
        return mean_square(x)

    step = adamw([TensorType((512, 32), float32)], [(128, 32), (128,), (32, 128), (32,)] * 4, loss, options=KEEP)
    config = SignalConfig(mesh={"dp": 2}, shard=ShardConfig(dims=split))
    nodes = tuple(
        replace(n, signal="s") if n.op.name in ("gelu", "linear") and n.outputs[0].type.shape == (512, 128) else n for n in step.nodes
    )
    step = replace(step, nodes=nodes, signals=(("s", config),))
    free, found = Planned(step, None, 2), Planned(step, 0.6, 2)
    comms = [Counter(n.op.name for n in plan.final.nodes if n.op.effect == "comm") for plan in (free, found)]
    assert comms[0] == comms[1] and found.again and found.peak <= found.limit
    expected = simulate_graph(step, arrays(step), (), 2)
    for a, b in zip(expected, simulate_graph(found.step, arrays(step), (), 2), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


# -- gt.memory_limit


def test_a_block_and_a_call() -> None:
    config = gt.get_config()
    with gt.memory_limit("20GiB"):
        assert config.memory_limit == 20 * 2**30
        with gt.memory_limit(5):
            assert config.memory_limit == 5
        assert config.memory_limit == 20 * 2**30
        with gt.memory_limit(None):
            assert config.memory_limit is None
    assert config.memory_limit is None
    gt.memory_limit("1.5 MB")
    assert config.options.memory_limit == 1_500_000
    with pytest.raises(RuntimeError, match="stop"), gt.memory_limit(7):
        raise RuntimeError("stop")
    assert config.memory_limit == 1_500_000
    for wrong, kind in ((0, ValueError), ("much", ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(kind, match="^memory_limit: expected a number of bytes from 1 up, or text such as '20GiB'"):
            gt.memory_limit(wrong)  # type: ignore[arg-type]
    assert config.memory_limit == 1_500_000


def step(net: nn.Module, x: gt.Tensor) -> tuple[gt.Tensor, list[np.ndarray]]:
    for p in net.parameters():
        p.grad = None
    loss = (net(x) ** 2).mean()
    loss.backward()
    return loss, [p.grad.numpy() for p in net.parameters() if p.grad is not None]


def test_explain_says_what_is_recomputed_on_one_worker() -> None:
    gt.manual_seed(0)
    net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(32, 32), nn.GELU())))
    x = gt.randn(2048, 32)
    x.numpy()
    _, expected = step(net, x)
    with gt.memory_limit("2.4MB"):
        loss, found = step(net, x)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(expected, found, strict=True))
    notes = gt.explain(loss).notes
    assert any("x gelu f32[2048, 32]" in n and __file__.rpartition("/")[2] in n for n in notes)
    assert not gt.explain(step(net, x)[0]).notes


def test_a_jitted_step_is_planned_anew_under_another_limit() -> None:
    net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(32, 32), nn.GELU())))
    x = gt.randn(2048, 32)
    call = gt.jit(lambda x: (net(x) ** 2).mean())
    for _ in range(4):
        free = call(x)
    assert not gt.explain(free).notes
    with gt.memory_limit(1):
        assert gt.explain(call(x)).notes and call(x).item() == pytest.approx(free.item())
