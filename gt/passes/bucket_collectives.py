"""Makes several collectives one: LOCAL -> LOCAL.

A collective costs its start-up however little it carries, so neighbours of one kind, mesh, axes and dtype travel as one
buffer: flattened, joined, sent, cut. Worth it while copying in and out takes less than starting up. Large sums over workers
are not copied: they stand side by side and start in one launch. Reductions wait for the last of their bucket, but not beyond
a reader; gathers go with the first. Next: ``fuse_hot_path``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from gt.ir.graph import Attrs, Graph, Node, Rewriter, Value
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS, OpDef
from gt.ir.ops import collective
from gt.ir.types import Shape, TensorType
from gt.passes.context import Context
from gt.passes.cost import H100
from gt.passes.schedule import joins_early, scatters_soon, schedule

Bucket: TypeAlias = list[Node]
KINDS = (collective.all_reduce, collective.all_gather, collective.reduce_scatter)
SHOWN = 4  # other lines that are named as askers
COPIES = 4  # reads and writes of each element on its way into and out of the buffer
FLAT = 1 << 18  # bytes that are copied in and out in the time that one more sum in a launch takes


@dataclass(frozen=True)
class BucketCollectives:
    """Join collectives in buckets of up to ``nbytes``: sums as they are, others if copying them takes less than starting one."""

    name: ClassVar[str] = "bucket_collectives"
    nbytes: int = 25 << 20

    def run(self, graph: Graph, context: Context) -> Graph:
        if not graph.communicates:
            return graph
        nodes = schedule(graph)
        buckets = list(self._buckets(graph, nodes))
        if not buckets:
            return graph
        early = joins_early(graph)
        return _Joiner(graph, nodes, buckets, {bucket[0] for bucket in buckets if bucket[0] in early}).run()

    def _buckets(self, graph: Graph, nodes: list[Node]) -> Iterator[Bucket]:
        """Give what travels together: gathers in the order of need, other collectives that stand side by side."""
        early, soon, behind = joins_early(graph), scatters_soon(graph), _behind(graph)
        open_: dict[object, Bucket] = {}
        place, seen = {node: i for i, node in enumerate(nodes)}, -1  # where the last collective is that is no such gather
        for node in nodes:
            seen = place[node] if node.op.effect == "comm" and node not in early else seen
            for key in [k for k, bucket in open_.items() if k[0] != "early" and _reads(node, bucket)]:  # type: ignore[index]
                yield from _done(open_.pop(key))
            if node in early:
                if node.inputs[0] in behind:  # it is there only behind what came before: no gather before that waits for it
                    for key in [k for k, bucket in open_.items() if k[0] == "early" and bucket and seen > place[bucket[0]]]:  # type: ignore[index]
                        yield from _done(open_.pop(key))
                yield from self._add(graph, open_, ("early", _key(node)), node)
            elif node in soon:
                yield from self._add(graph, open_, ("soon", _key(node)), node)
            elif node.op.effect != "comm":
                for key in [k for k in open_ if k[0] == "run"]:  # type: ignore[index]
                    yield from _done(open_.pop(key))
            else:
                yield from self._add(graph, open_, ("run", _key(node)), node)
        for bucket in open_.values():
            yield from _done(bucket)

    def _add(self, graph: Graph, open_: dict[object, Bucket], key: object, node: Node) -> Iterator[Bucket]:
        size = _nbytes(node)
        most = self.nbytes if node.op is collective.all_reduce else H100.launch_s * H100.memory_bandwidth / COPIES
        if node.op not in KINDS or size > most:
            return
        bucket = open_.setdefault(key, [])
        source = _root(graph, node)
        repeated = any(_root(graph, member) is source for member in bucket)  # gathered again, which is for later
        if bucket and (repeated or size + sum(map(_nbytes, bucket)) > self.nbytes):
            yield from _done(bucket)
            open_[key] = bucket = []
        bucket.append(node)


def _behind(graph: Graph) -> set[Value]:
    """Give what is made of anything that a collective gives."""
    found: set[Value] = set()
    for node in graph.nodes:
        if node.op.effect == "comm" or any(v in found for v in node.inputs):
            found.update(node.outputs)
    return found


def _reads(node: Node, bucket: Bucket) -> bool:
    return any(member.output in node.inputs for member in bucket)


def _done(bucket: Bucket) -> Iterator[Bucket]:
    if len(bucket) > 1:
        yield bucket


def _root(graph: Graph, node: Node) -> Value:
    """Give the value that a collective's operand is a view of."""
    value = node.inputs[0]
    while (producer := graph.producer.get(value)) is not None and producer.op.view:
        value = producer.inputs[0]
    return value


def _key(node: Node) -> object:
    placed = node.inputs[0].type.sharding
    assert placed is not None
    return node.op, placed.mesh, node.attr.get("axes"), node.attr.get("reduce"), node.inputs[0].type.dtype


def _nbytes(node: Node) -> int:
    return max(node.inputs[0].type.nbytes, node.output.type.nbytes)


