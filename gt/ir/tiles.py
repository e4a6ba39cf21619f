"""Who sends whom what between two placements of a value: each worker gets just what it lacks, from the nearest holder.

Owns: ``Tile`` and ``tiles``, the arithmetic behind ``transfer``. Must not know: ops, graphs. Next: ``mesh`` (placements),
``gt.passes.lower_programs`` (makes sends and receives of it).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from gt.ir.mesh import Sharding
from gt.ir.types import Shape

Box = tuple[tuple[int, int], ...]  # from and to in each dim, in elements of the whole value


@dataclass(frozen=True)
class Tile:
    """A box of the value that ``target`` gets from ``source``, which may be itself."""

    source: int
    target: int
    box: Box

    @property
    def numel(self) -> int:
        return math.prod(stop - start for start, stop in self.box)

    def within(self, bounds: Box) -> Box:
        """Give the box as seen from a part that starts where ``bounds`` do."""
        return tuple((a - start, b - start) for (a, b), (start, _) in zip(self.box, bounds, strict=True))


@lru_cache(maxsize=16384)
def tiles(have: Sharding, want: Sharding, shape: Shape) -> tuple[Tile, ...]:
    """Give what makes up each wanted part, in the order of targets and then of boxes. Neither placement is pending.

    Of several holders a target takes itself, else the one of the nearest number, none twice before each had a turn.
    """
    holders = _holders(have)
    turn: dict[tuple[int, ...], list[int]] = {}
    size = have.local_shape(shape)
    found = []
    for target in want.mesh.workers:
        for where, box in _cut(want.bounds(shape, target), size):
            near, source = holders[where], target
            if target not in near:
                left = turn[where] = turn.get(where) or sorted(near)
                source = left.pop(_nearest(left, target))
            found.append(Tile(source, target, box))
    return tuple(found)


def _nearest(sorted_: list[int], number: int) -> int:
    """Give the place of the number nearest to one that is not there."""
    at = bisect(sorted_, number)
    if at == len(sorted_) or (at and number - sorted_[at - 1] <= sorted_[at] - number):
        return at - 1
    return at


def _holders(have: Sharding) -> dict[tuple[int, ...], dict[int, None]]:
    """Give for each part, by its index in each dim, the workers that hold it."""
    holders: dict[tuple[int, ...], dict[int, None]] = {}
    for worker in have.mesh.workers:
        where = tuple(have.shard_index(d, worker) for d in range(len(have.dims)))
        holders.setdefault(where, {})[worker] = None
    return holders


def _cut(need: Box, size: Shape) -> Iterator[tuple[tuple[int, ...], Box]]:
    """Cut a box at the edges of parts of ``size``; nothing comes of an empty one."""
    if any(stop <= start for start, stop in need):
        return
    ranges = [range(start // n, (stop - 1) // n + 1) for (start, stop), n in zip(need, size, strict=True)]
    for where in itertools.product(*ranges):
        yield (
            where,
            tuple((max(start, i * n), min(stop, (i + 1) * n)) for i, (start, stop), n in zip(where, need, size, strict=True)),
        )


def members(have: Sharding, want: Sharding, shape: Shape) -> tuple[int, ...]:
    """Give the workers that send, or have to put together what they are to have."""
    away = {t.source for t in tiles(have, want, shape) if t.source != t.target}
    kept = set(have.mesh.workers) if keeps(have, want, shape) else set()
    return tuple(sorted(away | (set(want.mesh.workers) - kept)))


def keeps(have: Sharding, want: Sharding, shape: Shape) -> bool:
    """Whether all workers of both meshes have the very part already that they are to have."""
    shared = set(have.mesh.workers) & set(want.mesh.workers)
    if have.local_shape(shape) != want.local_shape(shape):
        return not shared
    return all(have.bounds(shape, w) == want.bounds(shape, w) for w in shared)


@lru_cache(maxsize=16384)
def busiest(have: Sharding, want: Sharding, shape: Shape) -> tuple[int, int]:
    """Give the most elements that one worker sends or gets, and in how many messages."""
    numel: Counter[tuple[str, int]] = Counter()
    count: Counter[tuple[str, int]] = Counter()
    for tile in tiles(have, want, shape):
        if tile.source != tile.target:
            for end in (("sends", tile.source), ("gets", tile.target)):
                numel[end] += tile.numel
                count[end] += 1
    return max(numel.values(), default=0), max(count.values(), default=0)


__all__ = ["Box", "Tile", "busiest", "keeps", "members", "tiles"]
