"""Solves a search problem as an integer program, with SciPy's HiGHS.

Each unit picks one of its ways: one binary for each, of which one is 1. A wire is moved from where it is made to where it
is needed: for each such pair a variable that is 1 if both are so, a product that the program writes as flows, so that
only the picks need be whole numbers. Memory is a row for each moment that might not fit, added when a solution breaks it.
Owns: ``solve``. Must not know: graphs, ops. Next: ``search_problem`` (what a choice costs).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from gt.ir.mesh import Sharding
from gt.passes.reshard import usable_as
from gt.passes.search_problem import Problem, Slot, Way, Wire, evaluate, free_beside, held_bytes, memory

Sum: TypeAlias = dict[int, float]  # column -> weight; CONSTANT for what is always 1
CONSTANT = -1
ALWAYS: Sum = {CONSTANT: 1.0}
JOINT = 200  # combinations of the places of a wire's ends: so many at most get a column each
ROUNDS = 10  # of adding moments at which memory does not fit
AT_ONCE = 4  # moments added in one round
SHARE = 0.4  # of the time left: for one limit
ENOUGH = 1.02  # times what no plan was found for: little more is near enough the least memory


class SolverMissing(ImportError):
    """SciPy is not installed."""


@dataclass(frozen=True)
class Effort:
    """When to be content: with a plan proven this near the best, after so many seconds at the latest."""

    gap: float = 1e-3
    seconds: float = 20.0


@dataclass(frozen=True)
class Solution:
    """``picks``: the way of each unit. ``seconds``: what they cost. ``bound``: no choice costs less. ``held``: bytes at each moment."""

    picks: tuple[int, ...]
    seconds: float
    bound: float
    held: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max(self.held, default=0)


def solve(problem: Problem, limit: int | None = None, effort: Effort = Effort()) -> Solution | None:
    """Give the cheapest choice that fits in ``limit`` bytes, else one of about the least memory; None if time ran out.

    Errors: SolverMissing.
    """
    until = time.monotonic() + effort.seconds
    fastest = _minimum(problem, effort, {})
    if limit is None or fastest is None or fastest.peak <= limit:
        return fastest
    left = lambda: Effort(effort.gap, (until - time.monotonic()) * SHARE)  # noqa: E731
    moments: list[int] = []
    best, low = _within(problem, limit, fastest, moments, left()), limit
    while best.peak > max(limit, low * ENOUGH) and time.monotonic() < until:  # what is the least there is a plan for?
        middle = (low + best.peak) // 2
        best = _within(problem, middle, best, moments, left())
        low = low if best.peak <= middle else middle
    return best


def _within(problem: Problem, limit: int, best: Solution, moments: list[int], effort: Effort) -> Solution:
    """Give a fast choice within a limit; else ``best``, or one of a lower peak. Moments that break it are added to ``moments``."""
    until = time.monotonic() + effort.seconds
    last = best
    for _ in range(ROUNDS):
        moments += [at for at in _peaks(last.held) if last.held[at] > limit and at not in moments][:AT_ONCE]
        found = _minimum(problem, Effort(effort.gap, (until - time.monotonic()) / 2), dict.fromkeys(moments, limit))
        if found is None or found.peak <= limit:
            return found or best
        last, best = found, min(best, found, key=lambda s: s.peak)
        if time.monotonic() > until:
            break
    return best


def _peaks(held: Sequence[int]) -> list[int]:
    """Give the moments at which most is held nearby, the fullest first."""
    near = max(len(held) // 64, 1)
    tops = [at for at in range(len(held)) if held[at] == max(held[max(at - near, 0) : at + near + 1])]
    return sorted(tops, key=lambda at: -held[at])


def _minimum(problem: Problem, effort: Effort, rows: Mapping[int, int]) -> Solution | None:
    """Give the fastest choice that holds no more at some moments than the rows say."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array
    except ImportError as error:
        raise SolverMissing("an automatic search for placements needs SciPy: pip install 'gt-tensor[solver]'") from error
    program = _Program(problem)
    for moment, limit in rows.items():
        program.bound_memory(moment, limit)
    picks: tuple[int, ...] = (0,) * len(problem.units)
    bound = program.constant
    if program.costs:
        scale = 1.0 / max(max(program.costs), 1e-12)  # HiGHS takes numbers of about one
        at_rows, columns, values = zip(*program.entries, strict=True)
        shape = (len(program.lower), len(program.costs))
        matrix = coo_array((values, (at_rows, columns)), shape=shape).tocsr()
        result: Any = milp(
            np.array(program.costs) * scale,
            integrality=np.array(program.whole), bounds=Bounds(0, np.array(program.upper)),
            constraints=LinearConstraint(matrix, np.array(program.lower), np.array(program.higher)),
            options={"mip_rel_gap": effort.gap, "time_limit": max(effort.seconds, 0.1)},
        )  # fmt: skip
        if result.x is None:
            return None
        picks = program.picks(result.x)
        bound += (result.mip_dual_bound if result.mip_dual_bound is not None else result.fun) / scale
    return Solution(picks, evaluate(problem, picks), bound, tuple(memory(problem, picks)))


