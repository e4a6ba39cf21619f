"""``MixtureSameFamily``: one of several distributions of one class, drawn first. Source: torch.distributions. Next: ``distribution``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from gt.autograd import no_grad
from gt.distributions.constraints import Constraint
from gt.distributions.discrete import Categorical
from gt.distributions.distribution import Distribution
from gt.functions.numeric import broadcast_tensors


class MixtureSameFamily(Distribution):
    """Values of ``component_distribution``, of which ``mixture_distribution`` names one along the last batch dim."""

    def __init__(
        self, mixture_distribution: Categorical, component_distribution: Distribution, validate_args: bool | None = None
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(" The Mixture distribution needs to be an  instance of gt.distributions.Categorical")
        if not isinstance(component_distribution, Distribution):
            raise ValueError("The Component distribution needs to be an instance of gt.distributions.Distribution")
        mixed, batch = mixture_distribution.batch_shape, component_distribution.batch_shape[:-1]
        if any(a != 1 and b != 1 and a != b for a, b in zip(reversed(mixed), reversed(batch), strict=False)):
            raise ValueError(
                f"`mixture_distribution.batch_shape` ({mixed}) is not compatible with `component_distribution.batch_shape`({batch})"
            )
        ways, components = mixture_distribution.logits.shape[-1], component_distribution.batch_shape[-1]
        if ways != components:
            raise ValueError(
                f"`mixture_distribution component` ({ways}) does not equal `component_distribution.batch_shape[-1]` ({components})"
            )
        self.mixture_distribution, self.component_distribution = mixture_distribution, component_distribution
        self._num_component = ways
        super().__init__(batch, component_distribution.event_shape, validate_args)

    def expand(self, batch_shape: Sequence[int]) -> Self:
        components = self.component_distribution.expand((*batch_shape, self._num_component))
        return type(self)(self.mixture_distribution.expand(batch_shape), components, validate_args=False)

    @property
    def _dim(self) -> int:
        """Where the components are."""
        return -1 - len(self.event_shape)

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        base, dim = self.component_distribution.support, self._dim
        within = dim + base.event_dim
        return Constraint(
            f"MixtureSameFamilyConstraint({base!r})", lambda v: base.check(v.unsqueeze(dim)).all(within), base.event_dim
        )

    def _shares(self) -> Any:
        """Give the probabilities of the components, with a dim for each of an event's."""
        probs = self.mixture_distribution.probs
        return probs.reshape(*probs.shape, *(1,) * len(self.event_shape))

    @property
    def mean(self) -> Any:
        return (self._shares() * self.component_distribution.mean).sum(self._dim)

    @property
    def variance(self) -> Any:
        shares, base = self._shares(), self.component_distribution
        within = (shares * base.variance).sum(self._dim)
        return within + (shares * (base.mean - self.mean.unsqueeze(self._dim)).square()).sum(self._dim)

    def cdf(self, value: Any) -> Any:
        return (self.component_distribution.cdf(value.unsqueeze(self._dim)) * self.mixture_distribution.probs).sum(-1)

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        each = self.component_distribution.log_prob(value.unsqueeze(self._dim))
        return (each + self.mixture_distribution.logits.log_softmax(-1)).logsumexp(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with no_grad():
            which = self.mixture_distribution.expand(self.batch_shape).sample(sample_shape)
            values = self.component_distribution.sample(sample_shape)
            which = which.reshape(*which.shape, *(1,) * (1 + len(self.event_shape)))
            one, _ = broadcast_tensors(which, values.narrow(self._dim, 0, 1))
            return values.gather(values.ndim + self._dim, one).squeeze(self._dim)

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self.mixture_distribution},\n  {self.component_distribution})"


__all__ = ["MixtureSameFamily"]
