"""Statistics: medians, quantiles, modes, norms, histograms, running extremes, NaN-skipping reductions, unique values.

Next: ``reduce`` (the everyday reductions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gt.functions.create import from_numpy, linspace, tensor, zeros
from gt.functions.index import gather
from gt.functions.numeric import real_only
from gt.functions.pointwise import abs as abs_
from gt.functions.pointwise import isnan, logical_not, sqrt, where
from gt.functions.promote import broadcast, cast, floated
from gt.functions.reduce import (
    ValuesIndices,
    amax,
    amin,
    mean,
    std,
    sum,
    var,
)  # fmt: skip
from gt.functions.reduce import sort as sort_
from gt.functions.shape import narrow, reshape, squeeze, unsqueeze
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import DType, Scalar, bool_, dtype_of, float64, int64, normalize_dim, normalize_dims, real_dtype
from gt.trace import record

if TYPE_CHECKING:
    from gt.tensor import Tensor

Dims = int | tuple[int, ...] | list[int] | None


class MinMax(NamedTuple):
    """The smallest and the largest."""

    min: Tensor
    max: Tensor


class Histogram(NamedTuple):
    """Counts and the edges between them."""

    hist: Tensor
    bin_edges: Tensor


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
    return var(input, dim, unbiased, keepdim, correction=correction), mean(input, real_dims, keepdim)


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
    return std(input, dim, unbiased, keepdim, correction=correction), mean(input, real_dims, keepdim)


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
    """Give the smallest and the largest, over all elements or along ``dim``."""
    if dim is None and input.numel() == 0:
        raise RuntimeError(
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity."
        )
    if dim is not None and input.ndim and input._type.shape[normalize_dim(dim, input.ndim)] == 0:
        raise IndexError(f"aminmax(): Expected reduction dim {normalize_dim(dim, input.ndim)} to have non-zero size.")
    return MinMax(amin(input, dim, keepdim), amax(input, dim, keepdim))


# -- order statistics


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """Give the k-th smallest along ``dim``, counting from 1, and where it is."""
    d = normalize_dim(dim, input.ndim)
    size = input._type.shape[d] if input.ndim else 1
    if input.ndim and size == 0:
        raise IndexError(f"kthvalue(): Expected reduction dim {d} to have non-zero size.")
    if not 1 <= k <= size:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {d}")
    return _pick(*sort_(input, d, stable=True), d, k - 1, keepdim)


def _pick(values: Tensor, indices: Tensor, dim: int, at: int, keepdim: bool) -> ValuesIndices:
    if not values.ndim:
        return ValuesIndices(values, indices)
    picked = [narrow(t, dim, at, 1) for t in (values, indices)]
    return ValuesIndices(*(t if keepdim else squeeze(t, dim) for t in picked))


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Give the median, the lower of two middle ones; NaN if any is. With ``dim``, (values, indices)."""
    return _median("median", input, dim, keepdim)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Give the median of what is not NaN."""
    return _median("nanmedian", input, dim, keepdim)


def _median(name: str, input: Tensor, dim: int | None, keepdim: bool) -> Any:
    real_only(name, input)
    if dim is None:
        if input.numel() == 0:
            return (
                tensor(math.nan, dtype=input.dtype) if input.dtype.kind == "f" else tensor(-(2**63), dtype=input.dtype)
            )
        return _median(name, reshape(input, -1), 0, False).values
    d = normalize_dim(dim, input.ndim)
    if not input.ndim:
        return ValuesIndices(input.clone(), zeros((), dtype=int64))
    size = input._type.shape[d]
    if size == 0:
        raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")
    values, indices = sort_(input, d, stable=True)
    if input.dtype.kind != "f":
        return _pick(values, indices, d, (size - 1) // 2, keepdim)
    valid = sum(logical_not(isnan(input)), d, True)
    if name == "median":
        at = where(valid < size, valid, (size - 1) // 2)  # the first NaN of the sorted order
    else:
        at = ((valid - 1) // 2).clamp(min=0)
    picked = [gather(values, d, at), gather(indices, d, at)]
    return ValuesIndices(*(t if keepdim else squeeze(t, d) for t in picked))


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """Give the most frequent value along ``dim``, and where it last stands."""
    d = normalize_dim(dim, input.ndim)
    if input.ndim and input._type.shape[d] == 0:
        raise IndexError(f"mode(): Expected reduction dim {d} to have non-zero size.")
    values, indices = record(OPS["mode"], (input,), (("dim", d),))
    if not keepdim and input.ndim:
        values, indices = squeeze(values, d), squeeze(indices, d)
    return ValuesIndices(values, indices)


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
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype")
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise RuntimeError(
            f"{name}() interpolation must be one of linear, lower, higher, midpoint or nearest, but got {interpolation}"
        )
    points = q if isinstance(q, Handle) else tensor(float(q), dtype=input.dtype)
    if points.ndim > 1:
        raise RuntimeError(f"{name}() q must be a scalar or 1D tensor")
    if points.dtype is not input.dtype:
        raise RuntimeError(f"{name}() q tensor must be same dtype as the input tensor")
    if not isinstance(q, Handle) and not 0 <= q <= 1:
        raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
    if input.numel() == 0:
        raise RuntimeError(f"{name}() input tensor must be non-empty")
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


def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | str | None = None) -> Tensor:
    """Add up what is not NaN."""
    real_only("nansum", input)
    return sum(where(isnan(input), 0, input) if input.dtype.kind == "f" else input, dim, keepdim, dtype=dtype)


def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | str | None = None) -> Tensor:
    """Average what is not NaN."""
    if input.dtype.kind != "f":
        raise RuntimeError(
            f"nanmean(): expected input to have floating point or complex dtype but got {input.dtype.name}"
        )
    return nansum(input, dim, keepdim, dtype=dtype) / sum(logical_not(isnan(input)), dim, keepdim)


# -- running


def cummax(input: Tensor, dim: int) -> ValuesIndices:
    """Give the largest so far along ``dim``, and where it is."""
    return _running("cummax", input, dim)


def cummin(input: Tensor, dim: int) -> ValuesIndices:
    """Give the smallest so far along ``dim``, and where it is."""
    return _running("cummin", input, dim)


def _running(name: str, input: Tensor, dim: int) -> ValuesIndices:
    return ValuesIndices(*record(OPS[name], (input,), (("dim", normalize_dim(dim, input.ndim)),)))


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Give the log of the running sum of exponentials along ``dim``."""
    d = normalize_dim(dim, input.ndim)
    return record(OPS["logcumsumexp"], (floated(input),), (("dim", d),))


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Give the n-th differences of neighbours along ``dim``."""
    if not input.ndim:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    d = normalize_dim(dim, input.ndim)
    if n == 0:
        return input.clone()
    parts = [p for p in (prepend, input, append) if p is not None]
    for p in parts:
        if p.ndim != input.ndim:
            raise RuntimeError("diff expects prepend or append to be the same dimension as input")
        if any(a != b for i, (a, b) in enumerate(zip(p._type.shape, input._type.shape, strict=True)) if i != d):
            bad = next(
                i for i, (a, b) in enumerate(zip(p._type.shape, input._type.shape, strict=True)) if i != d and a != b
            )
            raise RuntimeError(
                "diff expects the shape of tensor to prepend or append to match that of input except along the differencing "
                f"dimension; input.size({bad}) = {input._type.shape[bad]}, but got tensor.size({bad}) = {p._type.shape[bad]}"
            )
    out = parts[0] if len(parts) == 1 else _cat(parts, d)
    for _ in range(min(n, out._type.shape[d])):
        size = out._type.shape[d]
        if size < 2:
            return narrow(out, d, 0, 0)
        after, before = narrow(out, d, 1, size - 1), narrow(out, d, 0, size - 1)
        out = after ^ before if out.dtype is bool_ else after - before
    return out


def _cat(parts: Sequence[Any], dim: int) -> Any:
    from_common = parts[0].dtype
    return record(OPS["cat"], tuple(cast(p, from_common) for p in parts), (("dim", dim),))


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Scalar = 1, dim: int = -1) -> Tensor:
    """Give the running integral by the trapezoid rule."""
    pieces = _trapezoids(y, x, dx, dim)
    return pieces.cumsum(normalize_dim(dim, y.ndim))


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Scalar = 1, dim: int = -1) -> Tensor:
    """Integrate by the trapezoid rule along ``dim``."""
    d = normalize_dim(dim, y.ndim)
    if y._type.shape[d] == 0:
        return sum(y, d) * 1.0 if y.dtype.kind in "fc" else sum(floated(y), d)
    return sum(_trapezoids(y, x, dx, dim), d)


trapz = trapezoid


def _trapezoids(y: Tensor, x: Tensor | None, dx: Scalar, dim: int) -> Tensor:
    d = normalize_dim(dim, y.ndim)
    n = y._type.shape[d]
    halves = (narrow(y, d, 1, n - 1) + narrow(y, d, 0, n - 1)) / 2 if n else floated(y)
    if x is None:
        return halves * dx if dx != 1 else halves
    widths = diff(x, dim=-1 if x.ndim == 1 else dim)
    if x.ndim == 1 and y.ndim > 1:
        widths = reshape(widths, (-1, *(1,) * (y.ndim - d - 1)))
    return halves * widths


def gradient(input: Tensor, *, spacing: Any = 1, dim: Dims = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """Estimate derivatives along dims by central differences; one-sided of ``edge_order`` at the ends."""
    dims = list(normalize_dims(dim, input.ndim))
    if dim is not None and not isinstance(dim, int):
        dims = [normalize_dim(v, input.ndim) for v in dim]
    if edge_order not in (1, 2):
        raise RuntimeError("torch.gradient only supports edge_order=1 and edge_order=2.")
    spacing = 1 if spacing is None else spacing
    spacings = list(spacing) if isinstance(spacing, list | tuple) else [spacing] * len(dims)
    if isinstance(spacing, list | tuple) and len(spacings) != len(dims):
        kind = (
            "to be unspecified, a scalar, or a list"
            if not any(isinstance(s, Handle) for s in spacings)
            else "to be a list"
        )
        raise RuntimeError(
            f"torch.gradient expected spacing {kind} of length equal to 'self.dim() - 1' or the number of dims, got {len(spacings)}"
        )
    out = []
    for d, step in zip(dims, spacings, strict=True):
        n = input._type.shape[d]
        if n < edge_order + 1:
            raise RuntimeError("torch.gradient expected each dimension size to be at least edge_order+1")
        out.append(_along(input, d, step, edge_order))
    return tuple(out)


def _along(t: Tensor, d: int, step: Any, edge_order: int) -> Tensor:
    n = t._type.shape[d]
    at = lambda start, count: narrow(t, d, start, count)  # noqa: E731
    if isinstance(step, Handle):
        if step.ndim != 1 or step.numel() != n:
            raise RuntimeError(
                "torch.gradient expected each element of `spacing` to have one dimension of the dim's size"
            )
        h = diff(step)
        shape = lambda v: reshape(v, (-1, *(1,) * (t.ndim - d - 1)))  # noqa: E731
        a, b = shape(narrow(h, 0, 0, n - 2)), shape(narrow(h, 0, 1, n - 2))
        inner = (
            at(0, n - 2) * (-b / (a * (a + b)))
            + at(1, n - 2) * ((b - a) / (a * b))
            + at(2, n - 2) * (a / (b * (a + b)))
        )
        first, last = shape(narrow(h, 0, 0, 1)), shape(narrow(h, 0, n - 2, 1))
        if edge_order == 1:
            left, right = (at(1, 1) - at(0, 1)) / first, (at(n - 1, 1) - at(n - 2, 1)) / last
        else:
            second, before = shape(narrow(h, 0, 1, 1)), shape(narrow(h, 0, n - 3, 1))
            left = _edge(at(0, 1), at(1, 1), at(2, 1), first, second)
            right = -_edge(at(n - 1, 1), at(n - 2, 1), at(n - 3, 1), last, before)
    else:
        inner = (at(2, n - 2) - at(0, n - 2)) / (2 * step)
        if edge_order == 1:
            left, right = (at(1, 1) - at(0, 1)) / step, (at(n - 1, 1) - at(n - 2, 1)) / step
        else:
            left = (-1.5 * at(0, 1) + 2 * at(1, 1) - 0.5 * at(2, 1)) / step
            right = (1.5 * at(n - 1, 1) - 2 * at(n - 2, 1) + 0.5 * at(n - 3, 1)) / step
    return _cat([left, inner, right], d)


def _edge(a: Any, b: Any, c: Any, h1: Any, h2: Any) -> Any:
    return -a * ((2 * h1 + h2) / (h1 * (h1 + h2))) + b * ((h1 + h2) / (h1 * h2)) - c * (h1 / (h2 * (h1 + h2)))


# -- covariance


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """Give the covariance matrix of rows; columns are observations, with whole-number and real weights."""
    if input.ndim > 2:
        raise RuntimeError(
            f"cov(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions"
        )
    if input.dtype is bool_:
        raise RuntimeError("cov(): bool dtype is not supported for input")
    x = floated(reshape(input, (1, -1)) if input.ndim < 2 else input)
    n = x._type.shape[1]
    weights = None
    for name, w in (("fweights", fweights), ("aweights", aweights)):
        if w is None:
            continue
        if w.ndim > 1:
            raise RuntimeError(
                f"cov(): expected {name} to have one or fewer dimensions but got {name} with {w.ndim} dimensions"
            )
        if (w.dtype.kind in "ui") != (name == "fweights"):
            kinds = "integral" if name == "fweights" else "floating point"
            raise RuntimeError(f"cov(): expected {name} to have {kinds} dtype but got {name} with {w.dtype.name} dtype")
        if w.numel() != n:
            raise RuntimeError(
                f"cov(): expected {name} to have the same numel as there are observations in the input but got {w.numel()} != {n}"
            )
        if w.numel() and bool((w < 0).any()):
            raise RuntimeError(f"cov(): {name} cannot be negative")
        weights = w if weights is None else weights * w
    if weights is None:
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
        raise RuntimeError(
            f"corrcoef(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions"
        )
    c = cov(input)
    if not c.ndim:
        return c / c
    spread = sqrt(real_part(c.diagonal()))
    return c / unsqueeze(spread, 1) / unsqueeze(spread, 0)


def real_part(t: Any) -> Any:
    return record(OPS["real"], (t,)) if t.dtype.kind == "c" else t


# -- counting


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count how often each non-negative integer stands. Flushes: the size depends on data."""
    if input.ndim != 1 or input.dtype.kind not in "ui":
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    values = input._read()
    if values.size and values.min() < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    n = max(int(values.max(initial=-1)) + 1, minlength)
    if weights is None:
        return from_numpy(np.bincount(values, minlength=n).astype(np.int64))
    if weights._type.shape != input._type.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    w = weights if weights.dtype.name in ("float32", "float64") else cast(weights, float64)
    return zeros(n, dtype=w.dtype).scatter_add(0, cast(input, int64), w)


