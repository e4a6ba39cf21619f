"""What a session knows of a buffer when asked why it is where it is: the reasons of the plan that made it.

Owns: ``BufferReasons``, the form that travels, ``buffer_reasons``, ``upload_reasons``. Must not know: clients, tensors. Next: ``gt.passes.reasons``
(what a plan says of itself), ``dispatcher_state`` (who answers), ``gt.explaining`` (how it is shown).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gt.ir.mesh import Sharding
from gt.ir.program import WireSharding, WireType
from gt.ir.signals import SignalConfig
from gt.ir.types import TensorType
from gt.passes.reasons import PlanReasons, SentReason
from gt.runtime.usage import ProgramState

ALONE = "whole: there is one worker, so nothing is split"
UPLOADED = PlanReasons("", ("uploaded outside of any signal that places: whole on all workers",), ((0,),))
AS_ASKED = PlanReasons("", ("uploaded under a signal that asks for this",), ((0,),))
KEPT_WHOLE = PlanReasons("", ("uploaded under a signal that could not split it, so kept whole",), ((0,),))

ADOPTED = PlanReasons("", ("kept by its workers from before the server was started again",), ((0,),))


class RunsAs(msgspec.Struct, frozen=True, array_like=True):
    """How the program that makes a buffer runs on workers alike: its ``tier``, how many of its pieces are compiled, and ``notes`` on why
    it is no more than that. ``uncompiled``: what keeps other pieces from being compiled, and what would change that.
    """

    workers: tuple[int, ...]
    device: str
    backend: str
    tier: str
    pieces: int
    compiled: int
    notes: tuple[str, ...] = ()
    uncompiled: str = ""


class BufferReasons(msgspec.Struct, frozen=True, array_like=True):
    """Why a buffer is where it is. ``num_workers``: of all that its client uses. ``graph``: the flush that made it, "" for an upload.

    ``why``: from the value back to what was said. ``sent``, ``notes``: of that flush as a whole; ``left_out`` of each beyond the limits.
    ``plans``: the numbers that workers know it and its parts by.
    """

    type: WireType
    placed: WireSharding
    num_workers: int
    graph: str
    why: tuple[str, ...]
    sent: tuple[SentReason, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[int, int] = (0, 0)
    runs: tuple[RunsAs, ...] = ()
    plans: tuple[int, ...] = ()


def upload_reasons(signal: SignalConfig | None, placed: Sharding) -> PlanReasons:
    """Give the reasons of an upload, its output 0."""
    if signal is None or signal.shard is None:
        return UPLOADED
    asks_to_split = signal.shard.axis is not None and not signal.shard.replicated
    return KEPT_WHOLE if asks_to_split and not placed.is_split else AS_ASKED


def buffer_reasons(
    type_: TensorType, reasons: PlanReasons, output: int, num_workers: int, runs: tuple[RunsAs, ...] = (), plans: tuple[int, ...] = ()
) -> BufferReasons:
    """Explain output ``output`` of the plan that gives ``reasons``, or an upload by its ``upload_reasons``. ``runs``: how the plan does."""
    assert type_.sharding is not None
    where = WireType.of(type_), WireSharding.of(type_.sharding), num_workers
    if num_workers == 1:
        return BufferReasons(*where, reasons.graph, (ALONE,), notes=reasons.notes, runs=runs, plans=plans)
    return BufferReasons(*where, reasons.graph, reasons.why(output), reasons.sent, reasons.notes, reasons.left_out, runs, plans)


def runs_as(states: Iterable[tuple[int, str, str, ProgramState]]) -> tuple[RunsAs, ...]:
    """Give how a plan runs, workers that are alike together. ``states``: worker, device, backend and what it says of its program."""
    found: dict[RunsAs, list[int]] = {}
    for worker, device, backend, state in states:
        kind = device.partition(":")[0]
        alike = RunsAs((), kind, backend, state.tier, state.pieces, state.compiled, state.notes, state.uncompiled)
        found.setdefault(alike, []).append(worker)
    return tuple(msgspec.structs.replace(alike, workers=tuple(sorted(workers))) for alike, workers in found.items())


__all__ = ["BufferReasons", "RunsAs", "buffer_reasons", "runs_as", "upload_reasons"]
