"""From global values to each worker's part: EXPLICIT -> LOCAL.

Shapes become those of one worker, padding included and equal on all of them, so all workers of a mesh run one program.
Attributes that depend on the part (shapes, offsets) come from the op's ``local``; what differs by worker is a
``Coord``. A local type keeps its global placement in ``type.sharding``: its mesh says which workers hold the value, and
a node runs on the workers of its result's mesh (a ``transfer`` also on those of its group). A collective's groups are
``operand.type.sharding.mesh.group(worker, *axes)``.
Must not know: any op but those of ``collective``. Next: ``lower_programs``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from gt.ir.graph import Attrs, AttrValue, Coord, Graph, Node, Stage, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import Local, OpDef
from gt.ir.ops import collective
from gt.ir.types import Shape, TensorType
from gt.passes.context import Context


@dataclass(frozen=True)
class Localize:
    """Give every value its per-worker type."""

    name: ClassVar[str] = "localize"

    def run(self, graph: Graph, context: Context) -> Graph:
        whole = all(placed is not None and placed.is_replicated for placed in {v.type.sharding for v in graph.values})
        if whole and not any(op.effect for op in {n.op for n in graph.nodes}):
            return replace(graph, stage=Stage.LOCAL)
        localizer = _Localizer(graph)
        for node in graph.nodes:
            localizer.add(node)
        get = lambda values: tuple(localizer.now[v] for v in values)  # noqa: E731
        return replace(
            graph, inputs=get(graph.inputs), scalars=get(graph.scalars), nodes=tuple(localizer.nodes),
            outputs=get(graph.outputs), stage=Stage.LOCAL,
        )  # fmt: skip


def _placed(value: Value) -> Sharding:
    assert value.type.sharding is not None, f"{value!r} is not placed"
    return value.type.sharding


def local_type(type_: TensorType) -> TensorType:
    """Give the type of one worker's part of a placed global value."""
    assert type_.sharding is not None
    return TensorType(type_.sharding.local_shape(type_.shape), type_.dtype, type_.sharding)


class _Localizer:
    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.now: dict[Value, Value] = {}
        self.ordered: dict[Value, Value] = {}
        for value in (*graph.inputs, *graph.scalars):
            self.now[value] = Value(local_type(value.type), value.hint)

    def add(self, node: Node) -> None:
        if node.op.name in _MOVES:
            self.now[node.output] = _MOVES[node.op.name](self, node, self.now[node.inputs[0]])
            return
        inputs = tuple(self.now[v] for v in node.inputs)
        outputs = tuple(Value(local_type(v.type), v.hint) for v in node.outputs)
        attrs = node.attrs
        if any(_placed(v).is_split for v in (*node.inputs, *node.outputs)):
            where = Local(_types(inputs), _types(outputs), _types(node.inputs), _types(node.outputs))
            attrs = node.op.local_attrs(attrs, where)
        self.nodes.append(replace(node, inputs=inputs, outputs=outputs, attrs=attrs))
        self.now.update(zip(node.outputs, outputs, strict=True))

    def emit(self, op: OpDef, value: Value, shape: Shape, like: Node, **attrs: AttrValue) -> Value:
        """Append one local node with a result placed as ``like``'s."""
        out = Value(TensorType(shape, value.type.dtype, _placed(like.output)), value.hint)
        given: Attrs = tuple(attrs.items())
        self.nodes.append(Node(op, (value,), (out,), given, like.loc, like.signal, why=like.why))
        return out

    def pad(self, value: Value, dim: int, size: int, like: Node) -> Value:
        if value.type.shape[dim] == size:
            return value
        # Still placed as before: only what follows moves it.
        out = Value(_resized(value.type, dim, size), value.hint)
        attrs: Attrs = (("dim", dim), ("size", size))
        self.nodes.append(Node(collective.pad_end, (value,), (out,), attrs, like.loc, like.signal, why=like.why))
        return out

    def dense(self, value: Value, like: Node) -> Value:
        if value not in self.ordered:
            self.ordered[value] = out = Value(value.type, value.hint)
            self.nodes.append(Node(collective.dense, (value,), (out,), (), like.loc, like.signal, why=like.why))
        return self.ordered[value]

    def unpad(self, value: Value, dim: int, size: int, like: Node) -> Value:
        if value.type.shape[dim] == size:
            return value
        return self.emit(collective.unpad, value, _resized(value.type, dim, size).shape, like, dim=dim, size=size)


def _types(values: tuple[Value, ...]) -> tuple[TensorType, ...]:
    return tuple(v.type for v in values)


def _resized(type_: TensorType, dim: int, size: int) -> TensorType:
    return TensorType((*type_.shape[:dim], size, *type_.shape[dim + 1 :]), type_.dtype, type_.sharding)


