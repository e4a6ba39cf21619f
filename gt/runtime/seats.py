"""Which worker stands where another stood: numbers that a script knows, and the workers that have taken their places.

Owns: ``Seats`` and ``moved``, pure. A new worker has a new number, and signals in a script, in graphs and in placements name old ones; in each place
stands the worker of the same rank, so groups keep their order and results their bits. Next: ``recovering`` (who seats them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gt.ir.mesh import Mesh
from gt.ir.program import WireGraph, WireSharding
from gt.ir.signals import ShardConfig, SignalConfig
from gt.runtime import wire

GRAPHS = msgspec.msgpack.Decoder(WireGraph)


@dataclass(frozen=True)
class Seats:
    """``names``: workers as the script knows them, in order. ``workers``: who is there now, in order; may be fewer."""

    names: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()
    now: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "now", dict(zip(self.names, self.workers, strict=False)))

    @property
    def changed(self) -> bool:
        """Whether some worker is another one than at first."""
        return self.names != self.workers

    def joined(self, present: Sequence[int]) -> Seats:
        """Give the seats with those who have come besides, each under its own number; a name that nobody bears is given up."""
        new = tuple(w for w in sorted(present) if w not in self.workers and w not in self.names)
        return Seats((*self.now, *new), (*self.now.values(), *new))

    def returned(self, numbers: Mapping[int, int], present: Sequence[int]) -> Seats:
        """Give the seats where workers have come back under other ``numbers``: they keep their names."""
        now = {name: numbers[w] for name, w in self.now.items() if w in numbers}
        return Seats(tuple(now), tuple(now.values())).joined(present)

    def named(self, workers: Sequence[int]) -> tuple[int, ...]:
        """Give workers that are there by the names that the script knows; who has come besides keeps its own, if nobody had it."""
        names = self._names()
        found = [names.get(w, w) for w in workers if w in names or w not in self.names]
        return tuple(sorted(found))

    def signal(self, config: SignalConfig | None) -> SignalConfig | None:
        """Give a signal with the workers that are there now; on all of them if none of those it names is."""
        if config is None or not self.changed:
            return config
        shard, back = config.shard, config.backward_config
        if shard is not None and shard.workers is not None:
            shard = _on(shard, tuple([self.now[w] for w in shard.workers if w in self.now]))
        return msgspec.structs.replace(config, shard=shard, backward_config=self.signal(back))

    def rebalance(self, message: wire.Rebalance) -> wire.Rebalance:
        """Give a message that names the workers that are there now; with none left of those it names, all of them."""
        if not self.changed:
            return message
        there = lambda workers: tuple([self.now[w] for w in workers if w in self.now])  # noqa: E731
        return wire.Rebalance(message.request, there(message.workers), tuple(map(there, message.named)), message.meshes)

    def run(self, message: wire.Run, tiers: wire.Tiers) -> wire.Run:
        """Give a run with the tiers at which it was, or is to be as those before it, at the workers that are there now."""
        known = dict(tiers)
        return msgspec.structs.replace(message, tiers=tuple((worker, known.get(name, "")) for name, worker in self.now.items()))

    def ran_at(self, message: wire.RanAt) -> wire.RanAt:
        """Give a message by the names that the script knows, as ``run`` takes its tiers."""
        names = self._names()
        return msgspec.structs.replace(message, tiers=tuple((names.get(w, w), pieces) for w, pieces in message.tiers))

    def graph(self, data: bytes) -> bytes:
        """Give an encoded graph whose signals name the workers that are there now."""
        if not self.changed:
            return data
        graph = GRAPHS.decode(data)
        configs = tuple((name, self._packed(config)) for name, config in graph.configs)
        return msgspec.msgpack.encode(msgspec.structs.replace(graph, configs=configs))

    def _packed(self, config: Any) -> Any:
        return msgspec.to_builtins(self.signal(msgspec.convert(config, SignalConfig)))

    def placement(self, placed: WireSharding) -> tuple[WireSharding | None, SignalConfig | None]:
        """Give a placement on the workers that are there now; on fewer, a signal that splits the same dim over them."""
        if not self.changed:
            return placed, None
        workers = tuple([self.now[w] for w in placed.workers if w in self.now])
        if len(workers) == len(placed.workers):
            return moved(placed, workers), None
        split = next((dim for dim, axes in enumerate(placed.dims) if axes), None)
        config = ShardConfig(replicated=True) if split is None else ShardConfig(axis=split)
        return None, SignalConfig(shard=_on(config, workers))

    def remembered(self, placed: WireSharding) -> WireSharding:
        """Give a placement by the names that the script knows, as ``placement`` takes it."""
        names = self._names()
        return moved(placed, tuple([names.get(w, w) for w in placed.workers]))

    def _names(self) -> dict[int, int]:
        return {worker: name for name, worker in self.now.items()}


def _on(shard: ShardConfig, workers: tuple[int, ...]) -> ShardConfig:
    return msgspec.structs.replace(shard, workers=workers or None)


def moved(placed: WireSharding, workers: tuple[int, ...]) -> WireSharding:
    """Give a placement on other workers. The axis of a plain list of workers is named by them, and is renamed."""
    old, new = Mesh.line(placed.workers), Mesh.line(workers)
    if placed.axes != old.axes:
        return msgspec.structs.replace(placed, workers=workers)
    names = {old.axes[0][0]: new.axes[0][0]}
    dims = tuple(tuple(names.get(a, a) for a in axes) for axes in placed.dims)
    return WireSharding(new.name, new.axes, workers, dims, placed.partial)


__all__ = ["Seats", "moved"]
