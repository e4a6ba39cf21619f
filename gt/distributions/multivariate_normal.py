"""Normal vectors, and distributions of several independent values as one event. Source: torch.distributions. Next: ``kl``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.distribution import Distribution, Located
from gt.functions import create, draw
from gt.functions.arrange import broadcast_shapes
from gt.functions.factorization import cholesky
from gt.functions.linalg import matmul
from gt.functions.promote import need_tensor
from gt.functions.solving import inv, solve_triangular


def mahalanobis(factor: Any, x: Any) -> Any:
    """Give |L^-1 x|^2: factors [..., k, k], vectors [..., k] -> [...]."""
    batch = broadcast_shapes(tuple(factor.shape[:-2]), tuple(x.shape[:-1]))
    k = x.shape[-1]
    wide, column = factor.expand(*batch, k, k), x.expand(*batch, k).unsqueeze(-1)
    return solve_triangular(wide, column, upper=False).squeeze(-1).square().sum(-1)


def half_log_det(factor: Any) -> Any:
    """Give the sum of the logarithms of a factor's diagonal."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class MultivariateNormal(Located):
    """Normal vectors with mean ``loc`` [..., k] and a covariance [..., k, k], its inverse, or its Cholesky factor."""

    has_rsample = True
    arg_constraints = {
        "loc": constraints.real_vector, "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite, "scale_tril": constraints.lower_cholesky,
    }  # fmt: skip
    support = constraints.real_vector

    def __init__(
        self, loc: Any, covariance_matrix: Any = None, precision_matrix: Any = None, scale_tril: Any = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        matrices = {"covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril}
        given = [(n, m) for n, m in matrices.items() if m is not None]
        need_tensor("MultivariateNormal", loc=loc, **dict(given))
        if loc.ndim < 1:
            raise ValueError("loc must be at least one-dimensional.")
        if len(given) != 1:
            raise ValueError("Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified.")
        ((name, matrix),) = given
        if matrix.ndim < 2:
            raise ValueError(f"{name} must be at least two-dimensional, with optional leading batch dimensions")
        batch, k = broadcast_shapes(tuple(matrix.shape[:-2]), tuple(loc.shape[:-1])), loc.shape[-1]
        self.loc = loc.expand(*batch, k)
        self.__dict__[name] = matrix.expand(*batch, k, k)
        super().__init__(batch, (k,), validate_args)
        self._factor = (
            matrix if name == "scale_tril" else cholesky(matrix) if name == "covariance_matrix" else _of_precision(matrix)
        )

    def __getattr__(self, name: str) -> Any:
        if name not in ("scale_tril", "covariance_matrix", "precision_matrix") or "_factor" not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        k = self._event_shape[0]
        factor = self._factor.expand(*self._batch_shape, k, k)
        if name == "scale_tril":
            return factor
        covariance = matmul(factor, factor.mT)
        return covariance if name == "covariance_matrix" else inv(covariance)

    @property
    def variance(self) -> Any:
        return self._factor.square().sum(-1).expand(*self._batch_shape, *self._event_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        eps = draw.randn(*self._extended_shape(sample_shape), dtype=self.loc.dtype)
        return self.loc + matmul(self._factor, eps.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        distance = mahalanobis(self._factor, value - self.loc)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + distance) - half_log_det(self._factor)

    def entropy(self) -> Any:
        found = 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi)) + half_log_det(self._factor)
        return found.expand(*self._batch_shape)


def _of_precision(precision: Any) -> Any:
    """Give the Cholesky factor of a precision's inverse."""
    flipped = cholesky(precision.flip(-2, -1))
    upper = flipped.flip(-2, -1).mT
    eye = create.eye(precision.shape[-1], dtype=precision.dtype).expand(*precision.shape)
    return solve_triangular(upper, eye, upper=False)


class Independent(Distribution):
    """A distribution whose last batch dims are part of the event."""

    def __init__(self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None) -> None:
        if reinterpreted_batch_ndims > len(base_distribution.batch_shape):
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual "
                f"{reinterpreted_batch_ndims} vs {len(base_distribution.batch_shape)}"
            )
        shape = base_distribution.batch_shape + base_distribution.event_shape
        event_dims = reinterpreted_batch_ndims + len(base_distribution.event_shape)
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, reinterpreted_batch_ndims
        super().__init__(shape[: len(shape) - event_dims], shape[len(shape) - event_dims :], validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        return constraints.independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Any:
        return self.base_dist.mean

    @property
    def mode(self) -> Any:
        return self.base_dist.mode

    @property
    def variance(self) -> Any:
        return self.base_dist.variance

    @property
    def stddev(self) -> Any:
        return self.base_dist.stddev

    def expand(self, batch_shape: Sequence[int]) -> Independent:
        """Give the same distribution over a larger batch."""
        inner = (*batch_shape, *self._event_shape[: self.reinterpreted_batch_ndims])
        return Independent(self.base_dist.expand(inner), self.reinterpreted_batch_ndims, False)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Any) -> Any:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Any:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"


def sum_rightmost(value: Any, dims: int) -> Any:
    """Add up over the last dims."""
    return value.sum(tuple(range(-dims, 0))) if dims else value
