"""``autograd.Function``: what it saves, what its backward gets and may give, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt


def function(lib: Any, forward: Callable[..., Any], backward: Callable[..., Any], **more: Any) -> Any:
    return type("Mine", (lib.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward), **more})


def save_input(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    return x.clone()


def times_input(ctx: Any, g: Any) -> Any:
    return g * ctx.saved_tensors[0]


def exp(ctx: Any, x: Any) -> Any:
    y = x.exp()
    ctx.save_for_backward(y)
    return y


def both(run: Callable[[Any], Any]) -> list[Any]:
    """Give what ``run`` gives, or its error's type and start, for gt and for torch."""
    found: list[Any] = []
    for lib in (gt, torch):
        try:
            found.append(run(lib))
        except RuntimeError as error:
            found.append((RuntimeError, str(error)[:60]))
    return found


def change(lib: Any, x: Any, z: Any) -> None:
    with lib.no_grad():
        x.mul_(10)


@pytest.mark.parametrize(
    "overwrite", [change, lambda lib, x, z: x.detach()[0].fill_(3), lambda lib, x, z: lib.optim.SGD([x], lr=0.1).step()],
    ids=["in place", "a view", "an optimizer"],
)  # fmt: skip
def test_a_saved_tensor_that_is_overwritten_is_an_error(overwrite):
    def run(lib):
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        x.grad = lib.ones(2)
        z = function(lib, save_input, times_input).apply(x)
        overwrite(lib, x, z)
        z.sum().backward()
        return x.grad.tolist()

    ours, theirs = both(run)
    assert ours == theirs and "one of the variables needed for gradient" in str(ours)


