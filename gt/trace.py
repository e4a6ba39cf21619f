"""The trace: ops of a thread that are pending, in order, and the structural key that they make.

Owns: ``Trace`` (one per thread), ``state`` (what else a thread's recording looks at), and who may flush a trace when. Nothing here runs
an op. Must not know: what ops mean, how tensors are used, where graphs run. Next: ``recording`` (how ops come here), ``rule`` and
``operand`` (what entries are made of), ``flush`` (from a trace to a run).

A trace entry is ``(rule id, operand value ids)``. A *rule* is an op with its attributes, operand types and result types,
interned, so one dictionary lookup is shape inference, and the tuple of entries is the structural key. Value ids count
results in order. Inputs and run-time scalars are entries too, without operands.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.buffers import Buffer, Mark, forget_dead
from gt.ir.blame import users_frame
from gt.ir.types import DType, Scalar, TensorType
from gt.operand import Number
from gt.rule import RULES, input_entries, number_entries
from gt.thread_state import ThreadState

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gt.ir.signals import SignalConfig
    from gt.replay import Recorder
    from gt.runtime.session import Session
    from gt.tensor import Tensor

MAX_PENDING, MAX_OVER = 4096, 1024  # values; longer chains flush themselves, or where a loop comes round soon after, so that keys recur
MAX_CODES = 32  # programs of a thread of which to expect that they come again
LARGE = 1 << 24  # bytes of a value that is worth a step's waiting for the next op
MAX_KEPT = 1 << 28  # bytes of values that only pending work keeps alive, as a loop that never reads does with its batches


class Stale(Exception):
    """An operand has to be looked at again."""


class Code:
    """The entries of a trace that was flushed and where they were recorded, as a key that is hashed once: a graph knows its ops' lines, so
    the same ops of other lines are another.

    ``next``: what its thread flushed after it when last it flushed it. A step repeats the one before it, as a rule. ``waits``: see
    ``Trace.waits``, None as long as it is not known.
    """

    __slots__ = ("entries", "where", "hash", "next", "waits")

    def __init__(self, entries: list[tuple[int, tuple[int, ...]]], where: list[tuple[types.CodeType, int] | None]) -> None:
        self.entries, self.where, self.hash = entries, where, hash(tuple(entries))
        self.next: Code | None = None
        self.waits: bool | None = None

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Code) and self.hash == other.hash and self.entries == other.entries and self.where == other.where
        )


class Modes:
    """What every op of a thread looks at; its trace has it too, because a thread's own names take long to look up."""

    __slots__ = ("grad", "autocast", "held", "flushed", "codes")

    def __init__(self) -> None:
        self.grad = True
        self.autocast: DType | None = None
        self.flushed: Code | None = None  # the last
        self.codes: dict[Code, Code] = {}  # the latest, each once
        self.held = 0  # bytes of inputs, a model's parameters say, that others held when last weighed


