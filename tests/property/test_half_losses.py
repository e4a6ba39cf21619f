"""Losses of halves, however they are written and split, equal torch's: what fuses, chunks or widens them fits what is there or leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt import ShardConfig, SignalConfig
from gt import session as sessions
from gt.passes.pipeline import DEFAULT, Pipeline
from gt.passes.plan import plan_graph
from gt.runtime import simulated
from gt.runtime.simulated import SimulatedSession

FUSED = str(DEFAULT).replace("fuse_loss", "fuse_loss{least=0}")
PIPELINES = {
    "default": DEFAULT,
    "fused": Pipeline.parse(FUSED),
    "chunked": Pipeline.parse(FUSED.replace("chunk_rows", "chunk_rows{above=1,target=64}")),
}
LOSSES = {
    "mean": lambda F, z, y, w: F.cross_entropy(z, y),
    "sum": lambda F, z, y, w: F.cross_entropy(z, y, reduction="sum"),
    "none": lambda F, z, y, w: (F.cross_entropy(z, y, reduction="none") * 0.5).sum(),
    "ignore": lambda F, z, y, w: F.cross_entropy(z, y, ignore_index=1),
    "smooth": lambda F, z, y, w: F.cross_entropy(z, y, label_smoothing=0.1),
    "weight": lambda F, z, y, w: F.cross_entropy(z, y, w),
    "nll": lambda F, z, y, w: F.nll_loss(F.log_softmax(z, 1), y),
    "nll sum": lambda F, z, y, w: F.nll_loss(F.log_softmax(z, 1), y, reduction="sum"),
    "nll weight": lambda F, z, y, w: F.nll_loss(F.log_softmax(z, 1), y, w),
    "read twice": lambda F, z, y, w: F.cross_entropy(z, y) + F.log_softmax(z, 1).square().mean(),
    "two": lambda F, z, y, w: F.cross_entropy(z, y) + 0.5 * F.cross_entropy(z, y, reduction="sum"),
}
DTYPES = {"bfloat16": 2e-2, "float16": 3e-3}
Split = tuple[int, tuple[int, ...]] | None


@st.composite
def splits(draw: st.DrawFn, workers: int, dims: int) -> Split:
    """An axis and the workers it is split over, in any order; or whole."""
    if workers == 1 or draw(st.integers(0, 4)) == 0:
        return None
    who = draw(st.permutations(range(workers)))[: draw(st.integers(2, workers))]
    return draw(st.integers(0, dims - 1)), tuple(who)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    gt.disconnect()
    gt.get_config().clear()
    yield
    gt.get_config().clear()


@pytest.mark.timeout(300)
@settings(max_examples=150)
@given(st.data())
def test_the_loss_of_halves_is_torchs(data: st.DataObject) -> None:
    draw = data.draw
    workers = draw(st.integers(1, 4), "workers")
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=2), "rows"))
    features, classes = draw(st.integers(1, 5), "features"), draw(st.integers(2, 9), "classes")
    dtype, loss = draw(st.sampled_from(list(DTYPES)), "dtype"), draw(st.sampled_from(list(LOSSES)), "loss")
    pipeline = draw(st.sampled_from(list(PIPELINES)), "pipeline")
    inputs, weights, head = draw(splits(workers, len(shape) + 1)), draw(splits(workers, 2)), draw(splits(workers, len(shape) + 1), "head")
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    x, w, y = rng.normal(size=(*shape, features)), rng.normal(size=(classes, features)), rng.integers(0, classes, shape)
    each = rng.uniform(0.5, 2.0, classes).astype(np.float32)

    def step(lib: Any, place: Any, scope: Any) -> list[np.ndarray]:
        half = getattr(lib, dtype)
        a, b = place(lib.tensor(x, dtype=lib.float32), inputs, "inputs"), place(lib.tensor(w, dtype=lib.float32), weights, "weights")
        a, b = a.to(half).detach().requires_grad_(), b.to(half).detach().requires_grad_()
        with scope():
            z = lib.nn.functional.linear(a, b)
            value = LOSSES[loss](lib.nn.functional, z.view(-1, classes).float(), lib.tensor(y).view(-1), lib.tensor(each))
        value.backward()
        return [np.float64(t.detach().float().numpy()) for t in (value, a.grad, b.grad)]

    want = step(torch, lambda t, split, name: t, ExitStack)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated, "plan_graph", partial(plan_graph, pipeline=PIPELINES[pipeline]))
        gt.get_config().clear()
        for name, split in (("inputs", inputs), ("weights", weights), ("head", head)):
            if split is not None:
                gt.register_config(name, SignalConfig(shard=ShardConfig(axis=split[0], workers=split[1])))
        with sessions.pinned(SimulatedSession(workers)):
            got = step(
                gt,
                lambda t, split, name: t if split is None else gt.signal.tensor(t, name=name),
                lambda: ExitStack() if head is None else gt.signal.context("head"),
            )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=4 * DTYPES[dtype], atol=4 * DTYPES[dtype])
