"""Bessel functions and orthogonal polynomials, element by element.

The NumPy meanings are integral representations, summed by rules that converge exponentially (Abramowitz and Stegun chapters 9
and 10), and three-term recurrences (chapter 22). Next: ``gamma``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from gt.ir.opdef import Var
from gt.ir.ops.broadcast import constant
from gt.ir.ops.compare import eq, where
from gt.ir.ops.elementwise import add, div, mul, sign, sub
from gt.ir.ops.families import FLOAT, binary, unary

ANGLES = np.linspace(0, math.pi, 2049)
WEIGHTS = np.full(2049, 1 / 2048)
WEIGHTS[[0, -1]] /= 2
leggauss = cache(np.polynomial.legendre.leggauss)  # takes long enough to be left until it is asked for


def by_rows(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Apply a function of a float64 column to every element."""

    def apply(x: np.ndarray) -> np.ndarray:
        return function(x.reshape(-1, 1).astype(np.float64)).reshape(x.shape)

    return apply


def period(x: np.ndarray, integrand: np.ndarray) -> np.ndarray:
    """1/pi times the integral over 0..pi of an integrand that is even and periodic: the trapezoid rule."""
    return integrand @ WEIGHTS


def half_line(top: np.ndarray, integrand: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The integral over 0..top, by Gauss and Legendre."""
    nodes, weights = leggauss(300)
    return (integrand(top / 2 * (nodes + 1)) @ weights) * top[:, 0] / 2


def _j(nu: float) -> Callable[[np.ndarray], np.ndarray]:
    def j(x: np.ndarray) -> np.ndarray:
        return period(x, np.cos(nu * ANGLES - x * np.sin(ANGLES)))

    return j


def _y(n: int) -> Callable[[np.ndarray], np.ndarray]:
    def y(x: np.ndarray) -> np.ndarray:
        safe = np.where(x > 0, x, 1)
        wave = half_line(np.full_like(x, math.pi), lambda t: np.sin(safe * np.sin(t) - n * t))
        top = np.arcsinh(750 / safe)
        tail = half_line(top, lambda t: (np.exp(n * t) + (-1) ** n * np.exp(-n * t)) * np.exp(-safe * np.sinh(t)))
        out = (wave - tail) / math.pi
        return np.where(x[:, 0] > 0, out, np.where(x[:, 0] == 0, -np.inf, np.nan))

    return y


def _i_scaled(n: int) -> Callable[[np.ndarray], np.ndarray]:
    """exp(-|x|) times the modified Bessel function."""

    def i(x: np.ndarray) -> np.ndarray:
        out = period(x, np.exp(np.abs(x) * (np.cos(ANGLES) - 1)) * np.cos(n * ANGLES))
        return out * np.where(x[:, 0] < 0, (-1) ** n, 1)

    return i


def _k_scaled(nu: float) -> Callable[[np.ndarray], np.ndarray]:
    """exp(x) times the modified Bessel function of the second kind."""

    def k(x: np.ndarray) -> np.ndarray:
        safe = np.where(x > 0, x, 1)
        out = half_line(np.arccosh(1 + 750 / safe), lambda t: np.exp(-safe * (np.cosh(t) - 1)) * np.cosh(nu * t))
        return np.where(x[:, 0] > 0, out, np.where(x[:, 0] == 0, np.inf, np.nan))

    return k


def _unscaled(function: Callable[[np.ndarray], np.ndarray], sign_: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: function(x) * np.exp(sign_ * np.abs(x[:, 0]))


def _airy(x: np.ndarray) -> np.ndarray:
    size = np.abs(x)
    z = np.where(x == 0, 1, 2 / 3 * size**1.5)
    root = np.sqrt(size[:, 0])
    decaying = root / math.sqrt(3) / math.pi * _k_scaled(1 / 3)(z) * np.exp(-z[:, 0])

    def j(nu: float) -> np.ndarray:
        wave = half_line(np.full_like(z, math.pi), lambda t: np.cos(nu * t - z * np.sin(t)))
        tail = half_line(np.arcsinh(750 / z), lambda t: np.exp(-z * np.sinh(t) - nu * t))
        return (wave - math.sin(nu * math.pi) * tail) / math.pi

    waving = root / 3 * (j(1 / 3) + j(-1 / 3))
    return np.where(x[:, 0] > 0, decaying, np.where(x[:, 0] < 0, waving, 0.3550280538878172))


def _over(y: Var, x: Var) -> Any:
    """y / x, 1/2 at 0: what i1 and i1e need at their zero."""
    return where(eq(x, constant(0, x)), constant(0.5, y), div(y, x))


i0 = unary("i0", by_rows(_unscaled(_i_scaled(0), 1)), "torch.i0({x})", lambda g, y, x: mul(g, i1(x)), kinds=FLOAT,
    doc="Modified Bessel function of the first kind, order 0.")  # fmt: skip
i0e = unary("i0e", by_rows(_i_scaled(0)), "torch.special.i0e({x})",
    lambda g, y, x: mul(g, sub(i1e(x), mul(sign(x), y))), kinds=FLOAT, doc="exp(-|x|) i0(x)")  # fmt: skip
i1 = unary("i1", by_rows(_unscaled(_i_scaled(1), 1)), "torch.special.i1({x})",
    lambda g, y, x: mul(g, sub(i0(x), _over(y, x))), kinds=FLOAT,
    doc="Modified Bessel function of the first kind, order 1.")  # fmt: skip
i1e = unary("i1e", by_rows(_i_scaled(1)), "torch.special.i1e({x})",
    lambda g, y, x: mul(g, sub(i0e(x), add(mul(sign(x), y), _over(y, x)))), kinds=FLOAT, doc="exp(-|x|) i1(x)")  # fmt: skip

for _name, _function, _doc in (
    ("bessel_j0", _j(0), "Bessel function of the first kind, order 0."),
    ("bessel_j1", _j(1), "Bessel function of the first kind, order 1."),
    ("bessel_y0", _y(0), "Bessel function of the second kind, order 0."),
    ("bessel_y1", _y(1), "Bessel function of the second kind, order 1."),
    ("modified_bessel_k0", _unscaled(_k_scaled(0), -1), "Modified Bessel function of the second kind, order 0."),
    ("modified_bessel_k1", _unscaled(_k_scaled(1), -1), "Modified Bessel function of the second kind, order 1."),
    ("scaled_modified_bessel_k0", _k_scaled(0), "exp(x) modified_bessel_k0(x)"),
    ("scaled_modified_bessel_k1", _k_scaled(1), "exp(x) modified_bessel_k1(x)"),
    ("spherical_bessel_j0", lambda x: np.sinc(x / math.pi)[:, 0], "sin(x) / x, 1 at 0."),
    ("airy_ai", _airy, "Airy function Ai."),
):  # fmt: skip
    unary(_name, by_rows(_function), f"torch.special.{_name}({{x}})", kinds=FLOAT, doc=_doc)


# -- orthogonal polynomials: the degree is an operand, cut to an integer; a negative degree gives 0

Step = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def _polynomial(
    first: Callable[[np.ndarray], np.ndarray], step: Step
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Give p(x, n) from p1 and p(k + 1) = step(k, x, p(k), p(k - 1))."""

    def polynomial(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, degree = np.broadcast_arrays(a.astype(np.float64), np.trunc(b))
        before, now = np.ones_like(x), first(x)
        out = np.where(degree < 0, 0.0, np.where(degree == 0, before, now))
        for k in range(1, int(min(np.nanmax(degree, initial=0), 512))):  # padding of a split dim may be NaN
            before, now = now, step(k, x, now, before)
            out = np.where(degree == k + 1, now, out)
        return out

    return polynomial


def _twice(k: int, x: np.ndarray, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return 2 * x * p - q


_POLYNOMIALS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Step]] = {
    "chebyshev_polynomial_t": (lambda x: x, _twice),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _twice),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _twice),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _twice),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda k, x, p, q: 2 * x * p - 2 * k * q),
    "hermite_polynomial_he": (lambda x: x, lambda k, x, p, q: x * p - k * q),
    "laguerre_polynomial_l": (lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)),
    "legendre_polynomial_p": (lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)),
}
for _name, (_first, _step) in _POLYNOMIALS.items():
    binary(
        _name, _polynomial(_first, _step), f"torch.special.{_name}({{a}}, {{b}})", kinds=FLOAT,
        doc=f"{_name.replace('_', ' ').capitalize()} of degree b at a.",
    )  # fmt: skip
    if _name.startswith("chebyshev"):
        _shifted = (lambda p: lambda a, b: p(2.0 * a.astype(np.float64) - 1, b))(_polynomial(_first, _step))
        binary(
            f"shifted_{_name}", _shifted, f"torch.special.shifted_{_name}({{a}}, {{b}})", kinds=FLOAT,
            doc=f"{_name} at 2a - 1.",
        )  # fmt: skip
