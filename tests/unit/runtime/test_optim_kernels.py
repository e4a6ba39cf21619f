"""Optimizer kernels as a compiler sees them: the learning rate and the number of steps are tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gt.runtime import optim_kernels as kernels


def arguments() -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [[torch.rand(5, 3, generator=generator) + 0.1] for _ in range(4)]


@pytest.mark.parametrize("step", [1, 2, 1000])
def test_adamw_with_tensors_for_numbers_is_adamw_with_numbers(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attrs: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "amsgrad": False, "maximize": False}
    p, g, m, v = arguments()
    wanted = kernels.adamw_step_(p, g, [m, v], 1e-2, step, **attrs)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # else a number is taken from the tensor
    p, g, m, v = arguments()
    got = kernels.adamw_step_(p, g, [m, v], torch.tensor(1e-2, dtype=torch.float64), torch.tensor(step), **attrs)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=3e-7, atol=0)  # powers in float32 are off by 6e-6 after one step


def test_what_depends_on_numbers_alone_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each element: a compiler writes down what is read with strides of its own."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    traced = torch.fx.experimental.proxy_tensor.make_fx(
        lambda p, g, m, v, lr, step: kernels.adamw_step_(
            [p], [g], [[m], [v]], lr, step, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, amsgrad=False, maximize=False
        ),
        tracing_mode="fake",
    )(*(t for (t,) in arguments()), torch.tensor(1e-2, dtype=torch.float64), torch.tensor(3))
    of_numbers = {n for n in traced.graph.nodes if n.op == "call_function" and getattr(n.meta.get("val"), "ndim", None) == 0}
    read = {n for n in of_numbers for user in n.users if user not in of_numbers and user.op == "call_function"}
    assert len(read) == 3, "how much parameters shrink, the size of the step, the correction of the squares"
    assert all(n.target is torch.ops.aten.as_strided.default for n in read)
