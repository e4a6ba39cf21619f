"""NumPy evaluation: rounding, whole graphs, errors, the wire form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gt.ir.evaluate import as_dtype, evaluate, evaluate_node, from_wire, to_wire
from gt.ir.graph import Graph, Node, Value
from gt.ir.ops import OPS
from gt.ir.types import DTYPES, DType, TensorType, bfloat16, float16, float32, float64, int64


@given(st.lists(st.floats(width=32), max_size=20))
def test_bfloat16_rounds_as_torch(numbers: list[float]) -> None:
    x = np.array(numbers, np.float32)
    np.testing.assert_array_equal(as_dtype(x, bfloat16), torch.from_numpy(x).to(torch.bfloat16).float().numpy())


def test_float64_to_half_rounds_by_way_of_float32() -> None:
    x = np.array([1.0 + 2**-11 + 2**-30, 65519.999999])
    np.testing.assert_array_equal(as_dtype(x, float16), torch.from_numpy(x).to(torch.float16).numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_wire_form_round_trips(dtype: object, shape: tuple[int, ...]) -> None:
    x = as_dtype(np.random.default_rng(0).normal(size=shape) * 3, dtype)  # type: ignore[arg-type]
    wire = to_wire(x, dtype)  # type: ignore[arg-type]
    assert wire.nbytes == int(np.prod(shape)) * dtype.itemsize  # type: ignore[attr-defined]
    for data in (wire, wire.tobytes()):
        back = from_wire(data, shape, dtype)  # type: ignore[arg-type]
        assert back.dtype == dtype.numpy and back.shape == shape  # type: ignore[attr-defined]
        np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("dtype", [float32, float64], ids=lambda d: d.name)
@pytest.mark.parametrize(("name", "theirs"), [("floor_divide", torch.floor_divide), ("remainder", torch.remainder), ("fmod", torch.fmod)])
def test_dividing_what_is_infinite_or_nothing_is_torchs(name: str, theirs: Callable[..., torch.Tensor], dtype: DType) -> None:
    ends = np.array([np.inf, 3e5, 7.5, 0.3, 0.0], dtype.numpy)
    every = np.concatenate([ends, -ends, [np.nan]]).astype(dtype.numpy)
    a, b = (g.ravel() for g in np.meshgrid(every, every))
    with np.errstate(all="ignore"):
        got = OPS[name].numpy(a, b)  # type: ignore[misc]
    want = theirs(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_array_equal(got, want)
    told = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[told]), np.signbit(want[told]))


def test_bfloat16_wire_is_torchs() -> None:
    x = as_dtype(np.linspace(-3, 3, 7), bfloat16)
    want = torch.from_numpy(x).to(torch.bfloat16).view(torch.uint16).numpy()
    np.testing.assert_array_equal(to_wire(x, bfloat16), want)


def scaled_sum() -> Graph:
    """sum(x * s): one input, one run-time scalar."""
    x, s = Value(TensorType((2, 3), float32)), Value(TensorType((), float32))
    y, z = Value(TensorType((2, 3), float32)), Value(TensorType((), float32))
    attrs = (("dims", (0, 1)), ("keepdim", False), ("dtype", float32))
    return Graph("g", (x,), (s,), (Node(OPS["mul"], (x, s), (y,)), Node(OPS["sum"], (y,), (z,), attrs)), (z, y, x))


def test_graph_with_a_scalar() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    total, scaled, same = evaluate(scaled_sum(), [x], [0.5])
    assert total.dtype == np.float32 and total == 7.5
    np.testing.assert_array_equal(scaled, x * np.float32(0.5))
    np.testing.assert_array_equal(same, x)
    same[0, 0] = 9
    assert x[0, 0] == 0, "an output shares memory with an input"


def test_wrong_shape_is_refused() -> None:
    with pytest.raises(AssertionError, match="was given shape"):
        evaluate(scaled_sum(), [np.zeros((3, 2), np.float32)], [1.0])


def test_grad_node_has_no_numpy_meaning() -> None:
    type_ = TensorType((), float64)
    with pytest.raises(NotImplementedError, match="autodiff expands it"):
        evaluate_node(OPS["grad"], [np.zeros(()), np.zeros(())], (), (type_,))


def test_nan_and_division_raise_no_warning() -> None:
    t = TensorType((3,), float64)
    x = np.array([0.0, np.nan, -1.0])
    with np.errstate(all="raise"):
        for name in ("log", "sqrt", "reciprocal", "lgamma", "digamma"):
            evaluate_node(OPS[name], [x], (), (t,))


def test_result_is_cast_to_the_declared_dtype() -> None:
    (out,) = evaluate_node(
        OPS["argmax"], [np.array([1.0, 3.0])], {"dim": 0, "keepdim": False}, (TensorType((), int64),)
    )
    assert out.dtype == np.int64 and out == 1
