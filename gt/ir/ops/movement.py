"""Ops that move elements and compute nothing: permute, slice, pad, cat, flip, roll.

Next: ``index`` (moves that follow data).
"""

from __future__ import annotations

from builtins import slice as slice_  # the name slice is the op here
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Local, Var, op
from gt.ir.ops.broadcast import constant
from gt.ir.ops.compare import lt, where
from gt.ir.ops.creation import iota
from gt.ir.ops.families import along, check_same, dim_names, moved, number, rule_of
from gt.ir.tiles import Rows, Span
from gt.ir.types import Shape, ShapeError, TensorType, TypeMismatch, int64

Ints = tuple[int, ...]
MOST_JOINED = 4  # operands that are joined part by part; more are read too often for that


def _permute_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    names = dim_names(len(operands[0]))
    return rule_of([names], [[names[d] for d in attrs["dims"]]], (*operands, *results))


def _permute_infer(x: TensorType, dims: Ints) -> TensorType:
    if sorted(dims) != list(range(x.ndim)):
        raise ShapeError(f"permute: dims {dims} do not name each of the {x.ndim} dims of {x!r} once")
    return TensorType(tuple(x.shape[d] for d in dims), x.dtype)


permute = op(
    "permute", "x",
    doc="Reorder the dims: result dim i is operand dim dims[i].",
    infer=_permute_infer,
    numpy=lambda x, dims: np.transpose(x, dims),
    torch="{x}.permute({dims})",
    vjp=lambda g, y, x, dims: (permute(g, dims=tuple(int(i) for i in np.argsort(dims))),),
    factors=_permute_rule, linear=((0,),), view=True,
)  # fmt: skip


def swap_last(x: Var) -> Any:
    """Exchange the last two dims."""
    n = x.type.ndim
    return permute(x, dims=(*range(n - 2), n - 1, n - 2))


# -- slices: starts, stops and steps for every dim, 0 <= start <= stop <= size, step >= 1


def slices(starts: Ints, stops: Ints, steps: Ints) -> tuple[slice_, ...]:
    return tuple(map(slice_, starts, stops, steps))


