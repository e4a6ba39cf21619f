"""``gt.array_api`` where the standard differs from torch, against NumPy's own namespace of the standard."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest

import gt
import gt.array_api as xp
from gt import session

REALS = np.arange(-6.0, 6.0).reshape(3, 4)


def same(got: gt.Tensor, want: Any) -> None:
    """Compare values, dtype and shape with a NumPy array's."""
    want = np.asarray(want)
    assert isinstance(got, gt.Tensor) and got.dtype.name == want.dtype.name and tuple(got.shape) == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


def test_a_tensor_leads_to_the_namespace() -> None:
    x = gt.ones(2)
    assert x.__array_namespace__() is xp and x.__array_namespace__(api_version="2023.12") is xp
    with pytest.raises(ValueError, match="2019.12"):
        x.__array_namespace__(api_version="2019.12")


def test_every_public_name_is_there_and_documented() -> None:
    for module in (xp, xp.linalg, xp.fft):
        for name in module.__all__:
            value = getattr(module, name)
            assert not inspect.isfunction(value) or value.__doc__, f"{module.__name__}.{name}"


def test_inspection_agrees_with_what_creation_makes() -> None:
    info = xp.__array_namespace_info__()
    defaults = info.default_dtypes()
    assert xp.asarray(1.0).dtype is defaults["real floating"] and xp.asarray(1).dtype is defaults["integral"]
    assert xp.asarray(1j).dtype is defaults["complex floating"] and xp.argmax(xp.ones(2)).dtype is defaults["indexing"]
    assert xp.ones(2).device in info.devices() and info.default_device() in info.devices()
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    for name, dtype in info.dtypes().items():
        assert getattr(xp, name) is dtype and xp.zeros(1, dtype=dtype).dtype is dtype


def test_functions_promote_by_dtype_alone_and_operators_as_torch() -> None:
    wide, narrow = xp.asarray(2.0, dtype=xp.float64), xp.ones(3, dtype=xp.float32)
    assert xp.add(narrow, wide).dtype is xp.float64 and xp.add(wide, narrow).dtype is xp.float64
    assert (narrow + wide).dtype is xp.float32
    assert xp.where(narrow > 0, narrow, wide).dtype is xp.float64
    assert xp.result_type(xp.int8, xp.uint8) is xp.int16 and xp.result_type(xp.float32, xp.complex128, 1) is xp.complex128


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "atan2", "less", "equal", "pow", "copysign", "hypot"])
def test_either_operand_may_be_a_number(name: str) -> None:
    x = np.array([0.5, 1.0, 4.0], np.float32)
    same(getattr(xp, name)(xp.asarray(x), 2.0), getattr(np, name)(x, np.float32(2)))
    same(getattr(xp, name)(2.0, xp.asarray(x)), getattr(np, name)(np.float32(2), x))
    with pytest.raises(TypeError, match="expected arrays"):
        getattr(xp, name)(2.0, 3.0)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), ()])
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "max", "min", "any", "all"])
def test_reductions_take_none_one_several_and_no_axes(name: str, axis: Any) -> None:
    for keepdims in (False, True):
        got = getattr(xp, name)(xp.asarray(REALS), axis=axis, keepdims=keepdims)
        same(got, getattr(np, name)(REALS, axis=axis, keepdims=keepdims))


def test_a_variance_takes_a_broken_correction() -> None:
    same(xp.var(xp.asarray(REALS), axis=0, correction=0.5), REALS.var(0) * 3 / 2.5)
    same(xp.var(xp.asarray(REALS), axis=(), correction=0.5), REALS * 0)


def test_scans_can_start_with_the_neutral_element() -> None:
    same(xp.cumulative_sum(xp.asarray(REALS), axis=1, include_initial=True), np.cumulative_sum(REALS, axis=1, include_initial=True))
    same(xp.cumulative_prod(xp.asarray(REALS), axis=0, include_initial=True), np.cumulative_prod(REALS, axis=0, include_initial=True))
    with pytest.raises(ValueError, match="expected an axis"):
        xp.cumulative_sum(xp.asarray(REALS))


def test_sign_and_round_of_all_numbers() -> None:
    z = np.array([3 + 4j, 0j, -2.5 + 1.5j])
    same(xp.sign(xp.asarray(z)), np.sign(z))
    same(xp.round(xp.asarray(z)), np.round(z))
    same(xp.sign(xp.asarray([np.nan, -0.0, 2.0])), np.array([np.nan, 0.0, 1.0], np.float32))


def test_clip_keeps_the_dtype() -> None:
    x = xp.asarray([-3, 0, 200], dtype=xp.int16)
    same(xp.clip(x, -1, 100), np.array([-1, 0, 100], np.int16))
    same(xp.clip(x, min=-(2**15)), np.array([-3, 0, 200], np.int16))
    same(xp.clip(x, max=xp.asarray([[1], [2]], dtype=xp.int16)), np.array([[-3, 0, 1], [-3, 0, 2]], np.int16))
    with pytest.raises(ValueError, match="not a value of int16"):
        xp.clip(x, min=2**20)


