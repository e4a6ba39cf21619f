"""Every op's sharding rule by brute force: each factor cut over 2 and 3 workers, each linear group split into parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gt.ir.ops  # noqa: F401 - fills the table
from gt.ir.evaluate import evaluate_node
from gt.ir.factors import PENDING, DimFactors, Rule
from gt.ir.graph import Attrs, Coord
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS, Local, OpDef
from gt.ir.types import HALVES, TensorType, complex64, float32, float64
from gt.passes.placement import sums_may_pass
from tests.property.samples import SAMPLES, Sample, cases
from tests.property.test_ops_values import compare

seeds = st.integers(0, 2**20)
COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
DROPPED = 1e-9


def place(mesh: Mesh, type_: TensorType, dims: tuple[DimFactors, ...], factor: str) -> TensorType:
    return type_.placed(Sharding(mesh, tuple(("x",) if factor in d else () for d in dims)))


def local_type(type_: TensorType) -> TensorType:
    assert type_.sharding is not None
    return TensorType(type_.sharding.local_shape(type_.shape), type_.dtype)


def part(array: np.ndarray, type_: TensorType, worker: int, fill: str) -> np.ndarray:
    """A worker's part, padded: with what a masked reduction reads, or with a real row where anything may stand."""
    assert type_.sharding is not None
    bounds = type_.sharding.bounds(type_.shape, worker)
    own = array[tuple(slice(a, b) for a, b in bounds)]
    for d, size in enumerate(type_.sharding.local_shape(type_.shape)):
        missing = size - own.shape[d]
        if not missing:
            continue
        widths = [(0, missing if i == d else 0) for i in range(own.ndim)]
        if fill in ("pass", "index"):  # what is indexed never reads its padding
            row = np.take(array, [0], axis=d)[
                tuple(slice(a, b) if i != d else slice(None) for i, (a, b) in enumerate(bounds))
            ]
            own = np.concatenate([own, np.repeat(row, missing, axis=d)], axis=d)
        else:
            info = np.iinfo(own.dtype) if own.dtype.kind in "ui" else None
            low = False if own.dtype.kind == "b" else info.min if info else -np.inf
            high = True if own.dtype.kind == "b" else info.max if info else np.inf
            own = np.pad(own, widths, constant_values={"sum": 0, "max": low, "min": high}[fill])
    return own


def resolved(attrs: Attrs, worker: int) -> Attrs:
    def at(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(at, value))
        return value.at({"x": worker}) if isinstance(value, Coord) else value

    return tuple((name, at(value)) for name, value in attrs)


def can_cut(rule: Rule, factor: str, k: int) -> bool:
    """A factor is cut where it is the major part of each dim it stands in; compound dims need even parts."""
    for dims in (*rule.operands, *rule.results):
        for d in dims:
            if factor in d and (d[0] != factor or (len(d) > 1 and rule.size[factor] % k)):
                return False
    return rule.kind[factor] not in ("whole", "near") and rule.size[factor] > 0


def check_factor(op: OpDef, sample: Sample, rule: Rule, factor: str, k: int) -> None:
    mesh = Mesh("m", (("x", k),), tuple(range(k)))
    attrs, arrays, kind = tuple(sample.attrs.items()), sample.operands(), rule.kind[factor]
    outs = op.infer_types(sample.types, attrs)
    want = evaluate_node(op, arrays, attrs, outs)
    gin = tuple(place(mesh, t, d, factor) for t, d in zip(sample.types, rule.operands, strict=True))
    gout = tuple(place(mesh, t, d, factor) for t, d in zip(outs, rule.results, strict=True))
    lin, lout = tuple(map(local_type, gin)), tuple(map(local_type, gout))
    local = op.local_attrs(attrs, Local(lin, lout, gin, gout))
    made: list[tuple[np.ndarray, ...]] = []
    what = f"{op.name} {sample.types} {sample.attrs}: {factor} ({kind}) over {k}"
    for worker in range(k):
        own = resolved(local, worker)
        parts = [part(a, t, worker, kind) for a, t in zip(arrays, gin, strict=True)]
        types = op.infer_types(tuple(map(local_type, gin)), own)
        assert [t.shape for t in types] == [t.shape for t in lout], f"{what}: local shapes {types} against {lout}"
        made.append(evaluate_node(op, parts, own, lout))
    for i, (value, type_) in enumerate(zip(want, outs, strict=True)):
        pieces = [m[i] for m in made]
        dims = [d for d, f in enumerate(rule.results[i]) if factor in f]
        if dims:
            (dim,) = dims
            joined = np.concatenate(pieces, axis=dim)
            got = np.take(joined, range(type_.shape[dim]), axis=dim)
        elif kind == "pass":
            for piece in pieces:
                compare(piece, pieces[0], type_.dtype, None, f"{what}: workers differ")
            got = pieces[0]
        else:
            got = pieces[0]
            for piece in pieces[1:]:
                got = COMBINE[PENDING[kind]](got, piece)
        compare(got, value, type_.dtype, 1e-9 if type_.dtype is float64 else None, what)


@pytest.mark.parametrize("name", sorted(n for n in SAMPLES if OPS[n].factors is not None))
@given(seed=seeds)
@settings(max_examples=2, deadline=None)
def test_factors(name: str, seed: int) -> None:
    op = OPS[name]
    for sample in cases(op, seed):
        if any(d.name in ("float16", "bfloat16") for d in sample.dtypes):
            continue  # partial sums round differently; the rule is about dims
        attrs = tuple(sample.attrs.items())
        rule = op.rule(sample.types, op.infer_types(sample.types, attrs), attrs)
        assert rule is not None
        for factor, _ in rule.sizes:
            for k in (2, 3):
                if can_cut(rule, factor, k):
                    check_factor(op, sample, rule, factor, k)


@pytest.mark.parametrize("name", sorted(n for n in SAMPLES if OPS[n].linear))
@given(seed=seeds)
@settings(max_examples=2, deadline=None)
def test_linear_groups(name: str, seed: int) -> None:
    op, rng = OPS[name], np.random.default_rng(seed)
    for sample in cases(op, seed):
        attrs = tuple(sample.attrs.items())
        types = op.infer_types(sample.types, attrs)
        groups = op.linear_groups(len(sample.arrays), attrs)
        if not all(np.all(np.isfinite(a)) for a in sample.operands()):
            continue
        want = evaluate_node(op, sample.operands(), attrs, types)
        for group in groups:
            own = [sample.types[i] for i in group]
            if not sums_may_pass(own, types) or any(t.dtype in HALVES or t.dtype.kind == "b" for t in own):
                continue
            digits = 1e-4 if any(t.dtype in (float32, complex64) for t in (*own, *types)) else 1e-9
            split = {i: sign_mixed(sample.operands()[i], rng) for i in group}
            whole = sample.operands()
            made = [
                evaluate_node(op, [split[i][w] if i in split else a for i, a in enumerate(whole)], attrs, types)
                for w in range(3)
            ]
            for value, type_, *pieces in zip(want, types, *made, strict=True):
                what = f"{name} {sample.types} {sample.attrs}: group {group}"
                compare(pieces[0] + pieces[1] + pieces[2], value, type_.dtype, digits, what)


def sign_mixed(x: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Three parts of mixed signs that add up to x, whole numbers modulo their width."""
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        a, b = (np.asarray(rng.integers(limits.min, limits.max, x.shape, x.dtype, endpoint=True)) for _ in range(2))
    else:
        a, b = (np.asarray(rng.normal(size=x.shape) * 3, x.dtype) for _ in range(2))
    with np.errstate(over="ignore"):
        return [a, b, np.asarray(x - a - b)]
