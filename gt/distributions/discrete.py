"""Distributions of whole numbers and classes. Source: torch.distributions. Next: ``distribution``, ``kl``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.autograd import no_grad
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.distribution import Distribution, broadcast_all
from gt.finfo import finfo
from gt.functions import create, draw
from gt.functions.index import one_hot
from gt.functions.promote import need_tensor
from gt.ir.types import float32
from gt.nn.functional.loss import binary_cross_entropy_with_logits


def clamp_probs(probs: Any) -> Any:
    """Keep probabilities away from 0 and 1 by the dtype's smallest step."""
    eps = finfo(probs.dtype).eps if probs.dtype.kind == "f" else finfo(float32).eps
    return probs.clamp(min=eps, max=1 - eps)


class _Probabilities(Distribution):
    """A distribution by ``probs`` or ``logits``: one is given, the other made of it when asked for."""

    @staticmethod
    def _given(probs: Any, logits: Any) -> tuple[str, Any]:
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        return ("probs", probs) if probs is not None else ("logits", logits)

    def _logits_of(self, probs: Any) -> Any:
        raise NotImplementedError

    def _probs_of(self, logits: Any) -> Any:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name == "logits" and "probs" in self.__dict__:
            return self._logits_of(self.probs)
        if name == "probs" and "logits" in self.__dict__:
            return self._probs_of(self.logits)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def _enumerated(self, values: Any, expand: bool) -> Any:
        """Give a value for each row, over the batch."""
        values = values.reshape(-1, *(1,) * len(self._batch_shape))
        return values.expand(-1, *self._batch_shape) if expand else values

    @property
    def param_shape(self) -> Any:
        """The shape of the parameter: batch, and classes if there are more than two."""
        return self.__dict__["probs" if "probs" in self.__dict__ else "logits"].shape


class _Binary(_Probabilities):
    """A distribution by one probability, given as such or as its log odds."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._take(validate_args, **dict([self._given(probs, logits)]))

    def _logits_of(self, probs: Any) -> Any:
        ps = clamp_probs(probs)
        return ps.log() - (-ps).log1p()

    def _probs_of(self, logits: Any) -> Any:
        return logits.sigmoid()


class Bernoulli(_Binary):
    """1 with probability ``probs``, else 0."""

    has_enumerate_support = True

    support = constraints.boolean

    @property
    def mean(self) -> Any:
        return self.probs

    @property
    def mode(self) -> Any:
        p = self.probs
        return (p >= 0.5).to(p.dtype).masked_fill(p == 0.5, float("nan"))

    @property
    def variance(self) -> Any:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with no_grad():
            return draw.bernoulli(self.probs.expand(*self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Any:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Any:
        return self._enumerated(create.arange(2).to(self.probs.dtype), expand)


class Geometric(_Binary):
    """How often a trial fails before it succeeds, which it does with probability ``probs``."""

    support = constraints.nonnegative_integer

    @property
    def mean(self) -> Any:
        return 1.0 / self.probs - 1.0

    @property
    def mode(self) -> Any:
        return create.zeros_like(self.probs)

    @property
    def variance(self) -> Any:
        return (1.0 / self.probs - 1.0) / self.probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with no_grad():
            u = draw.rand(*self._extended_shape(sample_shape), dtype=self.probs.dtype)
            return ((-u).log1p() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        value, probs = broadcast_all(value, self.probs)
        failed = probs.masked_fill((probs == 1) & (value == 0), 0)
        return value * (-failed).log1p() + probs.log()

    def entropy(self) -> Any:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs


class Categorical(_Probabilities):
    """One of the classes along the last dim of ``probs`` or ``logits``, which are normalised."""

    has_enumerate_support = True
    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        name, given = self._given(probs, logits)
        need_tensor("Categorical", **{name: given})
        if given.ndim < 1:
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")
        self.__dict__[name] = given / given.sum(-1, keepdim=True) if name == "probs" else given - given.logsumexp(-1, keepdim=True)
        self._num_events = given.shape[-1]
        super().__init__(given.shape[:-1], validate_args=validate_args)

    def _logits_of(self, probs: Any) -> Any:
        return clamp_probs(probs).log()

    def _probs_of(self, logits: Any) -> Any:
        return logits.softmax(-1)

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def mean(self) -> Any:
        return create.full(tuple(self._batch_shape), float("nan"), dtype=self.probs.dtype)

    variance = mean

    @property
    def mode(self) -> Any:
        return self.probs.argmax(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with no_grad():
            count = 1
            for n in sample_shape:
                count *= n
            rows = draw.multinomial(self.probs.reshape(-1, self._num_events), count, True)
            return rows.T.reshape((*sample_shape, *self._batch_shape))

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        index = value.long().unsqueeze(-1)
        shape = broadcast_all(create.zeros(*value.shape), create.zeros(*self._batch_shape))[0].shape
        logits = self.logits.expand(*shape, self._num_events)
        return logits.gather(-1, index.expand(*shape, 1)).squeeze(-1)

    def entropy(self) -> Any:
        logits = self.logits.clamp(min=finfo(self.logits.dtype).min)
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Any:
        return self._enumerated(create.arange(self._num_events), expand)


class OfAnother(Distribution):
    """What has the probabilities of another distribution."""

    _other: Any

    @property
    def probs(self) -> Any:
        return self._other.probs

    @property
    def logits(self) -> Any:
        return self._other.logits


class OfClasses(OfAnother):
    """Vectors with an element for each class."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._other = Categorical(probs, logits, validate_args)
        shape = self._other.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args)


class OneHotCategorical(OfClasses):
    """One of the classes, as a vector that is 1 there and 0 elsewhere."""

    has_enumerate_support = True
    support = constraints.one_hot

    @property
    def mean(self) -> Any:
        return self.probs

    @property
    def mode(self) -> Any:
        return one_hot(self.probs.argmax(-1), self._event_shape[0]).to(self.probs.dtype)

    @property
    def variance(self) -> Any:
        return self.probs * (1 - self.probs)

    def expand(self, batch_shape: Sequence[int]) -> OneHotCategorical:
        """Give the same distribution over a larger batch."""
        return type(self)(self.probs.expand(*batch_shape, *self._event_shape), validate_args=False)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with no_grad():
            return one_hot(self._other.sample(sample_shape), self._event_shape[0]).to(self.probs.dtype)

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        return self._other.log_prob(value.argmax(-1))

    def entropy(self) -> Any:
        return self._other.entropy()

    def enumerate_support(self, expand: bool = True) -> Any:
        n, batch = self._event_shape[0], self._batch_shape
        values = create.eye(n, dtype=self.probs.dtype).reshape(n, *(1,) * len(batch), n)
        return values.expand(n, *batch, n) if expand else values
