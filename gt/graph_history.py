"""What was new in each graph of this process: why it is another than the one before from the same line, and what it could not overwrite.

Owns: ``Told``, ``Recompiled``, the latest ``MAX_GRAPHS`` of them. A graph is looked at once, when it is new, which costs a fraction of its
planning; runs of known graphs cost nothing. Must not know: sessions, how graphs run. Next: ``flush`` (where graphs come from),
``explaining`` and ``telling`` (who show it).
"""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict, deque
from dataclasses import dataclass

from gt import session as sessions
from gt.flush import counters
from gt.ir.blame import users_frame
from gt.ir.graph import Graph, Location, Node, Value
from gt.ir.types import TensorType

MAX_GRAPHS = 256
MAX_SITES = 64
log = logging.getLogger("gt.flush")

PAD = "give it one shape: pad the last batch, or drop it (drop_last=True)"
CAST = "cast to one dtype before"
NUMBER = "a Python number that is part of an op's form makes a graph for each of its values: keep it the same, or make it a tensor"
FLOW = "Python control flow that depends on a step or a value records other ops: let each case come from a line of its own, or use gt.where"
HELD = "keep the same tensors alive in every step: what is held, or let go of, at the flush is part of the graph"
ONCE = "what is done once, as making parameters, is in the first graph alone: no other is due for it"
LIMITS = "signals and limits are part of the graph: set them once, before the loop"


@dataclass(frozen=True)
class Recompiled:
    """Why a line made another graph. ``field``: what differs, as "shape of operand 0 of matmul"; ``where``: the line of the op."""

    graph: str
    before: str
    field: str
    old: str
    new: str
    where: str
    site: str
    advice: str

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"{self.graph} is another graph than {self.before}, both from {self.site}: {self.field}{at} was {self.old}, is {self.new}; {self.advice}"


@dataclass(frozen=True)
class Told:
    """Of one graph. ``kept``: its inputs that a tensor still names, or a backward needs, so that a run may not overwrite them."""

    name: str
    site: str
    num_nodes: int
    kept: tuple[str, ...]
    num_donated: int
    recompiled: Recompiled | None


@dataclass(frozen=True)
class _Form:
    """What of a graph is compared: it holds none of its values."""

    name: str
    nodes: tuple[tuple[str, tuple[tuple[str, object], ...], tuple[TensorType, ...], Location | None], ...]
    wiring: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[str, TensorType], ...]
    outputs: tuple[int, ...]
    donated: frozenset[int]
    signals: tuple[object, ...]
    options: object


_told: deque[Told] = deque(maxlen=MAX_GRAPHS)
_latest: OrderedDict[tuple[str, int, int], _Form] = (
    OrderedDict()
)  # by the line that flushed, and the part of a flush of a long loop
_part = 0, 0  # the flush that makes graphs now, by its number, and how many it made


def graph_named(name: str) -> Told | None:
    """Give what is known of a graph, if it is one of the latest."""
    return next((told for told in reversed(tuple(_told)) if told.name == name), None)


def graphs() -> tuple[Told, ...]:
    """Give the latest graphs, oldest first."""
    return tuple(_told)


def forget() -> None:
    """Begin anew, as a session does."""
    _told.clear()
    _latest.clear()


def noted(number: int, graph: Graph) -> None:
    """Look at a new graph. Called by the flush that made it."""
    global _part
    frame = users_frame(sys._getframe(1))
    _part = counters.flushes, _part[1] + 1 if _part[0] == counters.flushes else 0
    key, form = (frame.f_code.co_filename, frame.f_lineno, _part[1]), _form(graph)
    site, before = f"{key[0]}:{key[1]}", _latest.get(key)
    recompiled = _difference(before, form, site) if before is not None else None
    if recompiled is not None:
        log.info("%s", recompiled)
    _latest[key] = form
    _latest.move_to_end(key)
    while len(_latest) > MAX_SITES:
        _latest.popitem(last=False)
    kept = tuple(_named(i, name, t) for i, (name, t) in enumerate(form.inputs) if i not in graph.donated)
    _told.append(Told(graph.name, site, len(form.nodes), kept, len(graph.donated), recompiled))


