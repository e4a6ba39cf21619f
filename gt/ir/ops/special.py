"""Rarer functions, element by element: trigonometry, logarithms, error and gamma functions.

Next: ``activation``, ``reduce``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.ir.opdef import Var
from gt.ir.ops.broadcast import constant, unbroadcast, zeros_like
from gt.ir.ops.compare import eq, le, logical_and, lt, where
from gt.ir.ops.elementwise import (
    abs,
    add,
    cj,
    div,
    exp,
    log,
    mul,
    neg,
    reciprocal,
    rsqrt,
    sigmoid,
    sub,
)  # fmt: skip
from gt.ir.ops.families import FLOAT, FLOATING, binary, unary

LN2, LN10 = math.log(2), math.log(10)


def one(x: Var) -> Any:
    return constant(1, x)


def by_element(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """Apply a function of Python floats to every element, in float64."""

    def apply(x: np.ndarray) -> np.ndarray:
        return np.array([function(float(v)) for v in x.reshape(-1)], np.float64).reshape(x.shape)

    return apply


# -- exponentials and logarithms
exp2 = unary(
    "exp2",
    np.exp2,
    "torch.exp2({x})",
    lambda g, y, x: mul(g, cj(mul(y, constant(LN2, g)))),
    doc="2 to the x.",
)
expm1 = unary(
    "expm1", np.expm1, "torch.expm1({x})", lambda g, y, x: mul(g, cj(add(y, one(y)))), doc="exp(x) - 1"
)
log1p = unary(
    "log1p", np.log1p, "torch.log1p({x})", lambda g, y, x: div(g, cj(add(x, one(x)))), doc="log(1 + x)"
)
log2 = unary(
    "log2", np.log2, "torch.log2({x})", lambda g, y, x: div(g, cj(mul(x, constant(LN2, x)))), doc="Base 2."
)
log10 = unary(
    "log10",
    np.log10,
    "torch.log10({x})",
    lambda g, y, x: div(g, cj(mul(x, constant(LN10, x)))),
    doc="Base 10.",
)

# -- trigonometry
sin = unary("sin", np.sin, "torch.sin({x})", lambda g, y, x: mul(g, cj(cos(x))), doc="Sine.")
cos = unary("cos", np.cos, "torch.cos({x})", lambda g, y, x: neg(mul(g, cj(sin(x)))), doc="Cosine.")
tan = unary("tan", np.tan, "torch.tan({x})", lambda g, y, x: mul(g, cj(add(one(y), mul(y, y)))), doc="Tangent.")
sinh = unary("sinh", np.sinh, "torch.sinh({x})", lambda g, y, x: mul(g, cj(cosh(x))), doc="Hyperbolic sine.")
cosh = unary("cosh", np.cosh, "torch.cosh({x})", lambda g, y, x: mul(g, cj(sinh(x))), doc="Hyperbolic cosine.")
asin = unary(
    "asin", np.arcsin, "torch.asin({x})", lambda g, y, x: mul(g, cj(rsqrt(sub(one(x), mul(x, x))))),
    doc="Inverse sine.",
)  # fmt: skip
acos = unary(
    "acos", np.arccos, "torch.acos({x})", lambda g, y, x: neg(mul(g, cj(rsqrt(sub(one(x), mul(x, x)))))),
    doc="Inverse cosine.",
)  # fmt: skip
atan = unary(
    "atan",
    np.arctan,
    "torch.atan({x})",
    lambda g, y, x: div(g, cj(add(mul(x, x), one(x)))),
    doc="Inverse tangent.",
)
asinh = unary(
    "asinh", np.arcsinh, "torch.asinh({x})", lambda g, y, x: mul(g, cj(rsqrt(add(mul(x, x), one(x))))),
    doc="Inverse hyperbolic sine.",
)  # fmt: skip
acosh = unary(
    "acosh",
    np.arccosh,
    "torch.acosh({x})",
    lambda g, y, x: mul(g, cj(mul(rsqrt(sub(x, one(x))), rsqrt(add(x, one(x)))))),
    doc="Inverse hyperbolic cosine.",
)
atanh = unary(
    "atanh", np.arctanh, "torch.atanh({x})", lambda g, y, x: div(g, cj(sub(one(x), mul(x, x)))),
    doc="Inverse hyperbolic tangent.",
)  # fmt: skip


def _atan2_vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Any, Any]:
    norm = add(mul(a, a), mul(b, b))
    scaled = where(eq(norm, constant(0, g)), constant(0, g), mul(g, reciprocal(norm)))
    return unbroadcast(mul(scaled, b), a.type), unbroadcast(mul(scaled, neg(a)), b.type)


atan2 = binary(
    "atan2", np.arctan2, "torch.atan2({a}, {b})", _atan2_vjp, kinds=FLOAT, doc="The angle of the point (b, a)."
)
hypot = binary(
    "hypot", np.hypot, "torch.hypot({a}, {b})",
    lambda g, y, a, b: (unbroadcast(mul(g, div(a, y)), a.type), unbroadcast(mul(g, div(b, y)), b.type)),
    kinds=FLOAT, doc="sqrt(a * a + b * b) without overflow.",
)  # fmt: skip
copysign = binary(
    "copysign", np.copysign, "torch.copysign({a}, {b})",
    lambda g, y, a, b: (
        unbroadcast(where(eq(a, constant(0, a)), constant(0, g), mul(g, div(y, a))), a.type),
        unbroadcast(zeros_like(g), b.type),
    ),
    kinds=FLOAT, saves="a:a y", doc="|a| with the sign of b.",
)  # fmt: skip
nextafter = binary(
    "nextafter", np.nextafter, "torch.nextafter({a}, {b})",
    lambda g, y, a, b: (unbroadcast(g, a.type), unbroadcast(zeros_like(g), b.type)), kinds=FLOAT, saves="a:a b:a",
    doc="The next number after a towards b."
)


def _logaddexp_vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Any, Any]:
    return unbroadcast(mul(g, cj(sigmoid(sub(a, b)))), a.type), unbroadcast(mul(g, cj(sigmoid(sub(b, a)))), b.type)


def logaddexp_numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Add exponentials; of complex numbers the one of the larger real part is taken out."""
    if np.result_type(a, b).kind != "c":
        return np.logaddexp(a, b)
    low, high = np.where(a.real < b.real, a, b), np.where(a.real < b.real, b, a)
    nothing = (low.real == high.real) & (high.real == -np.inf)
    return np.where(nothing, low, np.log1p(np.exp(low - high)) + high)


