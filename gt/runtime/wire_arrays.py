"""Arrays as data frames: what a frame must hold to be an array of a type, and the way to and from it without copies.

Must not know: messages. Next: ``wire``.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from gt.ir.program import WireType
from gt.ir.types import DType, bfloat16
from gt.runtime.errors import ProtocolError

MAX_DATA = 16 << 30
MAX_NUMEL = 1 << 48

Bounds: TypeAlias = tuple[tuple[int, int], ...]


def check_data(nbytes: int) -> None:
    """Refuse to send a data frame that the receiver would drop."""
    if nbytes > MAX_DATA:
        raise ProtocolError(f"data of {nbytes} bytes is over the limit of {MAX_DATA} bytes: split the tensor")


def wire_dtype(dtype: DType) -> np.dtype[Any]:
    """Give the NumPy dtype in which elements travel."""
    return np.dtype(np.uint16) if dtype is bfloat16 else dtype.numpy


def check_type(type_: WireType) -> DType:
    """Give the dtype of a type that a peer sent, once it is known to be a type."""
    dtype = DType.by_name.get(type_.dtype)
    if dtype is None:
        raise ProtocolError(f"expected a dtype, got {type_.dtype!r}")
    if len(type_.shape) > 64 or min(type_.shape, default=0) < 0:
        raise ProtocolError(f"expected a shape of at most 64 sizes >= 0, got {type_.shape[:65]}")
    if math.prod([s or 1 for s in type_.shape]) > MAX_NUMEL:  # beside a 0 as well: no library takes such sizes
        raise ProtocolError(f"expected a shape of at most {MAX_NUMEL} elements, got {type_.shape}")
    return dtype


def check_bounds(bounds: Bounds, type_: WireType) -> None:
    """Check that bounds are rows of a type that a peer sent."""
    check_type(type_)
    inside = len(bounds) == len(type_.shape) and all(0 <= a <= b <= n for (a, b), n in zip(bounds, type_.shape, strict=True))
    if not inside:
        raise ProtocolError(f"rows {bounds[:65]} are not rows of {list(type_.shape)}")


def check_nbytes(type_: WireType, nbytes: int) -> None:
    """Check that a data frame has the bytes its type says, before anything is built on it."""
    dtype = check_type(type_)
    if math.prod(type_.shape) * dtype.itemsize != nbytes:
        raise ProtocolError(f"{type_.dtype}{list(type_.shape)} does not fill {nbytes} bytes")


def array_of(type_: WireType, data: memoryview | bytes | bytearray) -> np.ndarray:
    """Give an array over a data frame, which can be written to where that can."""
    check_nbytes(type_, memoryview(data).nbytes)
    return np.frombuffer(data, wire_dtype(DType.by_name[type_.dtype])).reshape(type_.shape)


def data_of(array: np.ndarray) -> memoryview:
    """Give an array's bytes as a data frame, copied only when it is not contiguous."""
    flat = np.ascontiguousarray(array)
    check_data(flat.nbytes)
    return flat.reshape(-1).view(np.uint8).data if flat.size else memoryview(b"")


def rows(bounds: Bounds) -> tuple[slice, ...]:
    """Give bounds as an index."""
    return tuple(slice(a, b) for a, b in bounds)


def padded(array: np.ndarray, local: tuple[int, ...]) -> np.ndarray:
    """Give the array grown to ``local`` at the ends with zeros."""
    if array.shape == local:
        return array
    out = np.zeros(local, array.dtype)
    out[tuple(slice(0, s) for s in array.shape)] = array
    return out


__all__ = ["MAX_DATA", "Bounds", "array_of", "check_bounds", "check_data", "check_nbytes", "check_type", "data_of", "padded", "rows", "wire_dtype"]
