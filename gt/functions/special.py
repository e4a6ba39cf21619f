"""Special functions, as ``torch.special`` names them.

Owns: their signatures and compositions. Next: ``gt.special`` (the namespace), ``gt.ir.ops.special`` (meaning).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.functions.numeric import real_only
from gt.functions.pointwise import log
from gt.functions.promote import binary, cast, float_unary, floated, get_default_dtype, need_tensor, refuse, without_gradient
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import CallError, Scalar, is_int
from gt.naming import named
from gt.recording import record
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor


def _real(name: str, op: str | None = None) -> Any:
    def function(input: Tensor) -> Tensor:
        real_only(name, input)
        return float_unary(OPS[op or name], input)

    return named(function, name, OPS[op or name].doc)


erfinv = _real("erfinv")
lgamma = _real("lgamma")
digamma = _real("digamma")
i0, i0e, i1, i1e = map(_real, ("i0", "i0e", "i1", "i1e"))
ndtri, log_ndtr, erfcx = map(_real, ("ndtri", "log_ndtr", "erfcx"))
bessel_j0, bessel_j1, bessel_y0, bessel_y1 = map(_real, ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"))
modified_bessel_k0, modified_bessel_k1 = _real("modified_bessel_k0"), _real("modified_bessel_k1")
scaled_modified_bessel_k0, scaled_modified_bessel_k1 = (
    _real("scaled_modified_bessel_k0"),
    _real("scaled_modified_bessel_k1"),
)
modified_bessel_i0, modified_bessel_i1 = _real("modified_bessel_i0", "i0"), _real("modified_bessel_i1", "i1")
spherical_bessel_j0, airy_ai = _real("spherical_bessel_j0"), _real("airy_ai")


def exp2(input: Tensor) -> Tensor:
    """Give 2 to the power of each element."""
    return float_unary(OPS["exp2"], input)


def sinc(input: Tensor) -> Tensor:
    """Give sin(pi x) / (pi x), 1 at 0."""
    return float_unary(OPS["sinc"], input)


gammaln, psi = lgamma, digamma


def ndtr(input: Tensor) -> Tensor:
    """Give the standard normal distribution function."""
    real_only("ndtr", input)
    return float_unary(OPS["erfc"], floated(input) * -math.sqrt(0.5)) * 0.5


def entr(input: Tensor) -> Tensor:
    """Give -x log(x); 0 at 0, minus infinity below."""
    real_only("entr", input)
    return float_unary(OPS["entr"], input)


@saves("input")
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """Give log(x / (1 - x)); ``eps`` keeps x away from 0 and 1."""
    real_only("logit", input)
    x = floated(input)
    if eps is not None:
        x = x.clamp(eps, 1 - eps)
    return log(x / (1 - x))


def xlogy(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Give input * log(other), 0 where input is 0."""
    return binary(OPS["xlogy"], input, other, floating=True)


def xlog1py(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Give input * log(1 + other), 0 where input is 0."""
    if not isinstance(input, Handle) and not isinstance(other, Handle):
        raise refuse("xlog1py", input, "'input' (position 1)")
    return binary(OPS["xlog1py"], input, other, floating=True)


def polygamma(n: int, input: Tensor) -> Tensor:
    """Give the n-th derivative of digamma."""
    if not is_int(n):
        raise TypeError(f"polygamma(): argument 'n' (position 1) must be int, not {type(n).__name__}")
    if n < 0:
        raise CallError("polygamma(n, x) does not support negative n.")
    if n == 0:
        return digamma(input)
    return record(OPS["polygamma"], (floated(input),), (("n", n),))


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """Give the log of the multivariate gamma function of dimension ``p``."""
    x = floated(input)
    if p < 1:
        raise CallError("p has to be greater than or equal to 1")
    out = lgamma(x)
    for j in range(1, p):
        out = out + lgamma(x - j / 2)
    return out + p * (p - 1) / 4 * math.log(math.pi)


multigammaln = mvlgamma


def zeta(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """Give Hurwitz's zeta function; it has no gradient by ``input``."""
    (input,) = without_gradient("the derivative for 'zeta' is not implemented.", input)
    return binary(OPS["zeta"], input, other, floating=True)


def gammainc(input: Tensor, other: Tensor) -> Tensor:
    """Give the regularised lower incomplete gamma function."""
    need_tensor("igamma", input=input, other=other)
    (input,) = without_gradient("the derivative for 'igamma: input' is not implemented.", input)
    return binary(OPS["igamma"], input, other)


def gammaincc(input: Tensor, other: Tensor) -> Tensor:
    """Give the regularised upper incomplete gamma function."""
    need_tensor("igammac", input=input, other=other)
    (input,) = without_gradient("the derivative for 'igammac: input' is not implemented.", input)
    return binary(OPS["igammac"], input, other)


igamma, igammac = gammainc, gammaincc


def _polynomial(name: str) -> Any:
    def function(input: Tensor | Scalar, n: Tensor | Scalar) -> Tensor:
        x = floated(input) if isinstance(input, Handle) else input
        degree = (
            cast(n, x._type.dtype if isinstance(x, Handle) else get_default_dtype()) if isinstance(n, Handle) else n
        )
        return binary(OPS[name], x, degree, floating=True)

    return named(function, name, OPS[name].doc)


chebyshev_polynomial_t, chebyshev_polynomial_u = (
    _polynomial("chebyshev_polynomial_t"),
    _polynomial("chebyshev_polynomial_u"),
)
chebyshev_polynomial_v, chebyshev_polynomial_w = (
    _polynomial("chebyshev_polynomial_v"),
    _polynomial("chebyshev_polynomial_w"),
)
shifted_chebyshev_polynomial_t = _polynomial("shifted_chebyshev_polynomial_t")
shifted_chebyshev_polynomial_u = _polynomial("shifted_chebyshev_polynomial_u")
shifted_chebyshev_polynomial_v = _polynomial("shifted_chebyshev_polynomial_v")
shifted_chebyshev_polynomial_w = _polynomial("shifted_chebyshev_polynomial_w")
hermite_polynomial_h, hermite_polynomial_he = _polynomial("hermite_polynomial_h"), _polynomial("hermite_polynomial_he")
laguerre_polynomial_l, legendre_polynomial_p = (
    _polynomial("laguerre_polynomial_l"),
    _polynomial("legendre_polynomial_p"),
)
