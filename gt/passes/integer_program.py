"""Solves a search problem as an integer program, with SciPy's HiGHS.

Each unit picks one of its ways: one binary for each, of which one is 1. A wire is moved from where it is made to where it
is needed: for each such pair, or for each combination of all its ends, a column that is 1 if they are so, tied to the picks
by rows that let no fraction of picks cost much less than whole ones; so only the picks need be whole numbers. Memory
that does not fit first gets a price, which always leads to some plan, then a row for each moment at which it is short.
Owns: ``solve``. Must not know: graphs, ops. Next: ``search_problem`` (what a choice costs).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from gt.ir.advice import Advised
from gt.ir.mesh import Sharding
from gt.passes.reshard import usable_as
from gt.passes.search_problem import Problem, Slot, Way, Wire, evaluate, free_beside, held, held_bytes, memory

Sum: TypeAlias = dict[int, float]  # column -> weight; CONSTANT for what is always 1
CONSTANT = -1
ALWAYS: Sum = {CONSTANT: 1.0}
JOINT = 200  # combinations of the places of a wire's ends: so many at most get a column each
ROUNDS = 10  # of adding moments at which memory does not fit
AT_ONCE = 4  # moments added in one round
SHARE = 0.5  # of the time left: for each of the ways to keep within a limit
ROUGH = 1e-2  # how near the best is near enough while prices are tried
STEP, DEAREST, NEAR = 8.0, 1e5, 1.5  # of prices: the factor from one to the next, the last one over the first, the precision


class SolverMissing(Advised, ImportError):
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
    fastest = _minimum(problem, effort, {}, {})
    if limit is None or fastest is None or fastest.peak <= limit:
        return fastest
    left = lambda gap: Effort(gap, (until - time.monotonic()) * SHARE)  # noqa: E731
    best = _priced(problem, limit, fastest, left(ROUGH))
    exact = _within(problem, limit, best, left(effort.gap))
    if exact is best and best.peak > limit:  # nothing fits: the fastest plan of the least memory that is known
        limit = best.peak
        exact = _within(problem, limit, best, left(effort.gap))
    return replace(_better(best, exact, limit), bound=fastest.bound if exact is best else exact.bound)


def _better(a: Solution, b: Solution, limit: int) -> Solution:
    """Give the faster of those that fit, else the one that is less over."""
    return min(a, b, key=lambda s: (max(s.peak - limit, 0), s.seconds))


def _priced(problem: Problem, limit: int, fastest: Solution, effort: Effort) -> Solution:
    """Give a fast choice within a limit, or one of about the least memory, by putting a price on memory.

    At a price the program is as easy as without a limit. The price is raised until a choice fits, then lowered towards
    the last one that was too low. It is asked at the moments at which some choice was over.
    """
    until = time.monotonic() + effort.seconds
    unit = fastest.seconds / fastest.peak
    price, low, high = unit, 0.0, math.inf
    moments, best = _over(fastest, limit, ()), fastest
    while time.monotonic() < until and price < unit * DEAREST and high > low * NEAR:
        found = _minimum(problem, Effort(effort.gap, until - time.monotonic()), {}, dict.fromkeys(moments, price / len(moments)))
        if found is None:
            break
        best = _better(best, found, limit)
        if more := _over(found, limit, moments):
            moments += more
            continue
        low, high = (low, price) if found.peak <= limit else (price, high)
        price = math.sqrt(low * high) if low > 0.0 and high < math.inf else price / STEP if high < math.inf else price * STEP
    return best


def _over(found: Solution, limit: int, known: Sequence[int]) -> list[int]:
    """Give moments at which a choice is over a limit, some at a time, if none of them is known."""
    over = [at for at in _peaks(found.held) if found.held[at] > limit]
    return [] if any(at in known for at in over) else over[:AT_ONCE]


def _within(problem: Problem, limit: int, best: Solution, effort: Effort) -> Solution:
    """Give the fastest choice within a limit, by forbidding at more and more moments what is over; else ``best``."""
    until = time.monotonic() + effort.seconds
    rows: dict[int, int] = {}
    for _ in range(ROUNDS):
        found = _minimum(problem, Effort(effort.gap, (until - time.monotonic()) / 2), rows, {})
        if found is None or found.peak <= limit or time.monotonic() > until:
            return best if found is None else found
        rows |= {at: limit for at in _peaks(found.held) if found.held[at] > limit and at not in rows}
    return best


def _peaks(held: Sequence[int]) -> list[int]:
    """Give the moments at which most is held nearby, the fullest first."""
    near = max(len(held) // 64, 1)
    tops = [at for at in range(len(held)) if held[at] == max(held[max(at - near, 0) : at + near + 1])]
    return sorted(tops, key=lambda at: -held[at])


def _minimum(
    problem: Problem, effort: Effort, rows: Mapping[int, int], prices: Mapping[int, float]
) -> Solution | None:
    """Give the fastest choice that holds no more at some moments than the rows say, where a byte held at others costs time."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array
    except ImportError as error:
        raise SolverMissing("an automatic search for placements needs SciPy: pip install 'gt-tensor[solver]'") from error
    program = _Program(problem)
    for moment, limit in rows.items():
        program.bound_memory(moment, limit)
    for moment, price in prices.items():
        program.price_memory(moment, price)
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
            self.moved[wire] = {(have, want): ALWAYS for have in made for want in wants if have.partial}
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

    def price_memory(self, moment: int, price: float) -> None:
        """Charge for each byte held at a moment."""
        for sum_, nbytes in self._held(moment, 1):
            self._charge(sum_, nbytes * price)

    def _held(self, moment: int, unit: int) -> list[tuple[Sum, float]]:
        terms: list[tuple[Sum, float]] = []
        for wire in self.problem.wires:
            for (have, want), moved in self.moved.get(wire, {}).items():
                stretches = (s for stay in wire.stays for s in held(wire.type, have, want, stay))
                nbytes = sum(n for first, last, n in stretches if first <= moment <= last)
                if nbytes:
                    terms.append((moved, nbytes / unit))
            for place, picked in self._places("produces", wire.maker).items():
                dies = [stay.born if place.partial else stay.dies for stay in wire.stays]
                count = sum(s.held for s, end in zip(wire.stays, dies, strict=True) if s.born <= moment <= end)
                if count:
                    terms.append((picked, count * held_bytes(wire.type, place) / unit))
        return terms

    def picks(self, solution: Sequence[float]) -> tuple[int, ...]:
        return tuple(
            max(range(len(columns)), key=lambda k: solution[columns[k]]) if len(columns) > 1 else 0
            for columns in self.columns
        )  # fmt: skip


__all__ = ["Effort", "Solution", "SolverMissing", "solve"]
