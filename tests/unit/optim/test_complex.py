"""Complex parameters: optimizers take them as pairs of real numbers, as torch's do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt

CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    ("AdamW", {}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("Adagrad", {"initial_accumulator_value": 0.5}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RAdam", {}),
]


def trained(m: Any, name: str, options: dict[str, Any]) -> list[Any]:
    """Give parameters and a state dict's complex values after steps over a complex and a real parameter."""
    z = m.nn.Parameter(m.tensor([1 + 2j, -0.5 + 0.25j, 3 - 1j]))
    x = m.nn.Parameter(m.tensor([0.5, -1.0, 2.0]))
    optimizer = getattr(m.optim, name)([z, x], lr=0.05, **options)
    for i in range(4):
        optimizer.zero_grad()
        loss = ((z * (x + i) - (1 - 2j)).abs() ** 2).sum()
        loss.backward()
        optimizer.step()
    states = optimizer.state_dict()["state"].get(0, {})
    return [z.detach().numpy(), x.detach().numpy(), *(states[k].numpy() for k in sorted(states) if k not in ("step", "mu_product"))]


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_training_is_torchs(name: str, options: dict[str, Any]) -> None:
    for mine, theirs in zip(trained(gt, name, options), trained(torch, name, options), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["ASGD", "Rprop", "Adafactor", "LBFGS"])
def test_others_refuse(name: str) -> None:
    with pytest.raises(NotImplementedError, match="does not take complex parameters"):
        getattr(gt.optim, name)([gt.nn.Parameter(gt.ones(2, dtype=gt.complex64))])


def test_torchs_state_is_taken_with_both_parts() -> None:
    """A run that torch began goes on here with the same numbers."""
    begun, left = {}, {}
    for m in (torch, gt):
        z = m.nn.Parameter(m.tensor([1 + 2j, -0.5 + 0.25j]))
        optimizer = m.optim.Adam([z], lr=0.05)
        if m is gt:
            with gt.no_grad():
                z.copy_(gt.from_numpy(begun["z"]))
            optimizer.load_state_dict(begun["state"])
        for i in range(3):
            if m is torch and i == 1:
                begun = {"z": z.detach().numpy().copy(), "state": optimizer.state_dict()}
                begun["state"]["state"][0] = {k: v.clone() for k, v in begun["state"]["state"][0].items()}
            if m is torch or i > 0:
                optimizer.zero_grad()
                ((z - (3 - 1j) * i).abs() ** 2).sum().backward()
                optimizer.step()
        left[m] = z.detach().numpy()
    np.testing.assert_allclose(left[gt], left[torch], rtol=1e-5)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, float("inf")])
def test_gradients_are_clipped_by_the_norm_of_both_parts(order: float) -> None:
    found = []
    for m in (torch, gt):
        z, x = m.nn.Parameter(m.ones(2, dtype=m.complex64)), m.nn.Parameter(m.ones(2))
        z.grad, x.grad = m.tensor([3 + 4j, 1j]), m.tensor([0.5, -2.0])
        total = m.nn.utils.clip_grad_norm_([z, x], 1.0, order)
        assert total.dtype == m.float32
        found.append([total.numpy(), z.grad.numpy(), x.grad.numpy()])
    for theirs, mine in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.mark.parametrize("way", ["half", "float", "double", "bfloat16"])
def test_conversions_of_floats_leave_complex_parameters(way: str) -> None:
    found = []
    for m in (torch, gt):
        layer = m.nn.Linear(2, 2, dtype=m.complex64)
        layer.register_buffer("real", m.ones(2))
        layer.register_buffer("count", m.ones(2, dtype=m.int64))
        getattr(layer, way)()
        found.append([str(t.dtype).split(".")[1] for t in (layer.weight, layer.real, layer.count)])
    assert found[0] == found[1]


def test_a_gradient_may_be_a_conjugate() -> None:
    found = []
    for m in (torch, gt):
        p = m.nn.Parameter(m.tensor([1 + 2j, 3j]))
        p.grad = m.tensor([1j, 2 - 1j]).conj()
        m.optim.SGD([p], lr=0.5).step()
        found.append(p.tolist())
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_a_gradient_that_is_a_conjugate_is_a_pair_of_its_own() -> None:
    steps = []
    for conj in (False, True):
        p = gt.nn.Parameter(gt.tensor([1 + 2j, 3j]))
        p.grad = gt.tensor([1j, 2 - 1j]).conj() if conj else gt.tensor([-1j, 2 + 1j])
        gt.optim.Adam([p], lr=0.5).step()
        steps.append(p.tolist())
    assert steps[0] == steps[1]
