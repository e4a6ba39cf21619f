"""The third tier: a whole program recorded once as one CUDA graph, then replayed with one launch.

A graph reads and writes fixed addresses. An input that comes with the same tensor run after run (parameters, optimizer
state, a batch kept on the device) is read at its own; any other is copied into a static input before the replay.
Run-time scalars sit in a device vector, filled in stream order from one pinned slot per run in flight, so a changed
scalar changes no graph. Outputs that update an input are that input. Other outputs lie in the scratch that all graphs
of a device share: runs are serial there, so the next replay of any graph may overwrite them, and just before it does,
outputs whose handle is still alive are given memory of their own.

Owns: ``GraphUnit`` (one program's, or one piece's, graph), ``Graphs`` (a device's), ``ScalarSlots``.
Must not know: programs, pieces, sockets. Next: ``executor`` (who asks).
"""

from __future__ import annotations

import gc
import logging
import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from gt.ir.types import Scalar
from gt.runtime.graph_memsets import DriverError, replace_memsets
from gt.runtime.render import pack, vector_sizes

Tensor: TypeAlias = torch.Tensor
Vectors: TypeAlias = tuple[Tensor | None, Tensor | None]  # a piece's floats and ints
Body: TypeAlias = Callable[[list[Tensor], list[Vectors]], list[Tensor]]
Sources: TypeAlias = Sequence[tuple[tuple[str, ...], tuple[int, ...]]]  # of each piece: scalars' dtypes, their places

log = logging.getLogger("gt.cuda_graph")
MIN_NODES = 5  # what is shorter is launched as fast as a graph
MAX_CAPTURES = 8  # in a row; a unit whose inputs keep moving runs without a graph after that
PAID_OFF = 32  # replays after which a capture was worth it, and what moved before is forgotten
MAX_SHARE = 0.125  # of the device's memory that static inputs and outputs of all graphs may take
MAX_GRAPHS = 512
SLOTS = 32  # runs in flight whose scalars have a slot of their own
IDLE = 1 << 30  # bytes
LARGE = 64 << 20  # an input this large is copied before each replay only if it keeps moving
FEW, MANY = 1, 5  # moves after which a small, a large or overwritten input is taken to move always

_address, _stride = torch.Tensor.data_ptr, torch.Tensor.stride


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None: ...

    def reset(self) -> None: ...


class Capturer(Protocol):
    """Records work instead of running it."""

    def capture(
        self, body: Callable[[list[Tensor]], list[Tensor]], inputs: Sequence[Tensor]
    ) -> tuple[Graph, list[Tensor]]:
        """Give the graph of what ``body`` does to ``inputs`` and the tensors its outputs will be in."""
        ...

    def renew(self) -> None:
        """Take new scratch for what is captured from here on; no graph is left in the old one."""
        ...

    def trim(self) -> None:
        """Give back what runs without graphs have left idle."""
        ...


