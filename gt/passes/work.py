"""How much an op computes: its multiply-adds, as estimates and the search count them; and of what kind it is.

Owns: ``multiply_adds``, ``local_multiply_adds``, ``is_heavy``, ``kind_of``. Must not know: any one op. Next: ``cost`` (what they take).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from gt.ir.factors import PENDING, Factor, Rule
from gt.ir.graph import Attrs, Node
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS, OpDef
from gt.ir.types import TensorType

COMPLEX = 4  # real multiply-adds in a complex one


def multiply_adds(op: OpDef, operands: Sequence[TensorType], results: Sequence[TensorType], attrs: Attrs) -> int:
    """Give the multiply-adds of a call; 0 for one that only moves or maps elements."""
    if op.work is not None:
        return op.work(operands, results, dict(attrs))
    rule = op.rule(operands, results, attrs) if len(operands) > 1 and op.linear else None
    if rule is None or not _contracts(op, rule, attrs):
        return 0
    return rule.volume(rule.size) * (COMPLEX if results[0].dtype.is_complex else 1)


def local_multiply_adds(
    op: OpDef, operands: Sequence[tuple[TensorType, Sharding]], results: Sequence[tuple[TensorType, Sharding]], attrs: Attrs,
    mesh: Mesh, assignment: Mapping[Factor, tuple[str, ...]],
) -> int:  # fmt: skip
    """Give the multiply-adds of one worker of a call whose factors are split so, of whose operands and results it has such parts."""
    if op.work is not None:
        part = lambda t, placed: TensorType(placed.local_shape(t.shape), t.dtype)  # noqa: E731
        return op.work([part(*own) for own in operands], [part(*own) for own in results], dict(attrs))
    types = [t for t, _ in operands], [t for t, _ in results]
    total = multiply_adds(op, *types, attrs)
    rule = op.rule(*types, attrs) if total else None
    following = rule.following if rule is not None else frozenset()
    return total // math.prod(mesh.axis_size(axis) for f, axes in assignment.items() if f not in following for axis in axes)


def node_work(node: Node) -> int:
    """Give the multiply-adds of a node that contracts operands; 0 for one that only moves or maps elements."""
    return multiply_adds(node.op, [v.type for v in node.inputs], [v.type for v in node.outputs], node.attrs)


def is_mere(node: Node) -> bool:
    """Whether a node only views or casts its operand: it is done where its result is used."""
    return node.op.view or node.op is OPS["cast"]


def is_heavy(node: Node) -> bool:
    """Whether arithmetic bounds an op: a library runs it, and compiled code around it is fused up to it."""
    return node_work(node) > 8 * sum(v.type.numel for v in (*node.inputs, *node.outputs))


def kind_of(op: OpDef, operands: Sequence[TensorType], results: Sequence[TensorType], attrs: Attrs) -> str:
    """Give the kind of a call: matmul sums products, reduction works along a dim, elementwise maps elements, copy only moves or makes them."""
    if op.view or op.creates or op.literal or not operands:
        return "copy"
    if multiply_adds(op, operands, results, attrs):
        return "matmul"
    rule = op.rule(operands, results, attrs)
    kinds = {kind for _, kind in rule.kinds} if rule is not None else {"whole"}
    if kinds & {"sum", "max", "min"} or (rule is not None and rule.halos):
        return "reduction"
    if op.indices or "near" in kinds or "index" in kinds:
        return "copy"
    moves = bool(op.linear) and all(r.shape != operands[0].shape for r in results)
    if kinds:
        return "copy" if moves else "reduction"
    return "elementwise"


@lru_cache(maxsize=4096)
def _contracts(op: OpDef, rule: Rule, attrs: Attrs) -> bool:
    """Whether an op sums products: it is linear in two groups of operands that share a factor which no result has."""
    groups = op.linear_groups(len(rule.operands), attrs)
    kept = {f for term in rule.results for d in term for f in d}
    summed = {f for f, kind in rule.kind.items() if kind in PENDING or kind == "whole" or f in rule.pending}
    having = [{f for i in group for d in rule.operands[i] for f in d} for group in groups]
    return any(sum(f in own for own in having) > 1 for f in summed - kept)


__all__ = ["is_heavy", "is_mere", "kind_of", "local_multiply_adds", "multiply_adds", "node_work"]
