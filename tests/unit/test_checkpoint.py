"""Checkpoints: the gradients of the plain call, in less memory. Source: torch.utils.checkpoint.

The memory is what the plan of one worker needs, and what a session still holds between forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt import config as configs
from gt import session as sessions
from gt.runtime.simulated import SimulatedSession
from gt.utils.checkpoint import checkpoint, checkpoint_sequential

pytestmark = pytest.mark.usefixtures("alone")


def plain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def layers(n: int = 4, width: int = 8, drop: float = 0.0) -> list[gt.nn.Module]:
    gt.manual_seed(0)
    made = [
        gt.nn.Sequential(gt.nn.Linear(width, 4 * width), gt.nn.Tanh(), gt.nn.Dropout(drop), gt.nn.Linear(4 * width, width))
        for _ in range(n)
    ]
    for module in made:
        for p in module.parameters():
            p.sum().item()
    return made


def train(call: Callable[..., Any], modules: list[gt.nn.Module], x: Any) -> list[np.ndarray]:
    """Give the gradients of every parameter, and of ``x`` if it wants one."""
    gt.manual_seed(5)
    h = x
    for module in modules:
        h = call(module, h)
    h.square().sum().backward()
    leaves = [*(p for m in modules for p in m.parameters()), *([x] if x.requires_grad else [])]
    grads = [p.grad.numpy() for p in leaves]
    for p in leaves:
        p.grad = None
    return grads


@pytest.mark.parametrize("x_needs", [True, False])
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_gradients_are_those_of_the_plain_call(x_needs: bool, drop: float) -> None:
    modules, x = layers(drop=drop), gt.randn(6, 8).requires_grad_(x_needs)
    for a, b in zip(train(plain, modules, x), train(checkpoint, modules, x), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_a_step_needs_less_memory(drop: float) -> None:
    peaks = []
    for call in (plain, checkpoint):
        session = SimulatedSession(1)
        with sessions.pinned(session):
            modules, x = layers(6, 64, drop), gt.randn(512, 64)
            x.sum().item()
            before = len(session.runs)
            train(call, modules, x)
            peaks.append(max(p.peak_nbytes for run in session.runs[before:] for p in run.plan.programs.values()))
    inner, outer = 512 * 4 * 64 * 4, 512 * 64 * 4  # tanh's result in each layer, and what goes into it
    assert peaks[0] > 6 * inner
    assert peaks[1] < peaks[0] - 4 * inner * (2 if drop else 1), peaks
    assert peaks[1] < 7 * outer + 6 * inner


def test_a_loss_read_before_the_backward_keeps_only_what_goes_in() -> None:
    kept = []
    for call in (plain, checkpoint):
        session = SimulatedSession(1)
        with sessions.pinned(session):
            modules, x = layers(6, 64), gt.randn(512, 64)
            x.sum().item()
            h = x
            for module in modules:
                h = call(module, h)
            loss = h.square().sum()
            loss.item()
            kept.append(sum(v.type.nbytes for v in session.runs[-1].graph.outputs))
            loss.backward()
            gradient = modules[0][0].weight.grad.numpy()
            if call is plain:
                want = gradient
    np.testing.assert_array_equal(gradient, want)
    inner, outer = 512 * 4 * 64 * 4, 512 * 64 * 4
    assert kept[0] >= 6 * inner
    assert kept[1] <= 7 * outer + 64


def test_closures_keywords_and_structures() -> None:
    w, scale = gt.randn(4, 4, requires_grad=True), gt.randn(4, requires_grad=True)

    def run(x: Any, *, shift: Any) -> dict[str, Any]:
        h = (x @ w).tanh() + shift
        return {"pair": (h * double, h.argmax(-1)), "same": x, "list": [h.exp()]}

    found = []
    for call in (plain, checkpoint):
        double = scale * 2  # a value of the tape that the function finds for itself
        x = gt.arange(12.0).reshape(3, 4)
        out = call(run, x, shift=scale)
        assert out["same"] is x
        assert out["pair"][1].dtype is gt.int64
        found.append([g.numpy() for g in gt.autograd.grad(out["pair"][0].sum() + out["list"][0].sum(), [w, scale])])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_within_each_other_twice_differentiated_and_kept() -> None:
    a = gt.tensor([0.3, -0.7], requires_grad=True)
    inner = lambda x: (x * a).sin()  # noqa: E731

    def outer(call: Callable[..., Any], x: Any) -> Any:
        return call(inner, call(inner, x) * a).exp()

    for f in (lambda c, x: outer(c, x), lambda c, x: c(lambda z: outer(c, z), x)):
        want, got = [], []
        for call, into in ((plain, want), (checkpoint, got)):
            x = gt.tensor([1.5, 2.0], requires_grad=True)
            y = f(call, x)
            first = gt.autograd.grad(y.sum(), [x, a], create_graph=True)
            into += [g.detach().numpy() for g in first]
            into += [g.numpy() for g in gt.autograd.grad(first[0].sum() + first[1].square().sum(), [x, a])]
            y = f(call, x)
            y.sum().backward(retain_graph=True)
            y.sum().backward()
            into.append(x.grad.numpy())
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-5)
    a.grad = None


def test_its_python_runs_once() -> None:
    calls = []
    bn = gt.nn.BatchNorm1d(3)

    def run(x: Any) -> Any:
        calls.append(1)
        y = bn(x)
        y.register_hook(lambda g: g * 2)
        return y * y

    grads = []
    for call in (plain, checkpoint):
        gt.manual_seed(1)
        x = gt.randn(5, 3).requires_grad_()
        call(run, x).sum().backward()
        grads.append(x.grad.numpy())
    assert len(calls) == 2
    assert bn.num_batches_tracked.item() == 2
    np.testing.assert_allclose(grads[0], grads[1], rtol=1e-5, atol=1e-6)


def test_what_cannot_be_recomputed_is_kept_or_refused() -> None:
    a = gt.tensor([1.0, 2.0], requires_grad=True)

    def reads(x: Any) -> Any:
        y = x.exp()
        return y * y.sum().item()

    checkpoint(reads, a).sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), np.exp([1, 2]) * np.exp([1, 2]).sum(), rtol=1e-6)
    b = a * 3
    out = checkpoint(lambda x: x.sin(), b)
    b.add_(1)
    out.sum().backward()  # the value that went in is still there
    c = gt.tensor([1.0, 2.0], requires_grad=True)
    out = checkpoint(lambda x: x.sin(), c)
    with gt.no_grad():
        c.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    with gt.no_grad():
        assert not checkpoint(lambda x: x.sin(), c).requires_grad
    with pytest.raises(NotImplementedError, match="context_fn"):
        checkpoint(reads, a, context_fn=lambda: None)
    held: list[Any] = []
    checkpoint(lambda x: held.append(checkpoint(lambda y: y.sin(), x)) or held[0] * 2, a).sum().backward()
    with pytest.raises(RuntimeError, match="let the checkpointed function return it"):
        held[0].sum().backward()


def test_sequential() -> None:
    modules, x = layers(5), gt.randn(6, 8).requires_grad_()
    grads = []
    for call in (lambda s: s(x), lambda s: checkpoint_sequential(s, 2, x), lambda s: checkpoint_sequential(s, 9, x)):
        call(gt.nn.Sequential(*modules)).sum().backward()
        grads.append(x.grad.numpy())
        x.grad = None
    for g in grads[1:]:
        np.testing.assert_array_equal(g, grads[0])


def test_under_jit_each_replay_recomputes_its_own_random_numbers() -> None:
    """The mask shows in both the loss and the gradient: they agree only if the second run has the first one's numbers."""
    w = gt.ones(64, requires_grad=True)

    @gt.jit
    def step() -> tuple[Any, Any]:
        w.grad = None
        out = checkpoint(lambda: gt.nn.functional.dropout(w * 1.5, 0.5) * 2)
        out.sum().backward()
        return out.detach(), w.grad

    seen = set()
    for _ in range(6):
        out, g = (t.numpy() for t in step())
        np.testing.assert_array_equal(out, g)
        seen.add(out.tobytes())
    assert step.replays >= 3
    assert len(seen) == 6


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("shard", ["rows", "columns"])
def test_on_several_workers(workers: int, shard: str) -> None:
    found, collectives = {}, []
    for n, call in ((1, plain), (workers, plain), (workers, checkpoint)):
        configs.get_config().clear()
        gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0 if shard == "rows" else 1, workers=list(range(n)))))
        session = SimulatedSession(n)
        with sessions.pinned(session):
            modules = layers()
            gt.manual_seed(2)
            with gt.signal.context("rows"):
                x = gt.randn(8, 8)
                before = len(session.runs)
                found[n, call] = train(call, modules, x)
            assert n == 1 or any(run.plan.programs[0].collectives for run in session.runs[before:])
            collectives.append(sum(c.nbytes for run in session.runs[before:] for c in run.collectives))
    want = found[1, plain]
    for key, got in found.items():
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5, err_msg=str(key))
    assert collectives[2] <= 2 * collectives[1]


@pytest.mark.parametrize("inside", ["argument", "closure", "twice"])
def test_a_leafs_hook_sees_its_whole_gradient_once(inside: str) -> None:
    def outcome(m: Any) -> Any:
        x, w, seen = m.tensor([1.0, 2.0], requires_grad=True), m.tensor([3.0, 4.0]), []
        x.register_hook(lambda g: seen.append(g.tolist()) or g - 0.5)
        run = lambda f, *given: m.utils.checkpoint.checkpoint(f, *given, use_reentrant=False)  # noqa: E731
        y = run(lambda a: a * a, x) if inside == "argument" else run(lambda b: b * x, w)
        if inside == "twice":
            y = y * run(lambda b: b + x * x, w)
        (y + x * 3).sum().backward()
        return seen, x.grad.tolist()

    assert outcome(gt) == outcome(torch)
