"""Reductions and scans.

``mean`` and ``var`` are decomposed, so that over shards they divide by the whole tensor's count.
Next: ``movement``, ``index``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.ir.opdef import Linear, OpDef, Var, op
from gt.ir.ops.broadcast import cast, constant, expand, keep, reduced_shape, reshape, sum, total, zeros_like
from gt.ir.ops.compare import eq, ge, isfinite, logical_or, ne, where
from gt.ir.ops.creation import iota
from gt.ir.ops.elementwise import add, cj, div, exp, log, mul, real, sqrt, sub
from gt.ir.ops.families import FLOATING, REAL, check_kind, reduced, unchanged, whole
from gt.ir.ops.index import scatter_add
from gt.ir.ops.matmul import wide
from gt.ir.ops.movement import flip, pad, permute, slice
from gt.ir.types import HALVES, EmptyError, TensorType, bool_, float32, int64

Dims = tuple[int, ...]
LINEAR: Linear = ((0,),)


def _reduce_infer(name: str, kinds: str, identity: bool = True) -> Any:
    """Infer a reduction that keeps the dtype. Without ``identity`` an empty dim can't be reduced."""

    def infer(x: TensorType, dims: Dims, keepdim: bool, **_: Any) -> TensorType:
        check_kind(name, kinds, x)
        empty = [d for d in dims if x.shape[d] == 0]
        if not identity and empty:
            raise EmptyError(f"{name}(): Expected reduction dim {empty[0]} to have non-zero size.")
        return TensorType(reduced_shape(x.shape, dims, keepdim), x.dtype)

    return infer


# -- extremes


def _extreme_vjp(g: Var, y: Var, x: Var, dims: Dims, keepdim: bool) -> tuple[Var]:
    """Ties share the gradient evenly, as torch's amax."""
    mask = cast(eq(x, keep(y, x, dims, keepdim)), dtype=x.type.dtype)
    return (mul(div(keep(g, x, dims, keepdim), total(mask, dims, keepdim=True)), mask),)


amax = op(
    "amax", "x", doc="Largest over dims; NaN if any is.",
    infer=_reduce_infer("amax", REAL, identity=False),
    numpy=lambda x, dims, keepdim: np.max(x, axis=dims, keepdims=keepdim),
    torch="torch.amax({x}, {dims}, keepdim={keepdim})", vjp=_extreme_vjp, factors=reduced("max"),
)  # fmt: skip
amin = op(
    "amin", "x", doc="Smallest over dims; NaN if any is.",
    infer=_reduce_infer("amin", REAL, identity=False),
    numpy=lambda x, dims, keepdim: np.min(x, axis=dims, keepdims=keepdim),
    torch="torch.amin({x}, {dims}, keepdim={keepdim})", vjp=_extreme_vjp, factors=reduced("min"),
)  # fmt: skip


def _arg_infer(name: str) -> Any:
    def infer(x: TensorType, dim: int, keepdim: bool) -> TensorType:
        check_kind(name, REAL, x)
        if x.ndim and x.shape[dim] == 0:
            raise EmptyError(f"{name}(): Expected reduction dim {dim} to have non-zero size.")
        return TensorType(reduced_shape(x.shape, (dim,), keepdim), int64)

    return infer


def _arg_rule(operands: Any, results: Any, attrs: dict[str, Any]) -> Any:
    dims = (attrs["dim"],) if operands[0] else ()
    return reduced("whole")(operands, results, {"dims": dims, "keepdim": attrs["keepdim"]})


def _split_arg(extreme: OpDef) -> Any:
    """Over parts of dim: the extreme of all, then the first place that holds it (or a NaN)."""

    def parts(inputs: tuple[Any, ...], attrs: dict[str, Any], shards: int) -> tuple[Any, ...]:
        (x,), dim = inputs, attrs["dim"]
        if x.type.dtype.kind == "b":
            x = cast(x, dtype=int64)
        hit = eq(x, extreme(x, dims=(dim,), keepdim=True))
        if x.type.dtype.is_differentiable:
            hit = logical_or(hit, ne(x, x))
        places = iota(shape=x.type.shape, dim=dim, dtype=int64)
        found = where(hit, places, constant(x.type.shape[dim], places))
        return (amin(found, dims=(dim,), keepdim=attrs["keepdim"]),)

    return parts


