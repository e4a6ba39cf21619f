"""What backward reads of a norm over halves: the halves."""

from __future__ import annotations

import numpy as np
import pytest

import gt
from gt import session as sessions
from gt.ir.evaluate import as_dtype, evaluate
from gt.ir.graph import Graph, Value
from gt.ir.mesh import Mesh
from gt.ir.opdef import OPS
from gt.ir.types import TensorType, bfloat16, float32
from gt.passes.context import Context
from gt.passes.pipeline import DEFAULT, Pipeline
from gt.passes.plan import Cluster
from gt.runtime.simulated import SimulatedSession
from gt.scripted import ScriptSession, ShapesOnly
from tests.property.sharding_graphs import Recorder, record

SHAPE = (16, 32, 32, 32)
HALVES, WIDE = 2 * 16 * 32**3, 4 * 16 * 32**3  # bytes
BEFORE = "autodiff,decompose,simplify,cse,dce"
ONE = Mesh("all", (("w", 1),), (0,))


def train(layers: int = 3) -> list[float]:
    gt.manual_seed(0)
    blocks = [m for _ in range(layers) for m in (gt.nn.Conv2d(32, 32, 3, padding=1, bias=False), gt.nn.BatchNorm2d(32), gt.nn.ReLU())]
    model = gt.nn.Sequential(*blocks)
    optim = gt.optim.SGD(model.parameters(), lr=0.1)
    x, losses = gt.randn(*SHAPE), []
    for _ in range(3):
        with gt.autocast("cpu", dtype=gt.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optim.step()
        optim.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def step() -> Graph:
    """The graph of a training step, as it is recorded."""
    gt.disconnect()
    session = ScriptSession(ShapesOnly(), Cluster((0,)))
    with sessions.pinned(session):
        train()
    return next(reversed(session.found.values())).graph


def kept(graph: Graph) -> list[int]:
    """Give the bytes of each value of a layer's size that is read much later than it is made."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    return [
        v.type.nbytes
        for v, uses in graph.uses.items()
        if v.type.nbytes >= HALVES and v in graph.producer and max(place[u] for u, _ in uses) > place[graph.producer[v]] + 30
    ]


def test_a_norm_over_halves_keeps_halves(step: Graph) -> None:
    wide = Pipeline.parse(BEFORE).run(step, Context(ONE))
    narrow = Pipeline.parse(f"{BEFORE},keep_narrow").run(step, Context(ONE), verify="each")
    assert kept(wide).count(WIDE) == 3, "each norm's differences from the mean"
    assert WIDE not in kept(narrow) and sum(kept(narrow)) < sum(kept(wide)), "but the convolution's result"


def test_the_same_bits(step: Graph) -> None:
    rng = np.random.default_rng(0)
    inputs = [as_dtype(rng.normal(size=v.type.shape) * 0.1, v.type.dtype) for v in step.inputs]
    scalars = [as_dtype(1, v.type.dtype) for v in step.scalars]
    want, got = (evaluate(Pipeline.parse(p).run(step, Context(ONE)), inputs, scalars) for p in (BEFORE, f"{BEFORE},keep_narrow"))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_float32_model_keeps_what_it_kept() -> None:
    graph = Pipeline.parse(BEFORE)
    gt.disconnect()
    session = ScriptSession(ShapesOnly(), Cluster((0,)))
    with sessions.pinned(session):
        x = gt.randn(*SHAPE, requires_grad=True)
        gt.nn.BatchNorm2d(32)(x).square().mean().backward()
        x.grad.sum().item()
    step = graph.run(next(reversed(session.found.values())).graph, Context(ONE))
    assert Pipeline.parse("keep_narrow").run(step, Context(ONE)) is step


def test_on_workers_as_on_one() -> None:
    losses = []
    for workers in (1, 2):
        gt.disconnect()
        with sessions.pinned(SimulatedSession(workers)):
            losses.append(train(1))
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_what_an_update_overwrites_is_not_read_after_it() -> None:
    """How far a parameter in halves moved is told by its wide copy: it would else have to stay beside what replaces it."""

    def body(_: Recorder, p: Value, change: Value, x: Value) -> list[Value]:
        wide = OPS["cast"](OPS["permute"](p, dims=(1, 0)), dtype=float32)
        h, new = OPS["matmul"](x, wide), OPS["add"](p, change)
        for _ in range(30):
            h = OPS["tanh"](OPS["neg"](h))
        moved = OPS["sub"](OPS["cast"](OPS["permute"](new, dims=(1, 0)), dtype=float32), wide)
        return [new, h, OPS["sum"](moved, dims=(0, 1), keepdim=False, dtype=float32)]

    halves = TensorType((1024, 1024), bfloat16)
    graph = record([halves, halves, TensorType((64, 1024), float32)], body, donated=[0])
    context = Context(ONE)
    DEFAULT.run(graph, context)
    assert context.memory is not None and context.memory.overwritten == {0}