class _Joiner:
    """Writes the nodes anew, each bucket as one collective at the place of its last member; of gathers of what is there anyway, its first.

    ``early``: the first members of these.
    """

    def __init__(self, graph: Graph, nodes: list[Node], buckets: list[Bucket], early: Set[Node]) -> None:
        self.graph, self.nodes = graph, nodes
        self.rewriter = Rewriter(graph)
        self.at: dict[Node, Bucket] = {}
        for bucket in buckets:
            self.at[bucket[0] if bucket[0] in early else bucket[-1]] = bucket
        self.members = {node for bucket in buckets for node in bucket}
        self.done: set[Node] = set()

    def run(self) -> Graph:
        for node in self.nodes:
            self.add(node)
        return self.rewriter.finish()

    def add(self, node: Node) -> None:
        if node in self.at:
            bucket = self.at[node]
            for member in bucket:  # what a later member is made of comes before the first
                self.make(member.inputs[0])
            apart = [member for member in bucket if member.op is collective.all_reduce and _nbytes(member) > FLAT]
            flat = [member for member in bucket if member not in apart]
            self.join(flat, apart)
        elif node not in self.members and node not in self.done:
            self.done.add(node)
            self.rewriter.copy(node)

    def make(self, value: Value) -> None:
        producer = self.graph.producer.get(value)
        if producer is not None and producer not in self.done and producer not in self.members:
            for source in producer.inputs:
                self.make(source)
            self.add(producer)

    def copy(self, member: Node, with_next: bool) -> None:
        """Leave a sum as it is. ``with_next``: it starts with the one behind it."""
        attrs = (*member.attrs, ("with_next", True)) if with_next else member.attrs
        inputs, types = [self.rewriter.get(v) for v in member.inputs], [member.output.type]
        (out,) = self.rewriter.emit(member.op, inputs, attrs, like=member, types=types, hint=member.output.hint, why=member.why)
        self.rewriter.replace(member.output, out)

    def emit(self, op: OpDef, inputs: list[Value], shape: Shape, like: Node, attrs: Attrs) -> Value:
        placed = like.output.type.sharding
        assert placed is not None
        type_ = TensorType(shape, inputs[0].type.dtype, Sharding.replicated(placed.mesh, len(shape)))
        (out,) = self.rewriter.emit(op, inputs, attrs, like=like, types=[type_], why=like.why)
        return out

    def reshape(self, value: Value, shape: Shape, like: Node) -> Value:
        if value.type.shape == shape:
            return value
        return self.emit(OPS["reshape"], [value], shape, like, (("shape", shape),))

    def permute(self, value: Value, dims: tuple[int, ...], like: Node) -> Value:
        if dims == tuple(range(len(dims))):
            return value
        return self.emit(OPS["permute"], [value], tuple(value.type.shape[d] for d in dims), like, (("dims", dims),))

    def join(self, bucket: Bucket, apart: Bucket) -> None:
        """Write one collective for a bucket, right behind those that start with it."""
        if len(bucket) < 2:
            alone = [*apart, *bucket]
            for member in alone:
                self.copy(member, with_next=member is not alone[-1])
            return
        first, op = bucket[0], bucket[0].op
        parts = int(str(first.attr["parts"]))
        rows = parts if op is collective.reduce_scatter else 1
        flat = [self.flat(self.rewriter.get(n.inputs[0]), n, rows) for n in bucket]
        width = sum(f.type.shape[1] for f in flat)
        joined = self.emit(OPS["cat"], flat, (rows, width), first, (("dim", 1),))
        for member in apart:
            self.copy(member, with_next=True)
        attrs = {k: 0 if k == "dim" else v for k, v in first.attr.items()}
        got_rows = {collective.all_gather: parts, collective.reduce_scatter: 1}.get(op, rows)
        most = max(bucket, key=_nbytes)  # what the rest only travels with
        lines = dict.fromkeys(f"{os.path.basename(n.loc.file)}:{n.loc.line}" for n in bucket if n.loc is not None and n.loc != most.loc)
        more = [*list(lines)[:SHOWN], *(["others"] if len(lines) > SHOWN else [])]
        also = f", also for {', '.join(more)}" if more else ""
        why = f"{len(bucket)} at once{also}: {most.why}"
        type_ = TensorType((got_rows, width), joined.type.dtype, joined.type.sharding)
        (got,) = self.rewriter.emit(op, [joined], tuple(attrs.items()), like=most, types=[type_], why=why)
        at = 0
        for node, part in zip(bucket, flat, strict=True):
            size = part.type.shape[1]
            where: Attrs = (("starts", (0, at)), ("stops", (got_rows, at + size)), ("steps", (1, 1)))
            cut = self.emit(OPS["slice"], [got], (got_rows, size), node, where)
            at += size
            self.rewriter.replace(node.output, self.restored(cut, node))

    def flat(self, value: Value, node: Node, rows: int) -> Value:
        """Give a member's operand as ``rows`` flat rows: one for each worker that gets a part of it."""
        shape = value.type.shape
        if rows > 1:
            d = int(str(node.attr["dim"]))
            apart = self.reshape(value, (*shape[:d], rows, shape[d] // rows, *shape[d + 1 :]), node)
            value = self.permute(apart, (d, *(i for i in range(len(shape) + 1) if i != d)), node)
        return self.reshape(value, (rows, math.prod(shape) // rows), node)

    def restored(self, cut: Value, node: Node) -> Value:
        """Give a member's result from its part of the buffer, in its own shape and placement."""
        shape = node.output.type.shape
        if node.op is collective.all_gather:
            parts, d = cut.type.shape[0], int(str(node.attr["dim"]))
            own = (*shape[:d], shape[d] // parts, *shape[d + 1 :])
            cut = self.reshape(cut, (parts, *own), node)
            cut = self.permute(cut, (*range(1, d + 1), 0, *range(d + 1, len(own) + 1)), node)
        op = OPS["reshape"]
        (out,) = self.rewriter.emit(
            op, [cut], (("shape", shape),), like=node, types=[node.output.type], hint=node.output.hint, why=node.why
        )  # fmt: skip
        return out


__all__ = ["BucketCollectives"]
