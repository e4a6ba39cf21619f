"""Runs programs with torch: the rendered source, straight-line, with pieces swapped for compiled ones as they come.

Owns: ``TorchEngine``, the eager tier, and when a piece is compiled, checked and swapped in. The one place that executes
text, which is rendered here from the op table and never received.
Must not know: sockets, epochs. Next: ``render`` (the source), ``compiler`` (the compiled tier).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import torch

from gt.ir.graph import Location
from gt.ir.program import Collective, Program
from gt.ir.types import DType, Scalar
from gt.runtime import kernels
from gt.runtime.compiler import Compiled, CompileError, Compiler, InputSpec, spec_of
from gt.runtime.engine import Comm, ExecutionError, LoadedStats, Tier, wire_dtype
from gt.runtime.errors import GtError
from gt.runtime.layout import Stretch, lay_out
from gt.runtime.render import build, pack, render_driver, render_piece

Tensor: TypeAlias = torch.Tensor
PieceFn: TypeAlias = Callable[[list[Tensor], tuple[Scalar, ...]], list[Tensor]]

_thread = threading.local()  # holds the mode a thread was put in, for as long as the thread lives


def failed_line(function: Callable[..., Any], traceback: TracebackType | None) -> int:
    """Give the line of ``function``'s source that the error passed through, from 1; 0 if none."""
    line = 0
    while traceback is not None:
        if traceback.tb_frame.f_code is function.__code__:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


