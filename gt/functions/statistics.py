"""Statistics: medians, quantiles, modes, NaN-skipping reductions, covariance.

Next: ``reduce`` (the everyday reductions), ``running``, ``counting``.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.functions.create import tensor, zeros
from gt.functions.gathering import gather
from gt.functions.numeric import real_only
from gt.functions.pointwise import isnan, logical_not, sqrt, where
from gt.functions.promote import cast, floated, is_number, refuse
from gt.functions.reduce import (
    NAMED,
    ValuesIndices,
    amax,
    amin,
    deviation,
    mean,
    sum,
    variance,
)  # fmt: skip
from gt.functions.reduce import sort as sort_
from gt.functions.shape import reshape, squeeze, unsqueeze
from gt.handle import Handle
from gt.ir.blame import warn_user
from gt.ir.ops import OPS
from gt.ir.types import CallError, DType, bool_, dtype_of, int32, int64, normalize_dim, real_dtype, scalar_type
from gt.recording import record
from gt.return_types import named
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor

Dims = int | tuple[int, ...] | list[int] | None


@named("aminmax")
class MinMax(NamedTuple):
    """The smallest and the largest."""

    min: Tensor
    max: Tensor


# -- pairs of reductions


def var_mean(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Give variance and mean over dims."""
    real_dims = None if isinstance(dim, bool) else dim
    return variance("var_mean", input, dim, unbiased, keepdim, correction, None, None), mean(input, real_dims, keepdim)