def _parts(node: Node) -> int:
    mesh = _placed(node.output).mesh
    return math.prod(mesh.axis_size(axis) for axis in _axes(node))


def _axes(node: Node) -> tuple[str, ...]:
    axes = node.attr["axes"]
    assert isinstance(axes, tuple)
    return tuple(str(axis) for axis in axes)


def _dim(node: Node, name: str = "dim") -> int:
    dim = node.attr[name]
    assert isinstance(dim, int)
    return dim


def _all_reduce(to: _Localizer, node: Node, x: Value) -> Value:
    return to.emit(
        collective.all_reduce, x, x.type.shape, node, axes=_axes(node), reduce=node.attr["reduce"], parts=_parts(node)
    )


def _all_gather(to: _Localizer, node: Node, x: Value) -> Value:
    dim, parts = _dim(node), _parts(node)
    shape = _resized(x.type, dim, x.type.shape[dim] * parts).shape
    joined = to.emit(collective.all_gather, x, shape, node, axes=_axes(node), dim=dim, parts=parts)
    return to.unpad(joined, dim, local_type(node.output.type).shape[dim], node)


def _reduce_scatter(to: _Localizer, node: Node, x: Value) -> Value:
    dim, parts, shape = _dim(node), _parts(node), local_type(node.output.type).shape
    x = to.pad(x, dim, shape[dim] * parts, node)
    return to.emit(
        collective.reduce_scatter, x, shape, node, axes=_axes(node), dim=dim, reduce=node.attr["reduce"], parts=parts
    )


def _all_to_all(to: _Localizer, node: Node, x: Value) -> Value:
    src, dst, parts, shape = _dim(node, "src"), _dim(node, "dst"), _parts(node), local_type(node.output.type).shape
    x = to.pad(x, dst, shape[dst] * parts, node)
    got = _resized(_resized(x.type, dst, shape[dst]), src, x.type.shape[src] * parts).shape
    moved = to.emit(collective.all_to_all, x, got, node, axes=_axes(node), src=src, dst=dst, parts=parts)
    return to.unpad(moved, src, shape[src], node)


def _transfer(to: _Localizer, node: Node, x: Value) -> Value:
    """Who keeps the value and who receives it are to have the same bits in the same order: a sum depends on it."""
    whole, part = node.inputs[0].type.shape, local_type(node.output.type).shape
    if set(_placed(x).mesh.workers) & set(_placed(node.output).mesh.workers):
        x = to.dense(x, node)
    return to.emit(collective.transfer, x, part, node, **node.attr, whole=whole, part=part)


def _shard_slice(to: _Localizer, node: Node, x: Value) -> Value:
    dim, shape, axes, mesh = _dim(node), local_type(node.output.type).shape, _axes(node), _placed(node.output).mesh
    x = to.pad(x, dim, shape[dim] * _parts(node), node)
    start = _start(mesh, axes, shape[dim])
    return to.emit(collective.shard_slice, x, shape, node, axes=axes, dim=dim, start=start, size=shape[dim])


def _start(mesh: Mesh, axes: tuple[str, ...], size: int) -> Coord:
    """Give where a worker's part begins, of a dim cut into parts of ``size`` along ``axes``."""
    strides, stride = [], size
    for axis in reversed(axes):
        strides.append((axis, stride))
        stride *= mesh.axis_size(axis)
    return Coord(0, tuple(strides))


def _partial_from_part(to: _Localizer, node: Node, x: Value) -> Value:
    dim, parts, axes = _dim(node), _parts(node), _axes(node)
    size = x.type.shape[dim]
    shape = _resized(x.type, dim, size * parts).shape
    start = _start(_placed(node.output).mesh, axes, size)
    placed = to.emit(collective.partial_from_part, x, shape, node, axes=axes, dim=dim, start=start, whole=size * parts)
    return to.unpad(placed, dim, local_type(node.output.type).shape[dim], node)


def _partial_from_whole(to: _Localizer, node: Node, x: Value) -> Value:
    (axis,) = _axes(node)
    return to.emit(collective.partial_from_whole, x, x.type.shape, node, axes=(axis,), index=Coord(0, ((axis, 1),)))


def _mask_pad(to: _Localizer, node: Node, x: Value) -> Value:
    where = Local((), (x.type,), (), (node.output.type,))
    start = where.offset(0, _dim(node))
    return to.emit(
        collective.mask_pad, x, x.type.shape, node,
        dim=_dim(node), reduce=node.attr["reduce"], start=start, size=node.attr["size"],
    )  # fmt: skip


_MOVES: dict[str, Callable[[_Localizer, Node, Value], Value]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "transfer": _transfer,
    "shard_slice": _shard_slice,
    "partial_from_part": _partial_from_part,
    "partial_from_whole": _partial_from_whole,
    "mask_pad": _mask_pad,
}
