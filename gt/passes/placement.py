"""Where one op computes: which factors of its rule are split on which mesh axes, chosen by cost.

Owns: ``choose``, for one node whose operands are placed. It sees a sharding rule, never an op. "Where the data is"
comes first: a split that an operand already has and that costs no communication on the others is taken, though its
result may be pending; else the cheapest way by predicted seconds.
Must not know: graphs, signals. Next: ``propagate_sharding`` (asks for every node), ``reshard`` (what a change costs).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from gt.ir.factors import DimFactors, Factor, Halo, Rule
from gt.ir.mesh import Mesh, Reduction, Sharding
from gt.ir.opdef import Linear
from gt.ir.tiles import busiest
from gt.ir.types import TensorType
from gt.passes.cost import compute_s, transfer_s
from gt.passes.reshard import cost_s, is_local, usable_as

Assignment = dict[Factor, tuple[str, ...]]
Modes = dict[str, tuple[int, ...]]  # mesh axis -> the linear group whose pending sum passes through the op on it
CLEARLY = 1 - 1e-9  # equal costs, summed in another order, differ in the last bits


@dataclass(frozen=True)
class Problem:
    """One node to place on ``home``.

    ``current``: where the operands are. ``wanted``: where results should be, if anyone said. ``only_use``: whether this
    node alone reads the operand. ``done``: for each operand the placements it is brought to anyway, so free here.
    """

    home: Mesh
    rule: Rule
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    current: tuple[Sharding, ...]
    wanted: tuple[Sharding | None, ...]
    linear: Linear
    only_use: tuple[bool, ...]
    done: tuple[frozenset[Sharding], ...]

    def move_s(self, operand: int, target: Sharding) -> float:
        if target in self.done[operand]:
            return 0.0
        return cost_s(self.current[operand], target, self.operands[operand])

    def result_s(self, result: int, made: Sharding) -> float:
        """Seconds to bring a result where it is wanted; a pending reduction nobody asked for is paid for at once."""
        want = self.wanted[result] or Sharding(made.mesh, made.dims)
        return cost_s(made, want, self.results[result])


@dataclass(frozen=True)
class Choice:
    """Where each operand must be and where each result is made; ``factors``: which are split on which axes."""

    requires: tuple[Sharding, ...]
    produces: tuple[Sharding, ...]
    factors: tuple[tuple[Factor, tuple[str, ...]], ...]
    seconds: float


def choose(problem: Problem) -> Choice:
    """Give the best placement of one node."""
    best: Choice | None = None
    for modes in _modes(problem):
        assignment: Assignment = {}
        for part in components(problem.rule):
            assignment |= _best_split(problem, part, modes)
        found = _choice(problem, assignment, modes)
        if best is None or found.seconds < best.seconds * CLEARLY:
            best = found
    assert best is not None
    return best


# -- pending sums through linear ops


def _modes(problem: Problem) -> Iterator[Modes]:
    """Give the ways to treat each mesh axis: resolve pending sums on it, or pass them through one linear group.

    Passing through comes first, so wins ties, only where the op is linear in all its operands together: a product with
    another operand may turn a pending zero into NaN where the sum would not.
    """
    options: list[list[tuple[int, ...] | None]] = []
    for axis, _ in problem.home.axes:
        groups = [g for g in problem.linear if _may_pass(problem, g, axis)]
        joint = [g for g in groups if len(g) == len(problem.operands)]
        options.append([*joint, None, *(g for g in groups if g not in joint)])
    for modes in itertools.product(*options):
        yield {axis: group for (axis, _), group in zip(problem.home.axes, modes, strict=True) if group is not None}


def _may_pass(problem: Problem, group: tuple[int, ...], axis: str) -> bool:
    pending = [problem.operands[i] for i in group if _pending_on(problem.current[i], problem.home, axis) == "sum"]
    return bool(pending) and sums_may_pass(pending, problem.results)


def sums_may_pass(pending: Iterable[TensorType], results: Iterable[TensorType]) -> bool:
    """Whether parts of a sum, of these types, may go through a linear op and be added up behind it.

    A narrower dtype would lose digits that the sum keeps. Parts of whole numbers add up modulo their width, so only in their dtype.
    """
    dtypes, made = {t.dtype for t in pending}, {t.dtype for t in results}
    if any(d.kind in "iu" for d in dtypes):
        return made <= dtypes and len(dtypes) == 1
    return all(d.itemsize >= max(t.itemsize for t in dtypes) and d.kind in "fc" for d in made)


def _pending_on(have: Sharding, home: Mesh, axis: str) -> Reduction | None:
    return have.partial_axes.get(axis) if have.mesh == home else None


# -- which factor each axis splits


@dataclass(frozen=True)
class Component:
    """Factors that meet in some operand or result, with those operands and results. Components split independently."""

    factors: tuple[Factor, ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]


@lru_cache(maxsize=4096)
def components(rule: Rule) -> tuple[Component, ...]:
    groups: list[tuple[set[Factor], set[int], set[int]]] = []

    def join(factors: set[Factor], operands: set[int], results: set[int]) -> None:
        for group in [g for g in groups if g[0] & factors]:
            groups.remove(group)
            factors, operands, results = factors | group[0], operands | group[1], results | group[2]
        groups.append((factors, operands, results))

    for side, terms in enumerate((rule.operands, rule.results)):
        for i, dims in enumerate(terms):
            found = {f for d in dims for f in d}
            if found:
                join(found, {i} if side == 0 else set(), {i} if side else set())
    for pair in rule.partner.items():
        join(set(pair), set(), set())
    # A result belongs to whatever reduces into it: an axis that it is pending on cannot split it too.
    reducing = set(rule.pending)
    for r, dims in enumerate(rule.results):
        own = {f for d in dims for f in d}
        if reducing - own:
            join((reducing - own) | own, set(), {r})
    return tuple(
        Component(tuple(f for f, _ in rule.sizes if f in fs), tuple(sorted(ops)), tuple(sorted(rs)))
        for fs, ops, rs in groups
    )


def _best_split(problem: Problem, part: Component, modes: Modes) -> Assignment:
    free = [axis for axis, _ in problem.home.axes if axis not in modes]
    best: tuple[bool, float, Assignment] | None = None
    for picks in itertools.product(*(_options(problem, part, axis) for axis in free)):
        assignment: Assignment = {}
        for axis, factor in zip(free, picks, strict=True):
            if factor is not None:
                assignment[factor] = (*assignment.get(factor, ()), axis)
        assignment = {f: _ordered(problem, f, axes) for f, axes in assignment.items()}
        assignment = with_partners(problem.rule, assignment, problem.home)
        if not splittable(problem.rule, assignment, problem.home):
            continue
        moved, seconds = _rank(problem, part, assignment, modes)
        if best is None or moved < best[0] or (moved == best[0] and seconds < best[1] * CLEARLY):
            best = moved, seconds, assignment
    assert best is not None
    return best[2]


def _rank(problem: Problem, part: Component, assignment: Assignment, modes: Modes) -> tuple[bool, float]:
    """Order the splits: first those that an operand has and the others are cut to for free, then by seconds."""
    natural, there = True, False
    seconds, nbytes = 0.0, 0
    for i in part.operands:
        need = _required(problem, i, assignment, modes)
        natural = natural and is_local(problem.current[i], need, problem.operands[i])
        there = there or (need.is_split and problem.current[i] == need)
        seconds += problem.move_s(i, need)
        nbytes += local_bytes(problem.operands[i], need)
    for r in part.results:
        made = produced(problem.home, problem.rule, r, assignment, modes)
        seconds += problem.result_s(r, made)
        nbytes += local_bytes(problem.results[r], made)
    seconds += near_s(problem, assignment, modes)
    natural = natural and not _fetches(problem.rule, assignment)
    return not (natural and there), seconds + compute_s(_work(problem, part, assignment), nbytes)


def _halo_s(problem: Problem, halo: Halo, assignment: Assignment, modes: Modes) -> float:
    """Give the seconds until neighbours have the rows that their windows share."""
    for i, (type_, dims) in enumerate(zip(problem.operands, problem.rule.operands, strict=True)):
        dim = next((d for d, factors in enumerate(dims) if factors == (halo.moved,)), None)
        if dim is not None and halo.rows:
            need = _required(problem, i, assignment, modes)
            nbytes = halo.rows * (local_bytes(type_, need) // max(need.local_shape(type_.shape)[dim], 1))
            return transfer_s(2, nbytes, len(need.mesh.workers))
    return 0.0


def _work(problem: Problem, part: Component, assignment: Assignment) -> int:
    """Give how much a worker computes, by the factors of a component; rows that move count once."""
    factors = [f for f in part.factors if f not in problem.rule.following]
    shards = math.prod(problem.home.axis_size(a) for f in factors for a in assignment.get(f, ()))
    return problem.rule.volume(factors) // shards


def _fetches(rule: Rule, assignment: Assignment) -> bool:
    """Whether rows of a split dim go to all workers, as there are too few of them to be split."""
    led = (f for f in assignment if rule.kind[f] == "near" and f not in rule.following)
    return any(rule.partner.get(f) not in assignment for f in led)


def near_s(problem: Problem, assignment: Assignment, modes: Modes) -> float:
    """Give the seconds until each worker has the rows of its neighbours' that it needs."""
    rule = problem.rule
    if rule.near is None or not any(rule.kind[f] == "near" for f in assignment):
        return sum(_halo_s(problem, halo, assignment, modes) for halo in rule.halos if halo.factor in assignment)
    need, made = _required(problem, 0, assignment, modes), produced(problem.home, rule, 0, assignment, modes)
    numel, messages = busiest(need, made, problem.operands[0].shape, rule.near)
    return transfer_s(messages, numel * problem.operands[0].dtype.itemsize, len(need.mesh.workers))


