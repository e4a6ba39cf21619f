"""Writes an op over many tensors, such as an optimizer's step, as one for each set of workers that the tensors live on.

Owns: ``split_updates``. Must not know: any one op (``OpDef.subset`` says how). Next: ``propagate_sharding``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from gt.ir.graph import Graph, Node, Value
from gt.ir.mesh import Sharding


def split_updates(graph: Graph, placed: Mapping[Value, Sharding], decided: Container[Value] = ()) -> Graph:
    """Give the graph with such ops split; the same object if there is none. ``decided``: results of ops to leave."""
    nodes: list[Node] = []
    for node in graph.nodes:
        undecided = node.op.subset is not None and not any(v in decided for v in node.outputs)
        nodes += _split(node, placed) if undecided else [node]
    return graph if len(nodes) == len(graph.nodes) else graph.with_nodes(nodes)


def _split(node: Node, placed: Mapping[Value, Sharding]) -> list[Node]:
    assert node.op.subset is not None
    num = node.attr["num"]
    assert isinstance(num, int)
    on: dict[tuple[int, ...], list[int]] = {}
    for i in range(num):
        on.setdefault(placed[node.inputs[i]].mesh.workers, []).append(i)
    if len(on) == 1:
        return [node]
    parts = []
    for members in on.values():
        operands, results, attrs = node.op.subset(dict(node.attrs), members)
        inputs, outputs = tuple(node.inputs[i] for i in operands), tuple(node.outputs[i] for i in results)
        parts.append(replace(node, inputs=inputs, outputs=outputs, attrs=tuple(attrs.items())))
    return parts


__all__ = ["split_updates"]
