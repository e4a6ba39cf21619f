"""Distributions of positive numbers: sizes of others, and heavy or stretched tails. Source: torch.distributions. Next: ``continuous``, ``kl``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.continuous import EULER, Cauchy, LocationScale, Normal
from gt.distributions.distribution import Distribution
from gt.functions import create, draw


class _Sizes(Distribution):
    """Sizes of numbers that are spread alike on both sides of 0."""

    has_rsample = True
    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    _both_sides: type[LocationScale]
    scale: Any

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        self._take(validate_args, scale=scale)

    def _signed(self) -> LocationScale:
        return self._both_sides(create.zeros_like(self.scale), self.scale)

    @property
    def mode(self) -> Any:
        return create.zeros_like(self.scale)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self._signed().rsample(sample_shape).abs()

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        return (self._signed().log_prob(value) + math.log(2)).masked_fill(value < 0, -math.inf)

    def cdf(self, value: Any) -> Any:
        self._validate_sample(value)
        return 2 * self._signed().cdf(value) - 1

    def icdf(self, value: Any) -> Any:
        return self._signed().icdf((value + 1) / 2)

    def entropy(self) -> Any:
        return self._signed().entropy() - math.log(2)


class HalfNormal(_Sizes):
    """Sizes of normal numbers with mean 0."""

    _both_sides = Normal

    @property
    def mean(self) -> Any:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Any:
        return self.scale.square() * (1 - 2 / math.pi)


class HalfCauchy(_Sizes):
    """Sizes of Cauchy numbers around 0."""

    _both_sides = Cauchy

    @property
    def mean(self) -> Any:
        return create.full_like(self.scale, math.inf)

    variance = mean


class _OfExponential(Distribution):
    """A distribution made of waiting times at rate 1."""

    has_rsample = True
    scale: Any

    def _waiting(self, sample_shape: Sequence[int]) -> Any:
        shape, tiny = self._extended_shape(sample_shape), 2.0 ** (-25 if self.scale.dtype.itemsize <= 4 else -54)
        return -(-draw.rand(*shape, dtype=self.scale.dtype)).log1p().clamp(max=-tiny)

    def _from_waiting(self, time: Any) -> Any:
        raise NotImplementedError

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self._from_waiting(self._waiting(sample_shape))

    def icdf(self, value: Any) -> Any:
        return self._from_waiting(-(-value).log1p())


class Pareto(_OfExponential):
    """Numbers from ``scale`` on whose density falls with the power ``alpha`` + 1."""

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}
    alpha: Any

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self._take(validate_args, scale=scale, alpha=alpha)

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Any:
        a = self.alpha.clamp(min=1)  # infinite up to 1
        return a * self.scale / (a - 1)

    @property
    def mode(self) -> Any:
        return self.scale

    @property
    def variance(self) -> Any:
        a = self.alpha.clamp(min=2)  # infinite up to 2
        return self.scale.square() * a / ((a - 1).square() * (a - 2))

    def _from_waiting(self, time: Any) -> Any:
        return self.scale * (time / self.alpha).exp()

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        return self.alpha.log() - (self.alpha + 1) * (value / self.scale).log() - self.scale.log()

    def cdf(self, value: Any) -> Any:
        self._validate_sample(value)
        return 1 - (-self.alpha * (value / self.scale).log()).exp()

    def entropy(self) -> Any:
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())


class Weibull(_OfExponential):
    """Waiting times whose rate changes with the power ``concentration`` - 1 of the time waited."""

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    concentration: Any
    support = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self._take(validate_args, scale=scale, concentration=concentration)
        self.concentration_reciprocal = self.concentration.reciprocal()

    @property
    def mean(self) -> Any:
        return self.scale * (1 + self.concentration_reciprocal).lgamma().exp()

    @property
    def mode(self) -> Any:
        return self.scale * ((self.concentration - 1) / self.concentration) ** self.concentration_reciprocal

    @property
    def variance(self) -> Any:
        second = (1 + 2 * self.concentration_reciprocal).lgamma().exp()
        return self.scale.square() * (second - (2 * (1 + self.concentration_reciprocal).lgamma()).exp())

    def _from_waiting(self, time: Any) -> Any:
        return self.scale * time**self.concentration_reciprocal

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        ratio = value / self.scale
        density = self.concentration.log() + (self.concentration - 1) * ratio.log() - self.scale.log()
        return density - ratio**self.concentration

    def cdf(self, value: Any) -> Any:
        self._validate_sample(value)
        return -(-((value / self.scale) ** self.concentration)).expm1()

    def entropy(self) -> Any:
        return EULER * (1 - self.concentration_reciprocal) + (self.scale * self.concentration_reciprocal).log() + 1


__all__ = ["HalfCauchy", "HalfNormal", "Pareto", "Weibull"]
