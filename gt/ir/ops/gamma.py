"""Functions around gamma and the normal distribution, and the integer gcd, element by element.

Sources: Cephes (zeta, incomplete gamma), Abramowitz and Stegun chapters 6, 7 and 26. Next: ``bessel``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Var, op
from gt.ir.ops.broadcast import constant, unbroadcast, zeros_like
from gt.ir.ops.elementwise import add, div, exp, log, mul, neg, square, sub
from gt.ir.ops.families import FLOAT, binary, check_kind, unary
from gt.ir.types import TensorType, int32


def by_element(function: Any) -> Any:
    """Apply a function of Python floats to every element, in float64."""

    def apply(x: np.ndarray, *rest: np.ndarray, **attrs: Any) -> np.ndarray:
        arrays = np.broadcast_arrays(x, *rest)
        with np.errstate(all="ignore"):
            flat = [function(*map(float, v), **attrs) for v in zip(*(a.reshape(-1) for a in arrays), strict=True)]
        return np.array(flat, np.float64).reshape(arrays[0].shape)

    return apply


# -- zeta and polygamma
_BERNOULLI = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10, -2.950130727918164224e12,
    1.1646782814350067249e14, -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip


def _zeta(x: float, q: float) -> float:
    x, q = np.float64(x), np.float64(q)  # whose quotients and powers go to infinity or NaN
    if x == 1:
        return math.inf
    if x < 1 or math.isnan(x) or math.isnan(q):
        return math.nan
    if q <= 0:
        if q == np.floor(q):
            return math.inf
        if x != np.floor(x):
            return math.nan
    total = q**-x
    a, i, b = q, 0, 0.0
    while i < 9 or a <= 9:
        i += 1
        a += 1
        b = a**-x
        total += b
        if abs(b / total) < 1e-17:
            return total
    total += b * a / (x - 1) - 0.5 * b
    factor, k = 1.0, 0.0
    for coefficient in _BERNOULLI:
        factor *= x + k
        b /= a
        term = factor * b / coefficient
        total += term
        if abs(term / total) < 1e-17:
            return total
        k += 1
        factor *= x + k
        b /= a
        k += 1
    return total


def _second_only(slope: Callable[[Var, Var], Any]) -> Callable[..., tuple[Any, Any]]:
    """The vjp of an op whose derivative by ``a`` nobody wrote down, as in torch: the functions of the API refuse it."""

    def vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Any, Any]:
        return unbroadcast(zeros_like(g), a.type), unbroadcast(mul(g, slope(a, b)), b.type)

    return vjp


zeta = binary(
    "zeta", by_element(_zeta), "torch.special.zeta({a}, {b})",
    _second_only(lambda a, b: mul(neg(a), zeta(add(a, constant(1, a)), b))),
    kinds=FLOAT, doc="Hurwitz's zeta function of a at b.",
)  # fmt: skip


def _polygamma(x: float, n: int) -> float:
    return (-1.0) ** (n + 1) * math.gamma(n + 1) * _zeta(float(n + 1), x)


polygamma = unary(
    "polygamma", by_element(_polygamma), "torch.special.polygamma({n}, {x})",
    lambda g, y, x, n: mul(g, polygamma(x, n=n + 1)), kinds=FLOAT, doc="The n-th derivative of digamma, n >= 1.",
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
    "lgamma",
    by_element(_lgamma),
    "torch.lgamma({x})",
    lambda g, y, x: mul(g, digamma(x)),
    kinds=FLOAT,
    doc="log |gamma(x)|",
)
digamma = unary(
    "digamma", by_element(_digamma), "torch.digamma({x})", lambda g, y, x: mul(g, polygamma(x, n=1)), kinds=FLOAT,
    doc="Derivative of lgamma.",
)  # fmt: skip


# -- incomplete gamma functions


def _igamma(a: float, x: float) -> float:
    if a < 0 or x < 0 or math.isnan(a) or math.isnan(x) or (a == 0 and x == 0) or (math.isinf(a) and math.isinf(x)):
        return math.nan
    if a == 0 or math.isinf(x):
        return 1.0
    if x == 0 or math.isinf(a):
        return 0.0
    if x > 1 and x > a:
        return 1 - _continued(a, x)
    term = total = 1 / a
    k = a
    while term > total * 1e-17:
        k += 1
        term *= x / k
        total += term
    return total * math.exp(a * math.log(x) - x - math.lgamma(a))


def _continued(a: float, x: float) -> float:
    """The upper function by Lentz's continued fraction."""
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    h = d
    for i in range(1, 2000):
        an = -i * (i - a)
        b += 2
        d = 1 / (an * d + b or tiny)
        c = b + an / c or tiny
        h *= d * c
        if abs(d * c - 1) < 1e-16:
            break
    return h * math.exp(a * math.log(x) - x - math.lgamma(a))


