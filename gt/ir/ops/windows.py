"""Ops over sliding windows where their dims are split: on one window of rows for each worker, its own and some of its
neighbours'.

The windows of all workers are one value, window behind window, split between them: ``windows`` makes it, which sends each
worker the rows it lacks, and *folded* it has one more batch entry for each window, so the op itself stays as it is.
Owns: ``windows``, ``gathered`` (a result row reads a window), ``scattered`` (an operand row adds to one), ``paired`` (both
are summed over), ``halo`` (their rule). Next: ``convolution``, ``gt.passes.split_ops``.
"""

from __future__ import annotations

import itertools
import math
from builtins import slice as slice_
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Local, Var, op
from gt.ir.ops.broadcast import reshape
from gt.ir.ops.elementwise import add
from gt.ir.ops.families import moved
from gt.ir.ops.movement import permute, slice, spread
from gt.ir.tiles import Rows, Span
from gt.ir.types import Shape, TensorType

Ints = tuple[int, ...]
Parts = Mapping[int, int]  # into how many parts a dim is split


def _rows_numpy(x: np.ndarray, rows: Any, sizes: Shape, fill: float) -> np.ndarray:
    out = np.full(sizes, fill, x.dtype)
    for spans in itertools.product(*Rows.of(rows, sizes, fill).spans):
        at = tuple(slice_(s.at, s.at + s.count) for s in spans)
        out[at] = x[tuple(slice_(s.start, s.start + s.count) for s in spans)]
    return out


def _windows_vjp(g: Var, y: Var, x: Var, rows: Any, sizes: Shape, fill: float) -> tuple[Any]:
    total: Any = None
    for spans in itertools.product(*Rows.of(rows, sizes, fill).spans):
        starts, stops = tuple(s.at for s in spans), tuple(s.at + s.count for s in spans)
        part = slice(g, starts=starts, stops=stops, steps=(1,) * len(spans))
        part = spread(part, x.type.shape, tuple(s.start for s in spans), (1,) * len(spans))
        total = part if total is None else add(total, part)
    return (total,)


