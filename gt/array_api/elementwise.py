"""The array API's elementwise functions: gt's own where they agree, else the difference.

The differences: two operands promote by dtype alone (torch lets a 0-d one give way), either may be a Python number, ``sign`` and
``round`` take complex numbers and ``sign`` keeps NaN. Next: ``gt.functions.pointwise``, ``gt.functions.numeric``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.array_api.data_types import scalar_array, together
from gt.functions import numeric, pointwise
from gt.functions.numeric import conj, imag, positive, real, signbit
from gt.functions.pointwise import (
    abs,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    bitwise_not,
    ceil,
    cos,
    cosh,
    exp,
    expm1,
    floor,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    logical_not,
    neg,
    reciprocal,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
    trunc,
)  # fmt: skip
from gt.functions.promote import cast
from gt.handle import Handle
from gt.ir.types import Scalar
from gt.naming import named

if TYPE_CHECKING:
    from gt.tensor import Tensor

Operand = Any  # an array or a Python number; the functions say which numbers


def _two(function: Callable[[Any, Any], Any], name: str = "") -> Any:
    """Give the function on operands promoted by dtype alone."""

    def both(x1: Operand, x2: Operand, /) -> Tensor:
        return function(*together(x1, x2))

    return named(both, name or function.__name__, function.__doc__)


bitwise_invert, negative = bitwise_not, neg
add, subtract, multiply, divide = (
    _two(pointwise.add), _two(pointwise.sub, "subtract"), _two(pointwise.mul, "multiply"), _two(pointwise.div, "divide"),
)  # fmt: skip
floor_divide, remainder = _two(pointwise.floor_divide), _two(pointwise.remainder)
equal, not_equal, less, less_equal, greater, greater_equal = (
    _two(pointwise.eq, "equal"), _two(pointwise.ne, "not_equal"), _two(pointwise.lt, "less"), _two(pointwise.le, "less_equal"),
    _two(pointwise.gt, "greater"), _two(pointwise.ge, "greater_equal"),
)  # fmt: skip
logical_and, logical_or, logical_xor = _two(pointwise.logical_and), _two(pointwise.logical_or), _two(pointwise.logical_xor)
bitwise_and, bitwise_or, bitwise_xor = _two(pointwise.bitwise_and), _two(pointwise.bitwise_or), _two(pointwise.bitwise_xor)
bitwise_left_shift, bitwise_right_shift = _two(numeric.bitwise_left_shift), _two(numeric.bitwise_right_shift)
maximum, minimum, atan2 = _two(pointwise.maximum), _two(pointwise.minimum), _two(pointwise.atan2)
copysign, hypot, logaddexp, nextafter = (
    _two(numeric.copysign), _two(numeric.hypot), _two(numeric.logaddexp), _two(numeric.nextafter),
)  # fmt: skip


def pow(x1: Operand, x2: Operand, /) -> Tensor:
    """Raise to a power. A whole number stays one, which is exact and cheaper."""
    if isinstance(x1, Handle) and isinstance(x2, int):
        return pointwise.pow(x1, x2)  # type: ignore[arg-type]
    return pointwise.pow(*together(x1, x2))


def sign(x: Tensor, /) -> Tensor:
    """Give -1, 0 or 1; NaN for NaN; x / |x| for complex numbers."""
    if x.dtype.kind == "f":
        return pointwise.where(isnan(x), x, pointwise.sign(x))
    return numeric.sgn(x)


def round(x: Tensor, /) -> Tensor:
    """Round to nearest, ties to even; both parts of complex numbers."""
    if x.dtype.is_complex:
        return numeric.complex(pointwise.round(real(x)), pointwise.round(imag(x)))
    return pointwise.round(x)


def clip(x: Tensor, /, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None) -> Tensor:
    """Hold values between bounds, which broadcast. The dtype stays; a NaN bound gives NaN."""
    dtype, out = x.dtype, x
    for bound, function, end in ((min, pointwise.maximum, "min"), (max, pointwise.minimum, "max")):
        if bound is None:
            continue
        if not isinstance(bound, Handle):
            if dtype.kind in "ui" and not _reaches(bound, dtype, end):
                continue
            bound = scalar_array(bound, dtype)
        out = function(out, cast(bound, dtype))
    return out.clone() if out is x else out


def _reaches(bound: Any, dtype: Any, end: str) -> bool:
    """Say whether a number bounds an integer dtype at all; one that would leave no value it can hold is refused."""
    bits = 8 * dtype.itemsize
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.kind == "i" else (0, (1 << bits) - 1)
    if math.isnan(bound) or bound != int(bound) or (bound > high if end == "min" else bound < low):
        raise ValueError(f"clip: {end}={bound} is not a value of {dtype.name}")
    return bool(bound > low if end == "min" else bound < high)


__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert", "bitwise_left_shift",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clip", "conj", "copysign", "cos", "cosh", "divide", "equal", "exp",
    "expm1", "floor", "floor_divide", "greater", "greater_equal", "hypot", "imag", "isfinite", "isinf", "isnan", "less", "less_equal",
    "log", "log10", "log1p", "log2", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum",
    "multiply", "negative", "nextafter", "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round", "sign", "signbit",
    "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
]  # fmt: skip
