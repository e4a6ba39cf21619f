"""Normalization layers with torch's kernels: layer, rms, group and batch norm.

Forward ops also give what their backward needs (mean, reciprocal deviation). Backward ops have their own torch
kernels and decompose, through which they are differentiated again. Next: ``attention``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Var, op
from gt.ir.ops.broadcast import cast, constant, expand, reshape, total, unbroadcast
from gt.ir.ops.elementwise import add, div, mul, neg, rsqrt, sub
from gt.ir.ops.families import check_kind, check_same, dim_names, rule_of
from gt.ir.ops.matmul import wide
from gt.ir.ops.reduce import mean
from gt.ir.types import Shape, ShapeError, TensorType, bfloat16, float16, float32

Array = np.ndarray[Any, Any]


def stat_dtype(x: TensorType) -> Any:
    return float32 if x.dtype in (float16, bfloat16) else x.dtype


def up(x: Any) -> Any:
    """Give halves as float32, in which the statistics are."""
    return cast(x, dtype=float32) if x.type.dtype.itemsize == 2 else x


def like(x: Any, ref: Any) -> Any:
    return x if x.type.dtype is ref.type.dtype else cast(x, dtype=ref.type.dtype)


# -- layer norm: over the last dims, those of the weight


def _layer_infer(x: TensorType, weight: TensorType, bias: TensorType, eps: float) -> tuple[TensorType, ...]:
    check_kind("layer_norm", "f", x)
    check_same("layer_norm", (x, weight, bias))
    n = weight.ndim
    if not n or weight.shape != bias.shape or x.shape[x.ndim - n :] != weight.shape:
        raise ShapeError(
            f"Given normalized_shape={list(weight.shape)}, expected input with shape [*, "
            f"{', '.join(map(str, weight.shape))}], but got input of size{list(x.shape)}"
        )
    stat = TensorType((*x.shape[: x.ndim - n], *(1,) * n), stat_dtype(x))
    return x, stat, stat


def _layer_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    """x, weight, bias -> y, mean, rstd: leading dims pass."""
    names = dim_names(len(operands[0]))
    lead = len(names) - len(operands[1])
    stat = names[:lead] + [""] * len(operands[1])
    kinds: dict[str, fx.FactorKind] = {n: "whole" for n in names[lead:]}
    return rule_of([names, names[lead:], names[lead:]], [names, stat, stat], (*operands, *results), kinds)


def _last(x: Any, weight: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim - weight.ndim, x.ndim))


def _layer_numpy(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    axes, v = _last(x, weight), wide(x)
    m = np.mean(v, axis=axes, keepdims=True)
    r = 1 / np.sqrt(np.mean((v - m) ** 2, axis=axes, keepdims=True) + v.dtype.type(eps))
    return (v - m) * r * wide(weight) + wide(bias), m, r


def _layer_vjp(gs: tuple[Any, ...], ys: tuple[Any, ...], x: Var, weight: Var, bias: Var, eps: float) -> tuple[Any, ...]:
    g, g_mean, g_rstd = gs
    gx, gw, gb = layer_norm_backward(g, x, ys[1], ys[2], weight) if g is not None else (None, None, None)
    v, n = up(x), math.prod(weight.type.shape)
    parts = []  # gradients of the statistics: only a second derivative has them
    if g_mean is not None:
        parts.append(div(g_mean, constant(n, g_mean)))
    if g_rstd is not None:  # rstd = (var + eps) ** -0.5
        cube = mul(mul(ys[2], ys[2]), ys[2])
        parts.append(neg(mul(mul(g_rstd, cube), div(sub(v, ys[1]), constant(n, v)))))
    for part in parts:
        whole = like(part if part.type.shape == x.type.shape else expand(part, shape=x.type.shape), x)
        gx = whole if gx is None else add(gx, whole)
    return gx, gw, gb


def _split_layer(inputs: tuple[Any, ...], attrs: dict[str, Any], shards: int) -> tuple[Any, ...]:
    """Over parts of the normalized dims: the statistics are sums over all of them."""
    x, weight, bias = inputs
    v, axes = up(x), tuple(range(x.type.ndim - weight.type.ndim, x.type.ndim))
    m = mean(v, dims=axes, keepdim=True)
    centred = sub(v, m)
    r = rsqrt(add(mean(mul(centred, centred), dims=axes, keepdim=True), constant(attrs["eps"], v)))
    return like(add(mul(mul(centred, r), up(weight)), up(bias)), x), m, r


layer_norm = op(
    "layer_norm", "x weight bias",
    doc="(x - mean) / sqrt(var + eps) * weight + bias over the weight's dims; also mean and 1 / sqrt(var + eps).",
    infer=_layer_infer, numpy=_layer_numpy,
    torch="kernels.layer_norm({x}, {weight}, {bias}, {eps})",
    vjp=_layer_vjp, factors=_layer_rule, when_split=_split_layer, saves="x weight bias",
)  # fmt: skip


def _layer_backward_numpy(g: Array, x: Array, m: Array, r: Array, weight: Array) -> tuple[Array, Array, Array]:
    axes, lead = _last(x, weight), tuple(range(x.ndim - weight.ndim))
    g, x, weight = wide(g), wide(x), wide(weight)
    normal = (x - m) * r
    gw = g * weight
    gx = r * (gw - gw.mean(axis=axes, keepdims=True) - normal * (gw * normal).mean(axis=axes, keepdims=True))
    return gx, (g * normal).sum(axis=lead), g.sum(axis=lead)


def _layer_backward_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    g, x, m, r, weight = inputs
    gu, v = up(g), up(x)
    n = weight.type.ndim
    axes, lead = tuple(range(x.type.ndim - n, x.type.ndim)), tuple(range(x.type.ndim - n))
    normal = mul(sub(v, m), r)
    gw = mul(gu, up(weight))
    inner = sub(gw, mean(gw, dims=axes, keepdim=True))
    gx = mul(r, sub(inner, mul(normal, mean(mul(gw, normal), dims=axes, keepdim=True))))
    gweight = mul(gu, normal)
    return (
        like(gx, x),
        like(total(gweight, lead) if lead else gweight, weight),
        like(total(gu, lead) if lead else gu, weight),
    )


def _layer_backward_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    """Leading dims pass to the gradient of x; the other gradients are partial sums over them."""
    names = dim_names(len(operands[0]))
    lead = len(names) - len(operands[4])
    stat = names[:lead] + [""] * len(operands[4])
    kinds: dict[str, fx.FactorKind] = {n: "sum" if d < lead else "whole" for d, n in enumerate(names)}
    tail = names[lead:]
    return rule_of([names, names, stat, stat, tail], [names, tail, tail], (*operands, *results), kinds)


layer_norm_backward = op(
    "layer_norm_backward", "g x mean rstd weight",
    doc="Gradients of layer_norm for x, weight and bias.",
    infer=lambda g, x, m, r, weight: (x, weight, weight),
    numpy=_layer_backward_numpy,
    torch="kernels.layer_norm_backward({g}, {x}, {mean}, {rstd}, {weight})",
    decompose=_layer_backward_parts,
    factors=_layer_backward_rule, linear=((0,),),
    when_split=lambda inputs, attrs, shards: _layer_backward_parts(inputs, attrs),
)  # fmt: skip


# -- rms norm


def _rms_infer(x: TensorType, weight: TensorType, eps: float) -> TensorType:
    check_kind("rms_norm", "f", x)
    check_same("rms_norm", (x, weight))
    if not weight.ndim or x.shape[x.ndim - weight.ndim :] != weight.shape:
        raise ShapeError(f"rms_norm: expected [*, {', '.join(map(str, weight.shape))}], got {x!r}")
    return x


def _rms_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    names = dim_names(len(operands[0]))
    lead = len(names) - len(operands[1])
    kinds: dict[str, fx.FactorKind] = {n: "whole" for n in names[lead:]}
    return rule_of([names, names[lead:]], [names], (*operands, *results), kinds)


def _rms_numpy(x: Array, weight: Array, eps: float) -> Array:
    v = wide(x)
    return v / np.sqrt(np.mean(v * v, axis=_last(x, weight), keepdims=True) + v.dtype.type(eps)) * wide(weight)


def _rms_vjp(g: Var, y: Var, x: Var, weight: Var, eps: float) -> tuple[Any, Any]:
    axes = tuple(range(x.type.ndim - weight.type.ndim, x.type.ndim))
    v, gu = up(x), up(g)
    r = rsqrt(add(mean(mul(v, v), dims=axes, keepdim=True), constant(eps, v)))
    normal = mul(v, r)
    gw = mul(gu, up(weight))
    gx = mul(r, sub(gw, mul(normal, mean(mul(gw, normal), dims=axes, keepdim=True))))
    return like(gx, x), like(unbroadcast(mul(gu, normal), weight.type.placed(None)), weight)


def _split_rms(inputs: tuple[Any, ...], attrs: dict[str, Any], shards: int) -> tuple[Any, ...]:
    x, weight = inputs
    v, axes = up(x), tuple(range(x.type.ndim - weight.type.ndim, x.type.ndim))
    r = rsqrt(add(mean(mul(v, v), dims=axes, keepdim=True), constant(attrs["eps"], v)))
    return (like(mul(mul(v, r), up(weight)), x),)


rms_norm = op(
    "rms_norm", "x weight",
    doc="x / sqrt(mean(x * x) + eps) * weight over the weight's dims.",
    infer=_rms_infer, numpy=_rms_numpy,
    torch="torch.nn.functional.rms_norm({x}, {weight}.shape, {weight}, {eps})",
    vjp=_rms_vjp, factors=_rms_rule, when_split=_split_rms, saves="x:x weight:x",
)  # fmt: skip


# -- group norm and batch norm decompose: Inductor fuses the parts


def _group_infer(x: TensorType, weight: TensorType, bias: TensorType, groups: int, eps: float) -> TensorType:
    check_kind("group_norm", "f", x)
    check_same("group_norm", (x, weight, bias))
    if x.ndim < 2 or x.shape[1] % groups or weight.shape != (x.shape[1],) or bias.shape != weight.shape:
        raise ShapeError(
            f"Expected number of channels in input to be divisible by num_groups, got {x!r} and {groups} groups"
        )
    return x


def _per_channel(p: Any, ndim: int) -> Any:
    return reshape(p, shape=(p.type.shape[0], *(1,) * (ndim - 2)))


def _group_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    x, weight, bias = inputs
    groups, shape = attrs["groups"], x.type.shape
    v = reshape(up(x), shape=(shape[0], groups, shape[1] // groups, *shape[2:]))
    axes = tuple(range(2, v.type.ndim))
    centred = sub(v, mean(v, dims=axes, keepdim=True))
    r = rsqrt(add(mean(mul(centred, centred), dims=axes, keepdim=True), constant(attrs["eps"], v)))
    normal = reshape(mul(centred, r), shape=shape)
    out = add(mul(normal, up(_per_channel(weight, len(shape)))), up(_per_channel(bias, len(shape))))
    return (like(out, x),)


def _group_numpy(x: Array, weight: Array, bias: Array, groups: int, eps: float) -> Array:
    v = wide(x).reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    axes = tuple(range(2, v.ndim))
    centred = v - v.mean(axis=axes, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + v.dtype.type(eps))
    tail = (-1, *(1,) * (x.ndim - 2))
    return normal.reshape(x.shape) * wide(weight).reshape(tail) + wide(bias).reshape(tail)


group_norm = op(
    "group_norm", "x weight bias",
    doc="Normalize each group of channels (dim 1) of each example, then scale and shift by channel.",
    infer=_group_infer, numpy=_group_numpy, decompose=_group_parts, saves="x weight",
)  # fmt: skip


def _batch_infer(x: TensorType, weight: TensorType, bias: TensorType, eps: float) -> tuple[TensorType, ...]:
    check_kind("batch_norm", "f", x)
    check_same("batch_norm", (x, weight, bias))
    if x.ndim < 2 or weight.shape != (x.shape[1],) or bias.shape != weight.shape:
        raise ShapeError(f"batch_norm: expected [n, c, ...] and [c], got {x!r} and {weight!r}")
    stat = TensorType(weight.shape, stat_dtype(x))
    return x, stat, stat


def _batch_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    x, weight, bias = inputs
    v, n = up(x), x.type.ndim
    axes = (0, *range(2, n))
    m = mean(v, dims=axes, keepdim=True)
    centred = sub(v, m)
    variance = mean(mul(centred, centred), dims=axes, keepdim=True)
    scale = mul(rsqrt(add(variance, constant(attrs["eps"], v))), up(_per_channel(weight, n)))
    out = add(mul(centred, scale), up(_per_channel(bias, n)))
    c = (x.type.shape[1],)
    return like(out, x), reshape(m, shape=c), reshape(variance, shape=c)


def _batch_numpy(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    v, axes, tail = wide(x), (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    m = v.mean(axis=axes, keepdims=True)
    variance = ((v - m) ** 2).mean(axis=axes, keepdims=True)
    scale = 1 / np.sqrt(variance + v.dtype.type(eps)) * wide(weight).reshape(tail)
    return (v - m) * scale + wide(bias).reshape(tail), m.reshape(-1), variance.reshape(-1)


batch_norm = op(
    "batch_norm",
    "x weight bias",
    doc="Normalize each channel (dim 1) over the whole batch, all shards included; also mean and biased variance.",
    infer=_batch_infer,
    numpy=_batch_numpy,
    decompose=_batch_parts,
    saves="x! weight!",
)
