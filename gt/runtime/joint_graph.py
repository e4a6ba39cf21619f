"""One CUDA graph of a program that meets others in collectives: captured and replayed by all its workers in the same epochs.

Owns: ``JointUnit``. A collective in a graph and the same one launched by itself do not meet, so when to capture and when to replay is not
this worker's to decide (``joint_captures`` does), and a replay that is asked for is always possible: what the graph reads where it is
stays allocated, and an input that has moved is copied there. Must not know: programs, pieces, epochs. Next: ``cuda_graph``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from gt.ir.types import Scalar
from gt.runtime.cuda_graph import Body, Graph, Graphs, GraphStats, ScalarSlots, Sources
from gt.runtime.engine import Comm, JointStage, LoadedStats

Tensor: TypeAlias = torch.Tensor

STILL = 2


@dataclass(eq=False)
class _Fixed:
    """An input that the graph reads, and may overwrite, where it was captured. ``owner``: the value that is there now, if any."""

    at: int
    memory: Tensor
    owner: Callable[[], Tensor | None]


@dataclass(eq=False)
class _Captured:
    """``kept[i]``: the input that output ``i`` is, -1 where it is one of ``made``."""

    graph: Graph
    fixed: list[_Fixed]
    copied: tuple[tuple[int, Tensor], ...]
    kept: tuple[int, ...]
    made: tuple[tuple[int, Tensor], ...]
    is_new: bool = True  # it was not replayed yet


@dataclass(eq=False)
class JointUnit:
    """A whole program of a worker, with its collectives between ``groups``.

    ``body``: what is captured, given what runs collectives. ``settled``: whether the code is what it is going to be. ``mutated``: inputs
    that are overwritten. ``program``: what happened to it. ``fall_back``: what to do where there will be no graph.
    """

    graphs: Graphs
    sources: Sources
    groups: frozenset[tuple[int, ...]]
    body: Callable[[Comm], Body]
    settled: Callable[[], bool]
    program: LoadedStats
    fall_back: Callable[[], None]
    mutated: frozenset[int] = frozenset()
    stats: GraphStats = field(default_factory=GraphStats)
    captured: _Captured | None = None
    given_up: bool = False
    _seen: list[weakref.ref[Tensor]] = field(default_factory=list)
    _still: int = 0  # runs in a row that overwrote what the one before had
    _slots: ScalarSlots | None = None

    def observe(self, a: Sequence[Tensor], comm: Comm) -> None:
        """See which inputs of a run without the graph are the tensors they were in the last one."""
        if not self._seen and not comm.captures(self.groups):
            self.drop("its collectives are not NCCL's")
        if self.given_up or self.captured is not None or not self.settled():
            return
        same = bool(self._seen) and all(self._seen[i]() is a[i] for i in self.mutated)
        self._still = self._still + 1 if same else 0
        self._seen = [weakref.ref(t) for t in a]

    @property
    def stage(self) -> JointStage:
        return "ready" if self._still >= STILL and self.captured is None and not self.given_up else ""

    def capture(self, inputs: Sequence[Tensor], scalars: Sequence[Scalar], comm: Comm) -> JointStage:
        """Make the graph of a run with these inputs. "refused": it cannot be captured, which is noted."""
        self.drop()
        self.graphs.settle()  # an input still lying in scratch moves now, not after its address was captured
        try:
            self.captured = self._capture(list(inputs), scalars, comm)
        except Exception as e:
            self.drop(f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}")
            return "refused"
        self.stats.captures += 1
        self.stats.copied_inputs = len(self.captured.copied)
        self.graphs.hold(self)
        return "captured"

    def _capture(self, a: list[Tensor], s: Sequence[Scalar], comm: Comm) -> _Captured:
        if self._slots is None:
            self._slots = ScalarSlots(self.sources, self.graphs.device)
        self._slots.fill(s)
        views, body = self._slots.views, self.body(comm)
        fixed = [i in self.mutated or ref() is t for i, (ref, t) in enumerate(zip(self._seen, a, strict=True))]
        inputs = [t if f else torch.empty_like(t) for t, f in zip(a, fixed, strict=True)]
        graph, outputs = self.graphs.capturer.capture(lambda x: body(x, views), inputs)
        where = {id(t): i for i, t in enumerate(inputs)}
        kept = tuple(i if (i := where.get(id(t), -1)) >= 0 and fixed[i] else -1 for t in outputs)
        return _Captured(
            graph,
            [_Fixed(i, t.detach(), weakref.ref(t)) for i, (t, f) in enumerate(zip(inputs, fixed, strict=True)) if f],
            tuple((i, t) for i, (t, f) in enumerate(zip(inputs, fixed, strict=True)) if not f),
            kept,
            tuple((i, t) for i, (k, t) in enumerate(zip(kept, outputs, strict=True)) if k < 0),
        )

    def replay(self, a: list[Tensor], s: Sequence[Scalar]) -> list[Tensor]:
        """Run by the graph, which is there. ``a`` is emptied."""
        captured, slots, graphs = self.captured, self._slots, self.graphs
        assert captured is not None and slots is not None
        if graphs.lent:
            graphs.settle()
        if captured.is_new:  # the run that was captured ran without it, and left its scratch behind
            captured.is_new = False
            graphs.capturer.trim()
        for fixed in captured.fixed:
            if fixed.owner() is not a[fixed.at]:
                self._move_in(fixed, a)
        for i, static in captured.copied:
            static.copy_(a[i], non_blocking=True)
        if s:
            slots.fill(s)
        captured.graph.replay()
        self.stats.replays += 1
        self.program.runs += 1
        self.program.graph_runs += 1
        self.program.in_graph = True
        self.program.compiled_runs += self.program.compiled_pieces > 0
        return graphs.outputs(a, captured.kept, captured.made)

    def _move_in(self, fixed: _Fixed, a: list[Tensor]) -> None:
        """Copy an input to where the graph reads it; a value that is there meanwhile gets memory of its own."""
        self.stats.misses += 1
        self._move_out(fixed)
        fixed.memory.copy_(a[fixed.at], non_blocking=True)
        if fixed.at in self.mutated:  # from here on it is the run's result, which is in the graph's memory
            a[fixed.at] = moved = fixed.memory.detach()
            fixed.owner = weakref.ref(moved)

    def _move_out(self, fixed: _Fixed) -> None:
        """Give a value that is in the graph's memory some of its own."""
        owner, fixed.owner = fixed.owner(), _nobody
        if owner is not None:
            self.graphs.move_out(owner)

    def replay_junk(self) -> None:
        """Take part in the collectives by the graph, on whatever its memory holds; no value is touched."""
        assert self.captured is not None
        self.graphs.settle()
        for fixed in self.captured.fixed:
            if fixed.at in self.mutated:
                self._move_out(fixed)
        self.captured.graph.replay()

    @property
    def idle_nbytes(self) -> int:
        """Memory that is kept for the next replay only: no value is there."""
        fixed = self.captured.fixed if self.captured is not None else ()
        return sum(f.memory.nbytes for f in fixed if f.owner() is None)

    def drop(self, refused: str = "") -> None:
        """Let the graph go, and what it keeps allocated. ``refused``: why there will be no other, if so."""
        self._still = 0
        if self.captured is not None:
            self.captured.graph.reset()
            self.captured = None
            self.graphs.release(self)
        if refused and not self.given_up:
            self.given_up = True
            self.program.notes.append(f"no CUDA graph of the whole program: {refused}")
            self.fall_back()

    def forget_group(self, members: tuple[int, ...]) -> None:
        if members in self.groups:
            self.drop()


def _nobody() -> None:
    return None


__all__ = ["JointUnit"]