def test_ranges() -> None:
    for start, stop, step in itertools.product((0, 2.5, -3), (0, 7, -2.0), (1, 0.75, -2)):
        same(xp.arange(start, stop, step, dtype=xp.float64), np.arange(start, stop, step, np.float64))
    same(xp.linspace(0, 1, 4, endpoint=False, dtype=xp.float64), np.linspace(0, 1, 4, endpoint=False))
    for k in (-5, -1, 0, 2, 9):
        same(xp.eye(3, 4, k=k, dtype=xp.int32), np.eye(3, 4, k, np.int32))


def test_unique_counts_each_nan_and_tells_the_first_place() -> None:
    x = np.array([[2.0, np.nan, 1.0], [1.0, 2.0, np.nan]])
    values, first, inverse, counts = xp.unique_all(xp.asarray(x))
    np.testing.assert_array_equal(values.numpy(), [1, 2, np.nan, np.nan])
    assert first.tolist()[:2] == [2, 0] and counts.tolist() == [2, 2, 1, 1]
    np.testing.assert_array_equal(values.numpy()[inverse.numpy()], x)


def test_dims_of_size_one() -> None:
    x = xp.ones((1, 3, 1))
    assert tuple(xp.squeeze(x, (0, -1)).shape) == (3,) and tuple(xp.expand_dims(x, (0, -1)).shape) == (1, 1, 3, 1, 1)
    with pytest.raises(ValueError, match="size 3"):
        xp.squeeze(x, 1)
    with pytest.raises(IndexError):
        xp.squeeze(x, 3)


def test_any_and_all_are_bool_of_every_dtype() -> None:
    """torch's give uint8 for uint8."""
    for dtype in (xp.bool, xp.uint8, xp.int64, xp.float32, xp.complex64):
        x = xp.asarray([[0, 2], [0, 0]], dtype=dtype)
        for axis in (None, 0, (), (0, 1)):
            for name in ("any", "all"):
                same(getattr(xp, name)(x, axis=axis), np.asarray(getattr(np, name)(np.array([[0, 2], [0, 0]]), axis=axis)))


def test_negative_indices_pick_from_the_end() -> None:
    x, i = xp.asarray(REALS), xp.asarray([0, -1])
    same(xp.take(x, i, axis=1), REALS[:, [0, -1]])
    same(xp.take_along_axis(x, xp.asarray([[-1], [0], [1]]), axis=1), np.take_along_axis(REALS, np.array([[-1], [0], [1]]), 1))


def test_what_may_not_be_copied() -> None:
    x = xp.ones(2)
    assert xp.asarray(x, copy=False) is x and xp.asarray(x, copy=True) is not x and xp.from_dlpack(x) is x
    with pytest.raises(ValueError, match="copy=False"):
        xp.asarray(np.ones(2), copy=False)
    with pytest.raises(ValueError, match="copy=False"):
        xp.asarray(x, dtype=xp.int8, copy=False)
    with pytest.raises(TypeError, match="imag"):
        xp.astype(xp.asarray([1j]), xp.float32)


def test_integers_count_in_their_dtype_and_the_wrong_way_is_empty() -> None:
    same(xp.arange(0, 5, 2, dtype=xp.uint8), np.arange(0, 5, 2, np.uint8))
    assert tuple(xp.arange(5, 0).shape) == (0,) and xp.arange(5, 0).dtype is xp.int64


def test_solve_takes_a_vector_only_of_one_dim() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3, 3)), rng.normal(size=(3, 2))
    same(xp.linalg.solve(xp.asarray(a), xp.asarray(b)), np.linalg.solve(a, b))
    same(xp.linalg.solve(xp.asarray(a), xp.asarray(b[:, 0])), np.linalg.solve(a, b[:, 0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_complex_results_have_the_width_of_their_operands(dtype: Any) -> None:
    x = np.random.default_rng(1).normal(size=(4, 4)).astype(dtype)
    wide = {np.float32: "complex64", np.float64: "complex128"}[dtype]
    assert xp.fft.rfft(xp.asarray(x)).dtype.name == wide == xp.linalg.eigvals(xp.asarray(x)).dtype.name
    np.testing.assert_allclose(xp.fft.irfft(xp.fft.rfft(xp.asarray(x))).numpy(), x, rtol=1e-4, atol=1e-6)
    values, vectors = xp.linalg.eig(xp.asarray(x))
    np.testing.assert_allclose(x @ vectors.numpy(), vectors.numpy() * values.numpy(), rtol=1e-3, atol=1e-5)


def test_gradients_pass() -> None:
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    xp.sum(xp.multiply(xp.expand_dims(x, 0), 3.0)).backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]


def test_another_number_is_the_same_program() -> None:
    x = xp.ones(4)
    x.tolist()
    keys = set()
    for value in (1.5, 2.5, 3.5):
        assert xp.add(x, value).tolist() == [1 + value] * 4
        keys.add(len(session.known(session.current())))
    assert len(keys) == 1