def local_bytes(type_: TensorType, placed: Sharding) -> int:
    return math.prod(placed.local_shape(type_.shape)) * type_.dtype.itemsize


def _options(problem: Problem, part: Component, axis: str) -> list[Factor | None]:
    """Give the factors that ``axis`` splits already in an operand, or should split in a result; and none.

    Where an operand is split on what must be whole here, its other dims may be split instead: to exchange parts costs
    less than to join them.
    """
    found: dict[Factor, None] = {}
    terms = [(problem.current[i], problem.rule.operands[i]) for i in part.operands]
    num_operands = len(terms)
    terms += [(w, problem.rule.results[r]) for r in part.results if (w := problem.wanted[r]) is not None]
    can = lambda f: splittable(problem.rule, {f: (axis,)}, problem.home)  # noqa: E731
    for i, (placed, dims) in enumerate(terms):
        if placed.mesh != problem.home:
            continue
        for dim, factors in enumerate(dims):
            if not factors or axis not in placed.dims[dim]:
                continue
            own = problem.rule.split_by(factors, placed.dims[dim], problem.home) or {}
            factor = next((f for f in factors if axis in own.get(f, ())), factors[0])
            if can(factor) or problem.rule.kind[factor] != "whole" and _is_minor(problem.rule, factor):
                found[factor] = None
            if not can(factor) and i < num_operands:
                found |= dict.fromkeys(other[0] for other in dims if other and can(other[0]))
    return [*(f for f in found if f not in problem.rule.following), None]


