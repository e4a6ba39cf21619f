"""Graphs in SSA form: frozen values, nodes and graphs, rebuilt and never mutated.

Owns: ``Value``, ``Node``, ``Graph``, ``Builder`` (how graphs are made) and the stages. Must not know: what any op means.
Next: ``opdef`` (what a node's op means), ``text`` (the printed form), ``verify`` (what makes a graph valid).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, Union

from gt.ir.signals import PlanOptions, SignalConfig
from gt.ir.types import DType, TensorType

if TYPE_CHECKING:
    from gt.ir.opdef import OpDef


@dataclass(frozen=True)
class Coord:
    """An integer attribute that differs by worker: ``base + sum(coordinate on axis * stride)``."""

    base: int
    strides: tuple[tuple[str, int], ...]

    def at(self, coords: Mapping[str, int]) -> int:
        return self.base + sum(coords[axis] * stride for axis, stride in self.strides)


AttrValue: TypeAlias = Union[None, bool, int, float, str, DType, Coord, "tuple[AttrValue, ...]"]
Attrs: TypeAlias = tuple[tuple[str, AttrValue], ...]


class Stage(enum.Enum):
    """How far a graph has been lowered. Each stage has its own verifier."""

    GLOBAL = "global"  # as captured: no placement but on inputs
    SHARDED = "sharded"  # every value has a sharding
    EXPLICIT = "explicit"  # every operand is where its op needs it: no implicit reshard left
    LOCAL = "local"  # per-worker shapes


@dataclass(frozen=True)
class Location:
    """A line of the user's program."""

    file: str
    line: int
    function: str
    source: str = field(default="", compare=False)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.file, self.line, self.function))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(eq=False, slots=True)
class Value:
    """One value of a graph: a type and the name the user gave it, if any. Identity is the object's own.

    Never changed once made, as all here; not declared frozen, which would make making one cost thrice as much.
    """

    type: TensorType
    hint: str = ""

    def __repr__(self) -> str:
        return f"%{self.hint or '?'}: {self.type!r}"


@dataclass(eq=False, slots=True)
class Node:
    """One op applied to values.

    ``taped``: recorded while gradients were on and with an operand that needs one, so gradients flow through it.
    ``why``: for what a pass inserted, the reason; derived text, never compared.
    """

    op: OpDef
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attrs: Attrs = ()
    loc: Location | None = None
    signal: str | None = None
    taped: bool = False
    why: str = ""

    def on(self, inputs: tuple[Value, ...], outputs: tuple[Value, ...] | None = None) -> Node:
        """Give the same op on other operands, with the same results or others."""
        made = self.outputs if outputs is None else outputs
        return Node(self.op, inputs, made, self.attrs, self.loc, self.signal, self.taped, self.why)

    @property
    def attr(self) -> dict[str, AttrValue]:
        return dict(self.attrs)

    @property
    def output(self) -> Value:
        (out,) = self.outputs
        return out

    def __repr__(self) -> str:
        return f"<{self.op.name} {', '.join(map(repr, self.inputs))} -> {', '.join(map(repr, self.outputs))}>"


@dataclass(frozen=True, eq=False)
class Graph:
    """Inputs (buffers), run-time scalars (0-d, given anew at each run), nodes in order, and outputs.

    ``donated``: indices of inputs nobody needs after the run. ``signals``: what each signal named in the graph asks for.
    ``options``: what its client asks of planning.
    """

    name: str
    inputs: tuple[Value, ...]
    scalars: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    stage: Stage = Stage.GLOBAL
    donated: frozenset[int] = frozenset()
    signals: tuple[tuple[str, SignalConfig], ...] = ()
    options: PlanOptions = PlanOptions()

    @cached_property
    def producer(self) -> dict[Value, Node]:
        return {out: node for node in self.nodes for out in node.outputs}

    @cached_property
    def uses(self) -> dict[Value, list[tuple[Node, int]]]:
        """Give for each value the nodes that read it and at which operand."""
        out: dict[Value, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for i, value in enumerate(node.inputs):
                out.setdefault(value, []).append((node, i))
        return out

    @cached_property
    def values(self) -> tuple[Value, ...]:
        return (*self.inputs, *self.scalars, *[o for n in self.nodes for o in n.outputs])

    @cached_property
    def communicates(self) -> bool:
        """Whether there are collectives among the nodes."""
        return "comm" in {op.effect for op in {node.op for node in self.nodes}}

    def on(self, mapping: Mapping[Value, Value]) -> Graph:
        """Give the graph with other values in place of some, its inputs and scalars included."""
        nodes = [n if mapping.keys().isdisjoint(n.inputs) else n.on(exchanged(n.inputs, mapping)) for n in self.nodes]
        get = lambda values: exchanged(values, mapping)  # noqa: E731
        return replace(self, inputs=get(self.inputs), scalars=get(self.scalars), nodes=tuple(nodes), outputs=get(self.outputs))

    def with_nodes(self, nodes: Iterable[Node], outputs: Iterable[Value] | None = None) -> Graph:
        return replace(self, nodes=tuple(nodes), outputs=self.outputs if outputs is None else tuple(outputs))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and _canonical(self) == _canonical(other)

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)


