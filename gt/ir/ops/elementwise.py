"""Arithmetic and the everyday functions, element by element, with torch's gradients.

Next: ``special`` (rarer functions), ``reduce``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.graph import AttrValue
from gt.ir.opdef import Var, op
from gt.ir.ops.broadcast import cast, constant, unbroadcast, zeros_like
from gt.ir.ops.compare import eq, ge, gt, le, logical_and, lt, where
from gt.ir.ops.families import ALL, FLOATING, NUMERIC, REAL, binary, check_kind, check_same, same, together, unary, unchanged
from gt.ir.types import KindError, TensorType, TypeMismatch, broadcast_shapes, complex_dtype, dtype_of, float32, float64, real_dtype

conj_ = unary(
    "conj", np.conj, "torch.conj({x}).resolve_conj()", lambda g, y, x: cj(g), kinds=ALL, shares=unchanged,
    doc="The complex conjugate.",
)  # fmt: skip


def cj(x: Var) -> Any:
    """Conjugate a complex value; a real one is itself."""
    return conj_(x) if x.type.dtype.is_complex else x


# -- arithmetic
neg = unary("neg", np.negative, "(-{x})", lambda g, y, x: neg(g), kinds=NUMERIC, linear=((0,),), doc="-x")
add = binary(
    "add", np.add, "({a} + {b})", lambda g, y, a, b: (unbroadcast(g, a.type), unbroadcast(g, b.type)),
    kinds=ALL, linear=((0, 1),), into={0: "{a}.add_({b})", 1: "{b}.add_({a})"}, doc="a + b",
)  # fmt: skip
sub = binary(
    "sub", np.subtract, "({a} - {b})", lambda g, y, a, b: (unbroadcast(g, a.type), unbroadcast(neg(g), b.type)),
    linear=((0, 1),), into={0: "{a}.sub_({b})"}, doc="a - b",
)  # fmt: skip
mul = binary(
    "mul", np.multiply, "({a} * {b})",
    lambda g, y, a, b: (unbroadcast(mul(g, cj(b)), a.type), unbroadcast(mul(g, cj(a)), b.type)),
    kinds=ALL, linear=((0,), (1,)), into={0: "{a}.mul_({b})", 1: "{b}.mul_({a})"}, doc="a * b",
)  # fmt: skip
div = binary(
    "div", np.divide, "({a} / {b})",
    lambda g, y, a, b: (unbroadcast(div(g, cj(b)), a.type), unbroadcast(neg(mul(g, cj(div(y, b)))), b.type)),
    kinds=FLOATING, linear=((0,),), into={0: "{a}.div_({b})"}, doc="a / b, of floats.",
    saves=lambda types, attrs, numbers: "" if numbers[0] else "a:b b",  # of a number by b torch makes a product with 1 / b
)  # fmt: skip


def _of_integers(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Refuse integer divisors of 0, for which NumPy gives 0."""

    def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind != "f" and a.size and not np.all(b):
            raise ZeroDivisionError("ZeroDivisionError")
        return function(a, b)

    return divide


@_of_integers
def _floor_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind != "f":
        return np.floor_divide(a, b)
    return np.where(b == 0, a / b, np.floor_divide(a, b))  # NaN for inf // x, as torch


def _flat_vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Var, Var]:
    return unbroadcast(zeros_like(g), a.type), unbroadcast(zeros_like(g), b.type)


floor_divide = binary(
    "floor_divide", _floor_divide, "({a} // {b})", _flat_vjp, kinds="uif", nonzero=(1,), saves="a:b b", refuses=(1,),
    doc="a / b rounded down.",
)
trunc_divide = binary(
    "trunc_divide",
    _of_integers(lambda a, b: np.trunc(a / b) if a.dtype.kind == "f" else (np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b)),
    'torch.div({a}, {b}, rounding_mode="trunc")',
    _flat_vjp,
    kinds="uif",
    nonzero=(1,),
    saves="a:b b", refuses=(1,),
    doc="a / b rounded towards zero.",
)


@_of_integers
def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    rest = np.remainder(a, b)
    return np.where(rest == 0, np.fmod(a, b), rest) if rest.dtype.kind == "f" else rest  # of nothing, the sign of a as torch


