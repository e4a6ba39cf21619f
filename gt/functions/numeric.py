"""The less everyday elementwise functions: fused forms, remainders, parts of numbers, complex numbers, closeness.

Owns: their signatures and compositions. Next: ``pointwise`` (the everyday ones), ``special``.
"""

from __future__ import annotations

import builtins
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.functions.pointwise import abs as abs_
from gt.functions.pointwise import add, div, eq, isfinite, isinf, isnan, le, logical_and, mul, sub, where
from gt.functions.promote import (
    binary,
    broadcast,
    c_name,
    cast,
    check_fits,
    floated,
    get_default_dtype,
    is_number,
    largest,
    linked,
    need_tensor,
    promoted,
    real_number,
    result_dtype,
    result_type,
    scalar_dtype,
    unary,
    without_gradient,
)  # fmt: skip
from gt.handle import Handle, take_view
from gt.ir.ops import OPS
from gt.ir.types import (
    CallError,
    DType,
    KindError,
    Scalar,
    bfloat16,
    bool_,
    broadcast_shapes,
    complex128,
    float16,
    float32,
    float64,
    scalar_type,
)
from gt.recording import record
from gt.return_types import named
from gt.trace import state
from gt.versions import saves
from gt.views import offset_of, view_strides

if TYPE_CHECKING:
    from gt.tensor import Tensor


def both(name: str, op: str, input: Tensor, other: Tensor, floating: bool = False) -> Tensor:
    """Record an op whose operands must both be tensors."""
    need_tensor(name, input=input, other=other)
    return binary(OPS[op], input, other, floating)


def no_complex_gradient(name: str, x: Any) -> None:
    """Raise RuntimeError where torch has no gradient for complex numbers."""
    if x._rg and state.grad:
        raise CallError(f"{name} does not support automatic differentiation for outputs with complex dtype.")


def real_only(name: str, *tensors: Any) -> None:
    """Raise NotImplementedError for complex operands."""
    for t in tensors:
        if isinstance(t, Handle) and t._type.dtype.kind == "c":
            raise KindError(f"\"{name}\" not implemented for '{scalar_type(t._type.dtype)}'")


# -- two operands


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """Give the larger, elementwise; a number wins over NaN."""
    return both("fmax", "fmax", input, other)


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """Give the smaller, elementwise; a number wins over NaN."""
    return both("fmin", "fmin", input, other)


def hypot(input: Tensor, other: Tensor) -> Tensor:
    """Give sqrt(input² + other²) without overflow."""
    return both("hypot", "hypot", input, other)


def copysign(input: Tensor, other: Tensor | Scalar) -> Tensor:
    """Give |input| with the sign of ``other``."""
    need_tensor("copysign", input=input)
    return binary(OPS["copysign"], input, other, floating=True)


def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """Give the next representable number after ``input`` towards ``other``."""
    return both("nextafter", "nextafter", input, other)


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """Give log(exp(input) + exp(other)) without overflow."""
    return both("logaddexp", "logaddexp", input, other)


@saves("input other")
def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """Give log2(2**input + 2**other) without overflow."""
    need_tensor("logaddexp2", input=input, other=other)
    dtype, (a, b) = _wide(input, other)
    if dtype.kind != "f":
        raise KindError(f"\"logaddexp2_cpu\" not implemented for '{scalar_type(dtype)}'")
    ln2 = math.log(2)
    return cast(logaddexp(a * ln2, b * ln2) / ln2, dtype)


def gcd(input: Tensor, other: Tensor) -> Tensor:
    """Give the greatest common divisor of integers."""
    return both("gcd", "gcd", input, other)