def exchanged(values: Sequence[Value], mapping: Mapping[Value, Value]) -> tuple[Value, ...]:
    """Give values with those of ``mapping`` in place of some."""
    return tuple([mapping.get(v, v) for v in values])


def attrs_key(attrs: Attrs) -> tuple[object, ...]:
    """Give what tells attributes apart: unlike plain equality, ``1``, ``1.0`` and ``True`` differ and a nan equals itself."""
    return tuple([(name, _attr_key(value)) for name, value in attrs]) if attrs else ()


def _attr_key(value: AttrValue) -> object:
    if isinstance(value, tuple):
        return tuple(_attr_key(v) for v in value)
    if isinstance(value, float):
        return "float", value.hex()  # nan and -0.0 too
    return type(value), value


def _canonical(graph: Graph) -> tuple[object, ...]:
    number = {value: i for i, value in enumerate(graph.values)}
    ids = lambda values: tuple(number[v] for v in values)  # noqa: E731
    return (
        graph.name,
        graph.stage,
        tuple((v.type, v.hint) for v in graph.values),
        len(graph.inputs),
        tuple((n.op.name, ids(n.inputs), ids(n.outputs), attrs_key(n.attrs), n.signal, n.taped) for n in graph.nodes),
        ids(graph.outputs),
        graph.donated,
        graph.signals,
        graph.options,
    )


class Rewriter:
    """Builds a new graph from an old one, node by node, keeping what did not change.

    ``emit`` appends a node made from an op; ``copy`` appends an old node with its operands mapped; ``replace`` says that
    an old value is now another. The same graph comes back when nothing changed.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.mapping: dict[Value, Value] = {}
        self.changed = False

    def get(self, value: Value) -> Value:
        return self.mapping.get(value, value)

    def replace(self, old: Value, new: Value) -> None:
        self.changed = True
        self.mapping[old] = new

    def emit(
        self,
        op: OpDef,
        inputs: Sequence[Value],
        attrs: Attrs = (),
        *,
        like: Node | None = None,
        types: Sequence[TensorType] | None = None,
        hint: str = "",
        why: str = "",
    ) -> tuple[Value, ...]:
        """Append ``op`` on new values; location and signal come from ``like``."""
        if types is None:
            types = op.infer_types(tuple(v.type for v in inputs), attrs)
        outputs = tuple(Value(t, hint) for t in types)
        self.nodes.append(
            Node(op, tuple(inputs), outputs, attrs, like.loc if like else None, like.signal if like else None, why=why)
        )
        self.changed = True
        return outputs

    def copy(self, node: Node) -> Node:
        if not self.mapping.keys().isdisjoint(node.inputs):
            self.changed = True
            node = node.on(exchanged(node.inputs, self.mapping))
        self.nodes.append(node)
        return node

    def finish(self, **changes: object) -> Graph:
        if not self.changed and not changes and len(self.nodes) == len(self.graph.nodes):
            return self.graph
        outputs = tuple(self.get(v) for v in self.graph.outputs)
        return replace(self.graph, nodes=tuple(self.nodes), outputs=outputs, **changes)  # type: ignore[arg-type]


__all__ = ["AttrValue", "Attrs", "Coord", "Graph", "Location", "Node", "Rewriter", "Stage", "Value", "attrs_key", "exchanged"]
