"""Flushing: from pending entries to one run of a known graph.

Owns: what is live at a flush, the key of a trace, and the graph a new key becomes. Must not know: how a session runs it.
Next: ``session`` (where runs go), ``gt.ir.graph``.

A flush runs *all* live pending values, so nothing runs twice. Live are: values some tensor still names, and what a later
``backward()`` over a tensor still alive will read. Views are not materialised: their base is, and they are taken from it again.
"""

from __future__ import annotations

import dis
import linecache
import logging
import os
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from sys import getrefcount
from typing import Any, NamedTuple

from msgspec.structs import replace

from gt import session as sessions
from gt.buffers import Buffer, put_back, take_dead
from gt.config import get_config
from gt.handle import Handle
from gt.ir.blame import users_frame
from gt.ir.graph import Graph, Location, Node, Value
from gt.ir.signals import PlanOptions, SignalConfig, work_of
from gt.ir.text import print_graph
from gt.ir.types import Scalar, TensorType
from gt.passes.autodiff import saved_values
from gt.precision import with_precision
from gt.recording import native, new_buffers
from gt.rounds import Part, cut
from gt.rule import RULES, Rule
from gt.runtime import log as logs
from gt.runtime.errors import DispatcherLost
from gt.runtime.interrupt import SHIELD
from gt.runtime.session import CallLock, Session, check_thread
from gt.trace import Trace, install_flush, new_trace, state
from gt.versions import Saved, watch

Named = tuple[str, SignalConfig]
Mark = tuple[int, Named | None]  # from which entry on what is recorded is under which signal
log = logging.getLogger("gt.flush")
_defining = CallLock()  # threads that flush at once number their graphs one after the other
UNHELD = 2  # references to an object that only a local variable and the call that counts them hold
WHOLE_GRAPHS = 5  # the level of GT_DEBUG=4
OFTEN, SHORT = 8, 1024  # runs of a loop of at most so many ops after which it is planned whole: a run for each part costs as much as they do
LOOP = "loop"  # how the names begin of graphs of loops that are planned whole


@dataclass
class Loop:
    """What a flush runs whose rounds are alike: parts in order, with their graphs' numbers."""

    rounds: list[tuple[int, Part]]
    runs: int = 0


@dataclass
class Counters:
    """What flushing has done in this process, for ``gt.stats()`` and tests."""

    flushes: int = 0
    graphs: int = 0  # flushes whose key was new
    reasons: dict[str, int] = field(default_factory=dict)


counters = Counters()


class Flushed(NamedTuple):
    """Why a flush ran, and from which line of the user's. ``made``: its results' ids."""

    made: Sequence[int]
    reason: str
    code: types.CodeType
    lasti: int


recent: deque[tuple[Sequence[int], str, types.CodeType, int]] = deque(maxlen=1024)  # ``Flushed``, the latest of this process


def flushed_as(buffer: int) -> Flushed | None:
    """Give the flush that made a buffer, if it was one of the latest."""
    return next((Flushed(*flushed) for flushed in reversed(tuple(recent)) if buffer in flushed[0]), None)


@dataclass
class Submitted:
    """One run as a function under ``gt.jit`` made it, and what it left where.

    ``structure``: the key of its graph. ``inputs`` and ``made`` are ids: a buffer held here would not be donated later.
    """

    trace: Trace | None
    structure: tuple[Any, ...]
    known: int
    where: list[tuple[types.CodeType, int] | None]
    scalars: list[Scalar]
    input_types: list[TensorType]
    donated: tuple[int, ...]
    outputs: tuple[int, ...]
    types: list[TensorType]
    inputs: list[int]
    made: list[int]
    live: list[tuple[Handle, int]]

    def forget(self) -> None:
        """Let go of what only the recording needs."""
        self.trace, self.inputs, self.made, self.live = None, [], [], []


def flush(trace: Trace, reason: str, reads: int = -1) -> Future[Any] | None:
    """Run what is pending in ``trace``. Returns at once; errors of the run surface when a value is read. ``reads``: the value of the trace
    that is read next; gives the future of that, if the session has asked for it with the run.

    Errors: what kept the work from being handed over (a closed session, a lost server); values pending with it are lost.
    After Ctrl-C in a wait, or another signal whose handler raises, and while a lost server
    may still be started again, they are pending as before. RuntimeError, with nothing lost, where this thread is recording an op into
    ``trace`` and a finalizer or a signal handler came in between.
    """
    check_thread()
    while True:
        free, future = _flush_if_free(trace, reason, reads)
        if free:
            return future
        with SHIELD.lifted():
            time.sleep(0)


