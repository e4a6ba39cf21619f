"""What was new in each graph of this process: why it is another than the one before from the same line, and what it could not overwrite.

Owns: ``Told``, ``Recompiled``, the latest ``MAX_GRAPHS`` of them. A graph is looked at once, when it is new, which costs a fraction of its
planning; runs of known graphs cost nothing. Must not know: sessions, how graphs run. Next: ``flush`` (where graphs come from),
``explaining`` and ``telling`` (who show it).
"""

from __future__ import annotations

import itertools
import logging
import sys
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import NamedTuple

from gt import session as sessions
from gt.flush import LOOP, counters
from gt.ir.blame import users_frame
from gt.ir.graph import Graph, Location, Node, Value
from gt.ir.signals import PlanOptions, SignalConfig
from gt.ir.types import TensorType
from gt.ir.wording import amount

MAX_GRAPHS = 256
MAX_SITES = 64
MAX_KINDS = 4  # of work that one line flushes
MAX_ALIGNED = 800  # ops of two graphs that are laid side by side, which takes milliseconds
WHOLE = -1  # in place of a part: the whole of a loop that is run often
ALIKE = 0.5  # of their ops two graphs have in common, from which on they are taken for one kind of work
log = logging.getLogger("gt.flush")

PAD = "give it one shape: pad the last batch, or drop it (drop_last=True)"
SIZES = "give it one shape, or few: pad each to the next of a few sizes"
CAST = "cast to one dtype before"
NUMBER = "a Python number that is part of an op's form makes a graph for each of its values: keep it the same, or to few values"
SHAPES = ("shape", "size")
FLOW = "Python control flow that depends on a step or a value records other ops: let each case come from a line of its own, or use gt.where"
HELD = "keep the same tensors alive in every step: what is held, or let go of, at the flush is part of the graph"
ONCE = "what is done once, as making parameters, is in the first graph alone: no other is due for it"
GRADS = "until zero_grad() a backward adds to the gradients that are there: the first of several, and the others, have a graph each, no other is due"
AGAIN = "how often lines are run before a flush is part of the graph: read values at the same place of every step alone"
LIMITS = "signals and limits are part of the graph: set them once, before the loop"
SCOPE = "the signal that an op is marked with is part of the graph: enter the same scopes in every step"
OTHER = "each kind of work that a line flushes has a graph: nothing is due, unless every step brings another"


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


class _NodeForm(NamedTuple):
    """What of an op is compared."""

    op: str
    attrs: tuple[tuple[str, object], ...]
    types: tuple[TensorType, ...]  # of its operands
    loc: Location | None
    signal: str | None
    taped: bool


@dataclass(frozen=True)
class _Form:
    """What of a graph is compared: it holds none of its values. Values are numbers: results from 0, ``first`` has each op's first; inputs
    and scalars below, as they are first read, wherever they stand. ``inputs``: where that is, name and type.
    """

    name: str
    nodes: tuple[_NodeForm, ...]
    wiring: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]
    inputs: dict[int, tuple[int, str, TensorType]]
    outputs: tuple[int, ...]
    donated: frozenset[int]
    signals: tuple[tuple[str, SignalConfig], ...]
    options: PlanOptions
    ops: Counter[str]


