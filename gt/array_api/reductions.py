"""The array API's reductions and scans: ``axis`` may be None (all), one, several, or ``()`` (none).

Next: ``gt.functions.reduce``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.array_api.manipulation import axes_of
from gt.functions import reduce, running
from gt.functions.create import ones, zeros
from gt.functions.pointwise import sqrt, to_bool
from gt.functions.promote import cast
from gt.functions.shape import cat
from gt.ir.types import DType, int64

if TYPE_CHECKING:
    from gt.tensor import Tensor

Axis = int | tuple[int, ...] | None


def _axes(x: Tensor, axis: Axis) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axis is None else axes_of(axis, x.ndim)


def _summed(dtype: DType) -> DType:
    """Give the dtype that sums and products have unless told: int64 for all integers, as there is no uint64."""
    return int64 if dtype.kind in "bui" else dtype


def sum(x: Tensor, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False) -> Tensor:
    """Add up. Dtypes: integers give int64."""
    axes, own = _axes(x, axis), dtype or _summed(x.dtype)
    return reduce.sum(cast(x, own), axes, keepdims, dtype=own) if axes else _unreduced(x, own)


def prod(x: Tensor, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False) -> Tensor:
    """Multiply. Dtypes: integers give int64."""
    axes, own = _axes(x, axis), dtype or _summed(x.dtype)
    out = _unreduced(x, own)
    for d in reversed(axes):
        out = reduce.prod(out, d, keepdims, dtype=own)
    return out


def _unreduced(x: Tensor, dtype: DType) -> Tensor:
    found: Tensor = cast(x, dtype)
    return found.clone() if found is x else found


def mean(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Average."""
    axes = _axes(x, axis)
    return reduce.mean(x, axes, keepdims) if axes else x.clone()


def var(x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Give the variance, divided by n - correction."""
    axes = _axes(x, axis)
    if axes:
        return reduce.var(x, axes, None, keepdims, correction=correction)
    return (x - x) * 0 / max_(1 - correction)


def max_(n: float) -> float:
    """Give the divisor of a variance, which does not fall below 0."""
    return n if n > 0 else 0.0


def std(x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Give the standard deviation: the root of the variance."""
    return sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def max(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Give the largest; NaN if there is one."""
    axes = _axes(x, axis)
    return reduce.amax(x, axes, keepdims) if axes else x.clone()


def min(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Give the smallest; NaN if there is one."""
    axes = _axes(x, axis)
    return reduce.amin(x, axes, keepdims) if axes else x.clone()


def any(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Say whether any element is true."""
    truth, axes = to_bool(x), _axes(x, axis)
    return reduce.any(truth, axes, keepdims) if axes else truth


def all(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Say whether all elements are true."""
    truth, axes = to_bool(x), _axes(x, axis)
    return reduce.all(truth, axes, keepdims) if axes else truth


def count_nonzero(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Count the elements that are not 0. Dtypes: int64."""
    return sum(to_bool(x), axis=axis, keepdims=keepdims)


def _scan(function: Any, start: Any, x: Tensor, axis: int | None, dtype: DType | None, include_initial: bool) -> Tensor:
    if axis is None:
        if x.ndim > 1:
            raise ValueError(f"expected an axis for an array of {x.ndim} dimensions")
        axis = 0
    d = axes_of(axis, x.ndim)[0] if x.ndim else 0
    own = dtype or _summed(x.dtype)
    out: Tensor = function(cast(x, own), d, dtype=own)
    if not include_initial:
        return out
    shape = list(x.shape)
    shape[d] = 1
    return cat([start(shape, dtype=own), out], d)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Tensor:
    """Add up along an axis, keeping each sum; ``include_initial`` puts 0 in front."""
    return _scan(reduce.cumsum, zeros, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Tensor:
    """Multiply along an axis, keeping each product; ``include_initial`` puts 1 in front."""
    return _scan(reduce.cumprod, ones, x, axis, dtype, include_initial)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Give the differences of neighbours along an axis, ``n`` times."""
    return running.diff(x, n, axes_of(axis, x.ndim)[0], prepend, append)
