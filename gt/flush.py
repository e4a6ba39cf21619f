"""Flushing: from pending entries to one run of a known graph.

Owns: what is live at a flush, the key of a trace, and what its tensors name then. Must not know: how a session runs it.
Next: ``capture`` (the graph that a new key becomes), ``residuals`` (what a backward will read), ``session`` (where runs go).

A flush runs *all* live pending values, so nothing runs twice. Live are: values some tensor still names, and what a later
``backward()`` over a tensor still alive will read. Views are not materialised: their base is, and they are taken from it again.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from sys import getrefcount
from typing import Any, NamedTuple

from gt import session as sessions
from gt.buffers import Buffer, put_back, take_dead
from gt.capture import build_graph, types_by_value
from gt.config import get_config
from gt.handle import Handle
from gt.ir.blame import users_frame
from gt.ir.graph import Graph
from gt.ir.signals import PlanOptions
from gt.ir.text import print_graph
from gt.ir.types import Scalar, TensorType
from gt.precision import with_precision
from gt.recording import native, new_buffers
from gt.residuals import residuals
from gt.rounds import Part, cut
from gt.runtime import log as logs
from gt.runtime.errors import DispatcherLost
from gt.runtime.interrupt import SHIELD
from gt.runtime.session import CallLock, Session, check_thread
from gt.signal_marks import Named, named_signals, told_apart
from gt.trace import Trace, install_flush, new_trace, state
from gt.versions import watch

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
            saved, kept = residuals(trace, [t for t in live if t._rg and not t._leaf])
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
    known: int | Loop | None = sessions.known(session).get(structure)
    if isinstance(known, int):
        log.info("flush (%s): graph %s", reason, known)
    else:
        known = _planned(trace, session, structure, known, reason)
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


def _planned(trace: Trace, session: Session, structure: tuple[Any, ...], known: Loop | None, reason: str) -> int | Loop:
    """Give what a key runs as that no graph is known for: a new one's graph or loop, which the session is told of, or what a loop has run
    as; its whole graph, once it is run often.
    """
    if known is not None:
        known.runs += len(trace.code) <= SHORT
        if known.runs < OFTEN and trace.recorder is None:
            log.info("flush (%s): graph %s", reason, [number for number, _ in known.rounds])
            return known
    _, outputs, donated, _, signals, options, _ = structure
    table = sessions.known(session)
    with _defining:
        found: int | Loop | None = table.get(structure)
        rounds = _define_rounds(trace, session, outputs, signals, options, reason) if found is None else []
        if rounds:
            found = Loop(rounds)
        elif not isinstance(found, int):
            name, key = (_name(session), structure) if found is None else (f"{LOOP}{len(table)}", (structure, Loop))
            graph = build_graph(trace, name, outputs, frozenset(donated), signals, options)
            found = _define(session, key, graph, reason)
        table[structure] = found
    return found


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


install_flush(flush)
sessions.on_end.append(abandon)