def lcm(input: Tensor, other: Tensor) -> Tensor:
    """Give the least common multiple of integers."""
    need_tensor("lcm", input=input, other=other)
    a, b = promoted(input, other)
    divisor = gcd(a, b)
    return where(divisor == 0, divisor, abs_(a // where(divisor == 0, 1, divisor) * b))


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """Give 0 where negative, 1 where positive, ``values`` where zero."""
    need_tensor("heaviside", input=input, values=values)
    real_only("heaviside", input, values)
    if input._type.dtype is not values._type.dtype:
        raise CallError("heaviside is not yet implemented for tensors with different dtypes.")
    text = "derivative for aten::heaviside is not implemented"
    a, b = broadcast(input, *without_gradient(text, values, error=RuntimeError))
    return linked(text, where(a == 0, b, cast(a > 0, a._type.dtype)), input, RuntimeError)


def float_power(input: Tensor | Scalar, exponent: Tensor | Scalar) -> Tensor:
    """Raise to a power in float64 (complex128 for complex)."""
    both_ = (input, exponent)
    if not any(isinstance(v, Handle) for v in both_):
        names = ", ".join(type(v).__name__ for v in both_)
        raise TypeError(f"float_power() received an invalid combination of arguments - got ({names}), but expected one of: a Tensor and a number")
    is_complex = any((v.dtype if isinstance(v, Handle) else scalar_dtype(v)).kind == "c" for v in both_ if isinstance(v, Handle) or is_number(v))
    wide = complex128 if is_complex else float64
    a, b = (cast(v, wide) if isinstance(v, Handle) else v for v in both_)
    return binary(OPS["pow"], a, b)


@saves("other:input result")
def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """Give input * 2**other."""
    need_tensor("ldexp", input=input, other=other)
    own, kind = input._type.dtype, other._type.dtype.kind
    if own.kind != "f" or kind not in "bui":
        return mul(input, binary(OPS["pow"], 2.0, cast(other, get_default_dtype()) if kind in "bui" else other))
    if kind == "b":
        raise KindError("\"ldexp_cpu_exp\" not implemented for 'Bool'")
    first = other // 2  # in two steps: 2**other may be beyond what the product is
    steps = (binary(OPS["pow"], 2.0, cast(n, float64)) for n in (first, other - first))
    return cast(mul(mul(cast(input, float64), next(steps)), next(steps)), own)


@named("frexp")
class Frexp(NamedTuple):
    """x = mantissa * 2**exponent."""

    mantissa: Tensor
    exponent: Tensor


def frexp(input: Tensor) -> Frexp:
    """Split into mantissa in [0.5, 1) and int32 exponent."""
    if input._type.dtype.kind != "f":
        raise CallError("torch.frexp() only supports floating-point dtypes")
    return Frexp(*record(OPS["frexp"], (input,)))


def bitwise_left_shift(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Give ``input << other``, elementwise."""
    return _shift("left_shift", input, other)


def bitwise_right_shift(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Give ``input >> other``, elementwise, keeping the sign."""
    return _shift("right_shift", input, other)


def _shift(name: str, a: Any, b: Any) -> Tensor:
    dtype = result_type(a, b)
    if dtype.kind not in "ui":
        raise NotImplementedError(f"\"{name[0]}shift_cpu\" not implemented for '{scalar_type(dtype)}'")
    return binary(OPS[name], a, b)


def rsub(input: Tensor, other: Tensor | Scalar, *, alpha: Scalar = 1) -> Tensor:
    """Give ``other - alpha * input``."""
    need_tensor("rsub", input=input)
    return sub(other, input, alpha=alpha)  # type: ignore[arg-type]


# -- three operands


@saves(lambda given: "weight input:weight end:weight" if isinstance(given["weight"], Handle) else "")
def lerp(input: Tensor, end: Tensor, weight: Tensor | Scalar) -> Tensor:
    """Give ``input + weight * (end - input)``, exact at both ends."""
    need_tensor("lerp", input=input, end=end)
    if input._type.dtype is not end._type.dtype:
        raise CallError(f"expected dtype {c_name(input._type.dtype)} for `end` but got dtype {c_name(end._type.dtype)}")
    if isinstance(weight, Handle) and weight._type.shape and weight._type.dtype is not input._type.dtype:
        raise CallError(f"expected dtype {c_name(input._type.dtype)} for `weight` but got dtype {c_name(weight._type.dtype)}")
    tensors = (input, end, weight) if isinstance(weight, Handle) else (input, end)
    dtype, (start, stop, *rest) = _wide(*tensors)
    if dtype.kind not in "fc":
        kernel = "lerp_kernel_tensor" if isinstance(weight, Handle) else "lerp_kernel_scalar"
        raise KindError(f"\"{kernel}\" not implemented for '{scalar_type(dtype)}'")
    apart = sub(stop, start)
    if isinstance(weight, Handle):
        (by,) = rest
        return cast(where(abs_(by) < 0.5, start + by * apart, stop - apart * (1 - by)), dtype)
    weight = _weight(weight, input)
    part = binary(OPS["mul"], apart, weight if builtins.abs(weight) < 0.5 else 1 - weight)
    return cast(add(start, part) if builtins.abs(weight) < 0.5 else sub(stop, part), dtype)


def _wide(*tensors: Tensor) -> tuple[DType, list[Tensor]]:
    """Give the tensors in their common dtype, and its name: halves in float32, so that what is made of them is rounded once."""
    dtype = result_dtype([t._type for t in tensors])
    alike = [cast(t, dtype) for t in tensors]
    return dtype, [cast(t, float32) for t in alike] if dtype in (float16, bfloat16) else alike


def _weight(value: Scalar, *tensors: Tensor) -> Scalar:
    """Give a number that weighs tensors in their own dtype."""
    dtype = result_dtype([t._type for t in tensors])
    wide = float32 if dtype in (float16, bfloat16) else dtype
    value = real_number(value, wide)
    check_fits(value, wide)
    return int(value) if dtype.kind in "ui" else value  # type: ignore[arg-type]


@saves("tensor1:tensor2 tensor2:tensor1")
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor:
    """Give ``input + value * tensor1 * tensor2``."""
    need_tensor("addcmul", input=input, tensor1=tensor1, tensor2=tensor2)
    if all(t._type.dtype is bool_ for t in (input, tensor1, tensor2)):
        raise KindError("\"addcmul_cpu_out\" not implemented for 'Bool'")
    value = _weight(value, input, tensor1, tensor2)
    dtype, (start, a, b) = _wide(input, tensor1, tensor2)
    return cast(add(start, mul(a if value == 1 else binary(OPS["mul"], a, value), b)), dtype)


@saves("tensor1:tensor2 tensor2")
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor:
    """Give ``input + value * tensor1 / tensor2``. Errors: RuntimeError for integers."""
    need_tensor("addcdiv", input=input, tensor1=tensor1, tensor2=tensor2)
    if tensor1._type.dtype.kind in "bui" and tensor2._type.dtype.kind in "bui":
        raise CallError(
            "Integer division with addcdiv is no longer supported, and in a future  release addcdiv will perform a true division "
            "of tensor1 and tensor2."
        )
    value = _weight(value, input, tensor1, tensor2)
    dtype, (start, a, b) = _wide(input, tensor1, tensor2)
    return cast(add(start, div(a if value == 1 else binary(OPS["mul"], a, value), b)), dtype)


# -- one operand


def frac(input: Tensor) -> Tensor:
    """Give the part after the point, with the sign of ``input``."""
    if input._type.dtype.kind != "f":
        raise CallError(f'"frac" not implemented for {input._type.dtype.name}: use a floating point tensor')
    return sub(input, unary(OPS["trunc"], input))


def deg2rad(input: Tensor) -> Tensor:
    """Turn degrees into radians."""
    real_only("deg2rad", input)
    return mul(floated(input), math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Turn radians into degrees."""
    real_only("rad2deg", input)
    return mul(floated(input), 180 / math.pi)


def positive(input: Tensor) -> Tensor:
    """Give the tensor itself."""
    if input._type.dtype is bool_:
        raise CallError("The `+` operator, on a bool tensor is not supported.")
    return input


@saves("input result")
def sgn(input: Tensor) -> Tensor:
    """Give x / |x|, 0 at 0; the sign of real numbers."""
    return unary(OPS["sgn" if input._type.dtype.kind == "c" else "sign"], input)


def signbit(input: Tensor) -> Tensor:
    """Say where the sign bit is set: negative numbers and -0.0."""
    real_only("signbit", input)
    return unary(OPS["signbit"], input) if input._type.dtype is not bool_ else input & False


def nan_to_num(
    input: Tensor, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replace NaN and infinities; by default with 0 and the largest finite numbers of the dtype."""
    dtype = input._type.dtype
    if dtype.kind in "bui":
        return record(OPS["copy"], (input,))
    if dtype.kind == "c":
        no_complex_gradient("nan_to_num", input)
        return complex(*(nan_to_num(part, nan, posinf, neginf) for part in (real(input), imag(input))))
    top = largest(dtype)
    attrs = (
        ("nan", float(0.0 if nan is None else nan)), ("posinf", float(top if posinf is None else posinf)),
        ("neginf", float(-top if neginf is None else neginf)),
    )  # fmt: skip
    return record(OPS["nan_to_num"], (input,), attrs)


def isposinf(input: Tensor) -> Tensor:
    """Say where ``input`` is plus infinity."""
    if input._type.dtype.kind == "c":
        raise CallError("isposinf does not support complex inputs.")
    return logical_and(isinf(input), input > 0)


def isneginf(input: Tensor) -> Tensor:
    """Say where ``input`` is minus infinity."""
    if input._type.dtype.kind == "c":
        raise CallError("isneginf does not support complex inputs.")
    return logical_and(isinf(input), input < 0)


def isreal(input: Tensor) -> Tensor:
    """Say where the imaginary part is 0."""
    return eq(imag(input), 0) if input._type.dtype.kind == "c" else eq(input, input) | True


# -- complex numbers


def conj(input: Tensor) -> Tensor:
    """View the complex conjugate; a real tensor is its own."""
    return take_view(input, OPS["conj"], ()) if input._type.dtype.kind == "c" else input


def conj_physical(input: Tensor) -> Tensor:
    """Give the complex conjugate in memory of its own."""
    if input._type.dtype.kind != "c":
        return record(OPS["copy"], (input,))
    out = record(OPS["conj"], (input,))
    out._trace.moved[out._index] = None
    return out


def is_conj(input: Tensor) -> bool:
    """Say whether the tensor is a view of the conjugate of what lies in memory."""
    t: Handle | None = input
    flipped = False
    while t is not None and t._view is not None and t._type.dtype.kind == "c":
        if t._view[0].name == "view_as_complex":
            break
        flipped ^= t._view[0].name == "conj"
        t = t._base
    return flipped


def is_neg(input: Tensor) -> bool:
    """Say whether the tensor is a view of the negative of what lies in memory: of the imaginary part of a conjugate."""
    t: Handle | None = input
    while t is not None and t._view is not None and t._type.dtype.kind != "c":
        if t._view[0].name == "imag":
            return is_conj(t._base)
        t = t._base
    return False


def resolve_conj(input: Tensor) -> Tensor:
    """Give a copy of a view of a conjugate; any other tensor is its own."""
    return record(OPS["copy"], (input,)) if is_conj(input) else input


def resolve_neg(input: Tensor) -> Tensor:
    """Give a copy of a view of a negative; any other tensor is its own."""
    return record(OPS["copy"], (input,)) if is_neg(input) else input


def real(input: Tensor) -> Tensor:
    """View the real part; a real tensor is its own."""
    return take_view(input, OPS["real"], ()) if input._type.dtype.kind == "c" else input


def imag(input: Tensor) -> Tensor:
    """View the imaginary part. Errors: RuntimeError for real tensors."""
    if input._type.dtype.kind != "c":
        raise CallError("imag is not implemented for tensors with non-complex dtypes.")
    return take_view(input, OPS["imag"], ())


@saves("real:real imag:imag")
def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Give ``real + 1j * imag``. Dtypes: float32 gives complex64, float64 complex128."""
    need_tensor("complex", real=real, imag=imag)
    _check_parts("complex", real, imag)
    return binary(OPS["complex"], real, imag)


def _check_parts(name: str, real: Tensor, imag: Tensor) -> None:
    """Refuse parts that make no complex number, of halves for there is no dtype of those."""
    if any(t._type.dtype.kind != "f" or t._type.dtype is bfloat16 for t in (real, imag)):
        raise CallError(f"Expected both inputs to be Half, Float or Double tensors but got {_pair(real, imag)}")
    if real._type.dtype is not imag._type.dtype:
        raise CallError(
            f"Expected object of scalar type {scalar_type(real.dtype)} but got scalar type {scalar_type(imag.dtype)} for second argument"
        )
    if real._type.dtype is float16:
        raise KindError(f"\"{name}_cpu\" not implemented for 'Half'")


def _pair(a: Handle, b: Handle) -> str:
    return f"{scalar_type(a.dtype)} and {scalar_type(b.dtype)}"


@saves("result")
def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Give the complex number of an absolute value and an angle."""
    need_tensor("polar", abs=abs, angle=angle)
    _check_parts("polar", abs, angle)
    a, b = broadcast(abs, angle)
    return complex(a * unary(OPS["cos"], b), a * unary(OPS["sin"], b))


def angle(input: Tensor) -> Tensor:
    """Give the angle of complex numbers; 0 or pi for real ones."""
    if input._type.dtype.kind == "c":
        return binary(OPS["atan2"], imag(input), real(input))
    return unary(OPS["angle"], floated(input))


def view_as_real(input: Tensor) -> Tensor:
    """View [..., 2] of real and imaginary parts. Errors: RuntimeError for real tensors and views of a conjugate."""
    need_tensor("view_as_real", input=input)
    if input._type.dtype.kind != "c":
        raise CallError("view_as_real is only supported for complex tensors")
    if is_conj(input):
        raise CallError(
            "view_as_real doesn't work on unresolved conjugated tensors.  To resolve the conjugate tensor so you can view it as real, "
            "use self.resolve_conj(); however, be warned that the resulting tensor will NOT alias the original."
        )
    return take_view(input, OPS["view_as_real"], ())


def view_as_complex(input: Tensor) -> Tensor:
    """View the complex numbers of [..., 2]. Dtypes: float32, float64. Errors: RuntimeError where torch's strides have no such view."""
    need_tensor("view_as_complex", input=input)
    dtype, shape = input._type.dtype, input._type.shape
    if dtype not in (float32, float64):
        raise CallError(
            "view_as_complex is only supported for half, float and double tensors, but got a tensor of scalar type: " + scalar_type(dtype)
        )
    if not shape:
        raise CallError("Input tensor must have one or more dimensions")
    if shape[-1] != 2:
        raise CallError("Tensor must have a last dimension of size 2")
    strides = view_strides(input)
    if strides[-1] != 1:
        raise CallError("Tensor must have a last dimension with stride 1")
    if any(step % 2 and size != 1 for size, step in zip(shape[:-1], strides, strict=False)):
        raise CallError("Tensor must have a stride divisible by 2 for all but last dimension")
    if offset_of(input) % 2:
        raise CallError("Tensor must have a storage_offset divisible by 2")
    return take_view(input, OPS["view_as_complex"], ())


# -- closeness


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Say where |input - other| <= atol + rtol * |other|."""
    need_tensor("isclose", input=input, other=other)
    if input._type.dtype is not other._type.dtype:
        raise CallError(f"{scalar_type(input.dtype)} did not match {scalar_type(other.dtype)}")
    if rtol < 0 or atol < 0:
        name, value = ("rtol", rtol) if rtol < 0 else ("atol", atol)
        raise CallError(f"{name} must be greater than or equal to zero, but got {value}")
    close = eq(input, other)
    if equal_nan and input._type.dtype.kind in "fc":
        close = close | (isnan(input) & isnan(other))
    if rtol == 0 and atol == 0:
        return close
    if input._type.dtype.kind in "bui":
        input, other = cast(input, get_default_dtype()), cast(other, get_default_dtype())
    error, allowed = abs_(sub(input, other)), add(mul(abs_(other), rtol), atol)
    return close | (isfinite(error) & le(error, allowed))


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Say whether all elements are close. Flushes."""
    close = isclose(input, other, rtol, atol, equal_nan)
    return bool(record(OPS["all"], (close,), (("dims", tuple(range(close.ndim))), ("keepdim", False))))


def equal(input: Tensor, other: Tensor) -> bool:
    """Say whether shapes and all elements are equal, whatever the dtypes. Flushes."""
    need_tensor("equal", input=input, other=other)
    if input._type.shape != other._type.shape:
        return False
    same = eq(input, other)
    return bool(record(OPS["all"], (same,), (("dims", tuple(range(same.ndim))), ("keepdim", False))))


# -- questions about dtypes and sizes


def is_tensor(obj: object) -> bool:
    """Say whether this is a gt tensor."""
    return isinstance(obj, Handle)


def is_floating_point(input: Tensor) -> bool:
    """Say whether the elements are floating point numbers."""
    need_tensor("is_floating_point", input=input)
    return input.is_floating_point()


def is_complex(input: Tensor) -> bool:
    """Say whether the elements are complex numbers."""
    need_tensor("is_complex", input=input)
    return input.is_complex()


def is_nonzero(input: Tensor) -> bool:
    """Say whether the only element is not zero. Flushes."""
    return bool(input)


def numel(input: Tensor) -> int:
    """Give the number of elements."""
    need_tensor("numel", input=input)
    return input.numel()


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Expand all to the shape they broadcast to. Views."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    shape = broadcast_shapes(*(t._type.shape for t in given))
    return tuple(t.expand(shape) for t in given)
