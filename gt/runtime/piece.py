"""One piece of a program in torch, at the tier it has reached: eager, or compiled elsewhere, checked and swapped in.

Owns: ``TorchPiece``. Must not know: programs, when a piece is hot. Next: ``executor`` (who decides that), ``compiler`` (where
compiled code comes from), ``agreement`` (when two tiers' results are the same).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gt.ir.graph import Location
from gt.ir.types import Scalar
from gt.ir.wording import amount
from gt.runtime import kernels
from gt.runtime.agreement import apart, disagreement, nudged
from gt.runtime.compiler import Compiled, CompileError, InputSpec, spec_of
from gt.runtime.cuda_graph import GraphUnit, Vectors
from gt.runtime.engine import ExecutionError, LoadedStats, given_types, reason_of
from gt.runtime.layout import Stretch
from gt.runtime.render import build, pack, render_piece
from gt.runtime.tiers import AS_IN_GRAPH, COMPILED, EAGER

if TYPE_CHECKING:
    from gt.runtime.executor import TorchEngine

Tensor: TypeAlias = torch.Tensor
PieceFn: TypeAlias = Callable[[list[Tensor], tuple[Scalar, ...]], list[Tensor]]


def failed_at(function: Callable[..., Any], traceback: TracebackType | None) -> TracebackType | None:
    """Give where an error passed through ``function``, whose lines count from 1; None if it did not."""
    found = None
    while traceback is not None:
        if traceback.tb_frame.f_code is function.__code__:
            found = traceback
        traceback = traceback.tb_next
    return found


class TorchPiece:
    """One piece at the tier it has reached. ``call`` is what runs it; it changes only between runs of the program."""

    def __init__(self, stretch: Stretch, engine: TorchEngine, stats: LoadedStats, table: Sequence[Location]) -> None:
        self.stretch, self.engine, self.stats, self.table = stretch, engine, stats, table
        self.piece = stretch.piece
        self.source = render_piece(self.piece, "eager")
        self.eager: PieceFn = build(self.source, torch=torch, kernels=kernels, device=engine.device)
        self.plain: PieceFn = self.eager  # what runs it uncompiled
        self.call: PieceFn = self.compile_now if stretch.compile else self.plain
        self.specs: tuple[InputSpec, ...] | None = None
        self.future: Future[Compiled] | None = None
        self.compiled: Compiled | None = None
        self.settled = False  # compiled, or never to be
        self.mutated, self.kept = self.piece.mutated(), self.piece.kept()
        self.halves = any(t.dtype in ("float16", "bfloat16") for node in self.piece.nodes for t in node.types)
        self.unit: GraphUnit | None = None  # where the program with its collectives cannot be one graph
        self.in_graph = False  # the last run was that graph's
        self.released = False  # runs compiled code as other workers do
        self._before_pin: PieceFn | None = None  # what ran it before runs at a given tier
        self._vector_form: Callable[..., list[Tensor]] | None = None
        self._vector_source = self.source

    def run(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        """Run at the tier reached; what a driver calls."""
        if self.unit is not None and self._before_pin is None and self.call in (self.plain, self._run_compiled):
            outputs = self.unit.run(a, s)
            self.in_graph = outputs is not None
            if outputs is not None:
                return outputs
        return self.call(a, s)

    def run_vectors(self, a: list[Tensor], vectors: Vectors) -> list[Tensor]:
        """Run with scalars on the device, so that a CUDA graph can be made of it; compiled if it is."""
        if self.call == self._run_compiled and self._fits(a):
            return self._compiled_outputs(a, vectors)
        return self._eager_outputs(a, vectors)

    def _eager_outputs(self, a: list[Tensor], vectors: Vectors) -> list[Tensor]:
        if self._vector_form is None:
            self._vector_source = render_piece(self.piece, "compiled")
            self._vector_form = build(self._vector_source, torch=torch, kernels=kernels, device=self.engine.device)
        updated = {i: a[k] for i, k in enumerate(self.kept) if k >= 0}
        new = iter(self._vector_form(a, *vectors))
        return [updated[i] if k >= 0 else next(new) for i, k in enumerate(self.kept)]

    # -- climbing to the compiled tier, one step at a run's edge

    def record(self) -> None:
        """Note the inputs' layouts during the next run."""
        if self.call == self.plain and not self.settled:
            self.call = self._record

    def _note(self, a: Sequence[Tensor]) -> None:
        self.call = self.plain
        self.specs = tuple(spec_of(t) for t in a)
        if self._overlaps(a):
            self.give_up("an input that is overwritten shares memory with another input")

    def _record(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        self._note(a)
        return self.plain(a, s)

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
            self.stats.compile_s = max(self.stats.compile_s, self.compiled.seconds)  # pieces compile side by side
            self.call = self._check

    def compile_now(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        """Compile for these inputs, wait, check, run."""
        self._compile_and_wait(a)
        self.stats.made += 1
        return self.call(a, s)

    def _compile_and_wait(self, a: Sequence[Tensor]) -> None:
        self._note(a)
        self.request(cached_only=False, ready=lambda _: None)
        if self.future is not None:
            self.stats.waits = True
            wait((self.future,))
            self.stats.waits = False
            self.receive()

    @property
    def waits_for_others(self) -> bool:
        """Whether compiled code runs only when that is said. What a signal marks is compiled in the first run, on all workers alike."""
        return self.stats.together and not self.released and not self.stretch.compile

    @property
    def is_compiled(self) -> bool:
        """Whether it runs compiled code, checked."""
        return self.settled and self.compiled is not None

    def run_compiled_again(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        """Run compiled code that agreed with eager code when the same run was made at first: it is not checked again."""
        if self.compiled is None and not self.settled:
            self._compile_and_wait(a)
        if self.compiled is None:
            return self.plain(a, s)
        if not self.settled:
            self.settled = True
            self.stats.compiled_pieces += 1
        self.call = self._run_compiled
        return self._run_compiled(a, s)

    # -- runs at a given tier

    @property
    def tier(self) -> str:
        """Give the letter of the tier at which ``call`` runs."""
        if self.call == self._run_compiled:
            return COMPILED
        uncompiled = self.call if self.call in (self.eager, self._run_as_in_graph) else self.plain
        return AS_IN_GRAPH if uncompiled == self._run_as_in_graph else EAGER

    def pin(self, tier: str) -> None:
        """Run at this tier, without a graph, until ``unpin``."""
        self._before_pin, self.in_graph = self._before_pin or self.call, False
        if tier == COMPILED:
            self.call = self._run_compiled if self.is_compiled else self.run_compiled_again
        else:
            self.call = self._run_as_in_graph if tier == AS_IN_GRAPH else self.eager

    def unpin(self) -> None:
        """Go on as before ``pin``; with the bits of runs that were a graph's, and by compiled code if that has been reached by them."""
        assert self._before_pin is not None
        before, self._before_pin = self._before_pin, None
        if before == self.plain or self.settled:
            if self.call == self._run_as_in_graph:
                self.plain = self._run_as_in_graph
            before = self.plain
        self.call = self._run_compiled if self.is_compiled and not self.waits_for_others else before

    def swap(self, compiled: bool) -> None:
        """Run compiled code from here on, as all workers do in the same run; without it for good if not all of them have it."""
        if not compiled:
            if self.is_compiled and self.waits_for_others:
                self.stats.compiled_pieces -= 1
                self.give_up("another worker runs it so")
            return
        self.released = True
        call = self._run_compiled if self.is_compiled else self.run_compiled_again
        if self._before_pin is not None:
            self._before_pin = call
        else:
            self.call = call

    def _run_as_in_graph(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        """Run eagerly with scalars on the device, as in a graph."""
        return self._eager_outputs(a, self._vectors(s))

    def give_up(self, why: str) -> None:
        self.settled, self.call, self.compiled = True, self.plain, None
        self.stats.notes.append(f"piece of {amount(len(self.piece.nodes), 'op')} stays eager: {why}")

    def _check(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        """Run both tiers once, on the same values, and keep the compiled one if they agree.

        What it gives, and what it overwrites, waits in the host's memory: the device need not hold both tiers' results.
        """
        if not self._fits(a):
            self.stats.strided_fallbacks += 1
            return self.plain(a, s)
        spare = self._spared(a, "cpu") if sum([a[i].nbytes for i in self.mutated]) <= MAX_SPARED else None
        try:
            try:
                given = self._spared(a, self.engine.device) if spare is None else list(a)
                got = _on_host(self._compiled_outputs(given, self._vectors(s)))
            finally:
                self._restore(a, spare)
        except Exception as e:
            expected = self.plain(a, s)  # if this fails as well, it is for the values and not the code
            self.give_up(f"the compiled code failed: {type(e).__name__}: {e}")
            return expected
        expected = self.plain(a, s)
        worst = next((w for e, g in zip(expected, got, strict=True) if (w := disagreement(e, g, self.halves))), None)
        if worst and (spare is None or not self._is_rounding(spare, s, expected, got)):
            self.give_up(f"compiled and eager results differ: {worst}")
        else:
            self.settled, self.call = True, self.plain if self.waits_for_others else self._run_compiled
            self.stats.compiled_pieces += 1
        return expected

    def _spared(self, a: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
        """Give inputs to run on that leave ``a`` as it is. ``device``: where the copies of what is overwritten are."""
        return [_copy(t, device) if i in self.mutated else t for i, t in enumerate(a)]

    def _restore(self, a: Sequence[Tensor], spare: Sequence[Tensor] | None) -> None:
        """Give inputs that were overwritten the values that they had."""
        if spare is not None:
            for i in self.mutated:
                a[i].copy_(spare[i])

    def _is_rounding(self, a: list[Tensor], s: tuple[Scalar, ...], expected: list[Tensor], got: list[Tensor]) -> bool:
        """Say whether results that differ are what rounding leaves of sums that cancel, as the gradient of a key's bias does.

        Such a value has no scale of its own. So the eager tier runs once more on inputs moved by about their last bit: what differs
        between the tiers may be a few times what that moves.
        """
        try:
            moved = self.plain([nudged(t, self.halves, self.engine.device) for t in a], s)
        except Exception:  # a value that an op refuses
            return False
        return all(
            not disagreement(e, g, self.halves) or (e.is_floating_point() and e.shape == g.shape and e.dtype == g.dtype and apart(e, g) <= MOVES * apart(e, m))
            for e, g, m in zip(expected, got, moved, strict=True)
        )

    def _fits(self, a: Sequence[Tensor]) -> bool:
        """Whether inputs lie as the compiled code expects. How far apart the elements of a dim of one are says nothing."""
        assert self.compiled is not None
        strides = tuple(map(torch.Tensor.stride, a))
        return strides == self.compiled.strides or all(
            own == wanted or all(s == w or n <= 1 for s, w, n in zip(own, wanted, t.shape, strict=True))
            for own, wanted, t in zip(strides, self.compiled.strides, a, strict=True)
        )

    def _run_compiled(self, a: list[Tensor], s: tuple[Scalar, ...]) -> list[Tensor]:
        if not self._fits(a):
            self.stats.strided_fallbacks += 1
            return self.plain(a, s)
        held = list(a) if self.engine.device.type == "cpu" else []  # a GPU that met a bad index runs nothing more
        try:
            return self._compiled_outputs(a, self._vectors(s))
        except Exception as error:
            if held or not self.piece.inputs:
                return self._eager_after(held, s, error)
            raise

    def _eager_after(self, a: list[Tensor], s: tuple[Scalar, ...], error: Exception) -> list[Tensor]:
        """Raise what the eager tier raises for these values, which names the op; compiled code knows no op and no class."""
        if not self.mutated:
            return self.eager(a, s)
        try:
            self.eager(self._spared(a, self.engine.device), s)
        except Exception as e:
            e.overwrote = True  # type: ignore[attr-defined]
            raise
        if "out of bounds" in str(error):  # what was overwritten before had the index
            raise IndexError(str(error)) from error
        raise error

    def _vectors(self, s: tuple[Scalar, ...]) -> Vectors:
        floats, ints = pack(self.piece.scalars, s) if s else ((), ())
        device = self.engine.device
        return (
            torch.tensor(floats, dtype=torch.float64, device=device) if floats else None,
            torch.tensor(ints, dtype=torch.int64, device=device) if ints else None,
        )

    def _compiled_outputs(self, a: list[Tensor], vectors: Vectors) -> list[Tensor]:
        assert self.compiled is not None
        args = a + [v for v in vectors if v is not None]
        updated = {i: a[k] for i, k in enumerate(self.kept) if k >= 0}
        a.clear()
        new = iter(self.compiled.function(args))
        return [updated[i] if k >= 0 else next(new) for i, k in enumerate(self.kept)]

    # -- errors

    def explain(self, error: Exception) -> ExecutionError | None:
        """Name the node an error passed through, or None if it was not in this piece."""
        failed, source = failed_at(self.eager, error.__traceback__), self.source
        if failed is None and self._vector_form is not None:
            failed, source = failed_at(self._vector_form, error.__traceback__), self._vector_source
        index = source.nodes[failed.tb_lineno - 1] if failed else -1
        if failed is None or index < 0:
            return None
        node, loc = self.piece.nodes[index], self.stretch.locations[index]
        values = {slot: failed.tb_frame.f_locals.get(f"v{slot}") for slot in node.inputs if slot < self.piece.inputs}
        types = given_types(node, self.piece.made_types(), {slot: value for slot, value in values.items() if value is not None})
        return ExecutionError(node.op, self.table[loc] if loc >= 0 else None, reason_of(error), types)


MAX_SPARED = 1 << 28  # bytes of overwritten inputs kept to run a piece once more where its tiers differ
MOVES = 8


def _copy(t: Tensor, device: torch.device | str) -> Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device).copy_(t)


def _on_host(results: list[Tensor]) -> list[Tensor]:
    """Give copies in the host's memory; ``results`` is emptied, so that each is freed where it was."""
    results.reverse()
    return [results.pop().to("cpu", copy=True) for _ in range(len(results))]


__all__ = ["PieceFn", "TorchPiece", "failed_at"]