for _name, _numpy, _doc in (("argmax", np.argmax, "largest"), ("argmin", np.argmin, "smallest")):
    op(
        _name, "x", doc=f"Index of the first {_doc} along dim; of the first NaN if there is one.",
        infer=_arg_infer(_name),
        numpy=(
            lambda f: lambda x, dim, keepdim: f(x, axis=dim, keepdims=keepdim) if x.ndim else np.zeros((), np.int64)
        )(_numpy),
        torch=f"kernels.{_name}({{x}}, {{dim}}, {{keepdim}})",
        vjp=lambda g, y, x, dim, keepdim: (None,), factors=_arg_rule,
        when_split=_split_arg(amax if _name == "argmax" else amin),
    )  # fmt: skip

# -- any, all: the largest and smallest of truth values


def _truth_infer(name: str) -> Any:
    def infer(x: TensorType, dims: Dims, keepdim: bool) -> TensorType:
        check_kind(name, "b", x)
        return TensorType(reduced_shape(x.shape, dims, keepdim), bool_)

    return infer


any_ = op(
    "any", "x", doc="Any is true over dims.",
    infer=_truth_infer("any"), numpy=lambda x, dims, keepdim: np.any(x, axis=dims, keepdims=keepdim),
    torch="torch.any({x}, {dims}, keepdim={keepdim})", factors=reduced("max"),
)  # fmt: skip
all_ = op(
    "all", "x", doc="All are true over dims.",
    infer=_truth_infer("all"), numpy=lambda x, dims, keepdim: np.all(x, axis=dims, keepdims=keepdim),
    torch="torch.all({x}, {dims}, keepdim={keepdim})", factors=reduced("min"),
)  # fmt: skip

# -- means and moments


def count(shape: tuple[int, ...], dims: Dims) -> int:
    return math.prod(shape[d] for d in dims)


def _mean_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    """sum / n; halves add up and divide in float32, so that long sums do not overflow."""
    (x,) = inputs
    dims, dtype = attrs["dims"], x.type.dtype
    acc = float32 if dtype.itemsize == 2 else dtype
    s = sum(x, dims=dims, keepdim=attrs["keepdim"], dtype=acc)
    s = div(s, constant(count(x.type.shape, dims), s))
    return (s if acc is dtype else cast(s, dtype=dtype),)


def _mean_vjp(g: Var, y: Var, x: Var, dims: Dims, keepdim: bool) -> tuple[Var]:
    each = div(keep(g, x, dims, keepdim), constant(count(x.type.shape, dims), g))
    return (expand(each, shape=x.type.shape) if each.type.shape != x.type.shape else each,)


mean = op(
    "mean",
    "x",
    doc="Average over dims.",
    infer=_reduce_infer("mean", FLOATING),
    numpy=lambda x, dims, keepdim: (
        np.sum(wide(x), axis=dims, keepdims=keepdim) / np.asarray(count(x.shape, dims), wide(x).dtype)
    ),
    vjp=_mean_vjp,
    decompose=_mean_parts,
)


def _var_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    (x,) = inputs
    dims, dtype = attrs["dims"], x.type.dtype
    wide_x = cast(x, dtype=float32) if dtype.itemsize == 2 else x
    centred = sub(wide_x, mean(wide_x, dims=dims, keepdim=True))
    s = total(mul(centred, centred), dims, attrs["keepdim"])
    s = div(s, constant(max(count(x.type.shape, dims) - attrs["correction"], 0), s))
    return (s if s.type.dtype is dtype else cast(s, dtype=dtype),)


def _var_infer(x: TensorType, dims: Dims, keepdim: bool, correction: float) -> TensorType:
    if not isinstance(correction, int | float):
        raise TypeError(f"var(): expected correction to be a number, got {type(correction).__name__}")
    return _reduce_infer("var", "f")(x, dims, keepdim)