def _igammac(a: float, x: float) -> float:
    lower = _igamma(a, x)
    return _continued(a, x) if a > 0 and x > 1 and x > a and not math.isinf(x) and not math.isinf(a) else 1 - lower


def _density(a: Var, b: Var) -> Any:
    """The derivative of igamma by b: the density of the gamma distribution."""
    return exp(sub(sub(mul(sub(a, constant(1, a)), log(b)), b), lgamma(a)))


igamma = binary(
    "igamma", by_element(_igamma), "torch.igamma({a}, {b})", _second_only(_density), kinds=FLOAT,
    doc="Regularised lower incomplete gamma of (a, b).",
)  # fmt: skip
igammac = binary(
    "igammac", by_element(_igammac), "torch.igammac({a}, {b})", _second_only(lambda a, b: neg(_density(a, b))), kinds=FLOAT,
    doc="Regularised upper incomplete gamma of (a, b).",
)  # fmt: skip


# -- the normal distribution


def _erfcx(x: float) -> float:
    if x < -26.7:
        return math.inf
    if x < 25:
        return math.exp(x * x) * math.erfc(x)
    z = 1 / (2 * x * x)
    return (1 - z * (1 - 3 * z * (1 - 5 * z))) / (x * math.sqrt(math.pi)) if not math.isinf(x) else 0.0


def _ndtri(p: float) -> float:
    if p in (0.0, 1.0):
        return math.copysign(math.inf, p - 0.5)
    from statistics import NormalDist  # imports much that `import gt` does without

    return NormalDist().inv_cdf(p) if 0 < p < 1 else math.nan


def _log_ndtr(x: float) -> float:
    if math.isnan(x):
        return x
    if x < -1:
        scaled = _erfcx(-x / math.sqrt(2)) / 2
        return math.log(scaled) - x * x / 2 if scaled > 0 else -math.inf
    return math.log1p(-math.erfc(x / math.sqrt(2)) / 2)


def _erfcx_vjp(g: Var, y: Var, x: Var) -> Any:
    return mul(g, sub(mul(constant(2, x), mul(x, y)), constant(2 / math.sqrt(math.pi), x)))


erfcx = unary(
    "erfcx",
    by_element(_erfcx),
    "torch.special.erfcx({x})",
    _erfcx_vjp,
    kinds=FLOAT,
    doc="exp(x * x) erfc(x) without overflow.",
)
ndtri = unary(
    "ndtri", by_element(_ndtri), "torch.special.ndtri({x})",
    lambda g, y, x: mul(g, mul(constant(math.sqrt(2 * math.pi), y), exp(div(square(y), constant(2, y))))), kinds=FLOAT,
    doc="Inverse of the standard normal distribution function.",
)  # fmt: skip
log_ndtr = unary(
    "log_ndtr", by_element(_log_ndtr), "torch.special.log_ndtr({x})",
    lambda g, y, x: div(mul(g, constant(math.sqrt(2 / math.pi), g)), erfcx(mul(x, constant(-math.sqrt(0.5), x)))), kinds=FLOAT,
    saves="x y",
    doc="Log of the standard normal distribution function.",
)  # fmt: skip


# -- integers and parts of numbers
gcd = binary("gcd", np.gcd, "torch.gcd({a}, {b})", kinds="ui", doc="Greatest common divisor.")


def _frexp_infer(x: TensorType) -> tuple[TensorType, TensorType]:
    check_kind("frexp", FLOAT, x)
    return x, TensorType(x.shape, int32)


def _frexp_vjp(gs: tuple[Any, Any], ys: tuple[Var, Var], x: Var) -> tuple[Any]:
    """The mantissa is x / 2**exponent, and the exponent is constant almost everywhere."""
    return (None if gs[0] is None else power_of_two(gs[0], ys[1]),)


frexp = op(
    "frexp", "x", doc="Mantissa in [0.5, 1) and int32 exponent.",
    infer=_frexp_infer, numpy=lambda x: np.frexp(x), torch="tuple(torch.frexp({x}))", vjp=_frexp_vjp,
    factors=fx.elementwise,
)  # fmt: skip

power_of_two = op(
    "power_of_two", "x exponent", doc="x divided by 2**exponent.",
    infer=lambda x, exponent: x, numpy=lambda x, exponent: np.ldexp(x, -exponent), torch="({x} * torch.exp2(-{exponent}.to({out})))",
    vjp=lambda g, y, x, exponent: (power_of_two(g, exponent), None), factors=fx.elementwise, linear=((0,),),
)  # fmt: skip
