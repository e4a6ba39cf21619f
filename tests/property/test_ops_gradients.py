"""Every op's vjp against torch.autograd on the lowering, and against finite differences in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gt.ir.ops  # noqa: F401 - fills the table
from gt.ir.evaluate import as_dtype, evaluate_node
from gt.ir.opdef import OPS, OpDef
from gt.ir.types import complex64, complex128, float64
from tests.property import torch_side
from tests.property.eager import gradients
from tests.property.samples import SAMPLES, SECOND_ONLY, Sample, cases

seeds = st.integers(0, 2**20)
# lowerings torch can't differentiate, or differentiates wrongly, or that make a saved result anew (attention's log-sums);
# finite differences cover them
NOT_BY_TORCH = frozenset({"attention_backward", "embedding_backward", "dropout", "layer_norm_backward", "log_softmax_backward"})
NOT_BY_TORCH |= SECOND_ONLY | {"floor_divide"}
FIRST_RESULT_ONLY = frozenset({"layer_norm", "scaled_dot_product_attention"})  # torch passes no gradient through its other results
NAMES = sorted(n for n in SAMPLES if OPS[n].vjp is not None or OPS[n].decompose is not None)


def weights_for(op: OpDef, sample: Sample, rng: np.random.Generator) -> list[np.ndarray | None]:
    types = op.infer_types(sample.types, tuple(sample.attrs.items()))
    out: list[np.ndarray | None] = []
    for t in types:
        w = rng.normal(size=t.shape) + (1j * rng.normal(size=t.shape) if t.dtype.is_complex else 0)
        out.append(as_dtype(np.asarray(w), t.dtype) if t.dtype.is_differentiable else None)
    return out


def by_torch(op: OpDef, sample: Sample, weights: list[np.ndarray | None]) -> list[np.ndarray | None]:
    tensors = [torch_side.tensor(a, d) for a, d in zip(sample.operands(), sample.dtypes, strict=True)]
    wanted = [t.requires_grad_() for t in tensors if t.is_floating_point() or t.is_complex()]
    types = op.infer_types(sample.types, tuple(sample.attrs.items()))
    outs = torch_side.run(op, tensors, sample.attrs, types)
    pairs = [
        (o, torch_side.tensor(w, t.dtype))
        for o, w, t in zip(outs, weights, types, strict=True)
        if w is not None and o.requires_grad
    ]
    if not pairs:
        return [None] * len(tensors)
    found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [w for _, w in pairs], allow_unused=True))
    grads = [next(found) if t.requires_grad else None for t in tensors]
    return [None if g is None else torch_side.array(g) for g in grads]


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds)
@settings(max_examples=3, deadline=None)
def test_vjp_equals_torch(name: str, seed: int) -> None:
    op, rng = OPS[name], np.random.default_rng(seed)
    if op.torch is None or name in NOT_BY_TORCH:
        return
    for sample in cases(op, seed):
        floats = [d for d in sample.dtypes if d.is_differentiable]
        if not sample.gradient or not floats or not set(floats) <= {float64, complex64, complex128}:
            continue
        weights = weights_for(op, sample, rng)
        if name in FIRST_RESULT_ONLY:
            weights[1:] = [None] * (len(weights) - 1)
        if all(w is None for w in weights):
            continue
        got = gradients(op, sample.operands(), sample.types, sample.attrs, weights)
        tolerance = 1e-4 if complex64 in floats else 1e-9
        for i, (a, b) in enumerate(zip(got, by_torch(op, sample, weights), strict=True)):
            what = f"{name} {sample.types} {sample.attrs} operand {i}: {sample.operands()}"
            if a is None or b is None:
                assert not np.any(a if b is None and a is not None else b if b is not None else 0), (
                    f"{what}: {a} against {b}"
                )
            else:
                np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=what)


def directional(op: OpDef, sample: Sample, arrays: list[np.ndarray], weights: list[np.ndarray | None]) -> float:
    attrs = tuple(sample.attrs.items())
    outs = evaluate_node(op, arrays, attrs, op.infer_types(sample.types, attrs))
    return float(sum(np.sum(o * w) for o, w in zip(outs, weights, strict=True) if w is not None))


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds)
@settings(max_examples=3, deadline=None)
def test_vjp_equals_finite_differences(name: str, seed: int) -> None:
    op, rng, step = OPS[name], np.random.default_rng(seed), 1e-5
    for sample in cases(op, seed):
        floats = [d for d in sample.dtypes if d.is_differentiable]
        types = op.infer_types(sample.types, tuple(sample.attrs.items()))
        smooth = sample.gradient and sample.smooth and floats and set(floats) == {float64}
        if not smooth or not any(t.dtype is float64 for t in types) or sum(t.numel for t in sample.types) > 200:
            continue
        weights = weights_for(op, sample, rng)
        base: list[Any] = sample.operands()
        got = gradients(op, base, sample.types, sample.attrs, weights)
        for i, g in enumerate(got):
            if sample.dtypes[i] is not float64 or (i == 0 and name in SECOND_ONLY):
                continue
            way = rng.normal(size=base[i].shape)
            down, here, up = (
                directional(op, sample, [*base[:i], np.asarray(base[i] + by * step * way), *base[i + 1 :]], weights)
                for by in (-1, 0, 1)
            )
            if abs(up - 2 * here + down) > 1e-7 * (1 + abs(here)):  # a kink between: the larger of two values has changed
                continue
            want = (up - down) / (2 * step)
            have = 0.0 if g is None else float(np.sum(g * way))
            assert have == pytest.approx(want, rel=2e-5, abs=2e-5), (
                f"{name} {sample.types} {sample.attrs} operand {i}: {base}"
            )
