"""Counting and searching: bins, histograms, places in sorted order, distinct values.

``bincount`` and ``unique`` flush: how much they give depends on data. Next: ``reduce`` (sort, count_nonzero).
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gt.functions.create import arange, from_numpy, full, linspace, tensor, zeros
from gt.functions.gathering import gather, scatter_reduce
from gt.functions.pointwise import logical_not, where
from gt.functions.promote import c_name, cast, is_number, linked, refuse, result_dtype
from gt.functions.reduce import amax, amin, cumsum, sum
from gt.functions.running import diff
from gt.functions.shape import reshape, unsqueeze
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import CallError, KindError, Scalar, dtype_of, float64, int32, int64, is_int, normalize_dim, scalar_type
from gt.recording import record
from gt.return_types import named

if TYPE_CHECKING:
    from gt.tensor import Tensor


@named("histogram")
class Histogram(NamedTuple):
    """Counts and the edges between them."""

    hist: Tensor
    bin_edges: Tensor


@named("histogramdd")
class HistogramDD(NamedTuple):
    """Counts and the edges between them along each dim."""

    hist: Tensor
    bin_edges: tuple[Tensor, ...]


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count how often each non-negative integer stands. Flushes: the size depends on data."""
    if input.dtype.kind not in "ui":
        raise KindError(f"\"bincount_cpu\" not implemented for '{scalar_type(input.dtype)}'")
    if input.ndim != 1:
        raise CallError("bincount only supports 1-d non-negative integral inputs.")
    if minlength < 0:
        raise CallError("minlength should be >= 0")
    values = input._read()
    if values.size and values.min() < 0:
        raise CallError("bincount only supports 1-d non-negative integral inputs.")
    n = max(int(values.max()) + 1 if values.size else 0, minlength)
    if weights is None:
        return from_numpy(np.bincount(values, minlength=n).astype(np.int64))
    if weights._type.shape != input._type.shape:
        raise CallError("weights should be 1-d and have the same length as input")
    w = weights if weights.dtype.name in ("float32", "float64") else cast(weights, float64)
    return zeros(n, dtype=w.dtype).scatter_add(0, cast(input, int64), w)


def histc(input: Tensor, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Tensor:
    """Count elements in ``bins`` equal bins from ``min`` to ``max`` (of the data if equal)."""
    _check_bins(bins)
    if input.dtype.kind != "f":
        raise KindError(f"\"histogram_cpu\" not implemented for '{scalar_type(input.dtype)}': cast it first, e.g. x.float()")
    x = reshape(input, -1)
    low: Any = min
    high: Any = max
    if min == max and x.numel():
        low, high = (float(v) for v in (amin(x), amax(x)))
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)):
        raise CallError(f"range of [{low}, {high}] is not finite")
    if low > high:
        raise CallError("max must be larger than min")
    inside = (x >= low) & (x <= high)
    place = cast((x - low) * bins / (high - low), int64).clamp(0, bins - 1)
    return zeros(bins, dtype=input.dtype).scatter_add(0, place, cast(inside, input.dtype))


def histogram(input: Tensor, bins: Any = 100, *, range: Any = None, weight: Tensor | None = None, density: bool = False) -> Histogram:
    """Count elements between bin edges, or in equal bins of a range."""
    _check_dtypes(input, [bins], weight)
    x = reshape(input, -1)
    if input.dtype.itemsize == 2 and range is None and not isinstance(bins, Handle):
        raise KindError(f"\"histogramdd\" not implemented for '{scalar_type(input.dtype)}'")
    edges = bins if isinstance(bins, Handle) else _edges(x, bins, range)
    place, inside = _bins(x, edges)
    w = reshape(weight, -1) if weight is not None else cast(inside, input.dtype)
    counts = zeros(edges.numel() - 1, dtype=input.dtype).scatter_add(0, place, where(inside, w, 0.0))
    if density:
        counts = counts / (sum(counts) * diff(edges))
    return Histogram(linked("derivative for aten::histogram is not implemented", counts, input, RuntimeError), edges)


