"""Merges nodes of equal op, operands and attributes; random ops too, they are functions of their seed.

Next: ``dce``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gt.ir.graph import Graph, Node, Rewriter, attrs_key, exchanged
from gt.passes.context import Context


@dataclass(frozen=True)
class Cse:
    """Keep the first of equal nodes. Collectives stay as they are; two nodes under different signals too."""

    name: ClassVar[str] = "cse"

    def run(self, graph: Graph, context: Context) -> Graph:
        rewriter = Rewriter(graph)
        taping = any(node.op.effect == "grad" for node in graph.nodes)  # until autodiff, the tape tells nodes apart
        seen: dict[object, Node] = {}
        for old in graph.nodes:
            inputs = exchanged(old.inputs, rewriter.mapping)
            types = old.outputs[0].type if len(old.outputs) == 1 else tuple([v.type for v in old.outputs])
            key = old.op, inputs, attrs_key(old.attrs), types, taping and old.taped
            kept = seen.setdefault(key, old)
            merges = (
                kept is not old
                and not old.op.effect
                and (old.signal is None or kept.signal is None or old.signal == kept.signal)
            )
            if merges:
                for a, b in zip(old.outputs, kept.outputs, strict=True):
                    rewriter.replace(a, b)
            else:
                rewriter.copy(old)
        return rewriter.finish()


__all__ = ["Cse"]
