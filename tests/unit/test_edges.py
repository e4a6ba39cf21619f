"""Edges of ordinary functions that torch has an answer for: nothing to reduce, to attend to or to normalise; small integers; draws."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

import gt


class Sequence:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> float:
        return [0.5, 1][at]


EDGES = [
    *[f"m.tensor([1, 2, -3], dtype=m.{d}) / 2" for d in ("int8", "int16", "int32", "int64")],
    "m.tensor([1, 2], dtype=m.int16).div(2)", "m.div(m.tensor([1, 2], dtype=m.int16), True)", "7 / m.tensor([1, 3], dtype=m.int16)",
    "m.tensor([7, -7], dtype=m.int16) // 2", "m.tensor([3, 5], dtype=m.int16) * 2", "m.tensor([3, 5], dtype=m.int16) / 2.5",
    *[f"m.median(m.ones(0, dtype=m.{d}))" for d in ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32")],
    *[f"m.nanmedian(m.ones(0, dtype=m.{d}))" for d in ("uint8", "int16", "int32", "float64")],
    *[f"m.nn.functional.threshold(m.arange(0, 4).to(m.{d}), 0.9, 2.0)" for d in ("uint8", "int16", "int64", "float32", "float16")],
    "m.nn.functional.scaled_dot_product_attention(m.ones(2, 3, 4), m.ones(2, 0, 4), m.ones(2, 0, 4))",
    "m.nn.functional.scaled_dot_product_attention(m.ones(1, 2, 3, 4), m.ones(1, 2, 0, 4), m.ones(1, 2, 0, 4))",
    "m.nn.functional.scaled_dot_product_attention(m.ones(2, 0, 4), m.ones(2, 0, 4), m.ones(2, 0, 4))",
    "m.nn.functional.scaled_dot_product_attention(m.ones(2, 0, 4), m.ones(2, 3, 4), m.ones(2, 3, 4))",
    "m.tensor([m.ones(1), m.ones(1, 1, dtype=m.int64) * 2])", "m.tensor([[m.tensor([1]), 3], [2, m.tensor(4.5)]])",
    *[f"m.tensor({d})" for d in ("deque([1, 2.])", "[deque([1, 2])]", "deque([deque([True])])", "array('f', [1, 2])", "Sequence()",
      "deque([m.ones(1), 2])", "bytearray(b'ab')", "memoryview(b'ab')", "deque()", "(range(2), deque([3, 4]))")],
    "m.asarray([1, 2], dtype=m.float64, requires_grad=True).detach()", "m.asarray(m.ones(2), copy=True).add_(1)", "m.asarray(m.ones(2), copy=False)",
    "m.tensor(2.5).mT", "m.tensor(2.5).mH", "m.tensor(1 + 2j).adjoint().imag",
    "m.max(m.tensor([[1, 5], [3, 2]]), dim=m.tensor(0))[1]", "m.min(m.tensor([[1, 5], [3, 2]]), m.tensor(2))",
    *[f"m.linalg.cond(m.ones(2, 0, 0, dtype=m.complex64), {p})" for p in ("None", "-2", "1", "'fro'")],
    *[f"m.linalg.lu(m.tensor([[1., 2], [2, 4]]))[{i}]" for i in range(3)], "m.linalg.lu(m.zeros(3, 2))[1]",
]  # fmt: skip


@pytest.mark.parametrize("text", EDGES)
def test_value_and_dtype_are_torchs(text: str) -> None:
    theirs, ours = (eval(text, {"m": m, "deque": deque, "array": array, "Sequence": Sequence}) for m in (torch, gt))
    assert str(ours.dtype).removeprefix("gt.") == str(theirs.dtype).removeprefix("torch.") and tuple(ours.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(ours.double().numpy(), theirs.double().numpy(), rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 2), (0, 2, 3), (0, 2, 3, 3), (2, 3, 0)])
def test_batch_norm_of_nothing_has_gradients_of_zero(shape: tuple[int, ...]) -> None:
    def story(m: Any) -> list[Any]:
        layer, x = m.nn.BatchNorm1d(shape[1]) if len(shape) < 4 else m.nn.BatchNorm2d(shape[1]), m.ones(shape, requires_grad=True)
        layer(x).sum().backward()
        return [layer.weight.grad, layer.bias.grad, x.grad, layer.running_mean, layer.running_var, layer.num_batches_tracked]

    for theirs, ours in zip(story(torch), story(gt), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_a_sequence_of_no_steps_is_refused(kind: str) -> None:
    for m in (torch, gt):
        for batch_first, shape in ((False, (0, 1, 2)), (True, (1, 0, 2)), (False, (0, 2))):
            with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
                getattr(m.nn, kind)(2, 3, batch_first=batch_first)(m.ones(shape))


DRAWS = {
    "bernoulli": lambda m, p: m.bernoulli(p),
    "method": lambda m, p: p.bernoulli(),
    "normal by mean": lambda m, p: m.normal(p, 1.0),
    "normal by std": lambda m, p: m.normal(0.0, p),
    "normal by both": lambda m, p: m.normal(p, p),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_whose_chances_need_a_gradient_need_one_that_is_zero(draw: str) -> None:
    for m in (torch, gt):
        p = m.full((3,), 0.5, requires_grad=True)
        drawn = DRAWS[draw](m, p)
        assert drawn.requires_grad
        (drawn.sum() + 2 * p.sum()).backward()
        assert p.grad.tolist() == [2.0, 2.0, 2.0]
        with m.no_grad():
            assert not DRAWS[draw](m, p).requires_grad
        assert not DRAWS[draw](m, m.full((3,), 0.5)).requires_grad


def test_refusals_are_torchs() -> None:
    def delete(m: Any) -> None:
        del m.ones(2)[0]

    for call, kind, text in (
        (delete, TypeError, "does not support deleting items"),
        (lambda m: m.cat(m.ones(2)), TypeError, "must be tuple of Tensors, not Tensor"),
        (lambda m: m.from_numpy(np.ones(2, ">i4")), ValueError, "byte order different from the native"),
        (lambda m: m.asarray([1], copy=False), ValueError, "can't alias arbitrary sequence into a tensor"),
        (lambda m: m.asarray(m.ones(1), dtype=m.float64, copy=False), ValueError, "can't alias tensor with dtype 'Float' into dtype 'Double'"),
        (lambda m: m.nanmean(m.ones(2), dtype=m.int64), RuntimeError, "could not infer output dtype.*Got: Long"),
        (lambda m: m.nanmean(m.ones(2, dtype=m.uint8)), RuntimeError, "floating point or complex dtype but got Byte"),
        (lambda m: m.ones(2, 2).sum(True), TypeError, "invalid combination|must be (int|tuple of ints), not bool"),
        (lambda m: m.ones(2, 2).unsqueeze(True), TypeError, "argument 'dim'.* must be int, not bool"),
        (lambda m: m.ones(2, requires_grad=True).exp().sum().backward(inputs=[]), RuntimeError, "`inputs` argument to `backward.*cannot be empty"),
        (lambda m: m.nn.EmbeddingBag(3, 2, mode="max", scale_grad_by_freq=True)(m.tensor([[1]])), ValueError, "max mode does not support scaling"),
        (lambda m: m.nn.LSTMCell(2, 3)(m.ones(1, 2), m.ones(1, 3)), TypeError, "argument 'hx'.* must be tuple of Tensors, not Tensor"),
        (lambda m: m.linalg.lu_factor(m.tensor([[1.0, 2], [2, 4]])).pivots.tolist(), RuntimeError, r"U\[2,2\] is zero"),
    ):
        for m in (torch, gt):
            with pytest.raises(kind, match=text):
                call(m)


def test_asarray_copies_when_told_and_keeps_the_history() -> None:
    for m in (torch, gt):
        x = m.ones(2, requires_grad=True)
        y = x * 2
        same, other = m.asarray(y), m.asarray(y, copy=True)
        assert same is y and other is not y and m.asarray(x) is x
        other.mul_(3)
        (other.sum() + y.sum()).backward()
        assert y.tolist() == [2.0, 2.0] and x.grad.tolist() == [8.0, 8.0]


HALVES = {
    "softshrink": lambda m, x: m.nn.functional.softshrink(x, 0.13),
    "celu": lambda m, x: m.nn.functional.celu(x, 1.3),
    "glu": lambda m, x: m.nn.functional.glu(x.reshape(-1, 2)),
    "round to hundredths": lambda m, x: x.round(decimals=2),
    "round to tens": lambda m, x: (x * 32).round(decimals=-1),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", HALVES)
def test_halves_are_rounded_once(name: str, dtype: str) -> None:
    start = np.concatenate([np.linspace(-4, 4, 2001), np.linspace(-0.15, 0.15, 999)])
    x = gt.tensor(start).to(getattr(gt, dtype))
    exact = HALVES[name](gt, x.double()).to(x.dtype)
    assert HALVES[name](gt, x).equal(exact)