_told: deque[Told] = deque(maxlen=MAX_GRAPHS)
# by the line that flushed, and the part of a flush of a long loop: the latest of each kind of work
_latest: OrderedDict[tuple[str, int, int], list[_Form]] = OrderedDict()
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
    part = WHOLE if graph.name.startswith(LOOP) else _part[1]  # no other graph than its parts: all of them
    key, form = (frame.f_code.co_filename, frame.f_lineno, part), _form(graph)
    site, kinds, recompiled = f"{key[0]}:{key[1]}", _latest.pop(key, []), None
    if kinds:
        before = max(reversed(kinds), key=lambda kind: _alike(kind, form))
        recompiled = _difference(before, form, site)
        if recompiled.advice == PAD and any(one.recompiled and _same_place(one.recompiled, recompiled) for one in _told):
            recompiled = replace(recompiled, advice=SIZES)  # there are more than a full batch and a last one
        log.info("%s", recompiled)
        if _alike(before, form) >= ALIKE:
            kinds = [kind for kind in kinds if kind is not before]
    _latest[key] = [*kinds, form][-MAX_KINDS:]
    while len(_latest) > MAX_SITES:
        _latest.popitem(last=False)
    kept = tuple(_named(i, v.hint, v.type) for i, v in enumerate(graph.inputs) if i not in graph.donated)
    _told.append(Told(graph.name, site, len(form.nodes), kept, len(graph.donated), recompiled))


def _form(graph: Graph) -> _Form:
    given = dict.fromkeys((*graph.inputs, *graph.scalars))
    read = dict.fromkeys(v for node in graph.nodes for v in node.inputs if v in given) | given
    number: dict[Value, int] = {v: -1 - i for i, v in enumerate(read)}
    nodes, wiring, first, made = [], [], [], itertools.count()
    for node in graph.nodes:
        nodes.append(_node_form(node))
        wiring.append(tuple(number[v] for v in node.inputs))
        number |= {out: next(made) for out in node.outputs}
        first.append(number[node.outputs[0]])
    return _Form(
        graph.name, tuple(nodes), tuple(wiring), tuple(first),
        {number[v]: (i, v.hint, v.type) for i, v in enumerate(graph.inputs)}, tuple(number[v] for v in graph.outputs),
        frozenset(number[graph.inputs[i]] for i in graph.donated), tuple(graph.signals), graph.options,
        Counter(node.op for node in nodes),
    )  # fmt: skip


def _node_form(node: Node) -> _NodeForm:
    return _NodeForm(node.op.name, tuple(node.attrs), tuple(v.type for v in node.inputs), node.loc, node.signal, node.taped)


def _alike(one: _Form, other: _Form) -> float:
    """Give the share of their ops that two graphs have in common, whatever their shapes."""
    return (one.ops & other.ops).total() / max(1, len(one.nodes), len(other.nodes))


