"""Computes what follows a very large value a chunk of rows at a time, so that it is never whole: logits and their loss.

Of linear and cross_entropy the gradients of a chunk follow its forward at once, as a step is one graph: the gradient of the sum
over rows is known before the sum. Gradients of what rows share, such as the weight's, are added up over chunks, halves in float32.
Runs on each worker's part, so batches that are split are fine; where a split of the classes puts collectives in between, nothing changes.
Must not know: any one op but those that cut, join, add and cast. Next: ``row_groups`` (what can be chunked), ``plan_memory``.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gt.ir.graph import Attrs, AttrValue, Coord, Graph, Node, Stage, Value
from gt.ir.mesh import Sharding
from gt.ir.opdef import Local, OpDef
from gt.ir.ops import OPS
from gt.ir.text import readable_names
from gt.ir.types import HALVES, Shape, TensorType, float32
from gt.passes.context import Context
from gt.passes.half_sums import in_float32
from gt.passes.plan_memory import memory_plan
from gt.passes.row_groups import Group, NotChunked, grow

ADDED = {"sum": OPS["add"], "max": OPS["maximum"], "min": OPS["minimum"]}


@dataclass(frozen=True)
class ChunkRows:
    """Chunk what a value of ``above`` bytes or more is part of, into pieces of about ``target`` bytes. ``above`` 0: nothing.

    Each chunk has a gradient of its own of what rows share, which is written and read again to add them up: few chunks, not the smallest.

    Under a memory limit pieces are at most a 32nd of it, and what takes an 8th of it is chunked, too.
    """

    name: ClassVar[str] = "chunk_rows"
    above: int = 1 << 28
    target: int = 1 << 31

    def run(self, graph: Graph, context: Context) -> Graph:
        if graph.stage is not Stage.LOCAL or not self.above:
            return graph
        limit = graph.options.memory_limit
        above, target = self.above, self.target
        if limit is not None:
            above, target = min(above, limit // 8 + 1), min(target, limit // 32 + 1)
        tried: set[Value] = set()
        for seed in (large := _large(graph, above)):
            if seed in tried or seed not in graph.producer:
                continue
            try:
                group = grow(graph, seed, max(2, math.ceil(seed.type.nbytes / target)))
            except NotChunked as fault:
                tried.update(fault.alike)
                if fault.why and (fault.loss is not None or seed is large[0]):
                    _tell(graph, context, seed, f"not computed in chunks of rows: {fault.why}")
                continue
            tried.update(group.placed)
            chunked = _Chunks(graph, group).run()
            kept = [v for v in group.held if v in graph.outputs]
            for value in kept:
                _tell(graph, context, value, "not computed in chunks of rows: it is whole, as it is kept")
            whole, count = group.largest, group.mesh.size
            if any(v in graph.producer for v in kept) and _peak(chunked, context) + whole.type.nbytes // count >= _peak(graph, context):
                continue  # what parts are joined to is as much as they save
            part = f"{whole.type.nbytes / count / 1e6:.4g} of {whole.type.nbytes / 1e6:.4g} MB"
            _tell(graph, context, whole, f"computed in {count} chunks of rows, {part} at once")
            graph = chunked
        return graph


def _large(graph: Graph, above: int) -> list[Value]:
    """Give the values to begin with, largest first."""
    kept = set(graph.outputs)
    made = [v for node in graph.nodes for v in node.outputs]
    large = [v for v in made if v.type.nbytes >= above and v.type.ndim > 1 and v not in kept]
    return sorted(large, key=lambda v: -v.type.nbytes)


def _peak(graph: Graph, context: Context) -> int:
    return memory_plan(graph, Context(context.mesh, machine=context.machine))[1].most


def _tell(graph: Graph, context: Context, about: Value, text: str) -> None:
    context.note(about, text)
    node = graph.producer.get(about)
    at = f" at {node.loc}" if node is not None and node.loc is not None else ""
    name = readable_names(graph.inputs, graph.nodes).get(about, "a value")
    context.placement_notes.append(f"{name}: {about.type!r}: {text}{at}")


class _Chunks:
    """Writes a group's nodes once for each chunk, behind what they need and before what needs them."""

    def __init__(self, graph: Graph, group: Group) -> None:
        self.graph, self.group = graph, group
        self.own = [node for node in graph.nodes if node in group.nodes]
        self.made = {v: where for node in self.own for v, where in zip(node.outputs, group.nodes[node][1], strict=True)}
        self.outputs = set(graph.outputs)
        self.nodes: list[Node] = []

    def run(self) -> Graph:
        behind: list[Node] = []
        waits = set(self.made)
        for node in self.graph.nodes:
            if node in self.group.nodes:
                continue
            late = any(v in waits for v in node.inputs)
            waits.update(node.outputs if late else ())
            (behind if late else self.nodes).append(node)
        chunks = [dict(zip((a for a, _ in self.group.mesh.axes), at, strict=True)) for at in self._coords()]
        cuts = [self._cuts(at) for at in chunks]  # views, first, so that all chunks are alike
        wanted = {v for v in self.made if v in self.outputs or any(u not in self.group.nodes for u, _ in self.graph.uses.get(v, ()))}
        pieces: dict[Value, list[Value]] = {}
        for at, cut in zip(chunks, cuts, strict=True):
            self._chunk(at, cut, wanted, pieces)
        for value in (v for v in self.made if v in wanted):
            self._join(value, pieces[value], chunks)
        return self.graph.with_nodes((*self.nodes, *behind))

    def _coords(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*(range(size) for _, size in self.group.mesh.axes)))

    def _cuts(self, at: dict[str, int]) -> dict[tuple[Value, Sharding], Value]:
        """Give the parts of what a chunk reads from elsewhere."""
        found: dict[tuple[Value, Sharding], Value] = {}
        for node in self.own:
            for value, where in zip(node.inputs, self.group.nodes[node][0], strict=True):
                if value in self.made or not where.is_split or (value, where) in found:
                    continue
                shape = where.local_shape(value.type.shape)
                starts = tuple(_index(where, d, at) * size for d, size in enumerate(shape))
                stops = tuple(a + n for a, n in zip(starts, shape, strict=True))
                attrs: Attrs = (("starts", starts), ("stops", stops), ("steps", (1,) * len(shape)))
                found[value, where] = self._emit(OPS["slice"], (value,), shape, node, attrs)
        return found

    def _emit(self, op: OpDef, inputs: tuple[Value, ...], shape: Shape, like: Node, attrs: Attrs = (), out: Value | None = None) -> Value:
        if out is None:
            out = Value(TensorType(shape, inputs[0].type.dtype, inputs[0].type.sharding))
        self.nodes.append(Node(op, inputs, (out,), attrs, like.loc, like.signal, why="a chunk of rows"))
        return out

    def _cast(self, value: Value, like: Node, to: Any, out: Value | None = None) -> Value:
        out = out or Value(TensorType(value.type.shape, to, value.type.sharding))
        return self._emit(OPS["cast"], (value,), value.type.shape, like, (("dtype", to),), out)

    def _chunk(
        self, at: dict[str, int], cut: dict[tuple[Value, Sharding], Value], wanted: set[Value], pieces: dict[Value, list[Value]]
    ) -> None:
        now: dict[Value, Value] = {}
        for node in self.own:
            requires, produces = self.group.nodes[node]
            inputs = tuple(now[v] if v in now else cut.get((v, w), v) for v, w in zip(node.inputs, requires, strict=True))
            types = [
                TensorType(w.local_shape(v.type.shape), v.type.dtype, v.type.sharding)
                for v, w in zip(node.outputs, produces, strict=True)
            ]  # fmt: skip
            where = Local(
                tuple(v.type.placed(w) for v, w in zip(inputs, requires, strict=True)),
                tuple(t.placed(w) for t, w in zip(types, produces, strict=True)),
                tuple(v.type.placed(w) for v, w in zip(node.inputs, requires, strict=True)),
                tuple(v.type.placed(w) for v, w in zip(node.outputs, produces, strict=True)),
            )
            attrs = tuple((name, _at(value, at)) for name, value in node.op.local_attrs(node.attrs, where))
            outputs = tuple(Value(t, v.hint) for t, v in zip(types, node.outputs, strict=True))
            made = replace(node, inputs=inputs, outputs=outputs, attrs=attrs)
            if any(w.partial and v.type.dtype in HALVES for v, w in zip(outputs, produces, strict=True)):
                made = self._wide(made)
            self.nodes.append(made)
            for value, place, new in zip(node.outputs, produces, made.outputs, strict=True):
                if not place.partial and new.type.dtype is not value.type.dtype:  # what an op gives beside a sum is a half
                    new = self._cast(new, node, value.type.dtype)
                now[value] = new
                if value not in wanted:
                    continue
                own = pieces.setdefault(value, [])
                if place.partial and own:
                    new = self._emit(ADDED[place.partial[0][1]], (own.pop(), new), new.type.shape, node)
                own.append(new)

    def _wide(self, node: Node) -> Node:
        """Give the node with its sums of halves in float32."""
        inputs = node.inputs
        if not node.op.wide:
            inputs = tuple(self._cast(v, node, float32) if v.type.dtype in HALVES else v for v in inputs)
        made = in_float32(node, inputs)
        outputs = tuple(Value(v.type.placed(old.type.sharding), old.hint) for v, old in zip(made.outputs, node.outputs, strict=True))
        return replace(made, outputs=outputs)

    def _join(self, value: Value, parts: list[Value], chunks: list[dict[str, int]]) -> None:
        """Append what makes the value that others read from its parts, which are in the order of chunks, or one sum."""
        node, where = self.graph.producer[value], self.made[value]
        if where.partial:
            (part,) = parts
            if part.type.dtype is not value.type.dtype:
                self._cast(part, node, value.type.dtype, value)
                return
            for i in range(len(self.nodes) - 1, -1, -1):
                if part in self.nodes[i].outputs:
                    self.nodes[i] = replace(self.nodes[i], outputs=tuple(value if v is part else v for v in self.nodes[i].outputs))
                    return
        split = [d for d in range(value.type.ndim) if where.dims[d]]
        by_dims = lambda i: [_index(where, d, chunks[i]) for d in split]  # noqa: E731 - chunks may go by other dims first
        parts = [parts[i] for i in sorted(range(len(parts)), key=by_dims)]
        for d in reversed(split):
            count = where.shards(d)
            last = len(parts) == count
            rows = [tuple(parts[i : i + count]) for i in range(0, len(parts), count)]
            shape = lambda row, d=d, n=count: (*row[0].type.shape[:d], row[0].type.shape[d] * n, *row[0].type.shape[d + 1 :])  # noqa: E731
            parts = [self._emit(OPS["cat"], row, shape(row), node, (("dim", d),), value if last else None) for row in rows]


def _index(where: Sharding, dim: int, at: dict[str, int]) -> int:
    index = 0
    for axis in where.dims[dim]:
        index = index * where.mesh.axis_size(axis) + at[axis]
    return index


def _at(value: AttrValue, at: dict[str, int]) -> AttrValue:
    if isinstance(value, Coord):
        return value.at(at)
    return tuple(_at(v, at) for v in value) if isinstance(value, tuple) else value


__all__ = ["ChunkRows"]
