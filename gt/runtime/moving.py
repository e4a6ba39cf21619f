"""Where a client's values go when it is rebalanced over the workers that there are: which move, and the graphs that move them.

Owns: ``Moving`` (a rebalancing under way), ``asked_of`` (what a value's placement asks for elsewhere), ``Move``. Pure. Must not know: the
state of the dispatcher, messages. Next: ``moves`` (which runs the graphs), ``gt.rebalancing`` (what a user calls).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from gt.ir import ops  # noqa: F401  the op table
from gt.ir.graph import Graph, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS
from gt.ir.program import encode_graph
from gt.ir.signals import MeshAxes, ShardConfig, SignalConfig
from gt.ir.types import TensorType
from gt.passes.signal_placement import signal_sharding
from gt.runtime.quota import part_nbytes
from gt.runtime.schedule import Buffer, Flight

AT_ONCE = 256 << 20  # bytes on one worker that are there twice while they move, unless one value has more


def asked_of(
    placed: Sharding, workers: tuple[int, ...], named: Iterable[tuple[int, ...]] = (), meshes: Iterable[MeshAxes] = ()
) -> SignalConfig:
    """Give the signal that asks for a value on ``workers`` what its placement is on others: whole, or split along the same dims.

    ``named``: lists of workers that signals name, whose values stay on them. ``meshes``: the declared ones, for axes with names; one that
    is not declared any more keeps the sizes of its inner axes.
    """
    mesh = placed.mesh
    if mesh.workers in set(named):
        workers = tuple(w for w in mesh.workers if w in workers) or workers
    split = tuple((dim, axes) for dim, axes in enumerate(placed.dims) if axes)
    if not split:
        return SignalConfig(shard=ShardConfig(replicated=True, workers=workers))
    if mesh.axes in (Mesh.line(mesh.workers).axes, (("w", mesh.size),)):
        return SignalConfig(shard=ShardConfig(axis=split[0][0], workers=workers))
    names = [axis for axis, _ in mesh.axes]
    (first, _), *inner = mesh.axes
    declared = next((m for m in meshes if [axis for axis, _ in m] == names), ((first, -1), *inner))
    return SignalConfig(shard=ShardConfig(dims=split, workers=workers), mesh=tuple(declared))


def same_place(one: Sharding, other: Sharding, shape: tuple[int, ...]) -> bool:
    """Whether each worker holds the same part of a value in both placements."""
    return set(one.mesh.workers) == set(other.mesh.workers) and all(
        one.bounds(shape, w) == other.bounds(shape, w) for w in one.mesh.workers
    )


@dataclass(frozen=True)
class Move:
    """Values that move in one run: the buffers, the client's numbers that name each, and what is asked for each."""

    buffers: tuple[Buffer, ...]
    numbers: tuple[tuple[int, ...], ...]
    asked: tuple[SignalConfig, ...]

    def graph(self) -> bytes:
        """Give the graph that copies each value to where it is asked for, encoded."""
        types = [_whole(b) for b in self.buffers]
        given, made = tuple(Value(t) for t in types), tuple(Value(t) for t in types)
        nodes = tuple(Node(OPS["copy"], (x,), (y,), signal=f"s{i}") for i, (x, y) in enumerate(zip(given, made, strict=True)))
        signals = tuple((f"s{i}", config) for i, config in enumerate(self.asked))
        return msgspec.msgpack.encode(encode_graph(Graph("rebalance", given, (), nodes, made, signals=signals)))


@dataclass
class Moving:
    """One rebalancing. ``flight``: the run under way, of ``move``. ``done``: uids that are where they should be, and bytes so far."""

    request: int
    workers: tuple[int, ...]
    named: tuple[tuple[int, ...], ...]
    meshes: tuple[MeshAxes, ...]
    move: Move | None = None
    flight: Flight | None = None
    done: set[int] = field(default_factory=set)
    values: int = 0
    nbytes: int = 0

    def next(self, buffers: dict[int, Buffer], present: Sequence[int]) -> Move | None:
        """Give what moves next of a client's buffers, by its numbers; None if all are in place."""
        workers = tuple(w for w in self.workers if w in present) or tuple(present)
        numbers: dict[int, list[int]] = {}
        by_uid: dict[int, Buffer] = {}
        for number, buffer in buffers.items():
            if buffer.fault is None and buffer.type is not None and buffer.uid not in self.done:
                numbers.setdefault(buffer.uid, []).append(number)
                by_uid[buffer.uid] = buffer
        chosen: list[tuple[Buffer, SignalConfig]] = []
        nbytes = 0
        for uid, buffer in by_uid.items():
            assert buffer.type is not None and buffer.type.sharding is not None
            asked = asked_of(buffer.type.sharding, workers, self.named, self.meshes)
            target = signal_sharding(_whole(buffer), asked, tuple(present))
            if same_place(buffer.type.sharding, target, buffer.type.shape):
                self.done.add(uid)
                continue
            nbytes += max(part_nbytes(buffer.type), part_nbytes(buffer.type.placed(target)))
            if chosen and nbytes > AT_ONCE:
                break
            chosen.append((buffer, asked))
        if not chosen:
            return None
        return Move(tuple(b for b, _ in chosen), tuple(tuple(numbers[b.uid]) for b, _ in chosen), tuple(a for _, a in chosen))


def _whole(buffer: Buffer) -> TensorType:
    assert buffer.type is not None
    return buffer.type.placed(None)


__all__ = ["AT_ONCE", "Move", "Moving", "asked_of", "same_place"]
