"""Replaces ops that workers do not run as one by their decomposition into ops that they do.

Runs after autodiff, so that an op's own vjp is used where it has one. Next: ``simplify``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gt.ir.graph import Graph, Node, Rewriter
from gt.passes.context import Context
from gt.passes.emit import decompose_node

_MAX_ROUNDS = 16  # a decomposition that leads back to its own op would go on for ever


@dataclass(frozen=True)
class Decompose:
    """Decompose ops without a torch lowering of their own, and, on several workers, those without a sharding rule: each worker would
    need all of their operands. With ``all``, every op that has a decomposition.
    """

    name: ClassVar[str] = "decompose"
    all: bool = False

    def run(self, graph: Graph, context: Context) -> Graph:
        several = context.mesh.size > 1
        for _ in range(_MAX_ROUNDS):
            if not any(self._goes(node, several) for node in graph.nodes):
                return graph
            rewriter = Rewriter(graph)
            for node in graph.nodes:
                if self._goes(node, several):
                    decompose_node(node, rewriter)
                else:
                    rewriter.copy(node)
            graph = rewriter.finish()
        left = sorted({node.op.name for node in graph.nodes if self._goes(node, several)})
        raise AssertionError(f"the decomposition of {', '.join(left)} never ends")

    def _goes(self, node: Node, several: bool) -> bool:
        op = node.op
        return op.decompose is not None and (self.all or op.torch is None or (several and op.factors is None))


__all__ = ["Decompose"]
