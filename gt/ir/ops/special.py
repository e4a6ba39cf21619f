"""Rarer functions, element by element: trigonometry, logarithms, error functions, activations.

Next: ``reduce``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.ir.opdef import Var
from gt.ir.ops.broadcast import constant, unbroadcast
from gt.ir.ops.compare import eq, ge, gt, le, logical_and, logical_or, lt, where
from gt.ir.ops.elementwise import (
    abs,
    add,
    cj,
    div,
    exp,
    log,
    logistic,
    mul,
    neg,
    reciprocal,
    rsqrt,
    sigmoid,
    sub,
    tanh,
)  # fmt: skip
from gt.ir.ops.families import FLOAT, binary, unary

LN2, LN10 = math.log(2), math.log(10)
SIXTH = float(np.float32(1) / np.float32(6))  # torch's hardsigmoid takes it from float32, in every dtype


def one(x: Var) -> Any:
    return constant(1, x)


def by_element(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """Apply a function of Python floats to every element, in float64."""

    def apply(x: np.ndarray) -> np.ndarray:
        return np.array([function(float(v)) for v in x.reshape(-1)], np.float64).reshape(x.shape)

    return apply


# -- exponentials and logarithms
exp2 = unary(
    "exp2", np.exp2, "torch.exp2({x})", lambda g, y, x: mul(g, cj(mul(y, constant(LN2, g)))), kinds=FLOAT, doc="2 to the x."
)
expm1 = unary(
    "expm1", np.expm1, "torch.expm1({x})", lambda g, y, x: mul(g, cj(add(y, one(y)))), kinds=FLOAT, doc="exp(x) - 1"
)
log1p = unary(
    "log1p", np.log1p, "torch.log1p({x})", lambda g, y, x: div(g, cj(add(x, one(x)))), kinds=FLOAT, doc="log(1 + x)"
)
log2 = unary(
    "log2", np.log2, "torch.log2({x})", lambda g, y, x: div(g, cj(mul(x, constant(LN2, x)))), kinds=FLOAT, doc="Base 2."
)
log10 = unary(
    "log10", np.log10, "torch.log10({x})", lambda g, y, x: div(g, cj(mul(x, constant(LN10, x)))), kinds=FLOAT, doc="Base 10."
)

# -- trigonometry
sin = unary("sin", np.sin, "torch.sin({x})", lambda g, y, x: mul(g, cj(cos(x))), doc="Sine.")
cos = unary("cos", np.cos, "torch.cos({x})", lambda g, y, x: neg(mul(g, cj(sin(x)))), doc="Cosine.")
tan = unary("tan", np.tan, "torch.tan({x})", lambda g, y, x: mul(g, cj(add(one(y), mul(y, y)))), doc="Tangent.")
sinh = unary("sinh", np.sinh, "torch.sinh({x})", lambda g, y, x: mul(g, cj(cosh(x))), doc="Hyperbolic sine.")
cosh = unary("cosh", np.cosh, "torch.cosh({x})", lambda g, y, x: mul(g, cj(sinh(x))), doc="Hyperbolic cosine.")
asin = unary(
    "asin", np.arcsin, "torch.asin({x})", lambda g, y, x: mul(g, rsqrt(sub(one(x), mul(x, x)))), kinds=FLOAT,
    doc="Inverse sine.",
)  # fmt: skip
acos = unary(
    "acos", np.arccos, "torch.acos({x})", lambda g, y, x: neg(mul(g, rsqrt(sub(one(x), mul(x, x))))), kinds=FLOAT,
    doc="Inverse cosine.",
)  # fmt: skip
atan = unary(
    "atan", np.arctan, "torch.atan({x})", lambda g, y, x: div(g, add(mul(x, x), one(x))), kinds=FLOAT, doc="Inverse tangent."
)
asinh = unary(
    "asinh", np.arcsinh, "torch.asinh({x})", lambda g, y, x: mul(g, rsqrt(add(mul(x, x), one(x)))), kinds=FLOAT,
    doc="Inverse hyperbolic sine.",
)  # fmt: skip
acosh = unary(
    "acosh", np.arccosh, "torch.acosh({x})",
    lambda g, y, x: mul(g, mul(rsqrt(sub(x, one(x))), rsqrt(add(x, one(x))))), kinds=FLOAT, doc="Inverse hyperbolic cosine.",
)  # fmt: skip
atanh = unary(
    "atanh", np.arctanh, "torch.atanh({x})", lambda g, y, x: div(g, sub(one(x), mul(x, x))), kinds=FLOAT,
    doc="Inverse hyperbolic tangent.",
)  # fmt: skip


def _atan2_vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Any, Any]:
    norm = add(mul(a, a), mul(b, b))
    scaled = where(eq(norm, constant(0, g)), constant(0, g), mul(g, reciprocal(norm)))
    return unbroadcast(mul(scaled, b), a.type), unbroadcast(mul(scaled, neg(a)), b.type)


atan2 = binary("atan2", np.arctan2, "torch.atan2({a}, {b})", _atan2_vjp, kinds=FLOAT, doc="The angle of the point (b, a).")
hypot = binary(
    "hypot", np.hypot, "torch.hypot({a}, {b})",
    lambda g, y, a, b: (unbroadcast(mul(g, div(a, y)), a.type), unbroadcast(mul(g, div(b, y)), b.type)),
    kinds=FLOAT, doc="sqrt(a * a + b * b) without overflow.",
)  # fmt: skip
copysign = binary(
    "copysign", np.copysign, "torch.copysign({a}, {b})",
    lambda g, y, a, b: (
        unbroadcast(where(eq(a, constant(0, a)), constant(0, g), mul(g, div(y, a))), a.type),
        unbroadcast(mul(g, constant(0, g)), b.type),
    ),
    kinds=FLOAT, doc="|a| with the sign of b.",
)  # fmt: skip
nextafter = binary(
    "nextafter", np.nextafter, "torch.nextafter({a}, {b})", kinds=FLOAT, doc="The next number after a towards b."
)


def _logaddexp_vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Any, Any]:
    return unbroadcast(mul(g, sigmoid(sub(a, b))), a.type), unbroadcast(mul(g, sigmoid(sub(b, a))), b.type)


logaddexp = binary(
    "logaddexp", np.logaddexp, "torch.logaddexp({a}, {b})", _logaddexp_vjp, kinds=FLOAT, doc="log(exp(a) + exp(b))"
)


def _xlogy_vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Any, Any]:
    zero = constant(0, g)
    skip = logical_and(eq(a, zero), le(b, zero))
    return unbroadcast(where(skip, zero, mul(g, log(b))), a.type), unbroadcast(mul(g, div(a, b)), b.type)


xlogy = binary(
    "xlogy", lambda a, b: np.where(np.isnan(b), np.nan, np.where(a == 0, 0, a * np.log(b))), "torch.xlogy({a}, {b})",
    _xlogy_vjp, kinds=FLOAT, doc="a * log(b), 0 where a is 0.",
)  # fmt: skip

# -- error and gamma functions
erf = unary(
    "erf", by_element(math.erf), "torch.erf({x})",
    lambda g, y, x: mul(mul(constant(2 / math.sqrt(math.pi), g), exp(neg(mul(x, x)))), g), kinds=FLOAT, doc="Error function.",
)  # fmt: skip
erfc = unary(
    "erfc", by_element(math.erfc), "torch.erfc({x})",
    lambda g, y, x: mul(mul(constant(-2 / math.sqrt(math.pi), g), exp(neg(mul(x, x)))), g), kinds=FLOAT, doc="1 - erf(x)",
)  # fmt: skip


def _erfinv(y: float) -> float:
    """Newton's steps on erf from a rational start (Giles 2010)."""
    if not -1 < y < 1:
        return math.copysign(math.inf, y) if math.fabs(y) == 1 else math.nan
    w = -math.log((1 - y) * (1 + y))
    a = 8 * (math.pi - 3) / (3 * math.pi * (4 - math.pi))
    t = 2 / (math.pi * a) - w / 2
    x = math.copysign(math.sqrt(math.sqrt(t * t + w / a) - t), y)
    for _ in range(4):
        error = math.erf(x) - y if math.fabs(y) < 0.5 else math.copysign(1.0, y) * ((1 - math.fabs(y)) - math.erfc(math.fabs(x)))
        x -= error / (2 / math.sqrt(math.pi) * math.exp(-x * x))
    return x


