"""Emits nodes into a graph under rewriting: what op functions (vjps, decompositions) append to inside a pass.

Owns: ``NodeEmitter``, ``decompose_node``. Must not know: any one pass. Next: ``autodiff``, ``decompose``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gt.ir.graph import Attrs, Node, Rewriter, Value
from gt.ir.opdef import OpDef, emitting
from gt.ir.ops import OPS
from gt.ir.types import DType


class NodeEmitter:
    """An ``Emitter`` that appends to a ``Rewriter``. New nodes take line, signal and tape flag from ``like``."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.first = len(rewriter.nodes)
        self.like: Node | None = None
        self.signal: str | None = None
        self.taped = False
        self.why = ""

    def emit(self, op: OpDef, inputs: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
        types = op.infer_types(tuple(v.type for v in inputs), attrs)
        outputs = tuple(Value(t) for t in types)
        loc = self.like.loc if self.like else None
        self.rewriter.nodes.append(Node(op, tuple(inputs), outputs, attrs, loc, self.signal, self.taped, self.why))
        self.rewriter.changed = True
        return outputs

    def constant(self, value: bool | int | float, dtype: DType) -> Value:
        return self.emit(OPS["full"], (), (("shape", ()), ("value", value), ("dtype", dtype)))[0]

    def rename(self, names: Mapping[Value, Value]) -> None:
        """Put other Value objects (with a name, or the ones users already refer to) in place of some just emitted."""
        if not names:
            return
        nodes = self.rewriter.nodes
        swap = lambda values: tuple(names.get(v, v) for v in values)  # noqa: E731
        for i in range(self.first, len(nodes)):
            node = nodes[i]
            if any(v in names for v in (*node.inputs, *node.outputs)):
                nodes[i] = replace(node, inputs=swap(node.inputs), outputs=swap(node.outputs))


def decompose_node(node: Node, rewriter: Rewriter) -> None:
    """Append a node's decomposition in its place."""
    assert node.op.decompose is not None
    replace_node(node, rewriter, node.op.decompose, node.signal)


def replace_node(
    node: Node, rewriter: Rewriter, parts: Callable[[tuple[Value, ...], dict[str, Any]], Any], signal: str | None
) -> bool:
    """Append what ``parts`` makes of a node's operands and attributes in its place; whether it made anything."""
    emit = NodeEmitter(rewriter)
    emit.like, emit.signal, emit.taped, emit.why = node, signal, node.taped, node.why
    operands = tuple(rewriter.get(v) for v in node.inputs)
    with emitting(emit):
        results = parts(operands, dict(node.attrs))
    if results is None:
        return False
    values: tuple[Value, ...] = tuple(results) if isinstance(results, tuple | list) else (results,)
    made = {out for n in rewriter.nodes[emit.first :] for out in n.outputs}
    names: dict[Value, Value] = {}
    for old, new in zip(node.outputs, values, strict=True):
        if new in made and new not in names:
            names[new] = old  # the value users may have named stays the same object
        else:
            rewriter.replace(old, names.get(new, new))
    emit.rename(names)
    return True


__all__ = ["NodeEmitter", "decompose_node", "replace_node"]