def _difference(old: _Form, new: _Form, site: str) -> Recompiled:
    """Give the first thing in which two graphs differ, in the order in which a person would look."""

    def found(field: str, was: object, now: object, where: Location | None, advice: str) -> Recompiled:
        return Recompiled(new.name, old.name, field, str(was)[:200], str(now)[:200], str(where or ""), site, advice)

    meant = dict(new.signals)
    for signal, config in old.signals:
        if part := _changed(config, meant.get(signal, config)):
            return found(f"{part} of signal {signal!r}", getattr(config, part), getattr(meant[signal], part), None, LIMITS)
    if option := _changed(old.options, new.options):
        return found(option, getattr(old.options, option), getattr(new.options, option), None, LIMITS)
    once = _done_once(old, new)
    rest = [node for i, node in enumerate(old.nodes) if i not in once]
    for more, fewer, only in ((old, new, once), (new, old, _done_once(new, old))):
        first, again = more.nodes[min(only, default=0)] if only else None, _again(more, only)
        if first is not None and (again or more is old) and _kinds(more, only) == _kinds(fewer):
            had = f"{amount(len(only), 'op')} starting with {first.op}"
            sides = (had, "nothing") if more is old else ("nothing", had)
            return found("what comes before the rest", *sides, first.loc, AGAIN if again else ONCE)
    if not once and _alike(old, new) < ALIKE:
        return found("what is done", _start(old), _start(new), new.nodes[0].loc if new.nodes else None, OTHER)
    if not once:
        gone, came = _unlike(old, new)
        once = _unread(old, gone)
        for more, only, sides in ((new, came, ("nothing", "those of before")), (old, gone - once, ("those of before", "nothing"))):
            if only and all(_adds_up(more, i) for i in only):
                return found("what gradients are added to", *sides, more.nodes[min(only)].loc, GRADS)
        rest = [node for i, node in enumerate(old.nodes) if i not in once]
    for i, (before, after) in enumerate(zip(rest, new.nodes, strict=False)):
        if once and _same(before, after):
            continue
        if before.op != after.op:
            advice = CAST if "cast" in (before.op, after.op) else FLOW
            return found("the op", f"{before.op} ({before.loc or '?'})", after.op, after.loc, advice)
        if before.signal != after.signal:
            return found(f"the signal of {after.op}", before.signal or "none", after.signal or "none", after.loc, SCOPE)
        if not once and _sources(old, i) != _sources(new, i):
            return found(f"what {after.op} reads", _sources(old, i), _sources(new, i), after.loc, FLOW)
        for (name, was), (_, now) in zip(before.attrs, after.attrs, strict=False):
            if was != now:
                advice = _pad(was, now) if name in SHAPES else CAST if name == "dtype" else NUMBER
                return found(f"{name} of {after.op}", was, now, after.loc, advice)
        for at, (was_type, now_type) in enumerate(zip(before.types, after.types, strict=False)):
            if was_type.dtype is not now_type.dtype:
                return found(f"dtype of operand {at} of {after.op}", was_type.dtype.name, now_type.dtype.name, after.loc, CAST)
            if was_type.shape != now_type.shape:
                return found(f"shape of operand {at} of {after.op}", list(was_type.shape), list(now_type.shape), after.loc,
                             _pad(was_type.shape, now_type.shape))  # fmt: skip
        if not once and old.wiring[i] != new.wiring[i] or len(before.attrs) != len(after.attrs):
            return found(f"what {after.op} reads", "some values", "others of the same lines", after.loc, FLOW)
        if before.taped != after.taped:
            return found(f"whether gradients pass {after.op}", before.taped, after.taped, after.loc, FLOW)
    if len(rest) != len(new.nodes):
        extra = rest[len(new.nodes)] if len(rest) > len(new.nodes) else new.nodes[len(rest)]
        return found("the number of ops", len(rest), f"{len(new.nodes)} (they differ from {extra.op} on)", extra.loc, FLOW)
    if old.donated != new.donated:
        names = [_named(*new.inputs[i]) for i in sorted(old.donated ^ new.donated, reverse=True) if i in new.inputs]
        sides = ("given up", "held") if old.donated - new.donated else ("held", "given up")
        return found(f"whether inputs are still held ({', '.join(names[:4])})", *sides, None, HELD)
    if old.outputs != new.outputs:
        return found("which results are still named", len(old.outputs), len(new.outputs), _made(new, old), HELD)
    if old.inputs != new.inputs:
        begins = [", ".join(_named(*given) for given in form.inputs.values()) for form in (old, new)]
        return found("which values it begins with, or their order", begins[0], begins[1], None, FLOW)
    return found("something that is not recorded", "one way", "another", None, FLOW)


def _pad(was: object, now: object) -> str:
    """Say what to do about another shape: one with fewer rows may be the last batch's."""
    match was, now:
        case (int(rows), *row), (int(fewer), *other):
            return PAD if fewer < rows and row == other else SIZES
    return SIZES


def _same_place(one: Recompiled, other: Recompiled) -> bool:
    return (one.site, one.where, one.field) == (other.site, other.where, other.field)


def _changed(was: PlanOptions | SignalConfig, now: PlanOptions | SignalConfig) -> str:
    """Give the first field in which two configurations differ, "" if none does."""
    return next((name for name in was.__struct_fields__ if getattr(was, name) != getattr(now, name)), "")


