"""Makes a search problem smaller: units that look alike decide as one, as those of a model's equal layers do.

Alike are units with the same ways and neighbours that are alike, up to a distance: units are told apart by what is
``NEAR``, and by what is ever farther away for as long as there are no more kinds than ``most``. So a small problem stays as it is, and a model with
twelve layers or with a hundred takes as long. A choice for the smaller problem is one for the whole, at the same cost.
Owns: ``merge_alike``. Must not know: graphs, solvers. Next: ``integer_program``.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from gt.passes.search_problem import Problem, Slot, Stay, Unit, Wire

NEAR = 4  # wires: two layers of one shape, a column layer and a row layer, differ by what is next to them


@dataclass(frozen=True)
class Merged:
    """A smaller problem. ``kinds``: which of its units each unit of the whole one is."""

    problem: Problem
    kinds: tuple[int, ...]

    def spread(self, picks: Sequence[int]) -> tuple[int, ...]:
        """Give the choice for the whole problem that a choice for the smaller one is."""
        return tuple(picks[kind] for kind in self.kinds)


def merge_alike(problem: Problem, most: int) -> Merged:
    """Give the problem with units merged until there are at most so many, or as few as look alike at all."""
    kinds = list(range(len(problem.units)))
    if len(kinds) > most:
        kinds = _kinds(problem, most)
    return Merged(_merged(problem, kinds), tuple(kinds)) if len(set(kinds)) < len(kinds) else Merged(problem, tuple(kinds))


def _kinds(problem: Problem, most: int) -> list[int]:
    reads: list[list[tuple[int, Wire]]] = [[] for _ in problem.units]
    makes: list[list[tuple[int, Wire]]] = [[] for _ in problem.units]
    for wire in problem.wires:
        makes[wire.maker[0]].append((wire.maker[1], wire))
        for unit, slot in wire.readers:
            reads[unit].append((slot, wire))
    ends = [tuple((s, w.like) for s, w in sorted(side[u], key=lambda e: e[0])) for side in (reads, makes) for u in range(len(reads))]
    kinds = _numbered((unit.ways, ends[u], ends[len(reads) + u]) for u, unit in enumerate(problem.units))
    for distance in itertools.count(1):
        known = [_ends(wire, kinds) for wire in problem.wires]
        at = {id(wire): k for wire, k in zip(problem.wires, known, strict=True)}
        around = [frozenset((side, slot, at[id(w)]) for side, of in enumerate((reads[u], makes[u])) for slot, w in of) for u in range(len(kinds))]
        finer = _numbered(zip(kinds, around, strict=True))
        if (len(set(finer)) > most and distance > NEAR) or len(set(finer)) == len(set(kinds)):
            break
        kinds = finer
    return kinds


def _ends(wire: Wire, kinds: Sequence[int]) -> Hashable:
    return kinds[wire.maker[0]], wire.maker[1], frozenset((kinds[u], slot) for u, slot in wire.readers)


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _merged(problem: Problem, kinds: Sequence[int]) -> Problem:
    units: dict[int, Unit] = {}
    for kind, unit in zip(kinds, problem.units, strict=True):
        known = units.get(kind)
        units[kind] = replace(known, count=known.count + unit.count) if known is not None else unit
    stays: dict[tuple[Hashable, ...], list[Stay]] = {}
    first: dict[tuple[Hashable, ...], Wire] = {}
    for wire in problem.wires:
        key = (*wire.like, _ends(wire, kinds))
        stays.setdefault(key, []).extend(wire.stays)
        first.setdefault(key, wire)
    to = lambda at: (kinds[at[0]], at[1])  # noqa: E731
    wires = []
    for key, wire in first.items():
        readers: tuple[Slot, ...] = tuple(dict.fromkeys(map(to, wire.readers)))
        wires.append(replace(wire, maker=to(wire.maker), readers=readers, stays=tuple(stays[key])))
    return replace(problem, units=tuple(units[k] for k in sorted(units)), wires=tuple(wires))


__all__ = ["Merged", "merge_alike"]
