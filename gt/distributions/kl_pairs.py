"""``kl_divergence`` of distributions of two classes. Source: torch.distributions.kl. Next: ``kl`` (the table)."""

from __future__ import annotations

import math
from typing import Any

from gt.distributions.continuous import EULER, HALF_LOG_2PI, Exponential, Gumbel, Laplace, Normal, Uniform
from gt.distributions.kl import register_kl
from gt.distributions.low_rank import LowRankMultivariateNormal
from gt.distributions.multivariate_normal import MultivariateNormal, half_log_det, mahalanobis
from gt.distributions.positive import Pareto
from gt.distributions.relaxed import ContinuousBernoulli
from gt.functions import create
from gt.functions.linalg import matmul
from gt.functions.solving import solve_triangular
from gt.functions.strided import diag_embed


def _infinite(p: Any, q: Any) -> Any:
    """p has values where q has none."""
    return create.full_like(next(iter(p._given_parameters().values())), math.inf)


for _p, _qs in (
    (Exponential, (ContinuousBernoulli, Pareto, Uniform)), (Pareto, (ContinuousBernoulli, Uniform)), (ContinuousBernoulli, (Pareto,)),
    *((t, (ContinuousBernoulli, Exponential, Pareto, Uniform)) for t in (Normal, Laplace, Gumbel)),
):  # fmt: skip
    for _q in _qs:
        register_kl(_p, _q)(_infinite)


# -- against normal numbers


@register_kl(Exponential, Normal)
def _exponential_normal(p: Any, q: Any) -> Any:
    variance, rate = q.scale.square(), p.rate.square()
    second = 0.5 * (rate * variance * 2 * math.pi).log()
    return second - 1 + (1 / rate - q.loc / p.rate + q.loc.square() / 2) / variance


@register_kl(Uniform, Normal)
def _uniform_normal(p: Any, q: Any) -> Any:
    width = p.high - p.low
    first = (math.sqrt(math.pi * 2) * q.scale / width).log()
    return first + (width.square() / 12 + ((p.high + p.low - 2 * q.loc) / 2).square()) / (2 * q.scale.square())


@register_kl(Gumbel, Normal)
def _gumbel_normal(p: Any, q: Any) -> Any:
    ratio = p.scale / q.scale
    distance = (p.loc + p.scale * EULER - q.loc) / q.scale
    return -(ratio / math.sqrt(2 * math.pi)).log() + (math.pi * ratio * 0.5).square() / 3 + distance.square() * 0.5 - (EULER + 1)


@register_kl(Laplace, Normal)
def _laplace_normal(p: Any, q: Any) -> Any:
    variance = q.scale.square()
    ratio = p.scale.square() / variance
    return -0.5 * (2 * ratio / math.pi).log() + ratio + 0.5 * (p.loc - q.loc).square() / variance - 1


@register_kl(Pareto, Normal)
def _pareto_normal(p: Any, q: Any) -> Any:
    term = p.scale / (p.alpha - 1)
    first = (math.sqrt(2 * math.pi) * q.scale * p.alpha / p.scale).log() - p.alpha.reciprocal()
    spread = p.alpha * term.square() / (p.alpha - 2) + (p.alpha * term - q.loc).square()
    return (first + spread / (2 * q.scale.square()) - 1).masked_fill(p.alpha <= 2, math.inf)


@register_kl(ContinuousBernoulli, Normal)
def _continuous_bernoulli_normal(p: Any, q: Any) -> Any:
    first = HALF_LOG_2PI + 0.5 * (q.loc / q.scale).square() + q.scale.log()
    return first - p.entropy() + (p.variance + p.mean.square() - 2 * q.loc * p.mean) / (2 * q.scale.square())


# -- against others


@register_kl(Normal, Gumbel)
def _normal_gumbel(p: Any, q: Any) -> Any:
    distance, variance = (p.loc - q.loc) / q.scale, (p.scale / q.scale).square()
    return -0.5 * variance.log() + distance + (0.5 * variance - distance).exp() - (0.5 + HALF_LOG_2PI)


@register_kl(Exponential, Gumbel)
def _exponential_gumbel(p: Any, q: Any) -> Any:
    product, ratio = p.rate * q.scale, q.loc / q.scale
    return product.log() - 1 - ratio + ratio.exp() * product / (product + 1) + product.reciprocal()


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p: Any, q: Any) -> Any:
    term = q.scale / (p.high - p.low)
    high, low = (p.high - q.loc) / q.scale, (p.low - q.loc) / q.scale
    return term.log() + 0.5 * (high + low) - term * ((-high).exp() - (-low).exp())