@saves("input result0")
def std_mean(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Give standard deviation and mean over dims."""
    real_dims = None if isinstance(dim, bool) else dim
    return deviation("std_mean", input, dim, unbiased, keepdim, correction, None, None), mean(input, real_dims, keepdim)


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
    """Give the smallest and the largest, over all elements or along ``dim``."""
    if dim is None and input.numel() == 0:
        raise CallError(
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity."
        )
    if dim is not None and input.ndim and input._type.shape[normalize_dim(dim, input.ndim)] == 0:
        raise IndexError(f"aminmax(): Expected reduction dim {normalize_dim(dim, input.ndim)} to have non-zero size.")
    return MinMax(amin(input, dim, keepdim), amax(input, dim, keepdim))


# -- order statistics


def _refuse_bool(name: str, input: Tensor) -> None:
    if input._type.dtype is bool_:
        raise CallError(f"\"{name}\" not implemented for 'Bool': use x.int()")


@saves("result1")
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """Give the k-th smallest along ``dim``, counting from 1, and where it is. Dtypes: all but bool."""
    _refuse_bool("kthvalue", input)
    d = normalize_dim(dim, input.ndim)
    size = input._type.shape[d] if input.ndim else 1
    if input.ndim and size == 0:
        raise IndexError(f"kthvalue(): Expected reduction dim {d} to have non-zero size.")
    k = operator.index(k)
    if not 1 <= k <= size:
        raise CallError(f"kthvalue(): selected number k out of range for dimension {d}")
    return _one("kthvalue", "kthvalue", input, d, keepdim, ("k", int(k)))


def _one(name: str, op: str, input: Tensor, dim: int, keepdim: bool, *how: tuple[str, Any]) -> ValuesIndices:
    values, indices = record(OPS[op], (input,), (("dim", dim), *how))
    if not keepdim and input.ndim:
        values, indices = squeeze(values, dim), squeeze(indices, dim)
    return NAMED[name](values, indices)


def _of_all(given: dict[str, Any]) -> str:
    return "input result" if given.get("dim") is None else "result1"


@saves(_of_all)
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Give the median, the lower of two middle ones; NaN if any is. With ``dim``, (values, indices)."""
    return _median("median", input, dim, keepdim)


@saves(_of_all)
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Give the median of what is not NaN."""
    return _median("nanmedian", input, dim, keepdim)


def _median(name: str, input: Tensor, dim: int | None, keepdim: bool) -> Any:
    real_only(name, input)
    _refuse_bool(name, input)
    if dim is None:
        if input.numel() == 0:
            smallest = -(2 ** (8 * input.dtype.itemsize - 1)) if input.dtype in (int32, int64) else 0  # what NaN becomes in torch
            return tensor(math.nan if input.dtype.kind == "f" else smallest, dtype=input.dtype)
        found = _median(name, reshape(input, -1), 0, False).values
        return _shared(input, found.detach()) if input._rg else found
    d = normalize_dim(dim, input.ndim)
    if not input.ndim:
        return NAMED[name](input.clone(), zeros((), dtype=int64))
    size = input._type.shape[d]
    if size == 0:
        raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")
    return _one(name, "median", input, d, keepdim, ("skip_nan", name == "nanmedian"))


def _shared(input: Tensor, value: Tensor) -> Tensor:
    """Give ``value``, one of the elements, with a gradient that all elements equal to it share."""
    same = (input == value) | (isnan(input) & isnan(value))
    shared = sum(where(same, input, 0.0)) / sum(same).detach()
    return record(OPS["graft"], (shared, value))


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """Give the most frequent value along ``dim``, and where it last stands."""
    d = normalize_dim(dim, input.ndim)
    if input.ndim and input._type.shape[d] == 0:
        raise IndexError(f"mode(): Expected reduction dim {d} to have non-zero size.")
    return _one("mode", "mode", input, d, keepdim)


def msort(input: Tensor) -> Tensor:
    """Sort along the first dim."""
    return sort_(input, 0).values


def quantile(
    input: Tensor, q: Tensor | float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """Give quantiles along ``dim`` (of all elements if None); NaN if any element is."""
    return _quantile("quantile", input, q, dim, keepdim, interpolation)


def nanquantile(
    input: Tensor, q: Tensor | float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """Give quantiles of what is not NaN."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation)


def _quantile(name: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str) -> Tensor:
    if input.dtype.kind != "f" or input.dtype.itemsize < 4:
        raise CallError(f"{name}() input tensor must be either float or double dtype")
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise CallError(
            f"{name}() interpolation must be one of linear, lower, higher, midpoint or nearest, but got {interpolation}"
        )
    if not isinstance(q, Handle) and (not is_number(q) or isinstance(q, complex)):
        raise refuse(name, q, "'q' (position 2)")
    points = q if isinstance(q, Handle) else tensor(float(q), dtype=input.dtype)
    if points.ndim > 1:
        raise CallError(f"{name}() q must be a scalar or 1D tensor")
    if points.dtype is not input.dtype:
        raise CallError(f"{name}() q tensor must be same dtype as the input tensor")
    if not isinstance(q, Handle) and not 0 <= q <= 1:
        raise CallError(f"{name}() q must be in the range [0, 1] but got {q}")
    if input.numel() == 0:
        raise CallError(f"{name}() input tensor must be non-empty")
    d = normalize_dim(dim, input.ndim) if dim is not None else None
    flat = reshape(input, -1) if d is None or not input.ndim else input.movedim(d, -1)
    values = sort_(flat, -1).values
    n = values._type.shape[-1]
    missing = isnan(values)
    bad = missing.any(-1, keepdim=True)
    count = sum(logical_not(missing), -1, True) if name == "nanquantile" else None
    top = cast(count - 1, input.dtype).clamp(min=0) if count is not None else float(n - 1)
    line = reshape(points, (*(1,) * (values.ndim - 1), points.numel()))
    rank = line * top
    rank = (
        rank.expand(*values._type.shape[:-1], points.numel())
        if rank._type.shape[:-1] != values._type.shape[:-1]
        else rank
    )
    if interpolation == "lower":
        rank = rank.floor()
    elif interpolation == "higher":
        rank = rank.ceil()
    elif interpolation == "nearest":
        rank = rank.round()
    low = cast(rank.detach(), int64)
    out = gather(values, -1, low)
    if interpolation in ("linear", "midpoint"):
        weight = 0.5 if interpolation == "midpoint" else rank - cast(low, input.dtype)
        high = cast(rank.detach().ceil(), int64)
        above = gather(values, -1, high)
        out = lerp_(out, above, weight)
    if name == "quantile":
        out = where(bad, math.nan, out)
    out = out.movedim(-1, 0)
    if keepdim and input.ndim:
        out = (
            out.unsqueeze(-1 if d is None else d + 1)
            if d is not None
            else reshape(out, (points.numel(), *(1,) * input.ndim))
        )
    return out if points.ndim else squeeze(out, 0)


def lerp_(start: Any, end: Any, weight: Any) -> Any:
    """Give start + weight * (end - start); equal ends exactly."""
    return where(start == end, start, start + (end - start) * weight)


# -- NaN-skipping reductions


@saves("input")
def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | str | None = None) -> Tensor:
    """Add up what is not NaN."""
    real_only("nansum", input)
    return sum(where(isnan(input), 0, input) if input.dtype.kind == "f" else input, dim, keepdim, dtype=dtype)


