"""``gt.explain``: where a tensor is, why, what made it, and what its making sends. What is told comes from the plan that ran.

Owns: ``explain`` and ``Explanation``, the form it is shown in. Must not know: how anything is placed or who remembers why.
Next: ``gt.runtime.buffer_reasons`` (what a session answers), ``gt.passes.reasons`` (where it comes from), ``gt.flush`` (recent flushes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gt.flush import flushed_as
from gt.graph_history import Recompiled, graph_named
from gt.handle import Handle
from gt.ir.graph import Graph, Node, Value
from gt.progress import awaited
from gt.source import location
from gt.trace import check_read, settle
from gt.versions import ALIAS

if TYPE_CHECKING:
    from gt.ir.graph import Attrs
    from gt.ir.opdef import OpDef
    from gt.ir.types import TensorType
    from gt.passes.reasons import SentReason
    from gt.runtime.buffer_reasons import BufferReasons, RunsAs
    from gt.tensor import Tensor

SHOWN = 12  # collectives and notes in the text; ``sent`` and ``notes`` have more


@dataclass(frozen=True)
class Explanation:
    """Why a tensor is where it is. ``str`` and ``repr`` give it as lines.

    ``type``: dtype and shape, each dim with the mesh axes that split it. ``workers``: those that hold it, of ``num_workers``.
    ``axes``: sizes of the mesh axes. ``local_shape``: what each holds, padding included. ``why``: from its own reason back to what
    was said or given.
    ``graph``: the flush that made it, with ``reason`` and ``where`` (the user's line) if it was one of this process's latest; "" for
    an upload. ``sent``: what that flush sends, each with ``kind``, ``axes``, ``count``, ``nbytes`` (of one worker in one run),
    ``why`` and ``where``. ``notes``: what of its placement was not done as asked. ``left_out``: of these two, beyond their limits.
    ``runs``: how its program runs on which workers, each with ``tier`` (eager, compiled, graph), ``pieces``, ``compiled``, ``notes`` on
    why it is no more than that, and ``uncompiled``: what it waits for to be compiled, or what rules that out. ``kept``: the flush's inputs
    whose memory it could not use again, as something still holds them.
    ``recompiled``: why the flush's graph is another than the one before from the same line, if there was one.
    """

    type: str
    workers: tuple[int, ...]
    num_workers: int
    axes: dict[str, int]
    local_shape: tuple[int, ...]
    why: tuple[str, ...]
    graph: str
    reason: str
    where: str
    sent: tuple[SentReason, ...]
    notes: tuple[str, ...]
    left_out: tuple[int, int]
    runs: tuple[RunsAs, ...]
    kept: tuple[str, ...]
    recompiled: Recompiled | None

    @property
    def is_split(self) -> bool:
        """Say whether a worker holds a part only."""
        return "@" in self.type

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> list[str]:
        mesh = f" ({', '.join(f'{axis}={size}' for axis, size in self.axes.items())})" if len(self.axes) > 1 else ""
        dtype = self.type.partition("[")[0]
        part = f", {dtype}{list(self.local_shape)} on each" if self.is_split else ""
        lines = [f"{self.type} on {worker_text(self.workers)}{mesh}{part}"]
        lines += [f"  {'because ' if i else ''}{line}" for i, line in enumerate(self.why)]
        lines.append(self._made())
        lines += [runs_text(one) for one in self.runs]
        if self.recompiled is not None:
            lines.append(str(self.recompiled))
        if self.kept:
            lines += ["not donated, as something still holds them:", *(f"  {name}" for name in self.kept[:SHOWN])]
            lines += _more(len(self.kept) - SHOWN)
        if self.sent:
            lines.append(f"in a run of {self.graph} one worker sends at most:")
            lines += [f"  {sent_text(one)}" for one in self.sent[:SHOWN]]
            lines += _more(len(self.sent) - SHOWN + self.left_out[0])
        elif self.graph and self.num_workers > 1:
            lines.append(f"in a run of {self.graph} nothing is sent")
        if self.notes:
            lines += ["notes:", *(f"  {note}" for note in self.notes[:SHOWN])]
            lines += _more(len(self.notes) - SHOWN + self.left_out[1])
        return lines

    def _made(self) -> str:
        if not self.graph:
            return "made by an upload from this process"
        if not self.reason:
            return f"made by {self.graph}, which gt.jit replayed or which ran too long ago to say why"
        return f"made by {self.graph}, which ran for: {self.reason}" + (f" at {self.where}" if self.where else "")


def sent_text(one: SentReason) -> str:
    """Say what is sent, why, and for which line."""
    count = f"{one.count} x " if one.count > 1 else ""
    along = f" over {', '.join(one.axes)}" if one.axes else ""
    at = f" at {one.where}" if one.where else ""
    return f"{one.nbytes:,} B by {count}{one.kind}{along} for {one.why or 'its readers'}{at}"


def runs_text(one: RunsAs) -> str:
    """Say at which tier workers run a program, and why at no other."""
    compiled = f", {one.compiled} of {one.pieces} pieces of it," if one.compiled else ""
    why = [*([one.uncompiled] if one.uncompiled else []), *one.notes]
    if one.device and one.device != "cuda":
        why.append(f"no CUDA graph: the {one.backend} backend runs it on the {one.device.upper()}")
    elif one.tier != "graph" and not one.notes:
        why.append("no CUDA graph yet: a program is captured at its third run")
    return f"runs {one.tier}{compiled} on {worker_text(one.workers)}" + "".join(f"; {note}" for note in why)


def _more(count: int) -> list[str]:
    return [f"  and {count} more"] if count > 0 else []


def worker_text(workers: Sequence[int]) -> str:
    """Give workers in their order, runs of three or more in short: "workers 0-3, 6"."""
    runs: list[list[int]] = []
    for worker in workers:
        if runs and worker == runs[-1][-1] + 1:
            runs[-1].append(worker)
        else:
            runs.append([worker])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(parts)}"


def explain(x: Tensor) -> Explanation:
    """Say where a tensor is and why, which flush made it, and what that flush sends between workers and why.

    The reasons are those of the plan that ran. What is pending is run first, as by reading a value. A view is told by what made its base
    and by where its part will be when it is read; nothing runs for that. No value travels here. On one worker nothing is split.
    Errors: TypeError unless ``x`` is a tensor; what made the tensor's run fail; in a function under ``gt.jit`` and in ``gt.flush_guard``
    those of a read.
    """
    if not isinstance(x, Handle):
        raise TypeError(f"gt.explain: expected a gt.Tensor, got {type(x).__name__}")
    check_read()
    views, root = _views(x)
    if (trace := root._trace) is not None:
        settle(trace, "gt.explain")
    buffer = root._materialise()
    told = awaited(buffer.session.explain(buffer.id), buffer.session)
    placed = told.type.tensor_type.placed(told.placed.sharding)
    if views:
        placed, why = _viewed(views, placed)
        told = msgspec.structs.replace(told, why=told.why if told.num_workers == 1 else why + told.why)
    return _shown(told, placed, buffer.id)


def _views(x: Handle) -> tuple[list[tuple[OpDef, Attrs]], Handle]:
    """Give the ops that take a view from what has memory of its own, and that."""
    ops = []
    while x._base is not None:
        assert x._view is not None
        if x._view[0] is not ALIAS:
            ops.append(x._view)
        if x._storage is not None and x._storage.moved is not None:
            x._rebase()
        x = x._base
    return ops[::-1], x


def _viewed(views: Sequence[tuple[OpDef, Attrs]], base: TensorType) -> tuple[TensorType, tuple[str, ...]]:
    """Give the type of views of a placed value, one of the other, and why it is placed so."""
    from gt.passes.plan import Cluster, plan_graph  # loads the passes

    assert base.sharding is not None
    value = given = Value(base, "base")
    nodes = []
    for op, attrs in views:
        (type_,) = op.infer_types((value.type.placed(None),), attrs)
        nodes.append(Node(op, (value,), (Value(type_),), attrs))
        (value,) = nodes[-1].outputs
    plan = plan_graph(Graph("view", (given,), (), tuple(nodes), (value,)), Cluster(base.sharding.mesh.workers))
    return value.type.placed(plan.outputs[0]), plan.told.why(0)


def _shown(told: BufferReasons, placed: TensorType, buffer: int) -> Explanation:
    sharding = placed.sharding
    assert sharding is not None
    flushed = flushed_as(buffer)
    known = graph_named(told.graph) if flushed is not None else None
    place = location(flushed.code, flushed.lasti) if flushed is not None else ""
    return Explanation(
        type=repr(placed).removesuffix(f" on {sharding.mesh.name}"), workers=sharding.mesh.workers, num_workers=told.num_workers,
        axes=dict(sharding.mesh.axes), local_shape=sharding.local_shape(placed.shape), why=told.why, graph=told.graph,
        reason=flushed.reason if flushed is not None else "", where=str(place), sent=told.sent, notes=told.notes,
        left_out=told.left_out, runs=told.runs, kept=known.kept if known is not None else (),
        recompiled=known.recompiled if known is not None else None,
    )  # fmt: skip


__all__ = ["Explanation", "explain", "runs_text", "sent_text", "worker_text"]
