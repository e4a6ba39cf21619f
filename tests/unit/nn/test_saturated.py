"""Losses, activations and limits where they saturate, against torch: values and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import gt

INF = math.inf
EDGES = [-INF, -200.0, -1.0, -0.5, -0.0, 0.0, 1e-30, 0.5, 1.0, 2.0, 50.0, INF, math.nan]
ONE = (
    "F.logsigmoid(x)", "F.softplus(x)", "F.softplus(x, 2.0, 5.0)", "F.gelu(x)", "F.silu(x)", "F.mish(x)", "F.hardshrink(x)",
    "F.threshold(x, 1.0, 2.0)", "x.sigmoid()", "x.tanh()", "x.clamp(min=0)", "x.clamp(max=0.5)", "x.clamp_min(0.5)", "x.sinc()",
    "x.round()", "x.sqrt()", "x.rsqrt()", "x ** 0", "x ** 0.0", "0.0 ** x", "torch.xlogy(x, x)",
    "(1 / x) * x.sign()", "(x.floor() * x).sqrt()",
)  # fmt: skip
TWO = (
    "torch.clamp(x, y)", "torch.clamp(x, max=y)", "torch.maximum(x, y)", "torch.logaddexp(x, y)", "torch.logaddexp2(x, y)",
    "torch.xlogy(x, y)", "torch.special.xlog1py(x, y)", "F.smooth_l1_loss(x, y, reduction='none')",
    "F.smooth_l1_loss(x, y, reduction='none', beta=0.0)", "F.huber_loss(x, y, reduction='none', delta=0.5)",
    "F.kl_div(x, y, reduction='none')", "F.poisson_nll_loss(x, y, reduction='none')",
    "F.gaussian_nll_loss(x, y, y.abs(), reduction='none')", "torch.div(x, y, rounding_mode='trunc')",
)  # fmt: skip
ROWS = {
    "zeros": [[0.0, 0.0], [0.0, 2.0]], "ties": [[1.0, 1.0, 0.0], [2.0, 2.0, 2.0]], "infinite": [[INF, 1.0, 2.0], [-INF, -INF, -INF]],
    "one": [[3.0]],
}  # fmt: skip
OVER_ROWS = (
    "x.norm()", "x.norm(dim=1)", "x.norm(1, dim=1)", "x.var(1)", "x.std(1)", "x.median()", "x.log_softmax(1)", "x.logsumexp(1)",
    "F.normalize(x)", "F.cosine_similarity(x, torch.zeros_like(x))", "F.pairwise_distance(x, x)", "x.amax(1)",
)  # fmt: skip
FINITE_ROWS = ("x.prod()", "x.prod(1)", "x.cumprod(1)", "F.lp_pool1d(x[None], 2.0, 1)", "F.multi_margin_loss(x, torch.zeros_like(x[:, 0]).long())")


def outcome(module: Any, source: str, *data: Any, dtype: str = "float32") -> list[np.ndarray | None]:
    leaves = [module.tensor(d, dtype=getattr(module, dtype), requires_grad=True) for d in data]
    names = {"torch": module, "F": module.nn.functional} | dict(zip("xy", leaves, strict=False))
    out = eval(source, names)
    out.backward(module.ones_like(out))
    return [out.detach().numpy(), *(None if t.grad is None else t.grad.numpy() for t in leaves)]


def same(source: str, *data: Any, dtype: str = "float32") -> None:
    for got, want in zip(outcome(gt, source, *data, dtype=dtype), outcome(torch, source, *data, dtype=dtype), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_binary_cross_entropy(dtype: str) -> None:
    p = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1e-14, 1e-14, 0.5, 1 - 6e-8]
    same("F.binary_cross_entropy(x, y, reduction='none')", p, [0.0, 1.0, 0.5, 0.0, 1.0, 0.5, 0.0, 1.0, 0.3, 0.0], dtype=dtype)
    logits, target = [-30.0, -40.0, 40.0, 90.0, -90.0, 200.0], [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    same("F.binary_cross_entropy(torch.sigmoid(x), y)", logits, target, dtype=dtype)


@pytest.mark.parametrize("source", ONE)
def test_one_operand(source: str) -> None:
    same(source, EDGES)


@pytest.mark.parametrize("source", TWO)
def test_two_operands(source: str) -> None:
    pairs = [(a, b) for a in EDGES for b in EDGES]
    same(source, [a for a, _ in pairs], [b for _, b in pairs])


@pytest.mark.parametrize("rows", ROWS)
def test_rows(rows: str) -> None:
    for source in OVER_ROWS + (FINITE_ROWS if rows != "infinite" else ()):
        same(source, ROWS[rows])
