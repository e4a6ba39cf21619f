"""Dtypes: promotion on the whole grid against torch, casting rules, limits, the default dtype."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import gt
from gt.ir.types import DTYPES, DType

NAMES = [d.name for d in DTYPES]
SCALARS = (True, 3, 1.5, 2j)


def theirs(d: DType) -> torch.dtype:
    return getattr(torch, d.name)


@pytest.mark.parametrize("a", DTYPES, ids=NAMES)
def test_promotion_of_tensors_equals_torch(a: DType) -> None:
    for b, na, nb in itertools.product(DTYPES, (0, 1), (0, 1)):
        want = torch.result_type(torch.empty((2,) * na, dtype=theirs(a)), torch.empty((2,) * nb, dtype=theirs(b)))
        if want is torch.complex32:
            continue
        x, y = gt.zeros((2,) * na, dtype=a), gt.zeros((2,) * nb, dtype=b)
        assert gt.result_type(x, y).name == str(want)[6:], (a, na, b, nb)
        assert (x * y).dtype.name == str(want)[6:]


@pytest.mark.parametrize("a", DTYPES, ids=NAMES)
@pytest.mark.parametrize("scalar", SCALARS)
def test_promotion_with_numbers_equals_torch(a: DType, scalar: complex) -> None:
    for n in (0, 1):
        x, y = gt.zeros((2,) * n, dtype=a), torch.zeros((2,) * n, dtype=theirs(a))
        want = torch.result_type(y, scalar)
        if want is torch.complex32:
            continue
        assert gt.result_type(x, scalar).name == str(want)[6:]
        assert (x + scalar).dtype.name == str((y + scalar).dtype)[6:]


def test_promote_types_and_can_cast_equal_torch() -> None:
    for a, b in itertools.product(DTYPES, DTYPES):
        want = torch.promote_types(theirs(a), theirs(b))
        if want is not torch.complex32:
            assert gt.promote_types(a, b).name == str(want)[6:]
        assert gt.can_cast(a, b) == torch.can_cast(theirs(a), theirs(b)), (a, b)


@pytest.mark.parametrize("d", [d for d in DTYPES if d.kind == "f"], ids=str)
def test_finfo_equals_torch(d: DType) -> None:
    got, want = gt.finfo(d), torch.finfo(theirs(d))
    for name in ("bits", "eps", "max", "min", "tiny", "smallest_normal"):
        assert getattr(got, name) == getattr(want, name), name
    assert got.dtype == want.dtype


@pytest.mark.parametrize("d", [d for d in DTYPES if d.kind in "ui"], ids=str)
def test_iinfo_equals_torch(d: DType) -> None:
    got, want = gt.iinfo(d), torch.iinfo(theirs(d))
    assert (got.bits, got.max, got.min, got.dtype) == (want.bits, want.max, want.min, want.dtype)


def test_limits_refuse_the_other_kind() -> None:
    with pytest.raises(TypeError, match="requires a floating point input type"):
        gt.finfo(gt.int32)
    with pytest.raises(TypeError, match="requires an integer input type"):
        gt.iinfo(gt.float32)


@pytest.fixture
def default_float64() -> Iterator[None]:
    gt.set_default_dtype(gt.float64)
    yield
    gt.set_default_dtype(gt.float32)


@pytest.mark.usefixtures("default_float64")
def test_default_dtype_is_what_floats_get() -> None:
    assert gt.get_default_dtype() is gt.float64
    assert gt.tensor(1.5).dtype is gt.tensor([1.5]).dtype is gt.zeros(2).dtype is gt.rand(2).dtype is gt.float64
    assert (gt.tensor([1, 2]) * 1.5).dtype is (gt.tensor([1, 2]) / 2).dtype is gt.tensor([1]).exp().dtype is gt.float64
    assert (gt.ones(2, dtype=gt.float32) * 1.5).dtype is gt.float32


def test_default_dtype_must_be_floating() -> None:
    with pytest.raises(TypeError, match="only floating-point types are supported as the default type"):
        gt.set_default_dtype(gt.int64)


def test_wrapping_and_truncation_as_torch() -> None:
    assert (gt.tensor([1], dtype=gt.uint8) + 300).tolist() == [45]
    assert gt.tensor([1.9, -1.9]).to(gt.int64).tolist() == [1, -1]
    assert gt.tensor([0.0, 0.5, -2.0]).bool().tolist() == [False, True, True]


WITH_A_COMPLEX_NUMBER = (
    lambda m, x, z: x**z, lambda m, x, z: m.pow(x, z), lambda m, x, z: x.float_power(z), lambda m, x, z: m.full_like(x, z),
    lambda m, x, z: x.new_full((2,), z), lambda m, x, z: x.clone().fill_(z), lambda m, x, z: x.masked_fill(x == x[0], z),
    lambda m, x, z: m.scatter(x, 0, m.tensor([0]), z), lambda m, x, z: m.index_fill(x, 0, m.tensor([0]), z),
    lambda m, x, z: m.tensor([z, 2], dtype=x.dtype), lambda m, x, z: m.tensor(z, dtype=x.dtype),
    lambda m, x, z: m.addcmul(x, x, x, value=z), lambda m, x, z: x.clone().addcmul_(x, x, value=z), lambda m, x, z: m.addcdiv(x, x, x + 1.0, value=z),
    lambda m, x, z: m.addmv(x, m.eye(2, dtype=x.dtype), x, beta=z, alpha=z), lambda m, x, z: m.add(x, x, alpha=z),
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex64"])
@pytest.mark.parametrize("z", [0j, 2 + 0j, 0.5 + 0j, 1 - 1j])
def test_a_complex_number_becomes_real_or_is_refused_as_by_torch(dtype: str, z: complex) -> None:
    """An imaginary part of 0 may be left out where a number takes a tensor's dtype; another may not."""
    for i, call in enumerate(WITH_A_COMPLEX_NUMBER):
        try:
            want = call(torch, torch.tensor([1, 2], dtype=getattr(torch, dtype)), z)
        except (RuntimeError, TypeError) as error:
            with pytest.raises(type(error), match=str(error)[:30].replace("(", r"\(").replace(")", r"\)")):
                call(gt, gt.tensor([1, 2], dtype=getattr(gt, dtype)), z)
            continue
        got = call(gt, gt.tensor([1, 2], dtype=getattr(gt, dtype)), z)
        assert str(got.dtype)[3:] == str(want.dtype)[6:], i
        torch.testing.assert_close(torch.tensor(got.numpy()), want, msg=lambda text, i=i: f"case {i}: {text}")