class Trace:
    """Pending work of one thread; after its flush, the tape of what is still alive."""

    __slots__ = (
        "modes",
        "code", "where", "handles", "size", "inputs", "input_ids", "scalars", "scalar_ids", "leaves", "links", "grafts", "marks",
        "freed", "overwritten", "moved", "functions", "watched", "edge", "sealed", "lock", "number", "saved", "names", "hooks", "hooked", "custom",
        "stop", "weighed", "closing", "session", "tracked", "types", "failed", "busy", "held", "recorder",
        "expected", "viewed", "__weakref__",
    )  # fmt: skip
    _numbers = itertools.count()

    def __init__(self, modes: Modes, signal: tuple[str, SignalConfig] | None = None) -> None:
        self.modes = modes  # of its thread
        self.number = next(Trace._numbers)
        self.code: list[tuple[int, tuple[int, ...]]] = []
        self.where: list[tuple[types.CodeType, int] | None] = []
        self.handles: list[Tensor] = []  # what named a value here, once each; those that nothing else holds are dead
        self.size = 0  # number of values
        self.inputs: list[Buffer] = []
        self.input_ids: dict[int, int] = {}  # buffer id -> value id
        self.scalars: list[Scalar] = []
        self.scalar_ids: list[int] = []
        self.leaves: dict[
            int, tuple[weakref.ref[Any], int]
        ] = {}  # value id -> who accumulates its gradient, its version
        self.links: dict[int, tuple[Trace, int]] = {}  # value id of an input, or of a view taken again -> where an earlier trace taped it
        self.grafts: dict[int, int] = {}  # value id -> the one whose history it was given, as a write off the tape keeps it
        self.viewed = False  # after the flush: some view has its history here
        self.marks: list[tuple[int, tuple[str, SignalConfig] | None]] = [(0, signal)] if signal else []
        self.freed: set[int] = set()  # entries whose saved values a backward() has let go
        self.overwritten: dict[int, int] = {}  # value whose tensor was changed in place -> the first entry of that change
        self.moved: dict[int, int | None] = {}  # value -> the one that a change in place of its tensor replaces, where the code does not say
        # Of several entries, one to torch: (first, end, values it would save, those of them that its gradients need a gradient by).
        self.functions: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = []
        self.watched: dict[int, Mark] = {}  # after the flush: by value that torch would have saved
        self.edge = False  # an optimizer has stepped: flush before the next op
        self.closing = False  # somebody looks whether it can be sealed: its thread starts nothing then
        self.sealed = False
        self.lock = threading.RLock()  # held by whoever flushes; recording only says that it is ``busy``: a lock costs more
        self.busy = False
        self.held = 0  # changes under way that take more than one record: see ``hold``
        self.recorder: Recorder | None = None  # of the function under gt.jit that is being recorded
        self.saved: dict[int, Buffer | Scalar] = {}  # after the flush: values a later backward() reads
        self.names: dict[int, str] = {}
        self.hooks = False  # some value of this trace has a gradient hook
        self.hooked: dict[int, dict[int, Any]] = {}  # value id -> the gradient hooks of its tensor
        self.custom: dict[int, Any] = {}  # entry -> the autograd.Function context whose backward it is
        self.stop = MAX_PENDING  # the size at which the next op flushes first; negative: at once
        self.weighed = MAX_KEPT + modes.held  # bytes of inputs until to look how many of them only this trace keeps
        self.types: list[TensorType] | None = None  # by value; made when asked
        self.tracked: bytearray | None = None  # by value: whether gradients flow to it; computed when asked
        self.session: Session | None = None
        self.expected: Code | None = None  # what it will be if it repeats: entries equal to those there are those
        self.failed: BaseException | None = None  # why its flush could not be: what is pending here is lost

    def coded(self) -> Code:
        """Give what has been recorded as a key."""
        code = self.expected
        if code is None or code.entries != self.code or code.where != self.where:
            code = Code(list(self.code), list(self.where))
            code = self.modes.codes.setdefault(code, code)
            if len(self.modes.codes) > MAX_CODES:
                self.modes.codes.pop(list(self.modes.codes)[0], None)  # a thread that reads may drop the same one meanwhile
        before, self.modes.flushed = self.modes.flushed, code
        if before is not None:
            before.next = code
        return code

    # -- entries

    def enter(self, tensor: Tensor | Number) -> int:
        """Give the value id of a tensor that exists already, making it an input of this trace."""
        buffer = tensor._buffer
        if buffer is None:
            if tensor.__class__ is Number:
                return self.enter_number(tensor)
            raise Stale  # a view whose base another thread has flushed since it was looked at
        if self.recorder is not None:
            self.recorder.entered(tensor, buffer)
        if self.session is not buffer.session:
            if self.session is not None:
                raise RuntimeError(
                    "this tensor belongs to a session that was closed or to another one: values do not move between sessions"
                )
            self.session = buffer.session
        index = self.input_ids.get(buffer.id)
        if index is None:
            type = buffer.type
            self.inputs.append(buffer)
            index = self.size
            self.where.append(None)
            self.code.append(input_entries[type])
            self.input_ids[buffer.id] = index
            self.size = index + 1
            self.weighed -= type.nbytes
            if self.weighed < 0:
                self.weigh()
            if tensor._name:
                self.names[index] = tensor._name
        if tensor._rg and index not in self.leaves and index not in self.links:
            if tensor._tape is not None:
                self.links[index] = tensor._tape
            else:
                self.leaves[index] = (weakref.ref(tensor), tensor._version)
        return index

    def enter_number(self, number: Number) -> int:
        """Give the value id of a run-time scalar."""
        index = self.size
        self.scalars.append(number.value)
        self.scalar_ids.append(index)
        self.where.append(None)
        self.code.append(number_entries[number._type])
        self.size = index + 1
        return index

    def weigh(self) -> None:
        """Flush before the next op if too much memory is kept by nothing but this trace, else look again after as much more."""
        before = -1
        while len(self.handles) != before:  # dropped views hold their bases: those go in the next round
            before = len(self.handles)
            self.handles = [t for t in self.handles if sys.getrefcount(t) > 3]  # the list, ``t`` and the call
        kept = sum(b.type.nbytes for b in self.inputs if sys.getrefcount(b) <= 3)  # ``inputs``, ``b`` and the call
        if kept > MAX_KEPT:
            self.stop = -1
        self.modes.held = sum(b.type.nbytes for b in self.inputs) - kept
        self.weighed = MAX_KEPT + self.modes.held

    def wait(self) -> None:
        """Wait for another thread that is flushing this trace, and will say what its tensors name and what it keeps."""
        if self.sealed:
            with self.lock:
                pass

    def mend(self) -> None:
        """Forget what an interrupted recording left half done: what is in ``code`` counts, and everything else follows it."""
        ids: dict[str, list[int]] = {"input": [], "scalar": []}
        size = 0
        for id, _ in self.code:
            rule = RULES[id >> 1]
            if rule.op is None:
                ids[rule.attrs[0][0]].append(size)
            size += len(rule.outputs)
        del self.where[len(self.code) :], self.inputs[len(ids["input"]) :], self.scalars[len(ids["scalar"]) :]
        self.size, self.scalar_ids = size, ids["scalar"]
        self.input_ids = {buffer.id: id for buffer, id in zip(self.inputs, ids["input"], strict=True)}
        for table in (self.leaves, self.links, self.grafts, self.names, self.moved):
            for id in [id for id in table if id >= size]:
                del table[id]

    def end_step(self) -> None:
        """Say that an optimizer has stepped: the pending work is submitted before the next op."""
        self.edge, self.stop = True, -1

    def waits(self) -> bool:
        """Whether a step is submitted at the next op rather than now: something large that only backward needed is named by what may be
        about to end, as a function's own variables do. What is named when it is submitted is kept.
        """
        code = self.expected if self.expected is not None and self.expected.entries == self.code else None
        if code is not None and code.waits is not None:
            return code.waits
        named = zip(self.handles, map(sys.getrefcount, self.handles), strict=True)  # the list, the pair and the call hold each, too
        found = any(n > 3 and t._rg and not t._leaf and t._type.nbytes >= LARGE and t._trace is self for t, n in named)
        if code is not None:
            code.waits = found
        return found

    def mark(self, signal: tuple[str, SignalConfig] | None) -> None:
        """Entries from here on belong to ``signal``."""
        with self.lock:
            at = len(self.code)
            if self.marks and self.marks[-1][0] == at:
                self.marks.pop()
            if (self.marks[-1][1] if self.marks else None) is not signal:
                self.marks.append((at, signal))

    def signal_at(self, entry: int) -> tuple[str, SignalConfig] | None:
        """Give the signal under which an entry was recorded."""
        found = None
        for at, signal in self.marks:
            if at > entry:
                break
            found = signal
        return found


