"""Scaled dot product attention on torch's fused kernels, forward and backward.

Next: ``convolution``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Var, op
from gt.ir.ops import flops
from gt.ir.ops.broadcast import constant, expand, reshape, total, unbroadcast
from gt.ir.ops.compare import eq, le, where
from gt.ir.ops.creation import iota
from gt.ir.ops.elementwise import add, exp, mul, sub
from gt.ir.ops.families import check_kind, check_same, rule_of
from gt.ir.ops.matmul import matmul, wide
from gt.ir.ops.movement import swap_last
from gt.ir.ops.normalization import like, stat_dtype, up
from gt.ir.types import Shape, ShapeError, TensorType, broadcast_shapes, int64

Array = np.ndarray[Any, Any]


def _infer(
    q: TensorType, k: TensorType, v: TensorType, *mask: TensorType, is_causal: bool, scale: float
) -> tuple[TensorType, ...]:
    check_kind("scaled_dot_product_attention", "f", q)
    check_same("scaled_dot_product_attention", (q, k, v, *mask))
    fits = q.ndim == k.ndim == v.ndim == 4 and q.shape[:2] == k.shape[:2] == v.shape[:2]
    if not fits or q.shape[3] != k.shape[3] or k.shape[2] != v.shape[2]:
        raise ShapeError(
            f"scaled_dot_product_attention: expected [b, h, s, d], [b, h, t, d], [b, h, t, e], "
            f"got {q!r}, {k!r} and {v!r}"
        )
    scores = (*q.shape[:3], k.shape[2])
    for m in mask:
        if broadcast_shapes(m.shape, scores) != scores:
            raise ShapeError(f"scaled_dot_product_attention: the mask {m!r} does not broadcast to {list(scores)}")
    return TensorType((*q.shape[:3], v.shape[3]), q.dtype), TensorType(q.shape[:3], stat_dtype(q))


def _mask_names(operands: tuple[Shape, ...], at: int) -> list[list[str]]:
    """Name the dims of the mask, if there is one, as those of the scores it broadcasts to."""
    if len(operands) == at:
        return []
    mask = operands[at]
    names = ["b", "h", "s", "t"][4 - len(mask) :]
    return [[n if size != 1 else "" for n, size in zip(names, mask, strict=True)]]


def _rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    """Batch and heads pass; so do queries, unless causal: which keys they see depends on where they stand."""
    kinds: dict[str, fx.FactorKind] = {n: "whole" for n in ("t", "d", "e")}
    if attrs["is_causal"]:
        kinds["s"] = "whole"
    terms = [list("bhsd"), list("bhtd"), list("bhte"), *_mask_names(operands, 3)]
    return rule_of(terms, [list("bhse"), list("bhs")], (*operands, *results), kinds)


def _scores(q: Array, k: Array, mask: tuple[Array, ...], is_causal: bool, scale: float) -> Array:
    out = np.matmul(q, np.swapaxes(k, -1, -2)) * q.dtype.type(scale)
    for m in mask:
        out = out + wide(m)
    if is_causal:
        out = np.where(np.tril(np.ones(out.shape[-2:], bool)), out, -np.inf)
    return out


def _numpy(q: Array, k: Array, v: Array, *mask: Array, is_causal: bool, scale: float) -> tuple[Array, Array]:
    q, k, v = wide(q), wide(k), wide(v)
    scores = _scores(q, k, mask, is_causal, scale)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(scores - top)
    s = e.sum(axis=-1, keepdims=True)
    return np.matmul(e / np.where(s == 0, 1, s), v), (np.log(s) + top)[..., 0]


def _torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    mask = names[3] if len(names) == 4 else "None"
    return f"kernels.attention({', '.join(names[:3])}, {mask}, {attrs['is_causal']}, {attrs['scale']!r})"


def _vjp(
    gs: tuple[Any, Any], ys: tuple[Any, Any], q: Var, k: Var, v: Var, *mask: Var, is_causal: bool, scale: float
) -> tuple[Any, ...]:
    g, g_lse = gs
    out: list[Any] = [None] * (3 + len(mask))
    if g is not None:
        out[:3] = attention_backward(g, q, k, v, ys[0], ys[1], *mask, is_causal=is_causal, scale=scale)
    if g is not None and mask:
        out[3] = like(
            unbroadcast(_score_gradient(g, q, k, v, ys[0], ys[1], mask, is_causal, scale)[1], mask[0].type), mask[0]
        )
    if g_lse is not None:  # only a second derivative has one
        p = mul(_weights(q, k, ys[1], mask, is_causal, scale), _column(g_lse))
        extra = (
            like(mul(matmul(p, up(k)), constant(scale, p)), q),
            like(mul(matmul(swap_last(p), up(q)), constant(scale, p)), k),
        )
        for i, e in enumerate(extra):
            out[i] = e if out[i] is None else add(out[i], e)
        if mask:
            e = like(unbroadcast(p, mask[0].type), mask[0])
            out[3] = e if out[3] is None else add(out[3], e)
    return tuple(out)


def _saves(types: Sequence[TensorType], attrs: dict[str, Any], numbers: tuple[bool, ...]) -> str:
    """Torch's fused kernel takes heads of one width; else it multiplies scaled copies of q and k."""
    return "q k v y0" + " mask0" * (len(types) > 3) if types[0].shape[3] == types[2].shape[3] else "v:q,k"


