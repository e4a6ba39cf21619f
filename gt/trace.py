"""Recording: ops append to a flat trace, and reading a value flushes it.

Owns: ``Trace`` (one per thread), ``record`` (the path every op takes) and the structural key. Nothing here runs an op. Must
not know: what ops mean, how tensors are used, where graphs run. Next: ``handle`` (what names a value), ``flush`` (from a
trace to a run).

A trace entry is ``(rule id, operand value ids)``. A *rule* is an op with its attributes, operand types and result types,
interned, so one dictionary lookup is shape inference, and the tuple of entries is the structural key. Value ids count
results in order. Inputs and run-time scalars are entries too, without operands.
"""

from __future__ import annotations

import itertools
import operator
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.buffers import Buffer, Mark, forget_dead, named_buffers
from gt.buffers import ids as _ids  # noqa: F401  gt/_recording.c takes it
from gt.ir.blame import Located, users_frame, users_line
from gt.ir.blame import ours as _ours  # noqa: F401  gt/_recording.c takes it
from gt.ir.graph import Attrs
from gt.ir.opdef import OpDef
from gt.ir.types import DTYPES, DType, Scalar, TensorType
from gt.runtime.env import NATIVE
from gt.runtime.session import CallLock
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


class Rule:
    """An op on given attributes and types. ``id`` is even; ``id + 1`` in an entry says the entry is on the tape."""

    __slots__ = ("id", "taped", "op", "attrs", "inputs", "outputs", "single", "count", "differentiable", "saved", "kept")

    def __init__(self, op: OpDef | None, attrs: Attrs, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]):
        self.id = 2 * len(RULES)
        self.taped = self.id + 1
        self.op, self.attrs, self.inputs, self.outputs = op, attrs, inputs, outputs
        self.single = outputs[0] if len(outputs) == 1 else None
        self.count = len(outputs)
        self.differentiable = op is not None and (op.vjp is not None or op.decompose is not None)
        self.saved: dict[tuple[bool, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {}  # what the vjp reads
        self.kept: dict[Any, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # what torch would save
        RULES.append(self)


RULES: list[Rule] = []
_rules: dict[Any, Rule] = {}
_rules_lock = CallLock()


def rule_of(op: OpDef, attrs: Attrs, inputs: tuple[TensorType, ...]) -> Rule:
    key = (op, attrs, *inputs)
    found = _rules.get(key)
    if found is None:
        try:
            outputs = op.infer_types(inputs, attrs)
        except Exception as error:  # torch's words, and then what torch would leave out
            if not isinstance(error, Located):
                error.add_note(f"in {op.name}({', '.join(map(repr, inputs))}) at {users_line()}")
            raise
        with _rules_lock:
            found = _rules.get(key) or _rules.setdefault(key, Rule(op, attrs, inputs, outputs))
    return found


def _leaf_rule(kind: str, type: TensorType) -> Rule:
    key = (kind, type)
    found = _rules.get(key)
    if found is None:
        with _rules_lock:
            found = _rules.get(key) or _rules.setdefault(key, Rule(None, ((kind, True),), (), (type,)))
    return found


class _InputEntries(dict[TensorType, tuple[int, tuple[int, ...]]]):
    """What inputs are in a trace, by type."""

    def __missing__(self, type: TensorType) -> tuple[int, tuple[int, ...]]:
        self[type] = entry = _leaf_rule("input", type).id, ()
        return entry


_input_entries = _InputEntries()
_zero_d = {dtype: TensorType((), dtype) for dtype in DTYPES}
_number_entries = {type: (_leaf_rule("scalar", type).id, ()) for type in _zero_d.values()}


class Operand:
    """What recording looks at of each operand. In slots, which are read in a fifth of the time that a default of a class takes."""

    __slots__ = (
        "_trace", "_index", "_type", "_buffer", "_base", "_rg", "_leaf",
        "_root", "_view", "_storage", "_seen", "_version", "_tape", "_name", "_before",
    )  # fmt: skip
    _trace: Trace | None
    _index: int
    _type: TensorType
    _buffer: Buffer | None
    _base: Any
    _rg: bool
    _leaf: bool
    _root: Any
    _view: tuple[OpDef, Attrs] | None
    _storage: Storage | None  # made with the first view
    _seen: int
    _version: int
    _tape: tuple[Trace, int] | None
    _name: str
    _before: Buffer | int  # while a new value is pending: the buffer that was the last one, its id if the trace reads it; else not set

    def __init__(self, trace: Trace | None, index: int, type: TensorType, flows: bool = False) -> None:
        self._trace, self._index, self._type, self._buffer, self._base, self._rg, self._leaf = trace, index, type, None, None, flows, not flows
        self._root = self._view = self._storage = self._tape = None
        self._seen, self._version, self._name = 0, 0, ""


class Storage:
    """What a tensor and its views share. ``moved``: the tensor that has the values now, once the first took others by .data."""

    __slots__ = ("moved",)

    def __init__(self) -> None:
        self.moved: Any = None


class Number(Operand):
    """A Python number as an operand: a run-time scalar, given anew at each run and not part of the key."""

    __slots__ = ("value",)

    def __init__(self, value: Scalar, dtype: DType) -> None:
        self.value, self._type, self._trace, self._buffer, self._base, self._rg = value, _zero_d[dtype], None, None, None, False

    @property
    def type(self) -> TensorType:
        return self._type


class ValueRef(Operand):
    """A value of a trace as an operand, without a tensor that names it."""

    __slots__ = ()

    def __init__(self, trace: Trace, index: int, type: TensorType) -> None:
        self._trace, self._index, self._type, self._buffer, self._base, self._rg = trace, index, type, None, None, False

    @property
    def type(self) -> TensorType:
        return self._type


class _Stale(Exception):
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
            raise _Stale  # a view whose base another thread has flushed since it was looked at
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
            self.code.append(_input_entries[type])
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
        self.code.append(_number_entries[number._type])
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
_flush: Callable[..., Future[Any] | None]  # set by gt.flush and gt.tensor, which import this module
new_tensor: Callable[[Trace | None, int, TensorType], Tensor]
_tensor_class: type[Any]
_new, _getframe = object.__new__, sys._getframe  # looked up once: recording is the hot path


def install_flush(function: Callable[..., Future[Any] | None]) -> None:
    global _flush
    _flush = function


_autocast: Callable[..., tuple[Any, ...]]  # set by gt.autocasting


def install_autocast(function: Callable[..., tuple[Any, ...]]) -> None:
    global _autocast
    _autocast = function


def install_tensor(make: type[Tensor]) -> None:
    global new_tensor, _tensor_class
    new_tensor = _tensor_class = make
    if native is not None:
        native.set_tensor(make)


def settle(trace: Trace, reason: str, reads: int = -1) -> Future[Any] | None:
    """Flush ``trace``: every live pending value of it becomes a buffer. ``reads``: as for ``flush``."""
    return _flush(trace, reason, reads)


def producer_name(trace: Trace, index: int) -> str:
    """Give the name torch would print for the op that made a value."""
    first = 0
    for id, _ in trace.code:
        rule = RULES[id >> 1]
        first += len(rule.outputs)
        if index < first:
            return (
                "".join(w.capitalize() for w in rule.op.name.split("_")) + "Backward0" if rule.op else "AccumulateGrad"
            )
    return "Backward0"


def handle_of(trace: Trace, index: int, type: TensorType) -> Any:
    """Give a tensor that names a value of a trace."""
    return new_tensor(trace, index, type)


def tensor_of(buffer: Buffer) -> Any:
    """Give a tensor on an existing buffer."""
    out = new_tensor(None, -1, buffer.type)
    out._buffer = buffer
    return out


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


# -- recording


def _occupy(trace: Trace, size: int) -> bool:
    """Begin to append to a trace of which ``size`` values were known when the operands were looked at.

    Says no where another thread needed one of its values since, or a finalizer has recorded or read: the operands are to be looked
    at again. Errors: RuntimeError in the middle of another op.
    """
    if trace.busy:
        raise RuntimeError("a finalizer or a signal handler used a tensor while an op was being recorded")
    trace.busy = True
    if (trace.closing and (not trace.held or trace.sealed)) or trace.size != size:
        trace.busy = False
        return False
    return True


def _plain(value: Any) -> Any:
    """Give attributes with NumPy's numbers, and tensors of no dims, which are read, as Python's; themselves where there are none."""
    if isinstance(value, tuple):
        out = tuple(map(_plain, value))
        return value if all(map(operator.is_, out, value)) else out
    return value.item() if isinstance(value, np.generic | Operand) else value


def _record(
    op: OpDef, inputs: tuple[Any, ...], attrs: Attrs = (), depth: int = 1, view: bool = False, first: bool = False
) -> Any:  # fmt: skip
    """Append ``op`` to this thread's trace and give its result, or a tuple of results. ``depth``: callers known to be gt's.

    ``view``: the result shares memory with the only operand. ``first``: of several results the first is wanted. Errors: TypeMismatch
    kin when shapes or dtypes do not fit, at the caller's line.
    """
    trace = state.trace
    if trace.size >= trace.stop:
        trace = current()
    modes = trace.modes
    if modes.autocast is not None and op.autocast:
        inputs = _autocast(*inputs)
        trace = current()
    size, taped = trace.size, False
    for t in inputs:
        if (t._trace is not trace and t._trace is not None) or (t._base is not None and t._seen != t._root._version):
            return _record_elsewhere(op, inputs, attrs, depth, view, first)
        taped = taped or t._rg
    key = (op, attrs, *[t._type for t in inputs])
    rule = _rules.get(key)
    if rule is None:
        plain = _plain(attrs)
        if plain is not attrs:
            return _record(op, inputs, plain, depth + 1, view, first)
        rule = rule_of(op, attrs, key[2:])
    taped = taped and modes.grad and rule.differentiable
    frame = users_frame(_getframe(depth))
    if not _occupy(trace, size):
        time.sleep(0)
        return _record(op, inputs, attrs, depth + 1, view, first)
    try:
        ids = tuple([t._index if t._trace is trace else trace.enter(t) for t in inputs])
        trace.where.append((frame.f_code, frame.f_lasti))
        outs = []
        for index, type in enumerate(rule.outputs[:1] if first else rule.outputs, trace.size):
            out = _new(_tensor_class)
            Operand.__init__(out, trace, index, type, taped and type.differentiable)
            outs.append(out)
        if view:
            out._base, out._view = inputs[0], (op, attrs)
            out._root = root = inputs[0] if inputs[0]._base is None else inputs[0]._root
            if root._storage is None:
                root._storage = Storage()
            out._seen, out._storage = root._version, root._storage
        trace.handles.extend(outs)
        trace.code.append((rule.id + taped, ids))
        trace.size += rule.count
        return out if first or rule.single is not None else tuple(outs)
    except _Stale:
        trace.mend()
    except BaseException:
        trace.mend()
        raise
    finally:
        trace.busy = False
    time.sleep(0)
    return _record(op, inputs, attrs, depth + 1, view, first)


def _record_pair(op: OpDef, a: Any, b: Any) -> Any:
    """Do what ``record(op, (a, b))`` does, for a method of a tensor that hands its operands on: most ops of a program are this one."""
    return _record(op, (a, b), (), 3)


def _record_elsewhere(op: OpDef, inputs: tuple[Any, ...], attrs: Attrs, depth: int, view: bool, first: bool) -> Any:
    """Record after flushing what operands of other threads need, and taking stale views again from their bases."""
    for t in inputs:
        if t._trace is not None and t._trace is not state.trace:
            _flush(t._trace, "a value crossed threads")
    with holding():  # until the op is recorded: a flush before would make views stale again
        _refresh(inputs)
        return _record(op, inputs, attrs, depth + 2, view, first)


def _record_into(op: OpDef, inputs: tuple[Any, ...], attrs: Attrs, targets: Sequence[Any]) -> None:
    """Append ``op`` and let ``targets``, tensors with memory of their own, name its results in place of what they named.

    For updates of many tensors at once, off the tape: what ``record`` and assigning each result do, without the results' handles.
    """
    trace = state.trace
    if trace.size >= trace.stop:
        trace = current()
    for t in inputs:
        if t._base is not None and t._seen != t._root._version:
            with holding():
                _refresh(inputs)
                return _record_into(op, inputs, attrs, targets)
        if t._trace is not trace and t._trace is not None:
            _flush(t._trace, "a value crossed threads")
            trace = current()
    size, types = trace.size, tuple([t._type for t in inputs])
    rule = _rules.get((op, attrs, *types)) or rule_of(op, attrs, types)
    frame = users_frame(_getframe(1))
    if not _occupy(trace, size):
        time.sleep(0)
        return _record_into(op, inputs, attrs, targets)
    try:
        ids = tuple([t._index if t._trace is trace else trace.enter(t) for t in inputs])
        trace.where.append((frame.f_code, frame.f_lasti))
        trace.code.append((rule.id, ids))
        index = trace.size
        trace.size = index + len(rule.outputs)
        for t, type in zip(targets, rule.outputs, strict=True):
            assert type is t._type and t._base is None, f"{type!r} assigned to {t!r}"
            t._version += 1
            if t._trace is trace:
                trace.overwritten[t._index] = len(trace.code)
            else:
                t._buffer.replaced()
                held = trace.input_ids.get(t._buffer.id)
                if held is not None:
                    trace.overwritten[held] = len(trace.code)
                trace.handles.append(t)
            t._trace, t._index, t._buffer, t._tape = trace, index, None, None
            if t._rg and t._leaf:
                trace.leaves[index] = (weakref.ref(t), t._version)
            index += 1
        return
    except _Stale:
        trace.mend()
    except BaseException:
        trace.mend()
        raise
    finally:
        trace.busy = False
    time.sleep(0)
    return _record_into(op, inputs, attrs, targets)


def _refresh(inputs: tuple[Any, ...]) -> None:
    """Take stale views again from their bases. The caller holds this thread's trace."""
    for t in inputs:
        if t._base is not None and t._seen != t._root._version:
            t._refresh()


def _load_native() -> Any:
    """Give gt/_recording.c, which has the ordinary case of the three functions above, or None where it has not been built."""
    if not NATIVE.get():
        return None
    try:
        module = import_module("gt._recording")
    except ImportError:
        return None
    module.set_up(globals())
    return module


native = _load_native()
_chosen = (_record, _record_pair, _record_into) if native is None else (native.record, native.record_pair, native.record_into)
record: Callable[..., Any] = _chosen[0]
record_pair: Callable[[OpDef, Any, Any], Any] = _chosen[1]
record_into: Callable[[OpDef, tuple[Any, ...], Attrs, Sequence[Any]], None] = _chosen[2]
new_buffers: Callable[[list[TensorType], Session, list[Buffer]], list[Buffer]] = named_buffers if native is None else native.new_buffers