remainder = binary(
    "remainder", _remainder, "({a} % {b})",
    lambda g, y, a, b: (unbroadcast(g, a.type), unbroadcast(neg(mul(g, floor_divide(a, b))), b.type)),
    kinds="uif", nonzero=(1,), refuses=(1,), doc="The rest of a // b, with the sign of b.",
)  # fmt: skip
fmod = binary(
    "fmod", _of_integers(np.fmod), "torch.fmod({a}, {b})",
    lambda g, y, a, b: (unbroadcast(g, a.type), unbroadcast(neg(mul(g, trunc_divide(a, b))), b.type)),
    kinds="uif", nonzero=(1,), refuses=(1,), doc="The rest of a / b rounded towards zero, with the sign of a.",
)  # fmt: skip


def _pow_numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind not in "iu" or not (b < 0).any():
        return np.power(a, b)
    odd = np.where(b % 2 == 0, 1, a)  # a negative power of an integer is 0 but for 1 and -1
    return np.where(b >= 0, np.power(a, np.maximum(b, 0)), np.where(np.abs(a) == 1, odd, 0))


def _pow_vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Var, Var]:
    zero, one = constant(0, g), constant(1, g)
    ga = where(eq(b, zero), zero, mul(g, cj(mul(b, pow(a, sub(b, one))))))
    flat = eq(a, zero) if a.type.dtype.is_complex else logical_and(eq(a, zero), ge(b, zero))
    gb = where(flat, zero, mul(g, cj(mul(y, log(a)))))
    return unbroadcast(ga, a.type), unbroadcast(gb, b.type)


pow = binary(  # noqa: A001 - torch's name
    "pow", _pow_numpy, "({a} ** {b})", _pow_vjp, doc="a to the power b.",
    saves=lambda types, attrs, numbers: "b y" if numbers[0] else "a" if numbers[1] else "a b y",
)


def _integer_pow_vjp(g: Var, y: Var, x: Var, exponent: int) -> Var:
    if exponent == 0:
        return zeros_like(g)
    if exponent == 1:
        return g
    lower = x if exponent == 2 else integer_pow(x, exponent=exponent - 1)
    return mul(g, cj(mul(constant(exponent, g), lower)))


integer_pow = unary(
    "integer_pow", lambda x, exponent: np.power(x, exponent), "torch.pow({x}, {exponent})", _integer_pow_vjp, saves="x",
    kinds=NUMERIC, doc="x to a fixed integer power.",
)  # fmt: skip

# -- order


def _extremum_vjp(less: Any) -> Any:
    """A tie halves the gradient; the operand that lost gets none."""

    def vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Var, Var]:
        zero = constant(0, g)
        shared = where(eq(a, b), mul(g, constant(0.5, g)), g)
        return unbroadcast(where(less(a, b), zero, shared), a.type), unbroadcast(
            where(less(b, a), zero, shared), b.type
        )

    return vjp


maximum = binary(
    "maximum", np.maximum, "torch.maximum({a}, {b})", _extremum_vjp(lt), kinds=REAL, doc="The larger; NaN if either is."
)
minimum = binary(
    "minimum",
    np.minimum,
    "torch.minimum({a}, {b})",
    _extremum_vjp(gt),
    kinds=REAL,
    doc="The smaller; NaN if either is.",
)


def _limit_vjp(within: Any, beyond: Any) -> Any:
    """Inside the limit and at it the gradient is the value's, beyond it the limit's; of NaN nobody's."""

    def vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Var, Var]:
        zero = constant(0, g)
        return unbroadcast(where(within(a, b), g, zero), a.type), unbroadcast(where(beyond(a, b), g, zero), b.type)

    return vjp


clamp_min = binary(
    "clamp_min", np.maximum, "torch.clamp({a}, min={b})", _limit_vjp(ge, lt), kinds=REAL, doc="max(a, b), b being a limit."
)
clamp_max = binary(
    "clamp_max", np.minimum, "torch.clamp({a}, max={b})", _limit_vjp(le, gt), kinds=REAL, doc="min(a, b), b being a limit."
)
fmax = binary("fmax", np.fmax, "torch.fmax({a}, {b})", kinds=REAL, doc="The larger, ignoring NaN.",
    vjp=lambda g, y, a, b: _choose(g, logical_or_nan(ge(a, b), b), a, b))  # fmt: skip
fmin = binary("fmin", np.fmin, "torch.fmin({a}, {b})", kinds=REAL, doc="The smaller, ignoring NaN.",
    vjp=lambda g, y, a, b: _choose(g, logical_or_nan(le(a, b), b), a, b))  # fmt: skip


