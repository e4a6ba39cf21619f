"""No op lets what stands in padding into the rows beside it, nor ends a run for it: NumPy's form and torch's.

The last row of each factor that passes becomes anything: zeros, NaN, infinities, the largest numbers. Rows before it must stay what
they were. Operands that an op refuses values of are masked (``insert_collectives``), so theirs stays. Next: ``test_ops_sharding``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt.ir.ops  # noqa: F401 - fills the table
from gt.ir.evaluate import evaluate_node
from gt.ir.factors import DimFactors, Rule
from gt.ir.opdef import OPS, OpDef
from gt.ir.types import DType, TensorType, bfloat16, float16
from tests.property import torch_side
from tests.property.samples import SAMPLES, Sample, cases
from tests.property.test_ops_values import compare

FILLS = (0.0, np.nan, np.inf, -np.inf, -1e4)  # of whole numbers: 0, 101, the largest, the smallest, 101


def filled(array: np.ndarray, dims: tuple[DimFactors, ...], factor: str, fill: float) -> np.ndarray:
    """Give the array with the last row of a factor that leads a dim replaced."""
    value: Any = fill
    if array.dtype.kind in "ui":
        value = {0.0: 0, np.inf: np.iinfo(array.dtype).max, -np.inf: np.iinfo(array.dtype).min}.get(fill, 101)
    elif array.dtype.kind == "b":
        value = fill != 0
    out = array.copy()
    for d, factors in enumerate(dims):
        if factors == (factor,):
            out[(*(slice(None),) * d, -1)] = value
    return out


def kept(array: np.ndarray, dims: tuple[DimFactors, ...], factor: str) -> np.ndarray:
    return array[tuple(slice(0, -1) if f == (factor,) else slice(None) for f in dims)]


def passing(rule: Rule) -> list[str]:
    """Name the factors of two rows or more that pass and are dims of their own wherever they stand."""
    alone = lambda f: all(f not in d or d == (f,) for dims in (*rule.operands, *rule.results) for d in dims)  # noqa: E731
    there = {f for dims in rule.operands for d in dims for f in d}
    return [f for f, size in rule.sizes if size > 1 and rule.kind[f] == "pass" and f in there and alone(f)]


def check(op: OpDef, sample: Sample, rule: Rule, factor: str, types: tuple[TensorType, ...]) -> None:
    attrs, arrays = tuple(sample.attrs.items()), sample.operands()
    masked = {*op.refused(len(arrays)), *op.indices, *op.nonzero}
    tensors = lambda given: [torch_side.tensor(a, d) for a, d in zip(given, sample.dtypes, strict=True)]  # noqa: E731
    want = evaluate_node(op, arrays, attrs, types)
    plain = op.torch is not None and not op.random
    want_torch = torch_side.run(op, tensors(arrays), sample.attrs, types) if plain else []
    for fill in FILLS:
        junk = [a if i in masked else filled(a, rule.operands[i], factor, fill) for i, a in enumerate(arrays)]
        what = f"{op.name} {sample.types} {sample.attrs}: {factor} ends in {fill}"
        pairs = [(want, evaluate_node(op, junk, attrs, types))]
        if plain:
            made = torch_side.run(op, tensors(junk), sample.attrs, types)
            pairs.append(tuple([torch_side.array(t) for t in side] for side in (want_torch, made)))  # type: ignore[arg-type]
        for before, after in pairs:
            for a, b, type_, dims in zip(after, before, types, rule.results, strict=True):
                if any(factor in d for d in dims):
                    compare(kept(a, dims, factor), kept(b, dims, factor), type_.dtype, tolerance(type_.dtype), what)


def tolerance(dtype: DType) -> float | None:
    """Products in blocks of rows add up in another order."""
    return 1e-12 if dtype.name in ("float64", "complex128") else None


@pytest.mark.parametrize("name", sorted(n for n in SAMPLES if OPS[n].factors is not None and not OPS[n].effect))
def test_padding_stays_where_it_is(name: str) -> None:
    op = OPS[name]
    with np.errstate(all="ignore"):
        for sample in cases(op, 0):
            if any(d in (float16, bfloat16) for d in sample.dtypes):
                continue
            types = op.infer_types(sample.types, tuple(sample.attrs.items()))
            rule = op.rule(sample.types, types, tuple(sample.attrs.items()))
            assert rule is not None
            for factor in passing(rule):
                check(op, sample, rule, factor, types)