scaled_dot_product_attention = op(
    "scaled_dot_product_attention",
    "q k v *mask",
    autocast="low", doc="softmax(q k^T * scale + mask) v: [b, h, s, d], [b, h, t, d], [b, h, t, e] -> [b, h, s, e]; also log-sums.",
    infer=_infer,
    numpy=_numpy,
    torch=_torch,
    vjp=_vjp,
    saves=_saves,
    factors=_rule,
    work=flops.attention,
)

# -- backward


def _column(x: Any) -> Any:
    return reshape(x, shape=(*x.type.shape, 1))


def _weights(q: Any, k: Any, lse: Any, mask: tuple[Any, ...], is_causal: bool, scale: float) -> Any:
    """The attention weights again, from the saved log-sums; 0 in rows that see nothing."""
    scores = matmul(up(q), swap_last(up(k)))
    scores = mul(scores, constant(scale, scores))
    for m in mask:
        scores = add(scores, up(m))
    if is_causal:
        s, t = scores.type.shape[-2:]
        seen = iota(shape=(s, t), dim=1, dtype=int64)
        scores = where(le(seen, iota(shape=(s, t), dim=0, dtype=int64)), scores, constant(float("-inf"), scores))
    top = _column(lse)
    dead = eq(top, constant(float("-inf"), top))
    top = where(dead, constant(0, top), top)
    weights = exp(sub(scores, expand(top, shape=scores.type.shape)))
    return where(dead, constant(0, weights), weights)


def _score_gradient(
    g: Any, q: Any, k: Any, v: Any, y: Any, lse: Any, mask: tuple[Any, ...], is_causal: bool, scale: float
) -> tuple[Any, Any]:
    """Give the weights and the gradient of the scores."""
    p = _weights(q, k, lse, mask, is_causal, scale)
    g = up(g)
    through = sub(matmul(g, swap_last(up(v))), total(mul(g, up(y)), (3,), keepdim=True))
    return p, mul(p, through)


def _backward_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    g, q, k, v, y, lse, *mask = inputs
    p, ds = _score_gradient(g, q, k, v, y, lse, tuple(mask), attrs["is_causal"], attrs["scale"])
    scale = constant(attrs["scale"], ds)
    return (
        like(mul(matmul(ds, up(k)), scale), q), like(mul(matmul(swap_last(ds), up(q)), scale), k),
        like(matmul(swap_last(p), up(g)), v),
    )  # fmt: skip


def _backward_numpy(
    g: Array, q: Array, k: Array, v: Array, y: Array, lse: Array, *mask: Array, is_causal: bool, scale: float
) -> tuple[Array, Array, Array]:
    g, q, k, v, y = map(wide, (g, q, k, v, y))
    dead = lse == -np.inf
    p = np.exp(_scores(q, k, mask, is_causal, scale) - np.where(dead, 0, lse)[..., None])
    p = np.where(dead[..., None], 0, p).astype(q.dtype)
    ds = p * (np.matmul(g, np.swapaxes(v, -1, -2)) - (g * y).sum(axis=-1, keepdims=True)) * q.dtype.type(scale)
    back = lambda a, b: np.matmul(np.swapaxes(a, -1, -2), b)  # noqa: E731
    return np.matmul(ds, k), back(ds, q), back(p, g)


def _backward_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    mask = names[6] if len(names) == 7 else "None"
    return f"kernels.attention_backward({', '.join(names[:6])}, {mask}, {attrs['is_causal']}, {attrs['scale']!r})"


def _backward_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    kinds: dict[str, fx.FactorKind] = {n: "whole" for n in ("s", "t", "d", "e")}
    terms = [list(t) for t in ("bhse", "bhsd", "bhtd", "bhte", "bhse", "bhs")] + _mask_names(operands, 6)
    return rule_of(terms, [list("bhsd"), list("bhtd"), list("bhte")], (*operands, *results), kinds)


attention_backward = op(
    "attention_backward", "g q k v y lse *mask",
    doc="Gradients of scaled_dot_product_attention for q, k and v.",
    infer=lambda g, q, k, v, y, lse, *mask, is_causal, scale: (q, k, v),
    numpy=_backward_numpy, torch=_backward_torch, decompose=_backward_parts, factors=_backward_rule,
    work=flops.attention_backward,
)  # fmt: skip
