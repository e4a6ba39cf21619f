"""Keeps a run within ``gt.memory_limit``: updates as soon as gradients are complete, and values computed again instead of kept.

What is computed again is chosen at the peak of the plan's memory, cheapest bytes first by predicted time, as few as reach the limit;
then at the next peak, if that is over it, too. Without a limit, or within it, nothing changes. Owns: the choice, and what it says
of itself. Must not know: any one op. Next: ``recompute`` and ``updates_soon`` (the rewrites), ``plan_memory`` (what is over the limit
after all).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gt.ir.graph import Graph, Node
from gt.passes.context import Context, MemoryPlan
from gt.passes.cost import time_text
from gt.passes.plan_memory import memory_plan
from gt.passes.recompute import Recompute, Regions, described, seconds
from gt.passes.updates_soon import updates_soon

SHOWN = 12  # lines of what is recomputed
LAUNCHES_S = 20e-6  # that one more update takes


@dataclass(frozen=True)
class FitMemory:
    """Recompute under a memory limit, in at most ``rounds`` steps; 0: nothing is done for the limit here."""

    name: ClassVar[str] = "fit_memory"
    rounds: int = 8

    def run(self, graph: Graph, context: Context) -> Graph:
        limit = graph.options.memory_limit
        if limit is None or not self.rounds:
            return graph
        fit = _Fit(graph, context, limit)
        if fit.peak <= limit:
            return graph
        soon = _Fit(graph, context, limit, soon=True)
        for one in (fit, soon):
            for _ in range(self.rounds):
                if one.peak <= limit or not one.recompute():
                    break
        best = min(fit, soon, key=lambda one: (max(one.peak, limit), one.added_s))
        best.tell()
        context.regions = best.regions
        return best.graph


class _Fit:
    """One way to fit a graph, ``soon``: with updates as soon as gradients are complete."""

    def __init__(self, graph: Graph, context: Context, limit: int, soon: bool = False) -> None:
        self.context, self.limit = context, limit
        self.graph, self.regions = updates_soon(graph, context.regions) if soon else (graph, context.regions)
        self.soon = len(self.graph.nodes) - len(graph.nodes)
        self.memory = self.planned(self.graph, self.regions)
        self.before = self.peak
        self.again: dict[Node, list[Node]] = {}

    def planned(self, graph: Graph, regions: Regions) -> MemoryPlan:
        scratch = Context(self.context.mesh, regions=regions, machine=self.context.machine)
        return memory_plan(graph, scratch)[1]

    @property
    def peak(self) -> int:
        return self.memory.most

    @property
    def added_s(self) -> float:
        """Give the seconds that all this takes, by prediction."""
        return self.soon * LAUNCHES_S + sum(seconds(n, self.context.machine) for nodes in self.again.values() for n in nodes)

    def recompute(self) -> bool:
        """Lower the peak, to the limit if that can be at this peak, by the least. Says whether it is lower."""
        plan = Recompute(self.graph, self.regions, self.memory, self.context.machine)
        order = plan.cheap()
        tried: dict[int, tuple[Graph, Regions, dict[Node, list[Node]], MemoryPlan]] = {}

        def most(count: int) -> int:
            if count not in tried:
                graph, regions, again = plan.without(order[:count])
                tried[count] = graph, regions, again, self.planned(graph, regions)
            return tried[count][3].most

        if not order:
            return False
        wanted = max(self.limit, min(most(len(order)), most(max(1, len(order) // 2))))
        low, high = 0, len(order) if most(len(order)) <= wanted else max(1, len(order) // 2)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if most(middle) <= wanted else (middle, high)
        if most(high) >= self.peak:
            return False
        self.graph, self.regions, again, self.memory = tried[high]
        self.again |= again
        return True

    def tell(self) -> None:
        notes, machine = self.context.placement_notes, self.context.machine
        if self.soon:
            notes.append(f"memory_limit: parameters are updated in {self.soon + 1} groups, each as soon as its gradients are complete")
        if not self.again:
            return
        saved, took = self.before - self.peak, sum(seconds(n, machine) for nodes in self.again.values() for n in nodes)
        notes.append(f"memory_limit: {_mb(saved)} less at the peak, {time_text(took)} more (predicted) by recomputing:")
        lines = described(self.again, machine)
        notes += [f"memory_limit: {text}" for text in lines[:SHOWN]]
        if len(lines) > SHOWN:
            notes.append(f"memory_limit: and {len(lines) - SHOWN} kinds more")
        for node in self.again:
            self.context.note(node, "memory_limit: recomputed instead of kept")


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.4g} MB"


__all__ = ["FitMemory"]
