"""``gt.distributions``: distributions with torch's names.

Next: ``distribution`` (what they share), ``continuous``, ``positive``, ``discrete``, ``relaxed``, ``multivariate_normal``, ``low_rank``,
``mixture``, ``von_mises``, ``kl``, ``constraints``.
"""

from gt.absent import absent
from gt.distributions import constraints, kl, kl_pairs  # noqa: F401 - fills the table
from gt.distributions.continuous import (
    Cauchy,
    Exponential,
    Gumbel,
    Laplace,
    LogNormal,
    Normal,
    Uniform,
)  # fmt: skip
from gt.distributions.discrete import Bernoulli, Categorical, Geometric, OneHotCategorical
from gt.distributions.distribution import Distribution
from gt.distributions.kl import kl_divergence, register_kl
from gt.distributions.low_rank import LowRankMultivariateNormal
from gt.distributions.mixture import MixtureSameFamily
from gt.distributions.multivariate_normal import Independent, MultivariateNormal
from gt.distributions.positive import HalfCauchy, HalfNormal, Pareto, Weibull
from gt.distributions.relaxed import (
    ContinuousBernoulli,
    OneHotCategoricalStraightThrough,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
)
from gt.distributions.von_mises import VonMises

__all__ = [
    "Bernoulli", "Categorical", "Cauchy", "ContinuousBernoulli", "Distribution", "Exponential", "Geometric", "Gumbel", "HalfCauchy",
    "HalfNormal", "Independent", "Laplace", "LogNormal", "LowRankMultivariateNormal", "MixtureSameFamily", "MultivariateNormal", "Normal",
    "OneHotCategorical", "OneHotCategoricalStraightThrough", "Pareto", "RelaxedBernoulli", "RelaxedOneHotCategorical", "Uniform", "VonMises",
    "Weibull", "constraints", "kl", "kl_divergence", "register_kl",
]  # fmt: skip
NO_DRAWS = "those of gt's have closed forms; draw with torch's, and give the values to gt.tensor"
NO_TRANSFORMS = "draw from the base distribution, transform the values, and add the logarithm of the Jacobian's determinant to log_prob"
__getattr__ = absent(
    "gt.distributions",
    **dict.fromkeys(
        ("Beta", "Binomial", "Chi2", "Dirichlet", "FisherSnedecor", "Gamma", "GeneralizedPareto", "InverseGamma", "Kumaraswamy", "LKJCholesky",
         "Multinomial", "NegativeBinomial", "Poisson", "StudentT", "Wishart"), NO_DRAWS),
    **dict.fromkeys(("LogisticNormal", "TransformedDistribution", "biject_to", "transform_to", "transforms"), NO_TRANSFORMS),
)  # fmt: skip