def _flush_if_free(trace: Trace, reason: str, reads: int) -> tuple[bool, Future[Any] | None]:
    """Flush unless the trace's own thread is in the middle of something, which this one must not wait for with the lock; say whether it did."""
    with SHIELD, trace.lock:
        if trace.sealed:
            if trace.failed is not None:
                raise trace.failed.with_traceback(None)
            return True, None
        mine = state.trace is trace
        if mine and trace.busy:  # nothing is lost: the op goes on, and what it is recorded with stays pending
            raise RuntimeError(
                "a value was read in the middle of recording an op, by a finalizer (__del__) or a signal handler: keep what is to be "
                "read in a tensor and read it later"
            )
        trace.closing = True
        if not mine and (trace.busy or trace.held):
            trace.closing = False
            return False, None
        trace.sealed, trace.stop = True, -1
        if mine:
            if trace.modes.held:  # a model that is gone counts for ever less
                trace.modes.held = max(min(trace.modes.held, sum([b.type.nbytes for b in trace.inputs])), trace.modes.held // 2)
            state.trace = new_trace()
        if not trace.code:
            return True, None
        try:
            session = trace.session or sessions.current()
            live = live_handles(trace)
            saved, kept = _residuals(trace, [t for t in live if t._rg and not t._leaf])
            return True, _submit(trace, session, live, saved, kept, reason, reads)
        except BaseException as error:
            if _may_go_on(error, trace):
                trace.sealed = trace.closing = False
                if not state.trace.code:
                    state.trace = trace
            else:
                trace.failed, trace.handles = error, []  # type: ignore[assignment]
            raise


def _may_go_on(error: BaseException, trace: Trace) -> bool:
    """Whether nothing was handed over, and can be later: after what a signal's handler has raised in a wait, and while the server is
    not there.
    """
    session = trace.session or sessions.running()
    away = isinstance(error, DispatcherLost) and session is not None and session.closed is None
    return away or error is SHIELD.interruption


def abandon(session: Session) -> None:
    """Let go of what this thread has pending on values of a session that is over."""
    trace = state.trace
    if trace.session is session and session.closed is not None:
        with trace.lock:
            trace.closing = trace.sealed = True
            trace.stop, trace.failed = -1, session.closed.exception()
        state.trace = new_trace()


def _live_handles(trace: Trace) -> list[Handle]:
    """Give the tensors that name a pending value of this trace; views forget theirs and are taken from their base again."""
    live: list[Handle] = []
    handles = trace.handles
    t = None
    while handles:  # backwards: views go before the bases they hold
        t = handles.pop()
        index = t._index  # before the trace: another thread may take a view again meanwhile
        if getrefcount(t) <= UNHELD or t._trace is not trace:
            continue
        if t._base is not None:
            t._tape = trace.links.get(index, (trace, index)) if t._rg and not t._leaf else None
            trace.viewed = trace.viewed or t._tape is not None
            t._trace = None
            t._seen = -2 - t._seen  # what it had seen, marked; last: who finds it current finds all of it
            continue
        live.append(t)
    del t
    found = [t for t in reversed(live) if getrefcount(t) > UNHELD + 1]  # not held by what was found dead meanwhile
    trace.handles = list(found)  # type: ignore[arg-type]
    return found


def entries_backwards(trace: Trace) -> Iterator[tuple[int, Rule, bool, tuple[int, ...], int]]:
    """Give (entry index, rule, taped, operand ids, first result id) from the last entry to the first."""
    first = trace.size
    for entry in range(len(trace.code) - 1, -1, -1):
        id, operands = trace.code[entry]
        rule = RULES[id >> 1]
        first -= 1 if rule.single is not None else len(rule.outputs)
        yield entry, rule, bool(id & 1), operands, first


def reached(rule: Rule, first: int, ids: set[int]) -> bool:
    """Say whether one of an entry's results is among ``ids``."""
    if rule.single is not None:
        return first in ids
    return not ids.isdisjoint(range(first, first + len(rule.outputs)))


def requires(trace: Trace, ids: tuple[int, ...]) -> tuple[bool, ...]:
    """Say which values a gradient flows to: leaves, values of earlier tapes, and results of taped entries."""
    if trace.tracked is None or len(trace.tracked) < trace.size:
        tracked = bytearray()
        for code, _ in trace.code:
            rule = RULES[code >> 1]
            first = len(tracked)
            if rule.op is None:
                tracked.append(first in trace.leaves or first in trace.links)
            else:
                tracked.extend(
                    bool(code & 1 and t.dtype.kind in "fc") or first + i in trace.leaves or first + i in trace.links
                    for i, t in enumerate(rule.outputs)
                )
        trace.tracked = tracked
    return tuple([bool(trace.tracked[id]) for id in ids])


def saved_by(rule: Rule, needs: tuple[bool, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give which operands and results the op's vjp reads, for gradients of the operands in ``needs``."""
    found = rule.saved.get(needs)
    if found is None:
        assert rule.op is not None
        found = rule.saved[needs] = saved_values(rule.op, rule.attrs, rule.inputs, rule.outputs, needs)
    return found


def _residuals(trace: Trace, roots: list[Handle]) -> tuple[set[int], set[int]]:
    """Give the values that a backward() from ``roots`` will read, and those that torch would have saved for it."""
    if not roots or len(trace.freed) == sum([code & 1 for code, _ in trace.code]):
        return set(), set()
    needed = {t._index for t in roots}
    saved: set[int] = set()
    kept: set[int] = set()
    theirs = Saved(trace)
    for entry, rule, taped, operands, first in entries_backwards(trace):
        if not taped or entry in trace.freed or not reached(rule, first, needed):
            continue
        needed.update(operands)
        needs = requires(trace, operands)
        inputs, outputs = saved_by(rule, needs)
        saved.update([operands[i] for i in inputs])
        saved.update([first + i for i in outputs])
        kept.update(theirs(entry, rule, needs, operands, first))
    return saved, kept


# -- keys


def _submit(
    trace: Trace, session: Session, live: list[Handle], saved: set[int], kept: set[int], reason: str, reads: int
) -> Future[Any] | None:
    inputs: dict[int, Buffer] = {}
    scalars: dict[int, Scalar] = {}
    if saved or kept:
        inputs = dict(zip(trace.input_ids.values(), trace.inputs, strict=True))
        scalars = dict(zip(trace.scalar_ids, trace.scalars, strict=True))
        watch(trace, kept, inputs)
    computed = saved - inputs.keys() - scalars.keys()
    named = named_values(live)
    outputs = tuple(sorted(named.keys() | computed) if computed else named)
    trace.saved = {id: inputs[id] if id in inputs else scalars[id] for id in saved - computed}
    if not outputs:
        if session.closed is None:
            session.free(take_dead(session))
        _seal(trace, bool(saved) or trace.viewed)
        return None
    del inputs
    held = trace.inputs
    donated, names, input_types = given(held)
    marks = told_apart([(at, signal) for at, signal in trace.marks if at < len(trace.code)])
    config = get_config()
    signals, options = named_signals(marks, config.base), with_precision(config.options)
    hints: tuple[tuple[int, str], ...] = ()
    if any(found.params for _, found in signals):  # names decide where parameters go
        trace.names.update((t._index, t._name) for t in live if t._name)
        hints = tuple(sorted(trace.names.items()))
    code = trace.coded()
    if state.modes is trace.modes and not state.trace.code:
        state.trace.expected = code.next
    structure = (code, outputs, donated, marks, signals, options, hints)
    counters.flushes += 1
    counters.reasons[reason] = counters.reasons.get(reason, 0) + 1
    table = sessions.known(session)
    known: int | Loop | None = table.get(structure)
    if isinstance(known, Loop) and len(trace.code) <= SHORT:
        known.runs += 1
    if known is None or (isinstance(known, Loop) and (known.runs >= OFTEN or trace.recorder is not None)):
        with _defining:
            known = table.get(structure)
            rounds = _define_rounds(trace, session, outputs, signals, options, reason) if known is None else []
            if rounds:
                known = Loop(rounds)
            elif not isinstance(known, int):
                name, key = (_name(session), structure) if known is None else (f"{LOOP}{len(table)}", (structure, Loop))
                graph = build_graph(trace, name, outputs, frozenset(donated), signals, options)
                known = _define(session, key, graph, reason)
            table[structure] = known
    else:
        log.info("flush (%s): graph %s", reason, known if isinstance(known, int) else [number for number, _ in known.rounds])
    types_ = list(named.values())
    if computed:
        every = types_by_value(trace)
        types_ = [every[id] for id in outputs]
    replaces = replaced(live, outputs)
    if logs.client_log.on:
        _tell(known, reason, users_frame(sys._getframe(1)))
    dead = take_dead(session)
    frees = [names[i] for i in donated] + dead
    spare = [held[i] for i in donated] if isinstance(known, int) else []
    made_here = new_buffers(types_, session, spare)
    results = [b.id for b in made_here]
    future: Future[Any] | None = None
    try:
        if isinstance(known, int):
            at = outputs.index(reads) if reads in outputs else -1
            future = session.run(known, names, results, trace.scalars, frees, replaces, at)
        else:
            _run_rounds(trace, session, known.rounds, names, dict(zip(outputs, results, strict=True)), frees)
            for i in donated:
                held[i].id = -1 - names[i]  # the last run frees it, not its finalizer
    except BaseException:
        for i in donated:
            held[i].id, held[i].type = names[i], input_types[i]
        put_back(session, dead)
        raise
    buffers = dict(zip(outputs, made_here, strict=True))
    frame = users_frame(sys._getframe(1))
    made: Sequence[int] = range(results[0], results[-1] + 1)
    if len(made) != len(results):  # another thread flushes at once
        made = results
    recent.append((made, reason, frame.f_code, frame.f_lasti))
    taped = take(trace, live, buffers)
    for id in computed:
        trace.saved[id] = buffers[id]
    if kept:
        watch(trace, kept, buffers)
    if trace.recorder is not None:
        trace.recorder.submitted(
            Submitted(
                trace, structure, known, list(trace.where), list(trace.scalars), input_types, donated, outputs,
                types_, names, results, [(t, t._index) for t in live],
            )
        )  # fmt: skip
        trace.recorder = None
    _seal(trace, bool(saved) or taped or trace.viewed)
    return future


def _tell(known: int | Loop, reason: str, frame: types.FrameType) -> None:
    """Write the instruction log's line of a flush."""
    graphs = str(known) if isinstance(known, int) else ",".join(str(number) for number, _ in known.rounds[:100])
    at = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    logs.client_log.write("flush", "graph", 0, f"graph={graphs} at={at} reason={reason}")


def _named(live: list[Handle]) -> dict[int, TensorType]:
    """Give the types of the values that tensors name, in order of the values."""
    found = {t._index: t._type for t in live}
    return {index: found[index] for index in sorted(found)}


def _replaced(live: list[Handle], outputs: tuple[int, ...]) -> tuple[int, ...]:
    """Give for each output the buffer that its tensor had before, -1 where that is none or not one; nothing if so for all."""
    found: dict[int, int] = {}
    for t in live:
        if isinstance(before := getattr(t, "_before", None), Buffer):
            t._before = before.id  # it goes with this run
    before = None
    for t in live:
        found[t._index] = getattr(t, "_before", -1) if t._index not in found else -1
    return tuple([found.get(id, -1) for id in outputs]) if any(hasattr(t, "_before") for t in live) else ()


def _given(held: list[Buffer]) -> tuple[tuple[int, ...], list[int], list[TensorType]]:
    """Give which inputs of a run no handle, tape or fetch names, so that it may free them, and the ids and types of all."""
    donated = tuple([i for i in range(len(held)) if getrefcount(held[i]) <= UNHELD])  # the list and the call
    return donated, [b.id for b in held], [b.type for b in held]


def _take(trace: Trace, live: list[Handle], buffers: dict[int, Buffer]) -> bool:
    """Let tensors name what a run makes. Says whether one of them is on the tape."""
    for t in live:
        t._tape = (trace, t._index) if t._rg and not t._leaf else None
        t._buffer = buffers[t._index]
        t._trace = None
        if hasattr(t, "_before"):
            del t._before
    return any([t._tape is not None for t in live])


def _define(session: Session, structure: object, graph: Graph, reason: str) -> int:
    """Make a new graph known to the session; give its number."""
    number = len(sessions.known(session))
    counters.graphs += 1
    log.info("flush (%s): new graph %d, %d nodes", reason, number, len(graph.nodes))
    if log.isEnabledFor(WHOLE_GRAPHS):
        log.log(WHOLE_GRAPHS, "%s", print_graph(graph, locations=True))
    session.define(number, graph)
    sessions.known(session)[structure] = number
    for hook in sessions.on_define:
        hook(number, graph)
    return number


def _name(session: Session) -> str:
    return f"flush{len(sessions.known(session))}"


def _define_rounds(
    trace: Trace, session: Session, outputs: tuple[int, ...], signals: tuple[Named, ...], options: PlanOptions, reason: str
) -> list[tuple[int, Part]]:
    """Make the parts of a trace known whose rounds are alike; give what to run in order, with the graphs' numbers."""
    limits = options.strict or options.comm_bytes is not None or options.memory_limit is not None or options.auto == "search"
    if signals or limits or trace.recorder is not None:
        return []
    table, parts = sessions.known(session), cut(trace.code, outputs)
    for part in parts:
        if (part.key, options) not in table:
            graph = build_graph(trace, _name(session), part.outputs, frozenset(part.donated), signals, options, part)
            _define(session, (part.key, options), graph, reason)
    return [(table[part.key, options], part) for part in parts]


def _run_rounds(
    trace: Trace, session: Session, rounds: list[tuple[int, Part]], names: list[int], results: dict[int, int], frees: list[int]
) -> None:
    """Run parts one after the other. The trace's inputs are left alone until the last: where a wait is interrupted, all runs again."""
    at = dict(zip(trace.input_ids.values(), names, strict=True)) | results
    scalars = dict(zip(trace.scalar_ids, trace.scalars, strict=True))
    between: dict[int, Buffer] = {}
    for i, (number, part) in enumerate(rounds):
        fresh = [(id, type) for id, type in zip(part.outputs, part.types, strict=True) if id not in results]
        for (id, _), buffer in zip(fresh, new_buffers([type for _, type in fresh], session, []), strict=True):
            at[id], between[id] = buffer.id, buffer
        gone = [at[id] for id in part.frees] + (frees if i == len(rounds) - 1 else [])
        session.run(number, [at[id] for id in part.inputs], [at[id] for id in part.outputs], [scalars[id] for id in part.scalars], gone)
        for id in part.frees:
            buffer = between.pop(id)
            buffer.id = -1 - buffer.id


def _seal(trace: Trace, keep_tape: bool) -> None:
    """Let go of everything a later backward() does not need."""
    trace.handles = []
    trace.inputs = []
    trace.scalars = []
    if not keep_tape:
        trace.code, trace.where, trace.links, trace.grafts, trace.leaves = [], [], {}, {}, {}


_chosen = (_live_handles, _named, _given, _take, _replaced)
if native is not None:
    _chosen = native.live_handles, native.named, native.given, native.take, native.replaced
live_handles: Callable[[Trace], list[Handle]] = _chosen[0]
named_values: Callable[[list[Handle]], dict[int, TensorType]] = _chosen[1]
given: Callable[[list[Buffer]], tuple[tuple[int, ...], list[int], list[TensorType]]] = _chosen[2]
take: Callable[[Trace, list[Handle], dict[int, Buffer]], bool] = _chosen[3]
replaced: Callable[[list[Handle], tuple[int, ...]], tuple[int, ...]] = _chosen[4]


# -- graphs


def told_apart(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """Give each meaning that a name has had a name of its own: one may be registered anew while work under it is pending."""
    if not _ambiguous(marks):
        return tuple(marks)
    said = {id(signal): signal for _, signal in marks if signal is not None}
    meanings: dict[str, list[tuple[SignalConfig, SignalConfig | None]]] = {}  # what work follows, and all that a scope asks for

    def own_name(name: str, work: SignalConfig, scope: SignalConfig | None) -> str:
        known = meanings.setdefault(name, [])
        i = next((i for i, (w, s) in enumerate(known) if w == work and (scope is None or s is None or s == scope)), len(known))
        before = known[i][1] if i < len(known) else None
        known[i : i + 1] = [(work, before if scope is None else scope)]
        return f"{name}#{i + 1}" if i else name

    def own(name: str, found: SignalConfig) -> Named:
        name, behind, asked = own_name(name, work_of(found), found), found.backward_signal, found.backward_config
        return name, found if behind is None or asked is None else replace(found, backward_signal=own_name(behind, asked, None))

    owned = {key: own(*signal) for key, signal in said.items()}
    return tuple([(at, None if signal is None else owned[id(signal)]) for at, signal in marks])


def _ambiguous(marks: Iterable[Mark]) -> bool:
    """Say whether a name has two meanings. Runs at each flush."""
    scopes: dict[str, SignalConfig] = {}
    behinds: dict[str | None, SignalConfig] = {}
    for _, signal in marks:
        if signal is None or scopes.get(signal[0]) is signal[1]:
            continue
        name, found = signal
        asked = found.backward_config
        if scopes.setdefault(name, found) != found or (asked is not None and behinds.setdefault(found.backward_signal, asked) != asked):
            return True
    return any(name in scopes and work_of(scopes[name]) != asked for name, asked in behinds.items())


def named_signals(marks: Iterable[Mark], base: Named | None) -> tuple[Named, ...]:
    """Give what every signal means that work or its gradients follow: the gradients' signals have no scope of their own.

    ``base``: what holds for work that no scope marks.
    """
    if not marks and base is None:
        return ()
    signals: dict[str, SignalConfig] = dict([base] if base is not None else [])
    todo = [signal for _, signal in marks if signal is not None]
    config = get_config()
    while todo:
        name, found = todo.pop()
        signals[name] = found
        behind = config.behind(found)
        if behind is not None and behind[0] not in signals:
            todo.append(behind)
    return tuple(sorted(signals.items()))


def build_graph(
    trace: Trace, name: str, outputs: tuple[int, ...], donated: frozenset[int], signals: tuple[Named, ...], options: PlanOptions,
    part: Part | None = None,
) -> Graph:  # fmt: skip
    """Make the graph of a trace, or of a part of it. Runs once for each new key."""
    names = trace.names.get
    by_name = any(found.params for _, found in signals)  # rules for parameters know values by name: no variable's will do
    inputs: list[Value] = []
    scalars: list[Value] = []
    nodes: list[Node] = []
    values: dict[int, Value] = {}
    start, stop, at = 0, len(trace.code), 0
    if part is not None:
        start, stop, at = part.start, part.stop, part.first
        types = types_by_value(trace)
        inputs = [Value(types[id], names(id, "")) for id in part.inputs]
        scalars = [Value(types[id], names(id, "")) for id in part.scalars]
        values.update(zip((*part.inputs, *part.scalars), (*inputs, *scalars), strict=True))
    marks = iter([*told_apart(trace.marks), (len(trace.code) + 1, None)])
    signal: str | None = None
    next_at, next_signal = next(marks)
    for entry in range(start, stop):
        (id, operands), where = trace.code[entry], trace.where[entry]
        while entry >= next_at:
            signal = next_signal[0] if next_signal else None
            next_at, next_signal = next(marks)
        rule = RULES[id >> 1]
        if rule.op is None:
            if part is None:
                values[at] = value = Value(rule.outputs[0], names(at, ""))
                (inputs if rule.attrs[0][0] == "input" else scalars).append(value)
            at += 1
            continue
        if rule.single is not None:
            hint = names(at) or ("" if by_name or not where else assigned_name(*where))
            results: tuple[Value, ...] = (Value(rule.single, hint),)
        else:
            results = tuple([Value(t, names(i, "")) for i, t in enumerate(rule.outputs, at)])
        taken = tuple([values[i] for i in operands])
        nodes.append(Node(rule.op, taken, results, rule.attrs, location(*where) if where else None, signal, bool(id & 1)))
        for value in results:
            values[at] = value
            at += 1
    return Graph(
        name, tuple(inputs), tuple(scalars), tuple(nodes), tuple([values[i] for i in outputs]),
        donated=donated, signals=signals, options=options,
    )  # fmt: skip


def types_by_value(trace: Trace) -> list[TensorType]:
    """Give the types of all values of a trace."""
    return [type for id, _ in trace.code for type in RULES[id >> 1].outputs]


@lru_cache(maxsize=1 << 16)
def location(code: types.CodeType, lasti: int) -> Location:
    """Give the line of a raw source position."""
    line = next((line for start, stop, line in code.co_lines() if start <= lasti < stop), None) or code.co_firstlineno
    return Location(code.co_filename, line, code.co_qualname, linecache.getline(code.co_filename, line).strip())


@lru_cache(maxsize=1 << 16)
def assigned_name(code: types.CodeType, lasti: int) -> str:
    """Give the variable that the instruction after a call stores into, or "" (``h = relu(x)`` gives "h")."""
    for instruction in dis.get_instructions(code):
        if instruction.offset > lasti:  # which of a call lies behind it, in its cache
            return instruction.argval if instruction.opname in ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL") else ""
    return ""


install_flush(flush)
sessions.on_end.append(abandon)
