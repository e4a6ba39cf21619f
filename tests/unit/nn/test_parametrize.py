"""Parametrizations and affine grids against torch: values, gradients, names in state dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.unit.nn.torch_twin import close

MODULES: list[tuple[Any, tuple[int, ...]]] = [
    (lambda m: m.nn.Linear(3, 4), (5, 3)), (lambda m: m.nn.Conv2d(2, 3, 2), (2, 2, 4, 4)),
    (lambda m: m.nn.ConvTranspose1d(2, 3, 2), (2, 2, 4)),
]  # fmt: skip
NORMS: list[Any] = [
    lambda u, x: u.parametrizations.weight_norm(x), lambda u, x: u.parametrizations.weight_norm(x, dim=1),
    lambda u, x: u.parametrizations.weight_norm(x, dim=None), lambda u, x: u.parametrizations.spectral_norm(x),
    lambda u, x: u.parametrizations.spectral_norm(x, n_power_iterations=3),
]  # fmt: skip


@pytest.mark.parametrize(("make", "shape"), MODULES)
@pytest.mark.parametrize("norm", NORMS)
def test_norms_are_torchs(make: Any, shape: tuple[int, ...], norm: Any) -> None:
    torch.manual_seed(0)
    mine, theirs = norm(gt.nn.utils, make(gt)), norm(torch.nn.utils, make(torch))
    assert list(mine.state_dict()) == list(theirs.state_dict())
    mine.load_state_dict({k: gt.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for training in (True, True, False):
        mine.train(training), theirs.train(training)
        for m, module in ((gt, mine), (torch, theirs)):
            module.zero_grad()
            module(m.tensor(values)).square().sum().backward()
        close(mine.weight, theirs.weight, "weight")
        for (name, p), (_, q) in zip(mine.named_parameters(), theirs.named_parameters(), strict=True):
            close(p.grad, q.grad, name)
        for (name, p), (_, q) in zip(mine.named_buffers(), theirs.named_buffers(), strict=True):
            close(p, q, name)
    assert type(mine).__name__ == type(theirs).__name__ and gt.nn.utils.parametrize.is_parametrized(mine, "weight")
    for m, module in ((gt, mine), (torch, theirs)):
        m.nn.utils.parametrize.remove_parametrizations(module, "weight")
    assert list(mine.state_dict()) == list(theirs.state_dict()) and type(mine) is type(make(gt))
    close(mine.weight, theirs.weight, "weight left")


def test_ones_own_parametrization_is_trained_and_set() -> None:
    found = []
    for m in (gt, torch):

        class Symmetric(m.nn.Module):  # type: ignore[name-defined]
            def forward(self, x: Any) -> Any:
                return x.triu() + x.triu(1).transpose(-1, -2)

            def right_inverse(self, x: Any) -> Any:
                return x.triu()

        module = m.nn.Linear(3, 3)
        p = m.nn.utils.parametrize
        p.register_parametrization(module, "weight", Symmetric())
        module.weight = m.tensor(np.arange(9.0, dtype=np.float32)).reshape(3, 3)
        with p.cached():
            assert module.weight is module.weight
        (module.weight * module.weight).sum().backward()
        found.append((module.weight, module.parametrizations.weight.original.grad))
        assert p.type_before_parametrizations(module) is m.nn.Linear
        with pytest.raises(ValueError, match="does not have"):
            p.register_parametrization(module, "nothing", Symmetric())
        p.remove_parametrizations(module, "weight", leave_parametrized=False)
        assert (module.weight == module.weight.triu()).all()
    for a, b in zip(*found, strict=True):
        close(a, b, "symmetric")


@pytest.mark.filterwarnings("ignore:Default grid_sample")
@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (2, 1, 1, 2), (1, 1, 2, 3, 4)])
def test_affine_grid(size: tuple[int, ...], align_corners: bool) -> None:
    dims = len(size) - 2
    values = np.random.default_rng(0).standard_normal((size[0], dims, dims + 1)).astype(np.float32)
    results = []
    for m in (gt, torch):
        theta = m.tensor(values, requires_grad=True)
        grid = m.nn.functional.affine_grid(theta, list(size), align_corners=align_corners)
        grid.square().sum().backward()
        results.append((grid, theta.grad))
    for a, b in zip(*results, strict=True):
        close(a, b, "grid")
    with pytest.raises(ValueError, match="Nx2x3"):
        gt.nn.functional.affine_grid(gt.zeros(2, 3, 4), (2, 1, 3, 4))
