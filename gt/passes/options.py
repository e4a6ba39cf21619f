"""Every way one op can compute on a mesh: which factors are split on which axes, and what that costs.

Where ``placement`` picks one way from where the operands are, this lists them all, for the search to pick from. Operands
and results that no factor joins, as an optimizer's parameters, are *parts* with options of their own. An op that has
``when_split`` also has the options to split what must be whole otherwise: it is then written in other ops.
Owns: ``Option``, ``Part``, ``parts``. It sees sharding rules, never an op. Next: ``auto_shard`` (asks for every node).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gt.ir.factors import Factor, Rule
from gt.ir.graph import Attrs
from gt.ir.mesh import Mesh, Reduction, Sharding
from gt.ir.opdef import Linear, OpDef
from gt.ir.tiles import busiest
from gt.ir.types import TensorType
from gt.passes.cost import Machine, compute_s, transfer_s
from gt.passes.placement import (
    Assignment,
    Choice,
    Component,
    Modes,
    components,
    local_bytes,
    produced,
    split_as,
    splittable,
    sums_may_pass,
    with_partners,
)
from gt.passes.work import local_multiply_adds

MOST = 64  # options of one part; of more, those that compute fastest are kept
VIEW_S = 1e-9  # so that of two plans that cost the same the one that does less wins


@dataclass(frozen=True)
class Option:
    """One way to compute: where each operand must be, where each result is made, how long that takes.

    ``apart``: into how many parts a dim is split that must be whole unless the op is written in others; 0 if none.
    ``steps``: how each of those others computes.
    """

    requires: tuple[Sharding, ...]
    produces: tuple[Sharding, ...]
    factors: tuple[tuple[Factor, tuple[str, ...]], ...]
    seconds: float
    apart: int = 0
    steps: tuple[Choice, ...] = ()

    @property
    def where(self) -> tuple[tuple[Sharding, ...], tuple[Sharding, ...]]:
        return self.requires, self.produces


@dataclass(frozen=True)
class Part:
    """Operands and results of an op that are placed together, by number, with the ways to do so."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Call:
    """An op on types, on a mesh. ``passes``: how often each operand and result goes to memory, 0 to 1, operands first."""

    op: OpDef
    attrs: Attrs
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    mesh: Mesh
    passes: tuple[float, ...]
    machine: Machine

    def linear(self) -> Linear:
        return self.op.linear_groups(len(self.operands), self.attrs)


@lru_cache(maxsize=8192)
def parts(call: Call) -> tuple[Part, ...]:
    """Give the parts of a call. What has no rule, or no factors, is whole."""
    rule = call.op.rule(call.operands, call.results, call.attrs) if call.mesh.size > 1 else None
    everything = tuple(range(len(call.operands))), tuple(range(len(call.results)))
    if rule is None:
        return (_whole(call, *everything),)
    linear = call.linear()
    if linear:  # a pending sum passes through all of the op
        return (_part(call, rule, Component(tuple(f for f, _ in rule.sizes), *everything), linear),)
    found = [_part(call, rule, part, ()) for part in components(rule)]
    operands = tuple(i for i in everything[0] if all(i not in p.operands for p in found))
    results = tuple(i for i in everything[1] if all(i not in p.results for p in found))
    if operands or results:
        found.append(_whole(call, operands, results))
    return tuple(found)


def _part(call: Call, rule: Rule, part: Component, linear: Linear) -> Part:
    best: dict[object, Option] = {}
    for modes in _modes(call, linear):
        for assignment, stiff in _assignments(call, rule, part, modes):
            option = _option(call, rule, part, assignment, modes, stiff)
            if option.where not in best or option.seconds < best[option.where].seconds:
                best[option.where] = option
    options = sorted(best.values(), key=lambda o: o.seconds) if len(best) > MOST else list(best.values())
    whole = next(o for o in best.values() if not o.factors and not any(p.partial for p in o.produces))
    return Part(part.operands, part.results, tuple(dict.fromkeys([whole, *options[:MOST]])))


def _modes(call: Call, linear: Linear) -> Iterator[Modes]:
    """Give the ways to treat each mesh axis: split on it, or let a pending sum on it pass through a linear group."""
    groups = [None, *(g for g in linear if sums_may_pass([call.operands[i] for i in g], call.results))]
    for modes in itertools.product(groups, repeat=len(call.mesh.axes)):
        yield {axis: group for (axis, _), group in zip(call.mesh.axes, modes, strict=True) if group is not None}


