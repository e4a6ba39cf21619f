"""Every configuration of torch's own optimizer database through gt and torch: parameters, states, state dicts, errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

import gt
from gt.flush import counters
from gt.rule import RULES
from gt.trace import state
from tests.unit.nn.torch_twin import close, to_gt

UNSUPPORTED = {"SparseAdam": "gradients are dense"}
ELSEWHERE = {"LBFGS", "Muon"}  # in test_more_optimizers: one needs a closure, the other matrices
ENTRIES = {i.optim_cls.__name__: i for i in optim_db if i.optim_cls.__name__ not in UNSUPPORTED.keys() | ELSEWHERE}
STEPS = 5


def configurations():
    for name, info in ENTRIES.items():
        for sample in info.optim_inputs_func(device="cpu"):
            if not sample.kwargs.get("differentiable"):
                yield pytest.param(name, sample.kwargs, id=f"{name}: {sample.desc}")


def parameters():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (5,), ())]
    return (
        [gt.nn.Parameter(gt.tensor(a)) for a in arrays],
        [torch.nn.Parameter(torch.tensor(a)) for a in arrays],
    )


def loss_of(params, m, i):
    """A loss whose gradients change sign and size from step to step."""
    return sum(((p * (k + 1) + 0.1 * i) ** 2).sum() + m.sin(p * 3).sum() for k, p in enumerate(params))


def train(optimizer, params, m, steps, start=0):
    for i in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(params, m, i).backward()
        optimizer.step()


def same_state(ours, theirs):
    got, want = ours.state_dict(), theirs.state_dict()
    assert list(got) == list(want)
    for g, w in zip(got["param_groups"], want["param_groups"], strict=True):
        assert set(g) == set(w) and g["params"] == w["params"]
    assert got["state"].keys() == want["state"].keys()
    for i, held in want["state"].items():
        assert set(got["state"][i]) == set(held)
        for key, value in held.items():
            if value is None:
                assert got["state"][i][key] is None
            else:
                close(got["state"][i][key], value, f"state {key} of parameter {i}", atol=1e-6)


@pytest.mark.parametrize(("name", "kwargs"), list(configurations()))
def test_steps_and_states_equal_torch(name, kwargs):
    ours, theirs = parameters()
    a = getattr(gt.optim, name)(ours, **to_gt(kwargs))
    b = getattr(torch.optim, name)(theirs, **kwargs)
    train(a, ours, gt, STEPS)
    train(b, theirs, torch, STEPS)
    for i, (p, q) in enumerate(zip(ours, theirs, strict=True)):
        close(p, q, f"parameter {i}", atol=1e-6)
    same_state(a, b)


@pytest.mark.parametrize("name", ENTRIES)
def test_goes_on_from_torchs_state_dict(name):
    ours, theirs = parameters()
    b = getattr(torch.optim, name)(theirs, **({"lr": 0.1, "momentum": 0.9} if name == "SGD" else {}))
    train(b, theirs, torch, 2)
    with gt.no_grad():
        for p, q in zip(ours, theirs, strict=True):
            p.copy_(gt.tensor(q.detach().numpy()))
    a = getattr(gt.optim, name)(ours)
    a.load_state_dict(b.state_dict())
    train(a, ours, gt, 2, start=2)
    train(b, theirs, torch, 2, start=2)
    for p, q in zip(ours, theirs, strict=True):
        close(p, q, "parameter", atol=1e-6)
    same_state(a, b)


@pytest.mark.parametrize("name", ENTRIES)
def test_errors(name):
    info = ENTRIES[name]
    for case in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        given = case.optimizer_error_input
        if case.error_on is not OptimizerErrorEnum.CONSTRUCTION_ERROR:  # complex parameters, refused at once here
            with pytest.raises(NotImplementedError, match="complex parameters"):
                getattr(gt.optim, name)(to_gt(given.params), **to_gt(given.kwargs))
            continue
        if given.kwargs.get("foreach") or given.kwargs.get("fused"):
            continue  # how a step is run is not the user's choice in gt
        params = to_gt(given.params) if given.params is not None else [gt.nn.Parameter(gt.zeros(2))]
        if case.error_type is UserWarning:
            with pytest.warns(UserWarning, match=case.error_regex):
                getattr(gt.optim, name)(params, **to_gt(given.kwargs))
        else:
            with pytest.raises(case.error_type, match=case.error_regex):
                getattr(gt.optim, name)(params, **to_gt(given.kwargs))


def test_unsupported_optimizers_are_absent():
    """The table above is exact: what it names gt.optim does not offer, and everything else it does."""
    assert {i.optim_cls.__name__ for i in optim_db if not hasattr(gt.optim, i.optim_cls.__name__)} == set(UNSUPPORTED)


@pytest.mark.parametrize("name", [*ENTRIES, "Lion"])
def test_a_changing_rate_and_count_make_no_new_graph(name):
    params, _ = parameters()
    optimizer = getattr(gt.optim, name)(params, **({"momentum": 0.9} if name == "SGD" else {}))
    seen = []
    for i in range(6):
        optimizer.zero_grad()
        loss_of(params, gt, i).backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.7
        params[0].sum().item()
        seen.append(counters.graphs)
    assert seen[2:] == [seen[2]] * 4


def test_a_step_is_one_node_for_each_group(settled):
    params, _ = parameters()
    optimizer = gt.optim.AdamW([{"params": params[:2]}, {"params": params[2:], "lr": 0.1}])
    loss_of(params, gt, 0).backward()
    trace = state.trace
    before = len(trace.code)
    optimizer.step()
    names = [RULES[code >> 1].op.name for code, _ in trace.code[before:] if RULES[code >> 1].op]
    assert names.count("adamw_step") == 2


def test_lion_follows_its_paper():
    (p, *_), _ = parameters()
    optimizer = gt.optim.Lion([p], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    value, mean = p.detach().numpy().astype(np.float64), np.zeros(p.shape)
    for i in range(4):
        optimizer.zero_grad()
        loss_of([p], gt, i).backward()
        g = p.grad.numpy().astype(np.float64)
        optimizer.step()
        value = value * (1 - 0.1 * 0.5) - 0.1 * np.sign(0.9 * mean + 0.1 * g)
        mean = 0.99 * mean + 0.01 * g
        np.testing.assert_allclose(p.detach().numpy(), value, rtol=1e-5, atol=1e-6)


def test_closure_hooks_and_groups():
    params, _ = parameters()
    optimizer = gt.optim.SGD(params[:1], lr=0.1)
    optimizer.add_param_group({"params": params[1], "lr": 0.01})
    calls = []
    handle = optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))

    def closure():
        optimizer.zero_grad()
        loss = (params[0] ** 2).sum()
        loss.backward()
        return loss

    before = params[0].detach().numpy()
    loss = optimizer.step(closure)
    assert loss.item() == pytest.approx((before**2).sum(), rel=1e-5) and calls == ["pre", "post"]
    np.testing.assert_allclose(params[0].detach().numpy(), before * 0.8, rtol=1e-5)
    handle.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert calls == ["pre", "post", "post"]
    assert repr(optimizer).replace("SGD (", "").startswith("\nParameter Group 0\n    dampening: 0\n")
    optimizer.zero_grad(set_to_none=False)
    assert params[0].grad.numpy().sum() == 0
