"""Reductions and scans with torch's names and arguments; ``axis``/``keepdims`` are accepted for ``dim``/``keepdim``.

Next: ``gt.ir.ops.reduce`` (meaning).
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.functions.pointwise import sqrt, to_bool
from gt.functions.promote import binary, cast, floated, number_of, operand
from gt.functions.shape import squeeze
from gt.handle import Handle
from gt.ir.blame import warn_user
from gt.ir.ops import OPS
from gt.ir.types import (
    CallError,
    DType,
    EmptyError,
    KindError,
    bool_,
    class_name,
    dtype_of,
    float32,
    int64,
    is_int,
    normalize_dim,
    normalize_dims,
    scalar_type,
    uint8,
)
from gt.recording import record
from gt.return_types import another
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor

Dims = int | tuple[int, ...] | list[int] | None


class ValuesIndices(NamedTuple):
    """Values and where they came from."""

    values: Tensor
    indices: Tensor


NAMED = {
    name: another(name, ValuesIndices)
    for name in ("max", "min", "sort", "topk", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin")
}


def _dims(input: Tensor, dim: Dims, axis: Dims) -> tuple[int, ...]:
    if not isinstance(input, Handle):
        raise TypeError(f"expected a gt.Tensor, got {class_name(input)}")
    return normalize_dims(dim if axis is None else axis, len(input._type.shape))  # type: ignore[arg-type]


def _attrs(dims: tuple[int, ...], keepdim: bool, keepdims: bool | None) -> tuple[tuple[str, Any], ...]:
    return (("dims", dims), ("keepdim", bool(keepdim if keepdims is None else keepdims)))


def sum(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | str | None = None,
    axis: Dims = None, keepdims: bool | None = None,
) -> Tensor:  # fmt: skip
    """Add up over dims (all if None). Dtypes: integers and bool give int64."""
    dims = _dims(input, dim, axis)
    kind = input._type.dtype
    out = dtype_of(dtype) if dtype is not None else (int64 if kind.kind in "bui" else kind)
    return record(OPS["sum"], (input,), (*_attrs(dims, keepdim, keepdims), ("dtype", out)))


def mean(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | str | None = None,
    axis: Dims = None, keepdims: bool | None = None,
) -> Tensor:  # fmt: skip
    """Average over dims (all if None). Errors: RuntimeError for integers, as torch."""
    dims = _dims(input, dim, axis)
    if dtype is not None:
        input = cast(input, dtype_of(dtype))
    if input._type.dtype.kind not in "fc":
        raise CallError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
            f"Got: {scalar_type(input._type.dtype)}"
        )
    return record(OPS["mean"], (input,), _attrs(dims, keepdim, keepdims))


def prod(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | str | None = None,
    axis: int | None = None, keepdims: bool | None = None,
) -> Tensor:  # fmt: skip
    """Multiply over a dim (all if None). Dtypes: integers and bool give int64."""
    over, keep = dim if axis is None else axis, keepdim if keepdims is None else keepdims
    if not hasattr(over, "__index__") and (over is not None or keep):
        raise TypeError(f"prod(): argument 'dim' must be int, not {class_name(over)}")
    dims = _dims(input, dim, axis)
    kind = input._type.dtype
    out = dtype_of(dtype) if dtype is not None else (int64 if kind.kind in "bui" else kind)
    return record(OPS["prod"], (cast(input, out),), _attrs(dims, keepdim, keepdims))


def amax(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None, keepdims: bool | None = None
) -> Tensor:
    """Give the largest over dims; ties share the gradient."""
    return record(OPS["amax"], (input,), _attrs(_dims(input, dim, axis), keepdim, keepdims))


def amin(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None, keepdims: bool | None = None
) -> Tensor:
    """Give the smallest over dims; ties share the gradient."""
    return record(OPS["amin"], (input,), _attrs(_dims(input, dim, axis), keepdim, keepdims))


def max(
    input: Tensor, first: Any = None, keepdim: bool = False, *, dim: int | None = None, other: Tensor | None = None,
    axis: int | None = None, keepdims: bool | None = None,
) -> Any:  # fmt: skip
    """Give the largest of all elements; with ``dim``, (values, indices); with a tensor, ``maximum``."""
    return _extreme("max", input, first if other is None else other, keepdim, dim if axis is None else axis, keepdims)


def min(
    input: Tensor, first: Any = None, keepdim: bool = False, *, dim: int | None = None, other: Tensor | None = None,
    axis: int | None = None, keepdims: bool | None = None,
) -> Any:  # fmt: skip
    """Give the smallest of all elements; with ``dim``, (values, indices); with a tensor, ``minimum``."""
    return _extreme("min", input, first if other is None else other, keepdim, dim if axis is None else axis, keepdims)


def _extreme(name: str, input: Tensor, first: Any, keepdim: bool, dim: int | None, keepdims: bool | None) -> Any:
    if not isinstance(input, Handle):
        raise TypeError(f"{name}(): argument 'input' (position 1) must be Tensor, not {class_name(input)}")
    if isinstance(first, Handle):
        return binary(OPS[f"{name}imum"], input, first)
    from_dim = first if dim is None else dim
    if from_dim is None:
        _refuse_empty(name, input)
        return record(OPS[f"a{name}"], (input,), _attrs(tuple(range(input.ndim)), keepdim, keepdims))
    if input.ndim and input._type.shape[normalize_dim(from_dim, input.ndim)] == 0:
        raise EmptyError(f"{name}(): Expected reduction dim {normalize_dim(from_dim, input.ndim)} to have non-zero size.")
    return _extreme_along(name, input, from_dim, bool(keepdim if keepdims is None else keepdims))


@saves("result1")
def _extreme_along(name: str, input: Tensor, dim: int, keepdim: bool) -> ValuesIndices:
    index = _arg(f"arg{name}", input, dim, True)
    values = record(OPS["gather"], (input, index), (("dim", normalize_dim(dim, input.ndim)),)) if input.ndim else input.clone()
    if not keepdim and input.ndim:
        values, index = squeeze(values, dim), squeeze(index, dim)
    return NAMED[name](values, index)


def _refuse_empty(name: str, input: Tensor) -> None:
    if input.numel() == 0:
        raise EmptyError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument."
        )


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Tensor:
    """Give the index of the largest (the first of equals), in the whole tensor or along ``dim``. Dtypes: int64."""
    _refuse_bool("argmax(): does not support bool input", input)
    return _arg("argmax", input, dim if axis is None else axis, keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Tensor:
    """Give the index of the smallest (the first of equals), in the whole tensor or along ``dim``. Dtypes: int64."""
    _refuse_bool("argmin(): does not support bool input", input)
    return _arg("argmin", input, dim if axis is None else axis, keepdim)


def _refuse_bool(text: str, input: Tensor) -> None:
    if input._type.dtype is bool_:
        raise CallError(f"{text}: use x.int()")


def _arg(name: str, input: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if dim is None or not input.ndim:
        if dim is None:
            _refuse_empty(name, input)
        else:
            normalize_dim(dim, 0)
        flat = record(OPS["reshape"], (input,), (("shape", (input.numel(),)),))
        out = record(OPS[name], (flat,), (("dim", 0), ("keepdim", False)))
        return record(OPS["reshape"], (out,), (("shape", (1,) * input.ndim if keepdim else ()),)) if keepdim else out
    return record(OPS[name], (input,), (("dim", normalize_dim(dim, input.ndim)), ("keepdim", bool(keepdim))))


def any(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None, keepdims: bool | None = None
) -> Tensor:
    """Say whether any element is true over dims (all if None, none if empty). Dtypes: uint8 of uint8, else bool."""
    return _truth("any", input, dim if axis is None else axis, keepdim if keepdims is None else keepdims)


def all(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None, keepdims: bool | None = None
) -> Tensor:
    """Say whether all elements are true over dims (all if None, none if empty). Dtypes: uint8 of uint8, else bool."""
    return _truth("all", input, dim if axis is None else axis, keepdim if keepdims is None else keepdims)


def _truth(name: str, input: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    dims = _dims(input, dim, None)
    found = to_bool(input)
    if dims and (dim is None or is_int(dim) or len(dim)):
        found = record(OPS[name], (found,), _attrs(dims, keepdim, None))
    return cast(found, uint8) if input._type.dtype is uint8 else found


def var(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None,
    axis: Dims = None, keepdims: bool | None = None,
) -> Tensor:  # fmt: skip
    """Give the variance over dims, divided by n - correction (1 unless ``unbiased`` is False). Dtypes: real for complex numbers."""
    return variance("var", input, dim, unbiased, keepdim, correction, axis, keepdims)


def variance(
    name: str, input: Tensor, dim: Dims, unbiased: bool | None, keepdim: bool, correction: float | None, axis: Dims, keepdims: bool | None
) -> Tensor:
    """Give the variance, as a function of this name."""
    if isinstance(input, Handle) and input._type.dtype.kind not in "fc":
        names = name if name.endswith("_mean") else "std and var"
        raise KindError(f"{names} only support floating point and complex dtypes, got {input._type!r}")
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 0 if unbiased is False else 1
    correction = number_of("var", "correction", correction)
    dims = _dims(input, dim, axis)
    shape = input._type.shape
    out = 0 in [n for d, n in enumerate(shape) if d not in dims]
    if (0 if out else math.prod(shape[d] for d in dims)) <= correction:
        warn_user(
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input numel divided by "
            "output numel)."
        )
    parts = [input] if input._type.dtype.kind != "c" else [record(OPS[part], (input,)) for part in ("real", "imag")]
    attrs = (*_attrs(dims, keepdim, keepdims), ("correction", correction))
    found = [record(OPS["var"], (part,), attrs) for part in parts]
    return found[0] if len(found) == 1 else binary(OPS["add"], *found)


@saves("input result")
def std(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None,
    axis: Dims = None, keepdims: bool | None = None,
) -> Tensor:  # fmt: skip
    """Give the standard deviation over dims; see ``var``. Where it is 0, its gradient is 0."""
    return deviation("std", input, dim, unbiased, keepdim, correction, axis, keepdims)


def deviation(name: str, input: Tensor, *given: Any) -> Tensor:
    """Give the standard deviation, as a function of this name."""
    if isinstance(input, Handle) and input._type.dtype.kind == "f" and input._type.dtype.itemsize == 2:  # which may not hold squares
        return cast(deviation(name, cast(input, float32), *given), input._type.dtype)
    squared = variance(name, input, *given)
    if not squared._rg:
        return sqrt(squared)
    flat = record(OPS["eq"], (squared, operand(0.0, squared._type.dtype)))
    safe = record(OPS["where"], (flat, operand(1.0, squared._type.dtype), squared))
    return record(OPS["where"], (flat, operand(0.0, squared._type.dtype), sqrt(safe)))


def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """Give log(sum(exp(x))) over dims without overflow."""
    return record(OPS["logsumexp"], (floated(input),), _attrs(_dims(input, dim, None), keepdim, None))


def cumsum(input: Tensor, dim: int, *, dtype: DType | str | None = None) -> Tensor:
    """Add up along a dim, keeping every partial sum. Dtypes: integers and bool give int64."""
    kind = input._type.dtype
    out = dtype_of(dtype) if dtype is not None else (int64 if kind.kind in "bui" else kind)
    d = normalize_dim(dim, input.ndim)
    return record(OPS["cumsum"], (cast(input, out),), (("dim", d),))


def cumprod(input: Tensor, dim: int, *, dtype: DType | str | None = None) -> Tensor:
    """Multiply along a dim, keeping every partial product. Dtypes: integers and bool give int64."""
    kind = input._type.dtype
    out = dtype_of(dtype) if dtype is not None else (int64 if kind.kind in "bui" else kind)
    d = normalize_dim(dim, input.ndim)
    return record(OPS["cumprod"], (cast(input, out),), (("dim", d),))


def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """Count the elements that are not zero. Dtypes: int64."""
    return sum(to_bool(input), dim)


def softmax(input: Tensor, dim: int | None = None, dtype: DType | str | None = None) -> Tensor:
    """Give exp(x) / sum(exp(x)) along ``dim``."""
    return _softmax("softmax", input, dim, dtype)


def log_softmax(input: Tensor, dim: int | None = None, dtype: DType | str | None = None) -> Tensor:
    """Give log(softmax(x)) along ``dim``."""
    return _softmax("log_softmax", input, dim, dtype)


def _softmax(name: str, input: Tensor, dim: int | None, dtype: DType | str | None) -> Tensor:
    if dim is None:
        raise TypeError(f"{name}() missing required argument 'dim'")
    if dtype is not None:
        input = cast(input, dtype_of(dtype))
    d = normalize_dim(dim, input.ndim)
    if not input.ndim:
        return _softmax(name, input.reshape(1), 0, None).reshape(())
    return record(OPS[name], (input,), (("dim", d),))


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> ValuesIndices:
    """Sort along ``dim``; NaN counts as the largest; equal elements keep their order."""
    d = normalize_dim(dim, input.ndim)
    if not input.ndim:
        return NAMED["sort"](input.clone(), _arg("argmax", input, None, False))
    return NAMED["sort"](*record(OPS["sort"], (input,), (("dim", d), ("descending", bool(descending)))))


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """Give the indices that sort along ``dim``."""
    return sort(input, dim, descending).indices


@saves("result1")
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
    """Give the ``k`` largest (or smallest) along ``dim``, in order. Dtypes: all but bool."""
    _refuse_bool("topk does not support bool dtypes", input)
    d = normalize_dim(dim, input.ndim)
    size, k = input._type.shape[d] if input.ndim else 1, operator.index(k)
    if not 0 <= k <= size:
        raise CallError("selected index k out of range")
    if not input.ndim:
        return sort(input)
    return NAMED["topk"](*record(OPS["topk"], (input,), (("k", int(k)), ("dim", d), ("largest", bool(largest)))))