@lru_cache(maxsize=65536)
def _is_minor(rule: Rule, factor: Factor) -> bool:
    """Whether a factor is not the major one of some dim, so that it can be split only beside another."""
    return any(factor in factors[1:] for dims in (*rule.operands, *rule.results) for factors in dims)


def with_partners(rule: Rule, assignment: Assignment, mesh: Mesh) -> Assignment:
    """Split the rows of a result as the operand's that they are, where it has enough, else it is whole; and as their windows."""
    windows = {halo.factor for halo in rule.halos}
    for factor, other in rule.partner.items():
        if factor in assignment and (factor in windows or splittable(rule, {other: assignment[factor]}, mesh)):
            assignment = assignment | {other: assignment[factor]}
    return assignment


def splittable(rule: Rule, assignment: Assignment, mesh: Mesh) -> bool:
    """Whether factors can be split on axes: not one that must be whole or is too small.

    Part of a compound dim it must divide exactly, or the parts of the dim would not be the parts of the factor; and a minor
    one can be split only where the majors are in parts of one row.
    """
    return _splittable(rule, tuple(assignment.items()), mesh)


@lru_cache(maxsize=65536)
def _splittable(rule: Rule, assigned: tuple[tuple[Factor, tuple[str, ...]], ...], mesh: Mesh) -> bool:
    shards = {f: math.prod(mesh.axis_size(a) for a in axes) for f, axes in assigned}
    if any(rule.kind[f] == "whole" or rule.size[f] < n for f, n in shards.items()):
        return False
    for dims in (*rule.operands, *rule.results):
        for factors in dims:
            if len(factors) < 2:
                continue
            full = True
            for factor in factors:
                n = shards.get(factor)
                if n is not None and (not full or rule.size[factor] % n):
                    return False
                full = full and n == rule.size[factor]
    return True


