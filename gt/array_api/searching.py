"""The array API's functions that search, sort, pick and find distinct values.

``nonzero`` and ``unique_*`` flush: how much they give depends on data. Next: ``gt.functions.index``, ``gathering``, ``counting``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from gt.array_api.data_types import together
from gt.array_api.manipulation import axes_of
from gt.functions import counting, create, gathering, index, pointwise, reduce
from gt.functions.promote import cast
from gt.ir.types import int64

if TYPE_CHECKING:
    from gt.tensor import Tensor


class UniqueAll(NamedTuple):
    """The distinct values, where each stands first, which one each element is, and how many there are of each."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The distinct values and how many there are of each."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The distinct values and which one each element is."""

    values: Tensor
    inverse_indices: Tensor


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """Take from ``x1`` where the condition holds, else from ``x2``."""
    return pointwise.where(condition, *together(x1, x2))


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Give the index of the largest, the first of equals."""
    return reduce.argmax(x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Give the index of the smallest, the first of equals."""
    return reduce.argmin(x, axis, keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Give the positions of the elements that are not 0, one array for each dim. Flushes."""
    if not x.ndim:
        raise ValueError("nonzero: expected an array of at least one dimension, got a 0-d one")
    return tuple(index.nonzero(x, as_tuple=True))


def searchsorted(
    x1: Tensor, x2: Any, /, *, side: Literal["left", "right"] = "left", sorter: Tensor | None = None
) -> Tensor:
    """Give where each value of ``x2`` would stand in the sorted 1-d ``x1``."""
    edges, values = together(x1, x2)
    if sorter is not None:
        edges = take(edges, sorter)
    return cast(counting.searchsorted(edges, values, side=side), int64)


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Tensor:
    """Say which elements of ``x1`` are among those of ``x2``."""
    return counting.isin(*together(x1, x2), invert=invert)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Sort along an axis."""
    return reduce.sort(x, axes_of(axis, x.ndim)[0], descending, stable).values


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Give the indices that sort along an axis; equal elements keep their order."""
    return reduce.sort(x, axes_of(axis, x.ndim)[0], descending, stable).indices


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Pick slices along an axis; negative indices count from the end."""
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take: expected an axis for an array of {x.ndim} dimensions")
        axis = 0
    d = axes_of(axis, x.ndim)[0]
    return index.getitem(x, (slice(None),) * d + (indices,))


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Pick elements along an axis; the other axes broadcast; negative indices count from the end."""
    return gathering.take_along_dim(x, cast(indices, int64), axes_of(axis, x.ndim)[0])


def _unique(x: Tensor) -> tuple[np.ndarray, ...]:
    return np.unique(x._read().reshape(-1), return_index=True, return_inverse=True, return_counts=True, equal_nan=False)


def _whole(x: np.ndarray, shape: tuple[int, ...] | None = None) -> Tensor:
    return create.from_numpy(x.astype(np.int64).reshape(x.shape if shape is None else shape))


def unique_all(x: Tensor, /) -> UniqueAll:
    """Give the distinct values in order with all that is known of them; each NaN is one of its own. Flushes."""
    values, first, inverse, counts = _unique(x)
    return UniqueAll(create.tensor(values, dtype=x.dtype), _whole(first), _whole(inverse, x.shape), _whole(counts))


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Give the distinct values in order and how many there are of each; each NaN is one of its own. Flushes."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Give the distinct values in order and which one each element is; each NaN is one of its own. Flushes."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Give the distinct values in order; each NaN is one of its own. Flushes."""
    return create.tensor(_unique(x)[0], dtype=x.dtype)
