"""Smooth stand-ins of distributions of classes, whose draws pass gradients. Source: torch.distributions. Next: ``discrete``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from gt.distributions import constraints
from gt.distributions.discrete import OfAnother, OfClasses, OneHotCategorical, _Binary, clamp_probs
from gt.distributions.distribution import broadcast_all
from gt.finfo import finfo
from gt.functions import create, draw
from gt.functions.pointwise import where
from gt.nn.functional.activation import softplus
from gt.nn.functional.loss import binary_cross_entropy_with_logits


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """One of the classes, as a vector that is 1 there and 0 elsewhere; gradients go to the probabilities as if it were they."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        probs = self.probs
        return self.sample(sample_shape) + (probs - probs.detach())


class ContinuousBernoulli(_Binary):
    """Numbers from 0 to 1 with a density that goes as probs**x * (1 - probs)**(1 - x).

    Between ``lims`` the formulas would divide by nearly 0, and their series at 0.5 are taken.
    """

    has_rsample = True
    support = constraints.unit_interval
    probs: Any

    def __init__(
        self, probs: Any = None, logits: Any = None, lims: tuple[float, float] = (0.499, 0.501), validate_args: bool | None = None
    ) -> None:
        super().__init__(probs, logits, validate_args)
        self._lims = lims
        if probs is not None:
            self.probs = clamp_probs(self.probs)

    def _settings(self) -> dict[str, Any]:
        return {"lims": self._lims}

    def _probs_of(self, logits: Any) -> Any:
        return clamp_probs(logits.sigmoid())

    def _cut(self) -> tuple[Any, Any]:
        """Give where the formulas hold, and the probabilities, with others in place of those where they do not."""
        holds = (self.probs <= self._lims[0]) | (self.probs > self._lims[1])
        return holds, where(holds, self.probs, self._lims[0] * create.ones_like(self.probs))

    def log_norm(self) -> Any:
        """Give the logarithm of what makes the density one."""
        holds, p = self._cut()
        below, above = p.masked_fill(p > 0.5, 0.0), p.masked_fill(p < 0.5, 1.0)
        found = ((-p).log1p() - p.log()).abs().log() - where(p <= 0.5, (-2.0 * below).log1p(), (2.0 * above - 1.0).log())
        x = (self.probs - 0.5).square()
        return where(holds, found, 0.6931471805599453 + (4.0 / 3.0 + 104.0 / 45.0 * x) * x)

    @property
    def mean(self) -> Any:
        holds, p = self._cut()
        x = self.probs - 0.5
        found = p / (2.0 * p - 1.0) + 1.0 / ((-p).log1p() - p.log())
        return where(holds, found, 0.5 + (1.0 / 3.0 + 16.0 / 45.0 * x.square()) * x)

    @property
    def variance(self) -> Any:
        holds, p = self._cut()
        x = (self.probs - 0.5).square()
        found = p * (p - 1.0) / (1.0 - 2.0 * p).square() + 1.0 / ((-p).log1p() - p.log()).square()
        return where(holds, found, 1.0 / 12.0 - (1.0 / 15.0 - 128.0 / 945.0 * x) * x)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.icdf(draw.rand(*self._extended_shape(sample_shape), dtype=self.probs.dtype))

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none") + self.log_norm()

    def cdf(self, value: Any) -> Any:
        self._validate_sample(value)
        holds, p = self._cut()
        found = where(holds, (p**value * (1.0 - p) ** (1.0 - value) + p - 1.0) / (2.0 * p - 1.0), value)
        return found.masked_fill(value <= 0, 0.0).masked_fill(value >= 1, 1.0)

    def icdf(self, value: Any) -> Any:
        holds, p = self._cut()
        none = (-p).log1p()
        return where(holds, ((-p + value * (2.0 * p - 1.0)).log1p() - none) / (p.log() - none), value)

    def entropy(self) -> Any:
        none = (-self.probs).log1p()
        return self.mean * (none - self.probs.log()) - self.log_norm() - none


class LogitRelaxedBernoulli(_Binary):
    """Log odds of ``RelaxedBernoulli``'s numbers."""

    has_rsample = True
    support = constraints.real

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        (self.temperature,) = broadcast_all(temperature)
        super().__init__(probs, logits, validate_args)

    def _settings(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        probs = clamp_probs(self.probs)
        u = clamp_probs(draw.rand(*self._extended_shape(sample_shape), dtype=probs.dtype))
        return (u.log() - (-u).log1p() + probs.log() - (-probs).log1p()) / self.temperature

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        away = logits - value * self.temperature
        return self.temperature.log() + away - 2 * away.exp().log1p()


class ExpRelaxedCategorical(OfClasses):
    """Logarithms of ``RelaxedOneHotCategorical``'s vectors."""

    has_rsample = True
    support = constraints.real_vector

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        (self.temperature,) = broadcast_all(temperature)
        super().__init__(probs, logits, validate_args)

    def expand(self, batch_shape: Sequence[int]) -> Self:
        """Give the same distribution over a larger batch."""
        wide = self._other.expand(batch_shape)
        return type(self)(self.temperature, **wide._given_parameters(), validate_args=False)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        u = clamp_probs(draw.rand(*self._extended_shape(sample_shape), dtype=self.logits.dtype))
        return ((self.logits - (-u.log()).log()) / self.temperature).log_softmax(-1)

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        k = self._event_shape[0]
        scale = create.full_like(self.temperature, k).lgamma() + self.temperature.log() * (k - 1)
        return (logits - value * self.temperature).log_softmax(-1).sum(-1) + scale


class _Relaxed(OfAnother):
    """Values of ``base_dist``, brought between 0 and 1."""

    has_rsample = True
    _base: type[Any]

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self.base_dist = self._other = self._base(temperature, probs, logits, validate_args)
        super().__init__(self.base_dist.batch_shape, self.base_dist.event_shape, validate_args)

    @property
    def temperature(self) -> Any:
        return self.base_dist.temperature

    def expand(self, batch_shape: Sequence[int]) -> Self:
        """Give the same distribution over a larger batch."""
        wide = self.base_dist.expand(batch_shape)
        return type(self)(self.temperature, logits=wide.logits, validate_args=False)


class RelaxedBernoulli(_Relaxed):
    """Numbers between 0 and 1, the closer to an end the lower ``temperature``; above 0.5 with probability ``probs``."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval
    _base = LogitRelaxedBernoulli

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        x = self.base_dist.rsample(sample_shape).sigmoid()
        info = finfo(x.dtype)
        return x.clamp(min=info.tiny, max=1 - info.eps)

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        info = finfo(value.dtype)
        y = value.clamp(min=info.tiny, max=1 - info.eps)
        x = y.log() - (-y).log1p()
        return self.base_dist.log_prob(x) + softplus(x) + softplus(-x)


class RelaxedOneHotCategorical(_Relaxed):
    """Vectors of positive numbers that add up to 1, the closer to one class alone the lower ``temperature``."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex
    _base = ExpRelaxedCategorical

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.base_dist.rsample(sample_shape).exp()

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        x = value.log()
        return self.base_dist.log_prob(x) - x.sum(-1)


__all__ = ["ContinuousBernoulli", "OneHotCategoricalStraightThrough", "RelaxedBernoulli", "RelaxedOneHotCategorical"]
