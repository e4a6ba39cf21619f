"""Distributions against torch: densities, moments, entropies, divergences and their gradients; draws by their statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt

RNG = np.random.default_rng(0)
REAL, OTHER = RNG.standard_normal((3, 4)), RNG.standard_normal((4,))
POSITIVE, SIZE = RNG.uniform(0.3, 2.0, (3, 4)), RNG.uniform(0.3, 2.0, (4,))
PROBS, SHARE = RNG.uniform(0.1, 0.9, (3, 4)), RNG.uniform(0.1, 0.9, (4,))
ROOT = np.tril(RNG.standard_normal((4, 4))) * 0.3 + np.eye(4)
COVARIANCE = ROOT @ ROOT.T

CASES: dict[str, tuple[Any, list[np.ndarray], list[np.ndarray], np.ndarray]] = {
    # name: (how it is made of parameters, parameters, those of another one, values)
    "Normal": (lambda d, a, b: d.Normal(a, b), [REAL, SIZE], [OTHER, POSITIVE], REAL + 0.3),
    "LogNormal": (lambda d, a, b: d.LogNormal(a, b), [REAL, SIZE], [OTHER, POSITIVE], POSITIVE),
    "Laplace": (lambda d, a, b: d.Laplace(a, b), [REAL, SIZE], [OTHER, POSITIVE], REAL + 0.3),
    "Cauchy": (lambda d, a, b: d.Cauchy(a, b), [REAL, SIZE], [OTHER, POSITIVE], REAL + 0.3),
    "Gumbel": (lambda d, a, b: d.Gumbel(a, b), [REAL, SIZE], [OTHER, POSITIVE], REAL + 0.3),
    "HalfNormal": (lambda d, a: d.HalfNormal(a), [POSITIVE], [SIZE], POSITIVE),
    "HalfCauchy": (lambda d, a: d.HalfCauchy(a), [POSITIVE], [SIZE], POSITIVE),
    "Pareto": (lambda d, a, b: d.Pareto(a, b + 2.1), [POSITIVE, SIZE], [POSITIVE * 0.9, POSITIVE], POSITIVE + 0.2),
    "Weibull": (lambda d, a, b: d.Weibull(a, b + 1), [POSITIVE, SIZE], [POSITIVE * 0.9, POSITIVE], POSITIVE + 0.2),
    "Uniform": (lambda d, a, b: d.Uniform(a, a + b), [REAL, POSITIVE], [REAL - 1, POSITIVE + 3], REAL + 0.1),
    "Exponential": (lambda d, a: d.Exponential(a), [POSITIVE], [SIZE], POSITIVE),
    "Bernoulli": (lambda d, a: d.Bernoulli(a), [PROBS], [PROBS[::-1].copy()], (PROBS > 0.5) * 1.0),
    "Bernoulli logits": (lambda d, a: d.Bernoulli(logits=a), [REAL], [REAL[::-1].copy()], (PROBS > 0.5) * 1.0),
    "Geometric": (lambda d, a: d.Geometric(a), [PROBS], [SHARE], np.floor(POSITIVE * 3)),
    "Categorical": (lambda d, a: d.Categorical(a), [PROBS], [SHARE], np.array([1, 0, 3])),
    "Categorical logits": (lambda d, a: d.Categorical(logits=a), [REAL], [OTHER], np.array([[1, 0, 3], [2, 2, 2]])),
    "OneHotCategorical": (lambda d, a: d.OneHotCategorical(a), [PROBS], [SHARE], np.eye(4)[[1, 0, 3]]),
    "MultivariateNormal": (lambda d, a, b: d.MultivariateNormal(a, b), [REAL, COVARIANCE], [OTHER, COVARIANCE + np.eye(4)], REAL + 0.2),
    "MultivariateNormal tril": (
        lambda d, a, b: d.MultivariateNormal(a, scale_tril=b), [REAL, ROOT], [OTHER, np.eye(4)], np.stack([REAL, REAL + 1]),
    ),
    "MultivariateNormal precision": (
        lambda d, a, b: d.MultivariateNormal(a, precision_matrix=b), [REAL, COVARIANCE], [OTHER, np.eye(4)], REAL + 0.2,
    ),
    "LowRankMultivariateNormal": (
        lambda d, a, b, c: d.LowRankMultivariateNormal(a, b, c), [REAL, ROOT[:, :2], SIZE], [OTHER, ROOT[:, 1:], POSITIVE], REAL + 0.2,
    ),
    "ContinuousBernoulli": (lambda d, a: d.ContinuousBernoulli(a), [np.append(PROBS[1:], [[0.5, 0.4995, 0.501, 1e-3]], 0)], [SHARE], PROBS[:1]),
    "ContinuousBernoulli logits": (lambda d, a: d.ContinuousBernoulli(logits=a, lims=(0.49, 0.51)), [REAL], [OTHER], PROBS),
    "OneHotCategoricalStraightThrough": (lambda d, a: d.OneHotCategoricalStraightThrough(a), [PROBS], [SHARE], np.eye(4)[[1, 0, 3]]),
    "Independent": (lambda d, a, b: d.Independent(d.Normal(a, b), 1), [REAL, SIZE], [OTHER + REAL, POSITIVE], REAL + 0.3),
}  # fmt: skip


WITHOUT_KL = ("HalfCauchy", "Weibull")


def tensors(m: Any, arrays: list[np.ndarray], grad: bool = True) -> list[Any]:
    return [m.tensor(a, requires_grad=grad and a.dtype.kind == "f") for a in arrays]


def same(mine: Any, theirs: Any, what: str) -> None:
    assert tuple(mine.shape) == tuple(theirs.shape), what
    np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), rtol=1e-7, atol=1e-9, err_msg=what)


@pytest.mark.parametrize("name", CASES)
def test_densities_moments_and_gradients(name: str) -> None:
    make, arrays, others, values = CASES[name]
    found: list[dict[str, Any]] = []
    for m in (gt, torch):
        params, other_params, (value,) = tensors(m, arrays), tensors(m, others), tensors(m, [values])
        if m is torch:
            torch.distributions.Distribution.set_default_validate_args(False)
        try:
            p, q = make(m.distributions, *params), make(m.distributions, *other_params)
            got = {
                "log_prob": p.log_prob(value),
                "entropy": p.entropy(),
                "perplexity": p.perplexity(),
            }
            got["kl"] = m.distributions.kl_divergence(p, q) if name not in WITHOUT_KL else q.log_prob(value)
            if name.split()[0] not in (
                "MultivariateNormal",
                "Independent",
                "OneHotCategorical",
                "Bernoulli",
                "Geometric",
                "Categorical",
                "LowRankMultivariateNormal",
                "OneHotCategoricalStraightThrough",
            ):
                got |= {"cdf": p.cdf(value), "icdf": p.icdf(m.tensor(PROBS))}
            got |= {k: getattr(p, k) for k in ("mean", "variance", "stddev", "mode") if k != "mode" or "Continuous" not in name}
            total = sum(got[k].sum() for k in ("log_prob", "entropy", "kl"))
            wanted = [*params, *other_params, *([value] if value.requires_grad else [])]
            grads = m.autograd.grad(total, wanted, allow_unused=True)
            got |= {f"gradient {i}": g if g is not None else m.zeros(1) for i, g in enumerate(grads)}
            wide = p.expand((2, *p.batch_shape))
            got |= {"expanded": wide.log_prob(value), "expanded entropy": wide.entropy()}
            if p.has_enumerate_support:
                got |= {"support": p.enumerate_support()} if "OneHot" not in name else {}
            assert wide.batch_shape == (2, *p.batch_shape) and wide.event_shape == p.event_shape
        finally:
            torch.distributions.Distribution.set_default_validate_args(True)
        found.append(got)
    for key in found[1]:
        same(found[0][key], found[1][key], key)


@pytest.mark.parametrize("name", [n for n in CASES if "Cauchy" not in n])
def test_draws_have_the_moments(name: str) -> None:
    make, arrays, _, _ = CASES[name]
    gt.manual_seed(0)
    torch.manual_seed(0)
    p, t = make(gt.distributions, *tensors(gt, arrays, False)), make(torch.distributions, *tensors(torch, arrays, False))
    n = 20000
    x = p.sample((n,))
    assert x.shape == (n, *p.batch_shape, *p.event_shape) == tuple(t.sample((n,)).shape)
    assert x.dtype.name == str(t.sample().dtype).removeprefix("torch.") and not x.requires_grad
    if "Categorical" in name and "OneHot" not in name:
        x = gt.nn.functional.one_hot(x, 4).double()
        mean, deviation = t.probs, (t.probs * (1 - t.probs)).sqrt()
    else:
        mean, deviation = t.mean, t.stddev
    gap = np.abs(x.mean(0).numpy() - mean.numpy()) / (deviation.numpy() / n**0.5)
    assert gap.max() < 6  # standard errors (a few dozen means are looked at)
    assert p.support.check(p.sample((50,))).all()


@pytest.mark.parametrize(
    "name", ["Normal", "Laplace", "Uniform", "Exponential", "MultivariateNormal", "Independent", "Gumbel", "LogNormal"]
    + ["LowRankMultivariateNormal", "ContinuousBernoulli", "OneHotCategoricalStraightThrough"],
)
def test_rsample_passes_gradients(name: str) -> None:
    make, arrays, _, _ = CASES[name]
    params = tensors(gt, arrays)
    p = make(gt.distributions, *params)
    assert p.has_rsample
    grads = gt.autograd.grad((p.rsample((5,)) * gt.arange(4.0)).square().sum(), params)
    assert all(bool(g.abs().sum() > 0) for g in grads)
    with pytest.raises(NotImplementedError):
        gt.distributions.Bernoulli(gt.tensor(0.5)).rsample()


def test_divergences_of_other_pairs() -> None:
    for m in (gt, torch):
        d = m.distributions
        with pytest.raises(NotImplementedError, match="KL"):
            d.kl_divergence(d.Bernoulli(m.tensor(0.5)), d.Normal(m.tensor(0.0), m.tensor(1.0)))
    got = [
        [
            m.distributions.kl_divergence(p, m.distributions.Normal(m.tensor(0.3), m.tensor(1.2))).item()
            for p in (m.distributions.Exponential(m.tensor(0.7)), m.distributions.Uniform(m.tensor(-1.0), m.tensor(2.0)))
        ]
        for m in (gt, torch)
    ]
    np.testing.assert_allclose(*got, rtol=1e-5)


PAIRS: dict[str, tuple[Any, Any]] = {  # by class: what has that support, at two parameters
    "Normal": (lambda d, a, b: d.Normal(a, b)), "Laplace": (lambda d, a, b: d.Laplace(a, b)), "Gumbel": (lambda d, a, b: d.Gumbel(a, b)),
    "Exponential": (lambda d, a, b: d.Exponential(b)), "Pareto": (lambda d, a, b: d.Pareto(b, a.abs() + 0.5)),
    "Uniform": (lambda d, a, b: d.Uniform(a, a + b)), "ContinuousBernoulli": (lambda d, a, b: d.ContinuousBernoulli(logits=a * b)),
    "within 0 to 1": (lambda d, a, b: d.Uniform(0.2 + 0 * a, 0.2 + b / 4)), "around 0 to 1": (lambda d, a, b: d.Uniform(-a.abs() - 1, 1 + b)),
    "above 3": (lambda d, a, b: d.Uniform(3 + 0 * a, 3 + b)),
    "MultivariateNormal": (lambda d, a, b: d.MultivariateNormal(a, scale_tril=(b.diag_embed() + 0.1 * a.unsqueeze(-1)).tril())),
    "LowRankMultivariateNormal": (lambda d, a, b: d.LowRankMultivariateNormal(a, 0.3 * a.unsqueeze(-1), b)),
}  # fmt: skip


@pytest.mark.parametrize("one", PAIRS)
def test_divergences_of_all_pairs_that_torch_has(one: str) -> None:
    for other in PAIRS:
        found: list[list[Any]] = []
        for m in (torch, gt):
            params = tensors(m, [REAL, POSITIVE, OTHER, SIZE])
            p, q = PAIRS[one](m.distributions, *params[:2]), PAIRS[other](m.distributions, *params[2:])
            try:
                kl = m.distributions.kl_divergence(p, q)
            except NotImplementedError:
                found.append([])
                continue
            weight = m.arange(float(kl.numel())).reshape(kl.shape).double().masked_fill(~kl.isfinite(), 0)
            grads = m.autograd.grad((kl * weight).nansum(), params, allow_unused=True) if kl.requires_grad and bool(kl.isfinite().all()) else []
            found.append([kl, *(g if g is not None else m.zeros(1) for g in grads)])
        assert len(found[0]) == len(found[1]), (one, other)
        for i, (theirs, mine) in enumerate(zip(*found, strict=True)):
            same(mine, theirs, f"{one} and {other}: {i}")


def test_normal_vectors_of_low_rank() -> None:
    for m in (gt, torch):
        for shapes, text in (
            (((), (4, 1), (4,)), "loc"), (((4,), (4,), (4,)), "at least two"), (((4,), (3, 1), (4,)), "4 x m"), (((4,), (4, 1), (3,)), "vectors"),
            (((2, 4), (3, 4, 1), (4,)), "Incompatible"),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=text):
                m.distributions.LowRankMultivariateNormal(*(m.ones(s) for s in shapes))
    mine, theirs = (m.distributions.LowRankMultivariateNormal(*tensors(m, [REAL, ROOT[:, :2], POSITIVE])) for m in (gt, torch))
    for name in ("scale_tril", "covariance_matrix", "precision_matrix"):
        same(getattr(mine, name), getattr(theirs, name), name)


RELAXED: dict[str, tuple[Any, np.ndarray]] = {
    "RelaxedBernoulli": (lambda d, t, a: d.RelaxedBernoulli(t, a), np.append(PROBS[:2], [[0, 1, 1e-9, 0.5]], 0)),
    "RelaxedBernoulli logits": (lambda d, t, a: d.RelaxedBernoulli(t, logits=a), PROBS),
    "RelaxedOneHotCategorical": (lambda d, t, a: d.RelaxedOneHotCategorical(t, a), PROBS / PROBS.sum(-1, keepdims=True)),
    "RelaxedOneHotCategorical logits": (lambda d, t, a: d.RelaxedOneHotCategorical(t, logits=a), PROBS / PROBS.sum(-1, keepdims=True)),
}


@pytest.mark.parametrize("name", RELAXED)
def test_smooth_classes(name: str) -> None:
    make, values = RELAXED[name]
    found = []
    for m in (torch, gt):
        heat, given, value = tensors(m, [np.array(0.7), PROBS, values])
        p = make(m.distributions, heat, given)
        log_prob = p.log_prob(value)
        grads = m.autograd.grad((log_prob * m.arange(float(log_prob.shape[-1]))).nansum(), [heat, given], retain_graph=True)
        found.append([log_prob, p.probs, p.logits, *grads, p.expand((2, *p.batch_shape)).log_prob(value)])
        with pytest.raises(NotImplementedError):
            p.entropy()
        m.manual_seed(0)
        x = p.rsample((20000,))
        assert p.has_rsample and x.requires_grad and not p.sample().requires_grad and repr(p) == f"{type(p).__name__}()"
        assert bool(p.support.check(p.sample((50,))).all())
        found[-1].append(x.mean(0))
        pulls = m.autograd.grad((x * m.arange(4.0)).mean(0).sum(), [heat, given])
        found[-1] += [pulls[0], pulls[1]]
    for i, (theirs, mine) in enumerate(zip(*found, strict=True)):
        if i < len(found[0]) - 3:
            same(mine, theirs, f"{name}: {i}")
        else:  # of draws: about as near as 20,000 make it
            np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), rtol=0.03, atol=0.03, err_msg=f"{name}: {i}")


def test_numbers_as_parameters_and_checks_when_asked_for() -> None:
    for m in (gt, torch):
        d = m.distributions
        assert abs(d.Normal(0.0, 1.0).log_prob(m.tensor(0.0)).item() + 0.9189385) < 1e-6
        with pytest.raises(ValueError, match="parameter scale"):
            d.Normal(0.0, -1.0, validate_args=True)
        with pytest.raises(ValueError, match="support"):
            d.Exponential(1.0, validate_args=True).log_prob(m.tensor(-1.0))
        with pytest.raises(ValueError, match="Either"):
            d.Categorical()
        with pytest.raises(ValueError, match="must match event_shape|event_shape"):
            d.Independent(d.Normal(m.zeros(3), m.ones(3)), 1, validate_args=True).base_dist.log_prob(m.zeros(4))
        assert "scale" in repr(d.Normal(m.zeros(2), m.ones(2)))
        with pytest.raises(ValueError, match="covariance_matrix"):
            d.MultivariateNormal(m.zeros(2), -m.eye(2), validate_args=True)


MIXTURES: dict[str, tuple[Any, np.ndarray]] = {
    "of normals": (lambda m, d: d.MixtureSameFamily(d.Categorical(m.tensor(SHARE)), d.Normal(m.tensor(OTHER), m.tensor(SIZE))), REAL[0, :3]),
    "in batches": (lambda m, d: d.MixtureSameFamily(d.Categorical(m.tensor(PROBS)), d.Normal(m.tensor(REAL), m.tensor(SIZE))), REAL[:, 0]),
    "of vectors": (
        lambda m, d: d.MixtureSameFamily(d.Categorical(m.tensor(SHARE[:3])), d.Independent(d.Normal(m.tensor(REAL), m.tensor(POSITIVE)), 1)),
        REAL[1],
    ),
    "of discrete ones": (lambda m, d: d.MixtureSameFamily(d.Categorical(m.tensor(SHARE)), d.Geometric(m.tensor(SHARE))), np.arange(3.0)),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures(name: str) -> None:
    make, values = MIXTURES[name]
    mine, theirs = make(gt, gt.distributions), make(torch, torch.distributions)
    same(mine.log_prob(gt.tensor(values)), theirs.log_prob(torch.tensor(values)), "log_prob")
    if name in ("of normals", "in batches"):
        same(mine.cdf(gt.tensor(values)), theirs.cdf(torch.tensor(values)), "cdf")
    same(mine.mean, theirs.mean, "mean")
    same(mine.variance, theirs.variance, "variance")
    wide = mine.expand((2, *mine.batch_shape))
    values = values if theirs.batch_shape or theirs.event_shape else values[:1]
    same(wide.log_prob(gt.tensor(values)), theirs.expand((2, *theirs.batch_shape)).log_prob(torch.tensor(values)), "expanded")
    assert repr(mine).startswith("MixtureSameFamily(\n  Categorical(probs: gt.Size(["), "torch has logits there too, once they were asked for"
    gt.manual_seed(0)
    n = 20000
    x = mine.sample((n,))
    assert x.shape == (n, *theirs.batch_shape, *theirs.event_shape)
    gap = np.abs(x.mean(0).numpy() - theirs.mean.numpy()) / (theirs.stddev.numpy() / n**0.5)
    assert gap.max() < 6
    assert mine.support.check(x[:50]).all()


def test_mixtures_say_what_does_not_fit() -> None:
    for m in (gt, torch):
        d = m.distributions
        with pytest.raises(ValueError, match="Mixture distribution needs"):
            d.MixtureSameFamily(d.Normal(m.zeros(3), 1.0), d.Normal(m.zeros(3), 1.0))
        with pytest.raises(ValueError, match="does not equal"):
            d.MixtureSameFamily(d.Categorical(m.ones(2)), d.Normal(m.zeros(3), 1.0))


def test_von_mises() -> None:
    k = np.array([0.01, 0.7, 3.0, 12.0, 300.0])
    loc = np.array([0.3, -1.0, 2.0, 3.0, 0.0])
    mine, theirs = (m.distributions.VonMises(m.tensor(loc), m.tensor(k)) for m in (gt, torch))
    at = np.linspace(-3, 3, 5)
    for what, a, b in (
        ("log_prob", mine.log_prob(gt.tensor(at)), theirs.log_prob(torch.tensor(at))), ("variance", mine.variance, theirs.variance),
        ("mean", mine.mean, theirs.mean), ("expanded", mine.expand((2, 5)).log_prob(gt.tensor(at)), theirs.expand((2, 5)).log_prob(torch.tensor(at))),
    ):  # fmt: skip
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=2e-6, err_msg=what)  # torch's i0 is a short polynomial
    gt.manual_seed(0)
    x = mine.sample((5000,))
    assert x.shape == (5000, 5) and x.dtype is gt.float64 and float(x.abs().max()) <= np.pi
    away = (x - mine.loc).cos()
    gap = np.abs(away.mean(0).numpy() - (1 - theirs.variance.numpy())) / (away.std(0).numpy() / 5000**0.5)
    assert gap.max() < 6
    assert float((x - mine.loc).sin().mean(0).abs().max()) < 0.03


def test_reprs() -> None:
    for make in (
        lambda m, d: d.Normal(0.0, 1.0), lambda m, d: d.Normal(m.zeros(3), 1.0), lambda m, d: d.Categorical(m.ones(3)),
        lambda m, d: d.Independent(d.Normal(m.zeros(3), 1.0), 1), lambda m, d: d.Uniform(0.0, m.ones(1)), lambda m, d: d.Bernoulli(0.5),
        lambda m, d: d.MultivariateNormal(m.zeros(2), m.eye(2)), lambda m, d: d.Pareto(1.0, 2.0), lambda m, d: d.VonMises(0.0, 1.0),
    ):  # fmt: skip
        assert repr(make(gt, gt.distributions)) == repr(make(torch, torch.distributions)).replace("torch.", "gt.")


def test_supports_are_enumerated() -> None:
    for make in (
        lambda m, d: d.Bernoulli(m.tensor(SHARE)), lambda m, d: d.Categorical(m.tensor(PROBS)),
        lambda m, d: d.OneHotCategorical(m.tensor(PROBS)),
    ):  # fmt: skip
        for expand in (True, False):
            got, want = (make(m, m.distributions).enumerate_support(expand) for m in (gt, torch))
            assert got.dtype.name == str(want.dtype).removeprefix("torch.")
            np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_a_distribution_of_ones_own_expands_by_its_constraints() -> None:
    class Point(gt.distributions.Distribution):
        arg_constraints = {"at": gt.distributions.constraints.real_vector}
        support = gt.distributions.constraints.real_vector

        def __init__(self, at: Any, validate_args: bool | None = None) -> None:
            self.at = at
            super().__init__(at.shape[:-1], at.shape[-1:], validate_args)

    wide = Point(gt.zeros(3), validate_args=True).expand((2,))
    assert tuple(wide.batch_shape) == (2,) and tuple(wide.at.shape) == (2, 3) and repr(wide) == "Point(at: gt.Size([2, 3]))"


def test_checks_of_parameters_that_depend_on_each_other() -> None:
    for m in (gt, torch):
        with pytest.raises(ValueError, match="low"):
            m.distributions.Uniform(m.tensor(1.0), m.tensor(0.0), validate_args=True)
        with pytest.raises(ValueError, match="dependent"):
            m.distributions.constraints.dependent.check(m.zeros(2))
