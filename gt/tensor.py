"""``Tensor``: the user's class, with torch's methods and operators.

Owns: the list of methods; each is a function of ``gt.functions``. Next: ``handle`` (state), ``functions`` (what methods do),
``printing`` (repr).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from gt.autograd import backward, register_hook, retain_grad
from gt.functions import create, index, linalg, pointwise, promote, reduce, shape
from gt.handle import Handle
from gt.ir.types import DType, ShapeError, bfloat16, bool_, complex64, dtype_of, float16, float32, float64, int8, int16, int32, int64, uint8
from gt.printing import format_tensor
from gt.trace import install_tensor


def _inplace(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the in-place form of a function: compute, check shape and dtype as torch, assign."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = function(self, *args, **kwargs)
        if result._type is not self._type:
            result = _as_written(self, result)
        return self._assign(result)

    method.__name__ = method.__qualname__ = f"{function.__name__}_"
    method.__doc__ = f"Do ``{function.__name__}`` in place."
    return method


def _as_written(target: Tensor, result: Tensor) -> Tensor:
    if result._type.shape != target._type.shape:
        raise ShapeError(
            f"output with shape {list(target._type.shape)} doesn't match the broadcast shape {list(result._type.shape)}"
        )
    a, b = result._type.dtype, target._type.dtype
    rank = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    if rank[a.kind] > rank[b.kind]:
        raise RuntimeError(f"result type {_torch_name(a)} can't be cast to the desired output type {_torch_name(b)}")
    return promote.cast(result, b)


def _torch_name(dtype: DType) -> str:
    names = {"bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long"}
    names |= {"float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double", "complex64": "ComplexFloat"}
    return names[dtype.name]


class Tensor(Handle):
    """A multi-dimensional array, lazily computed, with torch's methods. Made by ``gt.tensor``, ``gt.randn`` and others."""

    # -- arithmetic
    add, sub, subtract, mul, multiply, div, divide = (
        pointwise.add, pointwise.sub, pointwise.sub, pointwise.mul, pointwise.mul, pointwise.div, pointwise.div,
    )  # fmt: skip
    true_divide, floor_divide, remainder, fmod, pow = (
        pointwise.div, pointwise.floor_divide, pointwise.remainder, pointwise.fmod, pointwise.pow,
    )  # fmt: skip
    maximum, minimum, atan2, clamp, clip = pointwise.maximum, pointwise.minimum, pointwise.atan2, pointwise.clamp, pointwise.clamp
    clamp_min, clamp_max = pointwise.clamp_min, pointwise.clamp_max

    def where(self, condition: Tensor, other: Any) -> Tensor:
        """Keep these values where ``condition`` holds, else take ``other``."""
        return pointwise.where(condition, self, other)

    eq, ne, lt, le, gt, ge = pointwise.eq, pointwise.ne, pointwise.lt, pointwise.le, pointwise.gt, pointwise.ge
    logical_and, logical_or, logical_xor = pointwise.logical_and, pointwise.logical_or, pointwise.logical_xor
    bitwise_and, bitwise_or, bitwise_xor = pointwise.bitwise_and, pointwise.bitwise_or, pointwise.bitwise_xor
    logical_not, bitwise_not, neg, negative = pointwise.logical_not, pointwise.bitwise_not, pointwise.neg, pointwise.neg
    exp, expm1, log, log1p, log2, log10 = (
        pointwise.exp, pointwise.expm1, pointwise.log, pointwise.log1p, pointwise.log2, pointwise.log10,
    )  # fmt: skip
    sqrt, rsqrt, reciprocal, sigmoid, tanh, relu = (
        pointwise.sqrt, pointwise.rsqrt, pointwise.reciprocal, pointwise.sigmoid, pointwise.tanh, pointwise.relu,
    )  # fmt: skip
    sin, cos, tan, asin, acos, atan = (
        pointwise.sin, pointwise.cos, pointwise.tan, pointwise.asin, pointwise.acos, pointwise.atan,
    )  # fmt: skip
    sinh, cosh, asinh, acosh, atanh = pointwise.sinh, pointwise.cosh, pointwise.asinh, pointwise.acosh, pointwise.atanh
    erf, erfc, abs, absolute, sign, square = (
        pointwise.erf, pointwise.erfc, pointwise.abs, pointwise.abs, pointwise.sign, pointwise.square,
    )  # fmt: skip
    floor, ceil, round, trunc = pointwise.floor, pointwise.ceil, pointwise.round, pointwise.trunc
    isnan, isinf, isfinite = pointwise.isnan, pointwise.isinf, pointwise.isfinite
    # -- reductions
    sum, mean, prod, amax, amin, max, min = (
        reduce.sum, reduce.mean, reduce.prod, reduce.amax, reduce.amin, reduce.max, reduce.min,
    )  # fmt: skip
    argmax, argmin, any, all, var, std = reduce.argmax, reduce.argmin, reduce.any, reduce.all, reduce.var, reduce.std
    logsumexp, cumsum, cumprod, count_nonzero = reduce.logsumexp, reduce.cumsum, reduce.cumprod, reduce.count_nonzero
    softmax, log_softmax, sort, argsort, topk = (
        reduce.softmax, reduce.log_softmax, reduce.sort, reduce.argsort, reduce.topk,
    )  # fmt: skip
    # -- shapes
    reshape, view, view_as, reshape_as, flatten, ravel, unflatten = (
        shape.reshape, shape.view, shape.view_as, shape.reshape_as, shape.flatten, shape.ravel, shape.unflatten,
    )  # fmt: skip
    permute, transpose, swapaxes, swapdims, t, movedim = (
        shape.permute, shape.transpose, shape.transpose, shape.transpose, shape.t, shape.movedim,
    )  # fmt: skip
    squeeze, unsqueeze, expand, expand_as, broadcast_to = (
        shape.squeeze, shape.unsqueeze, shape.expand, shape.expand_as, shape.broadcast_to,
    )  # fmt: skip
    repeat, tile, repeat_interleave, narrow, select, split, chunk, unbind = (
        shape.repeat, shape.tile, shape.repeat_interleave, shape.narrow, shape.select, shape.split, shape.chunk, shape.unbind,
    )  # fmt: skip
    flip, roll, clone, contiguous = shape.flip, shape.roll, shape.clone, shape.contiguous
    # -- indexing
    gather, index_select, scatter, scatter_add, masked_fill, masked_select, nonzero, tril, triu, take_along_dim = (
        index.gather, index.index_select, index.scatter, index.scatter_add, index.masked_fill, index.masked_select,
        index.nonzero, index.tril, index.triu, index.take_along_dim,
    )  # fmt: skip
    # -- products
    matmul, mm, bmm, dot, outer, addmm = linalg.matmul, linalg.mm, linalg.bmm, linalg.dot, linalg.outer, linalg.addmm
    # -- gradients
    backward, register_hook, retain_grad = backward, register_hook, retain_grad
    bernoulli = create.bernoulli

    # -- operators
    __add__, __sub__, __mul__, __truediv__ = pointwise.add, pointwise.sub, pointwise.mul, pointwise.div
    __radd__, __rmul__ = pointwise.add, pointwise.mul
    __floordiv__, __mod__, __pow__, __matmul__, __neg__, __abs__, __invert__ = (
        pointwise.floor_divide, pointwise.remainder, pointwise.pow, linalg.matmul, pointwise.neg, pointwise.abs, pointwise.bitwise_not,
    )  # fmt: skip
    __and__, __or__, __xor__ = pointwise.bitwise_and, pointwise.bitwise_or, pointwise.bitwise_xor
    __rand__, __ror__, __rxor__ = pointwise.bitwise_and, pointwise.bitwise_or, pointwise.bitwise_xor
    __lt__, __le__, __gt__, __ge__ = pointwise.lt, pointwise.le, pointwise.gt, pointwise.ge
    __getitem__, __setitem__, __hash__ = index.getitem, index.setitem, Handle.__hash__

    def __eq__(self, other: object) -> Any:
        return pointwise.eq(self, other) if isinstance(other, Handle) or promote.is_number(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return pointwise.ne(self, other) if isinstance(other, Handle) or promote.is_number(other) else NotImplemented

    def __rsub__(self, other: Any) -> Tensor:
        return pointwise.sub(other, self)

    def __rtruediv__(self, other: Any) -> Tensor:
        return pointwise.div(other, self)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return pointwise.floor_divide(other, self)

    def __rmod__(self, other: Any) -> Tensor:
        return pointwise.remainder(other, self)

    def __rpow__(self, other: Any) -> Tensor:
        return pointwise.pow(other, self)

    # -- in place
    add_, sub_, mul_, div_ = map(_inplace, (pointwise.add, pointwise.sub, pointwise.mul, pointwise.div))
    pow_, remainder_, floor_divide_ = map(_inplace, (pointwise.pow, pointwise.remainder, pointwise.floor_divide))
    clamp_, clamp_min_, clamp_max_ = map(_inplace, (pointwise.clamp, pointwise.clamp_min, pointwise.clamp_max))
    exp_, log_, sqrt_, rsqrt_, neg_, abs_ = map(
        _inplace, (pointwise.exp, pointwise.log, pointwise.sqrt, pointwise.rsqrt, pointwise.neg, pointwise.abs)
    )
    relu_, sigmoid_, tanh_, square_, reciprocal_ = map(
        _inplace, (pointwise.relu, pointwise.sigmoid, pointwise.tanh, pointwise.square, pointwise.reciprocal)
    )
    floor_, ceil_, round_, trunc_ = map(_inplace, (pointwise.floor, pointwise.ceil, pointwise.round, pointwise.trunc))
    masked_fill_, scatter_, scatter_add_ = map(_inplace, (index.masked_fill, index.scatter, index.scatter_add))
    tril_, triu_ = map(_inplace, (index.tril, index.triu))
    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_
    __ipow__, __imod__, __ifloordiv__ = pow_, remainder_, floor_divide_
    __iand__, __ior__, __ixor__ = map(_inplace, (pointwise.bitwise_and, pointwise.bitwise_or, pointwise.bitwise_xor))

    def copy_(self, src: Any, non_blocking: bool = False) -> Self:
        """Overwrite with ``src``, which broadcasts and is converted to this dtype."""
        return self._assign(index.fit(src, self))

    def fill_(self, value: Any) -> Self:
        """Overwrite every element with one value."""
        return self._assign(index.fit(value, self))

    def zero_(self) -> Self:
        """Overwrite with zeros."""
        return self.fill_(0)

    def uniform_(self, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Self:
        """Overwrite with draws from [low, high)."""
        drawn = create.rand(self._type.shape, dtype=self.dtype, generator=generator)
        return self._assign(drawn * (high - low) + low)

    def normal_(self, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Self:
        """Overwrite with draws from a normal distribution."""
        drawn = create.randn(self._type.shape, dtype=self.dtype, generator=generator)
        return self._assign(drawn * std + mean)

    # -- conversions

    def to(self, *args: Any, dtype: Any = None, device: Any = None, copy: bool = False, non_blocking: bool = False) -> Tensor:
        """Convert the dtype. A device is accepted and ignored: placement is the signals' matter."""
        for a in args:
            if isinstance(a, Handle):
                dtype = a.dtype
            elif isinstance(a, DType) or (isinstance(a, str) and a in DType.by_name) or a in (bool, int, float):
                dtype = a
        out = promote.cast(self, dtype_of(dtype)) if dtype is not None else self
        return out.clone() if copy and out is self else out

    def type_as(self, other: Tensor) -> Tensor:
        return promote.cast(self, other.dtype)

    def astype(self, dtype: Any) -> Tensor:
        return promote.cast(self, dtype_of(dtype))

    def float(self) -> Tensor:
        return promote.cast(self, float32)

    def double(self) -> Tensor:
        return promote.cast(self, float64)

    def half(self) -> Tensor:
        return promote.cast(self, float16)

    def bfloat16(self) -> Tensor:
        return promote.cast(self, bfloat16)

    def long(self) -> Tensor:
        return promote.cast(self, int64)

    def int(self) -> Tensor:
        return promote.cast(self, int32)

    def short(self) -> Tensor:
        return promote.cast(self, int16)

    def char(self) -> Tensor:
        return promote.cast(self, int8)

    def byte(self) -> Tensor:
        return promote.cast(self, uint8)

    def bool(self) -> Tensor:
        return promote.cast(self, bool_)

    def cfloat(self) -> Tensor:
        return promote.cast(self, complex64)

    def cpu(self) -> Tensor:
        return self

    def cuda(self, device: Any = None) -> Tensor:
        return self

    # -- the rest of a tensor's habits

    @property
    def T(self) -> Tensor:  # noqa: N802 - torch's name
        return shape.permute(self, tuple(reversed(range(self.ndim)))) if self.ndim else self

    @property
    def mT(self) -> Tensor:  # noqa: N802 - torch's name
        if self.ndim < 2:
            raise RuntimeError(f"tensor.mT is only supported on matrices or batches of matrices. Got {self.ndim}-D tensor.")
        return shape.transpose(self, -2, -1)

    def new_zeros(self, *size: Any, dtype: Any = None) -> Tensor:
        return create.zeros(*size, dtype=dtype or self.dtype)

    def new_ones(self, *size: Any, dtype: Any = None) -> Tensor:
        return create.ones(*size, dtype=dtype or self.dtype)

    def new_full(self, size: Any, fill_value: Any, dtype: Any = None) -> Tensor:
        return create.full(size, fill_value, dtype=dtype or self.dtype)

    def new_tensor(self, data: Any, dtype: Any = None) -> Tensor:
        return create.tensor(data, dtype=dtype or self.dtype)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return iter(shape.unbind(self))

    def __contains__(self, value: object) -> Any:
        if not isinstance(value, Handle) and not promote.is_number(value):
            raise RuntimeError(f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a {type(value)}.")
        return bool(reduce.any(pointwise.eq(self, value)))

    def __repr__(self) -> str:
        return format_tensor(self)

    def __format__(self, spec: str) -> str:
        if not self.ndim and spec:
            return format(self.item(), spec)
        return object.__format__(self, spec) if spec else repr(self)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Tensor:
        if not self._leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
            )
        out = self._twin(self.detach().clone())
        memo[id(self)] = out
        if self._grad is not None:
            out._grad = copy.deepcopy(self._grad, memo)
        return out

    def _twin(self, values: Tensor) -> Tensor:
        """Give a tensor of this class and flags on other values."""
        return values.requires_grad_(self._rg)

    def __reduce__(self) -> tuple[Any, ...]:
        array = self._read()
        return _rebuild, (array.tobytes(), array.dtype.str, tuple(self.shape), self.dtype, self._rg)


def _rebuild(data: bytes, storage: str, size: tuple[int, ...], dtype: DType, requires_grad: bool) -> Tensor:
    """Make a tensor of pickled values."""
    array = np.frombuffer(data, storage).reshape(size)
    out = create.upload(array, dtype)
    return out.requires_grad_(requires_grad)


install_tensor(Tensor)
