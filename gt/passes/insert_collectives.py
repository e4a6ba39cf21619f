"""Makes communication explicit: SHARDED -> EXPLICIT.

Each ``reshard`` becomes the collectives that ``plan_reshard`` finds, shared by all values that go the same way; and
padding is masked where it would be read. Shards of an uneven dim are padded with junk, so before a reduction over
such a dim its operands' padding becomes the reduction's identity (every operand's: 0 times junk may be NaN). Indices
become 0, and integers that divide become anything else.
Must not know: any op but ``copy``, ``cast`` and those of ``collective``, why a value is placed. Next: ``localize``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from gt.ir.factors import Rule
from gt.ir.graph import Attrs, Graph, Node, Stage, Value, exchanged
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS, OpDef
from gt.ir.ops import collective
from gt.ir.tiles import aligned, members
from gt.ir.types import TensorType
from gt.passes.context import Context
from gt.passes.reshard import plan_reshard

MERE = (OPS["copy"], OPS["cast"])  # a sum of halves is in float32 already when it is cast to that


@dataclass(frozen=True)
class InsertCollectives:
    """Replace reshards by collectives and mask padding."""

    name: ClassVar[str] = "insert_collectives"

    def run(self, graph: Graph, context: Context) -> Graph:
        inserter = _Inserter()
        for node in graph.nodes:
            inserter.add(node)
        outputs = tuple(inserter.get(v) for v in graph.outputs)
        return replace(graph, nodes=tuple(inserter.nodes), outputs=outputs, stage=Stage.EXPLICIT)


class _Inserter:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.mapping: dict[Value, Value] = {}
        self.made: dict[tuple[Value, OpDef, Attrs, Sharding], Value] = {}

    def get(self, value: Value) -> Value:
        return self.mapping.get(value, value)

    def add(self, node: Node) -> None:
        inputs = exchanged(node.inputs, self.mapping)
        if node.op is collective.reshard:
            self.mapping[node.output] = self._reshard(inputs[0], node)
            return
        if node.op in MERE and inputs[0].type == node.output.type:
            self.mapping[node.output] = inputs[0]  # it was there to be placed; plan_memory copies where memory needs it
            return
        if any([v.type.sharding is not None and v.type.sharding.is_split for v in inputs]):
            if self._moved(node, inputs):
                return
            inputs = tuple([self._masked(v, list(_masks(node, i)), node) for i, v in enumerate(inputs)])
        self.nodes.append(node if inputs == node.inputs else node.on(inputs))

    def _moved(self, node: Node, inputs: tuple[Value, ...]) -> bool:
        """Send each worker the rows of its neighbours' that it reads, where the node only moves rows of a split dim."""
        if len(inputs) != 1 or len(node.outputs) != 1:
            return False
        (value,), have, want = inputs, inputs[0].type.sharding, node.output.type.sharding
        assert have is not None and want is not None
        rule = node.op.rule([value.type], [node.output.type], node.attrs)
        if rule is None or rule.near is None:
            return False
        if not any(axes and rule.kind[f[0]] == "near" for axes, f in zip(have.dims, rule.operands[0], strict=True)):
            return False
        rows, shape = rule.near, value.type.shape
        if node.op.view and aligned(have, want, shape, rows):
            return False
        attrs: Attrs = (
            ("group", members(have, want, shape, rows)), ("rows", rows.attr), ("sizes", rows.shape), ("fill", rows.fill),
        )  # fmt: skip
        why = node.why or f"{node.op.name} reads rows of other workers"
        self.nodes.append(Node(collective.transfer, inputs, node.outputs, attrs, node.loc, node.signal, why=why))
        return True

    def _reshard(self, value: Value, node: Node) -> Value:
        have, want = value.type.sharding, node.output.type.sharding
        assert have is not None and want is not None
        for step in plan_reshard(have, want, value.type.placed(None)):
            value = self._step(step.op, value, step.attrs, step.target, node, node.why)
        return value

    def _masked(self, value: Value, masks: list[tuple[int, collective.Padding]], node: Node) -> Value:
        for dim, reduce in masks:
            placed = value.type.sharding
            assert placed is not None
            attrs: Attrs = (("dim", dim), ("reduce", reduce), ("start", 0), ("size", value.type.shape[dim]))
            value = self._step(collective.mask_pad, value, attrs, placed, node, f"{node.op.name} reads its padding")
        return value

    def _step(self, op: OpDef, value: Value, attrs: Attrs, target: Sharding, node: Node, why: str) -> Value:
        key = (value, op, attrs, target)
        if key not in self.made:
            out = Value(value.type.placed(target), value.hint)
            self.nodes.append(Node(op, (value,), (out,), attrs, node.loc, node.signal, why=why))
            self.made[key] = out
        return self.made[key]


def _masks(node: Node, operand: int) -> Iterator[tuple[int, collective.Padding]]:
    """Give the dims of an operand whose padding the node would read, and what it must hold."""
    type_ = node.inputs[operand].type
    placed = type_.sharding
    assert placed is not None
    padded = [d for d in range(type_.ndim) if placed.dims[d] and placed.padding(type_.shape, d)]
    if not padded:
        return
    plain = lambda values: [v.type.placed(None) for v in values]  # noqa: E731
    rule = node.op.rule(plain(node.inputs), plain(node.outputs), node.attrs)
    assert rule is not None, f"{node.op.name} has no sharding rule but a split operand"
    refused = node.op.refused(len(node.inputs))
    for dim in padded:
        kind = rule.kind[rule.operands[operand][dim][0]]
        if kind in ("sum", "max", "min"):
            yield dim, kind
        elif operand in node.op.nonzero and type_.dtype.kind in "iu":
            yield dim, "min"  # whose identity is the largest integer: any but 0 would do
        elif operand in node.op.indices or (operand in refused and type_.dtype.kind in "iu"):
            yield dim, "sum"
        elif operand in node.op.refuses and type_.dtype.kind in "fc" and _whole_matrices(type_, rule, operand):
            yield dim, "matmul"  # a factorization refuses singular matrices and NaN


def _whole_matrices(type_: TensorType, rule: Rule, operand: int) -> bool:
    """Whether each worker reads matrices, of the last two dims, as a whole."""
    return type_.ndim > 2 and all(not f or rule.kind[f[0]] == "whole" for f in rule.operands[operand][-2:])