def _local(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    """A dim that keeps all of its rows may be split; then it keeps all of a part's."""
    shape, local = where.global_inputs[0].shape, where.inputs[0].shape
    kept = [size == n and spans == ((0, 0, n, 1, 1),) for n, size, spans in zip(shape, attrs["sizes"], attrs["rows"], strict=True)]
    rows = tuple(((0, 0, n, 1, 1),) if same else spans for n, same, spans in zip(local, kept, attrs["rows"], strict=True))
    return attrs | {"rows": rows, "sizes": where.outputs[0].shape}


windows = op(
    "windows", "x",
    doc="Rows of each dim by spans (at, start, count, step, spread) of the result, one behind another, `fill` elsewhere.",
    infer=lambda x, rows, sizes, fill: TensorType(sizes, x.dtype),
    numpy=_rows_numpy, torch="kernels.windows({x}, {rows}, {sizes}, {fill})", vjp=_windows_vjp,
    factors=lambda operands, results, attrs: moved(operands[0], Rows.of(attrs["rows"], attrs["sizes"], attrs["fill"])),
    linear=lambda num_operands, attrs: ((0,),) if attrs["fill"] == 0 else (), local=_local,
)  # fmt: skip


# -- the windows of a dim, and what is done to all of them


@dataclass(frozen=True)
class Cut:
    """Equal windows of one dim: window ``i`` is rows ``starts[i]`` on, of which those from ``stops[i]`` on are ``fill``."""

    starts: Ints
    size: int
    stops: Ints

    def spans(self, rows: int) -> tuple[Span, ...]:
        found = []
        for i, (start, stop) in enumerate(zip(self.starts, self.stops, strict=True)):
            first, last = max(start, 0), min(start + self.size, stop, rows)
            if last > first:
                found.append(Span(i * self.size + first - start, first, last - first))
        return tuple(found)


def cut(x: Any, cuts: Mapping[int, Cut], fill: float = 0.0) -> Any:
    """Give the windows of dims behind one another."""
    shape = x.type.shape
    spans = tuple(cuts[d].spans(n) if d in cuts else (Span(0, 0, n),) for d, n in enumerate(shape))
    sizes = tuple(len(cuts[d].starts) * cuts[d].size if d in cuts else n for d, n in enumerate(shape))
    if sizes == shape and all(merged(s, n) for s, n in zip(spans, shape, strict=True)):
        return x
    return windows(x, rows=Rows(spans, sizes, fill).attr, sizes=sizes, fill=fill)


def merged(spans: Sequence[Span], rows: int) -> bool:
    """Whether spans are all rows at their place."""
    return all(s.at == s.start for s in spans) and sum(s.count for s in spans) == rows


def fold(x: Any, parts: Parts) -> Any:
    """Make windows that stand behind one another in dims entries of the batch, dim 0."""
    shape: list[int] = []
    fronts: list[int] = []
    for d, n in enumerate(x.type.shape):
        if d in parts:
            fronts.append(len(shape))
            shape.append(parts[d])
        shape.append(n // parts.get(d, 1))
    apart = reshape(x, shape=tuple(shape))
    order = (*fronts, *(d for d in range(len(shape)) if d not in fronts))
    front = permute(apart, dims=order)
    sizes = front.type.shape
    k = len(fronts)
    return reshape(front, shape=(math.prod(sizes[: k + 1]), *sizes[k + 1 :]))


def unfold(y: Any, parts: Parts) -> Any:
    """Undo ``fold``: windows behind one another in their dims."""
    counts = [parts[d] for d in sorted(parts)]
    batch, *rest = y.type.shape
    apart = reshape(y, shape=(*counts, batch // math.prod(counts), *rest))
    order: list[int] = []
    for d in range(len(rest) + 1):
        if d in parts:
            order.append(sorted(parts).index(d))
        order.append(len(counts) + d)
    back = permute(apart, dims=tuple(order))
    sizes = [n * parts.get(d, 1) for d, n in enumerate(y.type.shape)]
    sizes[0] = batch // math.prod(counts)
    return reshape(back, shape=tuple(sizes))


def trimmed(x: Any, shape: Shape) -> Any:
    """Give the first rows of each dim."""
    if x.type.shape == shape:
        return x
    return slice(x, starts=(0,) * len(shape), stops=shape, steps=(1,) * len(shape))


# -- three ways to use a window. ``geometry``: of each spatial dim, kernel, stride, padding and dilation


def _read(parts: Parts, rows: Shape, geometry: Sequence[Ints]) -> dict[int, Cut]:
    """Give the windows that parts of so many result rows read."""
    cuts = {}
    for d, k in parts.items():
        kernel, stride, padding, dilation = geometry[d - 2]
        own, reach = -(-rows[d] // k), dilation * (kernel - 1) + 1
        last = [min(rows[d], (i + 1) * own) - 1 for i in range(k)]
        starts = tuple(i * own * stride - padding for i in range(k))
        stops = tuple(max(start, n * stride - padding + reach) for n, start in zip(last, starts, strict=True))
        cuts[d] = Cut(starts, (own - 1) * stride + reach, stops)
    return cuts


def gathered(run: Callable[[Any, Ints], Any], x: Any, shape: Shape, parts: Parts, geometry: Sequence[Ints], fill: float = 0.0) -> list[Any]:
    """Write an op whose result rows each read a window. ``run(windows, rows)`` gives its results, without padding in ``parts``."""
    sizes = tuple(-(-n // parts.get(d, 1)) for d, n in enumerate(shape))
    folded = fold(cut(x, _read(parts, shape, geometry), fill), parts)
    made = run(folded, (folded.type.shape[0], *sizes[1:]))
    return [trimmed(unfold(y, parts), shape) for y in (made if isinstance(made, tuple) else (made,))]


@dataclass(frozen=True)
class Added:
    """Windows of a dim's operand rows that add to parts of ``own`` result rows, and what they make.

    ``firsts``: which result row each window's result begins with; of its ``rows``, ``own`` from ``offsets`` on are the part's.
    """

    cut: Cut
    rows: int
    own: int
    firsts: Ints
    offsets: Ints


def _added(operand_rows: int, rows: int, k: int, geometry: Ints) -> Added:
    kernel, stride, padding, dilation = geometry
    own, reach = -(-rows // k), dilation * (kernel - 1)
    part = [i * own + padding for i in range(k)]  # where parts begin, in rows of the result as if padded
    starts = tuple(min(-(-(a - reach) // stride), a // stride) for a in part)
    offsets = tuple(a - start * stride for a, start in zip(part, starts, strict=True))
    count = max(1, *((a + own - 1) // stride + 1 - start for a, start in zip(part, starts, strict=True)))
    count = max(count, *(-(-(o + own - reach - stride) // stride) + 1 for o in offsets))
    size = max((count - 1) * stride + reach + 1, *(o + own for o in offsets))
    return Added(Cut(starts, count, (operand_rows,) * k), size, own, tuple(n * stride - padding for n in starts), offsets)


def scattered(
    run: Callable[..., Any], operands: Sequence[Any], shape: Shape, parts: Parts, geometry: Sequence[Ints],
    prepare: Callable[[list[Any], Mapping[int, Added]], list[Any]] = lambda windows, _: windows,
) -> Any:  # fmt: skip
    """Write an op whose operand rows each add to a window of the result, the transpose of ``gathered``.

    ``run(*windows, rows)`` gives so many result rows of windows, without padding in ``parts``; ``prepare`` changes the windows first.
    """
    added = {d: _added(operands[0].type.shape[d], shape[d], k, geometry[d - 2]) for d, k in parts.items()}
    cuts = {d: each.cut for d, each in added.items()}
    folded = [fold(x, parts) for x in prepare([cut(x, cuts) for x in operands], added)]
    rows = (folded[0].type.shape[0], *(added[d].rows if d in parts else n for d, n in enumerate(shape) if d))
    made = run(*folded, rows)
    if all(len(set(each.offsets)) == 1 for each in added.values()):
        starts = tuple(added[d].offsets[0] if d in parts else 0 for d in range(len(shape)))
        stops = tuple(a + (added[d].own if d in parts else n) for d, (a, n) in enumerate(zip(starts, made.type.shape, strict=True)))
        if stops != made.type.shape or any(starts):
            made = slice(made, starts=starts, stops=stops, steps=(1,) * len(shape))
        return trimmed(unfold(made, parts), shape)
    whole = unfold(made, parts)
    own = {
        d: Cut(tuple(i * each.rows + o for i, o in enumerate(each.offsets)), each.own, (whole.type.shape[d],) * parts[d])
        for d, each in added.items()
    }
    return trimmed(cut(whole, own), shape)


def paired(run: Callable[[Any, Any], Any], small: Any, big: Any, parts: Parts, geometry: Sequence[Ints]) -> Any:
    """Write an op that sums over a value's rows, each with the window of another that it meets."""
    shape = small.type.shape
    own = {d: -(-shape[d] // k) for d, k in parts.items()}
    rows = {d: Cut(tuple(i * own[d] for i in range(k)), own[d], (shape[d],) * k) for d, k in parts.items()}
    return run(fold(cut(small, rows), parts), fold(cut(big, _read(parts, shape, geometry)), parts))


def halo(lead: str, other: str, sizes: tuple[int, int], geometry: Ints, *, windowed: bool) -> fx.Halo | None:
    """Give the halo of a spatial dim, whose operand has the factor ``lead``; None where a side has one row.

    ``windowed``: windows are over the operand; else over the result.
    """
    kernel, stride, _, dilation = geometry
    reach = dilation * (kernel - 1)
    rows = max(reach + 1 - stride, 0) if windowed else -(-reach // stride)
    return fx.Halo(lead, other, lead, rows) if min(sizes) > 1 else None


__all__ = ["Added", "gathered", "halo", "paired", "scattered", "windows"]
