"""Algebra that is exact to the last bit: nothing here may change a value, a signed zero or a NaN.

So ``x * 1`` goes and ``x + 0.0`` stays (it turns -0.0 into 0.0). One home for each rule: ``RULES``, by op name.
Next: ``cse``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from gt.ir.graph import Graph, Node, Rewriter, Stage, Value, exchanged
from gt.ir.opdef import emitting
from gt.ir.ops import OPS
from gt.ir.types import DType, TensorType, bfloat16, float16, float32, float64
from gt.passes.context import Context
from gt.passes.emit import NodeEmitter


@dataclass(frozen=True)
class Simplify:
    """Apply the rules once, operands first. Waits for autodiff: until then the tape decides what may be merged."""

    name: ClassVar[str] = "simplify"

    def run(self, graph: Graph, context: Context) -> Graph:
        if graph.stage is not Stage.GLOBAL or any(node.op.effect == "grad" for node in graph.nodes):
            return graph
        rewriter = Rewriter(graph)
        where = _Where(rewriter)
        placing = {name for name, config in graph.signals if config.shard is not None}
        with emitting(where.emit):
            for old in graph.nodes:
                rule = RULES.get(old.op.name)
                if rule is _same and old.signal in placing:
                    rule = None  # the signal places this copy, not its source
                new = None
                if rule is not None:
                    where.emit.like, where.emit.signal, where.emit.taped = old, old.signal, old.taped
                    new = rule(where, old, exchanged(old.inputs, rewriter.mapping))
                if new is None:
                    rewriter.copy(old)
                else:
                    rewriter.replace(old.output, new)
                where.learn()
        return rewriter.finish()


class _Where:
    """What a rule may ask: who made a value, and whether it is a constant."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.emit = NodeEmitter(rewriter)
        self.producer: dict[Value, Node] = {}
        self.known = 0

    def learn(self) -> None:
        nodes = self.rewriter.nodes
        while self.known < len(nodes):
            node = nodes[self.known]
            for out in node.outputs:
                self.producer[out] = node
            self.known += 1

    def made_by(self, value: Value, op: str) -> Node | None:
        node = self.producer.get(value)
        return node if node is not None and node.op.name == op else None

    def constant(self, value: Value) -> Any:
        """Give the number a value is full of, or None."""
        node = self.made_by(value, "full")
        return None if node is None else node.attr["value"]


Rule: TypeAlias = Callable[[_Where, Node, tuple[Value, ...]], Value | None]


def same_type(a: TensorType, b: TensorType) -> bool:
    return a.shape == b.shape and a.dtype is b.dtype


def _same(where: _Where, node: Node, xs: tuple[Value, ...]) -> Value | None:
    """The graph has no aliasing: a copy is the value itself, and plan_memory puts copies where memory needs them."""
    return xs[0]


def _reshape(where: _Where, node: Node, xs: tuple[Value, ...]) -> Value | None:
    (x,) = xs
    if same_type(x.type, node.output.type):
        return x
    if filled := _refill(where, node, x):
        return filled
    inner = where.made_by(x, node.op.name)  # reshape of reshape, expand of expand
    if inner is None:
        return None
    root = inner.inputs[0]
    return root if same_type(root.type, node.output.type) else node.op(root, **node.attr)


def _refill(where: _Where, node: Node, x: Value) -> Value | None:
    """Moving the elements of a constant gives the constant again."""
    value = where.constant(x)
    if value is None:
        return None
    return OPS["full"](shape=node.output.type.shape, value=value, dtype=node.output.type.dtype)


def _permute(where: _Where, node: Node, xs: tuple[Value, ...]) -> Value | None:
    (x,) = xs
    dims: Any = node.attr["dims"]
    if dims == tuple(range(len(dims))):
        return x
    if filled := _refill(where, node, x):
        return filled
    inner = where.made_by(x, "permute")
    if inner is None:
        return None
    first: Any = inner.attr["dims"]
    both = tuple(first[d] for d in dims)
    return inner.inputs[0] if both == tuple(range(len(both))) else node.op(inner.inputs[0], dims=both)


def _slice(where: _Where, node: Node, xs: tuple[Value, ...]) -> Value | None:
    (x,) = xs
    steps: Any = node.attr["steps"]
    whole = same_type(x.type, node.output.type) and (all(s == 1 for s in steps) or x.type.numel == 0)
    return x if whole else _refill(where, node, x)


_WIDER: dict[DType, tuple[DType, ...]] = {
    float16: (float32, float64), bfloat16: (float32, float64), float32: (float64,),
}  # fmt: skip


def _cast(where: _Where, node: Node, xs: tuple[Value, ...]) -> Value | None:
    (x,) = xs
    to = node.output.type.dtype
    if x.type.dtype is to:
        return x
    value = where.constant(x)
    small = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 256 and value == int(value)
    if small and to.kind == "f" and x.type.dtype.kind in "fi" and math.copysign(1.0, value) > 0:
        return OPS["full"](shape=x.type.shape, value=float(value), dtype=to)
    inner = where.made_by(x, "cast")
    if inner is not None:
        root = inner.inputs[0]
        if root.type.dtype is to and x.type.dtype in _WIDER.get(to, ()):
            return root  # there and back through a wider float
    return None


def _neg(where: _Where, node: Node, xs: tuple[Value, ...]) -> Value | None:
    inner = where.made_by(xs[0], "neg")
    return None if inner is None else inner.inputs[0]


def _is(value: Any, number: int, sign: float = 1.0) -> bool:
    return value is not None and value == number and math.copysign(1.0, value) == sign


def _mul(where: _Where, node: Node, xs: tuple[Value, ...]) -> Value | None:
    if node.outputs[0].type.dtype.is_complex:
        return None  # (inf + 0j) * (1 + 0j) is not inf + 0j
    for x, other in (xs, xs[::-1]):
        if _is(where.constant(other), 1) and same_type(x.type, node.output.type):
            return x
    return None


def _div(where: _Where, node: Node, xs: tuple[Value, ...]) -> Value | None:
    x, by = xs
    one = _is(where.constant(by), 1)
    return x if one and not node.output.type.dtype.is_complex and same_type(x.type, node.output.type) else None


def _add(where: _Where, node: Node, xs: tuple[Value, ...]) -> Value | None:
    sign = 1.0 if node.outputs[0].type.dtype.kind in "ui" else -1.0  # of floats, only -0.0 leaves -0.0 alone
    for x, other in (xs, xs[::-1]):
        if _is(where.constant(other), 0, sign) and same_type(x.type, node.output.type):
            return x
    return None


def _sub(where: _Where, node: Node, xs: tuple[Value, ...]) -> Value | None:
    x, other = xs
    return x if _is(where.constant(other), 0) and same_type(x.type, node.output.type) else None


RULES: dict[str, Rule] = {
    "alias": _same, "copy": _same, "reshape": _reshape, "expand": _reshape, "permute": _permute, "slice": _slice,
    "cast": _cast, "neg": _neg, "mul": _mul, "div": _div, "add": _add, "sub": _sub,
}  # fmt: skip

__all__ = ["RULES", "Simplify"]
