"""Optimizer steps against torch.optim: five steps of each, bit by bit in float64 and to rounding in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gt.ir.evaluate import evaluate_node
from gt.ir.ops import OPS
from gt.ir.types import DType, TensorType, float32, float64
from tests.property import torch_side

Case = tuple[str, Any, dict[str, Any], dict[str, Any], int, bool]
COMMON = {"weight_decay": 0.0, "maximize": False}
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, **COMMON}
SGD = {"momentum": 0.0, "nesterov": False, "dampening": 0.0, **COMMON}
RMS = {"alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False, **COMMON}
CASES: list[Case] = [  # op, torch's class, torch's arguments, attributes, number of states, whether it counts steps
    ("sgd_step", torch.optim.SGD, {}, SGD, 0, False),
    (
        "sgd_step",
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 0.1},
        SGD | {"momentum": 0.9, "weight_decay": 0.1},
        1,
        False,
    ),
    (
        "sgd_step",
        torch.optim.SGD,
        {"momentum": 0.9, "dampening": 0.3},
        SGD | {"momentum": 0.9, "dampening": 0.3},
        1,
        False,
    ),
    (
        "sgd_step",
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "maximize": True},
        SGD | {"momentum": 0.9, "nesterov": True, "maximize": True},
        1,
        False,
    ),
    ("adam_step", torch.optim.Adam, {"weight_decay": 0.1}, ADAM | {"weight_decay": 0.1}, 2, True),
    ("adam_step", torch.optim.Adam, {"amsgrad": True}, ADAM | {"amsgrad": True}, 3, True),
    ("adamw_step", torch.optim.AdamW, {"weight_decay": 0.1}, ADAM | {"weight_decay": 0.1}, 2, True),
    ("adamw_step", torch.optim.AdamW, {"weight_decay": 0.0, "maximize": True}, ADAM | {"maximize": True}, 2, True),
    ("rmsprop_step", torch.optim.RMSprop, {}, RMS, 1, False),
    (
        "rmsprop_step",
        torch.optim.RMSprop,
        {"centered": True, "momentum": 0.9},
        RMS | {"centered": True, "momentum": 0.9},
        3,
        False,
    ),
    ("adagrad_step", torch.optim.Adagrad, {"lr_decay": 0.1}, {"lr_decay": 0.1, "eps": 1e-10, **COMMON}, 1, True),
]


@pytest.mark.parametrize("dtype", [float64, float32], ids=lambda d: d.name)
@pytest.mark.parametrize("on_torch", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{'-'.join(c[2])}")
def test_equals_torch_optim(case: Case, dtype: DType, on_torch: bool) -> None:
    name, optimizer, arguments, attrs, states, counts = case
    op, rng, lr = OPS[name], np.random.default_rng(0), 0.05
    shapes = [(3, 4), (5,), ()]
    start = [np.asarray(rng.normal(size=s), dtype.numpy) for s in shapes]
    ours, theirs = [p.copy() for p in start], [torch.from_numpy(p.copy()).requires_grad_() for p in start]
    kept = [np.zeros(s, dtype.numpy) for _ in range(states) for s in shapes]
    reference = optimizer(theirs, lr=lr, foreach=True, **arguments)
    for step in range(1, 6):
        grads = [np.asarray(rng.normal(size=s), dtype.numpy) for s in shapes]
        for p, g in zip(theirs, grads, strict=True):
            p.grad = torch.from_numpy(g.copy())
        reference.step()
        scalars = [np.array(lr)] + [np.array(float(step))] * counts
        arrays = [*ours, *grads, *kept, *scalars]
        types = tuple(
            TensorType(a.shape, float64 if i >= len(arrays) - len(scalars) else dtype) for i, a in enumerate(arrays)
        )
        own = {"num": 3} | attrs | ({"first": step == 1} if name == "sgd_step" else {})
        outs = op.infer_types(types, tuple(own.items()))
        if on_torch:
            tensors = [torch_side.tensor(a, t.dtype) for a, t in zip(arrays, types, strict=True)]
            made = [torch_side.array(t) for t in torch_side.run(op, tensors, own, outs, overwrites=True)]
        else:
            made = list(evaluate_node(op, arrays, own, outs))
        ours, kept = made[:3], made[3:]
        for a, b in zip(ours, theirs, strict=True):
            tolerance = 1e-13 if dtype is float64 else 2e-6
            np.testing.assert_allclose(a, b.detach().numpy(), rtol=tolerance, atol=tolerance)


def test_lion_follows_its_paper() -> None:
    """Source: Chen et al. 2023, algorithm 2."""
    p, g, m = np.array([1.0, -2.0]), np.array([0.5, -0.1]), np.array([-1.0, 0.0])
    attrs = {"num": 1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "maximize": False}
    types = (TensorType((2,), float64),) * 3 + (TensorType((), float64),)
    new, state = evaluate_node(OPS["lion_step"], [p, g, m, np.array(0.01)], attrs, types[:2])
    np.testing.assert_allclose(new, p - 0.01 * (np.sign(0.9 * m + 0.1 * g) + 0.1 * p))
    np.testing.assert_allclose(state, 0.99 * m + 0.01 * g)
