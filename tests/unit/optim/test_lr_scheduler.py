"""Schedules give torch's numbers, bit for bit, and survive their state dicts."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch

import gt

CASES = {
    "StepLR": [{"step_size": 3}, {"step_size": 2, "gamma": 0.5}],
    "MultiStepLR": [{"milestones": [2, 5, 5], "gamma": 0.3}],
    "ExponentialLR": [{"gamma": 0.9}],
    "CosineAnnealingLR": [{"T_max": 5}, {"T_max": 4, "eta_min": 0.01}],
    "CosineAnnealingWarmRestarts": [{"T_0": 3}, {"T_0": 2, "T_mult": 2, "eta_min": 0.001}],
    "LinearLR": [{}, {"start_factor": 0.1, "end_factor": 0.8, "total_iters": 4}],
    "ConstantLR": [{}, {"factor": 0.5, "total_iters": 3}],
    "LambdaLR": [{"lr_lambda": lambda e: 0.95**e}, {"lr_lambda": [lambda e: 1 / (1 + e), lambda e: e]}],
    "MultiplicativeLR": [{"lr_lambda": lambda e: 0.97}],
    "OneCycleLR": [
        {"max_lr": 0.5, "total_steps": 20}, {"max_lr": [0.5, 1.0], "epochs": 4, "steps_per_epoch": 5, "three_phase": True},
        {"max_lr": 0.1, "total_steps": 20, "anneal_strategy": "linear", "cycle_momentum": False},
    ],
    "CyclicLR": [
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3}, {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2, "mode": "triangular2"},
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2, "step_size_down": 4, "mode": "exp_range", "gamma": 0.9},
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3, "scale_fn": lambda x: 1 / x, "cycle_momentum": False},
    ],
    "PolynomialLR": [{}, {"total_iters": 8, "power": 2.0}],
}  # fmt: skip
FLAT = [pytest.param(name, kwargs, id=f"{name}-{i}") for name, many in CASES.items() for i, kwargs in enumerate(many)]


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def optimizers(cls="SGD"):
    """The same two groups for gt and torch."""
    out = []
    for m in (gt, torch):
        params = [m.nn.Parameter(m.ones(2)), m.nn.Parameter(m.ones(3))]
        more = {"momentum": 0.9} if cls == "SGD" else {}
        out.append(getattr(m.optim, cls)([{"params": params[0]}, {"params": params[1], "lr": 0.05}], lr=0.1, **more))
    return out


def rates(optimizer):
    keys = ("lr", "momentum", "betas")
    return [tuple(g[k] for k in keys if k in g) for g in optimizer.param_groups]


def run(scheduler, optimizer, steps):
    out = [rates(optimizer)]
    for _ in range(steps):
        scheduler.step()
        out.append(rates(optimizer))
        assert scheduler.get_last_lr() == [g["lr"] for g in optimizer.param_groups]
    return out


@pytest.mark.parametrize("cls", ["SGD", "Adam"])
@pytest.mark.parametrize(("name", "kwargs"), FLAT)
def test_rates_equal_torch(name, kwargs, cls):
    a, b = optimizers(cls)
    ours = getattr(gt.optim.lr_scheduler, name)(a, **kwargs)
    theirs = getattr(torch.optim.lr_scheduler, name)(b, **kwargs)
    assert run(ours, a, 16) == run(theirs, b, 16)


@pytest.mark.parametrize(("name", "kwargs"), FLAT)
def test_goes_on_from_a_state_dict(name, kwargs):
    a, _ = optimizers()
    first = getattr(gt.optim.lr_scheduler, name)(a, **kwargs)
    run(first, a, 5)
    saved = copy.deepcopy(first.state_dict()), copy.deepcopy(a.state_dict())
    assert "optimizer" not in saved[0]
    b, _ = optimizers()
    second = getattr(gt.optim.lr_scheduler, name)(b, **kwargs)
    b.load_state_dict(saved[1])
    second.load_state_dict(saved[0])
    assert run(first, a, 6) == run(second, b, 6)


@pytest.mark.parametrize(
    "name", ["StepLR", "MultiStepLR", "ExponentialLR", "CosineAnnealingLR", "LinearLR", "ConstantLR", "PolynomialLR"]
)
def test_closed_forms_equal_torch(name):
    (a, b), kwargs = optimizers(), CASES[name][0]
    ours = getattr(gt.optim.lr_scheduler, name)(a, **kwargs)
    theirs = getattr(torch.optim.lr_scheduler, name)(b, **kwargs)
    for epoch in (3, 1, 7):
        ours.step(epoch)
        theirs.step(epoch)
        assert rates(a) == rates(b)


def composed(m, optimizer, kind):
    s = m.optim.lr_scheduler
    parts = [s.LinearLR(optimizer, 0.1, total_iters=4), s.CosineAnnealingLR(optimizer, 6)]
    return s.SequentialLR(optimizer, parts, milestones=[4]) if kind == "sequential" else s.ChainedScheduler(parts)


@pytest.mark.parametrize("kind", ["sequential", "chained"])
def test_composed_schedules_equal_torch(kind):
    a, b = optimizers()
    ours, theirs = composed(gt, a, kind), composed(torch, b, kind)
    assert run(ours, a, 5) == run(theirs, b, 5)
    c, _ = optimizers()
    again = composed(gt, c, kind)
    c.load_state_dict(a.state_dict())
    again.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert run(again, c, 5) == run(theirs, b, 5) == run(ours, a, 5)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"patience": 1},
        {"mode": "max", "patience": 0, "cooldown": 2},
        {"threshold_mode": "abs", "patience": 1, "min_lr": [0.01, 0.02]},
    ],
)
def test_plateau_equals_torch(kwargs):
    a, b = optimizers()
    ours = gt.optim.lr_scheduler.ReduceLROnPlateau(a, **kwargs)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(b, **kwargs)
    for value in np.random.default_rng(0).standard_normal(25) * 0.1 + 1:
        ours.step(gt.tensor(float(value), dtype=gt.float64))
        theirs.step(float(value))
        assert rates(a) == rates(b)
    again = gt.optim.lr_scheduler.ReduceLROnPlateau(a, **kwargs)
    again.load_state_dict(ours.state_dict())
    assert again.state_dict() == ours.state_dict() and math.isfinite(again.best)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda s, o: s.LambdaLR(o, [lambda e: 1]), ValueError, "Expected 2 lr_lambdas, but got 1"),
        (lambda s, o: s.StepLR(3, 1), TypeError, "int is not an Optimizer"),
        (lambda s, o: s.ConstantLR(o, 2.0), ValueError, "Constant multiplicative factor expected to be between 0 and 1."),
        (lambda s, o: s.OneCycleLR(o, 0.1), ValueError, "You must define either total_steps OR"),
        (lambda s, o: s.OneCycleLR(o, 0.1, 10, pct_start=2.0), ValueError, "Expected float between 0 and 1 pct_start"),
        (lambda s, o: s.CyclicLR(o, 0.1, 0.2, mode="x"), ValueError, "mode is invalid and scale_fn is None"),
        (lambda s, o: s.ReduceLROnPlateau(o, factor=1.0), ValueError, "Factor should be < 1.0."),
        (lambda s, o: s.SequentialLR(o, [s.StepLR(o, 1)], [1]), ValueError, "one more than the number of milestone points"),
        (lambda s, o: s.CosineAnnealingWarmRestarts(o, 0), ValueError, "Expected positive integer T_0, but got 0"),
    ],
)  # fmt: skip
def test_errors_equal_torch(make, error, text):
    for m, optimizer in zip((gt, torch), optimizers(), strict=True):
        with pytest.raises(error, match=text.replace("(", r"\(").replace(")", r"\)")):
            make(m.optim.lr_scheduler, optimizer)


def test_a_step_before_the_optimizers_warns():
    a, _ = optimizers()
    scheduler = gt.optim.lr_scheduler.StepLR(a, 1)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()


@pytest.mark.parametrize("lib", [gt, torch])
def test_a_schedule_of_ones_own_may_ask_where_it_is_called(lib):
    class Warm(lib.optim.lr_scheduler._LRScheduler):
        def get_lr(self):
            if not self._get_lr_called_within_step:
                raise RuntimeError("call get_last_lr()")
            return [base * min(1, (self.last_epoch + 1) / 4) for base in self.base_lrs]

    p = lib.nn.Parameter(lib.ones(2))
    optimizer = lib.optim.SGD([p], lr=0.1)
    schedule = Warm(optimizer)
    found = []
    for _ in range(5):
        p.grad = lib.ones(2)
        optimizer.step()
        schedule.step()
        found += schedule.get_last_lr()
    assert found == [0.05, 0.1 * 3 / 4, 0.1, 0.1, 0.1]
    with pytest.raises(RuntimeError, match="get_last_lr"):
        schedule.get_lr()
    assert {"_is_initial", "_get_lr_called_within_step"} <= schedule.state_dict().keys()
