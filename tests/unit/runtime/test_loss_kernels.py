"""Cross entropy with its gradient equals torch's: in parts, and as the kernel of a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gt.runtime import kernels, loss_kernels
from gt.runtime.compile_process import _compiling

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def case(rows: int, classes: int, dtype: torch.dtype, device: str) -> Case:
    torch.manual_seed(0)
    x = (torch.randn(rows, classes) * 3).to(dtype)
    target = torch.randint(0, classes, (rows,))
    target[1::4] = -100
    x[2, target[2] :] = -float("inf")
    x[2, target[2]] = 1.0
    return x.to(device), target.to(device), torch.tensor(0.37, device=device)


def torchs(x: torch.Tensor, target: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.float().requires_grad_()
    loss = torch.nn.functional.cross_entropy(y, target, reduction="sum")
    loss.backward(g)
    assert y.grad is not None
    return loss.detach(), y.grad.to(x.dtype)


def agree(function: Callable[..., tuple[torch.Tensor, torch.Tensor]], x: torch.Tensor, target: torch.Tensor, g: torch.Tensor) -> None:
    (loss, grad), (want_loss, want_grad) = function(x, target, g, -100), torchs(x, target, g)
    torch.testing.assert_close(loss, want_loss, rtol=1e-5, atol=1e-5)
    assert grad.dtype is x.dtype
    torch.testing.assert_close(grad, want_grad, rtol=2 * torch.finfo(x.dtype).eps, atol=1e-6)
    assert not grad[target == -100].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_parts_of_rows(dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_kernels, "AT_ONCE", 5 * 103)
    agree(kernels.cross_entropy_grad, *case(37, 103, dtype, device))


@pytest.mark.parametrize("bad", [7, -1])
def test_a_class_that_is_none_is_refused(bad: int) -> None:
    x, target, g = case(5, 7, torch.bfloat16, "cpu")
    target[0] = bad
    with pytest.raises(IndexError, match=f"Target {bad} is out of bounds"):
        kernels.cross_entropy_grad(x, target, g, -100)
    with _compiling(), pytest.raises(IndexError):
        loss_kernels._checked(target, 7, -100)


def test_parts_are_not_there_twice() -> None:
    x, target, g = case(8, loss_kernels.AT_ONCE // 2, torch.bfloat16, "cpu")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        kernels.cross_entropy_grad(x, target, g, -100)
    held = peak = 0
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert peak <= x.nbytes + 9 * loss_kernels.AT_ONCE


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "classes"), [(37, 103), (64, 4096), (130, 50257)])
def test_as_one_kernel(rows: int, classes: int, dtype: torch.dtype) -> None:
    with _compiling():
        agree(kernels.cross_entropy_grad, *case(rows, classes, dtype, "cuda"))