class _Program:
    """Columns with their costs and bounds, rows as entries with bounds. Units of one way and free wires take none."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.costs: list[float] = []
        self.upper: list[float] = []
        self.whole: list[int] = []
        self.entries: list[tuple[int, int, float]] = []
        self.lower: list[float] = []
        self.higher: list[float] = []
        self.constant = 0.0
        self.columns = [self._unit(unit.ways, unit.count) for unit in problem.units]
        self.moved: dict[Wire, dict[tuple[Sharding, Sharding], Sum]] = {}  # whether a wire is brought from where to where
        for wire in problem.wires:
            self._wire(wire)

    # -- parts of a program

    def _column(self, cost: float, upper: float = 1.0, whole: bool = False) -> int:
        self.costs.append(cost)
        self.upper.append(upper)
        self.whole.append(int(whole))
        return len(self.costs) - 1

    def _row(self, terms: Sequence[tuple[Sum, float]], lower: float, higher: float) -> None:
        """Add ``lower <= weighted sum of sums <= higher``."""
        total: Sum = {}
        for sum_, weight in terms:
            for column, value in sum_.items():
                total[column] = total.get(column, 0.0) + value * weight
        fixed = total.pop(CONSTANT, 0.0)
        row = len(self.lower)
        self.entries += [(row, column, value) for column, value in total.items() if value]
        self.lower.append(lower - fixed)
        self.higher.append(higher - fixed)

    def _charge(self, sum_: Sum, cost: float) -> None:
        for column, weight in sum_.items():
            if column == CONSTANT:
                self.constant += weight * cost
            else:
                self.costs[column] += weight * cost

    # -- units and wires

    def _unit(self, ways: Sequence[Way], count: int) -> list[int]:
        if len(ways) == 1:
            self.constant += ways[0].seconds * count
            return [CONSTANT]
        columns = [self._column(way.seconds * count, whole=True) for way in ways]
        self._row([({c: 1.0 for c in columns}, 1.0)], 1.0, 1.0)
        return columns

    def _places(self, side: str, at: Slot) -> dict[Sharding, Sum]:
        """Give each placement of an operand or result as the sum of the picks that lead to it."""
        unit, slot = at
        out: dict[Sharding, Sum] = {}
        for column, way in zip(self.columns[unit], self.problem.units[unit].ways, strict=True):
            out.setdefault(getattr(way, side)[slot], {})[column] = 1.0
        return out

    def _wire(self, wire: Wire) -> None:
        """Charge for each pair of places that a wire is moved between: once, however many readers are at the second."""
        made = self._places("produces", wire.maker)
        readers = [self._places("requires", reader) for reader in wire.readers]
        wants = dict.fromkeys(want for places in readers for want in places)
        if all(usable_as(have, want) for have in made for want in wants):
            return
        combined = len(made) * math.prod(map(len, readers))
        if len(readers) > 1 and combined <= JOINT:
            self._jointly(wire, made, readers)
            return
        pairs: dict[tuple[Sharding, Sharding], list[Sum]] = {}
        for places in readers:
            for pair, both in self._pairs(made, places).items():
                pairs.setdefault(pair, []).append(both)
        moved = {pair: self._any(sums) for pair, sums in pairs.items()}
        self.moved[wire] = moved
        whole = next((want for want in wants if want.is_replicated), None) if len(readers) > 1 else None
        for (have, want), sum_ in moved.items():
            seconds = self.problem.move_s(wire, have, want) * len(wire.stays)
            if not seconds:
                continue
            if whole is not None and free_beside(want, {whole: None}, wire.type) and (have, whole) in moved:
                alone = {self._column(0.0): 1.0}
                self._row([(alone, 1.0), (moved[have, whole], 1.0), (sum_, -1.0)], 0.0, np.inf)
                sum_ = alone
            self._charge(sum_, seconds)

    def _jointly(self, wire: Wire, made: Mapping[Sharding, Sum], readers: Sequence[Mapping[Sharding, Sum]]) -> None:
        """One column for each combination of where a wire is made and where each reader needs it, with what that costs.

        No fraction of picks then costs less than a mix of whole ones.
        """
        ends = [made, *readers]
        at: list[dict[Sharding, Sum]] = [{place: {} for place in end} for end in ends]  # the columns of each place
        moved = self.moved[wire] = {}
        for have, *wants in itertools.product(*ends):
            asked = dict.fromkeys(wants)
            column = self._column(self.problem.moves_s(wire, have, asked) * len(wire.stays))
            for columns, place in zip(at, (have, *wants), strict=True):
                columns[place][column] = 1.0
            for want in asked:
                moved.setdefault((have, want), {})[column] = 1.0
        for end, columns in zip(ends, at, strict=True):
            for place, sum_ in end.items():
                self._row([(columns[place], 1.0), (sum_, -1.0)], 0.0, 0.0)

    def _pairs(self, made: Mapping[Sharding, Sum], places: Mapping[Sharding, Sum]) -> dict[tuple[Sharding, Sharding], Sum]:
        """Give for each pair of places a sum that is 1 if the wire is made in the first and the reader needs the second.

        Over all second places they add up to the first, over all first ones to the second: this is what makes fractions
        of picks cost nearly what whole picks do, so that the solver has little left to try.
        """
        if len(made) == 1:
            return {(have, want): place for have in made for want, place in places.items()}
        if len(places) == 1:
            return {(have, want): place for have, place in made.items() for want in places}
        both = {(have, want): {self._column(0.0): 1.0} for have in made for want in places}
        for have, place in made.items():
            self._row([*((both[have, want], 1.0) for want in places), (place, -1.0)], 0.0, 0.0)
        for want, place in places.items():
            self._row([*((both[have, want], 1.0) for have in made), (place, -1.0)], 0.0, 0.0)
        return both

    def _any(self, sums: Sequence[Sum]) -> Sum:
        """Give a sum that is 1 if any of some is."""
        if len(sums) == 1 or ALWAYS in sums:
            return sums[0] if len(sums) == 1 else ALWAYS
        out = {self._column(0.0): 1.0}
        for sum_ in sums:
            self._row([(out, 1.0), (sum_, -1.0)], 0.0, np.inf)
        return out

    # -- memory

    def bound_memory(self, moment: int, limit: int) -> None:
        """Keep what is held at a moment within the limit."""
        self._row(self._held(moment, limit), -np.inf, 1.0)

    def _held(self, moment: int, unit: int) -> list[tuple[Sum, float]]:
        terms: list[tuple[Sum, float]] = []
        for wire in self.problem.wires:
            held = sum(stay.held for stay in wire.stays if stay.born <= moment <= stay.dies)
            kept = sum(first <= moment <= last for stay in wire.stays for first, last in stay.near)
            for place, picked in self._places("produces", wire.maker).items() if held else ():
                terms.append((picked, held * held_bytes(wire.type, place) / unit))
            for (have, want), moved in self.moved.get(wire, {}).items() if kept else ():
                if not usable_as(have, want):
                    terms.append((moved, kept * held_bytes(wire.type, want) / unit))
        return terms

    def picks(self, solution: Sequence[float]) -> tuple[int, ...]:
        return tuple(
            max(range(len(columns)), key=lambda k: solution[columns[k]]) if len(columns) > 1 else 0
            for columns in self.columns
        )  # fmt: skip


__all__ = ["Effort", "Solution", "SolverMissing", "solve"]
