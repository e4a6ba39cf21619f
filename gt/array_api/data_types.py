"""Dtypes in the array API: kinds, promotion by dtype alone, limits, conversion.

Next: ``gt.ir.types`` (the promotion table), ``gt.functions.promote`` (torch's rules, which also look at dims).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gt.devices import check_options
from gt.finfo import finfo as float_limits
from gt.finfo import iinfo as integer_limits
from gt.functions.create import tensor
from gt.functions.promote import cast, is_number, number_dtype
from gt.handle import Handle
from gt.ir import types
from gt.ir.types import (
    DType,
    Scalar,
    Shape,
    TensorType,
    bool_,
    complex64,
    complex128,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    uint8,
)  # fmt: skip

if TYPE_CHECKING:
    from gt.tensor import Tensor

_SIGNED, _UNSIGNED, _REAL, _COMPLEX = (int8, int16, int32, int64), (uint8,), (float32, float64), (complex64, complex128)
KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (bool_,), "signed integer": _SIGNED, "unsigned integer": _UNSIGNED, "integral": _SIGNED + _UNSIGNED,
    "real floating": _REAL, "complex floating": _COMPLEX, "numeric": _SIGNED + _UNSIGNED + _REAL + _COMPLEX,
}  # fmt: skip


@dataclass(frozen=True)
class FInfo:
    """Limits of a floating point dtype; of a complex one, those of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IInfo:
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype(of: DType | Tensor) -> DType:
    return of._type.dtype if isinstance(of, Handle) else of


def finfo(type: DType | Tensor, /) -> FInfo:
    """Give the limits of a floating point dtype, or of an array's."""
    own = types.real_dtype(_dtype(type))
    found = float_limits(own)
    return FInfo(found.bits, found.eps, found.max, found.min, found.smallest_normal, own)


def iinfo(type: DType | Tensor, /) -> IInfo:
    """Give the limits of an integer dtype, or of an array's."""
    own = _dtype(type)
    found = integer_limits(own)
    return IInfo(found.bits, found.max, found.min, own)


def isdtype(dtype: DType, kind: DType | str | tuple[DType | str, ...]) -> bool:
    """Say whether a dtype is another, of a kind ("integral", "real floating", ...), or one of several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, DType):
        return dtype is kind
    if kind not in KINDS:
        raise ValueError(f"expected a kind of dtype out of {', '.join(KINDS)}, got {kind!r}")
    return dtype in KINDS[kind]


def result_type(*arrays_and_dtypes: Tensor | Scalar | DType) -> DType:
    """Give the dtype that arrays, dtypes and Python numbers promote to; a number only counts by its kind."""
    dtypes = [_dtype(a) for a in arrays_and_dtypes if isinstance(a, Handle | DType)]
    if not dtypes:
        raise ValueError("result_type() needs at least one array or dtype")
    found = dtypes[0]
    for dtype in dtypes[1:]:
        found = promote_types(found, dtype)
    numbers: list[Any] = [a for a in arrays_and_dtypes if is_number(a)]
    return types.result_type((TensorType((), found),), numbers)


def can_cast(from_: DType | Tensor, to: DType, /) -> bool:
    """Say whether promotion can lead from one dtype to the other."""
    return promote_types(_dtype(from_), to) is to


def astype(x: Tensor, dtype: DType, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Convert the dtype. Errors: TypeError from complex to real, which would drop the imaginary part."""
    check_options("astype", device)
    if x.dtype.is_complex and not dtype.is_complex:
        raise TypeError(f"astype: cannot convert {x.dtype.name} to {dtype.name}: take real(x), imag(x) or abs(x) first")
    if x.dtype is dtype:
        return x.clone() if copy else x
    return cast(x, dtype)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Give the shape all broadcast to. Errors: ValueError."""
    return types.broadcast_shapes(*map(tuple, shapes))


def scalar_array(value: Any, dtype: DType) -> Tensor:
    """Make a 0-d array of a Python number, which a run is given anew: other numbers do not recompile."""
    return tensor(value, dtype=dtype)


def together(x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    """Give both operands as arrays of the one dtype they promote to; a Python number takes the array's kind."""
    if isinstance(x1, Handle) and isinstance(x2, Handle):
        dtype = promote_types(x1._type.dtype, x2._type.dtype)
        return cast(x1, dtype), cast(x2, dtype)
    if isinstance(x1, Handle) and is_number(x2):
        dtype = number_dtype(x1, x2)
        return cast(x1, dtype), scalar_array(x2, dtype)
    if isinstance(x2, Handle) and is_number(x1):
        dtype = number_dtype(x2, x1)
        return scalar_array(x1, dtype), cast(x2, dtype)
    raise TypeError(f"expected arrays, or an array and a number, got {type(x1).__name__} and {type(x2).__name__}")
