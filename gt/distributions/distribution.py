"""``Distribution``: what all distributions share. Source: torch.distributions.

Owns: shapes, expanding, and checks of values where they are asked for. Checks read values, so they are off unless ``validate_args`` is
given as True, or set as the default. Next: ``continuous``, ``discrete``, ``multivariate_normal``, ``kl``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from gt.autograd import no_grad
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.functions import create
from gt.functions.numeric import broadcast_tensors
from gt.functions.promote import get_default_dtype, is_number
from gt.handle import Handle
from gt.ir.types import got
from gt.shape import Size


def broadcast_all(*values: Any) -> tuple[Any, ...]:
    """Give numbers and tensors as tensors of one shape; numbers take the tensors' dtype."""
    for v in values:
        if not isinstance(v, Handle) and not is_number(v):
            raise ValueError(f"Input arguments must all be instances of Number or gt.Tensor, but got {got(v)}")
    dtype = next((v.dtype for v in values if isinstance(v, Handle)), get_default_dtype())
    tensors: list[Any] = [v if isinstance(v, Handle) else create.tensor(v, dtype=dtype) for v in values]
    return tuple(broadcast_tensors(*tensors)) if len(tensors) > 1 else (tensors[0],)


class Distribution:
    """A distribution of events of ``event_shape``, independent over ``batch_shape``.

    A subclass says what its parameters (``arg_constraints``) and values (``support``) may be, and how to draw and judge values.
    """

    has_rsample = False
    has_enumerate_support = False
    arg_constraints: dict[str, Constraint] = {}
    support: Constraint = constraints.real
    _validate_args = False  # for all that do not say

    def __init__(self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (), validate_args: bool | None = None) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            for name, value in self._given_parameters().items():
                constraint = self.arg_constraints[name]
                if constraint is not constraints.dependent and not constraint.check(value).all():
                    raise ValueError(
                        f"Expected parameter {name} ({type(value).__name__} of shape {tuple(value.shape)}) of distribution {self!r} to satisfy the "
                        f"constraint {constraint!r}, but found invalid values:\n{value}"
                    )

    def _take(self, validate_args: bool | None, **params: Any) -> None:
        """Begin with parameters of one shape, which is the batch's."""
        self.__dict__.update(zip(params, values := broadcast_all(*params.values()), strict=True))
        Distribution.__init__(self, values[0].shape, validate_args=validate_args)

    def _given_parameters(self) -> dict[str, Any]:
        """Give the parameters this was made of, not those that follow from them."""
        return {n: self.__dict__[n] for n in self.arg_constraints if n in self.__dict__}

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Say whether distributions made from now on check parameters and values, which reads them."""
        if value not in (True, False):
            raise ValueError("validate_args must be True or False")
        Distribution._validate_args = value

    @property
    def batch_shape(self) -> Size:
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        return self._event_shape

    @property
    def mean(self) -> Any:
        raise NotImplementedError

    @property
    def mode(self) -> Any:
        raise NotImplementedError(f"{type(self)} does not implement mode")

    @property
    def variance(self) -> Any:
        raise NotImplementedError

    @property
    def stddev(self) -> Any:
        return self.variance.sqrt()

    def expand(self, batch_shape: Sequence[int]) -> Self:
        """Give the same distribution over a larger batch."""
        given = {}
        for name, value in self._given_parameters().items():
            dims = self.arg_constraints[name].event_dim
            given[name] = value.expand(*batch_shape, *value.shape[value.ndim - dims :])
        return type(self)(**self._settings(), **given, validate_args=False)

    def _settings(self) -> dict[str, Any]:
        """Give what else this was made of, which has no batch."""
        return {}

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Draw values of shape sample + batch + event, without gradients."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Draw values that pass gradients to the parameters. Errors: NotImplementedError where that is not possible."""
        raise NotImplementedError(f"{type(self).__name__} has no rsample: its values pass no gradients")

    def sample_n(self, n: int) -> Any:
        """Draw n values."""
        return self.sample((n,))

    def log_prob(self, value: Any) -> Any:
        """Give the logarithm of the density, or of the probability, of values."""
        raise NotImplementedError

    def cdf(self, value: Any) -> Any:
        """Give the probability of a value up to this one."""
        raise NotImplementedError

    def icdf(self, value: Any) -> Any:
        """Give the value up to which this probability lies."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Any:
        """Give all values, along a new first dim."""
        raise NotImplementedError

    def entropy(self) -> Any:
        """Give the entropy, in nats."""
        raise NotImplementedError

    def perplexity(self) -> Any:
        """Give exp(entropy)."""
        return self.entropy().exp()

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Size:
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _validate_sample(self, value: Any) -> None:
        """Check a value, if that is asked for. Its shape is checked always."""
        if not isinstance(value, Handle):
            raise ValueError("The value argument to log_prob must be a Tensor")
        dims = len(self._event_shape)
        if dims and tuple(value.shape[value.ndim - dims :]) != tuple(self._event_shape):
            raise ValueError(
                f"The right-most size of value must match event_shape: {tuple(value.shape)} vs {tuple(self._event_shape)}."
            )
        for a, b in zip(reversed(value.shape), reversed(self._batch_shape + self._event_shape), strict=False):
            if a != 1 and b != 1 and a != b:
                raise ValueError(
                    f"Value is not broadcastable with batch_shape+event_shape: {tuple(value.shape)} vs {tuple(self._batch_shape + self._event_shape)}."
                )
        if self._validate_args and not self.support.check(value).all():  # type: ignore[attr-defined]
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) to be within the support ({self.support!r}) of the "
                f"distribution {self!r}, but found invalid values:\n{value}"
            )

    def __repr__(self) -> str:
        given = [f"{n}: {v if v.numel() == 1 else v.shape}" for n, v in self._given_parameters().items()]
        return f"{type(self).__name__}({', '.join(given)})"


class Located(Distribution):
    """A distribution whose mean and mode are ``loc``."""

    loc: Any

    @property
    def mean(self) -> Any:
        return self.loc

    mode = mean