def logical_or_nan(first: Var, b: Var) -> Any:
    """True where ``first`` holds or b is NaN."""
    from_nan = eq(b, b)
    return where(from_nan, first, eq(from_nan, from_nan))


def _choose(g: Var, first: Any, a: Var, b: Var) -> tuple[Var, Var]:
    zero = constant(0, g)
    return unbroadcast(where(first, g, zero), a.type), unbroadcast(where(first, zero, g), b.type)


def _clamp_vjp(g: Var, y: Var, x: Var, low: Var, high: Var) -> tuple[Var, Var, Var]:
    zero = constant(0, g)
    inside = logical_and(ge(x, low), le(x, high))
    below, crossed = lt(x, low), lt(low, high)
    return (
        unbroadcast(where(inside, g, zero), x.type),
        unbroadcast(where(logical_and(crossed, below), g, zero), low.type),
        unbroadcast(where(gt(x, high), g, where(lt(high, low), g, zero)), high.type),
    )


clamp = op(
    "clamp", "x low high",
    doc="min(max(x, low), high); at the bounds the gradient passes.",
    infer=together("clamp", REAL),
    numpy=lambda x, low, high: np.minimum(np.maximum(x, low), high),
    torch="torch.clamp({x}, {low}, {high})",
    vjp=_clamp_vjp,
    factors=fx.elementwise,
)  # fmt: skip

relu = unary(
    "relu", lambda x: np.maximum(x, 0), "torch.relu({x})",
    lambda g, y, x: where(le(y, constant(0, y)), constant(0, g), g), kinds="uif", doc="max(x, 0)",
)  # fmt: skip


def _sign_numpy(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), 0, np.sign(x)) if x.dtype.kind == "f" else np.sign(x.astype(np.int64))


sign = unary(
    "sign", _sign_numpy, "torch.sign({x})", lambda g, y, x: zeros_like(g), kinds=REAL, doc="-1, 0 or 1."
)


def _sgn_vjp(g: Var, y: Var, x: Var) -> Any:
    """What of g is not along y, over |x|; 0 at 0."""
    size = abs(x)
    one = constant(1, size)
    flat = eq(size, constant(0, size))
    along = mul(y, cast(real(mul(g, conj_(y))), dtype=x.type.dtype))
    return div(where(flat, constant(0, g), sub(g, along)), cast(where(flat, one, size), dtype=x.type.dtype))


sgn = unary(
    "sgn", lambda x: np.where(x == 0, 0, x / np.where(x == 0, 1, np.abs(x))), "torch.sgn({x})", _sgn_vjp, kinds="c", doc="x / |x|"
)


def _abs_infer(x: TensorType) -> TensorType:
    if x.dtype.kind == "b":
        raise KindError(f"\"abs_cpu\" not implemented for 'Bool': expected a number, got {x!r}")
    return TensorType(x.shape, real_dtype(x.dtype))


def _abs_vjp(g: Var, y: Var, x: Var) -> tuple[Var]:
    return (mul(cast(g, dtype=x.type.dtype), sgn(x)) if x.type.dtype.is_complex else mul(g, sign(x)),)


abs = op(  # noqa: A001 - torch's name
    "abs", "x", doc="|x|; the gradient at 0 is 0.",
    infer=_abs_infer, numpy=np.abs, torch="torch.abs({x})", vjp=_abs_vjp, factors=fx.elementwise,
)  # fmt: skip

# -- rounding: gradients are zero
for _name, _numpy, _doc in (
    ("floor", np.floor, "Round down."), ("ceil", np.ceil, "Round up."),
    ("trunc", np.trunc, "Round towards zero."), ("round", np.round, "Round to nearest, ties to even."),
):  # fmt: skip
    unary(
        _name, (lambda f: lambda x: f(x) if x.dtype.kind == "f" else x)(_numpy), f"torch.{_name}({{x}})",
        lambda g, y, x: zeros_like(g), kinds="uif", doc=_doc,
    )  # fmt: skip


