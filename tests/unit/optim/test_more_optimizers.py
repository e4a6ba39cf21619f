"""LBFGS, Muon and averages of models against torch, over 12 steps, in groups, and from each other's state dicts."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import gt
from gt import flush

STEPS = 12
UNFUSED = ["ASGD", "Rprop", "Adafactor", "Muon"]


def parameters(m, shapes=((4, 3), (2, 5))):
    rng = np.random.default_rng(1)
    return [m.nn.Parameter(m.tensor(rng.standard_normal(s).astype(np.float32))) for s in shapes]


def loss_of(params, m, i):
    return sum(((p * (k + 1) + 0.1 * i) ** 2).sum() + m.sin(p * 3).sum() for k, p in enumerate(params))


def train(m, optimizer, params, steps, start=0):
    for i in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(params, m, i).backward()
        optimizer.step()


def close(ours, theirs, rtol=2e-4, atol=2e-5):
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", UNFUSED)
def test_twelve_steps(name, grouped):
    found = []
    for m in (gt, torch):
        params = parameters(m)
        given = [{"params": params[:1]}, {"params": params[1:], "lr": 0.003}] if grouped else params
        optimizer = getattr(m.optim, name)(given, lr=0.02)
        train(m, optimizer, params, STEPS)
        found.append(params)
    close(*found, )  # bfloat16 inside


@pytest.mark.parametrize("name", UNFUSED)
def test_state_dicts_go_both_ways(name):
    (ours, theirs), (mine, yours) = (parameters(gt), parameters(torch)), (parameters(gt), parameters(torch))
    a, b = getattr(gt.optim, name)(ours), getattr(torch.optim, name)(theirs)
    train(gt, a, ours, 3)
    train(torch, b, theirs, 3)
    c, d = getattr(gt.optim, name)(mine), getattr(torch.optim, name)(yours)
    c.load_state_dict(b.state_dict())
    held = {
        i: {k: torch.tensor(np.asarray(v)) if not isinstance(v, float) else v for k, v in s.items()}
        for i, s in a.state_dict()["state"].items()
    }
    d.load_state_dict({"state": held, "param_groups": a.state_dict()["param_groups"]})
    with torch.no_grad(), gt.no_grad():
        for p, q, t in zip(mine, yours, theirs, strict=True):
            p.copy_(gt.tensor(t.detach().numpy()))
            q.copy_(t)
    train(gt, c, mine, 3, 3)
    train(torch, d, yours, 3, 3)
    train(torch, b, theirs, 3, 3)
    for got in (mine, yours):
        close(got, theirs)


@pytest.mark.parametrize(
    "options", [{}, {"line_search_fn": "strong_wolfe"}, {"lr": 0.1, "max_iter": 4, "history_size": 3}], ids=str
)
def test_lbfgs(options):
    found = []
    for m in (gt, torch):
        params = [m.nn.Parameter(p.detach().double()) for p in parameters(m)]
        optimizer = m.optim.LBFGS(params, **options)
        losses = []

        def closure(m=m, params=params, optimizer=optimizer):
            optimizer.zero_grad()
            a, b = params
            loss = ((a @ a.T) ** 2).sum() * 0.01 + ((b - 1) ** 4).sum() + (a**2).sum() + b.cos().sum()
            loss.backward()
            return loss

        for _ in range(12):
            losses.append(float(optimizer.step(closure)))
        own = optimizer.state_dict()["state"][0]
        found.append((losses, [p.detach().numpy() for p in params], own["func_evals"], own["n_iter"]))
    (l1, p1, *n1), (l2, p2, *n2) = found
    np.testing.assert_allclose(l1, l2, rtol=1e-6, atol=1e-9)
    for a, b in zip(p1, p2, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert n1 == n2


def test_lbfgs_goes_on_from_a_state_dict():
    ends = []
    for again in (False, True):
        params = parameters(gt)
        optimizer = gt.optim.LBFGS(params, max_iter=3)

        def closure(params=params):
            for p in params:
                p.grad = None
            loss = loss_of(params, gt, 0)
            loss.backward()
            return loss

        optimizer.step(closure)
        if again:
            saved, optimizer = optimizer.state_dict(), gt.optim.LBFGS(params, max_iter=3)
            optimizer.load_state_dict(saved)
        optimizer.step(closure)
        ends.append(params)
    close(*ends, rtol=1e-6)


def test_lbfgs_makes_few_graphs_and_reads_twice_an_iteration():
    x = gt.tensor(np.linspace(-1, 1, 20), requires_grad=True)
    optimizer = gt.optim.LBFGS([x], lr=0.1, max_iter=15, tolerance_grad=0, tolerance_change=0)

    def closure():
        optimizer.zero_grad()
        loss = ((x - 3) ** 4).sum() + (x[1:] * x[:-1]).cos().sum()
        loss.backward()
        return loss

    for _ in range(2):  # the second time iterations 16 to 30: a history of 16, then one of 64
        graphs, flushes = flush.counters.graphs, flush.counters.flushes
        optimizer.step(closure)
    assert flush.counters.graphs - graphs <= 4
    assert flush.counters.flushes - flushes <= 31


@pytest.mark.parametrize("kind", ["swa", "ema", "ema_multi", "buffers"])
def test_averaged_models(kind):
    found = []
    for m in (gt, torch):
        utils = m.optim.swa_utils
        options = {
            "swa": {}, "ema": {"avg_fn": utils.get_ema_avg_fn(0.7)}, "ema_multi": {"multi_avg_fn": utils.get_ema_multi_avg_fn(0.7)},
            "buffers": {"use_buffers": True, "avg_fn": utils.get_swa_avg_fn()},
        }[kind]  # fmt: skip
        model = m.nn.Sequential(m.nn.Linear(3, 4), m.nn.BatchNorm1d(4))
        with m.no_grad():
            for k, p in enumerate(model.parameters()):
                p.copy_(m.tensor(np.sin(np.arange(p.numel()) + k).astype(np.float32)).reshape(p.shape))
        averaged = utils.AveragedModel(model, **options)
        data = [m.tensor(np.cos(np.arange(15) * (i + 1)).astype(np.float32)).reshape(5, 3) for i in range(3)]
        for i in range(4):
            model(data[i % 3])
            with m.no_grad():
                for p in model.parameters():
                    p.add_(0.1 * (i + 1))
            averaged.update_parameters(model)
        utils.update_bn(data, averaged)
        found.append([*averaged.parameters(), *averaged.buffers(), averaged(data[0])])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"swa_lr": 0.05}, {"swa_lr": [0.05, 0.2], "anneal_strategy": "linear", "anneal_epochs": 4}], ids=str
)
def test_swalr(options):
    rates = []
    for m in (gt, torch):
        a, b = parameters(m)
        optimizer = m.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.3}], lr=0.1)
        schedule = m.optim.swa_utils.SWALR(optimizer, **options)
        optimizer.step()
        each = []
        for _ in range(STEPS):
            schedule.step()
            each.append([g["lr"] for g in optimizer.param_groups])
        rates.append(each)
    np.testing.assert_allclose(*rates)


def test_what_reads_or_is_many_ops_says_so_under_jit():
    params = parameters(gt)
    optimizer = gt.optim.Muon(params)

    @gt.jit
    def step():
        loss_of(params, gt, 0).backward()
        optimizer.step()
        return params[0].sum()

    with pytest.raises(NotImplementedError, match="Muon cannot be replayed"):
        for _ in range(3):
            step()


def test_state_of_an_optimizer_of_ones_own_is_given_back_as_it_is():
    found = []
    for lib in (gt, torch):

        class Mine(lib.optim.Optimizer):
            def __init__(self, params, lr=0.1):
                super().__init__(params, {"lr": lr})

            def step(self, closure=None):
                with torch.no_grad(), gt.no_grad():
                    for group in self.param_groups:
                        for p in group["params"]:
                            own = self.state[p]
                            if not own:
                                own["step"], own["mean"] = 0, p * 0
                            own["step"] += 1
                            own["mean"].mul_(0.9).add_(p.grad)
                            p.add_(own["mean"], alpha=-group["lr"] / own["step"])

        p, q = lib.nn.Parameter(lib.ones(2)), lib.nn.Parameter(lib.ones(2))
        one, other = Mine([p]), Mine([q])
        for _ in range(3):
            p.grad = lib.ones(2)
            one.step()
        state = copy.deepcopy(one.state_dict())
        other.load_state_dict(one.state_dict())
        q.grad = lib.ones(2)
        other.step()
        assert type(state["state"][0]["step"]) is int and list(state["param_groups"][0])[-1] == "params"
        found.append([state["state"][0]["step"], other.state[q]["step"], q.tolist(), state["state"][0]["mean"].tolist()])
    assert found[0][:2] == found[1][:2] == [3, 4]
    np.testing.assert_allclose(found[0][2], found[1][2], rtol=1e-6)
    np.testing.assert_allclose(found[0][3], found[1][3], rtol=1e-6)


@pytest.mark.parametrize("name", ["Adam", "NAdam", "Adagrad", "RMSprop", "ASGD", "Adafactor"])
def test_counts_in_an_optimizers_state_are_tensors_before_and_after_loading_as_in_torch(name: str) -> None:
    found = []
    for lib in (gt, torch):

        def stepped(p, optimizer):
            p.grad = p.detach() * 2
            optimizer.step()

        make = getattr(lib.optim, name)
        p, q = (lib.nn.Parameter(lib.ones(2, 2)) for _ in range(2))
        one, other = make([p]), make([q])
        looked = [one.state[p]["step"].item()] if name == "Adagrad" else []
        for _ in range(2):
            stepped(p, one)
        looked += [one.state[p]["step"].item(), one.state_dict()["state"][0]["step"].item()]
        other.load_state_dict(one.state_dict())
        stepped(q, other)
        own = other.state[q]
        stepped(q, other)
        for given in (own, dict(own), {**own}, copy.deepcopy(own), own.copy(), dict(own.items()), pickle.loads(pickle.dumps(own))):
            assert isinstance(given, dict) and isinstance(given["step"], lib.Tensor)
            looked += [given["step"].item(), str(given["step"].dtype).split(".")[-1], tuple(given["step"].shape), sorted(given)]
        assert all(isinstance(v, lib.Tensor) for v in own.values())
        own["step"].fill_(10)  # what is written to it counts
        stepped(q, other)
        own["step"] = lib.tensor(20.0)
        stepped(q, other)
        found.append((looked, own["step"].item(), own.get("step").item(), q.tolist()))
    assert found[0][:3] == found[1][:3]
    np.testing.assert_allclose(found[0][3], found[1][3], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_counts_have_torchs_dtype_whatever_numbers_have(dtype):
    found = []
    for m in (gt, torch):
        m.set_default_dtype(getattr(m, dtype))
        try:
            p = m.nn.Parameter(m.ones(2))
            optimizer = m.optim.NAdam([p])
            for _ in range(3):
                p.grad = m.ones(2)
                optimizer.step()
            state = optimizer.state_dict()["state"][0]
            found.append([(str(state[k].dtype).rpartition(".")[2], state[k].item()) for k in ("step", "mu_product")])
        finally:
            m.set_default_dtype(m.float32)
    assert found[0] == found[1]
