"""Changes in place that a backward must not meet: raised where torch raises, and torch's gradients where it does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt

SQUARE = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 10.0]]
LIBS = {"gt": gt, "torch": torch}
USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "itself": lambda lib, w, x: x * w,
    "T": lambda lib, w, x: x @ w.T,
    "t": lambda lib, w, x: x @ w.t(),
    "mT": lambda lib, w, x: x @ w.mT,
    "view": lambda lib, w, x: x.view(-1) * w.view(-1),
    "reshape": lambda lib, w, x: x.reshape(9) * w.reshape(9),
    "index": lambda lib, w, x: x[0] * w[1],
    "whole": lambda lib, w, x: x * w[...],
    "rows": lambda lib, w, x: x[:2] @ w[:, 1:],
    "expand": lambda lib, w, x: x.expand(2, 3, 3) * w.expand(2, 3, 3),
    "permute": lambda lib, w, x: x * w.permute(1, 0),
    "transpose": lambda lib, w, x: x * w.transpose(0, 1),
    "unsqueeze": lambda lib, w, x: x * w.unsqueeze(0).squeeze(0),
    "narrow": lambda lib, w, x: x[1:] * w.narrow(0, 1, 2),
    "chunk": lambda lib, w, x: x[:2] * w.chunk(2)[0],
    "split": lambda lib, w, x: x[:1] * w.split(1)[2],
    "unbind": lambda lib, w, x: x[0] * w.unbind()[2],
    "diagonal": lambda lib, w, x: x[0] * w.diagonal(),
    "as_strided": lambda lib, w, x: x[:2, :2] * w.as_strided((2, 2), (3, 1)),
    "einsum": lambda lib, w, x: lib.einsum("ij,kj->ik", x, w),
    "tensordot": lambda lib, w, x: lib.tensordot(x, w, ([0], [1])),
    "linear": lambda lib, w, x: lib.nn.functional.linear(x, w, w[0]),
    "twice": lambda lib, w, x: x[0] * w.t()[1:].t()[:, 0],
    "matrix and vector": lambda lib, w, x: w @ x[0],
    "detached": lambda lib, w, x: w * w.detach(),
    "a copy": lambda lib, w, x: x * w.clone(),
    "a reshape that copies": lambda lib, w, x: x.view(-1) * w.t().reshape(-1),
    "another dtype": lambda lib, w, x: x.double() * w,
    "cast first": lambda lib, w, x: x.double() * w.double(),
    "nothing of it": lambda lib, w, x: x + w.t(),
}  # fmt: skip
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "itself": lambda lib, w: w.add_(1),
    "a row": lambda lib, w: w.__setitem__(0, 1.0),
    "all of it": lambda lib, w: w.__setitem__(slice(None), lib.ones(3, 3)),
    "copy_": lambda lib, w: w.copy_(lib.ones(3, 3)),
    "a view": lambda lib, w: w.t()[1:].mul_(2),
    "flattened": lambda lib, w: w.view(-1)[4].fill_(3),
    "detached": lambda lib, w: w.detach().mul_(2),
    "a step": lambda lib, w: lib.optim.SGD([w], 0.1).step() if w.is_leaf else w.sub_(0.1),
}  # fmt: skip


def gradient(lib: Any, use: Callable[..., Any], change: Callable[..., Any], leaf: bool, read: bool) -> Any:
    """Give the gradient, or that there is none."""
    w, x = lib.tensor(SQUARE, requires_grad=True), lib.tensor(SQUARE) * 2
    used = w if leaf else w * 1
    y = use(lib, used, x.requires_grad_())
    if read:
        y.detach().sum().item()
    w.grad = lib.ones(3, 3) if leaf else None
    with lib.no_grad():
        change(lib, used)
    w.grad = None
    try:
        y.sum().backward()
    except RuntimeError as error:
        assert re.search("modified (by an inplace operation|inplace)", str(error))  # torch says the latter of one of several views
        return "raises"
    return w.grad.tolist()


@pytest.mark.parametrize("use", USES)
def test_views_change_with_their_base(use: str) -> None:
    for leaf in (True, False):
        for name, change in CHANGES.items():
            want = gradient(torch, USES[use], change, leaf, False)
            for read in (False, True):
                assert gradient(gt, USES[use], change, leaf, read) == want, (name, leaf, read)


@pytest.mark.parametrize("read", [False, True])
def test_a_base_and_its_other_views_change_with_a_view(read: bool) -> None:
    def run(lib: Any, write: str, use: str) -> str:
        base = lib.tensor(SQUARE, requires_grad=True) * 1
        views = {"base": base, "row": base[0], "other row": base[2], "part of the row": base[0][1:], "turned": base.t(), "a copy": base.clone()}
        y = (views[use] * views[use].detach()).sum()
        if read:
            y.item()
        with lib.no_grad():
            views[write].mul_(2)
        try:
            y.backward()
        except RuntimeError:
            return "raises"
        return "fine"

    names = ("base", "row", "other row", "part of the row", "turned", "a copy")
    for write in names:
        for use in names:
            assert run(gt, write, use) == run(torch, write, use) == ("raises" if (write == "a copy") == (use == "a copy") else "fine")


KEPT: dict[str, Callable[[Any, Any], Any]] = {  # what torch keeps of an operand, and what it does not
    "cross_entropy": lambda lib, x: lib.nn.functional.cross_entropy(x, lib.tensor([0, 2, 1])),
    "cross_entropy of probabilities": lambda lib, x: lib.nn.functional.cross_entropy(x, lib.eye(3)),
    "mse_loss": lambda lib, x: lib.nn.functional.mse_loss(x, lib.zeros(3, 3)),
    "log_softmax": lambda lib, x: lib.nn.functional.log_softmax(x, -1),
    "softmax": lambda lib, x: x.softmax(0),
    "exp": lambda lib, x: x.exp(),
    "sin": lambda lib, x: x.sin(),
    "sqrt": lambda lib, x: x.sqrt(),
    "pow(0.5)": lambda lib, x: x**0.5,
    "pow(2)": lambda lib, x: x**2,
    "pow(x)": lambda lib, x: x**x,
    "2 ** x": lambda lib, x: 2**x,
    "1 / x": lambda lib, x: 1 / x,
    "x / 2": lambda lib, x: x / 2,
    "x / x": lambda lib, x: x / x.detach().clone(),
    "relu": lambda lib, x: x.relu(),
    "gelu": lambda lib, x: lib.nn.functional.gelu(x),
    "layer_norm": lambda lib, x: lib.nn.functional.layer_norm(x, (3,)),
    "batch_norm": lambda lib, x: lib.nn.functional.batch_norm(x, None, None, training=True),
    "max": lambda lib, x: x.max(1).values,
    "amax": lambda lib, x: x.amax(1),
    "std": lambda lib, x: x.std(),
    "var": lambda lib, x: x.var(),
    "prod": lambda lib, x: x.prod(),
    "sum": lambda lib, x: x.sum(0),
    "norm": lambda lib, x: x.norm(),
    "cumsum": lambda lib, x: x.cumsum(0),
    "sort": lambda lib, x: x.sort().values,
    "gather": lambda lib, x: x.gather(0, lib.tensor([[0, 1, 2]])),
    "index": lambda lib, x: x[lib.tensor([0, 2])],
    "mask": lambda lib, x: x[lib.tensor([True, False, True])],
    "where": lambda lib, x: lib.where(lib.eye(3) > 0, x, 2 * x),
    "cat": lambda lib, x: lib.cat([x, x]),
    "inverse": lambda lib, x: lib.linalg.inv(x),
    "cholesky": lambda lib, x: lib.linalg.cholesky(x @ x.mT),
    "pad": lambda lib, x: lib.nn.functional.pad(x[None], (1, 1), mode="reflect"),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_torch_does_not_keep_may_change(name: str) -> None:
    def run(lib: Any, target: str, read: bool) -> Any:
        w = lib.tensor(SQUARE, requires_grad=True)
        x = w * 1
        y = KEPT[name](lib, x)
        if read:
            y.detach().sum().item()
        with lib.no_grad():
            (x if target == "x" else y).mul_(1.5)
        try:
            (y * lib.tensor(np.linspace(1, 2, y.numel()).reshape(tuple(y.shape)).tolist())).sum().backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            return None
        return np.array(w.grad.tolist())

    for target in ("x", "y"):
        want = run(torch, target, False)
        for read in (False, True):
            got = run(gt, target, read)
            assert (got is None) is (want is None), (target, read, "raises" if want is None else "does not raise")
            if want is not None:
                np.testing.assert_allclose(got, want, 1e-4, 1e-5)


@pytest.mark.parametrize("read", [False, True])
def test_running_statistics_move_on_without_being_a_change(read: bool) -> None:
    for lib in LIBS.values():
        norm = lib.nn.BatchNorm1d(3)
        first = norm(lib.tensor(SQUARE, requires_grad=True)).square().sum()
        if read:
            first.item()
        (first + norm(lib.tensor(SQUARE) * 2).square().sum()).backward()
        evaluated = norm.eval()(lib.tensor(SQUARE, requires_grad=True)).sum()
        norm.train()(lib.tensor(SQUARE))
        evaluated.backward(retain_graph=True)
        norm.eval()
        evaluated = norm(lib.tensor(SQUARE, requires_grad=True)).sum()
        norm.running_mean.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            evaluated.backward()


def test_what_two_tensors_share_for_a_while_changes_apart() -> None:
    for lib in LIBS.values():
        w, row = lib.tensor([2.0, 3.0], requires_grad=True), lib.ones(2)
        held, rows = lib.zeros(2), lib.zeros(3, 2)
        held.copy_(row)
        rows[0] = row
        rows[:] = rows.clone()
        y = (w * row).sum()
        held.add_(1)
        rows[0] = held
        rows.mul_(0)
        y.backward()
        assert w.grad.tolist() == [1.0, 1.0] and row.tolist() == [1.0, 1.0] and held.tolist() == [2.0, 2.0]


def test_a_loop_that_writes_what_it_reads_from() -> None:
    for lib in LIBS.values():
        w, out = lib.tensor([2.0], requires_grad=True), lib.zeros(3, 1)
        out[0] = w
        out[1] = out[0] * w
        out[2] = out[1] + w
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_a_second_step_on_the_same_graph() -> None:
    for lib in LIBS.values():
        layer = lib.nn.Sequential(lib.nn.Linear(3, 3), lib.nn.Linear(3, 1))
        step = lib.optim.SGD(layer.parameters(), 0.1)
        loss = layer(lib.tensor(SQUARE)).sum()
        loss.backward(retain_graph=True)
        step.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