class _State(ThreadState):
    """What recording keeps for each thread."""

    def begin(self) -> None:
        self.modes = Modes()
        self.trace = Trace(self.modes)
        self.anomaly = False
        self.check_nan = False  # in every gradient, as anomaly mode does unless told otherwise
        self.signals: list[tuple[str, SignalConfig]] = []
        self.recorder: Recorder | None = None

    @property
    def grad(self) -> bool:
        return self.modes.grad

    @grad.setter
    def grad(self, on: bool) -> None:
        self.modes.grad = on

    @property
    def autocast(self) -> DType | None:
        return self.modes.autocast

    @autocast.setter
    def autocast(self, dtype: DType | None) -> None:
        self.modes.autocast = dtype


state = _State()
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True
    state.trace.stop = -1  # the only thread that lives on
    forget_dead()


os.register_at_fork(after_in_child=_after_fork)


def check_fork() -> None:
    if _forked:
        raise RuntimeError(
            "gt was used in a forked child process: the session belongs to the parent. Start processes with the 'spawn' method, "
            "or use gt only in the parent"
        )


_replacements = 0


def replacements() -> int:
    """Give how often something that functions under ``gt.jit`` may have found has been replaced: parameters, modes, state."""
    return _replacements


def replaced() -> None:
    """Say that a model or an optimizer holds other tensors now, or is in another mode."""
    global _replacements
    _replacements += 1


