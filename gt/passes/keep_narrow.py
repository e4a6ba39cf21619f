"""Keeps what a value is mapped from instead of the value, where that is half as wide and the value is read again much later.

A norm over halves subtracts the mean in float32; backward reads the difference, twice the bytes of what it came from. Its readers are maps
and reductions, into which making it again fuses: less is written, less is read, less is kept. Bit by bit the same: the same ops on
the same values. Owns: ``KeepNarrow``. Must not know: any one op, forward, backward. Next: ``propagate_sharding``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gt.ir.graph import Graph, Node, Value
from gt.passes.context import Context
from gt.passes.work import kind_of

SMALL = 64  # times smaller than a value is what comes beside what it is mapped from
LONGEST = 4  # maps in a row


@dataclass(frozen=True)
class KeepNarrow:
    """Values of ``least`` bytes, next read ``away`` nodes later."""

    name: ClassVar[str] = "keep_narrow"
    least: int = 1 << 20
    away: int = 24

    def run(self, graph: Graph, context: Context) -> Graph:
        place = {node: i for i, node in enumerate(graph.nodes)}
        kept = set(graph.outputs)
        again: dict[Node, list[tuple[Value, list[Node], set[Node]]]] = {}  # by the reader that it is made again for
        for node in graph.nodes:
            if len(node.outputs) != 1 or node.output.type.nbytes < self.least or node.output in kept:
                continue
            late = self._late(graph, node, place)
            chain = _chain(graph, node) if late else None
            if late and chain is not None and all(map(_fuses, late)) and not _replaced(graph, chain, late[-1], place):
                again.setdefault(late[0], []).append((node.output, chain, set(late)))
        return _repeated(graph, again) if again else graph

    def _late(self, graph: Graph, node: Node, place: dict[Node, int]) -> list[Node]:
        """Give the readers behind the first pause."""
        readers = sorted({user for user, _ in graph.uses.get(node.output, ())}, key=place.__getitem__)
        times = [place[node], *(place[reader] for reader in readers)]
        first = next((i for i, (a, b) in enumerate(zip(times, times[1:], strict=False)) if b - a >= self.away), len(readers))
        return readers[first:]


def _kind(node: Node) -> str:
    return kind_of(node.op, [v.type for v in node.inputs], [v.type for v in node.outputs], node.attrs)


def _fuses(node: Node) -> bool:
    return not node.op.effect and _kind(node) in ("elementwise", "reduction")


def _chain(graph: Graph, node: Node) -> list[Node] | None:
    """Give the maps that make a node's result of a value half as wide and of small ones, in order; None if it is not made so."""
    nbytes, chain = node.output.type.nbytes, [node]
    while len(chain) <= LONGEST:
        first = chain[-1]
        if first.op.effect or first.op.random or len(first.outputs) != 1 or _kind(first) != "elementwise":
            return None
        large = [v for v in dict.fromkeys(first.inputs) if v.type.nbytes * SMALL > nbytes]
        if len(large) != 1:
            return None
        if large[0].type.nbytes * 2 <= nbytes:
            return chain[::-1]
        if large[0] not in graph.producer:
            return None
        chain.append(graph.producer[large[0]])
    return None


def _replaced(graph: Graph, chain: Sequence[Node], last: Node, place: dict[Node, int]) -> bool:
    """Whether an input that a chain reads may be overwritten before ``last`` reads it: by what replaces it, its own last reader."""
    made = {node.output for node in chain}
    donated = {graph.inputs[i] for i in graph.donated}
    for value in (v for node in chain for v in node.inputs if v not in made):
        while value in graph.producer and graph.producer[value].op.view:
            value = graph.producer[value].inputs[0]
        if value in donated:
            final = max((user for user, _ in graph.uses[value]), key=place.__getitem__)
            if place[final] < place[last] and any(out.type == value.type for out in final.outputs):
                return True
    return False


def _repeated(graph: Graph, again: dict[Node, list[tuple[Value, list[Node], set[Node]]]]) -> Graph:
    """Give the graph with chains made again in front of their first late reader, for all of these."""
    nodes: list[Node] = []
    now: dict[tuple[Node, Value], Value] = {}
    for node in graph.nodes:
        for value, chain, readers in again.get(node, ()):
            made = _copied(chain)
            nodes += made
            now |= {(reader, value): made[-1].output for reader in readers}
        inputs = tuple(now.get((node, v), v) for v in node.inputs)
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    return graph.with_nodes(nodes)


def _copied(chain: Sequence[Node]) -> list[Node]:
    new: dict[Value, Value] = {}
    made = []
    for node in chain:
        new[node.output] = Value(node.output.type, node.output.hint)
        made.append(replace(node, inputs=tuple(new.get(v, v) for v in node.inputs), outputs=(new[node.output],), why="not kept in this width"))
    return made


__all__ = ["KeepNarrow"]