erfinv = unary(
    "erfinv", by_element(_erfinv), "torch.erfinv({x})",
    lambda g, y, x: mul(mul(constant(math.sqrt(math.pi) / 2, g), exp(mul(y, y))), g), kinds=FLOAT, doc="Inverse of erf.",
)  # fmt: skip


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _digamma(x: float) -> float:
    """Recurrence up to 10, then the asymptotic series; reflection for negative arguments."""
    if x == 0:
        return -math.copysign(math.inf, x)
    if math.isinf(x):
        return x if x > 0 else math.nan
    if x < 0:
        if x == math.floor(x):
            return math.nan
        return _digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1))
    out = 0.0
    while x < 10:
        out -= 1 / x
        x += 1
    z = 1 / (x * x)
    series = z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z * (1 / 132 - z * 691 / 32760)))))
    return out + math.log(x) - 0.5 / x - series


lgamma = unary(
    "lgamma", by_element(_lgamma), "torch.lgamma({x})", lambda g, y, x: mul(g, digamma(x)), kinds=FLOAT, doc="log |gamma(x)|"
)
digamma = unary("digamma", by_element(_digamma), "torch.digamma({x})", kinds=FLOAT, doc="Derivative of lgamma.")

# -- activations with torch kernels of their own


def _gelu_numpy(x: np.ndarray, approximate: str) -> np.ndarray:
    wide = x.astype(np.float64)
    if approximate == "tanh":
        return 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    return wide * 0.5 * by_element(math.erfc)(-wide / math.sqrt(2))