def histogramdd(
    input: Tensor, bins: Any, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> HistogramDD:  # fmt: skip
    """Count points, the rows of ``input``, in a grid of bins: numbers or edges for each column."""
    columns = input._type.shape[-1]
    each = [bins] * columns if is_int(bins) else list(bins)
    if input.ndim < 2 or len(each) != columns:
        raise CallError(f"torch.histogramdd: The size of bins must be equal to the innermost dimension of the input, {columns}, got {len(each)}")
    _check_dtypes(input, each, weight)
    if input.dtype.itemsize == 2:
        raise KindError(f"\"histogramdd\" not implemented for '{scalar_type(input.dtype)}'")
    x = reshape(input, (-1, columns))
    edges, place, inside = [], None, None
    for d, of_dim in enumerate(each):
        column = x[:, d]
        own = of_dim if isinstance(of_dim, Handle) else _edges(column, of_dim, None if range is None else range[2 * d : 2 * d + 2], d)
        at, within = _bins(column, own)
        n = max_(own.numel() - 1)
        place = at if place is None else place * n + at
        inside = within if inside is None else inside & within
        edges.append(own)
    shape = tuple(max_(e.numel() - 1) for e in edges)
    w = reshape(weight, -1) if weight is not None else cast(inside, input.dtype)
    counts = zeros(math.prod(shape), dtype=input.dtype).scatter_add(0, place, where(inside, w, 0.0))
    counts = reshape(counts, shape)
    if density:
        counts = counts / sum(counts)
        for d, own in enumerate(edges):
            counts = counts / reshape(diff(own), tuple(-1 if i == d else 1 for i, _ in enumerate(shape)))
    return HistogramDD(counts, tuple(edges))


def _check_dtypes(input: Tensor, bins: list[Any], weight: Tensor | None) -> None:
    """Refuse what is not of floating point, and edges and weights of another dtype."""
    dtype = input.dtype
    for at, edges in enumerate(bins):
        if isinstance(edges, Handle) and edges._type.dtype is not dtype:
            raise CallError(
                "torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input with dtype "
                f"{c_name(dtype)} and bins for dimension {at} with dtype {c_name(edges._type.dtype)}"
            )
    if weight is not None and weight.dtype is not dtype:
        raise CallError(
            "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have the same dtype, but got "
            f"input({c_name(dtype)}), and weight({c_name(weight.dtype)})"
        )
    if dtype.kind != "f":
        raise KindError(f"\"histogramdd\" not implemented for '{scalar_type(dtype)}': cast it first, e.g. x.float()")


def _check_bins(bins: int, dim: int = 0) -> None:
    if bins <= 0:
        raise CallError(f"torch.histogram(): bins must be > 0, but got {bins} for dimension {dim}")


def _edges(x: Tensor, bins: int, range: Any, dim: int = 0) -> Tensor:
    """Give equal bins' edges of column ``dim``, of the data's range if none is given (which flushes)."""
    _check_bins(bins, dim)
    low, high = range if range is not None else ((float(amin(x)), float(amax(x))) if x.numel() else (0.0, 0.0))
    if low == high:
        low, high = (low - 0.5, high + 0.5) if x.numel() or range is not None else (0.0, 1.0)
    return linspace(low, high, operator.index(bins) + 1, dtype=x.dtype)


def _bins(x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Give each value's bin, the last of them closed, and whether it has one."""
    n = edges.numel() - 1
    place = record(OPS["searchsorted"], (edges, x), (("right", True),)) - 1
    place = where(x == edges[-1], n - 1, place)
    return place.clamp(0, max_(n - 1)), (x >= edges[0]) & (x <= edges[-1])


def max_(n: int) -> int:
    return n if n > 0 else 0


# -- searching


def searchsorted(
    sorted_sequence: Tensor, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Give where each value would stand in sorted order, along the last dim. Values and edges are compared in their common dtype."""
    if not isinstance(input, Handle) and not is_number(input):
        raise refuse("searchsorted", input, "'input' (position 2)")
    if side not in (None, "left", "right"):
        raise CallError(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise CallError("torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True")
    shape, sought = sorted_sequence._type.shape, input._type.shape if isinstance(input, Handle) else ()
    if not sought and len(shape) != 1:
        raise CallError(
            "torch.searchsorted(): input value can be a scalar only when boundaries tensor dimension is 1, but we got boundaries "
            f"tensor dim({len(shape)}) and input value's dim(0) numel(1)"
        )
    if not shape:
        raise CallError("torch.searchsorted(): boundaries tensor should have positive dimension, but got 0 dimension")
    if len(shape) > 1 and (len(shape) != len(sought) or shape[:-1] != sought[:-1]):
        raise CallError(
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and input "
            f"value tensor must match, but we got boundaries tensor {list(shape)} and input value tensor {list(sought)}"
        )
    if sorter is not None and sorter._type.shape != shape:
        raise CallError(
            f"torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor "
            f"{list(shape)} and got sorter tensor {list(sorter._type.shape)}"
        )
    if sorter is not None and sorter.dtype is not int64:
        raise CallError(f"torch.searchsorted(): sorter must be a tensor of long dtype but got dtype {scalar_type(sorter.dtype)}")
    types = [t._type for t in (sorted_sequence, input) if isinstance(t, Handle)]
    dtype = result_dtype(types, [] if isinstance(input, Handle) else [input])
    if dtype.kind in "bc" and 0 not in sought:
        raise KindError(f"\"searchsorted_out_cpu\" not implemented for '{scalar_type(dtype)}'")
    edges = cast(sorted_sequence if sorter is None else gather(sorted_sequence, -1, sorter), dtype)
    values = cast(input if isinstance(input, Handle) else tensor(input, dtype=dtype if dtype.kind == "f" else None), dtype)
    out = record(OPS["searchsorted"], (edges, values), (("right", right or side == "right"),))
    return cast(out, dtype_of("int32")) if out_int32 else out


def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Give the index of the bucket of each value."""
    if not isinstance(input, Handle) and not is_number(input):
        raise refuse("bucketize", input, "'input' (position 1)")
    if boundaries.ndim != 1:
        raise CallError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Say which elements are among others."""
    given = (elements, test_elements)
    for at, v in enumerate(given):
        if not isinstance(v, Handle) and (not is_number(v) or is_number(given[1 - at])):
            raise refuse("isin", v, f"'{('elements', 'test_elements')[at]}' (position {at + 1})")
    a, b = (v if isinstance(v, Handle) else tensor(v) for v in given)
    for t in (a, b):
        if t.dtype.kind in "bc":
            raise KindError(f"Unsupported input type encountered for isin(): {scalar_type(t.dtype)}")
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
    if input.dtype.kind == "c":
        raise KindError(f"\"unique\" not implemented for '{scalar_type(input.dtype)}'")
    array = input._read()
    if dim is None:
        values, inverse, counts = np.unique(array.reshape(-1), return_inverse=True, return_counts=True, equal_nan=False)
        inverse = inverse.reshape(array.shape)
    else:
        d = normalize_dim(dim, input.ndim)
        values, inverse, counts = np.unique(array, return_inverse=True, return_counts=True, axis=d)
        inverse = inverse.reshape(-1)
    return _uniques("_unique2" if dim is None else "unique_dim", input, values, inverse, counts, return_inverse, return_counts)


def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
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
        return _uniques("unique_consecutive", input, values.reshape(-1), inverse.reshape(array.shape), counts, return_inverse, return_counts)
    return _uniques("unique_consecutive", input, np.moveaxis(values, 0, normalize_dim(dim, input.ndim)), inverse, counts, return_inverse, return_counts)


def _uniques(name: str, input: Tensor, values: Any, inverse: Any, counts: Any, with_inverse: bool, with_counts: bool) -> Any:
    out = [linked(f"the derivative for '{name}' is not implemented.", tensor(values, dtype=input.dtype), input)]
    if with_inverse:
        out.append(from_numpy(inverse.astype(np.int64)))
    if with_counts:
        out.append(from_numpy(counts.astype(np.int64)))
    return out[0] if len(out) == 1 else tuple(out)


def segment_reduce(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None, offsets: Tensor | None = None,
    axis: int = 0, unsafe: bool = False, initial: Scalar | None = None,
) -> Tensor:  # fmt: skip
    """Give the sum, mean, max, min or product of each segment of a dim: by ``lengths`` [..., s], or ``offsets`` [..., s + 1].

    They are not looked at: what is behind the last segment does not count, whether ``unsafe`` or not.
    """
    given = lengths if lengths is not None else offsets
    if given is None:
        raise CallError("segment_reduce(): Either lengths or offsets must be defined.")
    if indices is not None:
        raise CallError("segment_reduce(): indices based reduction is not supported yet.")
    kind = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "amax": "amax", "min": "amin", "amin": "amin"}.get(reduce)
    if kind is None:
        raise CallError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    if data.dtype.kind != "f":
        raise NotImplementedError(f"\"_segment_reduce_cpu\" not implemented for '{scalar_type(data.dtype)}'")
    if given.dtype not in (int32, int64):
        raise NotImplementedError(f"\"_segment_reduce_lengths_cpu_kernel1\" not implemented for '{scalar_type(given.dtype)}'")
    d = normalize_dim(axis, data.ndim)
    if d != given.ndim - 1:
        raise CallError(f"segment_reduce(): Expected axis to be the last dimension of lengths but got {d}.")
    counts = given if lengths is not None else diff(given)
    lead, n, rest = data._type.shape[:d], data._type.shape[d], data._type.shape[d + 1 :]
    if counts._type.shape[:-1] != lead:
        raise CallError(f"segment_reduce(): lengths {list(counts._type.shape)} do not go with data {list(data._type.shape)}")
    segments, ends = counts._type.shape[-1], cumsum(counts, -1) if lengths is not None else given[..., 1:]
    each = reshape(cast(arange(n), int64), (1,) * d + (n,)).expand(*lead, n)
    at = reshape(searchsorted(ends, each, right=True), (*lead, n, *(1,) * len(rest))).expand(*lead, n, *rest)
    start = {"sum": 0, "prod": 1, "amax": -math.inf, "amin": math.inf}[kind]
    own = start if initial is None or kind.startswith("a") else initial
    base = full((*lead, segments + 1, *rest), own, dtype=data.dtype)  # one more, for what is behind the last
    out = scatter_reduce(base, d, at, data, kind).narrow(d, 0, segments)
    if reduce == "mean":
        count = cast(reshape(counts, (*counts._type.shape, *(1,) * len(rest))), data.dtype)
        return out / (count if initial is None else count.clamp(min=1))
    if initial is None or not kind.startswith("a"):
        return out
    first = full(out._type.shape, initial, dtype=data.dtype)
    return where(out < first if kind == "amax" else out > first, first, out)