@saves("input")
def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | str | None = None) -> Tensor:
    """Average what is not NaN."""
    if input.dtype.kind != "f":
        raise CallError(
            f"nanmean(): expected input to have floating point or complex dtype but got {scalar_type(input.dtype)}"
        )
    if dtype is not None and dtype_of(dtype).kind not in "fc":
        raise CallError(
            "nanmean(): could not infer output dtype. Optional dtype must be either a floating point or complex dtype. "
            f"Got: {scalar_type(dtype_of(dtype))}"
        )
    return nansum(input, dim, keepdim, dtype=dtype) / sum(logical_not(isnan(input)), dim, keepdim)


# -- covariance


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """Give the covariance matrix of rows; columns are observations, with whole-number and real weights."""
    if input.ndim > 2:
        raise CallError(
            f"cov(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions"
        )
    if input.dtype is bool_:
        raise CallError("cov(): bool dtype is not supported for input")
    x = floated(reshape(input, (1, -1)) if input.ndim < 2 else input)
    n = x._type.shape[1]
    weights = None
    for name, w in (("fweights", fweights), ("aweights", aweights)):
        if w is None:
            continue
        if w.ndim > 1:
            raise CallError(
                f"cov(): expected {name} to have one or fewer dimensions but got {name} with {w.ndim} dimensions"
            )
        if (w.dtype.kind in "ui") != (name == "fweights"):
            kinds = "integral" if name == "fweights" else "floating point"
            raise CallError(f"cov(): expected {name} to have {kinds} dtype but got {name} with {w.dtype.name} dtype")
        if w.numel() != n:
            raise CallError(
                f"cov(): expected {name} to have the same numel as there are observations in the input but got {w.numel()} != {n}"
            )
        if w.numel() and bool((w < 0).any()):
            raise CallError(f"cov(): {name} cannot be negative")
        weights = w if weights is None else weights * w
    if weights is None:
        if n <= correction:
            warn_user("cov(): degrees of freedom is <= 0. Correction should be strictly less than the number of observations.")
        centred, norm = x - mean(x, 1, True), max(n - correction, 0)
        left = centred
    else:
        total = sum(weights)
        average = sum(x * weights, 1, True) / total
        centred = x - average
        left = centred * weights
        if correction == 0:
            norm = total
        elif aweights is not None:
            each = weights * (aweights if fweights is not None else aweights)
            norm = total - correction * sum(each) / total
        else:
            norm = total - correction
        norm = cast(norm, real_dtype(x.dtype)).clamp(min=0)
    from_conj = OPS["conj"]
    other = record(from_conj, (centred,)) if centred.dtype.kind == "c" else centred
    return squeeze((left @ other.transpose(0, 1)) / norm)


def corrcoef(input: Tensor) -> Tensor:
    """Give the correlation coefficients of rows."""
    if input.ndim > 2:
        raise CallError(
            f"corrcoef(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions"
        )
    c = cov(input)
    if not c.ndim:
        return c / c
    spread = sqrt(real_part(c.diagonal()))
    return c / unsqueeze(spread, 1) / unsqueeze(spread, 0)


def real_part(t: Any) -> Any:
    return record(OPS["real"], (t,)) if t.dtype.kind == "c" else t