@register_kl(Normal, Laplace)
def _normal_laplace(p: Any, q: Any) -> Any:
    distance = p.loc - q.loc
    ratio = distance / p.scale
    spread = math.sqrt(2 / math.pi) * p.scale * (-0.5 * ratio.square()).exp() + distance * (math.sqrt(0.5) * ratio).erf()
    return -(p.scale / q.scale).log() + spread / q.scale - 0.5 * (1 + math.log(0.5 * math.pi))


@register_kl(Pareto, Exponential)
def _pareto_exponential(p: Any, q: Any) -> Any:
    product = p.scale * q.rate
    found = (p.alpha / product).log() - p.alpha.reciprocal() + p.alpha * product / (p.alpha - 1) - 1
    return found.masked_fill(p.alpha <= 1, math.inf)


@register_kl(Uniform, Exponential)
def _uniform_exponential(p: Any, q: Any) -> Any:
    found = q.rate * (p.high + p.low) / 2 - ((p.high - p.low) * q.rate).log()
    return found.masked_fill(p.low < 0, math.inf)


@register_kl(ContinuousBernoulli, Exponential)
def _continuous_bernoulli_exponential(p: Any, q: Any) -> Any:
    return -p.entropy() - q.rate.log() + q.rate * p.mean


@register_kl(Uniform, Pareto)
def _uniform_pareto(p: Any, q: Any) -> Any:
    width = p.high - p.low
    first = (q.alpha * q.scale**q.alpha * width).log()
    second = (p.high * p.high.log() - p.low * p.low.log() - width) / width
    return (second * (q.alpha + 1) - first).masked_fill(p.low < q.scale, math.inf)


@register_kl(ContinuousBernoulli, Uniform)
def _continuous_bernoulli_uniform(p: Any, q: Any) -> Any:
    found = -p.entropy() + (q.high - q.low).log()
    return found.masked_fill((q.low >= 0) | (q.high <= 1), math.inf)


@register_kl(Uniform, ContinuousBernoulli)
def _uniform_continuous_bernoulli(p: Any, q: Any) -> Any:
    found = -p.entropy() - p.mean * q.logits - (-q.probs).log1p() - q.log_norm()
    return found.masked_fill((p.high >= 1) | (p.low <= 0), math.inf)


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoulli(p: Any, q: Any) -> Any:
    norms = p.log_norm() + (-p.probs).log1p() - q.log_norm() - (-q.probs).log1p()
    return p.mean * (p.logits - q.logits) + norms


# -- normal vectors


def _total(matrix: Any) -> Any:
    return matrix.square().flatten(-2).sum(-1)


def _vectors(p: Any, q: Any, spread: Any) -> Any:
    """Give the divergence of normal vectors. ``spread``: the trace of q's inverse covariance times p's covariance."""
    low = [isinstance(d, LowRankMultivariateNormal) for d in (p, q)]
    dets = [d.log_det() if is_low else 2 * half_log_det(d._factor) for d, is_low in zip((p, q), low, strict=True)]
    distance = q.distance(q.loc - p.loc) if low[1] else mahalanobis(q._factor, q.loc - p.loc)
    return 0.5 * (dets[1] - dets[0] + spread + distance - p.event_shape[0])


def _check_events(p: Any, q: Any) -> None:
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two (Low Rank) Multivariate Normals with different event shapes cannot be computed"
        )


@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
def _low_rank(p: Any, q: Any) -> Any:
    _check_events(p, q)
    half = q.half()
    taken = _total(half * p._d.sqrt().unsqueeze(-2)) + _total(matmul(half, p._w))
    return _vectors(p, q, (p._d / q._d).sum(-1) + _total(p._w * q._d.rsqrt().unsqueeze(-1)) - taken)


@register_kl(MultivariateNormal, LowRankMultivariateNormal)
def _multivariate_low_rank(p: Any, q: Any) -> Any:
    _check_events(p, q)
    return _vectors(p, q, _total(p._factor * q._d.rsqrt().unsqueeze(-1)) - _total(matmul(q.half(), p._factor)))


@register_kl(LowRankMultivariateNormal, MultivariateNormal)
def _low_rank_multivariate(p: Any, q: Any) -> Any:
    _check_events(p, q)
    each = []
    for given in (p._w, diag_embed(p._d.sqrt())):
        batch = (given[..., :1] + q._factor[..., :1]).shape[:-2]
        factor = q._factor.expand(*batch, *q._factor.shape[-2:])
        each.append(_total(solve_triangular(factor, given.expand(*batch, *given.shape[-2:]), upper=False)))
    return _vectors(p, q, each[0] + each[1])
