"""Distributions of real numbers with closed forms. Source: torch.distributions. Next: ``distribution``, ``positive``, ``kl``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.distribution import Distribution, Located
from gt.functions import create, draw

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
EULER = 0.57721566490153286


class LocationScale(Located):
    """A distribution moved by ``loc`` and stretched by ``scale``."""

    has_rsample = True
    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    loc: Any
    scale: Any

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self._take(validate_args, loc=loc, scale=scale)

    def _standard(self, value: Any) -> Any:
        self._validate_sample(value)
        return (value - self.loc) / self.scale

    def _uniform(self, sample_shape: Sequence[int]) -> Any:
        """Draw evenly within 0 to 1, ends left out."""
        tiny = 2.0 ** (-24 if self.loc.dtype.itemsize <= 4 else -53)
        return draw.rand(*self._extended_shape(sample_shape), dtype=self.loc.dtype).clamp(min=tiny / 2, max=1 - tiny)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.icdf(self._uniform(sample_shape))


class Normal(LocationScale):
    """Normal numbers with mean ``loc`` and standard deviation ``scale``."""

    @property
    def stddev(self) -> Any:
        return self.scale

    @property
    def variance(self) -> Any:
        return self.scale.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.loc + self.scale * draw.randn(*self._extended_shape(sample_shape), dtype=self.loc.dtype)

    def log_prob(self, value: Any) -> Any:
        return -0.5 * self._standard(value).square() - self.scale.log() - HALF_LOG_2PI

    def cdf(self, value: Any) -> Any:
        return 0.5 * (1 + (self._standard(value) / math.sqrt(2)).erf())

    def icdf(self, value: Any) -> Any:
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self) -> Any:
        return 0.5 + HALF_LOG_2PI + self.scale.log()


class LogNormal(LocationScale):
    """Positive numbers whose logarithms are normal with ``loc`` and ``scale``."""

    support = constraints.positive

    @property
    def mean(self) -> Any:
        return (self.loc + self.scale.square() / 2).exp()

    @property
    def mode(self) -> Any:
        return (self.loc - self.scale.square()).exp()

    @property
    def variance(self) -> Any:
        square = self.scale.square()
        return square.expm1() * (2 * self.loc + square).exp()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return Normal(self.loc, self.scale).rsample(sample_shape).exp()

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        return Normal(self.loc, self.scale).log_prob(value.log()) - value.log()

    def cdf(self, value: Any) -> Any:
        return Normal(self.loc, self.scale).cdf(value.log())

    def icdf(self, value: Any) -> Any:
        return Normal(self.loc, self.scale).icdf(value).exp()

    def entropy(self) -> Any:
        return Normal(self.loc, self.scale).entropy() + self.loc


class Laplace(LocationScale):
    """Numbers around ``loc`` whose density falls exponentially on both sides."""

    @property
    def variance(self) -> Any:
        return 2 * self.scale.square()

    @property
    def stddev(self) -> Any:
        return math.sqrt(2) * self.scale

    def log_prob(self, value: Any) -> Any:
        return -(2 * self.scale).log() - self._standard(value).abs()

    def cdf(self, value: Any) -> Any:
        z = self._standard(value)
        return 0.5 - 0.5 * z.sign() * (-z.abs()).expm1()

    def icdf(self, value: Any) -> Any:
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self) -> Any:
        return 1 + (2 * self.scale).log()


class Cauchy(LocationScale):
    """Numbers around ``loc`` without a mean."""

    @property
    def mean(self) -> Any:
        return create.full_like(self.loc, math.nan)

    @property
    def variance(self) -> Any:
        return create.full_like(self.loc, math.inf)

    def log_prob(self, value: Any) -> Any:
        return -math.log(math.pi) - self.scale.log() - self._standard(value).square().log1p()

    def cdf(self, value: Any) -> Any:
        return self._standard(value).atan() / math.pi + 0.5

    def icdf(self, value: Any) -> Any:
        return (math.pi * (value - 0.5)).tan() * self.scale + self.loc

    def entropy(self) -> Any:
        return math.log(4 * math.pi) + self.scale.log()


class Gumbel(LocationScale):
    """Largest values of many: loc - scale * log(-log(u))."""

    @property
    def mean(self) -> Any:
        return self.loc + self.scale * EULER

    @property
    def variance(self) -> Any:
        return (math.pi / math.sqrt(6) * self.scale).square()

    def log_prob(self, value: Any) -> Any:
        y = -self._standard(value)
        return y - y.exp() - self.scale.log()

    def cdf(self, value: Any) -> Any:
        return (-(-self._standard(value)).exp()).exp()

    def icdf(self, value: Any) -> Any:
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Any:
        return self.scale.log() + (1 + EULER)


class Uniform(Distribution):
    """Numbers from ``low`` up to ``high``, all as likely."""

    has_rsample = True
    arg_constraints = {"low": constraints.dependent, "high": constraints.dependent}
    low: Any
    high: Any

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self._take(validate_args, low=low, high=high)
        if self._validate_args and not (self.low < self.high).all():
            raise ValueError("Uniform is not defined when low>= high")

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Any:
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Any:
        return create.full_like(self.high, math.nan)

    @property
    def stddev(self) -> Any:
        return (self.high - self.low) / math.sqrt(12)

    @property
    def variance(self) -> Any:
        return (self.high - self.low).square() / 12

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.icdf(draw.rand(*self._extended_shape(sample_shape), dtype=self.low.dtype))

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        inside = ((self.low <= value) & (self.high > value)).to(self.low.dtype)
        return inside.log() - (self.high - self.low).log()

    def cdf(self, value: Any) -> Any:
        self._validate_sample(value)
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Any) -> Any:
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Any:
        return (self.high - self.low).log()


class Exponential(Distribution):
    """Waiting times of events that come at ``rate``."""

    has_rsample = True
    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative
    rate: Any

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        self._take(validate_args, rate=rate)

    @property
    def mean(self) -> Any:
        return self.rate.reciprocal()

    stddev = mean

    @property
    def mode(self) -> Any:
        return create.zeros_like(self.rate)

    @property
    def variance(self) -> Any:
        return self.rate.pow(-2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.icdf(draw.rand(*self._extended_shape(sample_shape), dtype=self.rate.dtype))

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value: Any) -> Any:
        self._validate_sample(value)
        return 1 - (-self.rate * value).exp()

    def icdf(self, value: Any) -> Any:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Any:
        return 1.0 - self.rate.log()
