"""Hooks and gradients of tensors that change in place: whose gradient is seen, how often, and in what mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt

Write = Callable[[Any, Any], Any]


def with_no_grad(m: Any, y: Any) -> None:
    with m.no_grad():
        y.mul_(3)


WRITES: dict[str, Write] = {
    "computed": lambda m, y: y.mul_(3),
    "off the tape": with_no_grad,
    "detached": lambda m, y: y.detach().mul_(3),
    "data": lambda m, y: y.data.mul_(3),
    "other data": lambda m, y: setattr(y, "data", m.full((2,), 7.0)),
    "read": lambda m, y: y.tolist(),
}


def leaf(m: Any) -> Any:
    return m.tensor([1.0, 2.0], requires_grad=True)


@pytest.mark.parametrize("read", [False, True], ids=["pending", "read"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_hook_sees_the_gradient_of_what_the_tensor_was_when_it_was_registered(write: Write, read: bool) -> None:
    def outcome(m: Any) -> Any:
        x, seen = leaf(m), []
        y = x * 2
        y.register_hook(lambda g: seen.append(g.tolist()) or g * 10)
        write(m, y)
        if read:
            y.tolist()
        y.register_hook(lambda g: seen.append(g.tolist()) or g + 1)
        (y * m.tensor([5.0, 6.0])).sum().backward()
        return seen, x.grad.tolist()

    assert outcome(gt) == outcome(torch)


@pytest.mark.parametrize("first", [True, False])
def test_removing_a_hook_leaves_those_of_the_values_before_and_after(first: bool) -> None:
    def outcome(m: Any) -> Any:
        x = leaf(m)
        y = x * 2
        handles = [y.register_hook(lambda g: g * 10)]
        y.mul_(3)
        handles.append(y.register_hook(lambda g: g * 100))
        handles[not first].remove()
        y.sum().backward()
        return x.grad.tolist()

    assert outcome(gt) == outcome(torch)


@pytest.mark.parametrize("late", [False, True], ids=["asked before", "asked after"])
@pytest.mark.parametrize("write", [w for n, w in WRITES.items() if n != "computed"], ids=[n for n in WRITES if n != "computed"])
@pytest.mark.parametrize("way", ["grad", "retain", "hook"])
def test_a_write_off_the_tape_leaves_one_gradient_to_uses_before_and_after(way: str, write: Write, late: bool) -> None:
    def outcome(m: Any) -> Any:
        found = []
        x, w = leaf(m), m.tensor([5.0, 6.0])
        y = x * 2

        def ask() -> None:
            if way == "retain":
                y.retain_grad()
            elif way == "hook":
                y.register_hook(lambda g: found.append(g.tolist()))

        if not late:
            ask()
        z = y + 4
        write(m, y)
        if late:
            ask()
        loss = (z * z.detach()).sum() + (y * w).sum()
        if way == "grad":
            return [g.tolist() for g in m.autograd.grad(loss, [y, x])]
        loss.backward()
        return found, x.grad.tolist(), y.grad.tolist() if way == "retain" else None

    assert outcome(gt) == outcome(torch)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("used", ["view", "base", "both"])
def test_a_view_that_is_written_has_the_gradient_of_its_new_values_alone(used: str) -> None:
    def outcome(m: Any) -> Any:
        x = m.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = x * 2
        view = y[:2]
        view.retain_grad()
        view.mul_(3)
        of_view, of_base = (view * m.tensor([5.0, 6.0])).sum(), (y * m.tensor([7.0, 8.0, 9.0])).sum()
        {"view": of_view, "base": of_base, "both": of_view + of_base}[used].backward()
        return None if view.grad is None else view.grad.tolist(), x.grad.tolist()

    assert outcome(gt) == outcome(torch)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("create_graph", [False, True])
def test_hooks_run_in_the_mode_of_the_backward(create_graph: bool) -> None:
    def outcome(m: Any) -> Any:
        x, w, seen = leaf(m), leaf(m), []
        look = lambda g: seen.append((m.is_grad_enabled(), (g * w).requires_grad))  # noqa: E731
        y = x * x
        y.register_hook(look)
        x.register_hook(look)
        x.register_post_accumulate_grad_hook(lambda p: look(p.grad))
        loss = (y * y).sum()
        with m.no_grad():
            loss.backward(create_graph=create_graph)
        return seen, m.is_grad_enabled(), x.grad.requires_grad

    assert outcome(gt) == outcome(torch)


def test_a_hook_after_accumulation_may_update_its_leaf() -> None:
    def outcome(m: Any) -> Any:
        x = leaf(m)
        x.register_post_accumulate_grad_hook(lambda p: (p.sub_(p.grad * 0.25), None)[1])
        (x * x).sum().backward()
        return x.tolist()

    assert outcome(gt) == outcome(torch) == [0.5, 1.0]


def test_a_graph_is_made_of_a_backward_called_off_the_tape() -> None:
    def outcome(m: Any) -> Any:
        x = leaf(m)
        loss = (x**3).sum()
        with m.no_grad():
            (g,) = m.autograd.grad(loss, x, create_graph=True)
        return g.tolist(), m.autograd.grad(g.sum(), x)[0].tolist()

    assert outcome(gt) == outcome(torch) == ([3.0, 12.0], [6.0, 12.0])


def test_inputs_of_a_backward() -> None:
    def outcome(m: Any) -> Any:
        x, w = leaf(m), leaf(m)
        (x * w).sum().backward(inputs=x)
        with pytest.raises(RuntimeError, match="`inputs` argument to `backward\\(\\)` cannot be empty"):
            (x * w).sum().backward(inputs=[])
        return x.grad.tolist(), w.grad

    assert outcome(gt) == outcome(torch) == ([1.0, 2.0], None)


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_a_handle_removes_its_hook_at_the_end_of_a_block(m: Any) -> None:
    x, net, seen = leaf(m), m.nn.Identity(), []
    y = net(x * 2)
    optimizer = m.optim.SGD([x], lr=1.0)
    handles = [
        y.register_hook(seen.append), x.register_hook(seen.append), net.register_forward_hook(lambda *_: seen.append(0)),
        x.register_post_accumulate_grad_hook(seen.append), optimizer.register_step_pre_hook(lambda *_: seen.append(0)),
    ]  # fmt: skip
    for handle in handles:
        assert isinstance(handle, m.utils.hooks.RemovableHandle)
        with handle:
            pass
    assert len({handle.id for handle in handles}) == len(handles)
    y.sum().backward()
    optimizer.step()
    net(x)
    assert not seen


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_a_modules_hook_is_not_called_where_no_output_is_seen(m: Any) -> None:
    class Named(m.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"y": x * 2}

    net, x, seen = Named(), leaf(m), []
    net.register_full_backward_hook(lambda *given: seen.append(given))
    net(x)["y"].sum().backward()
    assert not seen and x.grad.tolist() == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore:Error detected")
@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_anomaly_mode_as_a_switch(m: Any) -> None:
    def backward() -> Any:
        x = m.zeros(1, requires_grad=True)
        (x.sqrt() * 0).sum().backward()
        return x.grad

    m.autograd.set_detect_anomaly(True)
    try:
        assert m.is_anomaly_enabled()
        with pytest.raises(RuntimeError, match="nan"):
            backward()
        with m.autograd.set_detect_anomaly(mode=True, check_nan=False):
            assert m.is_anomaly_enabled() and backward().isnan().all()
        with m.autograd.set_detect_anomaly(False):
            assert not m.is_anomaly_enabled() and backward().isnan().all()
    finally:
        m.autograd.set_detect_anomaly(False)
    assert backward().isnan().all()


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_what_a_gradient_and_data_may_be(m: Any) -> None:
    x = leaf(m)
    x.grad = m.ones(2)
    del x.grad
    assert x.grad is None
    with pytest.raises(RuntimeError, match=r"gradient of size '\[3\]' to a tensor of size '\[2\]'"):
        x.grad = m.ones(3)
    with pytest.raises(RuntimeError, match="attempting to assign a gradient with dtype"):
        x.grad = m.ones(2, dtype=m.float64)
    with pytest.raises(RuntimeError, match="data set to a tensor that requires gradients must be floating point or complex dtype"):
        x.data = m.ones(2, dtype=m.int64)
    assert x.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("module", [torch, gt], ids=["torch", "gt"])
def test_a_tensor_changed_through_a_view_has_the_gradients_of_its_uses_and_its_views(module: Any) -> None:
    weights = module.tensor([1.0, 2.0, 3.0, 4.0])

    def changed() -> tuple[Any, Any, Any]:
        base = module.ones(4, requires_grad=True) * 1
        before, view = base[1:], base[:2]
        view.mul_(2)
        return base, before, view

    base, before, _ = changed()
    (got,) = module.autograd.grad((base * weights).sum() + (before * 10).sum(), base)
    assert got.tolist() == [1.0, 12.0, 13.0, 14.0]
    base, _, view = changed()
    seen: list[list[float]] = []
    view.register_hook(lambda g: seen.append(g.tolist()))
    by_view, by_base = module.autograd.grad((base * weights).sum() + (view * 10).sum(), [view, base])
    assert by_view.tolist() == [10.0, 10.0] and by_base.tolist() == [11.0, 12.0, 3.0, 4.0] and seen == [[10.0, 10.0]]


HOOKED = {
    "row": lambda m, y: y[0], "transposed": lambda m, y: y.t(), "of a view": lambda m, y: y.view(4)[1:], "complex": lambda m, y: m.view_as_complex(y),
    "conjugate": lambda m, y: m.view_as_complex(y).conj(),
}  # fmt: skip
WRITTEN = {
    "in place": lambda m, w, y: w.mul_(2), "a part": lambda m, w, y: w[:1].mul_(2), "an item": lambda m, w, y: w.__setitem__(0, 5),
    "indices": lambda m, w, y: w.__setitem__(m.tensor([0]), 5), "mask": lambda m, w, y: w.__setitem__(w.abs() > 4, 5),
    "values": lambda m, w, y: w.copy_(m.ones_like(w)), "the base": lambda m, w, y: y.mul_(2), "beside": lambda m, w, y: y.view(4)[1:3].mul_(3),
    "without gradients": lambda m, w, y: m.no_grad()(lambda: w.mul_(2))(), "another hook": lambda m, w, y: w.mul_(2).register_hook(lambda g: g * 3),
    "activation": lambda m, w, y: m.nn.functional.leaky_relu(w.real, 0.1, True),
}  # fmt: skip


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("write", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("view", HOOKED.values(), ids=HOOKED)
def test_a_hook_of_a_view_gets_no_gradient_of_what_is_written_through_it(view: Any, write: Any, read: bool) -> None:
    def outcome(m: Any, retains: bool, before: bool) -> Any:
        z = m.arange(1.0, 5).view(2, 2).requires_grad_()
        y = z * 3
        w, seen = view(m, y), list[Any]()
        if retains:
            w.retain_grad()
        w.register_hook(lambda g: seen.append(g.resolve_conj().tolist()) or g * 10)
        if read:
            w.tolist()
        loss = w.real.sum() * 7 if before else 0
        write(m, w, y)
        (loss + (w.abs() ** 2).sum() + y.sum()).backward()
        return np.round(z.grad.tolist(), 3).tolist(), seen, w.grad.tolist() if retains and w.grad is not None else None

    for options in ((False, False), (False, True), (True, False)):
        assert outcome(gt, *options) == outcome(torch, *options), options
