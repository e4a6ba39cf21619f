"""Drops nodes whose results nobody reads. Collectives go too: all workers' programs come from this one graph.

Next: ``propagate_sharding``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gt.ir.graph import Graph, Node, Value
from gt.passes.context import Context


@dataclass(frozen=True)
class Dce:
    """Keep what the outputs need."""

    name: ClassVar[str] = "dce"

    def run(self, graph: Graph, context: Context) -> Graph:
        live: set[Value] = set(graph.outputs)
        kept: list[Node] = []
        for node in reversed(graph.nodes):
            if not live.isdisjoint(node.outputs):
                kept.append(node)
                live.update(node.inputs)
        return graph if len(kept) == len(graph.nodes) else graph.with_nodes(reversed(kept))


__all__ = ["Dce"]
