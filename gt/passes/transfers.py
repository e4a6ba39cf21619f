"""The two ends of a transfer in workers' programs: sends where the value is made, receives where it is first read.

A sender does not wait for the receiver, so a worker goes on with its own work; what arrives between the same two workers arrives
in the order it was sent. A receive begins where the transfer stands in the graph and is waited for where its value is first read.
Owns: ``Half``, ``sends``, ``receives``, ``region_key``. Must not know: which workers are alike.
Next: ``gt.ir.tiles`` (who sends whom what), ``lower_programs`` (where the ends stand).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from gt.ir.graph import Attrs, Node
from gt.ir.mesh import Sharding
from gt.ir.ops.collective import rows_of
from gt.ir.program import Collective, Compute, Free, Step, WireNode, WireType, pack_attrs
from gt.ir.tiles import Box, Rows, Tile, keeps, tiles, within
from gt.ir.types import Shape


@dataclass(frozen=True)
class Half:
    """One end of a transfer on some workers; or the beginning of a collective, and the wait for it."""

    node: Node
    receives: bool


@dataclass(frozen=True)
class Frame:
    """What the instructions of a transfer's end on one worker share. ``fresh`` numbers slots that nothing else uses."""

    worker: int
    number: int
    loc: int
    fresh: Iterator[int]


def placements(node: Node) -> tuple[Sharding, Sharding, Shape, Rows | None]:
    """Give where a LOCAL transfer's value is, where it goes, its whole shape, and which rows of it go."""
    have, want = node.inputs[0].type.sharding, node.output.type.sharding
    assert have is not None and want is not None
    return have, want, cast(Shape, node.attr.get("whole") or node.inputs[0].type.shape), rows_of(node)


def is_kept(node: Node) -> bool:
    """Whether workers on both sides have their part already."""
    return keeps(*placements(node))


def sends(node: Node, slot: int, frame: Frame) -> list[Step]:
    """Give the instructions that send a worker's part, or cuts of it, to those that lack it."""
    have, want, whole, rows = placements(node)
    writer = _Writer(node, frame)
    steps: list[Step] = []
    own = have.bounds(whole, frame.worker)
    cuts: dict[tuple[Box, Shape], int] = {}
    for tile in _others(tiles(have, want, whole, rows), frame.worker, source=True):
        cut, type_ = (within(tile.box, own), tile.steps), writer.type(tile.shape)
        at = slot
        if type_.shape != node.inputs[0].type.shape or min(tile.steps, default=1) < 0:
            if cut not in cuts:
                cuts[cut] = writer.slice(slot, *cut)
                steps += writer.take((slot,), (writer.type(node.inputs[0].type.shape),), (cuts[cut],))
            at = cuts[cut]
        steps.append(writer.message("send", tile, at, type_))
    return [*steps, Free(tuple(cuts.values()))] if cuts else steps


def receives(node: Node, source: int | None, target: int, frame: Frame) -> list[Step]:
    """Give the instructions that put a worker's part together, in slot ``target``; ``source``: what it holds, if anything."""
    have, want, whole, rows = placements(node)
    writer = _Writer(node, frame)
    found = [t for t in tiles(have, want, whole, rows) if t.target == frame.worker]
    need = want.bounds(rows.shape if rows else whole, frame.worker)
    local = node.output.type.shape
    if len(found) == 1 and found[0].source != frame.worker and found[0].shape == local and found[0].at == need:
        return [writer.message("receive", found[0], target, writer.type(local))]
    steps: list[Step] = []
    types: dict[int, WireType] = {}
    pieces: dict[Box, int] = {}
    edges = [sorted({t.at[d] for t in found}) for d in range(len(local))]
    for tile in found:
        if tile.source == frame.worker:
            assert source is not None
            types[source] = writer.type(node.inputs[0].type.shape)
            at = writer.slice(source, within(tile.box, have.bounds(whole, frame.worker)), tile.steps)
        else:
            at = next(frame.fresh)
            types[at] = writer.type(tile.shape)
            steps.append(writer.message("receive", tile, at, types[at]))
        box, at = writer.around(at, tile, need, edges)
        pieces[box] = at
    writer.join(pieces, local, rows.fill if rows else 0)
    if source in types:
        writer.settle(local)
    steps += writer.take(tuple(types), tuple(types.values()), (target,))
    arrived = tuple(at for at in types if at != source)
    return [*steps, Free(arrived)] if arrived else steps


def ended(step: Collective) -> Collective:
    """Give the wait for a collective that has begun."""
    return msgspec.structs.replace(step, kind="wait", input=step.output, nbytes=0, attrs=(), begins=False, inplace=False)


def waited(step: Step) -> Step:
    """Give the wait for a receive that has begun before; any other step as it is."""
    receives = isinstance(step, Collective) and step.kind == "receive"
    return msgspec.structs.replace(step, kind="wait", input=step.output) if receives else step  # type: ignore[union-attr]


def _others(found: Sequence[Tile], worker: int, source: bool) -> Iterator[Tile]:
    return (t for t in found if t.source != t.target and (t.source if source else t.target) == worker)


def _sizes(box: Box) -> Shape:
    return tuple(stop - start for start, stop in box)


