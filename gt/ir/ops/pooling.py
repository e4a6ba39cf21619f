"""Largest and average of sliding windows over the last two dims. Next: ``windows`` (split rows)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Var, op
from gt.ir.ops.broadcast import constant, reshape
from gt.ir.ops.convolution import cut_dims, taps
from gt.ir.ops.creation import iota
from gt.ir.ops.elementwise import add, floor_divide, maximum, minimum, mul, neg, remainder, sub
from gt.ir.ops.families import check_kind, local_shape, rule_of
from gt.ir.ops.index import gather
from gt.ir.ops.matmul import wide
from gt.ir.ops.windows import Added, gathered, halo, scattered
from gt.ir.types import Shape, ShapeError, TensorType, int64

Array = np.ndarray[Any, Any]
Ints = tuple[int, ...]


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
    return np.stack([padded[(..., *w)] for _, w in taps(out[2:], attrs["kernel"], attrs["stride"], dilation)], -1)


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


def _pool_geometry(attrs: dict[str, Any]) -> list[Ints]:
    return list(zip(attrs["kernel"], attrs["stride"], attrs["padding"], attrs.get("dilation", (1, 1)), strict=True))


def _pool_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    """Rows of the smaller side read windows. An average of what is not padding needs to know where it is: rows are whole."""
    kinds: dict[str, fx.FactorKind] = {n: "whole" for n in ("h", "w", "y", "x")}
    halos = []
    for d, (lead, other, each) in enumerate(zip("hw", "yx", _pool_geometry(attrs), strict=True)):
        sizes = operands[0][d + 2], results[0][d + 2]
        padded = "count_include_pad" in attrs and (attrs["ceil_mode"] or (each[2] and not attrs["count_include_pad"]))
        found = None if padded else halo(lead, other, sizes, each, windowed="shape" not in attrs)
        if found is not None:
            halos.append(found)
            kinds |= {lead: "near", other: "near"}
    return rule_of([list("nchw")] * len(operands), [list("ncyx")] * len(results), (*operands, *results), kinds, halos=halos)


def _near_pool(inputs: tuple[Any, ...], attrs: dict[str, Any], parts: Sequence[Ints]) -> list[Any]:
    (x,), cut, geometry = inputs, cut_dims(parts), _pool_geometry(attrs)
    own = attrs | {"padding": tuple(0 if d + 2 in cut else p for d, p in enumerate(attrs["padding"]))}
    if "shape" in attrs:
        run = lambda z, rows: avg_pool_backward(z, **own | {"shape": rows})  # noqa: E731
        return [scattered(run, [x], attrs["shape"], cut, geometry)]
    shape = _pool_shape(x.type.shape, attrs)
    if "dilation" not in attrs:
        return gathered(lambda z, _: avg_pool(z, **own), x, shape, cut, geometry)
    values, places = gathered(lambda z, _: max_pool(z, **own), x, shape, cut, geometry, -math.inf)
    return [values, _places(places, x.type.shape, shape, cut, geometry)]


def _places(places: Var, x: Shape, shape: Shape, cut: dict[int, int], geometry: Sequence[Ints]) -> Any:
    """Turn flat places in windows into such in the whole. One before all rows, of a window of -inf only, is its first real row."""
    number = lambda n: constant(n, places)  # noqa: E731
    found = []
    window = [x[2], x[3]]
    for d, k in cut.items():
        kernel, stride, _, dilation = geometry[d - 2]
        window[d - 2] = (-(-shape[d] // k) - 1) * stride + dilation * (kernel - 1) + 1
    for d, at in ((2, floor_divide(places, number(window[1]))), (3, remainder(places, number(window[1])))):
        if d in cut:
            _, stride, padding, dilation = geometry[d - 2]
            own = -(-shape[d] // cut[d])
            start = mul(floor_divide(iota(shape=shape, dim=d, dtype=int64), number(own)), number(own * stride))
            at = add(at, sub(start, number(padding)))
            at = maximum(at, remainder(at, number(dilation)))
        found.append(at)
    return add(mul(found[0], number(x[3])), found[1])


def _max_pool_vjp(gs: tuple[Any, Any], ys: tuple[Any, Any], x: Var, **attrs: Any) -> tuple[Any]:
    return (None if gs[0] is None else max_pool_backward(gs[0], ys[1], shape=x.type.shape, **attrs),)


max_pool = op(
    "max_pool", "x",
    doc="Largest of each window of the last two dims, and its flat place there.",
    infer=lambda x, **attrs: (_pool_infer(x, **attrs), TensorType(_pool_shape(x.shape, attrs), int64)),
    numpy=_max_pool_numpy,
    torch="torch.ops.aten.max_pool2d_with_indices({x}, {kernel}, {stride}, {padding}, {dilation}, {ceil_mode})",
    vjp=_max_pool_vjp, factors=_pool_rule, near=_near_pool, saves="x! y1",
)  # fmt: skip


def _max_backward_numpy(g: Array, places: Array, shape: Shape, **attrs: Any) -> Array:
    flat = np.zeros((*shape[:2], math.prod(shape[2:])), wide(g).dtype)
    n, c = np.ogrid[: shape[0], : shape[1]]
    np.add.at(flat, (n[..., None], c[..., None], places.reshape(*shape[:2], -1)), wide(g).reshape(*shape[:2], -1))
    return flat.reshape(shape)


def _flat(x: Var) -> Any:
    return reshape(x, shape=(*x.type.shape[:2], math.prod(x.type.shape[2:])))


def _max_backward_vjp(gg: Var, y: Var, g: Var, places: Var, **attrs: Any) -> tuple[Any, None]:
    return reshape(gather(_flat(gg), _flat(places), dim=2), shape=g.type.shape), None


def _near_max_backward(inputs: tuple[Any, ...], attrs: dict[str, Any], parts: Sequence[Ints]) -> list[Any]:
    cut, geometry, shape = cut_dims(parts), _pool_geometry(attrs), attrs["shape"]

    def prepare(pieces: list[Any], added: Mapping[int, Added]) -> list[Any]:
        """Turn flat places in the whole into such in what a window makes; beside the result's rows there is nothing to add."""
        g, places = pieces
        number = lambda n: constant(n, places)  # noqa: E731
        sizes = [added[d].rows if d in added else shape[d] for d in (2, 3)]
        found = []
        for d, at in ((2, floor_divide(places, number(shape[3]))), (3, remainder(places, number(shape[3])))):
            if d in added:
                kernel, stride, padding, dilation = geometry[d - 2]
                window = floor_divide(iota(shape=places.type.shape, dim=d, dtype=int64), number(added[d].cut.size))
                part = add(mul(window, number(added[d].own)), number(padding))
                before = neg(floor_divide(sub(number(dilation * (kernel - 1)), part), number(stride)))
                start = minimum(before, floor_divide(part, number(stride)))
                at = sub(at, sub(mul(start, number(stride)), number(padding)))
                at = minimum(maximum(at, number(0)), number(added[d].rows - 1))
            found.append(at)
        return [g, add(mul(found[0], number(sizes[1])), found[1])]

    run = lambda g, places, rows: max_pool_backward(g, places, **attrs | {"shape": rows})  # noqa: E731
    return [scattered(run, inputs, shape, cut, geometry, prepare)]


