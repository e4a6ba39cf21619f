"""Finds where everything is best placed: the fastest plan for the whole graph that fits in memory, without being told.

Every node lists its ways to compute, every value costs what it takes to bring it from where it is made to where it is
read; an integer program picks. What users asked for stays. Each decision keeps what it costs beside the next best one,
its neighbours as they are. Owns: ``search``, ``Decided``. Must not know: any op, how a placed graph is written.
Next: ``search_graph`` (the problem), ``merge_alike`` and ``axes_in_turn`` (how it is solved), ``propagate_sharding``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from gt.ir.graph import Graph, Value
from gt.ir.mesh import Sharding
from gt.passes.axes_in_turn import solve_in_turn
from gt.passes.context import Context, PlanRefused
from gt.passes.cost import time_text
from gt.passes.integer_program import Effort, Solution, SolverMissing
from gt.passes.merge_alike import merge_alike
from gt.passes.placement import Choice
from gt.passes.search_graph import Given, Home, Landing, NodePart, SearchGraph
from gt.passes.search_problem import BUCKET, Problem, evaluate
from gt.passes.split_ops import write_apart

KINDS = 400  # of units: a graph of more has units that look alike decide as one
SPARE = 16  # the part of a memory limit kept free, for what is not counted
SHARED = 8  # the most of it kept for the buffers in which values travel together


@dataclass(frozen=True)
class Decided:
    """What the search found. ``choices``: how nodes compute, by their first result. ``landed``: where inputs and outputs are.

    ``reasons``: why each value is where it is.
    """

    choices: Mapping[Value, Choice] = field(default_factory=dict)
    landed: Mapping[Value, Sharding] = field(default_factory=dict)
    reasons: Mapping[Value, str] = field(default_factory=dict)


NOTHING = Decided()


def search(graph: Graph, context: Context, given: Given, seconds: float) -> tuple[Graph, Decided]:
    """Give the decisions for a graph, and the graph with ops written in others where that is part of them.

    A search that finds nothing in so many seconds decides nothing. Errors: PlanRefused without SciPy.
    """
    if any(placed.mesh != context.mesh for placed in given.fixed.values()):
        context.note(graph.nodes[0], "auto: not searched, as signals name workers of their own")
        return graph, NOTHING
    made = SearchGraph(graph, context.mesh, given, context.machine)
    merged = merge_alike(made.problem, KINDS)
    limit = graph.options.memory_limit if context.within else None
    try:
        found = _solve(merged.problem, context.mesh, _room(limit), Effort(seconds=seconds))
    except SolverMissing as error:
        raise PlanRefused(str(error)) from error
    if found is None:
        context.note(graph.nodes[0], f"auto: no plan was found in {seconds:g} s")
        return graph, NOTHING
    context.note(graph.nodes[0], _summary(made, merged.problem, found, limit))
    picks = merged.spread(found.picks)
    choices, apart, landed = made.choices(picks)
    reasons = _reasons(made, merged.kinds, merged.problem, found, limit)
    decided = {node.outputs[0]: choice for node, choice in choices.items() if node not in apart}
    graph, written = write_apart(graph, {node: option.apart for node, option in apart.items()})
    for node, steps in written.items():
        decided |= {step.outputs[0]: choice for step, choice in zip(steps, apart[node].steps, strict=True)}
    return graph, Decided(decided, landed, reasons)


def _room(limit: int | None) -> int | None:
    """Give how much of a memory limit the search may fill."""
    return limit if limit is None else limit - max(limit // SPARE, min(2 * BUCKET, limit // SHARED))


# The next run's graph differs in where its inputs are, and that does not count: it is the same problem.
_solve = lru_cache(maxsize=8)(solve_in_turn)


def _summary(made: SearchGraph, problem: Problem, found: Solution, limit: int | None) -> str:
    whole = evaluate(problem, [0] * len(problem.units))
    text = f"auto: {time_text(found.seconds)} a run, at least {time_text(max(found.bound, 0.0))}; whole on every worker {time_text(whole)}"
    if limit is not None:
        fits = "within" if found.peak <= limit else "which is the least found, over"
        text += f"; {found.peak / 1e9:.3g} GB {fits} {limit / 1e9:.3g} GB"
    alike = f", {len(problem.units)} kinds" if len(problem.units) < len(made.units) else ""
    return f"{text} ({len(made.units)} decisions{alike})"


# -- why


def _reasons(
    made: SearchGraph, kinds: Sequence[int], problem: Problem, found: Solution, limit: int | None
) -> dict[Value, str]:
    """Give for each value the cost of its placement beside that of the next best."""
    weigh = _Weigher(problem, found.picks)
    texts: dict[int, str] = {}
    reasons: dict[Value, str] = {}
    for kind, source in zip(kinds, made.sources, strict=True):
        if source is None or (len(problem.units[kind].ways) == 1 and not isinstance(source, NodePart)):
            continue
        if kind not in texts:
            names = _names(source, problem, kind)
            texts[kind] = _reason(names, weigh.alternatives(kind), found.picks[kind], limit)
        if isinstance(source, Home):
            reasons[source.input] = reasons[source.output] = texts[kind]
        elif isinstance(source, Landing):
            reasons[source.value] = texts[kind]
        else:
            for i in source.part.results:
                reasons.setdefault(source.node.outputs[i], texts[kind])
    return reasons


class _Weigher:
    """What each way of a unit costs with its neighbours as they are: its own seconds and those of its wires."""

    def __init__(self, problem: Problem, picks: Sequence[int]) -> None:
        self.problem, self.picks = problem, list(picks)
        self.wires: list[dict[int, None]] = [{} for _ in problem.units]
        for i, wire in enumerate(problem.wires):
            for unit, _ in (wire.maker, *wire.readers):
                self.wires[unit][i] = None

    def alternatives(self, unit: int) -> list[float]:
        own, chosen = self.problem.units[unit], self.picks[unit]
        out = []
        for pick, way in enumerate(own.ways):
            self.picks[unit] = pick
            wires = (self.problem.wires[i] for i in self.wires[unit])
            moved = sum(self.problem.wire_s(wire, self.picks) * len(wire.stays) for wire in wires)
            out.append(way.seconds + moved / own.count)
        self.picks[unit] = chosen
        return out


def _names(source: NodePart | Home | Landing, problem: Problem, kind: int) -> list[str]:
    if isinstance(source, NodePart):
        return [_split_text(o.factors, "factor") or ("a pending sum" if _passes(o.produces) else "whole") for o in source.part.options]
    placed = (way.requires[0] for way in problem.units[kind].ways)
    return [_split_text([(str(d), axes) for d, axes in enumerate(p.dims) if axes], "dim") or "whole" for p in placed]


def _passes(produces: Sequence[Sharding]) -> bool:
    return any(placed.partial for placed in produces)


def _split_text(split: Sequence[tuple[str, tuple[str, ...]]], what: str) -> str:
    parts = [f"{what} {name} over {', '.join(axes)}" for name, axes in split]
    return f"splits {' and '.join(parts)}" if parts else ""


def _reason(names: Sequence[str], costs: Sequence[float], pick: int, limit: int | None) -> str:
    others = sorted((cost, name) for k, (cost, name) in enumerate(zip(costs, names, strict=True)) if k != pick and name != names[pick])
    text = f"auto: {names[pick]}, cost {time_text(costs[pick])}"
    if not others:
        return text
    cost, name = others[0]
    short = limit is not None and cost < costs[pick]
    return f"{text} vs {time_text(cost)} {name}" + (", which takes more memory" if short else "")


__all__ = ["NOTHING", "Decided", "Given", "search"]
