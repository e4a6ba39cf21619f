"""Runs a script and keeps every distinct graph it makes, placed as it would be on any number of workers.

Owns: ``ScriptSession``, ``record_script``. The script computes real values in this process, so that its loops and
branches go the way they go; placements are followed beside that, on workers that need not exist.
Must not know: how what was recorded is shown. Next: ``compiling`` (lowers and shows it), ``gt.passes.plan``.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gt import session as sessions
from gt.ir.evaluate import to_wire
from gt.ir.graph import Graph
from gt.ir.mesh import Sharding
from gt.ir.signals import SignalConfig
from gt.ir.types import Scalar, TensorType
from gt.passes.plan import Cluster, Plan, plan_graph
from gt.passes.reasons import PlanReasons
from gt.passes.signal_placement import signal_sharding
from gt.runtime import env
from gt.runtime.buffer_reasons import BufferReasons, buffer_reasons, upload_reasons
from gt.runtime.embedded import EmbeddedSession
from gt.runtime.errors import Fault
from gt.runtime.planner import place_inputs
from gt.runtime.session import Session
from gt.runtime.session_wrapper import SessionWrapper


@dataclass
class ScriptGraph:
    """A graph with its inputs placed, what it lowers to, and how often it ran."""

    graph: Graph
    plan: Plan
    runs: int = 0


class ShapesOnly:
    """A session that computes nothing: whatever is read is zero. For models too large for this machine."""

    def __init__(self) -> None:
        self._graphs: dict[int, Graph] = {}
        self._types: dict[int, TensorType] = {}
        self.closed: Fault | None = None

    def define(self, key: int, graph: Graph) -> None:
        self._graphs[key] = graph

    def run(
        self, key: int, inputs: Sequence[int], outputs: Sequence[int], scalars: Sequence[Scalar], frees: Sequence[int],
        replaces: Sequence[int] = (), reads: int = -1,
    ) -> Future[np.ndarray] | None:  # fmt: skip
        self._types.update((b, v.type.placed(None)) for b, v in zip(outputs, self._graphs[key].outputs, strict=True))
        self.free(frees)
        return None

    def await_window(self) -> None:
        pass

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        return np.empty(shape, dtype)

    def put(self, buffer: int, type: TensorType, data: np.ndarray, signal: SignalConfig | None) -> None:
        self._types[buffer] = type

    def fetch(self, buffer: int) -> Future[np.ndarray]:
        future: Future[np.ndarray] = Future()
        type_ = self._types[buffer]
        future.set_result(to_wire(np.zeros(type_.shape, type_.dtype.numpy), type_.dtype))
        return future

    def explain(self, buffer: int) -> Future[BufferReasons]:
        raise AssertionError("the session that plans explains")

    def free(self, buffers: Sequence[int]) -> None:
        for buffer in buffers:
            self._types.pop(buffer, None)

    def num_workers(self) -> int:
        return 1

    def workers(self) -> tuple[int, ...]:
        return (0,)

    def close(self) -> None:
        self.closed = Fault("closed", "the session is closed")


class ScriptDone(BaseException):
    """Ends the script: enough was seen. Not an Exception, so that scripts do not catch it."""


@dataclass(frozen=True)
class Limits:
    """When to stop a script: after so many flushes without a new graph, or so many seconds."""

    quiet_flushes: int = 20
    seconds: float = 120.0


class ScriptSession(SessionWrapper):
    """Runs everything on ``inner`` and plans it for ``cluster`` beside; ``found``: what it has planned, by graph and placements."""

    def __init__(self, inner: Session, cluster: Cluster, limits: Limits | None = None) -> None:
        super().__init__(inner)
        self.cluster, self.limits = cluster, limits or Limits()
        self.found: dict[tuple[int, tuple[Sharding, ...]], ScriptGraph] = {}
        self._placed: dict[int, Sharding] = {}
        self._made: dict[int, tuple[TensorType, PlanReasons, int]] = {}  # as which output of what says why
        self._quiet = 0
        self._until = time.monotonic() + self.limits.seconds

    def run(
        self, key: int, inputs: Sequence[int], outputs: Sequence[int], scalars: Sequence[Scalar], frees: Sequence[int],
        replaces: Sequence[int] = (), reads: int = -1,
    ) -> Future[np.ndarray] | None:  # fmt: skip
        found = self._find(key, inputs)
        found.runs += 1
        self._placed.update(zip(outputs, found.plan.outputs, strict=True))
        for i, (buffer, value) in enumerate(zip(outputs, found.graph.outputs, strict=True)):
            self._made[buffer] = value.type, found.plan.told, i
        self._forget(frees)
        future = self.inner.run(key, inputs, outputs, scalars, frees, replaces, reads)
        if self._quiet >= self.limits.quiet_flushes or time.monotonic() > self._until:
            raise ScriptDone
        return future

    def _find(self, key: int, inputs: Sequence[int]) -> ScriptGraph:
        placed = tuple(self._placed[buffer] for buffer in inputs)
        found = self.found.get((key, placed))
        self._quiet += 1
        if found is None:
            self._quiet = 0
            graph = self.graphs[key]
            types = [v.type.placed(sharding) for v, sharding in zip(graph.inputs, placed, strict=True)]
            graph = place_inputs(graph, types)
            if any(c.graph.name == graph.name for c in self.found.values()):  # the same graph, placed differently
                graph = replace(graph, name=f"{graph.name}.{len(self.found)}")
            found = self.found[key, placed] = ScriptGraph(graph, plan_graph(graph, self.cluster))
        return found

    def put(self, buffer: int, type: TensorType, data: np.ndarray, signal: SignalConfig | None) -> None:
        self._placed[buffer] = signal_sharding(type, signal, self.cluster.workers)
        self._made[buffer] = type, upload_reasons(signal, self._placed[buffer]), 0
        self.inner.put(buffer, type, data, signal)

    def explain(self, buffer: int) -> Future[BufferReasons]:
        type_, reasons, output = self._made[buffer]
        future: Future[BufferReasons] = Future()
        future.set_result(buffer_reasons(type_.placed(self._placed[buffer]), reasons, output, self.num_workers()))
        return future

    def free(self, buffers: Sequence[int]) -> None:
        self._forget(buffers)
        self.inner.free(buffers)

    def _forget(self, buffers: Sequence[int]) -> None:
        for buffer in buffers:
            self._placed.pop(buffer, None)
            self._made.pop(buffer, None)

    def num_workers(self) -> int:
        return len(self.cluster.workers)

    def workers(self) -> tuple[int, ...]:
        return self.cluster.workers


@dataclass(frozen=True)
class ScriptGraphs:
    """What a script made, in the order of first runs, and the error it ended with, if it did."""

    graphs: tuple[ScriptGraph, ...]
    error: BaseException | None = None


def record_script(
    path: str, arguments: Sequence[str], cluster: Cluster, limits: Limits, shapes_only: bool = False
) -> ScriptGraphs:
    """Run a script as ``python path arguments`` would, recording for ``cluster``; its output goes to stderr.

    ``shapes_only``: compute nothing, every value read is zero. ``gt.connect`` and ``gt.gpu_workers`` start nothing
    meanwhile. Errors: RuntimeError if a session is in use.
    """
    inner: Session = ShapesOnly() if shapes_only else EmbeddedSession(backend=env.BACKEND.get())
    session = ScriptSession(inner, cluster, limits)
    error: BaseException | None = None
    with sessions.pinned(session), _as_main(path, arguments), contextlib.redirect_stdout(sys.stderr):
        try:
            runpy.run_path(path, run_name="__main__")
        except ScriptDone:
            pass
        except SystemExit as stop:
            error = stop if stop.code not in (None, 0) else None
        except Exception as fault:
            error = fault
    return ScriptGraphs(tuple(session.found.values()), error)


@contextlib.contextmanager
def _as_main(path: str, arguments: Sequence[str]) -> Iterator[None]:
    """Give the script the argv and import path it would have on its own."""
    argv, path_before = sys.argv, sys.path[:]
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path_before


__all__ = ["ScriptGraphs", "ScriptDone", "ScriptSession", "ScriptGraph", "Limits", "ShapesOnly", "record_script"]