max_pool_backward = op(
    "max_pool_backward", "g places",
    doc="Gradient of max_pool for x, of `shape`: g added at flat places of the last two dims.",
    infer=lambda g, places, shape, **attrs: TensorType(shape, g.dtype), numpy=_max_backward_numpy,
    torch="{g}.new_zeros({shape}).flatten(2).scatter_add_(2, {places}.flatten(2), {g}.flatten(2)).reshape({shape})",
    vjp=_max_backward_vjp, factors=_pool_rule, linear=((0,),), local=local_shape, near=_near_max_backward, indices=(1,),
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
    for _, window in taps(out[2:], k, s, (1, 1)):
        gx[(..., *window)] += each
    return gx[(..., *(slice(q, q + n) for q, n in zip(p, shape[2:], strict=True)))]


_AVG = "{kernel}, {stride}, {padding}, {ceil_mode}, {count_include_pad}"
avg_pool = op(
    "avg_pool", "x",
    doc="Average of each window of the last two dims.",
    infer=_pool_infer, numpy=_avg_pool_numpy, torch=f"torch.ops.aten.avg_pool2d({{x}}, {_AVG})",
    vjp=lambda g, y, x, **attrs: (avg_pool_backward(g, shape=x.type.shape, **attrs),),
    factors=_pool_rule, linear=((0,),), near=_near_pool,
)  # fmt: skip


avg_pool_backward = op(
    "avg_pool_backward", "g",
    doc="Gradient of avg_pool for x, of `shape`.",
    infer=lambda g, shape, **attrs: TensorType(shape, g.dtype), numpy=_avg_pool_backward_numpy,
    torch=f"kernels.avg_pool_backward({{g}}, {{shape}}, {_AVG})",
    vjp=lambda gg, y, g, shape, **attrs: (avg_pool(gg, **attrs),),
    factors=_pool_rule, linear=((0,),), local=local_shape, near=_near_pool,
)  # fmt: skip
