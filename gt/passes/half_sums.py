"""Pending sums of float16 and bfloat16 are float32 until they are added up.

Each worker's partial result would else be rounded to the half, or overflow, before the others' are added, where one worker rounds
once. So what would give such a sum gives it in float32: by an attribute of its own (``OpDef.wide``), or from operands that are cast
up. Owns: ``adds_halves`` and ``in_float32``, which say so of one node. Must not know: any op but ``cast``.
Next: ``placed_graph`` (who puts the casts).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from gt.ir.graph import Node, Value
from gt.ir.mesh import Sharding
from gt.ir.types import HALVES, DType, TensorType, float32
from gt.passes.placement import Choice


def is_sum(placed: Sharding) -> bool:
    """Whether a sum is pending."""
    return any(reduce == "sum" for _, reduce in placed.partial)


def adds_halves(node: Node, choice: Choice, inputs: tuple[Value, ...], wide: Container[Value]) -> bool:
    """Whether a node is to give halves in float32: parts of a sum, not just of what one worker has and the others lack."""
    if not any(v.type.dtype in HALVES and is_sum(made) for v, made in zip(node.outputs, choice.produces, strict=True)):
        return False
    if node.op.autocast == "low" and not node.op.wide:
        return False  # convolutions: too dear in float32
    if any(v in wide for v in inputs):
        return True
    rule = node.op.rule([v.type.placed(None) for v in node.inputs], [v.type for v in node.outputs], node.attrs)
    assert rule is not None, f"{node.op.name} has no sharding rule but a pending result"
    return any(axes and rule.pending.get(factor) == "sum" and rule.kind[factor] != "index" for factor, axes in choice.factors)


def in_float32(node: Node, inputs: tuple[Value, ...]) -> Node:
    """Give the node on these operands with its results, if halves, in float32; they are unplaced."""
    attrs = tuple((name, float32 if isinstance(value, DType) and value in HALVES else value) for name, value in node.attrs)
    if node.op.wide and "dtype" not in node.attr and inputs[0].type.dtype in HALVES:
        attrs = (*attrs, ("dtype", float32))
    results = tuple(
        Value(TensorType(v.type.shape, float32)) if v.type.dtype in HALVES else Value(v.type, v.hint) for v in node.outputs
    )
    return replace(node, inputs=inputs, outputs=results, attrs=attrs)


__all__ = ["adds_halves", "in_float32", "is_sum"]
