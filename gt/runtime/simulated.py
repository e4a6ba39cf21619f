"""A session whose workers are simulated: every flush is planned for n workers and run on NumPy in this process.

Owns: ``SimulatedSession``. What real workers would send each other goes through ``simulator``'s exact collectives, so a
script's sharded values can be compared with its whole ones, and its collectives counted, without a second process.
Must not know: sockets, torch. Next: ``simulator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.ir.evaluate import from_wire, to_wire
from gt.ir.graph import Graph
from gt.ir.mesh import Sharding
from gt.ir.program import Collective
from gt.ir.signals import SignalConfig
from gt.ir.types import Scalar, TensorType
from gt.passes.plan import Cluster, Plan, plan_graph
from gt.passes.reasons import PlanReasons
from gt.passes.signal_placement import signal_sharding
from gt.runtime.buffer_reasons import BufferReasons, buffer_reasons, upload_reasons
from gt.runtime.errors import Fault
from gt.runtime.planner import place_inputs
from gt.runtime.simulator import parts_of, simulate, whole_of

if TYPE_CHECKING:
    from gt.ir.evaluate import Array


@dataclass(frozen=True)
class Planned:
    """One graph as planned for inputs placed in one way."""

    graph: Graph
    plan: Plan

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Give the collectives of the first worker."""
        return self.plan.programs[min(self.plan.programs)].collectives


class SimulatedSession:
    """A ``Session`` on ``num_workers`` simulated workers. ``runs``: what ran, in order."""

    def __init__(self, num_workers: int) -> None:
        self.cluster = Cluster(tuple(range(num_workers)))
        self.runs: list[Planned] = []
        self._graphs: dict[int, Graph] = {}
        self._plans: dict[tuple[int, tuple[Sharding, ...]], Planned] = {}
        self._types: dict[int, TensorType] = {}
        self._made: dict[int, tuple[PlanReasons, int]] = {}  # by what says why, as which of its outputs
        self._parts: dict[int, dict[int, Array]] = {}
        self._closed: Fault | None = None

    def define(self, key: int, graph: Graph) -> None:
        self._graphs[key] = graph

    def run(
        self, key: int, inputs: Sequence[int], outputs: Sequence[int], scalars: Sequence[Scalar], frees: Sequence[int],
        replaces: Sequence[int] = (), reads: int = -1,
    ) -> Future[np.ndarray] | None:  # fmt: skip
        planned = self._planned(key, [self._types[b] for b in inputs])
        given: dict[int, list[Array | None]] = {w: [self._parts[b].get(w) for b in inputs] for w in self.cluster.workers}
        results = simulate(planned.plan.programs, given, scalars)
        for i, (buffer, placed) in enumerate(zip(outputs, planned.plan.outputs, strict=True)):
            self._types[buffer] = planned.graph.outputs[i].type.placed(placed)
            self._parts[buffer] = {w: results[w][i] for w in placed.mesh.workers}
            self._made[buffer] = planned.plan.told, i
        self.runs.append(planned)
        self.free(frees)
        return None

    def _planned(self, key: int, types: Sequence[TensorType]) -> Planned:
        where = key, tuple(t.sharding for t in types if t.sharding is not None)
        if where not in self._plans:
            graph = place_inputs(self._graphs[key], types)
            self._plans[where] = Planned(graph, plan_graph(graph, self.cluster))
        return self._plans[where]

    def await_window(self) -> None:
        pass

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        return np.empty(shape, dtype)

    def put(self, buffer: int, type: TensorType, data: np.ndarray, signal: SignalConfig | None) -> None:
        placed = signal_sharding(type, signal, self.cluster.workers)
        self._types[buffer], self._made[buffer] = type.placed(placed), (upload_reasons(signal, placed), 0)
        self._parts[buffer] = parts_of(from_wire(data, type.shape, type.dtype), placed, type.dtype)

    def fetch(self, buffer: int) -> Future[np.ndarray]:
        type_ = self._types[buffer]
        assert type_.sharding is not None
        future: Future[np.ndarray] = Future()
        future.set_result(to_wire(whole_of(self._parts[buffer], type_.sharding, type_.placed(None)), type_.dtype))
        return future

    def explain(self, buffer: int) -> Future[BufferReasons]:
        future: Future[BufferReasons] = Future()
        future.set_result(buffer_reasons(self._types[buffer], *self._made[buffer], self.num_workers()))
        return future

    def sharding(self, buffer: int) -> Sharding:
        """Give where a buffer lives."""
        placed = self._types[buffer].sharding
        assert placed is not None
        return placed

    def free(self, buffers: Sequence[int]) -> None:
        for buffer in buffers:
            self._types.pop(buffer, None)
            self._parts.pop(buffer, None)
            self._made.pop(buffer, None)

    def num_workers(self) -> int:
        return len(self.cluster.workers)

    def workers(self) -> tuple[int, ...]:
        return self.cluster.workers

    @property
    def closed(self) -> Fault | None:
        return self._closed

    def close(self) -> None:
        self._closed = Fault("closed", "the session is closed")


__all__ = ["Planned", "SimulatedSession"]
