"""What the search decides: *units* that each pick one *way*, and *wires* between them that cost what is moved.

A unit is a part of a node, an input or an output. A way says where the unit needs each wire it reads and where it makes
each wire it writes. A wire made in one place and needed in others is moved: once for each place, however many need it
there, and for nothing where it is needed whole as well and the place is a cut of that. Owns: ``Problem``, ``evaluate``,
which is what a choice of ways costs, by definition. Must not know: graphs, ops, solvers. Next: ``search_graph`` (makes a
problem of a graph), ``merge_alike`` (makes it smaller), ``integer_program`` (solves it).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from gt.ir.mesh import Sharding
from gt.ir.ops.collective import all_reduce
from gt.ir.tiles import busiest
from gt.ir.types import TensorType
from gt.passes.bucket_collectives import COPIES, FLAT
from gt.passes.cost import Machine, step_s, transfer_s
from gt.passes.placement import local_bytes
from gt.passes.reshard import LOCAL_STEP_S, Step, is_local, plan_reshard, usable_as

BUCKET = 25 << 20  # bytes of such a buffer
FOREVER = 1 << 60


@dataclass(frozen=True)
class Way:
    """One way for a unit: where it needs what it reads and makes what it makes, in the order of its slots."""

    requires: tuple[Sharding, ...]
    produces: tuple[Sharding, ...]
    seconds: float


@dataclass(frozen=True)
class Unit:
    """``count``: for how many alike it stands."""

    ways: tuple[Way, ...]
    count: int = 1


Slot: TypeAlias = tuple[int, int]  # a unit, and which of its operands or results


@dataclass(frozen=True)
class Stay:
    """When a value takes memory: from node ``born`` to ``dies``, a copy of it elsewhere over the stretches ``near``."""

    born: int
    dies: int
    near: tuple[tuple[int, int], ...] = ()
    held: int = 1  # how many of it memory holds


@dataclass(frozen=True)
class Wire:
    """A value on its way from its maker to its readers, or several that go between the same units.

    ``mates``: so many can travel as one, itself included, so it pays for its share of starting a collective. ``times``: how
    often it is moved, for uses so far apart that it is dropped between. ``stays``: one for each value.
    """

    type: TensorType
    maker: Slot
    readers: tuple[Slot, ...]
    mates: int
    times: int
    stays: tuple[Stay, ...]

    @property
    def like(self) -> tuple[object, ...]:
        """Give what makes the cost of moving it."""
        return self.type, self.mates, self.times


@dataclass(frozen=True)
class Problem:
    """``num_moments``: the nodes at which memory is counted."""

    units: tuple[Unit, ...]
    wires: tuple[Wire, ...]
    machine: Machine
    num_moments: int = 0
    _costs: dict[tuple[TensorType, int, Sharding, Sharding], float] = field(default_factory=dict, compare=False)

    def move_s(self, wire: Wire, have: Sharding, want: Sharding) -> float:
        """Give the seconds to bring a wire of one place to another, as often as that is done."""
        key = wire.type, wire.mates, have, want
        if key not in self._costs:
            self._costs[key] = move_s(have, want, wire.type, wire.mates, self.machine)
        return self._costs[key] * wire.times

    def made(self, wire: Wire, picks: Sequence[int]) -> Sharding:
        unit, slot = wire.maker
        return self.units[unit].ways[picks[unit]].produces[slot]

    def asked(self, wire: Wire, picks: Sequence[int]) -> dict[Sharding, None]:
        """Give where the readers of a wire need it."""
        return dict.fromkeys(self.units[u].ways[picks[u]].requires[slot] for u, slot in wire.readers)

    def wire_s(self, wire: Wire, picks: Sequence[int]) -> float:
        return self.moves_s(wire, self.made(wire, picks), self.asked(wire, picks))

    def moves_s(self, wire: Wire, made: Sharding, asked: Collection[Sharding]) -> float:
        """Give the seconds to bring a wire to all the places it is asked for."""
        return sum(0.0 if free_beside(want, asked, wire.type) else self.move_s(wire, made, want) for want in asked)


def evaluate(problem: Problem, picks: Sequence[int]) -> float:
    """Give the seconds that a choice of one way for each unit costs."""
    total = sum(unit.count * unit.ways[pick].seconds for unit, pick in zip(problem.units, picks, strict=True))
    return total + sum(len(wire.stays) * problem.wire_s(wire, picks) for wire in problem.wires)


def memory(problem: Problem, picks: Sequence[int]) -> list[int]:
    """Give the bytes one worker holds at each moment."""
    change = [0] * (problem.num_moments + 1)

    def hold(first: int, last: int, nbytes: int) -> None:
        if first <= last:
            change[max(first, 0)] += nbytes
            change[min(last, problem.num_moments - 1) + 1] -= nbytes

    for wire in problem.wires:
        made = problem.made(wire, picks)
        for want, stay in itertools.product(problem.asked(wire, picks), wire.stays):
            for first, last, nbytes in held(wire.type, made, want, stay):
                hold(first, last, nbytes)
        for stay in wire.stays:
            hold(stay.born, stay.born if made.partial else stay.dies, stay.held * held_bytes(wire.type, made))
    return list(itertools.accumulate(change[: problem.num_moments]))


def held(type_: TensorType, made: Sharding, want: Sharding, stay: Stay) -> Iterator[tuple[int, int, int]]:
    """Give over which moments so many bytes are held because a reader needs a value in some place.

    A pending sum of which each worker keeps a part is added up as soon as it is made; other sums wait for their reader.
    """
    if made.partial and want.is_split and stay.born <= stay.dies:
        yield stay.born, stay.dies, held_bytes(type_, want)
        return
    if made.partial:
        yield stay.born + 1, stay.dies, stay.held * held_bytes(type_, made)
    if not usable_as(made, want):
        for first, last in stay.near:
            yield first, last, held_bytes(type_, want)


def free_beside(want: Sharding, asked: Collection[Sharding], type_: TensorType) -> bool:
    """Whether a place comes for nothing with another that is asked for: a cut of the whole."""
    return not want.is_replicated and any(a.is_replicated and is_local(a, want, type_) for a in asked)


@lru_cache(maxsize=65536)
def held_bytes(type_: TensorType, placed: Sharding) -> int:
    return local_bytes(type_, placed)


def move_s(have: Sharding, want: Sharding, type_: TensorType, mates: int, machine: Machine) -> float:
    """Give the seconds from one place to another, for one of so many that can travel as one."""
    if usable_as(have, want):
        return 0.0
    total, at = 0.0, have
    for step in plan_reshard(have, want, type_.placed(None)):
        total += LOCAL_STEP_S + (_step_s(step, at, type_, mates, machine) if step.op.effect else 0.0)
        at = step.target
    return total


def _step_s(step: Step, at: Sharding, type_: TensorType, mates: int, machine: Machine) -> float:
    attrs = dict(step.attrs)
    if step.op.name == "transfer":
        numel, messages = busiest(at, step.target, type_.shape)
        return transfer_s(messages, numel * type_.dtype.itemsize, len(attrs["group"]), machine)  # type: ignore[arg-type]
    axes = attrs["axes"]
    assert isinstance(axes, tuple)
    others = [a for d in at.dims for a in d if a not in axes]
    parts = math.prod(at.mesh.axis_size(str(a)) for a in axes)
    nbytes = type_.nbytes // math.prod(at.mesh.axis_size(a) for a in others)
    alone, latency = step_s(step.op.name, parts, nbytes, machine), step_s(step.op.name, parts, 0, machine)
    copied = 0 if step.op is all_reduce and nbytes > FLAT else nbytes
    share = latency * max(nbytes / BUCKET, 1 / mates) + COPIES * copied / machine.memory_bandwidth
    return min(alone, step_s(step.op.name, parts, nbytes, machine, starts=False) + share) if mates > 1 else alone


__all__ = ["BUCKET", "FOREVER", "Problem", "Slot", "Stay", "Unit", "Way", "Wire", "evaluate", "free_beside", "held_bytes", "memory", "move_s"]
