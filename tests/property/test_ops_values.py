"""Every op of the table: NumPy meaning against the torch lowering and the decomposition, over shapes and dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch._dynamo
from hypothesis import given, settings
from hypothesis import strategies as st

import gt.ir.ops  # noqa: F401 - fills the table
from gt.ir.evaluate import evaluate_node
from gt.ir.opdef import OPS
from gt.ir.types import DType
from tests.property import torch_side
from tests.property.eager import call
from tests.property.samples import COVERED_ELSEWHERE, SAMPLES, UNSAMPLED, Sample, cases

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-11, "complex64": 2e-5, "complex128": 1e-11}
seeds = st.integers(0, 2**20)


def compare(got: np.ndarray, want: np.ndarray, dtype: DType, tolerance: float | None, what: str) -> None:
    if dtype.kind in "bui" or tolerance == 0.0:
        np.testing.assert_array_equal(got, want, err_msg=what)
    else:
        t = TOLERANCE[dtype.name] if tolerance is None else tolerance
        np.testing.assert_allclose(got, want, rtol=t, atol=t, err_msg=what)


def test_every_op_has_samples() -> None:
    assert set(OPS) - set(SAMPLES) - UNSAMPLED - COVERED_ELSEWHERE == set()
    assert set(SAMPLES) <= set(OPS)


def test_every_op_is_documented_and_runs() -> None:
    for op in OPS.values():
        assert op.doc, f"{op.name} has no doc"
        assert op.torch is not None or op.decompose is not None or op.effect or op.name == "reshard", (
            f"{op.name} never runs"
        )


@pytest.mark.parametrize("name", sorted(SAMPLES))
@given(seed=seeds)
@settings(max_examples=3, deadline=None)
def test_numpy_equals_torch(name: str, seed: int) -> None:
    op = OPS[name]
    for sample in cases(op, seed):
        attrs = tuple(sample.attrs.items())
        types = op.infer_types(sample.types, attrs)
        want = evaluate_node(op, sample.operands(), attrs, types)
        what = f"{name} {sample.types} {sample.attrs}"
        coarsest = max((TOLERANCE.get(d.name, 0.0) for d in sample.dtypes), default=0.0)
        tolerance = sample.tolerance
        if tolerance is None and any(coarsest > TOLERANCE.get(t.dtype.name, 1.0) for t in types):
            tolerance = coarsest  # a result finer than its operands is no better than they are
        if op.torch is not None:
            tensors = [torch_side.tensor(a, d) for a, d in zip(sample.operands(), sample.dtypes, strict=True)]
            for got, value, type_ in zip(torch_side.run(op, tensors, sample.attrs, types), want, types, strict=True):
                assert str(got.dtype) == f"torch.{type_.dtype.name}", f"{what}: torch gives {got.dtype}"
                assert tuple(got.shape) == type_.shape, f"{what}: torch gives {tuple(got.shape)}"
                compare(torch_side.array(got), value, type_.dtype, tolerance, what)
        if op.decompose is not None:
            for got, value, type_ in zip(
                call(op, sample.operands(), sample.types, sample.attrs, True), want, types, strict=True
            ):
                compare(got, value, type_.dtype, tolerance, f"decomposition of {what}")


@pytest.mark.parametrize("name", sorted(n for n, o in OPS.items() if o.torch_inplace is not None))
def test_inplace_lowering(name: str) -> None:
    op = OPS[name]
    for sample in cases(op, 0):
        types = op.infer_types(sample.types, tuple(sample.attrs.items()))
        tensors = [torch_side.tensor(a, d) for a, d in zip(sample.operands(), sample.dtypes, strict=True)]
        want = [t.clone() for t in torch_side.run(op, [t.clone() for t in tensors], sample.attrs, types)]
        got = torch_side.run(op, tensors, sample.attrs, types, overwrites=True)
        for result, operand in op.inplace_pairs(len(tensors), tuple(sample.attrs.items())):
            assert got[result].data_ptr() == tensors[operand].data_ptr(), f"result {result} is not operand {operand}"
        for a, b in zip(got, want, strict=True):
            assert a.equal(b)


@pytest.mark.parametrize(
    ("name", "overwrites"),
    [(n, w) for n in sorted(SAMPLES) for w in (False, True) if (OPS[n].torch_inplace if w else OPS[n].torch) is not None],
)
def test_strides_of_operands_do_not_count(name: str, overwrites: bool) -> None:
    """Some of torch's kernels take operands for ones in order; a value that was joined from parts, or computed from views, is in another."""
    op = OPS[name]
    for sample in cases(op, 0):
        types = op.infer_types(sample.types, tuple(sample.attrs.items()))
        want = torch_side.run(op, _tensors(sample), sample.attrs, types)
        for which in range(len(sample.types)):
            tensors = _tensors(sample)
            dims = tuple(reversed(range(tensors[which].ndim)))
            tensors[which] = tensors[which].permute(dims).contiguous().permute(dims)
            for got, value in zip(torch_side.run(op, tensors, sample.attrs, types, overwrites), want, strict=True):
                t = TOLERANCE.get(str(value.dtype)[6:], 0.0)
                what = f"operand {which} of {name} {sample.types}"
                torch.testing.assert_close(got, value, atol=t, rtol=t, equal_nan=True, msg=what)


def _tensors(sample: Sample) -> list[torch.Tensor]:
    return [torch_side.tensor(a, d) for a, d in zip(sample.operands(), sample.dtypes, strict=True)]


LOWERED = sorted(n for n in SAMPLES if OPS[n].torch is not None)
TOGETHER = 20  # what a compile costs is mostly the same for one op


@pytest.mark.parametrize("names", [LOWERED[i : i + TOGETHER] for i in range(0, len(LOWERED), TOGETHER)], ids=lambda names: names[0])
def test_lowerings_compile_whole(names: list[str]) -> None:
    """torch.compile takes every lowering without a graph break; AOTAutograd's shapes and dtypes are right."""
    try:
        compile_whole(names)
    except Exception:
        for name in names:  # which one it is
            compile_whole([name])
        raise


def compile_whole(names: list[str]) -> None:
    functions, operands, wants = [], [], []
    for name in names:
        op = OPS[name]
        sample = max(cases(op, 0), key=lambda s: sum(t.numel for t in s.types))
        types = op.infer_types(sample.types, tuple(sample.attrs.items()))
        tensors = _tensors(sample)
        wants.append(torch_side.run(op, tensors, sample.attrs, types))
        functions.append(torch_side.function(op, len(tensors), sample.attrs, types))
        operands.append(tensors)

    def all_of_them(operands: list[list[torch.Tensor]]) -> list[object]:
        return [function(*tensors) for function, tensors in zip(functions, operands, strict=True)]

    torch._dynamo.reset()
    with torch.no_grad():
        gots = torch.compile(all_of_them, backend="aot_eager", fullgraph=True, dynamic=False)(operands)
    for name, got, want in zip(names, gots, wants, strict=True):
        for a, b in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape, name
            torch.testing.assert_close(a, b, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")
