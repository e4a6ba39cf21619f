"""From one placement of a value to another: the cheapest sequence of steps.

Owns: ``plan_reshard``, the one place that knows the transitions. On one mesh it is a shortest path over placements:
R->S slice, S->R all_gather, S->S all_to_all, P->R all_reduce, P->S reduce_scatter, R->P, S->P, and a transfer where the same
parts are wanted on other workers. Between meshes each worker is sent just the part that it lacks; pending sums are added
up before, and made after.
Must not know: graphs, why a placement is wanted. Next: ``cost`` (what a step costs), ``insert_collectives``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from gt.ir.graph import Attrs
from gt.ir.mesh import Mesh, Reduction, Sharding
from gt.ir.opdef import OpDef
from gt.ir.ops import collective
from gt.ir.tiles import busiest, members
from gt.ir.types import HALVES, TensorType
from gt.passes.cost import step_s, transfer_s

LOCAL_STEP_S = 1e-9  # so that of two free ways the shorter wins


@dataclass(frozen=True)
class Step:
    """One collective or local op, with its EXPLICIT attributes, and the placement it leads to."""

    op: OpDef
    attrs: Attrs
    target: Sharding
    seconds: float


def usable_as(have: Sharding, want: Sharding) -> bool:
    """Whether a value placed as ``have`` can be read where ``want`` is asked for, with nothing done to it.

    A whole value is also whole on fewer workers.
    """
    if have == want:
        return True
    return have.is_replicated and want.is_replicated and set(want.mesh.workers) <= set(have.mesh.workers)


def cost_s(have: Sharding, want: Sharding, type_: TensorType) -> float:
    """Give the predicted seconds from one placement to another."""
    return 0.0 if usable_as(have, want) else sum(s.seconds for s in plan_reshard(have, want, type_.placed(None)))


def is_local(have: Sharding, want: Sharding, type_: TensorType) -> bool:
    """Whether the change needs no communication."""
    return usable_as(have, want) or not any(s.op.effect for s in plan_reshard(have, want, type_.placed(None)))


@lru_cache(maxsize=65536)
def plan_reshard(have: Sharding, want: Sharding, type_: TensorType) -> tuple[Step, ...]:
    """Give the cheapest steps. ``type_`` is the global, unplaced type."""
    if usable_as(have, want):
        return ()
    if have.mesh == want.mesh:
        return _shortest(have, want, type_)
    ways = [_between(have, leave, want, type_) for leave in _leaves(have, want, type_)]
    return min(ways, key=lambda steps: sum(step.seconds + LOCAL_STEP_S for step in steps))


def _leaves(have: Sharding, want: Sharding, type_: TensorType) -> Iterator[Sharding]:
    """Give the placements that a value may leave its mesh in: as it is, whole, or pending sums cut as they are wanted."""
    yield Sharding(have.mesh, have.dims)
    if have.is_split:
        yield Sharding.replicated(have.mesh, type_.ndim)
    if have.partial and [size for _, size in have.mesh.axes] == [size for _, size in want.mesh.axes]:
        there = {axis: own for (axis, _), (own, _) in zip(want.mesh.axes, have.mesh.axes, strict=True)}
        yield Sharding(have.mesh, tuple(tuple(there[a] for a in axes) for axes in want.dims))


def _between(have: Sharding, leave: Sharding, want: Sharding, type_: TensorType) -> tuple[Step, ...]:
    """Give the steps through one transfer."""
    arrive = Sharding(want.mesh, want.dims)
    steps = list(_shortest(have, leave, type_))
    if leave.is_replicated and set(want.mesh.workers) <= set(leave.mesh.workers):
        arrive = Sharding.replicated(want.mesh, type_.ndim)  # all have all of it
    else:
        steps.append(_transfer(leave, arrive, type_))
    return (*steps, *_shortest(arrive, want, type_))


def _transfer(have: Sharding, want: Sharding, type_: TensorType) -> Step:
    numel, messages = busiest(have, want, type_.shape)
    group = members(have, want, type_.shape)
    seconds = transfer_s(messages, numel * type_.dtype.itemsize, len(group))
    return Step(collective.transfer, (("group", group),), want, seconds)


def _shortest(have: Sharding, want: Sharding, type_: TensorType) -> tuple[Step, ...]:
    """Dijkstra over placements on one mesh; the state space is tiny (axes times dims)."""
    best: dict[Sharding, float] = {have: 0.0}
    came: dict[Sharding, tuple[Sharding, Step]] = {}
    queue: list[tuple[float, int, Sharding]] = [(0.0, 0, have)]
    number = 0
    while queue:
        spent, _, at = heapq.heappop(queue)
        if at == want:
            break
        if spent > best[at]:
            continue
        for step in _moves(at, want, type_):
            total = spent + step.seconds + LOCAL_STEP_S
            if total < best.get(step.target, math.inf):
                best[step.target], came[step.target] = total, (at, step)
                number += 1
                heapq.heappush(queue, (total, number, step.target))
    steps: list[Step] = []
    at = want
    while at != have:
        at, step = came[at]
        steps.append(step)
    return tuple(reversed(steps))


def _moves(at: Sharding, want: Sharding, type_: TensorType) -> Iterator[Step]:
    yield from _reductions(at, want, type_)
    yield from _gathers(at, type_)
    yield from _exchanges(at, want, type_)
    yield from _permutes(at, want, type_)
    used = at.used_axes
    for dim, axes in enumerate(want.dims):
        kept = len(at.dims[dim])
        for stop in range(kept + 1, len(axes) + 1):
            added = axes[kept:stop]
            if axes[:kept] != at.dims[dim] or used & set(added):
                break
            if not kept or _aligned(at, dim, axes[:stop], type_):
                attrs = (("axes", added), ("dim", dim), ("start", 0), ("size", type_.shape[dim]))
                yield Step(collective.shard_slice, attrs, _with(at, dim, axes[:stop]), 0.0)
    yield from _pending(at, want, type_)


def _pending(at: Sharding, want: Sharding, type_: TensorType) -> Iterator[Step]:
    """Give the steps to a pending sum: zeros where a whole value is not kept, or around a part."""
    for axis in [a for a, reduce in want.partial if reduce == "sum" and a not in at.partial_axes]:
        partial = _in_mesh_order(at.mesh, {**at.partial_axes, axis: "sum"})
        if axis not in at.used_axes:
            yield Step(collective.partial_from_whole, (("axes", (axis,)),), replace(at, partial=partial), 0.0)
        for dim, axes in enumerate(at.dims):
            if axes and axes[-1] == axis and (len(axes) == 1 or _aligned(at, dim, axes, type_)):
                target = replace(_with(at, dim, axes[:-1]), partial=partial)
                yield Step(collective.partial_from_part, (("axes", (axis,)), ("dim", dim)), target, 0.0)


def _reductions(at: Sharding, want: Sharding, type_: TensorType) -> Iterator[Step]:
    for reduce in dict.fromkeys(at.partial_axes.values()):  # all at once, where several are pending
        axes = tuple(a for a, r in at.partial if r == reduce and want.partial_axes.get(a) != reduce)
        if len(axes) > 1:
            rest = replace(at, partial=tuple(p for p in at.partial if p[0] not in axes))
            yield _step(collective.all_reduce, (("axes", axes), ("reduce", reduce)), rest, axes, at, type_)
    for axis, reduce in at.partial:
        if want.partial_axes.get(axis) == reduce:
            continue
        rest = replace(at, partial=tuple(p for p in at.partial if p[0] != axis))
        yield _step(collective.all_reduce, (("axes", (axis,)), ("reduce", reduce)), rest, (axis,), at, type_)
        for dim, axes in enumerate(want.dims):
            if axis in axes and _appendable(rest, dim, axis, type_):
                target = _with(rest, dim, (*rest.dims[dim], axis))
                attrs = (("axes", (axis,)), ("dim", dim), ("reduce", reduce))
                yield _step(collective.reduce_scatter, attrs, target, (axis,), at, type_)


def _gathers(at: Sharding, type_: TensorType) -> Iterator[Step]:
    for dim, axes in enumerate(at.dims):
        for kept in range(len(axes)):
            if kept and not _aligned(at, dim, axes, type_):
                continue
            attrs = (("axes", axes[kept:]), ("dim", dim))
            yield _step(collective.all_gather, attrs, _with(at, dim, axes[:kept]), axes[kept:], at, type_)


def _exchanges(at: Sharding, want: Sharding, type_: TensorType) -> Iterator[Step]:
    for src, axes in enumerate(at.dims):
        if not axes or (len(axes) > 1 and not _aligned(at, src, axes, type_)):
            continue
        without, axis = _with(at, src, axes[:-1]), axes[len(axes) - 1]
        for dst, wanted in enumerate(want.dims):
            if dst != src and axis in wanted and _appendable(without, dst, axis, type_):
                target = _with(without, dst, (*without.dims[dst], axis))
                yield _step(
                    collective.all_to_all, (("axes", (axis,)), ("src", src), ("dst", dst)), target, (axis,), at, type_
                )


def _permutes(at: Sharding, want: Sharding, type_: TensorType) -> Iterator[Step]:
    """Give the step to the same parts on other workers: what one axis splits another is to, or axes in another order."""
    target = replace(at, dims=want.dims)
    parts = [math.prod(at.mesh.axis_size(a) for a in axes) for axes in want.dims]
    free = not {a for axes in want.dims for a in axes} & set(at.partial_axes)
    if free and target.dims != at.dims and parts == [at.shards(d) for d in range(len(at.dims))]:
        yield _transfer(at, target, type_)


def _aligned(at: Sharding, dim: int, axes: tuple[str, ...], type_: TensorType) -> bool:
    """Whether cutting by all of ``axes`` refines cutting by the first few: only then can they be undone one by one."""
    return type_.shape[dim] % math.prod(at.mesh.axis_size(a) for a in axes) == 0


def _appendable(at: Sharding, dim: int, axis: str, type_: TensorType) -> bool:
    axes = at.dims[dim]
    return not axes or _aligned(at, dim, (*axes, axis), type_)


def _with(at: Sharding, dim: int, axes: tuple[str, ...]) -> Sharding:
    return replace(at, dims=(*at.dims[:dim], axes, *at.dims[dim + 1 :]))


def _in_mesh_order(mesh: Mesh, partial: dict[str, Reduction]) -> tuple[tuple[str, Reduction], ...]:
    """Give pending reductions in one order, so that equal placements compare equal."""
    return tuple((a, partial[a]) for a, _ in mesh.axes if a in partial)


def _step(op: OpDef, attrs: Attrs, target: Sharding, axes: tuple[str, ...], at: Sharding, type_: TensorType) -> Step:
    parts = math.prod(at.mesh.axis_size(a) for a in axes)
    others = [a for d in at.dims for a in d if a not in axes]
    wide = 2 if op.name in ("all_reduce", "reduce_scatter") and type_.dtype in HALVES else 1  # sums of halves are in float32
    nbytes = wide * type_.nbytes // math.prod(at.mesh.axis_size(a) for a in others)  # as if whole along ``axes``
    return Step(op, attrs, target, step_s(op.name, parts, nbytes))
