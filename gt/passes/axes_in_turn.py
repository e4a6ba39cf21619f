"""Solves a large search problem over several mesh axes one axis at a time.

The ways of a unit over two axes are the product of those over each, too many for one program of a whole model. So the
program is solved for one axis with the others as they are, at first unused, then for the next, until nothing gets
better; once in each order of the axes, as the first has the first pick. A problem of few ways is solved at once.
Owns: ``solve_in_turn``. Must not know: graphs, ops. Next: ``integer_program``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace

from gt.ir.mesh import Mesh, Sharding
from gt.passes.integer_program import Effort, Solution, solve
from gt.passes.search_problem import Problem, Way

JOINT = 200  # ways in all: so many at most are one program
SWEEPS = 3


def solve_in_turn(problem: Problem, mesh: Mesh, limit: int | None, effort: Effort) -> Solution | None:
    """Give a good choice; of a small problem or on one axis, the best. None if time ran out."""
    axes = [axis for axis, size in mesh.axes if size > 1]
    if len(axes) < 2 or sum(len(unit.ways) for unit in problem.units) <= JOINT:
        return solve(problem, limit, effort)
    until, best = time.monotonic() + effort.seconds, None
    for order in (axes, axes[::-1]):
        found = _sweep(problem, mesh, order, limit, effort.gap, until)
        if found is not None and (best is None or _rank(found, limit) < _rank(best, limit)):
            best = found
    return best


def _rank(found: Solution, limit: int | None) -> tuple[int, float]:
    return max(found.peak - limit, 0) if limit is not None else 0, found.seconds


def _sweep(problem: Problem, mesh: Mesh, order: Sequence[str], limit: int | None, gap: float, until: float) -> Solution | None:
    best: Solution | None = None
    seen: set[str] = set()
    for step, axis in enumerate(list(order) * SWEEPS):
        if time.monotonic() > until:
            break
        seen.add(axis)
        # What the axes not yet used can still cut does not have to fit.
        room = None if limit is None else limit * math.prod(size for a, size in mesh.axes if a not in seen)
        found = _along(problem, axis, best, room, Effort(gap, max((until - time.monotonic()) / 2, 0.1)))
        if found is None:
            break
        if best is not None and len(seen) == len(order) and step >= len(order) and _rank(found, limit) >= _rank(best, limit):
            break
        best = found
    return best if len(seen) == len(order) else None


def _along(problem: Problem, axis: str, now: Solution | None, limit: int | None, effort: Effort) -> Solution | None:
    """Solve with ways that do as ``now`` does on all axes but one."""
    kept: list[list[int]] = []
    for u, unit in enumerate(problem.units):
        like = _elsewhere(unit.ways[now.picks[u]], axis) if now is not None else None
        found = [k for k, way in enumerate(unit.ways) if (_unused(way, axis) if like is None else _elsewhere(way, axis) == like)]
        kept.append(found or list(range(len(unit.ways))))
    units = tuple(replace(unit, ways=tuple(unit.ways[k] for k in own)) for unit, own in zip(problem.units, kept, strict=True))
    part = solve(replace(problem, units=units), limit, effort)
    return None if part is None else replace(part, picks=tuple(own[k] for own, k in zip(kept, part.picks, strict=True)))


def _elsewhere(way: Way, axis: str) -> Hashable:
    """Give what a way does on the other axes."""
    return tuple(_without(placed, axis) for placed in (*way.requires, *way.produces))


def _unused(way: Way, axis: str) -> bool:
    return all(_without(placed, axis).is_replicated for placed in (*way.requires, *way.produces))


def _without(placed: Sharding, axis: str) -> Sharding:
    dims = tuple(tuple(a for a in axes if a != axis) for axes in placed.dims)
    return Sharding(placed.mesh, dims, tuple(p for p in placed.partial if p[0] != axis))


__all__ = ["solve_in_turn"]
