"""Elements by offset and stride in row-major order: diagonals, sliding windows, as_strided.

Not split over workers: a stride crosses any cut. Next: ``movement`` (slices, which may be split).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir.opdef import op
from gt.ir.ops.broadcast import zeros_like
from gt.ir.ops.families import check_same
from gt.ir.types import Shape, ShapeError, TensorType

Ints = tuple[int, ...]


def positions(size: Ints, stride: Ints, offset: int) -> np.ndarray:
    """Give the row-major position of each element."""
    at = np.full(size, offset, np.int64)
    for d, (n, step) in enumerate(zip(size, stride, strict=True)):
        at += (np.arange(n) * step).reshape(-1, *(1,) * (len(size) - d - 1))
    return at


def _check(numel: int, size: Ints, stride: Ints, offset: int) -> None:
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and not 0 <= offset <= last < max(numel, 1):
        raise ShapeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and itemsize "
            f"requiring {last + 1} elements are out of bounds for storage of {numel} elements"
        )


def _infer(x: TensorType, size: Ints, stride: Ints, offset: int) -> TensorType:
    _check(x.numel, size, stride, offset)
    return TensorType(size, x.dtype)


def _scatter_infer(x: TensorType, source: TensorType, size: Ints, stride: Ints, offset: int) -> TensorType:
    check_same("as_strided_scatter", (x, source))
    _check(x.numel, size, stride, offset)
    if source.shape != size:
        raise ShapeError(
            f"expected src to have a size equal to the slice of self. src size = {list(source.shape)}, slice size = {list(size)}"
        )
    return x


def _scatter_numpy(x: np.ndarray, source: np.ndarray, **where: Any) -> np.ndarray:
    out = x.copy()
    out.reshape(-1)[positions(**where)] = source
    return out


def _places(attrs: dict[str, Any], numel: int) -> str:
    return f"torch.arange({numel}, device=device).as_strided({attrs['size']}, {attrs['stride']}, {attrs['offset']}).reshape(-1)"


def _scatter_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    x, source = names
    return f"{x}.reshape(-1).index_copy(0, {_places(attrs, types[0].numel)}, {source}.reshape(-1)).reshape({types[0].shape})"


def _add_numpy(g: np.ndarray, shape: Shape, **where: Any) -> np.ndarray:
    out = np.zeros(int(np.prod(shape)), np.float32 if g.dtype == np.float16 else g.dtype)
    np.add.at(out, positions(**where).reshape(-1), g.reshape(-1))
    return out.reshape(shape)


def _add_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    zeros = f"torch.zeros({types[0].numel}, dtype=torch.{types[0].dtype.name}, device=device)"
    return f"{zeros}.index_add_(0, {_places(attrs, types[0].numel)}, {names[0]}.reshape(-1)).reshape({types[0].shape})"


as_strided = op(
    "as_strided", "x", doc="The elements of x, in row-major order, at offset + index * stride.",
    infer=_infer, numpy=lambda x, **where: x.reshape(-1)[positions(**where)],
    torch="kernels.as_strided({x}, {size}, {stride}, {offset})",
    vjp=lambda g, y, x, **where: (as_strided_add(g, shape=x.type.shape, **where),),
    linear=((0,),), view=True,
)  # fmt: skip
as_strided_add = op(
    "as_strided_add", "g", doc="Zeros of a shape with g added at the elements as_strided names.",
    infer=lambda g, shape, **where: TensorType(shape, g.dtype), numpy=_add_numpy, torch=_add_torch,
    vjp=lambda gg, y, g, shape, **where: (as_strided(gg, **where),), linear=((0,),),
)  # fmt: skip
as_strided_scatter = op(
    "as_strided_scatter", "x source", doc="x with source written at the elements as_strided names.",
    infer=_scatter_infer, numpy=_scatter_numpy, torch=_scatter_torch,
    vjp=lambda g, y, x, source, **where: (
        as_strided_scatter(g, zeros_like(source), **where), as_strided(g, **where),
    ),
    linear=((0, 1),),
)  # fmt: skip