logaddexp = binary("logaddexp", logaddexp_numpy, "torch.logaddexp({a}, {b})", _logaddexp_vjp, kinds=FLOATING, doc="log(exp(a) + exp(b))")


def _xlogy_vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Any, Any]:
    zero = constant(0, g)
    skip = logical_and(eq(a, zero), le(b, zero))
    return unbroadcast(where(skip, zero, mul(g, log(b))), a.type), unbroadcast(mul(g, div(a, b)), b.type)


xlogy = binary(
    "xlogy", lambda a, b: np.where(np.isnan(b), np.nan, np.where(a == 0, 0, a * np.log(b))), "torch.xlogy({a}, {b})",
    _xlogy_vjp, kinds=FLOAT, doc="a * log(b), 0 where a is 0.",
)  # fmt: skip



def _xlog1py_vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Any, Any]:
    zero = constant(0, g)
    skip = logical_and(eq(a, zero), le(b, constant(-1, b)))
    slope = div(a, add(b, one(b)))
    return unbroadcast(where(skip, zero, mul(g, log1p(b))), a.type), unbroadcast(mul(g, slope), b.type)


xlog1py = binary(
    "xlog1py", lambda a, b: np.where(np.isnan(b), np.nan, np.where(a == 0, 0, a * np.log1p(b))), "torch.special.xlog1py({a}, {b})",
    _xlog1py_vjp, kinds=FLOAT, doc="a * log(1 + b), 0 where a is 0.",
)  # fmt: skip