def _gelu_vjp(g: Var, y: Var, x: Var, approximate: str) -> Any:
    half = constant(0.5, x)
    if approximate == "tanh":
        beta, kappa = math.sqrt(2 / math.pi), 0.044715
        square_ = mul(x, x)
        t = tanh(mul(constant(beta, x), add(x, mul(constant(kappa, x), mul(square_, x)))))
        slope = mul(constant(beta, x), add(one(x), mul(constant(3 * kappa, x), square_)))
        left = mul(half, add(one(x), t))
        return mul(g, add(left, mul(mul(half, x), mul(sub(one(x), mul(t, t)), slope))))
    cdf = mul(half, add(one(x), erf(mul(x, constant(math.sqrt(0.5), x)))))
    pdf = mul(constant(1 / math.sqrt(2 * math.pi), x), exp(mul(constant(-0.5, x), mul(x, x))))
    return mul(g, add(cdf, mul(x, pdf)))


gelu = unary(
    "gelu", _gelu_numpy, "torch.nn.functional.gelu({x}, approximate={approximate})", _gelu_vjp, kinds=FLOAT,
    doc="x * P(N <= x); approximate: none or tanh.",
)  # fmt: skip
silu = unary(
    "silu", lambda x: x * logistic(x), "torch.nn.functional.silu({x})",
    lambda g, y, x: _silu_vjp(g, x), kinds=FLOAT, doc="x * sigmoid(x)",
)  # fmt: skip


def _silu_vjp(g: Var, x: Var) -> Any:
    s = sigmoid(x)
    return mul(mul(g, s), add(one(x), mul(x, sub(one(x), s))))


logsigmoid = unary(
    "logsigmoid", lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))), "torch.nn.functional.logsigmoid({x})",
    lambda g, y, x: mul(g, sigmoid(neg(x))), kinds=FLOAT, doc="log(sigmoid(x))",
)  # fmt: skip


def _softplus_numpy(x: np.ndarray, beta: float, threshold: float) -> np.ndarray:
    return np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta).astype(x.dtype)


