"""Elementwise functions with torch's names, arguments and promotion.

Owns: their signatures. Next: ``promote`` (operands), ``gt.ir.ops.elementwise`` (meaning).
"""

from __future__ import annotations

import builtins
import math
from typing import TYPE_CHECKING, Any

from gt.functions.promote import (
    binary,
    cast,
    check_fits,
    float_unary,
    is_number,
    need_tensor,
    number_dtype,
    operand,
    pair_dtype,
    promoted,
    refuse,
    result_dtype,
    unary,
    wide,
    without_gradient,
)  # fmt: skip
from gt.handle import Handle
from gt.ir.opdef import OpDef
from gt.ir.ops import OPS
from gt.ir.types import CallError, DType, Scalar, bfloat16, complex128, dtype_of, float16, float32, int64, scalar_type
from gt.naming import named
from gt.operand import Number
from gt.recording import record
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor

ADD, SUB, MUL, DIV = OPS["add"], OPS["sub"], OPS["mul"], OPS["div"]
POW, NEG, WHERE = OPS["pow"], OPS["neg"], OPS["where"]
MAXIMUM, MINIMUM, CLAMP_MIN, CLAMP_MAX = OPS["maximum"], OPS["minimum"], OPS["clamp_min"], OPS["clamp_max"]


def add(input: Tensor, other: Tensor | Scalar, *, alpha: Scalar = 1) -> Tensor:
    """Add, elementwise with broadcasting: ``input + alpha * other``."""
    return binary(ADD, input, other if alpha.__class__ is int and alpha == 1 else _scaled(input, other, alpha))


def sub(input: Tensor, other: Tensor | Scalar, *, alpha: Scalar = 1) -> Tensor:
    """Subtract, elementwise with broadcasting: ``input - alpha * other``."""
    for t in (input, other):
        if t is True or t is False or (isinstance(t, Handle) and t._type.dtype.kind == "b"):
            raise _no_difference(input, other)
    return binary(SUB, input, other if alpha.__class__ is int and alpha == 1 else _scaled(input, other, alpha))


def _scaled(input: Any, other: Any, alpha: Scalar) -> Any:
    """Give ``alpha * other``. Errors: RuntimeError for an alpha that the result's dtype does not hold."""
    both = (input, other)
    tensors = [t._type for t in both if isinstance(t, Handle)]
    dtype = result_dtype(tensors, [t for t in both if is_number(t)]) if tensors else complex128
    kind = dtype.kind
    if isinstance(alpha, bool) and kind != "b":
        raise CallError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, float | complex) and kind not in "fc":
        raise CallError("For integral input tensors, argument alpha must not be a floating point number.")
    if isinstance(alpha, complex) and kind != "c":
        raise CallError("For non-complex input tensors, argument alpha must not be a complex number.")
    check_fits(alpha, dtype)
    if not isinstance(other, Handle):
        return other if alpha == 1 else other * alpha
    return other if alpha == 1 else binary(MUL, other, alpha)  # rounded to the dtype on the way, as in torch's kernel


