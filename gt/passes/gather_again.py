"""Joins split parameters once more for their later uses instead of keeping them whole between: EXPLICIT -> EXPLICIT.

Between a layer's forward and its backward all other layers run. A value joined from an input, which is there anyway, is
dropped after its uses nearby and joined again, as fully sharded data parallelism does, when at least ``others`` other
values are first joined in between; an automatic search for placements reckons with inputs first read, joined or not.
Must not know: forward, backward, any op but collectives. Next: ``localize``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gt.ir.graph import Graph, Node, Value
from gt.passes.context import Context
from gt.passes.schedule import joins_early, moved_inputs


@dataclass(frozen=True)
class GatherAgain:
    """Repeat gathers whose uses are far apart; ``others`` 0 keeps every value from its first use to its last."""

    name: ClassVar[str] = "gather_again"
    others: int = 2

    def run(self, graph: Graph, context: Context) -> Graph:
        if not graph.communicates:
            return graph
        early = joins_early(graph) if self.others else set()
        gathers = [n for n in graph.nodes if n in early and n.output not in graph.outputs]
        if len(gathers) <= self.others and graph.options.auto != "search":
            return graph
        place = {node: i for i, node in enumerate(graph.nodes)}
        uses = {gather: sorted(_uses(graph, gather.output, place)) for gather in gathers}
        firsts = sorted(at[0] for at in uses.values() if at)
        if graph.options.auto == "search":
            firsts = _first_reads(graph, place)
        again: dict[int, list[Node]] = {}  # position of a use -> the gathers repeated before it
        for gather, at in uses.items():
            for before, after in zip(at, at[1:], strict=False):
                if bisect_left(firsts, after) - bisect_left(firsts, before + 1) >= self.others:
                    again.setdefault(after, []).append(gather)
        return _repeat(graph, again) if again else graph


def _first_reads(graph: Graph, place: dict[Node, int]) -> list[int]:
    """Give where inputs of some size are first read, which bringing them to where later runs have them is not."""
    moved = moved_inputs(graph)
    reads: dict[Value, int] = {}
    for value in (*graph.inputs, *moved):
        source = moved.get(value, value)
        readers = (place[node] for node, _ in graph.uses.get(value, ()) if not any(out in moved for out in node.outputs))
        if source.type.ndim > 1 and (first := min(readers, default=None)) is not None:
            reads[source] = min(first, reads.get(source, first))
    return sorted(reads.values())


def _uses(graph: Graph, value: Value, place: dict[Node, int]) -> set[int]:
    """Give where a value or a view of it is read."""
    found: set[int] = set()
    for node, _ in graph.uses.get(value, ()):
        found |= _uses(graph, node.output, place) if _is_view(graph, node) else {place[node]}
    return found


def _is_view(graph: Graph, node: Node) -> bool:
    return node.op.view and len(node.inputs) == 1 and node.output not in graph.outputs


def _repeat(graph: Graph, again: dict[int, list[Node]]) -> Graph:
    nodes: list[Node] = []
    now: dict[Value, Value] = {}

    def redo(node: Node) -> None:
        """Append a gather, and the views of it, once more."""
        source: Sequence[Value] = tuple(now.get(v, v) for v in node.inputs)
        fresh = Value(node.output.type, node.output.hint)
        nodes.append(replace(node, inputs=tuple(source), outputs=(fresh,)))
        now[node.output] = fresh
        for reader, _ in graph.uses.get(node.output, ()):
            if _is_view(graph, reader):
                redo(reader)

    for i, node in enumerate(graph.nodes):
        for gather in again.get(i, ()):
            redo(gather)
        inputs = tuple(now.get(v, v) for v in node.inputs)
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    return _without_unread(replace(graph, nodes=tuple(nodes)))


def _without_unread(graph: Graph) -> Graph:
    """Drop views made again that nobody reads."""
    live: set[Value] = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(out in live for out in node.outputs):
            kept.append(node)
            live.update(node.inputs)
    return graph.with_nodes(reversed(kept))


__all__ = ["GatherAgain"]
