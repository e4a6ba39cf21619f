"""Every op's second derivative, through the vjps of what its vjp is made of, against finite differences of its first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gt.ir.opdef import OPS, OpDef, emitting
from gt.ir.types import complex128, float64
from gt.passes.autodiff import backpropagate
from tests.property.eager import Array, Recorded
from tests.property.samples import SAMPLES, SECOND_ONLY, Sample, cases

Arrays = Sequence[np.ndarray]

# torch gives these no gradient either; steps of optimizers are taken without a tape, and the rest stands where no gradient comes from
WITHOUT = {n for n in OPS if n.endswith("_step") or "bessel_j" in n or "bessel_y" in n or "bessel_k" in n or "_polynomial_" in n}
WITHOUT |= {"airy_ai", "grad", "cross_entropy_grad", "alias", "mask_pad", "pad_end", "partial_from_part", "partial_from_whole", "reshard", "shard_slice", "unpad"}
NAMES = sorted(SAMPLES.keys() - WITHOUT)


def test_no_op_is_a_silent_constant() -> None:
    """What gives floats has a gradient: a vjp that used an op without one would have a wrong derivative."""
    silent = set()
    for name in sorted(SAMPLES.keys() - WITHOUT):
        op = OPS[name]
        if op.vjp is not None or op.decompose is not None:
            continue
        for sample in cases(op, 0):
            types = op.infer_types(sample.types, tuple(sample.attrs.items()))
            if any(t.dtype.is_differentiable for t in types) and any(t.dtype.is_differentiable for t in sample.types):
                silent.add(name)
    assert not silent


def first(op: OpDef, sample: Sample, arrays: Arrays, weights: Arrays, ways: Arrays) -> tuple[Any, float, list[Array], list[Array]]:
    """Give sum(way * gradient), and what it was computed with."""
    emitter = Recorded()
    with emitting(emitter):
        inputs = [Array(a, t) for a, t in zip(arrays, sample.types, strict=True)]
        outputs = emitter.emit(op, inputs, tuple(sample.attrs.items()))
        seeds = [Array(w, o.type) if w is not None else None for w, o in zip(weights, outputs, strict=True)]
        start = {o: s for o, s in zip(outputs, seeds, strict=True) if s is not None}
        found = backpropagate(list(emitter.steps), start, inputs, lambda v: v)
    value = sum(float(np.sum(found[x].data * np.conj(w)).real) for x, w in zip(inputs, ways, strict=True) if x in found)
    return emitter, value, inputs, [found.get(x) for x in inputs]


@pytest.mark.parametrize("name", NAMES)
def test_second_derivative_equals_finite_differences(name: str) -> None:
    op, rng, step = OPS[name], np.random.default_rng(3), 1e-5
    for sample in cases(op, 3):
        dtypes = [d for d in sample.dtypes if d.is_differentiable]
        types = op.infer_types(sample.types, tuple(sample.attrs.items()))
        differentiable = [t for t in types if t.dtype.is_differentiable]
        if not (sample.gradient and sample.smooth and dtypes and set(dtypes) <= {float64, complex128} and differentiable):
            continue
        if sum(t.numel for t in sample.types) > 200:
            continue

        def draw(t: Any) -> Any:
            if not t.dtype.is_differentiable:
                return None
            return np.asarray(rng.normal(size=t.shape) + (1j * rng.normal(size=t.shape) if t.dtype.is_complex else 0), t.dtype.numpy)

        base, weights, ways = sample.operands(), [draw(t) for t in types], [draw(t) for t in sample.types]
        if name in SECOND_ONLY:
            ways[0] = np.zeros(sample.types[0].shape)
        ways = [w if w is not None else np.zeros(t.shape) for w, t in zip(ways, sample.types, strict=True)]
        emitter, _, inputs, grads = first(op, sample, base, weights, ways)
        with emitting(emitter):
            start = {g: Array(w, g.type) for g, w in zip(grads, ways, strict=True) if g is not None}
            found = backpropagate(list(emitter.steps), start, inputs, lambda v: v)
        for i, x in enumerate(inputs):
            if not x.type.dtype.is_differentiable or (i == 0 and name in SECOND_ONLY):
                continue
            way = draw(x.type)
            down, here, up = (
                first(op, sample, [*base[:i], np.asarray(base[i] + by * step * way), *base[i + 1 :]], weights, ways)[1] for by in (-1, 0, 1)
            )
            if abs(up - 2 * here + down) > 1e-6 * (1 + abs(here)):
                continue
            have = float(np.sum(found[x].data * np.conj(way)).real) if x in found else 0.0
            assert have == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-4), f"{name} {sample.types} {sample.attrs} operand {i}: {base}"
