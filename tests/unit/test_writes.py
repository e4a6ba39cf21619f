"""What may be written into a tensor, and what it is afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt


def test_a_view_of_a_value_computed_long_ago_can_be_written_elsewhere() -> None:
    view = gt.tensor([1.0, 2.0, 3.0]).reshape(3)[1:]
    assert view.tolist() == [2.0, 3.0]
    gt.zeros(3).sum().item()
    for write in (lambda x: x.copy_(view), lambda x: x.__setitem__(slice(None), view), lambda x: x.__setitem__((), view)):
        x = gt.zeros(2)
        write(x)
        assert x.tolist() == [2.0, 3.0]


def test_a_copy_of_a_leaf_is_no_leaf() -> None:
    leaf = gt.ones(2, requires_grad=True)
    x = gt.zeros(2)
    x.copy_(leaf)
    assert x.requires_grad and not x.is_leaf
    x.mul_(3).sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [3.0, 3.0] and x.grad is None


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("key", [lambda m: m, lambda m: (m, ...), lambda m: (..., m)], ids=["alone", "first", "last"])
def test_a_mask_without_dims_adds_one(shape: tuple[int, ...], value: bool, key: Callable[[Any], Any]) -> None:
    for mask in (lambda lib: value, lambda lib: lib.tensor(value)):
        ours, theirs = gt.ones(shape), torch.ones(shape)
        assert tuple(ours[key(mask(gt))].shape) == tuple(theirs[key(mask(torch))].shape)
        ours[key(mask(gt))] = 5.0
        theirs[key(mask(torch))] = 5.0
        assert ours.tolist() == theirs.tolist()


NUMBERS = [
    ("int8", 300), ("int16", 70_000), ("int32", 2**40), ("int64", 1e30), ("uint8", 300), ("uint8", -1), ("uint8", -300), ("bool", 5),
    ("int32", 1.5), ("int32", float("nan")), ("float16", 1e9), ("float32", 1e300), ("float32", 3.4028235e38), ("float64", 1e300),
    ("float32", float("inf")), ("complex64", 1e300j), ("complex64", 2), ("complex128", 1e300j),
]  # fmt: skip
MAKERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "full": lambda lib, v, dtype: lib.full((2,), v, dtype=dtype),
    "tensor": lambda lib, v, dtype: lib.tensor(v, dtype=dtype),
    "list": lambda lib, v, dtype: lib.tensor([v, 1], dtype=dtype),
    "fill_": lambda lib, v, dtype: lib.zeros(2, dtype=dtype).fill_(v),
}


def result(make: Callable[[], Any]) -> str:
    try:
        return repr(make().tolist())
    except RuntimeError as e:
        return str(e)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(("dtype", "value"), NUMBERS)
def test_a_number_that_does_not_fit_is_refused_at_once_where_torch_refuses_it(dtype: str, value: Any, maker: str) -> None:
    make = MAKERS[maker]
    want = result(lambda: make(torch, value, getattr(torch, dtype)))
    assert result(lambda: make(gt, value, getattr(gt, dtype))) == want
    if "without overflow" in want:
        with pytest.raises(RuntimeError, match="without overflow"):
            make(gt, value, getattr(gt, dtype))  # no read is needed


@pytest.mark.parametrize("change", ["no_grad", "data", "detach", "no_grad item"])
def test_a_change_off_the_tape_keeps_the_history(change):
    """As torch: the values are new, gradients flow as before."""

    def run(library):
        w = library.ones(2, requires_grad=True)
        y = w * 2
        if change == "no_grad":
            with library.no_grad():
                y.mul_(0.5)
        elif change == "no_grad item":
            with library.no_grad():
                y[0] = 7
        else:
            (y.data if change == "data" else y.detach()).mul_(0.5)
        z = y + w
        z.sum().backward()
        return z.tolist(), w.grad.tolist()

    assert run(gt) == run(torch)


def test_a_view_learns_that_its_base_has_a_history():
    def run(library):
        w = library.ones(2, requires_grad=True)
        x = library.zeros(2, 2)
        v = x[0]
        x.add_(w)
        assert v.requires_grad and not x.detach().requires_grad
        (v * v * 3 + w).sum().backward()
        return w.grad.tolist()

    assert run(gt) == run(torch)


def test_data_can_be_swapped_and_swapped_back():
    """As with averages of weights: what .data gave before stays what it was."""

    def run(library):
        p = library.nn.Parameter(library.ones(2))
        row, backup, average = p.detach()[:1], p.data, library.zeros(2)
        p.data = average
        swapped = p.tolist()
        row.add_(4)
        p.data = backup
        return swapped, p.tolist(), backup.tolist(), average.tolist(), row.tolist()

    assert run(gt) == run(torch)


CHANGES = [
    "mul_(x)", "abs_()", "sin_()", "pow_(2)", "square_()", "clamp_(0, 1)", "exp_()", "sqrt_()", "log_()", "div_(x)", "cumprod_(0)",
    "nan_to_num_()", "zero_()", "fill_(3.0)", "copy_(m.ones(3))", "copy_(x)", "atan2_(x)", "lerp_(x, 0.3)", "masked_fill_(x > 0, 1.0)",
]  # fmt: skip
PROGRAMS = {
    "once": "y = x + 1; y.{}; return y",
    "saved before": "y = x * 1; z = y * y; y.{}; return z + y",
    "through a view": "y = x * 1; v = y[1:]; v.mul_(2); y.{}; return y + v.sum()",
    "retained": "y = x * 1; y.retain_grad(); y.{}; return y",
}
LAYERS = ["leaky_relu", "relu6", "hardtanh", "elu", "selu", "silu", "mish", "hardswish", "hardsigmoid", "celu", "relu"]


def _gradient(m, source):
    """Run ``source`` on torch or gt; give x's gradient, or that it is an error."""
    x = m.tensor([0.5, -1.0, 2.0], requires_grad=True)
    scope = {}
    exec("def program(m, x):\n " + source.replace("; ", "\n "), scope)
    try:
        scope["program"](m, x).sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
        return "refused"
    return x.grad.numpy()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_change_in_place_may_save_what_it_replaces(program, change):
    source = PROGRAMS[program].format(change)
    ours, theirs = _gradient(gt, source), _gradient(torch, source)
    if isinstance(theirs, str):
        assert ours == theirs
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("layer", LAYERS)
def test_activations_in_place_pass_gradients(layer):
    source = f"y = x + 1; m.nn.functional.{layer}(y, inplace=True); return y"
    np.testing.assert_allclose(_gradient(gt, source), _gradient(torch, source), rtol=1e-6)


