"""Square brackets against torch: reads, writes and gradients of many index expressions."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt import session as sessions
from gt.runtime.simulated import SimulatedSession
from tests.unit.both_sides import alike

KEYS: tuple[Any, ...] = (
    0, -1, slice(1, None), slice(None, None, 2), (..., 0), (None, 1), (slice(None), None, 2), (0, slice(1, 3)), ..., (),
    [0, 2], ([0, 1], [1, 2]), (slice(None), [0, 2]), ([0, 2], slice(None), 1), (0, [1, 2]), ([[0, 1], [2, 0]],),
    (slice(None), [2, 0], slice(1, 3)), ([-1, 0],), (None, [0, 1]), (..., [0, 3]),
)  # fmt: skip


LISTS = (
    "[[0,1],[1,0]]", "[[0,1]]", "[[0,1],[1,0],[2,3]]", "[0,slice(None)]", "[...,0]", "[None,0]", "[t([0,1]),t([1,0])]", "[t([0,1])]",
    "[t(0),t(1)]", "[slice(0,1),0]", "[[True,False,True,False],[0,1]]", "[[0,1],1]", "[0,1,[2]]", "[[[0,1],[1,0]]]", "[[],[]]", "[[]]",
    "[range(2),range(2)]", "((0,1),(1,0))", "[(0,1),(1,0)]", "[0]*40", "[[0,1]]*32", "[np.array([0,1]),np.array([1,0])]",
    "np.array([[0,1],[1,0]])", "[t(1)]", "[[t(1),0],[0,1]]", "[True,False,True,False]",
    "u([1,0,1,0])", "u([[1,0,1,0]]*4)", "(slice(None),u([1,0,1,0]))", "(u([1,0,1,0]),[0,1])", "u(1)", "u(0)", "[u([1,0,1,0])]",
    "np.array([1,0,1,0],dtype=np.uint8)",
)  # fmt: skip


def data() -> np.ndarray:
    return np.arange(60, dtype=np.float32).reshape(3, 5, 4)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_read_write_and_gradient_equal_torch(key: Any) -> None:
    x, y = torch.tensor(data(), requires_grad=True), gt.tensor(data(), requires_grad=True)
    a, b = x[key], y[key]
    assert tuple(a.shape) == tuple(b.shape)
    assert a.tolist() == b.tolist()
    (a * a).sum().backward()
    (b * b).sum().backward()
    assert x.grad.tolist() == y.grad.tolist()
    u, v = torch.tensor(data()), gt.tensor(data())
    u[key] = 7.0
    v[key] = 7.0
    assert u.tolist() == v.tolist()
    u[key] *= 2
    v[key] *= 2
    assert u.tolist() == v.tolist()


def test_masks() -> None:
    u, v = torch.tensor(data()), gt.tensor(data())
    assert u[u > 30].tolist() == v[v > 30].tolist()
    rows = [True, False, True]
    assert u[torch.tensor(rows)].tolist() == v[gt.tensor(rows)].tolist()
    u[u > 30] = -1.0
    v[v > 30] = -1.0
    assert u.tolist() == v.tolist()


def test_index_tensors_may_be_negative() -> None:
    v = gt.tensor(data())
    assert v[gt.tensor([-1, 0])].tolist() == data()[[-1, 0]].tolist()
    assert gt.zeros(5).index_fill(0, gt.tensor([-1]), 1.0).tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("simulated", [False, True])
def test_an_index_tensor_beyond_the_start_is_refused(simulated: bool) -> None:
    """Counted from the end once, it would be another valid index."""
    gt.disconnect()
    with sessions.pinned(SimulatedSession(2)) if simulated else nullcontext():
        low = gt.tensor([-7])
        for call in (
            lambda x: x[low], lambda x: x.index_put((low,), gt.ones(1)), lambda x: x.index_fill(0, low, 1.0), lambda x: x[:, None][low, 0],
            lambda x: x.reshape(1, 5)[0, low[0]],
        ):  # fmt: skip
            with pytest.raises(IndexError, match="index -7 is out of bounds for (dimension|axis) . with size 5"):
                call(gt.zeros(5)).tolist()
    gt.disconnect()


def test_rows_are_not_counted_from_the_end() -> None:
    for call in (gt.Tensor.index_select, lambda x, d, i: x.index_add(d, i, gt.ones(1)), lambda x, d, i: x.index_copy(d, i, gt.ones(1))):
        for index in (-1, 5):
            with pytest.raises(IndexError, match="index out of range in self"):
                call(gt.zeros(5), 0, gt.tensor([index])).tolist()


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        (5, IndexError, "index 5 is out of bounds for dimension 0 with size 3"),
        ((0, 0, 0, 0), IndexError, "too many indices for tensor of dimension 3"),
        (slice(None, None, -1), ValueError, "step must be greater than zero"),
        ((..., ...), IndexError, "single ellipsis"),
        ("a", IndexError, "only integers, slices"),
        (1.5, IndexError, "only integers, slices"),
    ],
)
def test_refused(key: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        _ = gt.tensor(data())[key]


def test_writes_through_strided_views() -> None:
    u, v = torch.zeros(4, 4), gt.zeros(4, 4)
    for t in (u, v):
        t.diagonal().fill_(3)
        t.diagonal(1)[0] = 5
        t.unfold(0, 2, 2)[0, :, 1].add_(1)
    assert u.tolist() == v.tolist()


@pytest.mark.parametrize("part", ["x[1]", "x[1:]", "x[1].t()", "x[1][1:]", "(x * 2)[1]", "x[:, 1]", "x.reshape(-1)[7:16].reshape(3, 3)"])
def test_strided_views_of_a_part_begin_where_it_begins(part: str) -> None:
    got = []
    for m in (torch, gt):
        x = m.arange(18.0).reshape(2, 3, 3).requires_grad_()
        y = eval(part, {"x": x})
        found = (y.diagonal(dim1=-2, dim2=-1), y.diagonal(1, -2, -1), y.unfold(-1, 2, 1), m.trace(y) if y.ndim == 2 else y.sum())
        total = found[0].square().sum() + (found[2] ** 3).sum()
        total.backward()
        z = m.zeros(2, 3, 3)
        eval(part, {"x": z}).diagonal(dim1=-2, dim2=-1).fill_(1)
        got.append([[t.tolist() for t in found], x.grad.tolist(), z.tolist()])
    assert got[0] == got[1]


def test_scatter_family_equals_torch() -> None:
    index = [[0, 2, 1, 0], [2, 2, 0, 1]]
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for include in (True, False):
            out = []
            for m in (torch, gt):
                x, src = m.tensor(data()[:, :4, 0]), m.tensor(data()[0, :4].T[:2].copy())
                out.append(x.scatter_reduce(0, m.tensor(index), src[:, :4], reduce, include_self=include).tolist())
            np.testing.assert_allclose(out[0], out[1], rtol=1e-6)


def by_key(module: Any, source: str, way: str) -> Any:
    """Read or write 4 rows of 4 at a key; an error's class instead, as torch names it."""
    byte = lambda v: module.tensor(v, dtype=module.uint8)  # noqa: E731
    key = eval(source, {"t": module.tensor, "u": byte, "np": np})
    x = module.arange(16.0).reshape(4, 4).clone()
    try:
        if way == "read":
            return x[key].tolist()
        x[key] = 1.5 if way == "a number" else x[key] * 0 - 1
    except (IndexError, RuntimeError) as error:
        return IndexError if isinstance(error, IndexError) else RuntimeError
    return x.tolist()


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8", "ignore:Using a non-tuple")
@pytest.mark.parametrize("source", LISTS)
def test_lists_that_stand_for_tuples_and_byte_masks(source: str) -> None:
    for way in ("read", "a number", "values"):
        assert by_key(gt, source, way) == by_key(torch, source, way), way


def test_a_byte_mask_is_deprecated() -> None:
    with pytest.warns(UserWarning, match="uint8 is now deprecated"):
        assert gt.arange(3)[gt.tensor([1, 0, 1], dtype=gt.uint8)].tolist() == [0, 2]


@pytest.mark.parametrize("name", ["index_add", "index_copy", "index_reduce"])
@pytest.mark.parametrize("inplace", ["", "_"])
def test_rows_that_do_not_fit_are_refused_as_in_torch(name: str, inplace: str) -> None:
    def call(index: list[Any], source: tuple[int, ...], dtype: str = "float32") -> Any:
        more = ("mean",) if name == "index_reduce" else ()
        return lambda m: getattr(m.zeros(3, 2, 4), name + inplace)(1, m.tensor(index), m.ones(source, dtype=getattr(m, dtype)), *more)

    for index, source, dtype in (
        ([0, 1], (3, 2, 4), "float64"), ([0, 1], (3, 5, 4), "float32"), ([0, 1], (5, 2, 6), "float32"), ([[0, 1]], (3, 2, 4), "float32"),
        ([0.0, 1.0], (3, 2, 4), "float32"),
    ):  # fmt: skip
        alike(call(index, source, dtype), f"{index} {source} {dtype}")
