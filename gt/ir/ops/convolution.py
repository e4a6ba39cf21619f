"""Convolution over any number of spatial dims, and its two gradients.

x is [n, c, *spatial], a weight [out, in / groups, *kernel], [in, out / groups, *kernel] if transposed. The gradients
are linear ops of their own, whose vjps are each other, so every order of derivative exists. Next: ``pooling``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Linear, Var, op
from gt.ir.ops import flops
from gt.ir.ops.broadcast import total
from gt.ir.ops.families import check_kind, check_same, rule_of
from gt.ir.ops.matmul import wide
from gt.ir.ops.windows import gathered, halo, paired, scattered
from gt.ir.types import Shape, ShapeError, TensorType

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


def taps(out: Ints, kernel: Ints, stride: Ints, dilation: Ints) -> Iterator[tuple[Ints, tuple[slice, ...]]]:
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
    for at, window in taps(out[2:], w.shape[2:], attrs["stride"], attrs["dilation"]):
        y += np.einsum("ngi...,goi->ngo...", _grouped(padded[(..., *window)], groups), split[(..., *at)])
    return y.reshape(out)


def _plain_input(g: Array, w: Array, shape: Shape, attrs: dict[str, Any]) -> Array:
    groups, padding = attrs["groups"], attrs["padding"]
    gx = np.zeros((*shape[:2], *(n + 2 * p for n, p in zip(shape[2:], padding, strict=True))), g.dtype)
    split = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    for at, window in taps(g.shape[2:], w.shape[2:], attrs["stride"], attrs["dilation"]):
        piece = np.einsum("ngo...,goi->ngi...", _grouped(g, groups), split[(..., *at)])
        gx[(..., *window)] += piece.reshape(*shape[:2], *g.shape[2:])
    return gx[(..., *(slice(p, p + n) for n, p in zip(shape[2:], padding, strict=True)))]


def _plain_weight(g: Array, x: Array, shape: Shape, attrs: dict[str, Any]) -> Array:
    groups, padded = attrs["groups"], _padded(x, attrs["padding"])
    gw = np.zeros((groups, shape[0] // groups, *shape[1:]), g.dtype)
    for at, window in taps(g.shape[2:], shape[2:], attrs["stride"], attrs["dilation"]):
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
    return f"kernels.convolution({names[0]}, {names[1]}, {bias}, {_geometry(attrs)})"


def _shape_of_windows(kernel: Shape, attrs: dict[str, Any]) -> list[Ints]:
    """Give each spatial dim's kernel, stride, padding and dilation."""
    return list(zip(kernel, attrs["stride"], attrs["padding"], attrs["dilation"], strict=True))


def _rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any], roles: str) -> fx.Rule:
    """``roles``: for each operand, then the result: x, w, y or b(ias). Ungrouped channels pass or are summed over.

    Rows of one side read windows of the other's, or pass where a kernel sees just one row.
    """
    shapes = dict(zip(roles, (*operands, *results), strict=True))
    geometry = _shape_of_windows(shapes["w"][2:], attrs)
    spatial = range(len(geometry))
    alone = [each[:3] == (1, 1, 0) and shapes["x"][d + 2] == shapes["y"][d + 2] for d, each in enumerate(geometry)]
    x = ["n", "i", *(f"x{d}" for d in spatial)]
    y = ["n", "o", *(f"x{d}" if alone[d] else f"y{d}" for d in spatial)]
    kernel = [f"k{d}" for d in spatial]
    w = ["i", "o", *kernel] if attrs["transposed"] else ["o", "i", *kernel]
    terms = [{"x": x, "y": y, "w": w, "b": ["o"]}[r] for r in roles]
    kinds: dict[str, fx.FactorKind] = {n: "whole" for d in spatial for n in (f"k{d}", *({x[d + 2], y[d + 2]} if not alone[d] else ()))}
    if attrs["groups"] > 1:
        kinds |= {"i": "whole", "o": "whole"}
        terms = [[f"{n}w" if n in "io" and r == "w" else n for n in t] for r, t in zip(roles, terms, strict=True)]
        kinds |= {"iw": "whole", "ow": "whole"}
    else:
        summed = ({"n", "i", "o"} - set(terms[-1])) & {n for t in terms[:-1] for n in t}
        kinds |= {n: "whole" if "b" in roles else "sum" for n in summed}
    if roles[-1] == "w":
        kinds |= {n: "sum" for n in ("n", *(x[d + 2] for d in spatial if alone[d]))}
    halos = []
    for d in spatial:
        sides = {"x": x[d + 2], "y": y[d + 2]}
        wide, narrow = ("y", "x") if attrs["transposed"] else ("x", "y")
        lead, other = (narrow, wide) if roles[-1] == "w" else (roles[0], "y" if roles[0] == "x" else "x")
        sizes = shapes[lead][d + 2], shapes[other][d + 2]
        found = None if alone[d] else halo(sides[lead], sides[other], sizes, geometry[d], windowed=lead == wide or roles[-1] == "w")
        if found is not None:
            halos.append(replace(found, moved=sides[wide], summed=True) if roles[-1] == "w" else found)
            kinds |= dict.fromkeys(sides.values(), "near")
    return rule_of(terms[:-1], terms[-1:], (*operands, *results), kinds, halos=halos)