def _kind(make: Callable[[], Any]) -> Any:
    """Give a result's dtype and values, or the class of its error: torch's is one of the classes of gt's."""
    try:
        out = make()
    except (ValueError, RuntimeError, OverflowError) as error:
        return error
    return str(out.dtype).split(".")[-1], out.tolist()


TOO_LARGE: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda lib: lib.tensor(2**70),
    "tensor of a list": lambda lib: lib.tensor([1, 2**63]),
    "tensor just below": lambda lib: lib.tensor(-(2**63) - 1),
    "tensor of floats": lambda lib: lib.tensor([1.5, 2**70]),
    "tensor as float": lambda lib: lib.tensor(2**70, dtype=lib.float32),
    "tensor as int32": lambda lib: lib.tensor(2**70, dtype=lib.int32),
    "full": lambda lib: lib.full((2,), 2**70),
    "add": lambda lib: lib.ones(1, dtype=lib.long) + 2**65,
    "add to a float": lambda lib: lib.ones(1) * 2**65,
    "sub below": lambda lib: lib.ones(1, dtype=lib.long) - (-(2**63) - 1),
    "compare": lambda lib: lib.ones(1, dtype=lib.long) < 2**65,
    "fill": lambda lib: lib.ones(1, dtype=lib.long).fill_(2**65),
    "clamp int8": lambda lib: lib.ones(1, dtype=lib.int8).clamp(max=300),
    "clamp both": lambda lib: lib.ones(1, dtype=lib.int8).clamp(-300, 5),
    "clamp_min": lambda lib: lib.clamp_min(lib.ones(1, dtype=lib.uint8), 300),
    "clamp_": lambda lib: lib.ones(1).clamp_(max=1e300),
    "clamp that fits": lambda lib: lib.ones(1, dtype=lib.int8).clamp(max=100),
    "clamp inf": lambda lib: lib.ones(1).clamp(max=float("inf")),
    "where": lambda lib: lib.where(lib.tensor([True]), lib.ones(1, dtype=lib.int8), 300),
    "where float": lambda lib: lib.where(lib.tensor([True]), -1e300, lib.ones(1)),
    "where half": lambda lib: lib.where(lib.tensor([True]), -1e9, lib.ones(1, dtype=lib.float16)),
    "alpha": lambda lib: lib.add(lib.ones(1, dtype=lib.int8), 1, alpha=300),
    "index_fill": lambda lib: lib.ones(1, dtype=lib.int8).index_fill(0, lib.tensor([0]), 300),
    "addcmul": lambda lib: lib.addcmul(lib.ones(1), lib.ones(1), lib.ones(1), value=1e300),
    "pow": lambda lib: lib.ones(1, dtype=lib.int8) ** 2**63,
    "hardtanh": lambda lib: lib.nn.functional.hardtanh(lib.ones(1), -1, 1e300),
    "lerp": lambda lib: lib.lerp(lib.ones(1), lib.ones(1), 1e300),
}  # fmt: skip