# -- error and gamma functions
erf = unary(
    "erf",
    by_element(math.erf),
    "torch.erf({x})",
    lambda g, y, x: mul(mul(constant(2 / math.sqrt(math.pi), g), exp(neg(mul(x, x)))), g),
    kinds=FLOAT,
    doc="Error function.",
)
erfc = unary(
    "erfc",
    by_element(math.erfc),
    "torch.erfc({x})",
    lambda g, y, x: mul(mul(constant(-2 / math.sqrt(math.pi), g), exp(neg(mul(x, x)))), g),
    kinds=FLOAT,
    doc="1 - erf(x)",
)


def _erfinv(y: float) -> float:
    """Newton's steps on erf from a rational start (Giles 2010)."""
    if not -1 < y < 1:
        return math.copysign(math.inf, y) if math.fabs(y) == 1 else math.nan
    w = -math.log((1 - y) * (1 + y))
    a = 8 * (math.pi - 3) / (3 * math.pi * (4 - math.pi))
    t = 2 / (math.pi * a) - w / 2
    x = math.copysign(math.sqrt(math.sqrt(t * t + w / a) - t), y)
    for _ in range(4):
        error = (
            math.erf(x) - y
            if math.fabs(y) < 0.5
            else math.copysign(1.0, y) * ((1 - math.fabs(y)) - math.erfc(math.fabs(x)))
        )
        x -= error / (2 / math.sqrt(math.pi) * math.exp(-x * x))
    return x


erfinv = unary(
    "erfinv",
    by_element(_erfinv),
    "torch.erfinv({x})",
    lambda g, y, x: mul(mul(constant(math.sqrt(math.pi) / 2, g), exp(mul(y, y))), g),
    kinds=FLOAT,
    saves="x",
    doc="Inverse of erf.",
)


def _entr_numpy(x: np.ndarray) -> np.ndarray:
    inner = -x * np.log(np.where(x > 0, x, 1))
    return np.where(np.isnan(x), x, np.where(x > 0, inner, np.where(x == 0, 0, -np.inf)))


entr = unary(
    "entr", _entr_numpy, "torch.special.entr({x})", lambda g, y, x: mul(g, sub(constant(-1, x), log(x))), kinds=FLOAT,
    doc="-x log(x); 0 at 0, minus infinity below.",
)  # fmt: skip


def _sinc_vjp(g: Var, y: Var, x: Var) -> Any:
    px = mul(x, constant(math.pi, x))
    slope = div(sub(mul(px, cos(px)), sin(px)), mul(px, x))
    return mul(g, cj(where(eq(mul(px, x), constant(0, x)), constant(0, x), slope)))


sinc = unary("sinc", np.sinc, "torch.sinc({x})", _sinc_vjp, doc="sin(pi x) / (pi x), 1 at 0.")


def _nan_to_num_numpy(x: np.ndarray, nan: float, posinf: float, neginf: float) -> np.ndarray:
    return np.where(np.isnan(x), nan, np.where(x == np.inf, posinf, np.where(x == -np.inf, neginf, x)))


def _finite(x: Var) -> Any:
    return logical_and(eq(x, x), lt(abs(x), constant(math.inf, x)))


nan_to_num = unary(
    "nan_to_num", _nan_to_num_numpy, "torch.nan_to_num({x}, {nan}, {posinf}, {neginf})",
    lambda g, y, x, nan, posinf, neginf: where(_finite(x), g, constant(0, g)), kinds=FLOAT,
    doc="Replace NaN and infinities by given numbers.",
)  # fmt: skip
angle = unary(
    "angle", lambda x: np.where(np.isnan(x), np.nan, np.where(x < 0, math.pi, 0)),
    "torch.where(torch.isnan({x}), {x}, ({x} < 0).to({out}) * 3.141592653589793)",
    lambda g, y, x: zeros_like(g), kinds=FLOAT, saves="x", doc="0 or pi.",
)  # fmt: skip