def _var_vjp(g: Var, y: Var, x: Var, dims: Dims, keepdim: bool, correction: float) -> tuple[Var]:
    scale = div(constant(2, g), constant(count(x.type.shape, dims) - correction, g))
    return (mul(mul(keep(g, x, dims, keepdim), scale), sub(x, mean(x, dims=dims, keepdim=True))),)


def _var_numpy(x: np.ndarray, dims: Dims, keepdim: bool, correction: float) -> np.ndarray:
    centred = wide(x) - np.sum(wide(x), axis=dims, keepdims=True) / np.asarray(count(x.shape, dims), wide(x).dtype)
    n = np.asarray(max(count(x.shape, dims) - correction, 0), wide(x).dtype)
    return np.sum(centred * centred, axis=dims, keepdims=keepdim) / n


var = op(
    "var", "x", doc="Variance over dims, divided by n - correction.",
    infer=_var_infer, numpy=_var_numpy, vjp=_var_vjp, decompose=_var_parts,
)  # fmt: skip

# -- logsumexp, norm, prod


def _logsumexp_numpy(x: np.ndarray, dims: Dims, keepdim: bool) -> np.ndarray:
    x = wide(x)
    top = np.max(x.real, axis=dims, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    out = np.log(np.sum(np.exp(x - top), axis=dims, keepdims=True)) + top
    return out if keepdim else np.squeeze(out, axis=dims)


def _logsumexp_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    """Shifted by the largest (real part), which may be infinite; over shards: a max and a sum."""
    (x,), dims, keepdim = inputs, attrs["dims"], attrs["keepdim"]
    shape = reduced_shape(x.type.shape, dims, keepdim)
    if count(x.type.shape, dims) == 0:
        return (log(total(exp(x), dims, keepdim)),)
    top = amax(real(x) if x.type.dtype.is_complex else x, dims=dims, keepdim=True)
    top = where(isfinite(top), top, constant(0, top))
    top = cast(top, dtype=x.type.dtype) if x.type.dtype.is_complex else top
    out = log(total(exp(sub(x, top)), dims, keepdim))
    return (add(out, top if keepdim else reshape(top, shape=shape)),)


logsumexp = op(
    "logsumexp", "x", doc="log(sum(exp(x))) over dims without overflow.",
    infer=_reduce_infer("logsumexp", FLOATING), numpy=_logsumexp_numpy,
    vjp=lambda g, y, x, dims, keepdim: (
        mul(keep(g, x, dims, keepdim), cj(exp(sub(x, keep(y, x, dims, keepdim))))),
    ),
    torch="torch.logsumexp({x}, {dims}, keepdim={keepdim})",
    factors=reduced("whole"), when_split=lambda inputs, attrs, shards: _logsumexp_parts(inputs, attrs), decompose=_logsumexp_parts,
)  # fmt: skip


def _norm_vjp(g: Var, y: Var, x: Var, dims: Dims, keepdim: bool) -> tuple[Var]:
    y, g = keep(y, x, dims, keepdim), keep(g, x, dims, keepdim)
    zero = constant(0, y)
    return (mul(where(eq(y, zero), zero, div(x, y)), g),)  # x / y is at most 1, where g / y may be beyond a half's range


def _norm_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    (x,) = inputs
    from_half = x.type.dtype.itemsize == 2
    v = cast(x, dtype=float32) if from_half else x
    out = sqrt(total(mul(v, v), attrs["dims"], attrs["keepdim"]))
    return (cast(out, dtype=x.type.dtype) if from_half else out,)


norm = op(
    "norm", "x", doc="Euclidean norm over dims; its gradient at 0 is 0.",
    infer=_reduce_infer("norm", "f"),
    numpy=lambda x, dims, keepdim: np.sqrt(np.sum(wide(x) * wide(x), axis=dims, keepdims=keepdim)),
    vjp=_norm_vjp,
    torch="torch.linalg.vector_norm({x}, 2, {dims}, {keepdim})",
    factors=reduced("whole"), when_split=lambda inputs, attrs, shards: _norm_parts(inputs, attrs), decompose=_norm_parts,
)  # fmt: skip


def _prod_vjp(g: Var, y: Var, x: Var, dims: Dims, keepdim: bool) -> tuple[Any]:
    """Times the product of the others: products before and after along the flattened dims, right at zeros too."""
    if not x.type.dtype.is_differentiable:
        return (None,)
    kept = tuple(d for d in range(x.type.ndim) if d not in dims)
    order = (*kept, *dims)
    moved = permute(x, dims=order) if order != tuple(range(x.type.ndim)) else x
    rows = tuple(x.type.shape[d] for d in kept)
    n = count(x.type.shape, dims)
    flat = reshape(moved, shape=(*rows, n))
    last = len(rows)
    others = mul(_exclusive(flat, last), flip(_exclusive(flip(flat, dims=(last,)), last), dims=(last,)))
    back = permute(reshape(others, shape=moved.type.shape), dims=tuple(int(i) for i in np.argsort(order)))
    return (mul(keep(g, x, dims, keepdim), cj(back)),)


def _exclusive(x: Any, dim: int) -> Any:
    """The product of all elements before each, along the last dim."""
    n = x.type.ndim
    size = x.type.shape[dim]
    if size == 0:
        return x
    starts = (0,) * n
    stops = (*x.type.shape[:-1], size - 1)
    head = slice(x, starts=starts, stops=stops, steps=(1,) * n)
    low = (0,) * (n - 1) + (1,)
    return cumprod(pad(head, low=low, high=starts, interior=starts, value=1.0), dim=dim)


prod = op(
    "prod", "x", doc="Product over dims.",
    infer=_reduce_infer("prod", "buifc"),
    numpy=lambda x, dims, keepdim: np.prod(wide(x), axis=dims, keepdims=keepdim, dtype=wide(x).dtype),
    torch="kernels.prod({x}, {dims}, {keepdim})",
    vjp=_prod_vjp, factors=reduced("whole"), shares=unchanged, saves="x y",
)  # fmt: skip

# -- scans


def _scan_infer(name: str, kinds: str) -> Any:
    def infer(x: TensorType, dim: int) -> TensorType:
        check_kind(name, kinds, x)
        return x

    return infer


def _split_cumsum(inputs: tuple[Any, ...], attrs: dict[str, Any], shards: int) -> tuple[Any, ...] | None:
    """Each part runs its own sum, from what all parts before it add up to; of halves in float32."""
    (x,), dim = inputs, attrs["dim"]
    shape, given = x.type.shape, x.type.dtype
    if shape[dim] % shards or shape[dim] == shards:
        return None
    if given in HALVES:
        x = cast(x, dtype=float32)
    parts = reshape(x, shape=(*shape[:dim], shards, shape[dim] // shards, *shape[dim + 1 :]))
    sums = sum(parts, dims=(dim + 1,), keepdim=True, dtype=x.type.dtype)
    none = (0,) * sums.type.ndim
    low = tuple(int(d == dim) for d in range(sums.type.ndim))
    longer = pad(sums, low=low, high=none, interior=none, value=0)
    shifted = slice(longer, starts=none, stops=sums.type.shape, steps=(1,) * sums.type.ndim)
    run = reshape(add(cumsum(parts, dim=dim + 1), cumsum(shifted, dim=dim)), shape=shape)
    return (run if given is x.type.dtype else cast(run, dtype=given),)


cumsum = op(
    "cumsum", "x", doc="Running sum along dim.",
    infer=_scan_infer("cumsum", "uifc"),
    numpy=lambda x, dim: np.cumsum(wide(x), axis=dim, dtype=wide(x).dtype) if x.ndim else x,
    torch="torch.cumsum({x}, {dim}).to({out})",
    vjp=lambda g, y, x, dim: (flip(cumsum(flip(g, dims=(dim,)), dim=dim), dims=(dim,)) if x.type.ndim else g,),
    factors=whole("dim"), linear=LINEAR, when_split=_split_cumsum,
)  # fmt: skip
cumprod = op(
    "cumprod", "x", doc="Running product along dim.",
    infer=_scan_infer("cumprod", "uifc"),
    numpy=lambda x, dim: np.cumprod(wide(x), axis=dim, dtype=wide(x).dtype) if x.ndim else x,
    torch="torch.cumprod({x}, {dim}).to({out})",
    vjp=lambda g, y, x, dim: (cumprod_backward(g, x, dim=dim),),
    factors=whole("dim"), saves="x y",
)  # fmt: skip


def _cumprod_backward_numpy(g: np.ndarray, x: np.ndarray, dim: int) -> np.ndarray:
    """sum over j >= i of g[j] times the product of x[0..j] without x[i]."""
    if not x.ndim:
        return g
    g, x = np.moveaxis(wide(g), dim, -1), np.moveaxis(wide(x), dim, -1)
    out = np.zeros(x.shape, x.dtype)
    for i in range(x.shape[-1]):
        without = x.copy()
        without[..., i] = 1
        out[..., i] = np.sum(g[..., i:] * np.cumprod(without, axis=-1)[..., i:].conj(), axis=-1)
    return np.moveaxis(out, -1, dim)


def _cumprod_backward_vjp(h: Var, y: Var, g: Var, x: Var, dim: int) -> tuple[Any, Any]:
    """Through rows[i, k], which is x[k] but 1 at k = i: y[i] is the sum over j >= i of g[j] times the running product of row i."""
    if not x.type.ndim:
        return h, zeros_like(x)
    shape = x.type.shape
    square = (*shape[:dim], shape[dim], *shape[dim:])
    down, across = (*shape[:dim], shape[dim], 1, *shape[dim + 1 :]), (*shape[:dim], 1, *shape[dim:])
    spread = lambda v, to: expand(reshape(v, shape=to), shape=square)  # noqa: E731
    i, k = (iota(shape=square, dim=d, dtype=int64) for d in (dim, dim + 1))
    rows = where(eq(i, k), constant(1, x), spread(x, across))
    after = where(ge(k, i), spread(h, down), constant(0, h))  # h[i] where k >= i
    g_of = total(mul(after, cumprod(rows, dim=dim + 1)), (dim,))
    rows_of = cumprod_backward(mul(cj(after), spread(g, across)), rows, dim=dim + 1)
    return g_of, total(where(eq(i, k), constant(0, x), rows_of), (dim,))


cumprod_backward = op(
    "cumprod_backward", "g x", doc="Gradient of cumprod, right at zeros too.",
    infer=lambda g, x, dim: x, numpy=_cumprod_backward_numpy,
    torch="kernels.cumprod_backward({g}, {x}, {dim})", vjp=_cumprod_backward_vjp,
    factors=whole("dim"), linear=LINEAR,
)  # fmt: skip


def _cummax_infer(x: TensorType, dim: int) -> tuple[TensorType, TensorType]:
    check_kind("cummax", REAL, x)
    return x, TensorType(x.shape, int64)


def _cum_extreme(best: Any) -> Any:
    def numpy(x: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
        if not x.ndim:
            return x, np.zeros((), np.int64)
        rows = np.moveaxis(x, dim, -1)
        values, index = rows.copy(), np.zeros(rows.shape, np.int64)
        for i in range(1, rows.shape[-1]):
            before, new = values[..., i - 1], rows[..., i]
            take = best(new, before) | (new != new)
            values[..., i] = np.where(take, new, before)
            index[..., i] = np.where(take, i, index[..., i - 1])
        return np.moveaxis(values, -1, dim), np.moveaxis(index, -1, dim)

    return numpy


for _name, _best in (("cummax", np.greater_equal), ("cummin", np.less_equal)):
    op(
        _name, "x", doc="Running extreme along dim, and where it is (the last of equals).",
        infer=_cummax_infer, numpy=_cum_extreme(_best), torch=f"tuple(torch.{_name}({{x}}, {{dim}}))",
        vjp=lambda gs, ys, x, dim: (
            None if gs[0] is None else scatter_add(zeros_like(x), ys[1], gs[0], dim=dim),
        ),
        factors=whole("dim"), saves="x y1",
    )  # fmt: skip
