"""Runs programs with torch: the rendered source, straight-line, with pieces swapped for compiled ones as they come.

Owns: ``TorchEngine`` and ``TorchLoaded``: when pieces are compiled and swapped in, and what is captured as one CUDA
graph. Source is rendered here from the op table and never received. Must not know: sockets, epochs.
Next: ``piece`` (one piece's tiers), ``render`` (the source), ``compiler``, ``cuda_graph``.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from gt.ir.graph import Location
from gt.ir.program import Collective, Program
from gt.ir.types import DType, Scalar
from gt.ir.wording import amount
from gt.runtime.compiler import CompileError, Compiler
from gt.runtime.cuda_graph import MIN_NODES, Body, Graphs, GraphUnit, Sources, Vectors
from gt.runtime.device_clock import DeviceClock
from gt.runtime.engine import Clock, Comm, ExecutionError, LoadedStats, Tier, reason_of, wire_dtype
from gt.runtime.errors import Fault, GtError
from gt.runtime.joint_graph import JointUnit
from gt.runtime.layout import Stretch, lay_out
from gt.runtime.piece import TorchPiece, failed_at
from gt.runtime.render import build, render_driver
from gt.runtime.salvage import Salvaged
from gt.runtime.tiers import AS_IN_GRAPH, EAGER
from gt.runtime.torch_salvage import Left, left_of, salvage_run

Tensor: TypeAlias = torch.Tensor

GPU_COMPILE_AFTER = 10  # runs; a child compiles and replays need no CPU, so there is no reason to wait for more
MUCH = 1 << 30  # bytes
SWITCH_S = 2e-4
STAGED = 1 << 16  # bytes that the driver copies aside at once, whatever memory they are in

engines: weakref.WeakSet[TorchEngine] = weakref.WeakSet()  # of this process
_thread = threading.local()  # holds the mode a thread was put in, for as long as the thread lives


class TorchLoaded:
    """A program on one worker. A program without collectives is one piece; else a driver calls its pieces in order.

    ``runner`` runs it at the tier reached; what it calls changes only between runs.
    """

    def __init__(self, program: Program, engine: TorchEngine) -> None:
        self.program, self.engine = program, engine
        self.stats = LoadedStats()
        self.table = [Location(*entry) for entry in program.locations]
        self.undoes = engine.device.type == "cpu" and program.refuses
        layout = lay_out(program, cut_repeats=engine.graphs is not None, undo=self.undoes)
        self.parts = [
            TorchPiece(part, engine, self.stats, self.table) if isinstance(part, Stretch) else part
            for part in layout.parts
        ]
        self.pieces = [part for part in self.parts if isinstance(part, TorchPiece)]
        self.stats.pieces, self.stats.marked = len(self.pieces), sum(p.stretch.compile for p in self.pieces)
        if layout.is_single:
            self.driver: Callable[..., list[Tensor]] | None = None
            self.runner = self._single()
        else:
            self.driver_source = render_driver(layout)
            names: dict[str, Any] = {f"region{i}": p.run for i, p in enumerate(self.parts) if isinstance(p, TorchPiece)}
            names |= {f"step{i}": p for i, p in enumerate(self.parts) if isinstance(p, Collective)}
            self.runner = self.driver = build(self.driver_source, **names)
        self.unit = self._program_unit()
        self.joint = self._joint_unit()
        self._at: str | None = None  # the tiers that runs are given
        self._tiers = self._tiers_in_graph = ""
        self._pieces_alone = False  # pieces have graphs of their own
        self._counted = -1  # pieces that were compiled when these were made
        self._seconds = 0.0
        self._started = 0.0
        self._plain_until = 0  # runs before this one are without the program's graph, so that pieces can be seen to
        self._arrived = False  # set by the compiler's thread: a piece has something to receive
        self._stages: Iterator[int] = iter(())
        self._edge_at = -1  # the number of runs at which the next stage may be due
        worth = engine.graphs is None or sum(len(p.piece.nodes) for p in self.pieces) >= MIN_NODES
        self._climbs = engine.compile_after > 0 and worth
        if self._climbs:
            self._stages, self._edge_at = self._climb(), 0

    def _single(self) -> Callable[..., list[Tensor]]:
        (piece,) = self.pieces
        places = piece.stretch.scalars
        if places == tuple(range(len(self.program.scalars))):
            return lambda inputs, scalars, comm: piece.call(inputs, scalars)
        return lambda inputs, scalars, comm: piece.call(inputs, tuple(scalars[at] for at in places))

    def _program_unit(self) -> GraphUnit | None:
        """Give the unit that captures the whole program, if it has no collectives."""
        graphs = self.engine.graphs
        if graphs is None or len(self.pieces) < len(self.parts) or sum(len(p.piece.nodes) for p in self.pieces) < MIN_NODES:
            return None
        unit = GraphUnit(graphs, self._body()(None), self._sources, self.stats.notes.append, self._mutated)
        weakref.finalize(self, unit.drop).atexit = False
        return unit

    def _joint_unit(self) -> JointUnit | None:
        """Give the unit that captures it with its collectives. Where that cannot be, pieces are captured alone."""
        graphs, pieces = self.engine.graphs, self.pieces
        if graphs is None or len(pieces) == len(self.parts):
            return None
        groups = frozenset(step.group for step in self.program.collectives)
        climbs, here = self.engine.compile_after > 0, weakref.ref(self)

        def settled() -> bool:
            return not climbs or all(p.settled and not (p.is_compiled and p.waits_for_others) for p in pieces)

        def fall_back() -> None:
            loaded = here()
            if loaded is not None:
                loaded._capture_pieces(graphs)

        unit = JointUnit(graphs, self._sources, groups, self._body(), settled, self.stats, fall_back, self._mutated)
        weakref.finalize(self, unit.drop).atexit = False
        return unit

    def _capture_pieces(self, graphs: Graphs) -> None:
        self._pieces_alone = True
        for piece in self.pieces:
            if len(piece.piece.nodes) >= MIN_NODES:
                own = [(piece.piece.scalars, tuple(range(len(piece.piece.scalars))))]
                piece.unit = GraphUnit(graphs, _piece_body(piece), own, self.stats.notes.append, piece.mutated)
                weakref.finalize(self, piece.unit.drop).atexit = False

    @property
    def _sources(self) -> Sources:
        return [(p.piece.scalars, p.stretch.scalars) for p in self.pieces]

    @property
    def _mutated(self) -> frozenset[int]:
        slots = [slot for _, slot in self.program.inputs]
        return frozenset(i for i, slot in enumerate(slots) if slot in self.program.donated)

    def _body(self) -> Callable[[Comm | None], Body]:
        """Give what a graph of the whole program records, given who runs its collectives. It keeps pieces alive, not the program."""
        pieces, precision = self.pieces, self.program.float32_matmul
        numbers = range(len(self.program.scalars))  # the driver hands them on; the pieces read the vectors
        now: list[Vectors] = []
        names: dict[str, Any] = {f"step{i}": part for i, part in enumerate(self.parts) if isinstance(part, Collective)}
        at = [i for i, part in enumerate(self.parts) if isinstance(part, TorchPiece)]
        names |= {f"region{i}": _region(piece, now, n) for n, (i, piece) in enumerate(zip(at, pieces, strict=True))}
        driver = None if self.driver is None else build(self.driver_source, **names)

        def with_comm(comm: Comm | None) -> Body:
            def body(a: list[Tensor], vectors: list[Vectors]) -> list[Tensor]:
                torch.set_float32_matmul_precision(precision)
                if driver is None:
                    return pieces[0].run_vectors(a, vectors[0])
                now[:] = vectors
                outputs: list[Tensor] = driver(a, numbers, comm)
                if comm is not None:
                    comm.finish()  # what was sent is over where the graph is
                return outputs

            return body

        return with_comm

    @property
    def tier(self) -> Tier:
        unit = self.unit or self.joint
        if unit is not None and unit.captured is not None:
            return "graph"
        return "compiled" if self.stats.compiled_pieces else "eager"

    @property
    def tiers(self) -> str:
        if self.stats.in_graph:
            return self._tiers_in_graph
        if self._pieces_alone and any(piece.in_graph for piece in self.pieces):
            return "".join(AS_IN_GRAPH if p.in_graph and p.tier == EAGER else p.tier for p in self.pieces)
        return self._tiers

    def run(
        self, inputs: list[Tensor], scalars: Sequence[Scalar], comm: Comm | None = None, tiers: str | None = None
    ) -> list[Tensor]:
        if not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.run(inputs, scalars, comm, tiers)
        if torch.get_float32_matmul_precision() != self.program.float32_matmul:
            torch.set_float32_matmul_precision(self.program.float32_matmul)
        stats = self.stats
        if tiers != self._at:
            self._pin(tiers)
        if tiers is None and (self._arrived or stats.runs >= self._edge_at >= 0):
            self._edge()
        if stats.compiled_pieces != self._counted:
            self._count_tiers()
        start = time.perf_counter()
        try:
            outputs = None
            if self.unit is not None and tiers is None and stats.runs >= self._plain_until:
                outputs = self.unit.run(inputs, scalars)
            stats.in_graph = outputs is not None
            if outputs is None:
                if self.joint is not None and comm is not None and tiers is None:
                    self.joint.observe(inputs, comm)
                outputs = self.runner(inputs, scalars, comm)
            else:
                stats.graph_runs += 1
        except Exception as e:
            raise self._explain(e) from e
        self._seconds += time.perf_counter() - start
        stats.runs += 1
        if tiers is not None and stats.compiled_pieces != self._counted:
            self._count_tiers()  # the run waited for what was to be compiled in it
        if stats.compiled_pieces:
            stats.compiled_runs += 1
        return outputs

    @property
    def swappable(self) -> tuple[int, ...] | None:
        if self._climbs and not all(piece.settled for piece in self.pieces):
            return None
        return tuple(i for i, piece in enumerate(self.pieces) if piece.is_compiled)

    @property
    def uncompiled(self) -> str:
        engine, untried = self.engine, [piece for piece in self.pieces if not piece.settled]
        if not untried:
            waits = any(piece.is_compiled and piece.waits_for_others for piece in self.pieces)
            return "compiled here: all its workers run that once each of them has it" if waits else ""
        if any(piece.future is not None for piece in untried):
            there = all(piece.future is None or piece.future.done() for piece in untried)
            return f"not compiled yet: {'its next runs check and take what has been compiled' if there else 'compiling is under way'}"
        if any(piece.stretch.compile for piece in untried):
            return "not compiled yet: its first run compiles it, as a signal asks for"
        if engine.compile_after <= 0:
            return "not compiled: GT_COMPILE_AFTER is 0; greater, or a signal with compile: true, has it compiled"
        if not self._climbs:
            return f"not compiled: fewer than {MIN_NODES} ops gain nothing by it; a signal with compile: true has them compiled"
        return (
            f"not compiled yet: that begins after {amount(engine.compile_after, 'run')} which took {engine.compile_after_s:g} s in all "
            "(GT_COMPILE_AFTER), or at once in a signal with compile: true"
        )

    def swap(self, compiled: Collection[int]) -> None:
        for i, piece in enumerate(self.pieces):
            piece.swap(i in compiled)
        self._counted = -1

    def _pin(self, tiers: str | None) -> None:
        """Have runs at given tiers, or, for None, go on as before them."""
        self._at, self._counted = tiers, -1
        for i, piece in enumerate(self.pieces):
            if tiers is None:
                piece.unpin()
            else:
                piece.pin(tiers[i : i + 1])

    def _count_tiers(self) -> None:
        self._counted = self.stats.compiled_pieces
        tiers = "".join([piece.tier for piece in self.pieces])
        self._tiers = "" if tiers.count(EAGER) == len(tiers) else tiers
        self._tiers_in_graph = tiers.replace(EAGER, AS_IN_GRAPH)

    def salvage(
        self, error: Exception | None, inputs: Sequence[Tensor | None], scalars: Sequence[Scalar], causes: Mapping[int, Fault]
    ) -> Salvaged | None:
        slots = [slot for _, slot in self.program.inputs]
        given = {slot: t for slot, t in zip(slots, inputs, strict=False) if t is not None}
        left = Left(0, given) if error is None else left_of(error, self.program, self.driver, self.pieces)
        if left is None:
            return None
        left.values.update({slot: t for slot, t in given.items() if slot not in left.overwritten})
        return salvage_run(self.program, left, scalars, {slots[i]: cause for i, cause in causes.items()}, self.engine.device)

    # -- tiers

    def _edge(self) -> None:
        """Between two runs: take what has been compiled, and go on climbing."""
        if self._arrived:
            self._arrived = False
            self._receive()
        if self.stats.runs >= self._edge_at >= 0:
            self._edge_at = next(self._stages, -1)

    def _receive(self) -> None:
        """Take compiled pieces. A program with a graph takes them all together, checks, and is recaptured."""
        if self.unit is not None:
            if any(p.future is not None and not p.future.done() for p in self.pieces):
                return  # the last of them calls again
            self._plain_until = self.stats.runs + 1
            if self.program.peak_nbytes > MUCH:
                self.unit.graphs.reset()  # all of them, so that the scratch can shrink to what compiled code needs
            self.unit.drop()
        for piece in self.pieces:
            piece.receive()

    def _climb(self) -> Iterator[int]:
        """The way to the compiled tier; each stage gives the number of runs at which the next is due."""
        self._started = time.perf_counter()
        yield from self._request(cached_only=True)  # what an earlier process compiled is loaded at once
        after = max(self.engine.compile_after, self.stats.runs + 1)
        while True:
            yield after
            # on a GPU what a run takes here is its launching, so the time since the first run counts
            seconds = self._seconds if self.engine.graphs is None else time.perf_counter() - self._started
            if seconds >= self.engine.compile_after_s:
                break
            after = self.stats.runs + max(1, self.stats.runs // 4)
        yield from self._request(cached_only=False)

    def _request(self, cached_only: bool) -> Iterator[int]:
        for piece in self.pieces:
            piece.record()
        self._plain_until = self.stats.runs + 1
        yield self.stats.runs + 1
        arrived = partial(_arrive, weakref.ref(self))
        for piece in sorted(self.pieces, key=_size, reverse=True):  # the longest compile decides when all are there
            piece.request(cached_only, arrived)

    # -- errors

    def _explain(self, error: Exception) -> Exception:
        """Give the error with the op and the user's line, found from the line of source it passed through."""
        if isinstance(error, GtError):
            return error
        for piece in self.pieces:
            found = piece.explain(error)
            if found is not None:
                return found
        failed = failed_at(self.driver, error.__traceback__) if self.driver else None
        at = self.driver_source.nodes[failed.tb_lineno - 1] if failed else -1
        part = self.parts[at] if at >= 0 else None
        if isinstance(part, Collective):
            return ExecutionError(part.kind, self.table[part.loc] if part.loc >= 0 else None, reason_of(error))
        return ExecutionError(self.program.name or "program", None, reason_of(error))


