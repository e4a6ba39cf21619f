"""What a plan says of itself afterwards, in a form that travels: why each output is where it is, what is sent and why, notes.

Owns: ``PlanReasons``, ``SentReason``, ``plan_reasons``. All of it is limited in size. Must not know: how anything is placed.
Next: ``context`` (where reasons are collected), ``gt.explaining`` (how they are shown).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gt.ir.graph import Graph, Value
from gt.ir.text import readable_names
from gt.passes.context import Context
from gt.passes.estimate import sent_and_seconds

MAX_TEXT = 400  # characters of one line
MAX_LINES = 20_000  # different lines of all outputs together
MAX_SENT = 64  # kinds of collectives, those that send most
MAX_NOTES = 64
NOTHING_PLACED = "whole on all workers: no signal, rule for parameters or input of its graph splits anything"
FEWER = "whole: its graph runs on the workers alone that its signals name and its inputs are on, and nothing splits it there"


class SentReason(msgspec.Struct, frozen=True, array_like=True):
    """Collectives of a plan that differ in nothing but their values. ``nbytes``: what one worker sends for all of them in a run.

    ``axes``: the mesh axes along which workers exchange; none for a transfer from mesh to mesh. ``why``: who asked.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    nbytes: int
    why: str
    where: str


class PlanReasons(msgspec.Struct, frozen=True, array_like=True):
    """Of one plan: ``outputs`` has for each output the numbers of its ``lines``, from its own reason back to what was said.

    ``left_out``: kinds of collectives and notes beyond the limits.
    """

    graph: str
    lines: tuple[str, ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    sent: tuple[SentReason, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[int, int] = (0, 0)

    def why(self, output: int) -> tuple[str, ...]:
        """Give the reasons of an output."""
        return tuple(self.lines[i] for i in self.outputs[output]) if output < len(self.outputs) else ()


def plan_reasons(graph: Graph, context: Context, num_workers: int) -> PlanReasons:
    """Give the reasons of a graph that all passes have seen, planned for a cluster of so many workers."""
    lone = NOTHING_PLACED if context.mesh.size == num_workers else FEWER
    lines, outputs = _table(context.output_reasons or [(lone,)] * len(graph.outputs))
    sent = _sent(graph)
    notes = shown_notes(context)
    left_out = max(0, len(sent) - MAX_SENT), max(0, len(set(context.placement_notes)) - MAX_NOTES)
    return PlanReasons(_clipped(graph.name), lines, outputs, sent[:MAX_SENT], notes, left_out)


def shown_notes(context: Context) -> tuple[str, ...]:
    """Give the notes of a plan on its placement and memory, each once."""
    return tuple(dict.fromkeys(map(_clipped, context.placement_notes)))[:MAX_NOTES]


def _table(reasons: Iterable[Sequence[str]]) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Give each line once, and for each output the numbers of its lines."""
    number: dict[str, int] = {}
    outputs = []
    for given in reasons:
        known = (number.setdefault(line, len(number)) for line in map(_clipped, given) if line in number or len(number) < MAX_LINES)
        outputs.append(tuple(known))
    return tuple(number), tuple(outputs)


def _sent(graph: Graph) -> tuple[SentReason, ...]:
    """Give what is sent, most first."""
    found: dict[tuple[str, tuple[str, ...], str, str], list[int]] = {}
    for node in graph.nodes:
        if node.op.effect != "comm":
            continue
        axes = node.attr.get("axes", ())
        assert isinstance(axes, tuple)
        key = node.op.name, tuple(map(str, axes)), _clipped(node.why), _clipped(str(node.loc or ""))
        counts = found.setdefault(key, [0, 0])
        counts[0] += 1
        counts[1] += sent_and_seconds(node)[0]
    order = sorted(found.items(), key=lambda item: (-item[1][1], item[0]))
    return tuple(SentReason(kind, axes, count, nbytes, why, at) for (kind, axes, why, at), (count, nbytes) in order)


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


def placement_notes(graph: Graph, placed: Graph, context: Context) -> list[str]:
    """Give the notes on a graph, before or as it is placed, that its reasons do not say anyway, each with its line."""
    names = readable_names(graph.inputs, graph.nodes) | readable_names(graph.inputs, placed.nodes)
    made = {out: node for node in (*graph.nodes, *placed.nodes) for out in node.outputs}
    out = []
    for about, reason in context.notes:
        origin = context.origins.get(about) if isinstance(about, Value) else None
        if origin is not None and (origin.reason.startswith(reason) or reason.startswith("as its operands")):
            continue
        node = made.get(about) if isinstance(about, Value) else about
        at = f" at {node.loc}" if node is not None and node.loc is not None else ""
        subject = f"{names.get(about, 'a value')}: {about.type!r}" if isinstance(about, Value) else about.op.name
        out.append(f"{subject}: {reason}{at}")
    return out


__all__ = ["PlanReasons", "SentReason", "placement_notes", "plan_reasons", "shown_notes"]