def _ordered(problem: Problem, factor: Factor, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Give the axes in the order some operand or wanted result has them already."""
    if len(axes) < 2:
        return axes
    terms = list(zip(problem.current, problem.rule.operands, strict=True))
    terms += [(w, d) for w, d in zip(problem.wanted, problem.rule.results, strict=True) if w is not None]
    for placed, dims in terms:
        for dim, factors in enumerate(dims):
            if placed.mesh != problem.home or factor not in factors:
                continue
            own = (problem.rule.split_by(factors, placed.dims[dim], problem.home) or {}).get(factor, ())
            if set(own) == set(axes):
                return own
    return axes


# -- placements from an assignment


def _required(problem: Problem, operand: int, assignment: Assignment, modes: Modes) -> Sharding:
    partial: dict[str, Reduction] = {axis: "sum" for axis, group in modes.items() if operand in group}
    need = split_as(problem.home, problem.rule.operands[operand], assignment, partial)
    have = problem.current[operand]
    return have if usable_as(have, need) else need


def produced(mesh: Mesh, rule: Rule, result: int, assignment: Assignment, modes: Modes) -> Sharding:
    """Give where the result is made: split, or pending where a factor it lacks was reduced."""
    dims = rule.results[result]
    own = {f for d in dims for f in d}
    partial: dict[str, Reduction] = dict.fromkeys(modes, "sum")
    for factor, axes in assignment.items():
        if factor not in own and factor in rule.pending:
            partial |= dict.fromkeys(axes, rule.pending[factor])
    return split_as(mesh, dims, assignment, partial)


def split_as(
    mesh: Mesh, dims: tuple[DimFactors, ...], assignment: Assignment, partial: dict[str, Reduction]
) -> Sharding:
    """Give the placement of a value whose dims have these factors."""
    split = tuple(tuple(axis for f in factors for axis in assignment.get(f, ())) for factors in dims)
    return Sharding(mesh, split, tuple((axis, partial[axis]) for axis, _ in mesh.axes if axis in partial))


def _choice(problem: Problem, assignment: Assignment, modes: Modes) -> Choice:
    requires = tuple(_required(problem, i, assignment, modes) for i in range(len(problem.operands)))
    produces = tuple(produced(problem.home, problem.rule, r, assignment, modes) for r in range(len(problem.results)))
    seconds = sum(problem.move_s(i, need) for i, need in enumerate(requires))
    seconds += sum(problem.result_s(r, made) for r, made in enumerate(produces))
    for group in modes.values():  # a sum that passes through here and is read elsewhere too is added up twice
        for i in group:
            have = problem.current[i]
            if have.partial and not problem.only_use[i]:
                seconds += problem.move_s(i, Sharding(have.mesh, have.dims))
    seconds += near_s(problem, assignment, modes)
    work = sum(_work(problem, part, assignment) for part in components(problem.rule))
    nbytes = sum(map(local_bytes, problem.operands, requires)) + sum(map(local_bytes, problem.results, produces))
    return Choice(requires, produces, tuple(sorted(assignment.items())), seconds + compute_s(work, nbytes))