def _arrive(loaded: weakref.ref[TorchLoaded], _: object) -> None:
    """Tell a program, if there still is one, that something was compiled; called by the compiler's threads."""
    program = loaded()
    if program is not None:
        program._arrived = True


def _size(piece: TorchPiece) -> int:
    return sum(len(node.inputs) + len(node.outputs) for node in piece.piece.nodes)


def _piece_body(piece: TorchPiece) -> Body:
    return lambda a, vectors: piece.run_vectors(a, vectors[0])


def _region(piece: TorchPiece, now: list[Vectors], at: int) -> Callable[..., list[Tensor]]:
    return lambda a, _: piece.run_vectors(a, now[at])


class TorchEngine:
    """Runs programs on one torch device.

    ``compile_after``: a program run this often, and for ``compile_after_s`` in all, is compiled in the background; 0:
    only what a signal marks ``compile: true`` is, and no run differs from the first. ``cache_dir``: where compiled pieces are kept.
    ``graphs``: where CUDA graphs are captured; on a GPU made when the thread starts, and compiling begins sooner there: replays cost
    no CPU.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        compile_after: int = 200,
        compile_after_s: float = 2.0,
        cache_dir: Path | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.graphs = graphs
        self.clock: Clock | None = None
        if self.device.type == "cuda":
            compile_after, compile_after_s = min(compile_after, GPU_COMPILE_AFTER), min(compile_after_s, 0.5)
        self.compile_after, self.compile_after_s, self.cache_dir = compile_after, compile_after_s, cache_dir
        self._compiler: Compiler | None = None
        self._loaded: weakref.WeakSet[TorchLoaded] = weakref.WeakSet()
        engines.add(self)

    @property
    def programs(self) -> tuple[TorchLoaded, ...]:
        """Give what is loaded, for statistics."""
        return tuple(self._loaded)

    def compiler(self) -> Compiler:
        if self._compiler is None:
            self._compiler = Compiler(self.device, self.cache_dir)
        return self._compiler

    def start_thread(self) -> None:
        """Prepare the calling thread to run programs. Without it, each run enters inference mode anew."""
        if not torch.is_inference_mode_enabled():
            _thread.mode = torch.inference_mode()  # no autograd bookkeeping: a fifth off a small op's cost
            _thread.mode.__enter__()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.cuda.set_stream(torch.cuda.Stream(self.device))  # on which graphs are captured, too
            # Embedded, a recording thread shares the interpreter: coming back from a launch must not cost 5 ms.
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
            if self.compile_after > 0:
                self.graphs = self.graphs or Graphs(self.device)
            self.clock = DeviceClock(lambda: torch.cuda.Event(enable_timing=True, blocking=True))

    def load(self, program: Program) -> TorchLoaded:
        loaded = TorchLoaded(program, self)
        self._loaded.add(loaded)
        if self.graphs is not None and self.compile_after > 0 and len(loaded.pieces) > 1:
            with suppress(CompileError):  # a large program: it will be compiled if it runs a few times
                self.compiler().warm()
        return loaded

    def from_host(self, array: np.ndarray, dtype: DType) -> Tensor:
        assert array.dtype == wire_dtype(dtype), f"{array.dtype} is not the wire form of {dtype}"
        flags = array.flags
        if not (flags.c_contiguous and flags.writeable and flags.aligned):
            array = np.array(array, order="C")
        host = torch.from_numpy(array.view(np.int16) if dtype.name == "bfloat16" else array)
        if self.device.type == "cuda":
            # A copy from pinned memory waits for nothing; small ones the driver stages itself.
            host = host.pin_memory() if host.nbytes > STAGED else host
            host = host.to(self.device, non_blocking=True)
        return host.view(torch.bfloat16) if dtype.name == "bfloat16" else host

    def from_shared(self, array: np.ndarray, dtype: DType) -> Tensor:
        if self.device.type != "cuda":
            return self.from_host(np.array(array), dtype)
        array = array.view()
        array.flags.writeable = True  # nothing writes to it: it is copied to pinned memory, or by the driver, before this returns
        return self.from_host(array, dtype)

    def to_host(self, value: Tensor, dtype: DType, out: np.ndarray | None = None) -> np.ndarray:
        assert str(value.dtype) == f"torch.{dtype.name}", f"expected {dtype}, the value is {value.dtype}"
        value = value.detach()
        value = value.view(torch.int16) if dtype.name == "bfloat16" else value
        if out is None:
            out = np.empty(tuple(value.shape), wire_dtype(dtype))
        words = out.view(np.int16) if dtype.name == "bfloat16" else out
        if value.device.type == "cpu":
            np.copyto(words, value.resolve_conj().resolve_neg().numpy())  # which copies faster than torch does
        else:
            torch.from_numpy(words).copy_(value)
        return out

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        if self.graphs is not None:
            self.graphs.reset()
        if self._compiler is not None:
            self._compiler.close()


__all__ = ["TorchEngine", "TorchLoaded", "TorchPiece"]
