"""``VonMises``: angles around a direction. Source: torch.distributions; draws after Best and Fisher 1979. Next: ``distribution``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.autograd import no_grad
from gt.distributions import constraints
from gt.distributions.distribution import Located
from gt.functions import draw
from gt.functions.pointwise import where
from gt.functions.special import i0e, i1e
from gt.ir.types import float64

TRIES = 48  # each proposal is taken with probability above 0.65, so none is in one of 10**21 draws


class VonMises(Located):
    """Angles in radians with direction ``loc``, their circle's mean, the closer to it the larger ``concentration``."""

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    loc: Any
    concentration: Any

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self._take(validate_args, loc=loc, concentration=concentration)

    @property
    def variance(self) -> Any:
        """The variance on the circle, from 0 to 1."""
        return 1 - i1e(self.concentration) / i0e(self.concentration)

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        # exp(-k) is taken out of i0, so that large concentrations do not overflow
        away = self.concentration * ((value - self.loc).cos() - 1)
        return away - math.log(2 * math.pi) - i0e(self.concentration).log()

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with no_grad():
            shape, k = self._extended_shape(sample_shape), self.concentration.to(float64)
            tau = 1 + (1 + 4 * k.square()).sqrt()
            rho = (tau - (2 * tau).sqrt()) / (2 * k)
            r = where(k < 1e-5, k.reciprocal() + k, (1 + rho.square()) / (2 * rho))
            u = draw.rand(3, TRIES, *shape, dtype=float64)
            z = (math.pi * u[0]).cos()
            f = (1 + r * z) / (r + z)
            c = k * (r - f)
            taken = (c * (2 - c) > u[1]) | ((c / u[1]).log() + 1 - c >= 0)
            angle = (u[2] - 0.5).sign() * f.clamp(-1, 1).acos()
            first = taken.to(float64).argmax(0, keepdim=True)
            angle = angle.gather(0, first)[0] + self.loc.to(float64)
            return ((angle + math.pi) % (2 * math.pi) - math.pi).to(self.loc.dtype)


__all__ = ["VonMises"]
