"""Convolution over any number of spatial dims, its two gradients, and pooling.

x is [n, c, *spatial], a weight [out, in / groups, *kernel], [in, out / groups, *kernel] if transposed. The gradients
are linear ops of their own, whose vjps are each other, so every order of derivative exists. Next: ``optim``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Linear, Var, op
from gt.ir.ops.broadcast import reshape, total, zeros_like
from gt.ir.ops.families import check_kind, check_same, rule_of
from gt.ir.ops.index import scatter_add
from gt.ir.ops.matmul import wide
from gt.ir.types import Shape, ShapeError, TensorType, int64

Array = np.ndarray[Any, Any]
Ints = tuple[int, ...]


def conv_shape(x: Shape, w: Shape, attrs: dict[str, Any]) -> Shape:
    """Give the result's shape."""
    geometry = zip(x[2:], w[2:], attrs["stride"], attrs["padding"], attrs["dilation"], strict=True)
    if attrs["transposed"]:
        spatial = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in geometry]
        spatial = [n + o for n, o in zip(spatial, attrs["output_padding"], strict=True)]
        return (x[0], w[1] * attrs["groups"], *spatial)
    return (x[0], w[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in geometry))


def _infer(x: TensorType, weight: TensorType, *bias: TensorType, **attrs: Any) -> TensorType:
    check_kind("convolution", "f", x)
    dtype = check_same("convolution", (x, weight, *bias))
    groups, transposed = attrs["groups"], attrs["transposed"]
    if (
        x.ndim != weight.ndim
        or x.ndim < 3
        or any(len(attrs[a]) != x.ndim - 2 for a in ("stride", "padding", "dilation"))
    ):
        raise ShapeError(f"convolution: expected [n, c, *spatial] and [out, in, *kernel], got {x!r} and {weight!r}")
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.shape[1] != channels or weight.shape[0] % groups:
        raise ShapeError(
            f"Given {f'transposed={int(transposed)}' if transposed else f'groups={groups}'}, weight of size {list(weight.shape)}, expected input{list(x.shape)} to have "
            f"{channels} channels, but got {x.shape[1]} channels instead"
        )
    shape = conv_shape(x.shape, weight.shape, attrs)
    if bias and bias[0].shape != shape[1:2]:
        raise ShapeError(f"convolution: expected a bias of [{shape[1]}], got {bias[0]!r}")
    if min(shape[2:]) < 0 or (not transposed and min(shape[2:]) < 1):
        raise ShapeError(
            f"Calculated output size: {list(shape)}. Output size is too small (kernel {list(weight.shape[2:])})"
        )
    return TensorType(shape, dtype)


# -- meaning: a plain convolution, its input's and its weight's gradient, each a sum over kernel positions


def _taps(out: Ints, kernel: Ints, stride: Ints, dilation: Ints) -> Iterator[tuple[Ints, tuple[slice, ...]]]:
    """Give for each kernel position the part of the padded input that it meets."""
    for at in itertools.product(*map(range, kernel)):
        yield (
            at,
            tuple(
                slice(a * d, a * d + (o - 1) * s + 1 if o else a * d, s)
                for a, d, o, s in zip(at, dilation, out, stride, strict=True)
            ),
        )


def _grouped(x: Array, groups: int) -> Array:
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _flat(x: Array) -> Array:
    return x.reshape(*x.shape[:3], math.prod(x.shape[3:]))


def _padded(x: Array, padding: Ints) -> Array:
    return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])