def _done_once(old: _Form, new: _Form) -> set[int]:
    """Give which ops only the older graph has, if it has all of the newer one's, be it with other shapes, and these ops read nothing that
    the common ones make: they made parameters, data or an optimizer's state. Else none.
    """
    at, only = len(new.nodes) - 1, set()
    for i in range(len(old.nodes) - 1, -1, -1):
        if at >= 0 and (old.nodes[i].op, old.nodes[i].loc) == (new.nodes[at].op, new.nodes[at].loc):
            at -= 1
        else:
            only.add(i)
    if at >= 0 or not new.nodes:
        return set()
    return only if _unread(old, only) == only else set()


def _unlike(old: _Form, new: _Form) -> tuple[set[int], set[int]]:
    """Give which ops only the one, and only the other of two graphs has, by kind and line, without those that take each other's place; none
    where that would take long.
    """
    gone, came = set[int](), set[int]()
    if len(old.nodes) + len(new.nodes) <= MAX_ALIGNED:
        before, after = ([(node.op, node.loc) for node in form.nodes] for form in (old, new))
        for what, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            gone.update(range(i, j) if what == "delete" else ())
            came.update(range(k, m) if what == "insert" else ())
    return gone, came


def _reads(form: _Form, at: int) -> set[int]:
    """Give the ops that made the operands of one."""
    return {bisect_right(form.first, number) - 1 for number in form.wiring[at] if number >= 0}


def _unread(form: _Form, only: set[int]) -> set[int]:
    """Give those of some ops that read nothing that others make: they made parameters, data or an optimizer's state."""
    found: set[int] = set()
    for i in sorted(only):
        if _reads(form, i) <= found:
            found.add(i)
    return found


def _adds_up(form: _Form, at: int) -> bool:
    """Say whether an op adds a gradient to the one before."""
    return form.nodes[at].op == "add" and any(form.nodes[i].op == "grad" for i in _reads(form, at))


def _again(form: _Form, only: set[int]) -> bool:
    """Say whether ops that only one graph has are lines that the rest is, too, run more often there."""
    alone: dict[Location | None, set[str]] = {}
    common: dict[Location | None, set[str]] = {}
    for i, node in enumerate(form.nodes):
        (alone if i in only else common).setdefault(node.loc, set()).add(node.op)
    both = alone.keys() & common.keys()
    return len(only) > 1 and bool(both) and all(common[loc] <= alone[loc] for loc in both)


def _kinds(form: _Form, without: Collection[int] = ()) -> Counter[object]:
    """Count ops that are the same, in whatever order they are or read."""
    nodes = [node for i, node in enumerate(form.nodes) if i not in without]
    return Counter((node[:2], frozenset(Counter(node.types).items()), node[3:]) for node in nodes)


def _start(form: _Form) -> str:
    return amount(len(form.nodes), "op") + (f" starting with {form.nodes[0].op}" if form.nodes else "")


def _same(one: _NodeForm, other: _NodeForm) -> bool:
    """Say whether two ops are the same, in whatever order they read: gradients are asked for in the order in which inputs are known."""
    return one[:2] == other[:2] and one[3:] == other[3:] and Counter(one.types) == Counter(other.types)


def _made(new: _Form, old: _Form) -> Location | None:
    """Give the line of a result that only one of two graphs gives."""
    odd = [number for number in set(new.outputs) ^ set(old.outputs) if number >= 0]
    return new.nodes[bisect_right(new.first, min(odd)) - 1].loc if odd else None


def _sources(form: _Form, at: int) -> str:
    """Say what made each of the operands of an op."""
    made = [bisect_right(form.first, number) - 1 for number in form.wiring[at]]
    return ", ".join(f"{form.nodes[i].op} ({form.nodes[i].loc or '?'})" if i >= 0 else "a value from before" for i in made)


def _named(at: int, name: str, type_: TensorType) -> str:
    return f"{name or f'input {at}'}: {type_!r}"


sessions.on_define.append(noted)
sessions.on_start.append(lambda _: forget())

__all__ = ["Recompiled", "Told", "forget", "graph_named", "graphs", "noted"]