# -- split rows: see ``windows``


def cut_dims(parts: Sequence[Ints]) -> dict[int, int]:
    """Give into how many parts spatial dims are split, of operands that are."""
    each = [max(of_dim) for of_dim in zip(*(p[2:] for p in parts), strict=True)]
    return {d + 2: k for d, k in enumerate(each) if k > 1}


def _without_padding(attrs: dict[str, Any], cut: dict[int, int], wide: Shape | None, base: Ints = ()) -> dict[str, Any]:
    """Give attributes for windows of the dims in ``cut``. ``wide``: how many rows of a transposed one's result there are."""
    clear = lambda name: tuple(0 if d + 2 in cut else n for d, n in enumerate(attrs[name]))  # noqa: E731
    extra = clear("output_padding")
    if wide is not None:
        extra = tuple(wide[d + 2] - base[d] if d + 2 in cut else n for d, n in enumerate(extra))
    return attrs | {"padding": clear("padding"), "output_padding": extra}


def _near_convolution(inputs: tuple[Any, ...], attrs: dict[str, Any], parts: Sequence[Ints]) -> list[Any]:
    x, weight, *bias = inputs
    shape, cut = conv_shape(x.type.shape, weight.type.shape, attrs), cut_dims(parts[:1])
    geometry = _shape_of_windows(weight.type.shape[2:], attrs)
    if not attrs["transposed"]:
        own = _without_padding(attrs, cut, None)
        return gathered(lambda z, _: convolution(z, weight, *bias, **own), x, shape, cut, geometry)

    def run(z: Any, rows: Shape) -> Any:
        base = tuple((n - 1) * s + d * (k - 1) + 1 for n, (k, s, _, d) in zip(z.type.shape[2:], geometry, strict=True))
        return convolution(z, weight, *bias, **_without_padding(attrs, cut, rows, base))

    return [scattered(run, [x], shape, cut, geometry)]


def _near_input_grad(inputs: tuple[Any, ...], attrs: dict[str, Any], parts: Sequence[Ints]) -> list[Any]:
    (g, weight), shape, cut = inputs, attrs.pop("shape"), cut_dims(parts[:1])
    geometry, own = _shape_of_windows(weight.type.shape[2:], attrs), _without_padding(attrs, cut, None)

    def run(z: Any, rows: Shape) -> Any:
        return convolution_input_grad(z, weight, shape=rows, **own)

    return gathered(run, g, shape, cut, geometry) if attrs["transposed"] else [scattered(run, [g], shape, cut, geometry)]


def _near_weight_grad(inputs: tuple[Any, ...], attrs: dict[str, Any], parts: Sequence[Ints]) -> list[Any]:
    (g, x), shape, cut = inputs, attrs.pop("shape"), cut_dims(parts)
    geometry, own = _shape_of_windows(shape[2:], attrs), _without_padding(attrs, cut, None)
    if attrs["transposed"]:
        return [paired(lambda a, b: convolution_weight_grad(b, a, shape=shape, **own), x, g, cut, geometry)]
    return [paired(lambda a, b: convolution_weight_grad(a, b, shape=shape, **own), g, x, cut, geometry)]


def _conv_vjp(g: Var, y: Var, x: Var, weight: Var, *bias: Var, **attrs: Any) -> tuple[Any, ...]:
    gx = convolution_input_grad(g, weight, shape=x.type.shape, **attrs)
    gw = convolution_weight_grad(g, x, shape=weight.type.shape, **attrs)
    return (gx, gw, *(total(g, (0, *range(2, g.type.ndim))) for _ in bias))


def _groups(num_operands: int, attrs: dict[str, Any]) -> Linear:
    return ((0, 2), (1, 2)) if num_operands == 3 else ((0,), (1,))


convolution = op(
    "convolution", "x weight *bias",
    autocast="low", doc="Cross-correlation with stride, padding, dilation and groups, or its transpose: [n, c, *] -> [n, out, *].",
    infer=_infer, numpy=_numpy, torch=_torch, vjp=_conv_vjp, linear=_groups, saves="x! weight!",
    factors=lambda operands, results, attrs: _rule(operands, results, attrs, "xwby" if len(operands) == 3 else "xwy"),
    near=_near_convolution, work=flops.convolution("xwy"),
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
    near=_near_input_grad,
    work=flops.convolution("ywx"),
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
    near=_near_weight_grad,
    work=flops.convolution("yxw"),
    linear=((0,), (1,)),
    local=_grad_local,
)


__all__ = [
    "conv_shape", "convolution", "convolution_input_grad", "convolution_weight_grad", "cut_dims", "taps",
]  # fmt: skip
