"""``gt.distributions``: distributions with torch's names.

Next: ``distribution`` (what they share), ``continuous``, ``discrete``, ``multivariate_normal``, ``kl``, ``constraints``.
"""

from gt.distributions import constraints, kl
from gt.distributions.continuous import (
    Cauchy,
    Exponential,
    Gumbel,
    HalfNormal,
    Laplace,
    LogNormal,
    Normal,
    Uniform,
)  # fmt: skip
from gt.distributions.discrete import Bernoulli, Categorical, Geometric, OneHotCategorical
from gt.distributions.distribution import Distribution
from gt.distributions.kl import kl_divergence, register_kl
from gt.distributions.multivariate_normal import Independent, MultivariateNormal

__all__ = [
    "Bernoulli", "Categorical", "Cauchy", "Distribution", "Exponential", "Geometric", "Gumbel", "HalfNormal", "Independent", "Laplace",
    "LogNormal", "MultivariateNormal", "Normal", "OneHotCategorical", "Uniform", "constraints", "kl", "kl_divergence", "register_kl",
]  # fmt: skip