def _slice_infer(x: TensorType, starts: Ints, stops: Ints, steps: Ints) -> TensorType:
    if not len(starts) == len(stops) == len(steps) == x.ndim:
        raise ShapeError(f"slice: expected a start, stop and step for each of the {x.ndim} dims of {x!r}")
    for d, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        if not (0 <= start <= stop <= x.shape[d] and step >= 1):
            raise ShapeError(f"slice: {start}:{stop}:{step} is not inside dim {d} of {x!r}")
    return TensorType(tuple(-(-(b - a) // s) for a, b, s in zip(starts, stops, steps, strict=True)), x.dtype)


def cut_dims(shape: Shape, attrs: dict[str, Any]) -> set[int]:
    ranges = zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True)
    return {d for d, r in enumerate(ranges) if r != (0, shape[d], 1)}


def slice_local(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    """A dim that is cut is whole, or else what is cut off is just the end, of which no worker's part has less memory."""
    type_, sizes = where.global_inputs[0], where.inputs[0].shape
    cut = {d for d in cut_dims(type_.shape, attrs) if type_.sharding is None or not type_.sharding.dims[d]}
    return attrs | {"stops": tuple(s if d in cut else sizes[d] for d, s in enumerate(attrs["stops"]))}


def _slice_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    spans = (Span(0, a, n, s) for a, n, s in zip(attrs["starts"], results[0], attrs["steps"], strict=True))
    return moved(operands[0], Rows(tuple((s,) if s.count else () for s in spans), results[0]))


def _subscript(starts: Ints, stops: Ints, steps: Ints) -> str:
    parts = [f"{a}:{b}" + (f":{s}" if s != 1 else "") for a, b, s in zip(starts, stops, steps, strict=True)]
    return f"[{', '.join(parts)}]" if parts else "[()]"


slice = op(  # noqa: A001 - torch's name
    "slice", "x",
    doc="The elements start, start + step, ... before stop of each dim.",
    infer=_slice_infer,
    numpy=lambda x, starts, stops, steps: x[slices(starts, stops, steps)],
    torch=lambda names, attrs, types: names[0] + _subscript(attrs["starts"], attrs["stops"], attrs["steps"]),
    vjp=lambda g, y, x, starts, stops, steps: (spread(g, x.type.shape, starts, steps),),
    factors=_slice_rule, linear=((0,),), local=slice_local, view=True,
)  # fmt: skip


# -- pad: low and high rows of `value` around each dim, `interior` ones between its elements


def _pad_infer(x: TensorType, low: Ints, high: Ints, interior: Ints, value: float) -> TensorType:
    if not len(low) == len(high) == len(interior) == x.ndim or min((*low, *high, *interior), default=0) < 0:
        raise ShapeError(f"pad: expected low, high and interior >= 0 for each of the {x.ndim} dims of {x!r}")
    shape = (lo + hi + n + max(n - 1, 0) * i for n, lo, hi, i in zip(x.shape, low, high, interior, strict=True))
    return TensorType(tuple(shape), x.dtype)


def _pad_numpy(x: np.ndarray, low: Ints, high: Ints, interior: Ints, value: float) -> np.ndarray:
    sizes = [n + max(n - 1, 0) * i for n, i in zip(x.shape, interior, strict=True)]
    out = np.full([lo + n + hi for lo, n, hi in zip(low, sizes, high, strict=True)], value, x.dtype)
    out[tuple(slice_(lo, lo + n, i + 1) for lo, n, i in zip(low, sizes, interior, strict=True))] = x
    return out


def _pad_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    if any(attrs["interior"]):
        return (
            f"kernels.pad({names[0]}, {attrs['low']}, {attrs['high']}, {attrs['interior']}, {number(attrs['value'])})"
        )
    pairs = tuple(n for pair in zip(reversed(attrs["low"]), reversed(attrs["high"]), strict=True) for n in pair)
    return f"torch.nn.functional.pad({names[0]}, {pairs}, value={number(attrs['value'])})"


def _pad_vjp(g: Var, y: Var, x: Var, low: Ints, high: Ints, interior: Ints, value: float) -> tuple[Any]:
    sizes = tuple(n + max(n - 1, 0) * i for n, i in zip(x.type.shape, interior, strict=True))
    stops = tuple(lo + n for lo, n in zip(low, sizes, strict=True))
    return (slice(g, starts=low, stops=stops, steps=tuple(i + 1 for i in interior)),)


def _pad_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    spans = (Span(lo, 0, n, 1, i + 1 if n > 1 else 1) for n, lo, i in zip(operands[0], attrs["low"], attrs["interior"], strict=True))
    return moved(operands[0], Rows(tuple((s,) for s in spans), results[0], attrs["value"]))


pad = op(
    "pad",
    "x",
    doc="Rows of `value` around each dim (low, high) and between its elements (interior).",
    infer=_pad_infer,
    numpy=_pad_numpy,
    torch=_pad_torch,
    vjp=_pad_vjp,
    factors=_pad_rule,
    linear=lambda num_operands, attrs: ((0,),) if attrs["value"] == 0 else (),
)


def spread(g: Var, shape: Shape, starts: Ints, steps: Ints) -> Any:
    """Put a slice back at its place in zeros of ``shape``: the gradient of slice."""
    if 0 in g.type.shape:  # nothing to place, and the formula below needs an element
        steps = tuple(1 for _ in steps)
        starts = tuple(min(a, n - s) for a, n, s in zip(starts, shape, g.type.shape, strict=True))
    used = tuple((n - 1) * s + 1 if n else 0 for n, s in zip(g.type.shape, steps, strict=True))
    high = tuple(n - a - u for n, a, u in zip(shape, starts, used, strict=True))
    return pad(g, low=starts, high=high, interior=tuple(s - 1 for s in steps), value=0.0)


# -- cat, flip, roll


def _cat_infer(*types: TensorType, dim: int) -> TensorType:
    dtype, first = check_same("cat", types), types[0].shape
    for t in types[1:]:
        if t.ndim != len(first) or any(a != b for d, (a, b) in enumerate(zip(first, t.shape, strict=True)) if d != dim):
            raise ShapeError(f"cat: sizes must match except in dimension {dim}, got {types[0]!r} and {t!r}")
    if dim >= len(first):
        raise TypeMismatch("zero-dimensional tensor (at position 0) cannot be concatenated")
    size = 0
    for t in types:
        size += t.shape[dim]
    return TensorType((*first[:dim], size, *first[dim + 1 :]), dtype)


def _cat_vjp(g: Var, y: Var, *xs: Var, dim: int) -> tuple[Any, ...]:
    out, at, n = [], 0, g.type.ndim
    for x in xs:
        size = x.type.shape[dim]
        starts = tuple(at if d == dim else 0 for d in range(n))
        stops = tuple(at + size if d == dim else s for d, s in enumerate(g.type.shape))
        out.append(slice(g, starts=starts, stops=stops, steps=(1,) * n))
        at += size
    return tuple(out)


def _split_cat(inputs: tuple[Any, ...], attrs: dict[str, Any], shards: int) -> Any:
    """Each operand's rows go to where they stand in the result; each row there is taken from the operand that it is of."""
    dim, ndim = attrs["dim"], inputs[0].type.ndim
    rows = sum(x.type.shape[dim] for x in inputs)
    if rows < shards or len(inputs) > MOST_JOINED:
        return None
    line = iota(shape=tuple(rows if d == dim else 1 for d in range(ndim)), dim=dim, dtype=int64)
    result, at = None, 0
    for x in inputs:
        low = tuple(at if d == dim else 0 for d in range(ndim))
        high = tuple(rows - at - x.type.shape[dim] if d == dim else 0 for d in range(ndim))
        placed = pad(x, low=low, high=high, interior=(0,) * ndim, value=0)
        result = placed if result is None else where(lt(line, constant(at, line)), result, placed)
        at += x.type.shape[dim]
    return (result,)


cat = op(
    "cat", "*xs",
    doc="Join along dim.",
    infer=_cat_infer,
    numpy=lambda *xs, dim: np.concatenate(xs, axis=dim),
    torch=lambda names, attrs, types: f"torch.cat(({', '.join(names)},), {attrs['dim']})",
    vjp=_cat_vjp,
    factors=lambda operands, results, attrs: along(operands, results, {attrs["dim"]}), when_split=_split_cat,
    linear=lambda num_operands, attrs: (tuple(range(num_operands)),),
)  # fmt: skip

def _flip_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    (x,), turned = operands, set(attrs["dims"])
    return moved(x, Rows(tuple((Span(0, n - 1, n, -1) if d in turned else Span(0, 0, n),) for d, n in enumerate(x)), x))


def _turns(x: Shape, attrs: dict[str, Any]) -> list[int]:
    """Give by how much each dim is rolled in all: less than its rows."""
    by = [0] * len(x)
    for shift, d in zip(attrs["shifts"], attrs["dims"], strict=True):
        by[d] = (by[d] + shift) % max(x[d], 1)
    return by


def _roll_local(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    """A whole turn of a dim that is split leaves its rows where they are, though it isn't one of a padded part's rows."""
    by = _turns(where.global_inputs[0].shape, attrs)
    return attrs | {"shifts": tuple(by), "dims": tuple(range(len(by)))}


def _roll_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    (x,) = operands
    by = _turns(x, attrs)
    halves = lambda n, s: (Span(0, n - s, s), Span(s, 0, n - s)) if s else (Span(0, 0, n),)  # noqa: E731
    return moved(x, Rows(tuple(map(halves, x, by)), x))


flip = op(
    "flip", "x",
    doc="Reverse the order along dims.",
    infer=lambda x, dims: x,
    numpy=lambda x, dims: np.flip(x, dims),
    torch="torch.flip({x}, {dims})",
    vjp=lambda g, y, x, dims: (flip(g, dims=dims),),
    factors=_flip_rule,
    linear=((0,),),
)  # fmt: skip

roll = op(
    "roll", "x",
    doc="Shift along dims by shifts, wrapping around.",
    infer=lambda x, shifts, dims: x,
    numpy=lambda x, shifts, dims: np.roll(x, shifts, dims),
    torch="torch.roll({x}, {shifts}, {dims})",
    vjp=lambda g, y, x, shifts, dims: (roll(g, shifts=tuple(-s for s in shifts), dims=dims),),
    factors=_roll_rule,
    linear=((0,),),
    local=_roll_local,
)  # fmt: skip
