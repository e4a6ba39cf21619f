"""Elementwise functions with torch's names, arguments and promotion.

Owns: their signatures. Next: ``promote`` (operands), ``gt.ir.ops.elementwise`` (meaning).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.functions.promote import binary, cast, float_unary, is_number, number_dtype, operand, pair_dtype, refuse, unary
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import DType, Scalar, dtype_of, result_type
from gt.trace import record

if TYPE_CHECKING:
    from gt.tensor import Tensor

ADD, SUB, MUL, DIV = OPS["add"], OPS["sub"], OPS["mul"], OPS["div"]
POW, NEG, WHERE = OPS["pow"], OPS["neg"], OPS["where"]
MAXIMUM, MINIMUM = OPS["maximum"], OPS["minimum"]


def add(input: Tensor, other: Tensor | Scalar, *, alpha: Scalar = 1) -> Tensor:
    """Add, elementwise with broadcasting: ``input + alpha * other``."""
    return binary(ADD, input, other if alpha == 1 else mul(other, alpha))  # type: ignore[arg-type]


def sub(input: Tensor, other: Tensor | Scalar, *, alpha: Scalar = 1) -> Tensor:
    """Subtract, elementwise with broadcasting: ``input - alpha * other``."""
    for t in (input, other):
        if isinstance(t, Handle) and t._type.dtype.kind == "b":
            raise RuntimeError(
                "Subtraction, the `-` operator, with a bool tensor is not supported. "
                "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
            )
    return binary(SUB, input, other if alpha == 1 else mul(other, alpha))  # type: ignore[arg-type]


def rsub(input: Tensor, other: Tensor | Scalar) -> Tensor:
    return sub(other, input)  # type: ignore[arg-type]


def mul(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Multiply, elementwise with broadcasting."""
    if not isinstance(input, Handle) and not isinstance(other, Handle):
        return input * other  # type: ignore[return-value, operator]
    return binary(MUL, input, other)