def new_trace() -> Trace:
    """Give a trace for this thread's next ops, under the signal it is in."""
    trace = Trace(state.modes, state.signals[-1] if state.signals else None)
    trace.recorder = state.recorder
    return trace


def current() -> Trace:
    """Give this thread's trace, after flushing what must not grow any further."""
    trace = state.trace
    if trace.size >= trace.stop:
        check_fork()
        if trace.held and not trace.sealed:
            return trace
        if not trace.sealed:
            if trace.stop == MAX_PENDING and trace.size < MAX_PENDING + MAX_OVER and not _begins_again(trace, sys._getframe(1)):
                return trace
            _flush(trace, _why_full(trace))
        elif state.trace is trace:
            state.trace = new_trace()
        return state.trace
    return trace


def _begins_again(trace: Trace, frame: types.FrameType) -> bool:
    """Say whether the op to come is at the place of the trace's first: a loop comes round, and pieces that end there are alike."""
    frame = users_frame(frame)
    place = next((place for place in trace.where if place is not None), None)
    return place is not None and place[0] is frame.f_code and place[1] == frame.f_lasti


def _why_full(trace: Trace) -> str:
    if trace.edge:
        return "the edge after optimizer.step()"
    if trace.size >= MAX_PENDING:
        return f"more than {MAX_PENDING} values in pending work, inputs and numbers included"
    return f"more than {MAX_KEPT >> 20} MiB kept by pending work alone"


def hold() -> Trace:
    """Give this thread's trace, which nobody else flushes before ``held`` is counted down again."""
    while True:
        trace = current()
        trace.held += 1
        if not trace.closing:
            return trace
        trace.held -= 1
        time.sleep(0)


class holding:  # noqa: N801 - reads as a function
    """Nobody else flushes this thread's trace inside."""

    __slots__ = ("trace",)

    def __enter__(self) -> Trace:
        self.trace = hold()
        return self.trace

    def __exit__(self, *_: object) -> None:
        self.trace.held -= 1


class apart:  # noqa: N801 - reads as a function
    """What is recorded inside reads nothing pending, and is handed over at the end as work of its own."""

    __slots__ = ("reason", "trace")

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __enter__(self) -> None:
        self.trace, state.trace = state.trace, new_trace()

    def __exit__(self, kind: object, *_: object) -> None:
        own, state.trace = state.trace, self.trace
        if kind is None:
            _flush(own, self.reason)


read_guard: Callable[[], None] | None = None  # called before a value is read; set by gt.flush_guard
_flush: Callable[..., Future[Any] | None]  # set by gt.flush, which imports this module


def install_flush(function: Callable[..., Future[Any] | None]) -> None:
    global _flush
    _flush = function


def settle(trace: Trace, reason: str, reads: int = -1) -> Future[Any] | None:
    """Flush ``trace``: every live pending value of it becomes a buffer. ``reads``: as for ``flush``."""
    return _flush(trace, reason, reads)


def check_read() -> None:
    """Tell the flush guard, if one is set, that a value is about to be read."""
    if state.recorder is not None:
        state.recorder.refuse_read()
    if read_guard is not None:
        read_guard()


def guard_reads(guard: Callable[[], None] | None) -> None:
    """Call ``guard`` before every read, until told otherwise."""
    global read_guard
    read_guard = guard