def _plain(x: Array, w: Array, out: Shape, attrs: dict[str, Any]) -> Array:
    groups, padded = attrs["groups"], _padded(x, attrs["padding"])
    y = np.zeros((x.shape[0], groups, out[1] // groups, *out[2:]), x.dtype)
    split = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    for at, window in _taps(out[2:], w.shape[2:], attrs["stride"], attrs["dilation"]):
        y += np.einsum("ngi...,goi->ngo...", _grouped(padded[(..., *window)], groups), split[(..., *at)])
    return y.reshape(out)


def _plain_input(g: Array, w: Array, shape: Shape, attrs: dict[str, Any]) -> Array:
    groups, padding = attrs["groups"], attrs["padding"]
    gx = np.zeros((*shape[:2], *(n + 2 * p for n, p in zip(shape[2:], padding, strict=True))), g.dtype)
    split = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    for at, window in _taps(g.shape[2:], w.shape[2:], attrs["stride"], attrs["dilation"]):
        piece = np.einsum("ngo...,goi->ngi...", _grouped(g, groups), split[(..., *at)])
        gx[(..., *window)] += piece.reshape(*shape[:2], *g.shape[2:])
    return gx[(..., *(slice(p, p + n) for n, p in zip(shape[2:], padding, strict=True)))]


def _plain_weight(g: Array, x: Array, shape: Shape, attrs: dict[str, Any]) -> Array:
    groups, padded = attrs["groups"], _padded(x, attrs["padding"])
    gw = np.zeros((groups, shape[0] // groups, *shape[1:]), g.dtype)
    for at, window in _taps(g.shape[2:], shape[2:], attrs["stride"], attrs["dilation"]):
        seen = _grouped(padded[(..., *window)], groups)
        gw[(..., *at)] = np.einsum("ngop,ngip->goi", _flat(_grouped(g, groups)), _flat(seen))
    return gw.reshape(shape)


def _numpy(x: Array, weight: Array, *bias: Array, **attrs: Any) -> Array:
    x, weight = wide(x), wide(weight)
    out = conv_shape(x.shape, weight.shape, attrs)
    y = _plain_input(x, weight, out, attrs) if attrs["transposed"] else _plain(x, weight, out, attrs)
    return y + bias[0].reshape(-1, *(1,) * (x.ndim - 2)) if bias else y


def _input_numpy(g: Array, weight: Array, shape: Shape, **attrs: Any) -> Array:
    run = _plain if attrs["transposed"] else _plain_input
    return run(wide(g), wide(weight), shape, attrs)


def _weight_numpy(g: Array, x: Array, shape: Shape, **attrs: Any) -> Array:
    g, x = wide(g), wide(x)
    return _plain_weight(x, g, shape, attrs) if attrs["transposed"] else _plain_weight(g, x, shape, attrs)


# -- torch source and rules


def _geometry(attrs: dict[str, Any]) -> str:
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    return ", ".join(repr(list(attrs[n]) if isinstance(attrs[n], tuple) else attrs[n]) for n in names)


def _torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    bias = names[2] if len(names) == 3 else "None"
    return f"torch.ops.aten.convolution({names[0]}, {names[1]}, {bias}, {_geometry(attrs)})"


def _rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any], roles: str) -> fx.Rule:
    """``roles``: for each operand, then the result: x, w, y or b(ias). Ungrouped channels pass or are summed over."""
    spatial = len(operands[0]) - 2
    x = ["n", "i", *(f"x{d}" for d in range(spatial))]
    y = ["n", "o", *(f"y{d}" for d in range(spatial))]
    kernel = [f"k{d}" for d in range(spatial)]
    w = ["i", "o", *kernel] if attrs["transposed"] else ["o", "i", *kernel]
    terms = [{"x": x, "y": y, "w": w, "b": ["o"]}[r] for r in roles]
    kinds: dict[str, fx.FactorKind] = {n: "whole" for n in (*x[2:], *y[2:], *kernel)}
    if attrs["groups"] > 1:
        kinds |= {"i": "whole", "o": "whole"}
        terms = [[f"{n}w" if n in "io" and r == "w" else n for n in t] for r, t in zip(roles, terms, strict=True)]
        kinds |= {"iw": "whole", "ow": "whole"}
    else:
        summed = ({"n", "i", "o"} - set(terms[-1])) & {n for t in terms[:-1] for n in t}
        kinds |= {n: "whole" if "b" in roles else "sum" for n in summed}
    if attrs["groups"] > 1 and roles[-1] == "w":
        kinds["n"] = "sum"
    return rule_of(terms[:-1], terms[-1:], (*operands, *results), kinds)


def _conv_vjp(g: Var, y: Var, x: Var, weight: Var, *bias: Var, **attrs: Any) -> tuple[Any, ...]:
    gx = convolution_input_grad(g, weight, shape=x.type.shape, **attrs)
    gw = convolution_weight_grad(g, x, shape=weight.type.shape, **attrs)
    return (gx, gw, *(total(g, (0, *range(2, g.type.ndim))) for _ in bias))


def _groups(num_operands: int, attrs: dict[str, Any]) -> Linear:
    return ((0, 2), (1, 2)) if num_operands == 3 else ((0,), (1,))


convolution = op(
    "convolution", "x weight *bias",
    autocast="low", doc="Cross-correlation with stride, padding, dilation and groups, or its transpose: [n, c, *] -> [n, out, *].",
    infer=_infer, numpy=_numpy, torch=_torch, vjp=_conv_vjp, linear=_groups,
    factors=lambda operands, results, attrs: _rule(operands, results, attrs, "xwby" if len(operands) == 3 else "xwy"),
)  # fmt: skip


def _grad_local(attrs: dict[str, Any], where: Any) -> dict[str, Any]:
    return attrs | {"shape": where.outputs[0].shape}


convolution_input_grad = op(
    "convolution_input_grad",
    "g weight",
    doc="Gradient of convolution for x, of `shape`.",
    infer=lambda g, weight, shape, **attrs: TensorType(shape, g.dtype),
    numpy=_input_numpy,
    torch=lambda names, attrs, types: (
        f"kernels.convolution_input_grad({names[0]}, {names[1]}, {attrs['shape']}, {_geometry(attrs)})"
    ),
    vjp=lambda gg, y, g, weight, shape, **attrs: (
        convolution(gg, weight, **attrs),
        convolution_weight_grad(g, gg, shape=weight.type.shape, **attrs),
    ),
    factors=lambda operands, results, attrs: _rule(operands, results, attrs, "ywx"),
    linear=((0,), (1,)),
    local=_grad_local,
)
convolution_weight_grad = op(
    "convolution_weight_grad",
    "g x",
    doc="Gradient of convolution for the weight, of `shape`.",
    infer=lambda g, x, shape, **attrs: TensorType(shape, g.dtype),
    numpy=_weight_numpy,
    torch=lambda names, attrs, types: (
        f"kernels.convolution_weight_grad({names[0]}, {names[1]}, {attrs['shape']}, {_geometry(attrs)})"
    ),
    vjp=lambda gg, y, g, x, shape, **attrs: (
        convolution(x, gg, **attrs),
        convolution_input_grad(g, gg, shape=x.type.shape, **attrs),
    ),
    factors=lambda operands, results, attrs: _rule(operands, results, attrs, "yxw"),
    linear=((0,), (1,)),
    local=_grad_local,
)

# -- pooling over the last two dims


def _pool_size(n: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> int:
    rest = n + 2 * p - d * (k - 1) - 1
    out = -(-rest // s) + 1 if ceil_mode else rest // s + 1
    return out - 1 if ceil_mode and (out - 1) * s >= n + p else out  # the last window must start inside


def _times(sizes: Shape) -> str:
    return "x".join(str(max(n, 0)) for n in sizes)


def _pool_shape(x: Shape, attrs: dict[str, Any]) -> Shape:
    dilation = attrs.get("dilation", (1, 1))
    each = zip(x[2:], attrs["kernel"], attrs["stride"], attrs["padding"], dilation, strict=True)
    shape = tuple(_pool_size(n, k, s, p, d, attrs["ceil_mode"]) for n, k, s, p, d in each)
    if min(shape) < 1:
        raise ShapeError(
            f"Given input size: ({_times(x[1:])}). Calculated output size: ({_times((x[1], *shape))}). Output size is too small for "
            f"kernel {list(attrs['kernel'])}"
        )
    return (*x[:2], *shape)


def _pool_infer(x: TensorType, **attrs: Any) -> TensorType:
    check_kind("pooling", "f", x)
    if x.ndim != 4:
        raise ShapeError(f"pooling: expected [n, c, h, w], got {x!r}")
    return TensorType(_pool_shape(x.shape, attrs), x.dtype)


def _windows(x: Array, out: Shape, attrs: dict[str, Any], fill: float) -> Array:
    """Give [n, c, *out, taps]: what each window sees, padding as ``fill``."""
    dilation = attrs.get("dilation", (1, 1))
    need = [
        (o - 1) * s + d * (k - 1) + 1
        for o, s, d, k in zip(out[2:], attrs["stride"], dilation, attrs["kernel"], strict=True)
    ]
    sides = [(p, max(m - n - p, 0)) for n, p, m in zip(x.shape[2:], attrs["padding"], need, strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *sides], constant_values=fill)
    return np.stack([padded[(..., *w)] for _, w in _taps(out[2:], attrs["kernel"], attrs["stride"], dilation)], -1)


def _max_pool_numpy(x: Array, **attrs: Any) -> tuple[Array, Array]:
    out = _pool_shape(x.shape, attrs)
    seen = _windows(x, out, attrs, -np.inf)
    place = np.broadcast_to(np.arange(math.prod(x.shape[2:]), dtype=np.float64).reshape(x.shape[2:]), x.shape)
    where = _windows(place, out, attrs, np.nan)
    best = np.argmax(np.where(np.isnan(where), -np.inf, seen), -1)  # the first of equals; NaN wins
    missing = np.isnan(np.take_along_axis(where, best[..., None], -1))
    first = np.argmax(~np.isnan(where), -1)[..., None]  # a window of -inf only: its first real element
    best = np.where(missing, first, best[..., None])
    return np.take_along_axis(seen, best, -1)[..., 0], np.take_along_axis(where, best, -1)[..., 0].astype(np.int64)


def _pool_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    kinds: dict[str, fx.FactorKind] = {n: "whole" for n in ("h", "w", "y", "x")}
    return rule_of([list("nchw")] * len(operands), [list("ncyx")] * len(results), (*operands, *results), kinds)


def _max_pool_vjp(gs: tuple[Any, Any], ys: tuple[Any, Any], x: Var, **attrs: Any) -> tuple[Any]:
    if gs[0] is None:
        return (None,)
    flat = lambda v: reshape(v, shape=(*v.type.shape[:2], v.type.shape[2] * v.type.shape[3]))  # noqa: E731
    return (reshape(scatter_add(zeros_like(flat(x)), flat(ys[1]), flat(gs[0]), dim=2), shape=x.type.shape),)


max_pool = op(
    "max_pool", "x",
    doc="Largest of each window of the last two dims, and its flat place there.",
    infer=lambda x, **attrs: (_pool_infer(x, **attrs), TensorType(_pool_shape(x.shape, attrs), int64)),
    numpy=_max_pool_numpy,
    torch="torch.ops.aten.max_pool2d_with_indices({x}, {kernel}, {stride}, {padding}, {dilation}, {ceil_mode})",
    vjp=_max_pool_vjp, factors=_pool_rule,
)  # fmt: skip


def _counts(shape: Shape, out: Shape, attrs: dict[str, Any]) -> Array:
    """How many elements each window divides by: padding counts if asked, what ceil_mode adds beyond it never does."""
    p = attrs["padding"]
    ones = np.ones((1, 1, *shape[2:]))
    if attrs["count_include_pad"]:
        ones = np.pad(ones, [(0, 0), (0, 0), *((n, n) for n in p)], constant_values=1)
        return _windows(ones, (1, 1, *out[2:]), attrs | {"padding": (0, 0)}, 0).sum(-1)
    return _windows(ones, (1, 1, *out[2:]), attrs, 0).sum(-1)


def _avg_pool_numpy(x: Array, **attrs: Any) -> Array:
    out = _pool_shape(x.shape, attrs)
    return _windows(wide(x), out, attrs, 0).sum(-1) / _counts(x.shape, out, attrs).astype(wide(x).dtype)


def _avg_pool_backward_numpy(g: Array, shape: Shape, **attrs: Any) -> Array:
    out = _pool_shape(shape, attrs)
    each = wide(g) / _counts(shape, out, attrs).astype(wide(g).dtype)
    p, k, s = attrs["padding"], attrs["kernel"], attrs["stride"]
    need = [max((o - 1) * a + b, n + 2 * q) for o, a, b, n, q in zip(out[2:], s, k, shape[2:], p, strict=True)]
    gx = np.zeros((*shape[:2], *need), each.dtype)
    for _, window in _taps(out[2:], k, s, (1, 1)):
        gx[(..., *window)] += each
    return gx[(..., *(slice(q, q + n) for q, n in zip(p, shape[2:], strict=True)))]


_AVG = "{kernel}, {stride}, {padding}, {ceil_mode}, {count_include_pad}"
avg_pool = op(
    "avg_pool", "x",
    doc="Average of each window of the last two dims.",
    infer=_pool_infer, numpy=_avg_pool_numpy, torch=f"torch.ops.aten.avg_pool2d({{x}}, {_AVG})",
    vjp=lambda g, y, x, **attrs: (avg_pool_backward(g, shape=x.type.shape, **attrs),),
    factors=_pool_rule, linear=((0,),),
)  # fmt: skip


avg_pool_backward = op(
    "avg_pool_backward", "g",
    doc="Gradient of avg_pool for x, of `shape`.",
    infer=lambda g, shape, **attrs: TensorType(shape, g.dtype), numpy=_avg_pool_backward_numpy,
    torch=f"kernels.avg_pool_backward({{g}}, {{shape}}, {_AVG})",
    vjp=lambda gg, y, g, shape, **attrs: (avg_pool(gg, **attrs),),
    factors=_pool_rule, linear=((0,),), local=_grad_local,
)  # fmt: skip