def _no_difference(*given: Any) -> RuntimeError:
    if all(isinstance(t, Handle) and t._type.dtype.kind == "b" for t in given):
        return RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` operator instead."
        )
    return RuntimeError(
        "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the `~` or "
        "`logical_not()` operator instead."
    )


def rsub(input: Tensor, other: Tensor | Scalar) -> Tensor:
    return sub(other, input)  # type: ignore[arg-type]


def times(input: Tensor, other: Any) -> Any:
    """Multiply, as an operator: Python repeats a list or a text as often as a tensor of one integer says."""
    return NotImplemented if isinstance(other, list | tuple | str | bytes | bytearray) else mul(input, other)


def mul(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Multiply, elementwise with broadcasting."""
    if not isinstance(input, Handle) and not isinstance(other, Handle):
        return input * other  # type: ignore[return-value, operator]
    if isinstance(input, Handle) and input._type.dtype.itemsize == 2 and isinstance(other, int | float):
        return _by_number(MUL, input, other)
    if isinstance(other, Handle) and other._type.dtype.itemsize == 2 and isinstance(input, int | float):
        return _by_number(MUL, other, input)
    return binary(MUL, input, other)


def _holds(dtype: DType, number: float) -> bool:
    """Say whether a half-width float is exactly this number."""
    part, exponent = math.frexp(number)
    if dtype is not bfloat16 and number and not -13 <= exponent <= 16:
        return False
    return not math.isfinite(number) or math.ldexp(part, 8 if dtype is bfloat16 else 11).is_integer()


def _is_half(t: Tensor) -> bool:
    dtype = t._type.dtype
    return dtype.itemsize == 2 and dtype.kind == "f"


def _by_number(op: OpDef, t: Tensor, number: float) -> Tensor:
    """Record a product or quotient of half-width floats by a number, which keeps its own precision, as in torch."""
    dtype = t._type.dtype
    if dtype.kind != "f" or _holds(dtype, float(number)):
        return binary(op, t, number)
    return cast(record(op, (cast(t, float32), Number(float(number), float32))), dtype)


def div(input: Tensor | Scalar, other: Tensor | Scalar, *, rounding_mode: str | None = None) -> Tensor:
    """Divide, elementwise with broadcasting; true division unless ``rounding_mode`` is "floor" or "trunc"."""
    if rounding_mode is None:
        if isinstance(input, Handle) and _is_half(input) and isinstance(other, int | float):
            return _by_number(DIV, input, other)
        if isinstance(other, Handle) and _is_half(other) and isinstance(input, int | float):
            return _by_number(MUL, float_unary(OPS["reciprocal"], other), input)
        return binary(DIV, input, other, floating=True)
    if rounding_mode == "floor":
        return binary(OPS["floor_divide"], input, other)
    if rounding_mode == "trunc":
        return binary(OPS["trunc_divide"], input, other)
    raise CallError(f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'")


def floor_divide(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Divide and round towards minus infinity. It has no gradient: ``div(..., rounding_mode="floor")`` has one of 0, as in torch."""
    input, other = without_gradient("derivative for aten::floor_divide is not implemented", input, other, error=RuntimeError)
    if isinstance(input, Handle) and input._type.dtype.itemsize == 2 and isinstance(other, int | float):
        return _by_number(OPS["floor_divide"], input, other)
    return binary(OPS["floor_divide"], input, other)


def remainder(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Give Python's modulus: the result has the divisor's sign."""
    return binary(OPS["remainder"], input, other)


def fmod(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Give C's modulus: the result has the dividend's sign."""
    if not isinstance(input, Handle):
        raise refuse("fmod", input, "'input' (position 1)")
    return binary(OPS["fmod"], input, other)


def pow(input: Tensor | Scalar, exponent: Tensor | Scalar) -> Tensor:
    """Raise to a power. A Python number as exponent is part of the graph: changing it is a new graph."""
    if isinstance(input, Handle) and is_number(exponent):
        dtype = number_dtype(input, exponent)  # type: ignore[arg-type]
        if dtype.kind == "b":
            return record(OPS["copy"], (input,)) if exponent else eq(input, input)  # by True or False
        if isinstance(exponent, complex):
            if exponent.imag:
                return binary(POW, input, exponent)
            input, exponent = cast(input, dtype), exponent.real
        if dtype.kind in "ui" and exponent < 0:  # type: ignore[operator]
            raise CallError("Integers to negative integer powers are not allowed.")
        if dtype.kind in "ui":
            check_fits(exponent, int64)
        if dtype.kind in "ui" or dtype.itemsize == 2:
            check_fits(exponent, dtype)
        if float(exponent).is_integer() and -64 <= exponent <= 64:  # type: ignore[arg-type, operator]
            return record(OPS["integer_pow"], (cast(input, dtype),), (("exponent", int(exponent)),))  # type: ignore[arg-type]
        if exponent == 0.5:
            return _root(input)
    return binary(POW, input, exponent)


@saves("input")
def _root(input: Tensor) -> Tensor:
    return float_unary(OPS["sqrt"], input)


def maximum(input: Tensor, other: Tensor) -> Tensor:
    """Give the larger, elementwise; NaN wins."""
    need_tensor("maximum", input=input, other=other)
    return binary(MAXIMUM, input, other)


def minimum(input: Tensor, other: Tensor) -> Tensor:
    """Give the smaller, elementwise; NaN wins."""
    need_tensor("minimum", input=input, other=other)
    return binary(MINIMUM, input, other)


def atan2(input: Tensor, other: Tensor) -> Tensor:
    """Give the angle of the point (other, input), elementwise."""
    need_tensor("atan2", input=input, other=other)
    return binary(OPS["atan2"], input, other, floating=True)


def eq(input: Tensor, other: Any) -> Tensor:
    """Compare, elementwise; the result is bool."""
    if not isinstance(input, Handle):
        raise refuse("eq", input, "'input' (position 1)")
    return binary(OPS["eq"], input, other)


def ne(input: Tensor, other: Any) -> Tensor:
    """Say where ``input != other``."""
    if not isinstance(input, Handle):
        raise refuse("ne", input, "'input' (position 1)")
    return binary(OPS["ne"], input, other)


def lt(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where ``input < other``."""
    if not isinstance(input, Handle):
        raise refuse("lt", input, "'input' (position 1)")
    return binary(OPS["lt"], input, other)


def le(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where ``input <= other``."""
    if not isinstance(input, Handle):
        raise refuse("le", input, "'input' (position 1)")
    return binary(OPS["le"], input, other)


def gt(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where ``input > other``."""
    if not isinstance(input, Handle):
        raise refuse("gt", input, "'input' (position 1)")
    return binary(OPS["gt"], input, other)


def ge(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where ``input >= other``."""
    if not isinstance(input, Handle):
        raise refuse("ge", input, "'input' (position 1)")
    return binary(OPS["ge"], input, other)


greater, greater_equal, less, less_equal, not_equal = gt, ge, lt, le, ne


def logical_and(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where both are nonzero."""
    need_tensor("logical_and", input=input, other=other)
    return binary(OPS["logical_and"], to_bool(input), to_bool(other))


def logical_or(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where either is nonzero."""
    need_tensor("logical_or", input=input, other=other)
    return binary(OPS["logical_or"], to_bool(input), to_bool(other))


def logical_xor(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Say where exactly one is nonzero."""
    need_tensor("logical_xor", input=input, other=other)
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
            raise NotImplementedError(
                f"bitwise_{name} is not implemented for {t._type.dtype}: use an integer or bool tensor"
            )
    return binary(OPS[f"bitwise_{name}"], a, b)


def bitwise_not(input: Tensor) -> Tensor:
    """Give ``~input``, elementwise."""
    return unary(OPS["bitwise_not"], input)


def where(condition: Tensor, input: Tensor | Scalar | None = None, other: Tensor | Scalar | None = None) -> Tensor:
    """Choose ``input`` where ``condition`` holds, else ``other``; all broadcast. Alone: the positions where it holds."""
    if not isinstance(condition, Handle):
        raise refuse("where", condition, "'condition' (position 1)")
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    if condition.dtype.name not in ("bool", "uint8"):
        raise CallError(
            f"where expected condition to be a boolean tensor, but got a tensor with dtype {scalar_type(condition.dtype)}"
        )
    tensors = [t._type for t in (input, other) if isinstance(t, Handle)]
    numbers = [t for t in (input, other) if not isinstance(t, Handle)]
    if isinstance(input, Handle) and isinstance(other, Handle):
        dtype = pair_dtype(input, other)
    else:
        dtype = result_dtype(tensors, numbers)
    for number in numbers if dtype not in (float16, bfloat16) else ():  # what these do not hold is infinite
        check_fits(number, dtype)
    picked = [cast(t, dtype) if isinstance(t, Handle) else operand(t, dtype) for t in (input, other)]
    return record(WHERE, (to_bool(condition), *picked))


def _check_limit(input: Any, limit: Any) -> None:
    """Refuse a number that the result of a clamp cannot hold."""
    if isinstance(input, Handle) and is_number(limit):
        check_fits(limit, number_dtype(input, limit))


def clamp(input: Tensor, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None) -> Tensor:
    """Limit to ``[min, max]``. Numbers are run-time scalars."""
    if min is None and max is None:
        raise CallError("torch.clamp: At least one of 'min' or 'max' must not be None")
    for limit in (min, max):
        _check_limit(input, limit)
    if min is not None and max is not None:
        return record(OPS["clamp"], tuple(promoted(input, min, max)))
    return binary(CLAMP_MIN, input, min) if max is None else binary(CLAMP_MAX, input, max)


clip = clamp


def clamp_min(input: Tensor, min: Tensor | Scalar) -> Tensor:
    """Limit from below."""
    need_tensor("clamp_min", input=input)
    _check_limit(input, min)
    return binary(CLAMP_MIN, input, min)


def clamp_max(input: Tensor, max: Tensor | Scalar) -> Tensor:
    """Limit from above."""
    need_tensor("clamp_max", input=input)
    _check_limit(input, max)
    return binary(CLAMP_MAX, input, max)


def neg(input: Tensor) -> Tensor:
    """Negate."""
    if isinstance(input, Handle) and input._type.dtype.kind == "b":
        raise CallError(
            "Negation, the `-` operator, on a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )
    return unary(NEG, input)


def _unary(name: str) -> Any:
    declared = OPS[name]

    def function(input: Tensor) -> Tensor:
        return unary(declared, input)

    return named(function, name, declared.doc)


def _float(name: str) -> Any:
    declared = OPS[name]

    def function(input: Tensor) -> Tensor:
        return float_unary(declared, input)

    return named(function, name, declared.doc)


exp, expm1, log, log1p, log2, log10 = map(_float, ("exp", "expm1", "log", "log1p", "log2", "log10"))
sqrt, rsqrt, reciprocal, sigmoid, tanh = map(_float, ("sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh"))
sin, cos, tan, asin, acos, atan = map(_float, ("sin", "cos", "tan", "asin", "acos", "atan"))
sinh, cosh, asinh, acosh, atanh = map(_float, ("sinh", "cosh", "asinh", "acosh", "atanh"))
erf, erfc = map(_float, ("erf", "erfc"))
abs, sign, relu = map(_unary, ("abs", "sign", "relu"))
floor, ceil, trunc = map(_unary, ("floor", "ceil", "trunc"))
fix = trunc


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Round to nearest, ties to even, at ``decimals`` digits after the point."""
    if not decimals:
        return unary(OPS["round"], input)
    if input._type.dtype.kind != "f":
        raise CallError(f'"round_cpu" not implemented for {input._type.dtype.name} with decimals')
    scale, x = 10.0 ** builtins.abs(decimals), wide(input)
    moved = div(unary(OPS["round"], mul(x, scale)), scale) if decimals > 0 else mul(unary(OPS["round"], div(x, scale)), scale)
    return cast(moved, input._type.dtype)


def square(input: Tensor) -> Tensor:
    """Multiply with itself; bool becomes int64."""
    return unary(OPS["square"], cast(input, int64) if input._type.dtype.kind == "b" else input)


isnan, isinf, isfinite = map(_unary, ("isnan", "isinf", "isfinite"))
absolute, negative = abs, neg
arccos, arccosh, arcsin, arcsinh, arctan, arctanh, arctan2 = acos, acosh, asin, asinh, atan, atanh, atan2
