"""The array API's functions on shapes: ``axis`` for ``dim``, promotion in ``concat`` and ``stack``, tuples of results.

Next: ``gt.functions.shape``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.array_api.data_types import broadcast_shapes, result_type
from gt.functions import arrange, shape
from gt.functions.promote import cast
from gt.handle import Handle
from gt.ir.types import DimError, int64, normalize_dim

if TYPE_CHECKING:
    from gt.tensor import Tensor

Axes = int | tuple[int, ...]


def axes_of(axis: Axes, ndim: int) -> tuple[int, ...]:
    """Map an axis or several to a tuple of distinct ones counted from 0. Errors: IndexError, ValueError if one is twice."""
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    for a in given:
        if not -ndim <= a < ndim:
            raise DimError(f"axis {a} is out of range for an array of {ndim} dimensions")
    found = tuple(a % ndim for a in given)
    if len(set(found)) != len(found):
        raise ValueError(f"axis {axis} names a dimension twice")
    return found


def promoted(arrays: Sequence[Tensor]) -> list[Tensor]:
    """Give arrays of the one dtype they promote to."""
    dtype = result_type(*arrays)
    return [cast(a, dtype) for a in arrays]


def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """Give all in the shape they broadcast to."""
    target = broadcast_shapes(*(a.shape for a in arrays))
    return tuple(shape.expand(a, target) for a in arrays)


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """Repeat dims of size 1, and add leading ones, up to a shape."""
    return x.expand(tuple(shape))


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Join arrays along an axis; with None, flattened ones. Dtypes: promoted."""
    parts = promoted(list(arrays))
    if axis is None:
        return shape.cat([shape.ravel(p) for p in parts], 0)
    return shape.cat(parts, axes_of(axis, parts[0].ndim)[0])


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Join arrays along a new axis. Dtypes: promoted."""
    return shape.stack(promoted(list(arrays)), axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Split an array along an axis, which goes."""
    return shape.unbind(x, axes_of(axis, x.ndim)[0])


def expand_dims(x: Tensor, /, axis: Axes) -> Tensor:
    """Put in dims of size 1, at places counted in the result."""
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    for a in sorted(axes_of(given, x.ndim + len(given))):
        x = shape.unsqueeze(x, a)
    return x


def squeeze(x: Tensor, /, axis: Axes) -> Tensor:
    """Take out dims of size 1. Errors: ValueError for another size."""
    axes = axes_of(axis, x.ndim)
    for a in axes:
        if x.shape[a] != 1:
            raise ValueError(f"squeeze: axis {a} has size {x.shape[a]}, not 1")
    return shape.squeeze(x, axes) if axes else x


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """Reorder the dims."""
    return shape.permute(x, tuple(axes))


def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """Move dims to other places; the rest keep their order."""
    return shape.movedim(x, source, destination)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """Give the elements in another shape; -1 stands for what is left. A view, unless ``copy``."""
    found: Tensor = x.reshape(tuple(shape))
    if copy is False and found._base is None and found is not x:
        raise ValueError("reshape: copy=False, but this shape needs a copy")
    return found.clone() if copy else found


def flip(x: Tensor, /, *, axis: Axes | None = None) -> Tensor:
    """Reverse the order along axes (all if None)."""
    axes = tuple(range(x.ndim)) if axis is None else axes_of(axis, x.ndim)
    return shape.flip(x, axes) if axes else x.clone()


def roll(x: Tensor, /, shift: Axes, *, axis: Axes | None = None) -> Tensor:
    """Move elements around the end, along axes, or as if the array were flat."""
    if axis is None:
        return shape.reshape(shape.roll(shape.ravel(x), shift, 0), x.shape)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    shifts = (shift,) * len(axes) if isinstance(shift, int) else tuple(shift)
    return shape.roll(x, shifts, [normalize_dim(a, x.ndim) for a in axes])


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Repeat each element along an axis, or of the flattened array. Flushes where ``repeats`` is an array."""
    times: Any = cast(repeats, int64) if isinstance(repeats, Handle) else repeats
    return arrange.repeat_interleave(x, times, None if axis is None else axes_of(axis, x.ndim)[0])


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """Repeat the whole array along each axis."""
    return shape.tile(x, tuple(repetitions))