class TorchPiece:
    """One piece at the tier it has reached. ``call`` is what runs it; it changes only between runs of the program."""

    def __init__(self, stretch: Stretch, engine: TorchEngine, stats: LoadedStats, table: Sequence[Location]) -> None:
        self.stretch, self.engine, self.stats, self.table = stretch, engine, stats, table
        self.piece = stretch.piece
        self.source = render_piece(self.piece, "eager")
        self.eager: PieceFn = build(self.source, torch=torch, kernels=kernels, device=engine.device)
        self.call: PieceFn = self.compile_now if stretch.compile else self.eager
        self.specs: tuple[InputSpec, ...] | None = None
        self.future: Future[Compiled] | None = None
        self.compiled: Compiled | None = None
        self.settled = False  # compiled, or never to be
        self.mutated = self.piece.mutated()

    def run(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        """Run at the tier reached; what a driver calls."""
        return self.call(a, s)

    # -- climbing to the compiled tier, one step at a run's edge

    def record(self) -> None:
        """Note the inputs' layouts during the next run."""
        if self.call == self.eager and not self.settled:
            self.call = self._record

    def _note(self, a: Sequence[Tensor]) -> None:
        self.call = self.eager
        self.specs = tuple(spec_of(t) for t in a)
        if self._overlaps(a):
            self.give_up("an input that is overwritten shares memory with another input")

    def _record(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        self._note(a)
        return self.eager(a, s)

    def _overlaps(self, a: Sequence[Tensor]) -> bool:
        storage = [t.untyped_storage().data_ptr() for t in a]
        return any(storage.count(storage[i]) > 1 for i in self.mutated)

    def request(self, cached_only: bool, ready: Callable[[Any], object]) -> None:
        """Ask for the compiled piece; ``ready`` is called from another thread once it is there or has failed."""
        if self.settled or self.specs is None or self.future is not None:
            return
        try:
            compiler = self.engine.compiler()
        except CompileError as e:
            self.give_up(str(e))
            return
        if cached_only and not compiler.is_cached(self.piece, self.specs):
            return
        self.future = compiler.submit(self.piece, self.specs)
        self.future.add_done_callback(ready)

    def receive(self) -> None:
        """Take what ``request`` brought, to be checked by the next run."""
        if self.future is None or not self.future.done() or self.settled or self.compiled is not None:
            return
        try:
            self.compiled = self.future.result()
        except CompileError as e:
            self.give_up(str(e))
        else:
            self.stats.compile_s += self.compiled.seconds
            self.call = self._check

    def compile_now(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        """Compile for these inputs, wait, check, run."""
        self._note(a)
        self.request(cached_only=False, ready=lambda _: None)
        if self.future is not None:
            wait((self.future,))
            self.receive()
        return self.call(a, s)

    def give_up(self, why: str) -> None:
        self.settled, self.call, self.compiled = True, self.eager, None
        self.stats.notes.append(f"piece of {len(self.piece.nodes)} ops stays eager: {why}")

    def _check(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        """Run both tiers once, the compiled one on copies of what it overwrites, and keep it if they agree."""
        if not self._fits(a):
            self.stats.strided_fallbacks += 1
            return self.eager(a, s)
        try:
            copies = [_copy(t) if i in self.mutated else t for i, t in enumerate(a)]
            got = self._compiled_outputs(copies, s)
        except Exception as e:
            self.give_up(f"the compiled code failed: {type(e).__name__}: {e}")
            return self.eager(a, s)
        expected = self.eager(a, s)
        worst = next((w for e, g in zip(expected, got, strict=True) if (w := disagreement(e, g))), None)
        if worst:
            self.give_up(f"compiled and eager results differ: {worst}")
        else:
            self.settled, self.call = True, self._run_compiled
            self.stats.compiled_pieces += 1
        return expected

    def _fits(self, a: Sequence[Tensor]) -> bool:
        assert self.compiled is not None
        return tuple(map(torch.Tensor.stride, a)) == self.compiled.strides

    def _run_compiled(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        if not self._fits(a):
            self.stats.strided_fallbacks += 1
            return self.eager(a, s)
        return self._compiled_outputs(a, s)

    def _compiled_outputs(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        compiled = self.compiled
        assert compiled is not None
        floats, ints = pack(self.piece.scalars, s) if s else ((), ())
        args = a.copy()
        if floats:
            args.append(torch.tensor(floats, dtype=torch.float64, device=self.engine.device))
        if ints:
            args.append(torch.tensor(ints, dtype=torch.int64, device=self.engine.device))
        kept = compiled.kept
        updated = {i: a[k] for i, k in enumerate(kept) if k >= 0}
        a.clear()
        new = iter(compiled.function(args))
        return [updated[i] if k >= 0 else next(new) for i, k in enumerate(kept)]

    # -- errors

    def explain(self, error: Exception) -> ExecutionError | None:
        """Name the node an error passed through, or None if it was not in this piece."""
        line = failed_line(self.eager, error.__traceback__)
        index = self.source.nodes[line - 1] if line else -1
        if index < 0:
            return None
        loc = self.stretch.locations[index]
        return ExecutionError(self.piece.nodes[index].op, self.table[loc] if loc >= 0 else None, _reason(error))


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text if isinstance(error, RuntimeError) and text else f"{type(error).__name__}: {text}"


def _copy(t: Tensor) -> Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)


_TOLERANCE = {
    torch.float64: 1e-9, torch.float32: 2e-4, torch.complex64: 2e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2,
}  # fmt: skip


def disagreement(expected: Tensor, got: Tensor) -> str:
    """Say how two tiers' results differ beyond rounding, or give "". Floats by the value's own scale; whole numbers may
    differ in one element of a thousand, where a rounding decides a comparison or an argmax."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"{expected.dtype}{list(expected.shape)} and {got.dtype}{list(got.shape)}"
    if not expected.numel():
        return ""
    if not (expected.is_floating_point() or expected.is_complex()):
        wrong = int((expected != got).sum())
        return f"{wrong} of {expected.numel()} elements" if wrong > expected.numel() / 1000 else ""
    tolerance = _TOLERANCE[expected.dtype]
    finite = torch.isfinite(expected)
    scale = float(expected[finite].abs().max()) if bool(finite.any()) else 0.0
    if torch.allclose(expected, got, rtol=tolerance, atol=tolerance * max(scale, 1e-6), equal_nan=True):
        return ""
    error = float((expected - got)[finite].abs().nan_to_num(float("inf")).max()) if scale else float("nan")
    return f"{expected.dtype}{list(expected.shape)}, largest difference {error:.3g} at a scale of {scale:.3g}"


class TorchLoaded:
    """A program on one worker. A program without collectives is one piece; else a driver calls its pieces in order.

    ``runner`` runs it at the tier reached; what it calls changes only between runs.
    """

    def __init__(self, program: Program, engine: TorchEngine) -> None:
        self.program, self.engine = program, engine
        self.stats = LoadedStats()
        self.table = [Location(*entry) for entry in program.locations]
        layout = lay_out(program)
        self.parts = [
            TorchPiece(part, engine, self.stats, self.table) if isinstance(part, Stretch) else part
            for part in layout.parts
        ]
        self.pieces = [part for part in self.parts if isinstance(part, TorchPiece)]
        self.stats.pieces = len(self.pieces)
        if layout.is_single:
            self.driver: Callable[..., list[Tensor]] | None = None
            self.runner = self._single()
        else:
            self.driver_source = render_driver(layout)
            names: dict[str, Any] = {f"region{i}": p.run for i, p in enumerate(self.parts) if isinstance(p, TorchPiece)}
            names |= {f"step{i}": p for i, p in enumerate(self.parts) if isinstance(p, Collective)}
            self.runner = self.driver = build(self.driver_source, **names)
        self._seconds = 0.0
        self._stages = self._climb() if engine.compile_after > 0 else iter(())
        self._edge_at = 0 if engine.compile_after > 0 else -1  # the number of runs at which the next stage may be due
        self._arrived = False  # set by the compiler's thread: a piece has something to receive

    def _single(self) -> Callable[..., list[Tensor]]:
        (piece,) = self.pieces
        places = piece.stretch.scalars
        if places == tuple(range(len(self.program.scalars))):
            return lambda inputs, scalars, comm: piece.call(inputs, scalars)
        return lambda inputs, scalars, comm: piece.call(inputs, tuple(scalars[at] for at in places))

    @property
    def tier(self) -> Tier:
        return "compiled" if self.stats.compiled_pieces else "eager"

    def run(self, inputs: list[Tensor], scalars: Sequence[Scalar], comm: Comm | None = None) -> list[Tensor]:
        if not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.run(inputs, scalars, comm)
        stats = self.stats
        if self._arrived or stats.runs == self._edge_at:
            self._edge()
        start = time.perf_counter()
        try:
            outputs = self.runner(inputs, scalars, comm)
        except Exception as e:
            raise self._explain(e) from e
        self._seconds += time.perf_counter() - start
        stats.runs += 1
        if stats.compiled_pieces:
            stats.compiled_runs += 1
        return outputs

    # -- tiers

    def _edge(self) -> None:
        """Between two runs: take what has been compiled, and go on climbing."""
        if self._arrived:
            self._arrived = False
            for piece in self.pieces:
                piece.receive()
        if self.stats.runs == self._edge_at:
            self._edge_at = next(self._stages, -1)

    def _climb(self) -> Iterator[int]:
        """The way to the compiled tier; each stage gives the number of runs at which the next is due."""
        yield from self._request(cached_only=True)  # what an earlier process compiled is loaded at once
        after = max(self.engine.compile_after, self.stats.runs + 1)
        while True:
            yield after
            if self._seconds >= self.engine.compile_after_s:
                break
            after = self.stats.runs + max(1, self.stats.runs // 4)
        yield from self._request(cached_only=False)

    def _request(self, cached_only: bool) -> Iterator[int]:
        for piece in self.pieces:
            piece.record()
        yield self.stats.runs + 1
        for piece in self.pieces:
            piece.request(cached_only, self._notify)

    def _notify(self, _: object) -> None:
        self._arrived = True

    # -- errors

    def _explain(self, error: Exception) -> Exception:
        """Give the error with the op and the user's line, found from the line of source it passed through."""
        if isinstance(error, GtError):
            return error
        for piece in self.pieces:
            found = piece.explain(error)
            if found is not None:
                return found
        line = failed_line(self.driver, error.__traceback__) if self.driver else 0
        at = self.driver_source.nodes[line - 1] if line else -1
        part = self.parts[at] if at >= 0 else None
        if isinstance(part, Collective):
            return ExecutionError(part.kind, self.table[part.loc] if part.loc >= 0 else None, _reason(error))
        return ExecutionError(self.program.name or "program", None, _reason(error))


class TorchEngine:
    """Runs programs on one torch device.

    ``compile_after``: a program run this often, and for ``compile_after_s`` in all, is compiled in the background; 0:
    only what a signal marks ``compile: true`` is. ``cache_dir``: where compiled pieces are kept.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        compile_after: int = 200,
        compile_after_s: float = 2.0,
        cache_dir: Path | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.compile_after, self.compile_after_s, self.cache_dir = compile_after, compile_after_s, cache_dir
        self._compiler: Compiler | None = None

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

    def load(self, program: Program) -> TorchLoaded:
        return TorchLoaded(program, self)

    def from_host(self, array: np.ndarray, dtype: DType) -> Tensor:
        assert array.dtype == wire_dtype(dtype), f"{array.dtype} is not the wire form of {dtype}"
        flags = array.flags
        if not (flags.c_contiguous and flags.writeable and flags.aligned):
            array = np.array(array, order="C")
        if dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(self.device)
        return torch.from_numpy(array).to(self.device)

    def to_host(self, value: Tensor, dtype: DType) -> np.ndarray:
        assert str(value.dtype) == f"torch.{dtype.name}", f"expected {dtype}, the value is {value.dtype}"
        host = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
        return host.view(torch.int16).numpy().view(np.uint16) if dtype.name == "bfloat16" else host.numpy()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.close()


__all__ = ["TorchEngine", "TorchLoaded", "TorchPiece", "disagreement"]
