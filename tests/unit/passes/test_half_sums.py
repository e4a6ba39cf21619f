"""Sums of float16 and bfloat16 over workers: added up in float32 and rounded once, as one worker does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import gt
from gt import nn, session
from gt.config import ShardConfig, SignalConfig
from gt.runtime.simulated import SimulatedSession

F = nn.functional


@pytest.fixture(autouse=True)
def _signals(alone: None) -> None:
    gt.register_config("rows", SignalConfig(shard=ShardConfig(axis=0)))
    gt.register_config("columns", SignalConfig(shard=ShardConfig(axis=1)))


def rows(x: gt.Tensor) -> gt.Tensor:
    return gt.signal.tensor(x, name="rows")


def half(*shape: int, seed: int = 0, dtype: gt.dtype = gt.bfloat16) -> gt.Tensor:
    return gt.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32)).to(dtype)


@contextmanager
def workers(count: int) -> Iterator[SimulatedSession]:
    ran = SimulatedSession(count)
    with session.pinned(ran):
        yield ran


def reduced(ran: SimulatedSession) -> list[str]:
    """Give the dtypes in which sums were added up."""
    kinds = ("all_reduce", "reduce_scatter")
    return [c.type.dtype for run in ran.runs for c in run.plan.programs[0].collectives if c.kind in kinds]


def ones(*shape: int) -> gt.Tensor:
    return rows(gt.ones(*shape, dtype=gt.bfloat16))


def weight_gradient() -> gt.Tensor:
    w = gt.ones(771, 1, dtype=gt.bfloat16).requires_grad_()
    (ones(771, 771) @ w).sum().backward()
    assert w.grad is not None
    return w.grad[:1]


def linear_gradient() -> gt.Tensor:
    w = gt.ones(2, 3, dtype=gt.bfloat16).requires_grad_()
    F.linear(ones(257, 3, 3), w).sum().backward()
    assert w.grad is not None
    return w.grad[:1]


def accumulated() -> gt.Tensor:
    w = gt.ones(3, dtype=gt.bfloat16).requires_grad_()
    (ones(385, 3) * w).sum().backward()
    (ones(386, 3) * w).sum().backward()
    assert w.grad is not None
    return w.grad


@pytest.mark.parametrize(
    "make",
    [
        lambda: ones(771, 2).sum(0), lambda: ones(771, 4).t() @ ones(771, 4), weight_gradient, linear_gradient, accumulated,
        lambda: gt.cumsum(ones(771), 0)[-1:], lambda: F.nll_loss(-ones(771, 5), gt.zeros(771, dtype=gt.int64), reduction="sum"),
        lambda: gt.zeros(2, 3, dtype=gt.bfloat16).index_add(0, gt.zeros(771, dtype=gt.int64), ones(771, 3))[0],
    ],
)  # fmt: skip
def test_771_ones_are_772_however_they_are_split(make: Callable[[], gt.Tensor]) -> None:
    with workers(3):
        assert set(np.ravel(make().float().numpy())) == {772.0}


def test_parts_may_leave_the_range_of_float16_where_their_sum_does_not() -> None:
    for given in itertools.permutations([60000.0, 60000.0, -60000.0]):
        with workers(3) as ran:
            assert rows(gt.tensor([[v] for v in given], dtype=gt.float16)).sum(0).tolist() == [60000.0]
            assert reduced(ran) == ["float32"]


def norm(w: gt.Tensor) -> gt.Tensor:
    return F.layer_norm(rows(half(9, 6).to(w.dtype)), (6,), w, w).square().sum()


def embedded(w: gt.Tensor) -> gt.Tensor:
    index = rows(gt.from_numpy(np.random.default_rng(0).integers(0, 3, (9, 5))))
    return (F.embedding(index, w.expand(3, 6)) * half(6, seed=3)).sum()


def twice(w: gt.Tensor) -> gt.Tensor:
    x = rows(half(9, 6))
    return ((x * w).tanh() + (x.square() * (w * 0.5))).sum()


@pytest.mark.parametrize("dtype", [gt.bfloat16, gt.float16])
@pytest.mark.parametrize("loss", [norm, embedded, twice])
def test_gradients_of_halves_are_those_of_one_worker(loss: Callable[[gt.Tensor], gt.Tensor], dtype: gt.dtype) -> None:
    found = []
    for count in (1, 3):
        with workers(count) as ran:
            w = half(6, seed=1, dtype=dtype).requires_grad_()
            loss(w).backward()
            assert w.grad is not None and w.grad.dtype is dtype
            found.append(w.grad.float().numpy())
            assert set(reduced(ran)) <= {"float32"}
    np.testing.assert_allclose(found[1], found[0], rtol=2.0**-6, atol=2.0**-4)


def test_a_row_parallel_layer_and_its_sequence_parallel_reader() -> None:
    for then in (None, "rows"):
        with workers(4) as ran:
            x, w = gt.signal.tensor(half(8, 64), name="columns"), gt.signal.tensor(half(16, 64, seed=1), name="columns")
            y = F.linear(x, w)
            y = y if then is None else gt.signal.tensor(y, name=then)
            want = half(8, 64).float().numpy() @ half(16, 64, seed=1).float().numpy().T
            rounded = gt.from_numpy(want).to(gt.bfloat16).float().numpy()
            np.testing.assert_array_equal(y.float().numpy(), rounded)
            assert reduced(ran) == ["float32"]


def test_mixed_precision_reduces_a_gradient_once_in_float32() -> None:
    with workers(4) as ran:
        w = gt.ones(3, 8).requires_grad_()
        x = rows(gt.ones(16, 8))
        with gt.autocast("cuda", dtype=gt.bfloat16):
            y = F.linear(x, w)
        y.float().sum().backward()
        assert w.grad is not None and w.grad.numpy().tolist() == [[16.0] * 8] * 3
        assert reduced(ran) == ["float32"]


def test_what_one_worker_alone_has_needs_no_float32() -> None:
    with workers(2) as ran:
        table = half(8, 4, dtype=gt.float16)
        found = F.embedding(gt.tensor([0, 7, 3]), rows(table)).numpy()
        np.testing.assert_array_equal(found, table.numpy()[[0, 7, 3]])
        assert set(reduced(ran)) == {"float16"}
