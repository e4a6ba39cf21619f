"""Rewrites ops whose operand arrives split along a dim that they need whole, in ops that work on the parts.

softmax over split classes becomes a largest of all and a sum of all, instead of joining the parts first; a convolution over
split rows works on windows of them, each worker's with a few rows of its neighbours'. Owns:
``split_ops``, ``write_apart``. Must not know: any one op (``OpDef.when_split`` and ``OpDef.near`` say how). Next: ``propagate_sharding``.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from gt.ir.graph import Graph, Node, Rewriter, Value
from gt.ir.mesh import Sharding
from gt.passes.emit import decompose_node, replace_node
from gt.passes.placement import Choice

Parts: TypeAlias = tuple[tuple[int, ...], ...]  # of each operand, of each dim


def split_ops(
    graph: Graph, placed: Mapping[Value, Sharding], choices: Mapping[Node, Choice], decided: Container[Value] = (),
    *, windows_only: bool = False,
) -> Graph:  # fmt: skip
    """Give the graph with such ops rewritten; the same object if there is none. ``decided``: results of ops to leave.

    Windows are never left: an op on split rows cannot run as it is.
    """
    apart: dict[Node, int | Parts] = {}
    for node in graph.nodes:
        if any(v in decided for v in node.outputs):
            continue
        if node in choices and (parts := _windows(node, choices[node])) is not None:
            apart[node] = parts
        elif not windows_only and (shards := _shards(node, placed)) > 1:
            apart[node] = shards
    return write_apart(graph, apart)[0]


def _windows(node: Node, choice: Choice) -> Parts | None:
    """Give into how many parts each dim of each operand is, where windows over a split dim are computed on."""
    if node.op.near is None:
        return None
    rule = node.op.rule([v.type for v in node.inputs], [v.type for v in node.outputs], node.attrs)
    size = choice.produces[0].mesh.axis_size
    split = {factor for factor, axes in choice.factors if math.prod(map(size, axes)) > 1}  # over one worker it is whole
    if rule is None or not any(halo.factor in split for halo in rule.halos):
        return None
    return tuple(tuple(placed.shards(d) for d in range(len(placed.dims))) for placed in choice.requires)


def write_apart(graph: Graph, apart: Mapping[Node, int | Parts]) -> tuple[Graph, dict[Node, tuple[Node, ...]]]:
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


def _rewrite(node: Node, rewriter: Rewriter, shards: int | Parts) -> bool:
    parts: Any = node.op.when_split if isinstance(shards, int) else node.op.near
    assert parts is not None
    first = len(rewriter.nodes)
    why = f"{node.op.name} over {shards} parts of a dim" if isinstance(shards, int) else f"{node.op.name} over split rows"
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