HALVES = {
    "times a number": lambda m, a: a * 2.513, "a number times": lambda m, a: 2.513 * a, "over a number": lambda m, a: a / 2.513,
    "a number over": lambda m, a: 2.5 / a, "in place": lambda m, a: a.clone().mul_(0.1), "plus": lambda m, a: a + 2.513,
    "minus": lambda m, a: 2.513 - a, "over, rounded down": lambda m, a: a // 0.513,
    "exactly a half": lambda m, a: a * 0.5, "a large number": lambda m, a: a * 1e5, "an int": lambda m, a: a * 257,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", HALVES)
def test_numbers_keep_their_precision_beside_halves(name, dtype):
    found = []
    for m in (gt, torch):
        for shape in ((40,), ()):
            a = (m.arange(1, 41) * 0.37).to(getattr(m, dtype))
            found.append(HALVES[name](m, a if shape else a[2].clone()).float().tolist())
    assert found[:2] == found[2:]


NUMBERS = [
    [np.int64(1), 1.5], [np.float64(1), 1.5], [np.float32(1), 1.5], [1.5, np.float64(1)], [np.int32(1), 2], [np.float16(1), 2],
    [[np.int64(1)], [1.5]], [1, np.float64(2)], [np.int8(1)], [np.complex128(1), 2.0], [True, np.float32(1)], [True, 2], [1, 2.5],
    [np.array([1.0, 2.0]), np.array([2.0, 3.0])], [1, 1j], [np.uint8(3), np.int8(-1)],
]  # fmt: skip


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
def test_a_list_has_the_dtype_its_numbers_promote_to(numbers):
    want, have = torch.tensor(numbers), gt.tensor(numbers)
    assert have.dtype.name == str(want.dtype).removeprefix("torch.") and have.tolist() == want.tolist()


def test_numbers_beside_tensors_of_other_kinds():
    for m in (gt, torch):
        x, u, b = m.tensor([1.0, 2.0, 3.0]), m.tensor([1, 2], dtype=m.uint8), m.tensor([True, False])
        np.testing.assert_allclose((x**1j).numpy(), np.array([1.0, 2.0, 3.0]) ** 1j, rtol=1e-5)
        with pytest.raises(RuntimeError, match="value cannot be converted to type float without overflow"):
            x.clone().fill_(1j)
        assert (u << b).tolist() == [2, 2] and (u >> b).tolist() == [0, 2] and (u << b).dtype is m.uint8
        assert (b << 1).tolist() == [2, 0]
        for fault in (lambda b=b: b << b, lambda x=x: x << 1):
            with pytest.raises(NotImplementedError, match="lshift_cpu"):
                fault()
        assert (b**True).tolist() == [True, False] and (b**False).tolist() == [True, True] and (b**True).dtype is m.bool
        assert x.broadcast_to(2, 3).shape == (2, 3)
        grads = m.autograd.functional.jacobian(lambda a, m=m: m.special.entr(a).sum(), m.tensor([0.0, 0.5, 1.0]))
        np.testing.assert_allclose(grads.numpy(), [np.inf, -0.306853, -1], rtol=1e-5)
        assert isinstance(x.shape * 2, m.Size) and isinstance(2 * x.shape, m.Size) and isinstance((3,) + x.shape, m.Size)
        with pytest.raises(TypeError, match="can only concatenate tuple"):
            x.shape + [1]


ACTIVATIONS = "hardtanh relu6 celu silu softshrink hardshrink elu gelu mish selu leaky_relu hardsigmoid hardswish softplus logsigmoid relu "
ACTIVATIONS += "tanhshrink softsign glu rrelu"


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8", "int8", "complex64"])
@pytest.mark.parametrize("name", ACTIVATIONS.split())
def test_activations_take_torchs_dtypes(name, dtype):
    found = []
    for m in (torch, gt):
        x = m.tensor([3, 0, 1, 7] if dtype in ("bool", "uint8") else [-3, 0, 1, 7]).to(getattr(m, dtype))
        function = getattr(m.nn.functional, name)
        try:
            y = function(x, 0) if name == "glu" else function(x)
            found.append((str(y.dtype).split(".")[-1], [complex(np.round(complex(v), 4)) for v in y.tolist()]))
        except RuntimeError as error:
            found.append(NotImplementedError if isinstance(error, NotImplementedError) else RuntimeError)
    assert found[0] == found[1]
