"""Tensors that share memory and have gradients of their own: detached ones, leaves that are views, views of all there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gt

Told = list[Any]


def told(lib: Any, read: bool, program: Callable[..., Told]) -> Told:
    """Run a program of ``lib``; ``settle(t)`` reads a tensor midway if ``read``."""
    out = program(lib, lambda *tensors: [t.tolist() for t in tensors] if read else None)
    return [t.detach().tolist() if isinstance(t, gt.Tensor | torch.Tensor) else t for t in out]


def detach(x: Any) -> Any:
    return x.detach()


def data(x: Any) -> Any:
    return x.data


@pytest.mark.parametrize("read", [False, True], ids=["pending", "read"])
@pytest.mark.parametrize("twin", [detach, data])
@pytest.mark.parametrize("computed", [False, True], ids=["leaf", "computed"])
@pytest.mark.parametrize(
    "write",
    [
        lambda d: d.mul_(3),
        lambda d: d.mul_(3).sub_(0.5),
        lambda d: d.__setitem__(0, 5.0),
        lambda d: d.__setitem__(d > 1.5, 5.0),
        lambda d: d.fill_(4.0),
        lambda d: d[1:].add_(1),
    ],
    ids=["mul", "twice", "item", "mask", "fill", "part"],
)
def test_what_was_written_through_a_detached_tensor_passes_no_gradient(write: Any, computed: bool, twin: Any, read: bool) -> None:
    def program(lib: Any, settle: Any) -> Told:
        w = lib.tensor([1.0, 2.0], requires_grad=True)
        x = w * 2 if computed else w
        d = twin(x)
        write(d)
        settle(d)
        (x + d * d).sum().backward()
        return [w.grad, x, d, x.requires_grad, x.is_leaf, d.requires_grad]

    assert told(gt, read, program) == told(torch, read, program)


def test_a_detached_tensor_that_was_written_stays_apart_from_a_later_leaf() -> None:
    def program(lib: Any, settle: Any) -> Told:
        x = lib.ones(2)
        d = x.detach()
        d.mul_(2)
        x.requires_grad_()
        (x + d).sum().backward()
        return [x.grad]

    assert told(gt, False, program) == told(torch, False, program)


def history(lib: Any, settle: Any, twin: Any, computed: bool, then: Callable[[Any, Any, Any], Any]) -> Told:
    w = lib.tensor([1.0, 2.0], requires_grad=True)
    x = lib.tensor([3.0, 4.0])
    if computed:
        x = x * lib.ones(2, requires_grad=True)
    d = twin(x)
    d += w * w
    settle(d)
    then(lib, x, d)
    settle(d)
    flags = [x.requires_grad, x.is_leaf, d.requires_grad, d.is_leaf]
    (x + d * 3).sum().backward() if d.requires_grad or x.requires_grad else None
    return [w.grad, x, d, *flags]


def off_the_tape(lib: Any, x: Any, d: Any) -> None:
    with lib.no_grad():
        d.mul_(2)


@pytest.mark.parametrize("read", [False, True], ids=["pending", "read"])
@pytest.mark.parametrize("twin", [detach, data])
@pytest.mark.parametrize("computed", [False, True], ids=["plain", "computed"])
@pytest.mark.parametrize(
    "then",
    [
        lambda lib, x, d: None,
        lambda lib, x, d: x.mul_(2),
        lambda lib, x, d: d.mul_(2),
        lambda lib, x, d: d.zero_(),
        off_the_tape,
        lambda lib, x, d: x.zero_(),
        lambda lib, x, d: d.__setitem__(0, 7.0),
        lambda lib, x, d: d[1:].mul_(5),
    ],
    ids=["nothing", "the other", "itself", "zeros", "off the tape", "the other's zeros", "item", "part"],
)
def test_a_gradient_written_to_a_detached_tensor_is_its_own(then: Any, computed: bool, twin: Any, read: bool) -> None:
    def program(lib: Any, settle: Any) -> Told:
        return history(lib, settle, twin, computed, then)

    assert told(gt, read, program) == told(torch, read, program)


@pytest.mark.parametrize("read", [False, True], ids=["pending", "read"])
def test_parts_of_a_detached_leaf_take_values_with_a_gradient(read: bool) -> None:
    def program(lib: Any, settle: Any) -> Told:
        w = lib.tensor([1.0, 2.0], requires_grad=True)
        d = w.detach()
        d[:1] *= w[1]
        settle(d)
        d[:1].add_(w[:1])
        d.mul_(2)
        (d + w).sum().backward()
        return [d, w, w.grad, w.is_leaf]

    assert told(gt, read, program) == told(torch, read, program)


@pytest.mark.parametrize("read", [False, True], ids=["pending", "read"])
@pytest.mark.parametrize(
    "leaf",
    [lambda y: y[:2], lambda y: y.view(2, 2), lambda y: y.detach(), lambda y: y.t(), lambda y: y[1:].detach()],
    ids=["slice", "shape", "detached", "transposed", "slice detached"],
)
def test_a_leaf_that_is_a_view_stays_one(leaf: Any, read: bool) -> None:
    def program(lib: Any, settle: Any) -> Told:
        y = lib.arange(4.0)
        d = leaf(y).requires_grad_()
        (d * d).sum().backward()
        settle(d)
        y.mul_(3)
        (d * d).sum().backward()
        settle(d)
        with lib.no_grad():
            d.sub_(d.grad)
        first = d.grad.clone()
        d.grad = None
        (d**3).sum().backward()
        return [first, d.grad, d, y, d.is_leaf, d.requires_grad, y.requires_grad]

    assert told(gt, read, program) == told(torch, read, program)


def test_a_detached_leaf_of_a_computed_value_passes_nothing_on() -> None:
    def program(lib: Any, settle: Any) -> Told:
        w = lib.ones(2, requires_grad=True)
        y = w * 2
        d = y.detach().requires_grad_()
        y.add_(1)
        (d * d).sum().backward()
        return [d, d.grad, w.grad]

    assert told(gt, False, program) == told(torch, False, program)


@pytest.mark.parametrize("read", [False, True], ids=["pending", "read"])
@pytest.mark.parametrize(
    "view",
    [lambda x: x[:], lambda x: x[...], lambda x: x[:, :], lambda x: x.T.T, lambda x: x.view_as(x), lambda x: x[0].t()],
    ids=["colon", "dots", "colons", "twice transposed", "view_as", "vector"],
)
def test_a_view_of_all_elements_learns_of_gradients(view: Any, read: bool) -> None:
    def program(lib: Any, settle: Any) -> Told:
        w = lib.tensor([1.0, 2.0], requires_grad=True)
        x = lib.zeros(2, 2)
        v = view(x)
        settle(v)
        x[0] = w * 2
        settle(v)
        (v * v).sum().backward()
        leaf = view(lib.ones(2, 2, requires_grad=True))
        return [v, w.grad, v.is_leaf, leaf.is_leaf]

    assert told(gt, read, program) == told(torch, read, program)


@pytest.mark.parametrize("read", [False, True], ids=["pending", "read"])
def test_a_view_of_a_leaf_that_was_given_data_passes_gradients_to_it(read: bool) -> None:
    def program(lib: Any, settle: Any) -> Told:
        p = lib.arange(4.0).requires_grad_()
        v = p[:2]
        settle(v)
        p.data = lib.ones(4)
        settle(v)
        (v * 3).sum().backward()
        return [v, p, p.grad, v.requires_grad, v.is_leaf]

    assert told(gt, read, program) == told(torch, read, program)


@pytest.mark.parametrize("lib", [gt, torch])
@pytest.mark.parametrize("through", [False, True])
def test_views_taken_without_gradients_pass_none_once_read(lib: Any, through: bool) -> None:
    p = lib.arange(4.0).requires_grad_()
    q = p.view(2, 2) if through else p.view(4)
    with lib.no_grad():
        v = q[0] if through else q[:2]
    v.tolist()
    (q[:2] * v).sum().backward()
    assert p.grad.tolist() == ([0, 1, 0, 1] if through else [0, 1, 0, 0])


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_views_are_not_detached_in_place(m):
    x = m.ones(3, requires_grad=True)
    for view in (x[:1], (x * 2)[:1], m.ones(3)[:1]):
        with pytest.raises(RuntimeError, match="Can't detach views in-place. Use detach\\(\\) instead."):
            view.detach_()
    assert x.detach().detach_().tolist() == [1.0, 1.0, 1.0]