# -- exponentials
exp = unary("exp", np.exp, "torch.exp({x})", lambda g, y, x: mul(g, cj(y)), doc="e to the x.")
log = unary("log", np.log, "torch.log({x})", lambda g, y, x: div(g, cj(x)), doc="Natural logarithm.")
sqrt = unary("sqrt", np.sqrt, "torch.sqrt({x})", lambda g, y, x: div(g, mul(constant(2, g), cj(y))), doc="Square root.")
rsqrt = unary(
    "rsqrt", lambda x: (1 / np.sqrt(x)).astype(x.dtype), "torch.rsqrt({x})",
    lambda g, y, x: mul(mul(constant(-0.5, g), g), cj(integer_pow(y, exponent=3))), doc="1 / sqrt(x)",
)  # fmt: skip
reciprocal = unary(
    "reciprocal", np.reciprocal, "torch.reciprocal({x})", lambda g, y, x: mul(neg(g), cj(mul(y, y))), doc="1 / x"
)
square = unary(
    "square",
    np.square,
    "torch.square({x})",
    lambda g, y, x: mul(g, cj(mul(constant(2, g), x))),
    kinds=NUMERIC,
    doc="x * x",
)
tanh = unary(
    "tanh", np.tanh, "torch.tanh({x})", lambda g, y, x: mul(g, cj(sub(constant(1, y), mul(y, y)))),
    doc="Hyperbolic tangent.",
)  # fmt: skip


def logistic(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "c":
        return 1 / (1 + np.exp(-x))
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


sigmoid = unary(
    "sigmoid", logistic, "torch.sigmoid({x})",
    lambda g, y, x: mul(mul(g, cj(sub(constant(1, y), y))), cj(y)), doc="1 / (1 + exp(-x))",
)  # fmt: skip

# -- complex parts
real = op(
    "real",
    "x",
    doc="The real part.",
    infer=lambda x: _part("real", x),
    numpy=lambda x: np.real(x).copy(),
    torch="torch.real({x}).clone()",
    factors=fx.elementwise,
    linear=((0,),),
    vjp=lambda g, y, x: (cast(g, dtype=x.type.dtype),),
)
imag = op(
    "imag", "x", doc="The imaginary part.", infer=lambda x: _part("imag", x), numpy=lambda x: np.imag(x).copy(),
    torch="torch.imag({x}).clone()", factors=fx.elementwise, linear=((0,),),
    vjp=lambda g, y, x: (complex_(zeros_like(g), g),),
)  # fmt: skip


def _complex_infer(a: TensorType, b: TensorType) -> TensorType:
    if check_same("complex", (a, b)) not in (float32, float64):
        raise TypeMismatch(f"complex: expected float32 or float64 parts, got {a!r}")
    return TensorType(broadcast_shapes(a.shape, b.shape), complex_dtype(a.dtype))


def _of_two(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = np.empty(np.broadcast_shapes(a.shape, b.shape), complex_dtype(dtype_of(a.dtype)).numpy)
    out.real, out.imag = a, b  # a + 1j * b would make nan of infinity
    return out


complex_ = op(
    "complex", "a b", doc="a + bi", infer=_complex_infer, numpy=_of_two,
    torch="torch.complex({a}, {b})", factors=fx.elementwise, linear=((0, 1),),
    vjp=lambda g, y, a, b: (unbroadcast(real(g), a.type), unbroadcast(imag(g), b.type)),
)  # fmt: skip


def _pairs_infer(x: TensorType) -> TensorType:
    part = _part("view_as_real", x)
    return TensorType((*part.shape, 2), part.dtype)


def _of_pairs_infer(x: TensorType) -> TensorType:
    if x.dtype not in (float32, float64) or x.shape[-1:] != (2,):
        raise TypeMismatch(f"view_as_complex: expected float32 or float64 of shape [..., 2], got {x!r}")
    return TensorType(x.shape[:-1], complex_dtype(x.dtype))


view_as_real = op(
    "view_as_real", "x", doc="[..., 2] of real and imaginary parts.", infer=_pairs_infer,
    numpy=lambda x: np.stack((x.real, x.imag), -1), torch="torch.stack(({x}.real, {x}.imag), -1)", factors="...->....",
    linear=((0,),), vjp=lambda g, y, x: (view_as_complex(g),),
)  # fmt: skip
view_as_complex = op(
    "view_as_complex", "x", doc="The complex numbers of [..., 2].", infer=_of_pairs_infer,
    numpy=lambda x: _of_two(x[..., 0], x[..., 1]), torch="torch.complex({x}.select(-1, 0), {x}.select(-1, 1))", factors="....->...",
    linear=((0,),), vjp=lambda g, y, x: (view_as_real(g),),
)  # fmt: skip


def _part(name: str, x: TensorType, **_: AttrValue) -> TensorType:
    check_kind(name, "c", x)
    return TensorType(x.shape, real_dtype(x.dtype))


__all__ = ["cj", "logistic", "same"]