def div(input: Tensor | Scalar, other: Tensor | Scalar, *, rounding_mode: str | None = None) -> Tensor:
    """Divide, elementwise with broadcasting; true division unless ``rounding_mode`` is "floor" or "trunc"."""
    if rounding_mode is None:
        return binary(DIV, input, other, floating=True)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode == "trunc":
        return binary(OPS["trunc_divide"], input, other)
    raise RuntimeError(f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'")


def floor_divide(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Divide and round towards minus infinity."""
    return binary(OPS["floor_divide"], input, other)


def remainder(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Give Python's modulus: the result has the divisor's sign."""
    return binary(OPS["remainder"], input, other)


def fmod(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Give C's modulus: the result has the dividend's sign."""
    return binary(OPS["fmod"], input, other)


def pow(input: Tensor | Scalar, exponent: Tensor | Scalar) -> Tensor:
    """Raise to a power. A Python number as exponent is part of the graph: changing it is a new graph."""
    if isinstance(input, Handle) and is_number(exponent):
        dtype = number_dtype(input, exponent)  # type: ignore[arg-type]
        if dtype.kind in "ui" and exponent < 0:  # type: ignore[operator]
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        if float(exponent).is_integer() and dtype.kind != "b" and -64 <= exponent <= 64:  # type: ignore[arg-type, operator]
            return record(OPS["integer_pow"], (cast(input, dtype),), (("exponent", int(exponent)),))  # type: ignore[arg-type]
        if exponent == 0.5:
            return float_unary(OPS["sqrt"], input)
    return binary(POW, input, exponent)


def maximum(input: Tensor, other: Tensor) -> Tensor:
    """Give the larger, elementwise; NaN wins."""
    return binary(MAXIMUM, input, other)


def minimum(input: Tensor, other: Tensor) -> Tensor:
    """Give the smaller, elementwise; NaN wins."""
    return binary(MINIMUM, input, other)


def atan2(input: Tensor, other: Tensor) -> Tensor:
    """Give the angle of the point (other, input), elementwise."""
    return binary(OPS["atan2"], input, other, floating=True)


def eq(input: Tensor, other: Any) -> Tensor:
    """Compare, elementwise; the result is bool."""
    return binary(OPS["eq"], input, other)


def ne(input: Tensor, other: Any) -> Tensor:
    """Say where ``input != other``."""
    return binary(OPS["ne"], input, other)


def lt(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where ``input < other``."""
    return binary(OPS["lt"], input, other)


def le(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where ``input <= other``."""
    return binary(OPS["le"], input, other)


def gt(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where ``input > other``."""
    return binary(OPS["gt"], input, other)


def ge(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where ``input >= other``."""
    return binary(OPS["ge"], input, other)


greater, greater_equal, less, less_equal, not_equal = gt, ge, lt, le, ne


def logical_and(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where both are nonzero."""
    return binary(OPS["logical_and"], to_bool(input), to_bool(other))


def logical_or(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where either is nonzero."""
    return binary(OPS["logical_or"], to_bool(input), to_bool(other))


def logical_xor(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where exactly one is nonzero."""
    return binary(OPS["logical_xor"], to_bool(input), to_bool(other))


def logical_not(input: Tensor) -> Tensor:
    """Say where ``input`` is zero."""
    return unary(OPS["logical_not"], to_bool(input))


def to_bool(value: Any) -> Any:
    return cast(value, dtype_of("bool")) if isinstance(value, Handle) else bool(value)


def bitwise_and(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Give ``input & other``, elementwise."""
    return _bitwise("and", input, other)


def bitwise_or(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Give ``input | other``, elementwise."""
    return _bitwise("or", input, other)


def bitwise_xor(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Give ``input ^ other``, elementwise."""
    return _bitwise("xor", input, other)


def _bitwise(name: str, a: Any, b: Any) -> Tensor:
    for t in (a, b):
        if isinstance(t, Handle) and t._type.dtype.kind in "fc":
            raise NotImplementedError(f"bitwise_{name} is not implemented for {t._type.dtype}: use an integer or bool tensor")
    return binary(OPS[f"bitwise_{name}"], a, b)


def bitwise_not(input: Tensor) -> Tensor:
    """Give ``~input``, elementwise."""
    return unary(OPS["bitwise_not"], input)


def where(condition: Tensor, input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Choose ``input`` where ``condition`` holds, else ``other``; all broadcast."""
    if not isinstance(condition, Handle):
        raise refuse("where", condition)
    tensors = [t._type for t in (input, other) if isinstance(t, Handle)]
    numbers = [t for t in (input, other) if not isinstance(t, Handle)]
    if isinstance(input, Handle) and isinstance(other, Handle):
        dtype = pair_dtype(input, other)
    else:
        dtype = result_type(tensors, numbers)
    picked = [cast(t, dtype) if isinstance(t, Handle) else operand(t, dtype) for t in (input, other)]
    return record(WHERE, (to_bool(condition), *picked))


def clamp(input: Tensor, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None) -> Tensor:
    """Limit to ``[min, max]``. Numbers are run-time scalars."""
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    if min is not None and max is not None:
        tensors = [t._type for t in (input, min, max) if isinstance(t, Handle)]
        dtype = result_type(tensors, [t for t in (min, max) if not isinstance(t, Handle)])
        picked = [cast(t, dtype) if isinstance(t, Handle) else operand(t, dtype) for t in (input, min, max)]
        return record(OPS["clamp"], tuple(picked))
    return binary(MAXIMUM, input, min) if max is None else binary(MINIMUM, input, max)


clip = clamp


def clamp_min(input: Tensor, min: Tensor | Scalar) -> Tensor:
    return clamp(input, min=min)


def clamp_max(input: Tensor, max: Tensor | Scalar) -> Tensor:
    return clamp(input, max=max)


def neg(input: Tensor) -> Tensor:
    """Negate."""
    if isinstance(input, Handle) and input._type.dtype.kind == "b":
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )
    return unary(NEG, input)


def _unary(name: str) -> Any:
    declared = OPS[name]

    def function(input: Tensor) -> Tensor:
        return unary(declared, input)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = declared.doc
    return function


def _float(name: str) -> Any:
    declared = OPS[name]

    def function(input: Tensor) -> Tensor:
        return float_unary(declared, input)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = declared.doc
    return function


exp, expm1, log, log1p, log2, log10 = map(_float, ("exp", "expm1", "log", "log1p", "log2", "log10"))
sqrt, rsqrt, reciprocal, sigmoid, tanh = map(_float, ("sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh"))
sin, cos, tan, asin, acos, atan = map(_float, ("sin", "cos", "tan", "asin", "acos", "atan"))
sinh, cosh, asinh, acosh, atanh = map(_float, ("sinh", "cosh", "asinh", "acosh", "atanh"))
erf, erfc = map(_float, ("erf", "erfc"))
abs, sign, square, relu = map(_unary, ("abs", "sign", "square", "relu"))
floor, ceil, round, trunc = map(_unary, ("floor", "ceil", "round", "trunc"))
isnan, isinf, isfinite = map(_unary, ("isnan", "isinf", "isfinite"))
absolute, negative = abs, neg


def to_dtype(input: Tensor, dtype: DType | str) -> Tensor:
    """Convert the element type; the same tensor if it has it already."""
    return cast(input, dtype_of(dtype))