class CudaCapturer:
    """Records in one pool of scratch for all graphs of the device: on the calling thread's stream, as libraries keep their workspaces
    by stream (32 MiB of cuBLAS's); on one of its own where that is the default stream, which cannot be recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        current = torch.cuda.current_stream(device)
        self.stream = current if current != torch.cuda.default_stream(device) else torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def capture(
        self, body: Callable[[list[Tensor]], list[Tensor]], inputs: Sequence[Tensor]
    ) -> tuple[Graph, list[Tensor]]:
        graph: Any = torch.cuda.CUDAGraph(keep_graph=True)
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        self.trim()  # what plain runs leave idle cannot serve a capture
        collecting = gc.isenabled()
        gc.disable()  # a finalizer that calls CUDA would end the capture
        try:
            with torch.cuda.stream(self.stream):
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    outputs = body(list(inputs))
                except BaseException:
                    with suppress(RuntimeError):
                        graph.capture_end()
                    self.renew()  # what the broken capture took stays with it
                    raise
                graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        current.wait_stream(self.stream)
        try:
            replace_memsets(graph.raw_cuda_graph())
        except DriverError as e:
            log.info("fills stay memset nodes: %s", e)
        graph.instantiate()
        return graph, outputs

    def renew(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def trim(self) -> None:
        if torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device) > IDLE:
            torch.cuda.empty_cache()


class ScalarSlots:
    """Run-time scalars of one unit on the device: floats in float64, then ints in int64, each piece's side by side."""

    def __init__(self, sources: Sources, device: torch.device) -> None:
        self.sources = sources
        sizes = [vector_sizes(dtypes) for dtypes, _ in sources]
        self.num_floats, self.num_ints = sum(f for f, _ in sizes), sum(i for _, i in sizes)
        total = self.num_floats + self.num_ints
        cuda = device.type == "cuda"
        self.vector = torch.zeros(total, dtype=torch.int64, device=device)
        slots = torch.zeros((SLOTS, total), dtype=torch.int64, pin_memory=cuda)
        self.rows = list(slots)
        words = slots.numpy()
        self.floats, self.ints = words.view(np.float64)[:, : self.num_floats], words[:, self.num_floats :]
        self.views = self._views(sizes)
        self.events = [torch.cuda.Event(), torch.cuda.Event()] if cuda else []
        self.at = 0
        self.last: tuple[Scalar, ...] | None = None

    def _views(self, sizes: Sequence[tuple[int, int]]) -> list[Vectors]:
        f, i, out = 0, self.num_floats, []
        floats = self.vector.view(torch.float64)
        for nf, ni in sizes:
            out.append((floats[f : f + nf] if nf else None, self.vector[i : i + ni] if ni else None))
            f, i = f + nf, i + ni
        return out

    def fill(self, scalars: Sequence[Scalar]) -> None:
        """Have the vector hold these values once the stream gets here."""
        values = tuple(scalars)
        if values == self.last or not self.rows[0].numel():
            return
        self.last = values
        floats: list[float] = []
        ints: list[int] = []
        for dtypes, places in self.sources:
            if places:
                f, i = pack(dtypes, [values[at] for at in places])
                floats += f
                ints += i
        at, half = self.at, SLOTS // 2
        if self.events and at % half == 0:
            self.events[at // half].synchronize()  # what this half was last used for has been copied
        if floats:
            self.floats[at] = floats
        if ints:
            self.ints[at] = ints
        self.vector.copy_(self.rows[at], non_blocking=True)
        if self.events and at % half == half - 1:
            self.events[at // half].record()
        self.at = (at + 1) % SLOTS


@dataclass
class GraphStats:
    """What happened to the graphs of one loaded program."""

    captures: int = 0
    replays: int = 0
    misses: int = 0  # runs without the graph because an input read at its own address had moved
    copied_inputs: int = 0  # inputs that the present graph wants copied before each replay


class Graphs:
    """The graphs of one device: their scratch, the outputs lent from it, and how much memory they may take."""

    def __init__(self, device: torch.device, capturer: Capturer | None = None, budget: int | None = None) -> None:
        self.device = device
        self.capturer = capturer or CudaCapturer(device)
        if budget is None:
            budget = int(torch.cuda.get_device_properties(device).total_memory * MAX_SHARE)
        self.budget = budget
        self.held: OrderedDict[GraphUnit, int] = OrderedDict()  # units with a graph, least recently replayed first
        self.nbytes = 0
        self.joint: set[object] = set()  # holders of graphs that are dropped by all workers together, so not here
        self.lent: list[weakref.ref[Tensor]] = []
        self.moves = 0  # of tensors that a graph may read where they were: none of those lent

    def outputs(self, a: list[Tensor], kept: Sequence[int], made: Iterable[tuple[int, Tensor]]) -> list[Tensor]:
        """Give what a replay leaves, and empty ``a``: output ``i`` is the input ``kept[i]``; one that is ``made`` in scratch is lent,
        which ``settle`` moves out if somebody holds it still.
        """
        found: list[Any] = list(map(a.__getitem__, kept)) if a else [None] * len(kept)
        for i, static in made:
            found[i] = out = static.detach()
            self.lent.append(weakref.ref(out))
        a.clear()
        return found

    def settle(self) -> None:
        """Give every lent output that somebody still holds memory of its own, before a replay overwrites it."""
        for reference in self.lent:
            tensor = reference()
            if tensor is not None:
                _move_out(tensor)
        self.lent.clear()

    def move_out(self, tensor: Tensor) -> None:
        """Give a value that graphs may know memory of its own."""
        self.moves += 1
        _move_out(tensor)

    def admit(self, unit: GraphUnit, nbytes: int) -> None:
        """Count a unit's new graph, and drop those not used for longest beyond the budget."""
        self.held[unit] = nbytes
        self.nbytes += nbytes
        while len(self.held) > 1 and (self.nbytes > self.budget or len(self.held) > MAX_GRAPHS):
            next(iter(self.held)).drop()

    def forget(self, unit: GraphUnit) -> None:
        self.nbytes -= self.held.pop(unit, 0)
        self._renew_if_unused()

    def hold(self, joint: object) -> None:
        """Know of a graph that this process may not drop by itself."""
        self.joint.add(joint)

    def release(self, joint: object) -> None:
        """Hear that it is gone."""
        self.joint.discard(joint)
        self._renew_if_unused()

    def _renew_if_unused(self) -> None:
        if not self.held and not self.joint:  # torch gives a pool that no graph uses back, and refuses it from then on
            self.capturer.renew()

    def reset(self) -> None:
        """Drop all graphs that this process may drop by itself: something that was built into them has changed."""
        for unit in list(self.held):
            unit.drop()


def _move_out(tensor: Tensor) -> None:
    own = tensor.clone()
    tensor.set_(own.untyped_storage(), 0, own.shape, own.stride())


@dataclass(eq=False)
class _Captured:
    """A graph with what it takes and gives. ``kept[i]``: the input that output ``i`` is, -1 where it is one of ``made``."""

    graph: Graph
    strides: tuple[tuple[int, ...], ...]
    fixed: tuple[int, ...]  # inputs read at their own address
    addresses: list[int]
    copied: tuple[tuple[int, Tensor], ...]  # inputs copied into static ones
    kept: tuple[int, ...]
    made: tuple[tuple[int, Tensor], ...]  # outputs in scratch
    seen: list[weakref.ref[Tensor]] = field(default_factory=list)  # the fixed inputs that it was last seen to fit
    moves: int = -1  # those of ``Graphs`` then

    def fits(self, a: Sequence[Tensor], moves: int) -> bool:
        if moves == self.moves and all(map(operator.is_, map(operator.call, self.seen), map(a.__getitem__, self.fixed))):
            return all([_stride(a[i]) == self.strides[i] for i, _ in self.copied])
        if [_address(a[i]) for i in self.fixed] != self.addresses or tuple(map(_stride, a)) != self.strides:
            return False
        self.seen, self.moves = [weakref.ref(a[i]) for i in self.fixed], moves
        return True

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for _, t in (*self.copied, *self.made))


@dataclass(eq=False)
class GraphUnit:
    """What is captured as one: a whole program, or one piece of it.

    ``run`` gives None as long as there is no graph that fits: the caller then runs the unit as it would without.
    """

    graphs: Graphs
    body: Body
    sources: Sources
    note: Callable[[str], None]
    mutated: frozenset[int] = frozenset()  # inputs that the unit overwrites
    after: int = 2  # runs before the first capture
    stats: GraphStats = field(default_factory=GraphStats)
    captured: _Captured | None = None
    given_up: bool = False
    _last: list[weakref.ref[Tensor]] = field(default_factory=list)
    _runs: int = 0
    _replays: int = 0  # of the present graph
    _in_row: int = 0  # captures that did not pay off
    _moves: list[int] = field(default_factory=list)  # how often each input came with another tensor
    _slots: ScalarSlots | None = None

    def run(self, a: list[Tensor], s: Sequence[Scalar]) -> list[Tensor] | None:
        """Run with the graph, capturing it first if it is time; ``a`` is emptied. None: run without, on ``a``."""
        captured = self.captured
        if captured is None or not captured.fits(a, self.graphs.moves):
            captured = self._prepare(a, s)
            if captured is None:
                return None
        return self._replay(captured, a, s)

    def drop(self) -> None:
        """Let the graph go; it may be captured anew."""
        if self.captured is not None:
            self.captured.graph.reset()
            self.captured = None
            self.graphs.forget(self)

    # -- when and how to capture

    def _prepare(self, a: list[Tensor], s: Sequence[Scalar]) -> _Captured | None:
        """Learn from inputs that no graph fits; capture if they have settled."""
        if self.given_up:
            return None
        if self.captured is not None:
            self.stats.misses += 1
            if self._replays >= PAID_OFF:
                self._replays, self._in_row, self._moves = 0, 0, [0] * len(a)
        same = self._observe(a)
        stay = self._must_stay(a)
        limits = [MANY if must else FEW for must in stay]
        if self._runs <= self.after or any(
            must and not still and m <= limit
            for must, still, m, limit in zip(stay, same, self._moves, limits, strict=True)
        ):
            return None
        if self._in_row >= MAX_CAPTURES:
            self._give_up(f"its inputs moved soon after each of {MAX_CAPTURES} captures")
            return None
        self.drop()
        self.graphs.settle()  # an input still lying in scratch moves now, not after its address was captured
        fixed = [still and m <= limit for still, m, limit in zip(same, self._moves, limits, strict=True)]
        try:
            self.captured = captured = self._capture(a, s, fixed)
        except Exception as e:
            self._give_up(f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}")
            return None
        self.stats.captures += 1
        self._in_row += 1
        self._replays = 0
        self.graphs.admit(self, captured.nbytes)
        return captured

    def _observe(self, a: Sequence[Tensor]) -> list[bool]:
        """Say which inputs are the tensors they were when last seen."""
        self._runs += 1
        same = [ref() is t for ref, t in zip(self._last, a, strict=True)] if self._last else [False] * len(a)
        self._last = [weakref.ref(t) for t in a]
        before = self._moves or [-1] * len(a)  # that nothing was seen before is no move
        self._moves = [m + (not s) for m, s in zip(before, same, strict=True)]
        return same

    def _must_stay(self, a: Sequence[Tensor]) -> list[bool]:
        """Say which inputs cost too much to copy before each replay: those overwritten, and large ones."""
        return [i in self.mutated or t.nbytes >= LARGE for i, t in enumerate(a)]

    def _capture(self, a: list[Tensor], s: Sequence[Scalar], fixed: list[bool]) -> _Captured:
        if self._slots is None:
            self._slots = ScalarSlots(self.sources, self.graphs.device)
        self._slots.fill(s)
        inputs = [t if f else torch.empty_like(t) for t, f in zip(a, fixed, strict=True)]
        views = self._slots.views
        graph, outputs = self.graphs.capturer.capture(lambda x: self.body(x, views), inputs)
        where = {id(t): i for i, t in enumerate(inputs)}
        kept = tuple(i if (i := where.get(id(t), -1)) >= 0 and fixed[i] else -1 for t in outputs)
        at = tuple(i for i, f in enumerate(fixed) if f)
        copied = tuple((i, t) for i, (t, f) in enumerate(zip(inputs, fixed, strict=True)) if not f)
        self.stats.copied_inputs = len(copied)
        made = tuple((i, t) for i, (k, t) in enumerate(zip(kept, outputs, strict=True)) if k < 0)
        return _Captured(graph, tuple(map(_stride, a)), at, [_address(a[i]) for i in at], copied, kept, made)

    def _give_up(self, why: str) -> None:
        self.given_up = True
        self.drop()
        self.note(f"no CUDA graph: {why}")

    # -- replaying

    def _replay(self, captured: _Captured, a: list[Tensor], s: Sequence[Scalar]) -> list[Tensor]:
        graphs = self.graphs
        if graphs.lent:
            graphs.settle()
        for i, static in captured.copied:
            static.copy_(a[i], non_blocking=True)
        assert self._slots is not None
        if s:
            self._slots.fill(s)
        captured.graph.replay()
        self.stats.replays += 1
        self._replays += 1
        graphs.held.move_to_end(self)
        return graphs.outputs(a, captured.kept, captured.made)


__all__ = ["Body", "Capturer", "CudaCapturer", "Graph", "GraphStats", "GraphUnit", "Graphs", "ScalarSlots", "Sources"]
