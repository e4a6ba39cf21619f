"""Whose a gradient is: of a leaf, of a view read meanwhile, of tensors that have the same one, and what hooks make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gt

Program = Callable[[Any, Callable[..., None]], list[Any]]


def told(lib: Any, read: bool, program: Program) -> list[Any]:
    """Run a program of ``lib``; ``settle(t)`` reads a tensor midway if ``read``."""
    out = program(lib, lambda *tensors: [t.tolist() for t in tensors] and None if read else None)
    return [t.detach().tolist() if isinstance(t, gt.Tensor | torch.Tensor) else t for t in out]


def check(program: Program, read: bool) -> None:
    assert told(gt, read, program) == told(torch, read, program)


READS = pytest.mark.parametrize("read", [False, True], ids=["pending", "read"])


def two(lib: Any) -> tuple[Any, Any]:
    return lib.ones(2, requires_grad=True), lib.ones(2, requires_grad=True)


@READS
def test_two_leaves_with_one_gradient_have_a_tensor_each(read: bool) -> None:
    def program(lib: Any, settle: Any) -> list[Any]:
        a, b = two(lib)
        for _ in range(2):
            c = a + b
            settle(c)
            (c * c.detach()).sum().backward()
        first = a.grad is b.grad
        lib.nn.utils.clip_grad_value_([a, b], 3.0)
        a.grad.mul_(2)
        return [first, a.grad, b.grad]

    check(program, read)


@READS
def test_what_the_caller_a_hook_or_a_function_has_is_not_the_gradient(read: bool) -> None:
    def program(lib: Any, settle: Any) -> list[Any]:
        a, b = two(lib)
        seed, seen = lib.ones(2), []
        c = a + b
        settle(c)
        c.backward(seed)
        a.grad.mul_(3)
        leaf = lib.ones(2, requires_grad=True)
        leaf.backward(seed)
        leaf.grad.mul_(5)
        b.register_hook(seen.append)
        d = b + 1
        d.register_hook(seen.append)
        settle(d)
        d.sum().backward()
        b.grad.mul_(7)
        return [seed, a.grad, leaf.grad, b.grad, *seen]

    check(program, read)


@READS
@pytest.mark.parametrize(
    "view",
    [lambda a: a[0], lambda a: a.view(-1), lambda a: a[:], lambda a: a.t(), lambda a: (a * 1)[0], lambda a: (a * 1).view(-1), lambda a: a * 1],
    ids=["row", "flat", "all", "transposed", "row of computed", "flat computed", "computed"],
)  # fmt: skip
@pytest.mark.parametrize("before", [False, True], ids=["used after", "used before and after"])
def test_a_view_that_was_read_keeps_its_hooks_and_its_gradient(view: Any, before: bool, read: bool) -> None:
    def program(lib: Any, settle: Any) -> list[Any]:
        a = lib.arange(4.0).reshape(2, 2).clone().requires_grad_()
        v = view(a)
        w = v * 3 if before else None
        v.register_hook(lambda g: g * 2)
        v.retain_grad()
        settle(v)
        settle(v * 1)
        ((v if w is None else w) * v).sum().backward()
        return [v.grad, a.grad]

    check(program, read)


@READS
@pytest.mark.parametrize("view", [lambda a: a[0], lambda a: a.view(-1), lambda a: (a * 2)[:, 0]], ids=["row", "flat", "computed"])
def test_gradients_by_a_view_that_was_read(view: Any, read: bool) -> None:
    def program(lib: Any, settle: Any) -> list[Any]:
        a = lib.arange(4.0).reshape(2, 2).clone().requires_grad_()
        v = view(a)
        y = v * v
        settle(y)
        (first,) = lib.autograd.grad(y.sum(), v, retain_graph=True)
        settle(first)
        z = y * v
        (second,) = lib.autograd.grad(z.sum(), v, create_graph=True)
        (third,) = lib.autograd.grad(second.sum(), v, retain_graph=True)
        z.sum().backward()
        return [first, second, third, a.grad]

    check(program, read)


@READS
def test_a_view_that_changed_after_it_was_read_has_its_new_history(read: bool) -> None:
    def program(lib: Any, settle: Any) -> list[Any]:
        a = lib.ones(2, requires_grad=True)
        x = a * 2
        v = x.view(2, 1)
        settle(v)
        x.mul_(a * 3)
        settle(v)
        (v * v).sum().backward()
        return [v, a.grad]

    check(program, read)


@READS
def test_asked_gradients_pass_through_the_hooks_of_what_they_are_of(read: bool) -> None:
    def program(lib: Any, settle: Any) -> list[Any]:
        a = lib.ones(2, requires_grad=True)
        a.register_hook(lambda g: g * 2)
        b = a * 1
        b.register_hook(lambda g: g * 3)
        settle(b)
        (of_leaf,) = lib.autograd.grad((b * b).sum(), a, retain_graph=True)
        (of_computed,) = lib.autograd.grad((b * b).sum(), b, retain_graph=True)
        return [of_leaf, of_computed, a.grad]

    check(program, read)


def freed(a: Any) -> Any:
    y = a**2
    y.sum().backward()
    return y


def overwritten(a: Any) -> Any:
    y = a.exp()
    z = y + 1
    y.mul_(2)
    return z


@READS
@pytest.mark.parametrize("make", [freed, overwritten])
def test_what_leads_to_no_tensor_that_is_asked_for_may_be_gone(make: Any, read: bool) -> None:
    def program(lib: Any, settle: Any) -> list[Any]:
        a, b = two(lib)
        y = make(a)
        settle(y)
        (g,) = lib.autograd.grad((y * b).sum(), b)
        (y * b).sum().backward(inputs=[b])
        with pytest.raises(RuntimeError, match=r"second time|inplace operation"):
            lib.autograd.grad((y * b).sum(), a)
        return [g.tolist() == b.grad.tolist() == y.tolist()]

    check(program, read)


def test_zeros_for_what_was_not_used_need_a_gradient_with_create_graph() -> None:
    def program(lib: Any, settle: Any) -> list[Any]:
        a, b = two(lib)
        found = lib.autograd.grad(b.pow(2).sum(), [a, b], create_graph=True, allow_unused=True, materialize_grads=True)
        return [*found, *[g.requires_grad for g in found]]

    check(program, False)


@pytest.mark.parametrize("hook", [lambda g: g[0], lambda g: 3, lambda g: g.double(), lambda g: (g,)])
def test_what_a_hook_may_not_give(hook: Any) -> None:
    texts = []
    for lib in (gt, torch):
        y = lib.ones(3, requires_grad=True) * 1
        y.register_hook(hook)
        with pytest.raises((RuntimeError, TypeError)) as info:
            y.sum().backward()
        texts.append((info.type, str(info.value).replace("gt.", "torch.")))
    assert texts[0] == texts[1]
