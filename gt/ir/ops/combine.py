"""Writes that combine (the largest, the smallest, the product of what lands on one place), running logsumexp, and mode.

Next: ``index`` (scatter and scatter_add).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Var, op
from gt.ir.ops.broadcast import cast, constant, zeros_like
from gt.ir.ops.compare import eq, gt, logical_and, lt, where
from gt.ir.ops.elementwise import abs, add, cj, div, exp, log, mul, sub
from gt.ir.ops.families import FLOATING, REAL, along, any_of_equals, check_kind, check_same, whole
from gt.ir.ops.index import gather, scatter_add
from gt.ir.ops.movement import flip
from gt.ir.ops.special import logaddexp_numpy
from gt.ir.types import Shape, ShapeError, TensorType, TypeMismatch, int64


def _infer(x: TensorType, index: TensorType, source: TensorType, dim: int, reduce: str) -> TensorType:
    check_same("scatter_reduce", (x, source))
    if index.dtype is not int64:
        raise TypeMismatch(f"scatter_reduce: expected an int64 index, got {index!r}")
    if source.shape != index.shape or len(index.shape) != len(x.shape):
        raise ShapeError(f"scatter_reduce: expected a source of the index's shape, got {index!r} and {source!r}")
    return x


def _numpy(x: np.ndarray, index: np.ndarray, source: np.ndarray, dim: int, reduce: str) -> np.ndarray:
    out = x.astype(np.float32) if x.dtype == np.float16 else x.copy()
    grid: list[Any] = list(np.indices(index.shape, sparse=True))
    if x.ndim:
        grid[dim] = index
    ufunc = {"amax": np.maximum, "amin": np.minimum, "prod": np.multiply}[reduce]
    ufunc.at(out, tuple(grid) if x.ndim else (), source)
    return out


def _vjp(g: Var, y: Var, x: Var, index: Var, source: Var, dim: int, reduce: str) -> tuple[Any, None, Any]:
    if not x.type.dtype.is_differentiable:
        return None, None, None
    if reduce == "prod":
        return _prod_vjp(g, y, x, index, source, dim)
    mine = cast(eq(x, y), dtype=x.type.dtype)
    theirs = cast(eq(source, gather(y, index, dim=dim)), dtype=x.type.dtype)
    each = div(g, scatter_add(mine, index, theirs, dim=dim))  # ties share
    return where(eq(x, y), each, constant(0, each)), None, mul(theirs, gather(each, index, dim=dim))


def _prod_vjp(g: Var, y: Var, x: Var, index: Var, source: Var, dim: int) -> tuple[Any, None, Any]:
    """Where a factor is 0, the product of the others."""
    one, zero = constant(1, x), constant(0, x)
    x_safe = where(eq(x, zero), one, x)
    x_result = scatter_reduce(x_safe, index, source, dim=dim, reduce="prod")
    gx = div(mul(g, x_result), x_safe)
    is_zero = eq(source, zero)
    zeros = gather(scatter_add(zeros_like(x), index, cast(is_zero, dtype=x.type.dtype), dim=dim), index, dim=dim)
    alone = logical_and(is_zero, eq(zeros, constant(1, zeros)))
    others = scatter_reduce(x, index, where(alone, one, source), dim=dim, reduce="prod")
    plain = div(gather(mul(g, y), index, dim=dim), where(is_zero, one, source))
    return gx, None, where(alone, gather(mul(g, others), index, dim=dim), plain)


def _rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    fixed = {d for d in range(len(operands[0])) if d == attrs["dim"] or len({s[d] for s in operands}) > 1}
    return along(operands, results, fixed)


scatter_reduce = op(
    "scatter_reduce", "x index source",
    doc="x combined with source at index along dim; reduce: amax, amin or prod. Ties share the gradient.",
    infer=_infer, numpy=_numpy, torch="torch.scatter_reduce({x}, {dim}, {index}, {source}, {reduce})", vjp=_vjp, factors=_rule,
    refuses=(1,),
)  # fmt: skip


# -- running logsumexp


def _logcumsumexp_vjp(g: Var, y: Var, x: Var, dim: int) -> tuple[Any]:
    if x.type.ndim and x.type.dtype.is_complex:  # whose logs exist, so that signs need no care
        dims = (dim,)
        later = flip(logcumsumexp(flip(sub(log(cj(g)), y), dims=dims), dim=dim), dims=dims)
        return (cj(exp(add(later, x))),)
    return (logcumsumexp_backward(g, x, y, dim=dim) if x.type.ndim else g,)


def _logcumsumexp_infer(x: TensorType, dim: int) -> TensorType:
    check_kind("logcumsumexp", FLOATING, x)
    return x


def _logcumsumexp_numpy(x: np.ndarray, dim: int) -> np.ndarray:
    if not x.ndim or not x.size:
        return x
    rows = np.moveaxis(x, dim, 0)
    steps = itertools.accumulate(rows.astype(np.complex128 if x.dtype.kind == "c" else np.float64), logaddexp_numpy)
    return np.moveaxis(np.stack(list(steps)), 0, dim)


logcumsumexp = op(
    "logcumsumexp", "x", doc="Log of the running sum of exp(x) along dim.",
    infer=_logcumsumexp_infer, numpy=_logcumsumexp_numpy, torch="torch.logcumsumexp({x}, {dim})",
    vjp=_logcumsumexp_vjp, factors=whole("dim"), saves="x y",
)  # fmt: skip




def _logcumsumexp_backward_numpy(g: np.ndarray, x: np.ndarray, y: np.ndarray, dim: int) -> np.ndarray:
    g, x, y = (np.moveaxis(v.astype(np.float64), dim, -1) for v in (g, x, y))
    late = np.tri(x.shape[-1], dtype=bool).T
    ratios = np.exp(np.where(late, x[..., :, None] - y[..., None, :], -np.inf))
    return np.moveaxis(np.where(late, ratios * g[..., None, :], 0).sum(-1), -1, dim)


def _logcumsumexp_backward_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    """Of log g, signs apart so that logs exist; what has the other sign is as small as a number can be, as torch has it."""
    (g, x, y), dims = inputs, (attrs["dim"],)
    lowest = constant(-3.0e38 if g.type.dtype.itemsize >= 4 or g.type.dtype.name == "bfloat16" else -65504.0, g)

    def side(present: Any) -> Any:
        logs = where(present, log(abs(g)), lowest)
        summed = logcumsumexp(flip(sub(logs, y), dims=dims), dim=attrs["dim"])
        return exp(add(flip(summed, dims=dims), x))

    zero = constant(0, g)
    return (sub(side(gt(g, zero)), side(lt(g, zero))),)


def _logcumsumexp_backward_vjp(h: Var, out: Var, g: Var, x: Var, y: Var, dim: int) -> tuple[Any, Any, Any]:
    """The sum over i <= j is the same function of what is flipped, with -y for x and -x for y."""
    zero, dims = constant(0, x), (dim,)
    flipped = (flip(v, dims=dims) for v in (h, sub(zero, y), sub(zero, x)))
    g_of = flip(logcumsumexp_backward(*flipped, dim=dim), dims=dims)
    return g_of, mul(h, out), sub(zero, mul(g, g_of))


logcumsumexp_backward = op(
    "logcumsumexp_backward", "g x y", doc="Gradient of logcumsumexp: the sum over j >= i of g[j] exp(x[i] - y[j]).",
    infer=lambda g, x, y, dim: x, numpy=_logcumsumexp_backward_numpy, vjp=_logcumsumexp_backward_vjp,
    decompose=_logcumsumexp_backward_parts,
)  # fmt: skip


# -- mode


def _mode_infer(x: TensorType, dim: int) -> tuple[TensorType, TensorType]:
    check_kind("mode", REAL, x)
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :]) if x.ndim else ()
    return TensorType(shape, x.dtype), TensorType(shape, int64)


def _mode_numpy(x: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    if not x.ndim:
        return x, np.zeros((), np.int64)
    rows = np.moveaxis(x, dim, -1)
    flat = rows.reshape(-1, rows.shape[-1])
    values, places = np.empty(len(flat), x.dtype), np.empty(len(flat), np.int64)
    for i, line in enumerate(flat):
        found, counts = np.unique(line, return_counts=True)
        values[i] = found[np.argmax(counts)]
        places[i] = np.flatnonzero(line == values[i])[-1] if values[i] == values[i] else np.flatnonzero(line != line)[0]
    shape = (*rows.shape[:-1], 1)
    return np.moveaxis(values.reshape(shape), -1, dim), np.moveaxis(places.reshape(shape), -1, dim)


mode = op(
    "mode", "x", doc="The most frequent value along dim (the smallest of equals), and a place where it stands; dim becomes 1.",
    infer=_mode_infer, numpy=_mode_numpy, torch="tuple(torch.mode({x}, {dim}, True))",
    vjp=lambda gs, ys, x, dim: (
        None if gs[0] is None or not x.type.dtype.is_differentiable else scatter_add(zeros_like(x), ys[1], gs[0], dim=dim),
    ),
    factors=whole("dim"), settled=any_of_equals,
)  # fmt: skip