def test_what_is_not_saved_may_be_overwritten_and_a_saved_output_not():
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    z = function(gt, save_input, times_input).apply(x)
    z.mul_(3).sum().backward()
    assert x.grad.tolist() == [3.0, 6.0]
    y = function(gt, exp, times_input).apply(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def several(ctx: Any, x: Any, k: int) -> Any:
    best = x.argmax()
    ctx.mark_non_differentiable(best)
    return x * k, best, "text", None, x.long()


RETURNED: dict[str, Callable[[Any], Any]] = {
    "right": lambda lib: (lib.ones(3), None),
    "more Nones": lambda lib: (lib.ones(3), None, None),
    "too few": lambda lib: lib.ones(3),
    "too many": lambda lib: (lib.ones(3), None, 1),
    "wrong shape": lambda lib: (lib.ones(2), None),
    "less than the shape": lambda lib: (lib.ones(1), None),
    "more than the shape": lambda lib: (lib.ones(2, 3), None),
    "other dtype": lambda lib: (lib.ones(3, dtype=lib.float64), None),
    "a number": lambda lib: (1.0, None),
    "for a number": lambda lib: (lib.ones(3), lib.ones(1)),
    "none": lambda lib: (None, None),
}


@pytest.mark.parametrize("returned", RETURNED.values(), ids=RETURNED)
def test_a_backward_gets_one_argument_for_each_output_and_its_gradients_are_checked(returned):
    def run(lib):
        got = []

        def backward(ctx, *grads):
            got.extend(g if g is None else (str(g.dtype).split(".")[-1], g.tolist()) for g in grads)
            return returned(lib)

        x = lib.ones(3, requires_grad=True)
        out = function(lib, several, backward).apply(x, 2)
        assert [isinstance(o, lib.Tensor) and o.requires_grad for o in out] == [True, False, False, False, False]
        out[0].sum().backward()
        return got, x.grad.dtype is lib.float32 if x.grad is not None else None, x.grad.tolist() if x.grad is not None else None

    ours, theirs = both(run)
    assert ours == theirs


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("how", ["saved", "attribute", "a view of what it made"])
def test_a_saved_output_has_its_history_when_differentiated_twice(how, dropped, read):
    def forward(ctx, x):
        y = x.reshape(-1).exp() if how != "a view of what it made" else x.exp().reshape(-1)
        if how == "attribute":
            ctx.y = y
        else:
            ctx.save_for_backward(y)
        return y

    def backward(ctx, g):
        return (g * (ctx.y if how == "attribute" else ctx.saved_tensors[0])).reshape(3, 1)

    found = []
    for lib in (gt, torch):
        x = lib.tensor([[0.5], [0.2], [1.0]], requires_grad=True)
        y = function(lib, forward, backward).apply(x)
        loss = (y * y).sum()
        if read:
            loss.item()
        if dropped:
            del y
        (g,) = lib.autograd.grad(loss, x, create_graph=True)
        if read:
            g.sum().item()
        found.append([g.tolist(), lib.autograd.grad(g.sum(), x)[0].tolist()])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_gradgradcheck_of_a_function_that_saves_its_output():
    x = gt.tensor([0.5, 0.2], dtype=gt.float64, requires_grad=True)
    mine = function(gt, exp, times_input)
    assert gt.autograd.gradcheck(mine.apply, (x,)) and gt.autograd.gradgradcheck(mine.apply, (x,))


def test_a_second_backward_needs_what_was_saved():
    def run(lib, forward, backward, retain):
        x = lib.ones(3, requires_grad=True)
        y = function(lib, forward, backward).apply(x).sum()
        y.backward(retain_graph=retain)
        y.backward()
        return x.grad.tolist()

    for forward, backward, retain in (
        (save_input, times_input, False), (save_input, times_input, True), (lambda ctx, x: x.round(), lambda ctx, g: g, False),
    ):  # fmt: skip
        ours, theirs = both(lambda lib, f=forward, b=backward, r=retain: run(lib, f, b, r))
        assert ours == theirs


@pytest.mark.parametrize("part", [False, True])
def test_an_input_changed_in_place(part):
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.exp_()
        ctx.save_for_backward(x)
        return x

    def run(lib):
        x = lib.tensor([0.5, 0.25, 1.0], requires_grad=True)
        y = x * 2
        z = function(lib, forward, times_input).apply(y[1:] if part else y)
        (y * y).sum().backward()
        return x.grad.tolist(), y.tolist(), z.tolist()

    ours, theirs = both(run)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    leaf = gt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad has been used in an in-place"):
        function(gt, forward, times_input).apply(leaf)


def test_an_input_given_back_without_gradients_is_another_tensor_on_its_memory():
    for lib in (gt, torch):
        same = function(lib, lambda ctx, x: x, lambda ctx, g: -g)
        x = lib.ones(2)
        same.apply(x).add_(1)
        assert x.tolist() == [2.0, 2.0]
        leaf = lib.ones(2, requires_grad=True)
        with lib.no_grad():
            assert not same.apply(leaf).requires_grad
        y = same.apply(leaf)
        y.sum().backward()
        assert y is not leaf and leaf.grad.tolist() == [-1.0, -1.0]


def test_names_and_defaults_of_arguments():
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]
        ctx.save_for_backward(output)

    for lib in (gt, torch):
        mine = function(
            lib, lambda x, k=3: x * k, lambda ctx, g: (g * ctx.k * ctx.saved_tensors[0], None), setup_context=staticmethod(setup_context)
        )
        x = lib.ones(2, requires_grad=True)
        mine.apply(x).sum().backward()
        mine.apply(x, k=2).sum().backward()
        assert x.grad.tolist() == [13.0, 13.0]


def test_grad_takes_torchs_arguments_in_torchs_order():
    for lib in (gt, torch):
        x, unused = lib.ones(2, requires_grad=True), lib.ones(1, requires_grad=True)
        d = x**2
        (g,) = lib.autograd.grad(
            outputs=d, inputs=x, grad_outputs=lib.ones(2), create_graph=True, retain_graph=True, only_inputs=True
        )
        assert g.tolist() == [2.0, 2.0]
        found = lib.autograd.grad(d.sum(), [x, unused], None, True, False, True, True)
        assert found[0].tolist() == [2.0, 2.0] and found[1] is None
        with pytest.warns(FutureWarning, match="only_inputs"):
            lib.autograd.grad(d.sum(), x, only_inputs=False)


def test_a_backward_by_its_other_name() -> None:
    def run(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        mine = type("Mine", (lib.autograd.Function,), {"forward": staticmethod(save_input), "vjp": staticmethod(times_input)})
        mine.apply(x).sum().backward()
        assert lib.autograd.Function.vjp is lib.autograd.Function.backward
        with pytest.raises(RuntimeError, match="Implementing both 'backward' and 'vjp' for a custom Function is not allowed"):
            function(lib, save_input, times_input, vjp=staticmethod(times_input)).apply(x).sum().backward()
        return x.grad.tolist()

    assert both(run) == [[1.0, 2.0]] * 2
