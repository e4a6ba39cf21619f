"""``LowRankMultivariateNormal``: normal vectors by a factor and a diagonal. Source: torch.distributions. Next: ``multivariate_normal``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.distributions import constraints
from gt.distributions.distribution import Located
from gt.distributions.multivariate_normal import half_log_det, mahalanobis
from gt.functions import create, draw
from gt.functions.factorization import cholesky
from gt.functions.linalg import matmul
from gt.functions.numeric import broadcast_tensors
from gt.functions.promote import need_tensor
from gt.functions.solving import solve_triangular
from gt.functions.strided import diag_embed


def _and_one(matrix: Any) -> Any:
    return matrix + create.eye(matrix.shape[-1], dtype=matrix.dtype)


class LowRankMultivariateNormal(Located):
    """Normal vectors with mean ``loc`` [..., k] and covariance ``cov_factor @ cov_factor.mT + diag(cov_diag)``: [..., k, m] and [..., k].

    Densities take matrices of m by m alone (Woodbury's identity).
    """

    has_rsample = True
    arg_constraints = {
        "loc": constraints.real_vector, "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }  # fmt: skip
    support = constraints.real_vector

    def __init__(self, loc: Any, cov_factor: Any, cov_diag: Any, validate_args: bool | None = None) -> None:
        need_tensor("LowRankMultivariateNormal", loc=loc, cov_factor=cov_factor, cov_diag=cov_diag)
        if loc.ndim < 1:
            raise ValueError("loc must be at least one-dimensional.")
        event = loc.shape[-1:]
        if cov_factor.ndim < 2:
            raise ValueError("cov_factor must be at least two-dimensional, with optional leading batch dimensions")
        if cov_factor.shape[-2:-1] != event:
            raise ValueError(f"cov_factor must be a batch of matrices with shape {event[0]} x m")
        if cov_diag.shape[-1:] != event:
            raise ValueError(f"cov_diag must be a batch of vectors with shape {event}")
        try:
            wide, self.cov_factor, diag = broadcast_tensors(loc.unsqueeze(-1), cov_factor, cov_diag.unsqueeze(-1))
        except RuntimeError as error:
            raise ValueError(
                f"Incompatible batch shapes: loc {loc.shape}, cov_factor {cov_factor.shape}, cov_diag {cov_diag.shape}"
            ) from error
        self.loc, self.cov_diag = wide[..., 0], diag[..., 0]
        self._w, self._d = cov_factor, cov_diag  # as given, not over the whole batch
        self._capacitance = cholesky(_and_one(matmul(self._scaled(), cov_factor)))
        super().__init__(self.loc.shape[:-1], event, validate_args)

    def _scaled(self) -> Any:
        """Give the factor's transpose, each column divided by its element of the diagonal."""
        return self._w.mT / self._d.unsqueeze(-2)

    def half(self) -> Any:
        """Give A [..., m, k] such that the inverse covariance is 1 / cov_diag - A.mT @ A."""
        return solve_triangular(self._capacitance, self._scaled(), upper=False)

    def log_det(self) -> Any:
        """Give the logarithm of the covariance's determinant."""
        return 2 * half_log_det(self._capacitance) + self._d.log().sum(-1)

    def distance(self, x: Any) -> Any:
        """Give Mahalanobis' distance of a vector from 0, squared."""
        inner = matmul(self._scaled(), x.unsqueeze(-1)).squeeze(-1)
        return (x.square() / self._d).sum(-1) - mahalanobis(self._capacitance, inner)

    @property
    def variance(self) -> Any:
        return (self._w.square().sum(-1) + self._d).expand(*self._batch_shape, *self._event_shape)

    def _matrix(self, given: Any) -> Any:
        k = self._event_shape[0]
        return given.expand(*self._batch_shape, k, k)

    @property
    def scale_tril(self) -> Any:
        root = self._d.sqrt().unsqueeze(-1)
        even = self._w / root  # eigenvalues of even @ even.mT + 1 are at least 1
        return self._matrix(root * cholesky(_and_one(matmul(even, even.mT))))

    @property
    def covariance_matrix(self) -> Any:
        return self._matrix(matmul(self._w, self._w.mT) + diag_embed(self._d))

    @property
    def precision_matrix(self) -> Any:
        half = self.half()
        return self._matrix(diag_embed(self._d.reciprocal()) - matmul(half.mT, half))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape, dtype = self._extended_shape(sample_shape), self.loc.dtype
        common = draw.randn(*shape[:-1], self._w.shape[-1], dtype=dtype)
        own = draw.randn(*shape, dtype=dtype)
        return self.loc + matmul(self._w, common.unsqueeze(-1)).squeeze(-1) + self._d.sqrt() * own

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + self.log_det() + self.distance(value - self.loc))

    def entropy(self) -> Any:
        found = 0.5 * (self._event_shape[0] * (1.0 + math.log(2 * math.pi)) + self.log_det())
        return found.expand(*self._batch_shape)


__all__ = ["LowRankMultivariateNormal"]
