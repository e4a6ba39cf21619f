"""Ops that order elements along a dim: sort, topk, kthvalue, median, searchsorted.

Next: ``position``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Var, op
from gt.ir.ops.broadcast import reshape, zeros_like
from gt.ir.ops.creation import iota
from gt.ir.ops.elementwise import add
from gt.ir.ops.families import REAL, any_of_equals, check_kind, dim_names, rule_of, whole
from gt.ir.ops.index import gather, scatter_add
from gt.ir.types import Shape, ShapeError, TensorType, int64


def _sort_infer(x: TensorType, dim: int, descending: bool) -> tuple[TensorType, TensorType]:
    check_kind("sort", REAL, x)
    return x, TensorType(x.shape, int64)


def _sort_numpy(x: np.ndarray, dim: int, descending: bool) -> tuple[np.ndarray, np.ndarray]:
    if not x.ndim:
        return x, np.zeros((), np.int64)
    order = np.argsort(x, axis=dim, kind="stable")
    if descending:  # stable too: equal elements keep their order; NaN, the largest, comes first
        back = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
        order = x.shape[dim] - 1 - np.flip(back, dim)
    return np.take_along_axis(x, order, dim), order


def _sorted_vjp(gs: tuple[Any, Any], ys: tuple[Var, Var], x: Var, **attrs: Any) -> tuple[Any]:
    return (
        None
        if gs[0] is None or not x.type.dtype.is_differentiable
        else scatter_add(zeros_like(x), ys[1], gs[0], dim=attrs["dim"]),
    )


sort = op(
    "sort", "x",
    doc="Values in order along dim, stable, NaN as the largest; and where each came from.",
    infer=_sort_infer, numpy=_sort_numpy,
    torch="tuple(torch.sort({x}, dim={dim}, descending={descending}, stable=True))",
    vjp=_sorted_vjp, factors=whole("dim"),
)  # fmt: skip


def _topk_infer(x: TensorType, k: int, dim: int, largest: bool) -> tuple[TensorType, TensorType]:
    check_kind("topk", REAL, x)
    if x.ndim and not 0 <= k <= x.shape[dim]:
        raise ShapeError("selected index k out of range")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.ndim else ()
    return TensorType(shape, x.dtype), TensorType(shape, int64)


def _topk_numpy(x: np.ndarray, k: int, dim: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    values, order = _sort_numpy(x, dim, largest)
    head = (*(slice(None),) * dim, slice(0, k)) if x.ndim else ()
    return values[head], order[head]


def _split_topk(inputs: tuple[Any, ...], attrs: dict[str, Any], shards: int) -> tuple[Any, Any] | None:
    """The best of each part's best; only those travel."""
    (x,), k, dim, largest = inputs, attrs["k"], attrs["dim"], attrs["largest"]
    shape = x.type.shape
    size = shape[dim] // shards
    if shape[dim] % shards or size <= k or not k:
        return None
    parts = reshape(x, shape=(*shape[:dim], shards, size, *shape[dim + 1 :]))
    values, where = topk(parts, k=k, dim=dim + 1, largest=largest)
    where = add(where, iota(shape=where.type.shape, dim=dim, dtype=int64, step=size))
    joined = (*shape[:dim], shards * k, *shape[dim + 1 :])
    best, at = topk(reshape(values, shape=joined), k=k, dim=dim, largest=largest)
    return best, gather(reshape(where, shape=joined), at, dim=dim)


topk = op(
    "topk", "x",
    doc="The k largest (or smallest) along dim in order, and where each came from.",
    infer=_topk_infer, numpy=_topk_numpy,
    torch="tuple(torch.topk({x}, {k}, dim={dim}, largest={largest}, sorted=True))",
    vjp=_sorted_vjp, factors=whole("dim"), when_split=_split_topk, settled=any_of_equals,
)  # fmt: skip



def _one_infer(name: str) -> Any:
    def infer(x: TensorType, dim: int, **how: Any) -> tuple[TensorType, TensorType]:
        check_kind(name, REAL, x)
        if x.ndim and not 1 <= how.get("k", 1) <= x.shape[dim]:
            raise ShapeError(f"{name}: no such element in a dim of {x.shape[dim]}")
        shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :]) if x.ndim else ()
        return TensorType(shape, x.dtype), TensorType(shape, int64)

    return infer


def _kthvalue_numpy(x: np.ndarray, k: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    values, order = _sort_numpy(x, dim, False)
    at = (*(slice(None),) * dim, slice(k - 1, k)) if x.ndim else ()
    return values[at], order[at]


def _median_numpy(x: np.ndarray, dim: int, skip_nan: bool) -> tuple[np.ndarray, np.ndarray]:
    values, order = _sort_numpy(x, dim, False)
    if not x.ndim:
        return values, order
    size = x.shape[dim]
    valid = np.sum(x == x, dim, keepdims=True)  # NaN comes last
    at = np.maximum((valid - 1) // 2, 0) if skip_nan else np.where(valid < size, valid, (size - 1) // 2)
    return np.take_along_axis(values, at, dim), np.take_along_axis(order, at, dim)


kthvalue = op(
    "kthvalue", "x", doc="The k-th smallest along dim, counting from 1, and where it is; dim becomes 1.",
    infer=_one_infer("kthvalue"), numpy=_kthvalue_numpy, torch="tuple(torch.kthvalue({x}, {k}, {dim}, True))",
    vjp=_sorted_vjp, factors=whole("dim"), settled=any_of_equals,
)  # fmt: skip
median = op(
    "median", "x", doc="The lower median along dim, and where it is; NaN if any is, unless skip_nan; dim becomes 1.",
    infer=_one_infer("median"), numpy=_median_numpy, vjp=_sorted_vjp, factors=whole("dim"), settled=any_of_equals,
    torch=lambda names, attrs, types: (
        f"tuple(torch.{'nanmedian' if attrs['skip_nan'] else 'median'}({names[0]}, {attrs['dim']}, True))"
    ),
)  # fmt: skip


def _searchsorted_numpy(edges: np.ndarray, x: np.ndarray, right: bool) -> np.ndarray:
    """Bisect as torch does, also among NaNs and edges out of order."""
    low, high = np.zeros(x.shape, np.int64), np.full(x.shape, edges.shape[-1])
    while (searching := low < high).any():
        middle = (low + high) // 2
        at = np.minimum(middle, edges.shape[-1] - 1)
        edge = edges[at] if edges.ndim == 1 else np.take_along_axis(edges, at, -1)
        above = edge > x if right else edge >= x
        low, high = np.where(searching & ~above, middle + 1, low), np.where(searching & above, middle, high)
    return low


def _searchsorted_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    """Edges of one dim are for all x; of more, they and x share the leading dims."""
    *names, edge = dim_names(len(operands[1]) + 1)
    lead = names[: len(operands[0]) - 1]
    return rule_of([[*lead, edge], names], [names], (*operands, *results), {edge: "whole"})


searchsorted = op(
    "searchsorted", "edges x",
    doc="Where each x would stand in sorted edges (along the last dim); right: after equal ones.",
    infer=lambda edges, x, right: TensorType(x.shape, int64),
    numpy=_searchsorted_numpy,
    torch="torch.searchsorted({edges}, {x}, right={right})",
    vjp=lambda g, y, edges, x, right: (None, None),
    factors=_searchsorted_rule,
)  # fmt: skip