@pytest.mark.parametrize("make", TOO_LARGE.values(), ids=TOO_LARGE)
def test_numbers_that_a_dtype_cannot_hold(make: Callable[[Any], Any]) -> None:
    ours, theirs = _kind(lambda: make(gt)), _kind(lambda: make(torch))
    if isinstance(theirs, Exception):
        assert isinstance(ours, type(theirs)) and str(ours).startswith(str(theirs)[:40])
    else:
        assert ours == theirs


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64", "bool", "complex64"])
@pytest.mark.parametrize("of", ["int64", "float32", "float64", "bool"])
def test_values_written_at_indices_have_the_dtype(dtype: str, of: str) -> None:
    keys: list[Callable[[Any], Any]] = [
        lambda lib: lib.tensor([0, 1]), lambda lib: [0, 1], lambda lib: lib.tensor([True, False, True]), lambda lib: lib.tensor(0),
        lambda lib: slice(0, 2), lambda lib: (lib.tensor([0, 2]),),
    ]  # fmt: skip
    for key in keys:
        for shape in ((), (1,), (2,)):

            def write(lib: Any, key: Any = key, shape: Any = shape) -> Any:
                x = lib.zeros(3, dtype=getattr(lib, dtype))
                x[key(lib)] = lib.ones(shape, dtype=getattr(lib, of))
                return x

            ours, theirs = _kind(lambda w=write: w(gt)), _kind(lambda w=write: w(torch))
            if isinstance(theirs, Exception):
                assert isinstance(ours, RuntimeError), (key(torch), shape)
            else:
                assert ours == theirs, (key(torch), shape)
    with pytest.raises(ValueError, match="Overflow when unpacking long long"):
        gt.zeros(3)[0] = 2**63


def test_a_write_into_a_part_goes_where_the_rest_is() -> None:
    """What the written tensor was before is read by nobody: no copy of it is made."""
    x, row, index = gt.zeros(8, 4), gt.ones(4), gt.tensor([[1, 2, 3, 0]])
    programs = []
    for write in (
        lambda: x.__setitem__(2, row), lambda: x.scatter_(0, index, 3.0), lambda: x.scatter_add_(0, index, row.reshape(1, 4)),
        lambda: x.index_add_(0, index[0], gt.ones(4, 4)),
    ):  # fmt: skip
        x.sum().item()
        write()
        programs.append(x.tolist())
    want, again, place = torch.zeros(8, 4), torch.ones(4), torch.tensor([[1, 2, 3, 0]])
    want[2] = again
    assert programs[0] == want.tolist()
    assert programs[1] == want.scatter_(0, place, 3.0).tolist()
    assert programs[2] == want.scatter_add_(0, place, again.reshape(1, 4)).tolist()
    assert programs[3] == want.index_add_(0, place[0], torch.ones(4, 4)).tolist()


def test_what_a_write_replaces_is_kept_for_its_views_and_copies() -> None:
    def run(m):
        x = m.arange(12.0).reshape(3, 4) * 1
        before, part = x * 1, x[1:] + 0
        x[0] = x[1]
        x[1:] = x[:2] * 1
        y = x.scatter(0, m.tensor([[0, 1, 2, 0]]), -1.0)
        x.scatter_add_(1, m.tensor([[0], [1], [2]]), x[:, :1] * 1)
        return [t.tolist() for t in (before, part, x, y)]

    assert run(gt) == run(torch)


WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "dots": lambda lib, y: y.__setitem__(..., 2.0),
    "slice": lambda lib, y: y.__setitem__(slice(None), 2.0),
    "empty": lambda lib, y: y.__setitem__((), 2.0),
    "row": lambda lib, y: y.__setitem__(0, 2.0),
    "new dim": lambda lib, y: y.__setitem__(None, 2.0),
    "tensor": lambda lib, y: y.__setitem__(..., lib.tensor([[1.0, 2.0, 3.0]])),
    "view": lambda lib, y: y.t().__setitem__(..., 2.0),
    "data": lambda lib, y: setattr(y, "data", lib.full((1, 3), 5.0)),
    "data without gradients": lambda lib, y: lib.no_grad()(lambda: setattr(y, "data", lib.full((1, 3), 5.0)))(),
    "data of another dtype": lambda lib, y: setattr(y, "data", lib.full((1, 3), 5.0, dtype=lib.float64)),
}


@pytest.mark.parametrize("read", [False, True], ids=["pending", "read"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_computed_tensor_keeps_its_history_when_all_of_it_is_replaced(name: str, read: bool) -> None:
    def outcome(lib: Any) -> Any:
        x = lib.ones(1, 3, requires_grad=True)
        y = x * 1.5
        y.retain_grad()
        if read:
            y.tolist()
        WHOLE[name](lib, y)
        flags = y.requires_grad, y.is_leaf
        (y * y * lib.tensor([1.0, 2.0, 3.0])).sum().backward()
        return flags, x.grad.tolist(), y.tolist(), None if "data" in name else y.grad.tolist()

    assert outcome(gt) == outcome(torch)


@pytest.mark.parametrize("write", [lambda y, w: y.__setitem__(..., w * 2), lambda y, w: y.copy_(w * 2), lambda y, w: y.copy_(w)])
def test_what_a_differentiable_value_replaces_gets_zeros(write: Callable[[Any, Any], Any]) -> None:
    def outcome(lib: Any) -> Any:
        x, w = lib.ones(3, requires_grad=True), lib.ones(3, requires_grad=True)
        y = x * 1.5
        write(y, w)
        (y * y).sum().backward()
        return x.grad.tolist(), w.grad.tolist()

    assert outcome(gt) == outcome(torch)


def test_a_view_whose_base_was_given_data_keeps_its_history() -> None:
    def outcome(lib: Any) -> Any:
        x = lib.ones(3, requires_grad=True)
        y = x * 1.5
        view = y[:2]
        y.data = lib.ones(3)
        (view * view).sum().backward()
        return view.tolist(), x.grad.tolist()

    assert outcome(gt) == outcome(torch)


def test_data_of_another_shape_cannot_have_the_history_of_what_was_computed() -> None:
    x = gt.ones(3, requires_grad=True)
    y = x * 1.5
    with pytest.raises(RuntimeError, match="cannot assign .data of shape"):
        y.data = gt.ones(2)
    x.data = gt.ones(2)
    assert x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("change", [lambda y: y.mul_(2), lambda y: y.__setitem__(0, 4.0), lambda y: y.zero_()])
def test_a_retained_gradient_is_that_of_the_newest_values(change: Callable[[Any], Any]) -> None:
    def outcome(lib: Any) -> Any:
        x = lib.ones(3, requires_grad=True)
        y = x * 1.5
        y.retain_grad()
        change(y)
        (y * y).sum().backward()
        return y.grad.tolist(), x.grad.tolist()

    assert outcome(gt) == outcome(torch)


@pytest.mark.parametrize("shape", [(5, 3), (7, 3), (8, 2), (3, 5), (3, 3), (4, 1), (3, 3, 3), (2, 2, 2, 2)])
@pytest.mark.parametrize("wrap", [False, True])
def test_diagonals_are_filled(shape: tuple[int, ...], wrap: bool) -> None:
    found = []
    for m in (gt, torch):
        x = m.arange(float(np.prod(shape))).reshape(shape).requires_grad_()
        y = (x * 2).fill_diagonal_(7, wrap=wrap)
        (y * y).sum().backward()
        found.append((y.tolist(), x.grad.tolist()))
        with pytest.raises(RuntimeError, match="equal length"):
            m.zeros(3, 3, 2).fill_diagonal_(1, wrap=wrap)
        with pytest.raises(RuntimeError, match="larger than 1"):
            m.zeros(3).fill_diagonal_(1, wrap=wrap)
    assert found[0] == found[1]