def _assignments(
    call: Call, rule: Rule, part: Component, modes: Modes
) -> Iterator[tuple[Assignment, Factor | None]]:
    """Give which factors each free axis can split; and the one that is split though it must be whole, where the op can be
    written in others that work on parts.
    """
    free = [axis for axis, _ in call.mesh.axes if axis not in modes]
    may = call.op.when_split is not None and not modes
    for stiff in (None, *(f for f in part.factors if may and rule.kind[f] == "whole")):
        loose = rule if stiff is None else _loosened(rule, stiff)
        windows = {halo.factor for halo in rule.halos}  # which are split only where an operand is already
        picked = [f for f in part.factors if f not in rule.following and f not in windows]
        for picks in itertools.product((None, *picked), repeat=len(free)):
            assignment: Assignment = {}
            for axis, factor in zip(free, picks, strict=True):
                if factor is not None:
                    assignment[factor] = (*assignment.get(factor, ()), axis)
            assignment = with_partners(loose, assignment, call.mesh)
            if splittable(loose, assignment, call.mesh) and (stiff is None or stiff in assignment):
                yield assignment, stiff


@lru_cache(maxsize=4096)
def _loosened(rule: Rule, factor: Factor) -> Rule:
    return replace(rule, kinds=tuple((f, kind) for f, kind in rule.kinds if f != factor))


def _option(
    call: Call, rule: Rule, part: Component, assignment: Assignment, modes: Modes, stiff: Factor | None = None
) -> Option:
    sums: dict[str, Reduction] = dict.fromkeys(modes, "sum")
    requires = [
        split_as(call.mesh, rule.operands[i], assignment, {a: r for a, r in sums.items() if i in modes[a]})
        for i in part.operands
    ]  # fmt: skip
    produces = [produced(call.mesh, rule, i, assignment, modes) for i in part.results]
    sent_s = 0.0
    if rule.near is not None and any(rule.kind[f] == "near" for f in assignment):
        numel, messages = busiest(requires[0], produces[0], call.operands[0].shape, rule.near)
        sent_s = transfer_s(messages, numel * call.operands[0].dtype.itemsize, len(call.mesh.workers), call.machine)
    return _priced(
        call, part, requires, produces, _work(call, part, requires, produces, assignment),
        tuple(sorted(assignment.items())), math.prod(call.mesh.axis_size(a) for a in assignment[stiff]) if stiff else 0, sent_s,
    )  # fmt: skip


def _whole(call: Call, operands: tuple[int, ...], results: tuple[int, ...]) -> Part:
    """Give a part with nothing to choose."""
    requires = [Sharding.replicated(call.mesh, call.operands[i].ndim) for i in operands]
    produces = [Sharding.replicated(call.mesh, call.results[i].ndim) for i in results]
    part = Component((), operands, results)
    return Part(operands, results, (_priced(call, part, requires, produces, _work(call, part, requires, produces, {}), (), 0),))


def _priced(
    call: Call, part: Component, requires: Sequence[Sharding], produces: Sequence[Sharding], work: int,
    factors: tuple[tuple[Factor, tuple[str, ...]], ...], apart: int, sent_s: float = 0.0,
) -> Option:  # fmt: skip
    nbytes, first = 0.0, len(call.operands)
    if not call.op.view:
        for i, placed in zip(part.operands, requires, strict=True):
            nbytes += call.passes[i] * local_bytes(call.operands[i], placed)
        for i, placed in zip(part.results, produces, strict=True):
            nbytes += call.passes[first + i] * local_bytes(call.results[i], placed)
    seconds = compute_s(work, round(nbytes), call.machine) + VIEW_S + sent_s
    return Option(tuple(requires), tuple(produces), factors, seconds, apart)


def _work(call: Call, part: Component, requires: Sequence[Sharding], produces: Sequence[Sharding], assignment: Assignment) -> int:
    """Give the multiply-adds of one worker. Those of a call are its first part's."""
    if part.operands[:1] != (0,):
        return 0
    places = dict(zip(part.operands, requires, strict=True)), dict(zip(part.results, produces, strict=True))
    operands, results = (
        [(t, own.get(i) or Sharding.replicated(call.mesh, t.ndim)) for i, t in enumerate(types)]
        for own, types in zip(places, (call.operands, call.results), strict=True)
    )
    return local_multiply_adds(call.op, operands, results, call.attrs, call.mesh, assignment)


__all__ = ["Call", "Option", "Part", "parts"]