softplus = unary(
    "softplus", _softplus_numpy, "torch.nn.functional.softplus({x}, {beta}, {threshold})",
    lambda g, y, x, beta, threshold: where(
        gt(mul(x, constant(beta, x)), constant(threshold, x)), g, mul(g, sigmoid(mul(x, constant(beta, x))))
    ),
    kinds=FLOAT, doc="log(1 + exp(beta * x)) / beta, x above the threshold.",
)  # fmt: skip
leaky_relu = unary(
    "leaky_relu", lambda x, slope: np.where(x > 0, x, x * x.dtype.type(slope)), "torch.nn.functional.leaky_relu({x}, {slope})",
    lambda g, y, x, slope: where(gt(x, constant(0, x)), g, mul(g, constant(slope, g))), kinds=FLOAT,
    doc="x, or slope * x where negative.",
)  # fmt: skip


def _elu_vjp(g: Var, y: Var, x: Var, alpha: float) -> Any:
    return where(le(x, constant(0, x)), mul(mul(g, constant(alpha, g)), exp(x)), g)


elu = unary(
    "elu", lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))), "torch.nn.functional.elu({x}, {alpha})",
    _elu_vjp, kinds=FLOAT, doc="x, or alpha * (exp(x) - 1) where negative.",
)  # fmt: skip
selu = unary(
    "selu",
    lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    "torch.selu({x})",
    lambda g, y, x: where(
        le(x, constant(0, x)),
        mul(mul(g, constant(1.0507009873554805 * 1.6732632423543772, g)), exp(x)),
        mul(g, constant(1.0507009873554805, g)),
    ),
    kinds=FLOAT, doc="Self-normalising elu.",
)  # fmt: skip


def inside(x: Var, low: float, high: float) -> Any:
    return logical_and(gt(x, constant(low, x)), lt(x, constant(high, x)))


hardtanh = unary(
    "hardtanh", lambda x, low, high: np.clip(x, low, high), "torch.nn.functional.hardtanh({x}, {low}, {high})",
    lambda g, y, x, low, high: where(
        logical_or(le(x, constant(low, x)), ge(x, constant(high, x))), constant(0, g), g
    ),
    kinds=FLOAT, doc="x between low and high, without gradient at and beyond them (relu6).",
)  # fmt: skip
hardsigmoid = unary(
    "hardsigmoid", lambda x: np.clip(x + 3, 0, 6) / 6, "torch.nn.functional.hardsigmoid({x})",
    lambda g, y, x: where(inside(x, -3, 3), mul(g, constant(SIXTH, g)), constant(0, g)), kinds=FLOAT,
    doc="min(max(x + 3, 0), 6) / 6",
)  # fmt: skip


def _hardswish_vjp(g: Var, y: Var, x: Var) -> Any:
    middle = mul(g, add(div(x, constant(3, x)), constant(0.5, x)))
    return where(le(x, constant(-3, x)), constant(0, g), where(lt(x, constant(3, x)), middle, g))


hardswish = unary(
    "hardswish", lambda x: x * np.clip(x + 3, 0, 6) / 6, "torch.nn.functional.hardswish({x})", _hardswish_vjp, kinds=FLOAT,
    doc="x * hardsigmoid(x)",
)  # fmt: skip
mish = unary(
    "mish", lambda x: x * np.tanh(np.logaddexp(0, x)), "torch.nn.functional.mish({x})",
    lambda g, y, x: _mish_vjp(g, x), kinds=FLOAT, doc="x * tanh(softplus(x))",
)  # fmt: skip


def _mish_vjp(g: Var, x: Var) -> Any:
    t = tanh(softplus(x, beta=1.0, threshold=20.0))
    return mul(g, add(t, mul(mul(x, sigmoid(x)), sub(one(x), mul(t, t)))))


def _sinc_vjp(g: Var, y: Var, x: Var) -> Any:
    px = mul(x, constant(math.pi, x))
    slope = div(sub(mul(px, cos(px)), sin(px)), mul(px, x))
    return mul(g, where(eq(x, constant(0, x)), constant(0, x), slope))


sinc = unary("sinc", np.sinc, "torch.sinc({x})", _sinc_vjp, kinds=FLOAT, doc="sin(pi x) / (pi x), 1 at 0.")


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
    "angle", lambda x: np.where(np.isnan(x), np.nan, np.where(x < 0, math.pi, 0)), "torch.angle({x})",
    lambda g, y, x: mul(g, constant(0, g)), kinds=FLOAT, doc="0 or pi.",
)  # fmt: skip