def histc(input: Tensor, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Tensor:
    """Count elements in ``bins`` equal bins from ``min`` to ``max`` (of the data if equal)."""
    if bins <= 0:
        raise RuntimeError(f"bins must be > 0, but got {bins}")
    x = reshape(input, -1)
    low: Any = min
    high: Any = max
    if min == max and x.numel():
        low, high = (float(v) for v in (amin(x), amax(x)))
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError("max must be larger than min")
    inside = (x >= low) & (x <= high)
    place = cast((x - low) * bins / (high - low), int64).clamp(0, bins - 1)
    return zeros(bins, dtype=input.dtype).scatter_add(0, place, cast(inside, input.dtype))


def histogram(
    input: Tensor, bins: Any, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> Histogram:
    """Count elements between bin edges, or in equal bins of a range."""
    x = reshape(input, -1)
    if isinstance(bins, Handle):
        edges = bins
    else:
        low, high = range if range is not None else ((float(amin(x)), float(amax(x))) if x.numel() else (0.0, 0.0))
        if low == high:
            low, high = (low - 0.5, high + 0.5) if x.numel() or range is not None else (0.0, 1.0)
        edges = linspace(low, high, int(bins) + 1, dtype=input.dtype)
    n = edges.numel() - 1
    place = record(OPS["searchsorted"], (edges, x), (("right", True),)) - 1
    place = where(x == edges[-1], n - 1, place)
    inside = (place >= 0) & (place < n)
    w = reshape(weight, -1) if weight is not None else cast(inside, input.dtype)
    counts = zeros(n, dtype=input.dtype).scatter_add(0, place.clamp(0, max_(n - 1)), where(inside, w, 0.0))
    if density:
        counts = counts / (sum(counts) * diff(edges))
    return Histogram(counts, edges)


def max_(n: int) -> int:
    return n if n > 0 else 0


# -- searching


def searchsorted(
    sorted_sequence: Tensor, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Give where each value would stand in sorted order, along the last dim."""
    if side not in (None, "left", "right"):
        raise RuntimeError(f"side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise RuntimeError("side and right can't be set to opposites, got side of left while right was True")
    right = right or side == "right"
    edges = sorted_sequence if sorter is None else gather(sorted_sequence, -1, sorter)
    values = input if isinstance(input, Handle) else tensor(input, dtype=edges.dtype)
    if edges.ndim > 1 and edges._type.shape[:-1] != values._type.shape[:-1]:
        raise RuntimeError(
            "boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and input value tensor must match"
        )
    if edges.ndim == 1:
        out = record(OPS["searchsorted"], (edges, cast(values, edges.dtype)), (("right", right),))
    else:
        below = unsqueeze(edges, -2) <= unsqueeze(values, -1) if right else unsqueeze(edges, -2) < unsqueeze(values, -1)
        out = sum(below, -1)
    return cast(out, dtype_of("int32")) if out_int32 else out


def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Give the index of the bucket of each value."""
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Say which elements are among others."""
    a = elements if isinstance(elements, Handle) else tensor(elements)
    b = test_elements if isinstance(test_elements, Handle) else tensor(test_elements)
    found = (unsqueeze(a, -1) == reshape(b, -1)).any(-1)
    return logical_not(found) if invert else found


# -- unique values: read on the client, since how many there are depends on data


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Give the distinct elements (or slices along ``dim``) in order. Flushes."""
    array = input._read()
    if dim is None:
        values, inverse, counts = np.unique(array.reshape(-1), return_inverse=True, return_counts=True, equal_nan=False)
        inverse = inverse.reshape(array.shape)
    else:
        d = normalize_dim(dim, input.ndim)
        values, inverse, counts = np.unique(array, return_inverse=True, return_counts=True, axis=d)
        inverse = inverse.reshape(-1)
    return _uniques(input, values, inverse, counts, return_inverse, return_counts)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Give the elements (or slices along ``dim``) that differ from the one before. Flushes."""
    array = input._read()
    rows = array.reshape(-1, 1) if dim is None else np.moveaxis(array, normalize_dim(dim, input.ndim), 0)
    flat = rows.reshape(len(rows), rows.size // max(len(rows), 1))
    new = np.ones(len(flat), bool)
    new[1:] = (flat[1:] != flat[:-1]).any(1)
    inverse = np.cumsum(new) - 1
    counts = np.diff(np.append(np.flatnonzero(new), len(flat)))
    values = rows[new]
    if dim is None:
        return _uniques(input, values.reshape(-1), inverse.reshape(array.shape), counts, return_inverse, return_counts)
    return _uniques(
        input, np.moveaxis(values, 0, normalize_dim(dim, input.ndim)), inverse, counts, return_inverse, return_counts
    )


def _uniques(input: Tensor, values: Any, inverse: Any, counts: Any, with_inverse: bool, with_counts: bool) -> Any:
    out = [tensor(values, dtype=input.dtype)]
    if with_inverse:
        out.append(from_numpy(inverse.astype(np.int64)))
    if with_counts:
        out.append(from_numpy(counts.astype(np.int64)))
    return out[0] if len(out) == 1 else tuple(out)


# -- norms of the old form


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """Give the p-norm of the difference."""
    from_pair = broadcast(input, other)
    return power_norm(reshape(from_pair[0] - from_pair[1], -1), p, (0,), False)


def power_norm(x: Tensor, p: float, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """Give the p-norm of a real or complex tensor over dims."""
    if p == 2 and x.dtype.kind == "f":
        return record(OPS["norm"], (x,), (("dims", dims), ("keepdim", keepdim)))
    size = abs_(x)
    empty = any(x._type.shape[d] == 0 for d in dims)
    if p == math.inf:
        return zeros_over(size, dims, keepdim) if empty else amax(size, dims, keepdim) if dims else size
    if p == -math.inf:
        return amin(size, dims, keepdim) if dims else size
    if p == 0:
        return sum(cast(x != 0, size.dtype), dims, keepdim) if dims else cast(x != 0, size.dtype)
    if p == 1:
        return sum(size, dims, keepdim) if dims else size
    if p == 2:
        return record(OPS["norm"], (size,), (("dims", dims), ("keepdim", keepdim)))
    total = sum(safe_power(size, p), dims, keepdim) if dims else safe_power(size, p)
    return safe_power(total, 1 / p)


def safe_power(x: Tensor, p: float) -> Tensor:
    """Raise to a power; where x is 0 and the slope infinite, the gradient is 0."""
    if p >= 1:
        return x**p
    zero = x == 0
    return where(zero, 0.0 if p > 0 else math.inf, where(zero, 1.0, x) ** p)


def zeros_over(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    return sum(x, dims, keepdim)


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Scale slices along ``dim`` down to a p-norm of at most ``maxnorm``."""
    if p <= 0:
        raise RuntimeError("renorm: non-positive-norm not supported")
    if maxnorm < 0:
        raise RuntimeError("renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    if input.ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.ndim} dimensions")
    d = normalize_dim(dim, input.ndim)
    size = power_norm(input, p, tuple(i for i in range(input.ndim) if i != d), True)
    return input * where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)
