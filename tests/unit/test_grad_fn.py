"""``grad_fn``: the names and the graph that torch's tutorials walk."""

from __future__ import annotations

import re

import pytest
import torch

import gt


@pytest.mark.parametrize("read", [False, True])
def test_the_graph_behind_a_tensor(read):
    found = []
    for lib in (gt, torch):
        x = lib.ones(2, 2, requires_grad=True)
        y = x + 2
        z = y * y * 3
        out = z.mean()
        if read:
            out.item()
        names, at = [], (out * 1).grad_fn
        while at is not None:
            names.append((at.name(), type(at).__name__, len(at.next_functions)))
            at = at.next_functions[0][0] if at.next_functions else None
        leaf = y.grad_fn.next_functions[0][0]
        assert leaf.variable is x and y.grad_fn.next_functions[1] == (None, 0)
        assert x.grad_fn is None and y.detach().grad_fn is None and y.grad_fn == y.grad_fn
        assert re.fullmatch(r"<AddBackward0 object at 0x[0-9a-f]+>", repr(y.grad_fn))
        found.append(names)
    assert found[0] == found[1]


def test_a_function_has_its_own_name():
    for lib in (gt, torch):
        mine = type(
            "Mine", (lib.autograd.Function,), {"forward": staticmethod(lambda ctx, x: x * 2), "backward": staticmethod(lambda ctx, g: g)}
        )
        out = mine.apply(lib.ones(2, requires_grad=True) * 3)
        assert out.grad_fn.name() == "MineBackward"
        assert [f.name() for f, _ in out.grad_fn.next_functions] == ["MulBackward0"]


def test_which_result_of_an_op_an_operand_is():
    a, b = (gt.ones(4, requires_grad=True) * 1).topk(2)
    assert a.grad_fn is not None and b.grad_fn is None
    view = (gt.ones(3, requires_grad=True) * 1)[1:]
    gt.zeros(1).item()
    assert view.grad_fn.name() == "SliceBackward0"


def test_order_statistics_do_not_sort() -> None:
    x = gt.rand(3, 5, requires_grad=True) * 1
    made = {"Topk": x.topk(2), "Kthvalue": x.kthvalue(2, keepdim=True), "Median": x.median(1, keepdim=True)}
    for name, found in made.items():
        assert found.values.grad_fn.name() == f"{name}Backward0"
