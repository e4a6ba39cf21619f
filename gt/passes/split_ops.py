"""Rewrites ops whose operand arrives split along a dim that they need whole, in ops that work on the parts.

softmax over split classes becomes a largest of all and a sum of all, instead of joining the parts first. Owns:
``split_ops``, ``write_apart``. Must not know: any one op (``OpDef.when_split`` says how). Next: ``propagate_sharding``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from gt.ir.graph import Graph, Node, Rewriter, Value
from gt.ir.mesh import Sharding
from gt.passes.emit import decompose_node, replace_node


def split_ops(graph: Graph, placed: Mapping[Value, Sharding], decided: Container[Value] = ()) -> Graph:
    """Give the graph with such ops rewritten; the same object if there is none. ``decided``: results of ops to leave."""
    undecided = (node for node in graph.nodes if not any(v in decided for v in node.outputs))
    return write_apart(graph, {node: shards for node in undecided if (shards := _shards(node, placed)) > 1})[0]


def write_apart(graph: Graph, apart: Mapping[Node, int]) -> tuple[Graph, dict[Node, tuple[Node, ...]]]:
    """Rewrite ops for so many parts each; also give what each of them is written in. The same object if none can be."""
    written: dict[Node, tuple[Node, ...]] = {}
    if not apart:
        return graph, written
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        first = len(rewriter.nodes)
        if node in apart and _rewrite(node, rewriter, apart[node]):
            written[node] = tuple(rewriter.nodes[first:])
        else:
            rewriter.copy(node)
    return (rewriter.finish(), written) if written else (graph, written)


def _shards(node: Node, placed: Mapping[Value, Sharding]) -> int:
    """Give into how many parts a dim that must be whole arrives cut; 1 if the op has no way with it.

    Only the largest operands count: to join a small one costs little.
    """
    if node.op.when_split is None:
        return 1
    rule = node.op.rule([v.type for v in node.inputs], [v.type for v in node.outputs], node.attrs)
    if rule is None:
        return 1
    largest = max(v.type.nbytes for v in node.inputs)
    cut = [
        placed[value].shards(d)
        for value, dims in zip(node.inputs, rule.operands, strict=True)
        if value.type.nbytes == largest and placed[value].is_split
        for d, factors in enumerate(dims)
        if placed[value].dims[d] and factors and rule.kind[factors[0]] == "whole"
    ]
    return max(cut, default=1)


def _rewrite(node: Node, rewriter: Rewriter, shards: int) -> bool:
    parts = node.op.when_split
    assert parts is not None
    first = len(rewriter.nodes)
    why = f"{node.op.name} over {shards} parts of a dim"
    if not replace_node(replace(node, why=why), rewriter, lambda xs, attrs: parts(xs, attrs, shards), None):
        return False
    made = rewriter.nodes[first:]
    del rewriter.nodes[first:]
    results = {rewriter.get(v) for v in node.outputs}
    for part in made:
        if part.op.torch is None and part.op.decompose is not None:
            decompose_node(part, rewriter)
        else:  # the scope's signal is about the result, not about what it is made of
            asked = node.signal if results & set(part.outputs) else None
            rewriter.nodes.append(replace(part, inputs=tuple(map(rewriter.get, part.inputs)), signal=asked))
    return True


__all__ = ["split_ops", "write_apart"]