@dataclass
class _Writer:
    """Writes what one end of a transfer computes."""

    node: Node
    frame: Frame
    nodes: list[WireNode] = field(default_factory=list)

    def type(self, shape: Shape) -> WireType:
        return WireType(shape, self.node.output.type.dtype.name)

    def message(self, kind: str, tile: Tile, slot: int, type_: WireType) -> Collective:
        sent = tile.numel * self.node.output.type.dtype.itemsize if kind == "send" else 0
        ends = (slot, -1) if kind == "send" else (-1, slot)
        return Collective(
            kind, self.frame.number, *ends, type_, (tile.source, tile.target), nbytes=sent, loc=self.frame.loc, why=self.node.why
        )

    def add(self, op: str, inputs: tuple[int, ...], type_: WireType, attrs: Attrs) -> int:
        out = next(self.frame.fresh)
        self.nodes.append(WireNode(op, inputs, (out,), (type_,), pack_attrs(attrs), self.frame.loc))
        return out

    def slice(self, slot: int, box: Box, steps: Shape) -> int:
        """Take the box's rows, in the order they are wanted in."""
        starts, stops = tuple(a for a, _ in box), tuple(b for _, b in box)
        sizes = tuple(-(-(b - a) // abs(step)) for (a, b), step in zip(box, steps, strict=True))
        attrs: Attrs = (("starts", starts), ("stops", stops), ("steps", tuple(map(abs, steps))))
        out = self.add("slice", (slot,), self.type(sizes), attrs)
        turned = tuple(d for d, step in enumerate(steps) if step < 0)
        return self.add("flip", (out,), self.type(sizes), (("dims", turned),)) if turned else out

    def around(self, slot: int, tile: Tile, need: Box, edges: Sequence[Sequence[tuple[int, int]]]) -> tuple[Box, int]:
        """Put what is no row of the value around and between a piece's rows, up to the next piece."""
        low, high, box = [], [], []
        for (start, stop), (first, last), places in zip(tile.at, need, edges, strict=True):
            i = places.index((start, stop))
            end = places[i + 1][0] if i + 1 < len(places) else last
            begin = first if i == 0 else start
            low.append(start - begin)
            high.append(end - stop)
            box.append((begin, end))
        interior = tuple(n - 1 for n in tile.spreads)
        if any((*low, *high, *interior)):
            value = (rows_of(self.node) or Rows((), ())).fill
            attrs: Attrs = (("low", tuple(low)), ("high", tuple(high)), ("interior", interior), ("value", value))
            slot = self.add("pad", (slot,), self.type(_sizes(tuple(box))), attrs)
        return tuple(box), slot

    def join(self, pieces: dict[Box, int], local: Shape, value: float) -> None:
        """Put boxes together that fill a box, dim by dim from the last, and pad the result to its local shape."""
        if not pieces:
            attrs: Attrs = (("shape", local), ("value", value), ("dtype", self.node.output.type.dtype))
            self.add("full", (), self.type(local), attrs)
            return
        for dim in reversed(range(len(local))):
            rows: dict[Box, list[tuple[Box, int]]] = {}
            for box, slot in pieces.items():
                rows.setdefault((*box[:dim], *box[dim + 1 :]), []).append((box, slot))
            pieces = dict(self._row(sorted(row), dim) for row in rows.values())
        ((box, slot),) = pieces.items()
        shape = _sizes(box)
        for dim, size in enumerate(local):
            if shape[dim] < size:
                shape = (*shape[:dim], size, *shape[dim + 1 :])
                slot = self.add("pad_end", (slot,), self.type(shape), (("dim", dim), ("size", size)))

    def settle(self, local: Shape) -> None:
        """Lay what has been made out row-major, in memory of its own: rows of what the worker holds already are copied."""
        made = self.nodes[-1]
        self.add("copy" if made.op in ("slice", "flip") else "dense", made.outputs, self.type(local), ())

    def _row(self, row: list[tuple[Box, int]], dim: int) -> tuple[Box, int]:
        (first, slot), (last, _) = row[0], row[-1]
        if len(row) == 1:
            return first, slot
        box = (*first[:dim], (first[dim][0], last[dim][1]), *first[dim + 1 :])
        return box, self.add("cat", tuple(at for _, at in row), self.type(_sizes(box)), (("dim", dim),))

    def take(self, inputs: tuple[int, ...], types: tuple[WireType, ...], outputs: tuple[int, ...]) -> list[Step]:
        """Give what has been written as one step whose last result is in ``outputs``."""
        nodes = (*self.nodes[:-1], msgspec.structs.replace(self.nodes[-1], outputs=outputs))
        self.nodes = []
        return [Compute(nodes, inputs, outputs, region_key(nodes, inputs, outputs, types, ()))]


def region_key(
    nodes: Sequence[WireNode],
    inputs: Sequence[int],
    outputs: Sequence[int],
    input_types: Sequence[WireType],
    inplace: Sequence[tuple[int, tuple[tuple[int, int], ...]]],
) -> str:
    """Hash a region up to the numbering of its slots: equal keys mean equal code from ``inputs`` to ``outputs``."""
    number = {slot: i for i, slot in enumerate(inputs)}
    body = []
    for node in nodes:
        reads = [number[slot] for slot in node.inputs]
        for slot in node.outputs:
            number[slot] = len(number)
        body.append((node.op, reads, node.types, node.attrs))
    text = msgspec.msgpack.encode((input_types, body, [number[slot] for slot in outputs], inplace))
    return hashlib.blake2b(text, digest_size=16).hexdigest()


__all__ = ["Frame", "Half", "ended", "is_kept", "placements", "receives", "region_key", "sends", "waited"]
