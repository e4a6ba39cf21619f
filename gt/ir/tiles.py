"""Who sends whom what between two placements of a value: each worker gets just what it lacks, from the nearest holder.

What is wanted may be other rows of the value than it has: a cut, a shift, the value with something around it. ``Rows`` says
which, so a worker that needs a few rows of its neighbours' gets just those.
Owns: ``Rows``, ``Tile`` and ``tiles``, the arithmetic behind ``transfer``. Must not know: ops, graphs. Next: ``mesh``
(placements), ``gt.passes.lower_programs`` (makes sends and receives of it).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gt.ir.mesh import Sharding
from gt.ir.types import Shape

Box = tuple[tuple[int, int], ...]  # from and to in each dim, in elements of the whole value
Ints = tuple[int, ...]
Holder = tuple[Ints, Ints]  # which part of each dim, and the coordinates on axes with a sum pending


@dataclass(frozen=True)
class Span:
    """``count`` rows of a result: row ``at + i * spread`` of it is row ``start + i * step`` of the value; step may be negative."""

    at: int
    start: int
    count: int
    step: int = 1
    spread: int = 1


@dataclass(frozen=True)
class Rows:
    """A result of ``shape`` made of rows of a value: for each dim the spans, in order and apart; ``fill`` elsewhere."""

    spans: tuple[tuple[Span, ...], ...]
    shape: Shape
    fill: float = 0

    @property
    def attr(self) -> tuple[tuple[Ints, ...], ...]:
        """Give the spans as an attribute."""
        return tuple(tuple((s.at, s.start, s.count, s.step, s.spread) for s in spans) for spans in self.spans)

    @classmethod
    def of(cls, attr: tuple[tuple[Ints, ...], ...], shape: Shape, fill: float) -> Rows:
        return cls(tuple(tuple(Span(*s) for s in spans) for spans in attr), shape, fill)


@dataclass(frozen=True)
class Tile:
    """A box of the value that ``target`` gets from ``source``, which may be itself, and the box of the result it becomes.

    ``steps``: in each dim, every which row of the box, from its end if negative; ``spreads``: each how many rows on.
    """

    source: int
    target: int
    box: Box
    at: Box
    steps: Ints
    spreads: Ints

    @property
    def shape(self) -> Shape:
        return tuple(-(-(stop - start) // abs(step)) for (start, stop), step in zip(self.box, self.steps, strict=True))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def within(box: Box, bounds: Box) -> Box:
    """Give a box as seen from a part that starts where ``bounds`` do."""
    return tuple((a - start, b - start) for (a, b), (start, _) in zip(box, bounds, strict=True))


@dataclass(frozen=True)
class _Piece:
    """Rows of one dim that one part of it holds."""

    part: int
    box: tuple[int, int]
    at: tuple[int, int]
    step: int = 1
    spread: int = 1

    @property
    def numel(self) -> int:
        return -(-(self.box[1] - self.box[0]) // abs(self.step))


@lru_cache(maxsize=16384)
def tiles(have: Sharding, want: Sharding, shape: Shape, rows: Rows | None = None) -> tuple[Tile, ...]:
    """Give what makes up each wanted part, in the order of targets and then of boxes. Sums pending stay so, on one mesh.

    Of several holders a target takes itself, else the one of the nearest number, none twice before each had a turn.
    """
    holders = _holders(have)
    turn: dict[Holder, list[int]] = {}
    size = have.local_shape(shape)
    pending = [axis for axis, _ in have.partial]
    found = []
    for target in want.mesh.workers:
        own = tuple(want.mesh.coords(target)[axis] for axis in pending)
        need = want.bounds(rows.shape if rows else shape, target)
        for pieces in _cut(need, size, rows):
            where = tuple(p.part for p in pieces), own
            near, source = holders[where], target
            if target not in near:
                left = turn[where] = turn.get(where) or sorted(near)
                source = left.pop(_nearest(left, target))
            box, at = tuple(p.box for p in pieces), tuple(p.at for p in pieces)
            found.append(Tile(source, target, box, at, tuple(p.step for p in pieces), tuple(p.spread for p in pieces)))
    return tuple(found)


def _nearest(sorted_: list[int], number: int) -> int:
    """Give the place of the number nearest to one that is not there."""
    at = bisect(sorted_, number)
    if at == len(sorted_) or (at and number - sorted_[at - 1] <= sorted_[at] - number):
        return at - 1
    return at


def _holders(have: Sharding) -> dict[Holder, dict[int, None]]:
    """Give for each part, by its index in each dim, the workers that hold it; of a pending sum, for each part of the sum."""
    holders: dict[Holder, dict[int, None]] = {}
    for worker in have.mesh.workers:
        coords = have.mesh.coords(worker)
        where = tuple(have.shard_index(d, worker) for d in range(len(have.dims)))
        holders.setdefault((where, tuple(coords[axis] for axis, _ in have.partial)), {})[worker] = None
    return holders


def _cut(need: Box, size: Shape, rows: Rows | None) -> Iterator[tuple[_Piece, ...]]:
    """Cut a box at the edges of parts of ``size``; nothing comes of an empty one."""
    yield from itertools.product(*_pieces(need, size, rows))


def _pieces(need: Box, size: Shape, rows: Rows | None) -> list[tuple[_Piece, ...]]:
    """Give the pieces of each dim, none of an empty box."""
    if any(stop <= start for start, stop in need):
        return [()] * len(need)
    if rows is None:
        return [_identity(start, stop, n) for (start, stop), n in zip(need, size, strict=True)]
    return [_rows_of(spans, lo, hi, n) for (lo, hi), spans, n in zip(need, rows.spans, size, strict=True)]


@lru_cache(maxsize=4096)
def _identity(start: int, stop: int, n: int) -> tuple[_Piece, ...]:
    cuts = [(i, (max(start, i * n), min(stop, (i + 1) * n))) for i in range(start // n, (stop - 1) // n + 1)]
    return tuple(_Piece(i, box, box) for i, box in cuts)


@lru_cache(maxsize=4096)
def _rows_of(spans: tuple[Span, ...], lo: int, hi: int, n: int) -> tuple[_Piece, ...]:
    return tuple(piece for span in spans for piece in _taken(span, lo, hi, n))


def _taken(span: Span, lo: int, hi: int, n: int) -> Iterator[_Piece]:
    """Give the rows of a span that fall on result rows ``lo`` to ``hi``, cut at the edges of parts of ``n`` rows."""
    i = max(0, -(-(lo - span.at) // span.spread))
    stop = min(span.count, -(-(hi - span.at) // span.spread))
    while i < stop:
        first = span.start + i * span.step
        part = first // n
        if span.step > 0:
            last = min(stop - 1, ((part + 1) * n - 1 - span.start) // span.step)
        else:
            last = min(stop - 1, (span.start - part * n) // -span.step)
        end = span.start + last * span.step
        at = span.at + i * span.spread, span.at + last * span.spread + 1
        # One row, or several next to each other, go any which way.
        step, spread = (span.step, span.spread) if last > i else (1, 1)
        yield _Piece(part, (min(first, end), max(first, end) + 1), at, step, spread)
        i = last + 1


def members(have: Sharding, want: Sharding, shape: Shape, rows: Rows | None = None) -> tuple[int, ...]:
    """Give the workers that send, or have to put together what they are to have."""
    away = {t.source for t in tiles(have, want, shape, rows) if t.source != t.target}
    kept = set(have.mesh.workers) if keeps(have, want, shape, rows) else set()
    return tuple(sorted(away | (set(want.mesh.workers) - kept)))


def keeps(have: Sharding, want: Sharding, shape: Shape, rows: Rows | None = None) -> bool:
    """Whether all workers of both meshes have the very part already that they are to have."""
    shared = set(have.mesh.workers) & set(want.mesh.workers)
    if have.local_shape(shape) != want.local_shape(rows.shape if rows else shape):
        return not shared
    if rows is None:
        return all(have.bounds(shape, w) == want.bounds(shape, w) for w in shared)
    return not shared or aligned(have, want, shape, rows)


@lru_cache(maxsize=16384)
def aligned(have: Sharding, want: Sharding, shape: Shape, rows: Rows) -> bool:
    """Whether each worker's part of the result is the beginning of the part of the value that it has, in the same memory.

    Of nothing no tile says where it begins.
    """
    if have.mesh != want.mesh or have.local_shape(shape) != want.local_shape(rows.shape) or 0 in rows.shape:
        return False
    need = {w: want.bounds(rows.shape, w) for w in want.mesh.workers}
    found: Counter[int] = Counter()
    for tile in tiles(have, want, shape, rows):
        own = have.bounds(shape, tile.target)
        plain = all(n == 1 for n in (*tile.steps, *tile.spreads))
        if tile.source != tile.target or not plain or tile.at != need[tile.target]:
            return False
        if any(a != start for (a, _), (start, _) in zip(tile.box, own, strict=True)):
            return False
        found[tile.target] += 1
    return all(found[w] or any(b <= a for a, b in box) for w, box in need.items())


@lru_cache(maxsize=16384)
def busiest(have: Sharding, want: Sharding, shape: Shape, rows: Rows | None = None) -> tuple[int, int]:
    """Give the most elements that one worker sends or gets, and in how many messages."""
    holders = _holders(have)
    if have.partial or any(len(found) > 1 for found in holders.values()):
        return _busiest_of_several(have, want, shape, rows)
    size = have.local_shape(shape)
    place = {worker: i for i, worker in enumerate(sorted({*have.mesh.workers, *want.mesh.workers}))}
    source = np.zeros([1 + max(where[d] for where, _ in holders) for d in range(len(shape))], np.int64)
    for (where, _), (worker,) in holders.items():
        source[where] = place[worker]
    ends = np.zeros((2, 2, len(place)), np.int64)  # of elements and messages, sent and got
    for target in want.mesh.workers:
        dims = _pieces(want.bounds(rows.shape if rows else shape, target), size, rows)
        if not all(dims):
            continue
        numel = np.ones((), np.int64)
        for pieces in dims:
            numel = np.multiply.outer(numel, [p.numel for p in pieces])
        sources = source[np.ix_(*([p.part for p in pieces] for pieces in dims))]
        away = sources != place[target]
        for end, amounts in zip(ends, (numel[away], np.ones(np.count_nonzero(away), np.int64)), strict=True):
            np.add.at(end[0], sources[away], amounts)
            end[1, place[target]] += amounts.sum()
    return int(ends[0].max()), int(ends[1].max())


def _busiest_of_several(have: Sharding, want: Sharding, shape: Shape, rows: Rows | None) -> tuple[int, int]:
    """Where parts have several holders, of whom each target has one."""
    numel: Counter[tuple[str, int]] = Counter()
    count: Counter[tuple[str, int]] = Counter()
    for tile in tiles(have, want, shape, rows):
        if tile.source != tile.target:
            size = tile.numel
            for end in (("sends", tile.source), ("gets", tile.target)):
                numel[end] += size
                count[end] += 1
    return max(numel.values(), default=0), max(count.values(), default=0)


__all__ = ["Box", "Rows", "Span", "Tile", "aligned", "busiest", "keeps", "members", "tiles", "within"]
