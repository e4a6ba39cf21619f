"""The array API's creation functions.

Next: ``gt.functions.create``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gt.devices import check_options
from gt.functions import arrange, create, index
from gt.functions.promote import cast, get_default_dtype
from gt.handle import Handle
from gt.ir.types import DType, Scalar, int64

if TYPE_CHECKING:
    from gt.tensor import Tensor

Size = int | tuple[int, ...]


def _shape(shape: Size | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def asarray(obj: Any, /, *, dtype: DType | None = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """Make an array of a number, nested sequences, an array of another library, or an array.

    Errors: ValueError if ``copy=False`` and a copy is needed, which is so for all but arrays of the dtype asked for.
    """
    check_options("asarray", device)
    if not isinstance(obj, Handle):
        if copy is False:
            raise ValueError("asarray: copy=False, but data from outside is always copied to the workers")
        if not hasattr(obj, "__array__") and hasattr(obj, "__dlpack__"):
            obj = np.from_dlpack(obj)
        elif isinstance(obj, memoryview | bytearray | bytes):
            obj = np.asarray(memoryview(obj))
        return create.tensor(obj, dtype=dtype)
    if dtype is not None and obj.dtype is not dtype:
        if copy is False:
            raise ValueError(f"asarray: copy=False, but converting {obj.dtype.name} to {dtype.name} needs a copy")
        return cast(obj, dtype)
    same: Any = obj
    return same.clone() if copy else same


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Make an array of any object with ``__dlpack__``. Its data is copied, unless it is an array of gt's."""
    check_options("from_dlpack", device)
    if isinstance(x, Handle):
        return asarray(x, copy=copy)
    if copy is False:
        raise BufferError("from_dlpack: copy=False, but data from outside is always copied to the workers")
    return create.from_dlpack(x)


def full(shape: Size, fill_value: Scalar, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """Make an array of one value everywhere."""
    return create.full(_shape(shape), fill_value, dtype=dtype, device=device)


def zeros(shape: Size, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """Make an array of zeros."""
    return create.zeros(_shape(shape), dtype=dtype, device=device)


def ones(shape: Size, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """Make an array of ones."""
    return create.ones(_shape(shape), dtype=dtype, device=device)


def empty(shape: Size, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """Make an array whose values are not promised: zeros."""
    return create.zeros(_shape(shape), dtype=dtype, device=device)


def full_like(x: Tensor, /, fill_value: Scalar, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """Make an array of one value everywhere, in the shape of another."""
    return create.full_like(x, fill_value, dtype=dtype, device=device)


def zeros_like(x: Tensor, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """Make zeros in the shape of another array."""
    return create.zeros_like(x, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """Make ones in the shape of another array."""
    return create.ones_like(x, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """Make an array in the shape of another, whose values are not promised: zeros."""
    return create.zeros_like(x, dtype=dtype, device=device)


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: DType | None = None, device: Any = None
) -> Tensor:
    """Count from ``start`` (0 if it stands alone) below ``stop``; nothing if ``stop`` lies the other way."""
    check_options("arange", device)
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ValueError("arange: step must not be 0")
    whole = all(isinstance(v, int) for v in (first, last, step))
    n = -((first - last) // step) if whole else math.ceil((last - first) / step)
    own = dtype if dtype is not None else int64 if whole else get_default_dtype()
    if n <= 0:
        return create.zeros((0,), dtype=own)
    if whole or own.kind not in "ui":
        return create.arange(first, first + n * step, step, dtype=own)[: int(n)]
    return create.arange(int(n), dtype=own) * int(step) + int(first)


def linspace(
    start: Scalar, stop: Scalar, /, num: int, *, dtype: DType | None = None, device: Any = None, endpoint: bool = True
) -> Tensor:
    """Give ``num`` values evenly from ``start`` to ``stop``, which is left out unless ``endpoint``."""
    if endpoint:
        return create.linspace(start, stop, num, dtype=dtype, device=device)
    return create.linspace(start, stop, num + 1, dtype=dtype, device=device)[:-1]


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DType | None = None, device: Any = None
) -> Tensor:
    """Make a matrix of ones on the ``k``-th diagonal, zeros elsewhere."""
    check_options("eye", device)
    columns = n_rows if n_cols is None else n_cols
    return cast(
        create.arange(n_rows).unsqueeze(1) + k == create.arange(columns), dtype if dtype is not None else get_default_dtype()
    )


def meshgrid(*arrays: Tensor, indexing: Literal["xy", "ij"] = "xy") -> tuple[Tensor, ...]:
    """Give coordinate arrays of the grid that 1-d arrays span."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    return tuple(arrange.meshgrid(*arrays, indexing=indexing)) if arrays else ()


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Keep what lies on and below the ``k``-th diagonal."""
    return index.tril(x, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Keep what lies on and above the ``k``-th diagonal."""
    return index.triu(x, k)