def _form(graph: Graph) -> _Form:
    number: dict[Value, int] = {v: i for i, v in enumerate((*graph.inputs, *graph.scalars))}
    nodes, wiring = [], []
    for node in graph.nodes:
        nodes.append(_node_form(node))
        wiring.append(tuple(number[v] for v in node.inputs))
        for out in node.outputs:
            number[out] = len(number)
    return _Form(
        graph.name, tuple(nodes), tuple(wiring), tuple((v.hint, v.type) for v in graph.inputs), tuple(number[v] for v in graph.outputs),
        frozenset(graph.donated), tuple(graph.signals), graph.options,
    )  # fmt: skip


def _node_form(node: Node) -> tuple[str, tuple[tuple[str, object], ...], tuple[TensorType, ...], Location | None]:
    return node.op.name, tuple(node.attrs), tuple(v.type for v in node.inputs), node.loc


def _difference(old: _Form, new: _Form, site: str) -> Recompiled:
    """Give the first thing in which two graphs differ, in the order in which a person would look."""

    def found(field: str, was: object, now: object, where: Location | None, advice: str) -> Recompiled:
        return Recompiled(new.name, old.name, field, str(was)[:200], str(now)[:200], str(where or ""), site, advice)

    if old.options != new.options or old.signals != new.signals:
        name = "signals" if old.signals != new.signals else "limits and precision"
        return found(name, old.signals or old.options, new.signals or new.options, None, LIMITS)
    more = len(old.nodes) - len(new.nodes)
    if more > 0 and new.nodes and old.nodes[more:] == new.nodes:
        extra = old.nodes[0]
        return found("what comes before the rest", f"{more} ops, from {extra[0]} on", "nothing", extra[3], ONCE)
    for before, after, wired, rewired in zip(old.nodes, new.nodes, old.wiring, new.wiring, strict=False):
        if before[0] != after[0]:
            return found("the op", f"{before[0]} ({before[3] or '?'})", after[0], after[3], FLOW)
        for (name, was), (_, now) in zip(before[1], after[1], strict=False):
            if was != now:
                return found(f"{name} of {after[0]}", was, now, after[3], PAD if name in ("shape", "size") else NUMBER)
        for at, (was_type, now_type) in enumerate(zip(before[2], after[2], strict=False)):
            if was_type.dtype is not now_type.dtype:
                return found(f"dtype of operand {at} of {after[0]}", was_type.dtype.name, now_type.dtype.name, after[3], CAST)
            if was_type.shape != now_type.shape:
                return found(f"shape of operand {at} of {after[0]}", list(was_type.shape), list(now_type.shape), after[3], PAD)
        if wired != rewired or len(before[1]) != len(after[1]):
            return found(f"what {after[0]} reads", wired, rewired, after[3], FLOW)
    if len(old.nodes) != len(new.nodes):
        longer = max((old, new), key=lambda form: len(form.nodes))
        extra = longer.nodes[min(len(old.nodes), len(new.nodes))]
        return found("the number of ops", len(old.nodes), f"{len(new.nodes)}, from {extra[0]} on", extra[3], FLOW)
    if old.donated != new.donated:
        names = [_named(i, *new.inputs[i]) for i in sorted(old.donated ^ new.donated) if i < len(new.inputs)]
        was, now = ("given up", "held") if old.donated - new.donated else ("held", "given up")
        return found(f"whether inputs are still held ({', '.join(names[:4])})", was, now, None, HELD)
    if old.outputs != new.outputs:
        return found("which results are still named", len(old.outputs), len(new.outputs), _made(new, old), HELD)
    return found("something that is not recorded", "one way", "another", None, FLOW)


def _made(new: _Form, old: _Form) -> Location | None:
    """Give the line of a result that only one of two graphs gives."""
    odd = set(new.outputs) ^ set(old.outputs)
    count = len(new.inputs)
    return next((node[3] for i, node in enumerate(new.nodes) if any(out >= count + i for out in odd)), None)


def _named(at: int, name: str, type_: TensorType) -> str:
    return f"{name or f'input {at}'}: {type_!r}"


sessions.on_define.append(noted)

__all__ = ["Recompiled", "Told", "forget", "graph_named", "graphs", "noted"]
