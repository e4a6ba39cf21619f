"""``gt.jit``: a step function recorded a few times, then replayed without running its Python.

Owns: what a call reads and writes (``Recorder``), when calls are taken to be alike, and the replay. Must not know: ops.
Next: ``flush`` (which tells the recorder what was run), ``gt.optim.optimizer`` and ``random`` (numbers that change each time).

A call is some runs of known graphs. Replaying it names the buffers that its tensors hold now, makes new ones for the results,
and lets the same tensors hold those: arguments and results of the call, and every tensor that the function found or left
elsewhere, as parameters, their gradients and optimizer state.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from sys import getrefcount
from typing import Any, ParamSpec, TypeAlias, TypeVar

from gt import session as sessions
from gt.config import get_config
from gt.flush import Counters, Submitted, counters, location
from gt.functions.promote import get_default_dtype
from gt.handle import COPY, Handle
from gt.ir.types import Scalar
from gt.precision import get_float32_matmul_precision
from gt.runtime.session import Session
from gt.trace import RULES, Buffer, Trace, new_buffers, put_back, record, replacements, settle, state, take_dead, tensor_of

P = ParamSpec("P")
R = TypeVar("R")
Refresh: TypeAlias = Callable[[], Sequence[Scalar]]
MAX_SIGNATURES = 64  # of one function; each keeps its tensors alive
ALIKE = 2  # recordings in a row that must be equal before a call is replayed


class JitMismatch(RuntimeError):
    """A function under ``gt.jit`` did something else than what was recorded and has been replayed since."""


class JitError(RuntimeError):
    """A function cannot be replayed: it reads a value, or changes what a replay could not change."""


@dataclass
class Arg:
    """The tensor given as the so-manieth argument."""

    index: int


@dataclass
class Made:
    """An output of an earlier run of the same call."""

    run: int
    output: int


@dataclass
class GradOf:
    """The gradient of a tensor, whichever tensor that is at the time."""

    leaf: Arg | Handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GradOf) and _same(self.leaf, other.leaf)


Source: TypeAlias = "Arg | Made | GradOf | Handle"  # a handle: whatever that tensor holds at the time


@dataclass
class Step:
    """One run of a call."""

    submitted: Submitted
    sources: list[Source]
    donated: list[int]  # inputs whose buffer the run takes
    targets: list[tuple[int, Source]]  # which tensors hold which outputs afterwards
    returned: list[tuple[int, int]]  # which outputs are results of the call: (output, result)
    refreshed: list[tuple[int, int, Refresh]]  # numbers that are new each time: (from, to, what gives them)


class Recorder:
    """What one call reads, runs and leaves behind. While it is a thread's, reading a value is refused."""

    def __init__(self, arguments: list[Handle]) -> None:
        self.runs: list[Submitted] = []
        self.given = {t._buffer.id: t for t in arguments if t._buffer is not None}
        self.holders: dict[int, Handle] = {}  # by id of a buffer: the tensor through which the call reached it
        self.numbers: dict[Trace, list[tuple[int, int, Refresh]]] = {}
        self.grads: dict[int, tuple[Handle, Handle | None]] = {}  # by id of a tensor: it, and its gradient before the call
        self.ambiguous = False  # a value was reached through two tensors: which one should a replay take?

    # -- what recording tells

    def entered(self, tensor: Handle, buffer: Buffer) -> None:
        if self.holders.setdefault(buffer.id, tensor) is not tensor or self.given.get(buffer.id, tensor) is not tensor:
            self.ambiguous = True
        if not isinstance(tensor, Handle):  # a value that an earlier, unfinished tape saved
            self.ambiguous = True

    def grad_of(self, tensor: Handle) -> None:
        """The call is about to read or replace a tensor's gradient."""
        self.grads.setdefault(id(tensor), (tensor, tensor._grad))

    def submitted(self, run: Submitted) -> None:
        self.runs.append(run)

    @contextmanager
    def fresh(self, refresh: Refresh) -> Iterator[None]:
        """The numbers that the block records are ``refresh``'s at each replay."""
        trace = state.trace
        start = len(trace.scalars)
        yield
        if state.trace is not trace:
            raise JitError("gt.jit: pending work was flushed in the middle of an optimizer's step")
        if len(trace.scalars) > start:
            self.numbers.setdefault(trace, []).append((start, len(trace.scalars), refresh))

    def drawn(self, refresh: Refresh) -> None:
        """The next two numbers recorded are a seed and a stream, drawn anew at each replay."""
        start = len(state.trace.scalars)
        self.numbers.setdefault(state.trace, []).append((start, start + 2, refresh))

    def refuse_read(self) -> None:
        self.refuse("a value is read", "what follows could depend on it, and a replay would not. Return the tensor and read it outside")

    def refuse(self, what: str, why: str) -> None:
        raise JitError(f"{what} inside a function under gt.jit: {why}")

    # -- what comes of it

    def steps(self, arguments: list[Handle], results: list[Handle]) -> list[Step]:
        at: dict[int, Source] = {id(t): Arg(i) for i, t in enumerate(arguments)}
        for leaf, before in self.grads.values():
            place = GradOf(self._leaf(leaf, arguments))
            at |= {id(g): place for g in (before, leaf._grad) if g is not None and id(g) not in at}
        result_at = {id(t): i for i, t in enumerate(results)}
        made: dict[int, Made] = {}
        out = []
        for number, run in enumerate(self.runs):
            sources = [made.get(b) or self._source(self.holders[b], at) for b in run.inputs]
            place_of = {id: place for place, id in enumerate(run.outputs)}
            targets: list[tuple[int, Source]] = []
            returned = []
            while run.live:
                t, index = run.live.pop()
                if id(t) in result_at:
                    returned.append((place_of[index], result_at[id(t)]))
                if getrefcount(t) > 2 + (id(t) in result_at):  # someone else can still see it
                    targets.append((place_of[index], self._source(t, at)))
            made.update((b, Made(number, place)) for place, b in enumerate(run.made))
            numbers = self.numbers.get(run.trace, []) if run.trace is not None else []
            out.append(Step(run, sources, list(run.donated), targets, returned, numbers))
        return out

    def _source(self, t: Handle, at: dict[int, Source]) -> Source:
        return at.get(id(t), t)

    def _leaf(self, leaf: Handle, arguments: list[Handle]) -> Arg | Handle:
        return next((Arg(i) for i, t in enumerate(arguments) if t is leaf), leaf)

    def slots(self, arguments: list[Handle]) -> list[Slot]:
        """Give whose gradients the call reads or replaces."""
        return [
            Slot(self._leaf(leaf, arguments), before is not None, leaf._grad is not None, leaf._grad is before)
            for leaf, before in self.grads.values()
        ]


@dataclass
class Slot:
    """A tensor's gradient: whether there is one before the call and after it, and whether it is the same tensor."""

    leaf: Arg | Handle
    before: bool
    after: bool
    kept: bool

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Slot) and _same(self.leaf, other.leaf)
            and (self.before, self.after, self.kept) == (other.before, other.after, other.kept)
        )  # fmt: skip


@dataclass
class Signature:
    """One way to call the function: the recording that the latest call made or was."""

    steps: list[Step] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    arguments: list[Handle] = field(default_factory=list)  # of the latest recording
    pinned: list[bool] = field(default_factory=list)  # arguments that were one tensor whenever recorded: maybe captured, too
    alike: int = 0  # recordings in a row that were equal
    calls: int = 0
    results: Any = None  # the structure of what the function returned, with numbers for tensors
    passed: dict[int, Arg | Handle] = field(default_factory=dict)  # results that the call did not make


class Jit:
    """A function that is replayed once its calls have become alike; see ``jit``."""

    def __init__(self, function: Callable[..., Any], check_every: int) -> None:
        if check_every < 1:
            raise ValueError(f"gt.jit: check_every is a number of calls from 1 up, got {check_every}")
        functools.update_wrapper(self, function)
        self.function, self.check_every = function, check_every
        self.signatures: dict[Any, Signature] = {}
        self.replays = 0
        self.seen = replacements()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if state.recorder is not None:  # inside another such function
            return self.function(*args, **kwargs)
        tensors: list[Handle] = []
        frame = _flatten((args, kwargs), tensors)
        session = sessions.current()
        if state.trace.code:
            settle(state.trace, "a call of a function under gt.jit")
        given = [t if t._buffer is not None else tensor_of(t._materialise()) for t in tensors]
        if self.seen != replacements():  # a model or an optimizer has other parameters, or is in another mode
            self.signatures.clear()
            self.seen = replacements()
        known = self._signature(frame, given, tensors, session)
        check = known.alike >= ALIKE and (known.calls + 1) % self.check_every == 0
        results: list[Any] | None = None
        with _stand_ins(given, tensors):
            if known.alike >= ALIKE and not check:
                results = _replay(session, known, given)
            if results is None:
                results = self._record(known, frame, given, tensors, check)
            else:
                self.replays += 1
        return _unflatten(known.results, results)

    def _signature(self, frame: Any, given: list[Handle], tensors: list[Handle], session: Session) -> Signature:
        modes = (
            state.grad, state.autocast, state.signals[-1] if state.signals else None, get_config().version,
            get_config().comm_bytes, get_float32_matmul_precision(), get_default_dtype(), weakref.ref(session),
        )  # fmt: skip
        ids = [id(t._buffer) for t in given]
        alias = tuple(map(ids.index, ids)) if len(set(ids)) < len(ids) else ()
        key = (frame, tuple([(t._type, t._rg) for t in tensors]), alias, modes)
        try:
            known = self.signatures.get(key)
        except TypeError as error:
            raise JitError(
                f"gt.jit: arguments of {self.function.__qualname__} must be tensors, or values that can be hashed ({error})"
            ) from None
        if known is None:
            if len(self.signatures) >= MAX_SIGNATURES:
                del self.signatures[next(iter(self.signatures))]
            known = self.signatures[key] = Signature()
        return known

    def _record(self, known: Signature, frame: Any, given: list[Handle], tensors: list[Handle], check: bool) -> list[Any]:
        """Run the function as if it were not under ``jit``, and compare what it did with the call before."""
        versions = [t._version for t in given]
        recorder = Recorder(given)
        state.recorder = state.trace.recorder = recorder
        results: list[Handle] = []
        try:
            args, kwargs = _unflatten(frame, given)
            structure = _flatten(self.function(*args, **kwargs), results)
            results = [t if t._base is None else record(COPY, (t,)) for t in results]
            if state.trace.code:
                settle(state.trace, "the end of a function under gt.jit")
        finally:
            state.recorder = state.trace.recorder = None
        if any(a is not b and a._version != v for a, b, v in zip(given, tensors, versions, strict=True)):
            raise JitError("gt.jit: an argument that is a view was written to: pass the tensor that it is a view of")
        slots = recorder.slots(given)
        before, known.steps = known.steps, recorder.steps(given, results)
        known.results, known.calls = structure, known.calls + 1
        made = {result for step in known.steps for _, result in step.returned}
        known.passed = {i: recorder._leaf(t, given) for i, t in enumerate(results) if i not in made}
        alike = _alike(before, known.steps) and known.slots == slots
        known.slots = slots
        same = [a is b for a, b in zip(known.arguments, given, strict=False)]
        known.pinned, known.arguments = same if known.alike else [False] * len(given), given
        for step in known.steps:
            step.submitted.forget()
        known.alike = 0 if recorder.ambiguous else known.alike + 1 if alike else 1
        if check and not alike and not recorder.ambiguous:
            raise JitMismatch(f"{self.function.__qualname__}: {_difference(before, known.steps)}")
        return [_result(t) if i in made else t for i, t in enumerate(results)]


def _result(t: Handle) -> Handle:
    """Give what the call made as a tensor of its own, as a replay gives it."""
    assert t._buffer is not None
    return tensor_of(t._buffer)


def jit(function: Callable[P, R] | None = None, *, check_every: int = 100) -> Callable[P, R] | Callable[..., Any]:
    """Record what ``function`` does once its calls are alike, and from then on only run that again.

    For training steps and decoding, where running the Python of the step takes longer than the work. Arguments: tensors, lists,
    tuples and dicts of them, and values that can be hashed; each new combination of shapes, dtypes and values is recorded anew.
    Learning rates, step counts and random numbers go on as without it; all else that Python does happens only when the
    function is recorded: numbers, lists, ``print``, ``model.train()``. Results are tensors of their own, without gradient history.
    Every ``check_every``-th call is recorded again and compared. Errors: JitError when the function reads a value; JitMismatch at a
    check, with the first op that differs and its line, if the function does something else now.

        @gt.jit
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss
    """
    if function is None:
        return lambda f: Jit(f, check_every)  # type: ignore[return-value]
    return Jit(function, check_every)  # type: ignore[return-value]


# -- replaying


def _replay(session: Session, known: Signature, arguments: list[Handle]) -> list[Handle] | None:
    """Run what was recorded on what its tensors hold now. None: something is not as it was, and nothing was done."""
    if any(pin and a is not b for pin, a, b in zip(known.pinned, known.arguments, arguments, strict=True)):
        return None
    for slot in known.slots:
        if (_at(slot.leaf, arguments)._grad is not None) is not slot.before:
            return None
    made: list[list[Buffer]] = []
    fresh: dict[int, Handle] = {}  # by id of a tensor: its new gradient
    results: dict[int, Handle] = {}
    first = True
    for step in known.steps:
        run = step.submitted
        inputs: list[Buffer] = []
        for source in step.sources:
            if source.__class__ is Made:
                inputs.append(made[source.run][source.output])  # type: ignore[union-attr]
            else:
                t = _at(source, arguments)
                if t._buffer is None:
                    return _nothing(first)
                inputs.append(t._buffer)
        names = [b.id for b in inputs]
        if [b.type for b in inputs] != run.input_types or len(set(names)) != len(names):
            return _nothing(first)  # of other types, or two tensors have come to share a buffer
        for i in step.donated:  # held by the tensor, the list of inputs and the call that counts; else someone else has it too
            if getrefcount(inputs[i]) > 3 and step.sources[i].__class__ is not Made:
                return _nothing(first)
        scalars = run.scalars
        for start, stop, refresh in step.refreshed:
            scalars[start:stop] = refresh()
        outputs = new_buffers(run.types, session, [])
        frees = [inputs[i].id for i in step.donated]
        for i in step.donated:
            inputs[i].id = -1 - inputs[i].id  # the run frees it, not its finalizer
        dead = take_dead(session)
        try:
            session.run(run.known, names, [b.id for b in outputs], scalars, frees + dead)
        except BaseException:
            for i in step.donated:
                inputs[i].id = -1 - inputs[i].id
            put_back(session, dead)
            raise
        _count(counters)
        made.append(outputs)
        for place, source in step.targets:
            if source.__class__ is GradOf:
                leaf = _at(source.leaf, arguments)  # type: ignore[union-attr]
                if not _keeps(known, source.leaf):  # type: ignore[union-attr]
                    fresh[id(leaf)] = tensor_of(outputs[place])
                    continue
            t = _at(source, arguments)
            t._buffer, t._trace, t._tape = outputs[place], None, None
            t._version += 1
        for place, result in step.returned:
            results[result] = tensor_of(outputs[place])
        first = False
        del inputs
    for slot in known.slots:
        if not slot.kept:
            leaf = _at(slot.leaf, arguments)
            leaf._grad = fresh[id(leaf)] if slot.after else None
    for result, source in known.passed.items():
        results[result] = _at(source, arguments)
    known.calls += 1
    return [results[i] for i in range(len(results))]


def _at(source: Source, arguments: list[Handle]) -> Any:
    """Give the tensor that a source stands for."""
    if source.__class__ is Arg:
        return arguments[source.index]  # type: ignore[union-attr]
    return _at(source.leaf, arguments)._grad if source.__class__ is GradOf else source  # type: ignore[union-attr]


def _same(a: Source, b: Source) -> bool:
    return a is b or (a.__class__ is b.__class__ and not isinstance(a, Handle) and a == b)


def _keeps(known: Signature, leaf: Arg | Handle) -> bool:
    return any(slot.kept and _same(slot.leaf, leaf) for slot in known.slots)


@contextmanager
def _stand_ins(given: list[Handle], tensors: list[Handle]) -> Iterator[None]:
    """Let copies of arguments that are views have what gradients those have, and hand new ones back."""
    pairs = [(mine, theirs) for mine, theirs in zip(given, tensors, strict=True) if mine is not theirs]
    for mine, theirs in pairs:
        mine._rg, mine._grad = theirs._rg, theirs._grad
    yield
    for mine, theirs in pairs:
        theirs._grad = mine._grad


def _nothing(first: bool) -> list[Handle] | None:
    if not first:
        raise JitError("gt.jit: a tensor of the function was changed from another thread in the middle of a call")
    return None


def _count(counters: Counters) -> None:
    counters.flushes += 1
    counters.reasons["gt.jit"] = counters.reasons.get("gt.jit", 0) + 1


# -- comparing


def _alike(before: list[Step], now: list[Step]) -> bool:
    return len(before) == len(now) and all(
        a.submitted.structure == b.submitted.structure and _numbers(a) == _numbers(b) and a.donated == b.donated
        and a.returned == b.returned and _all_same(a.sources, b.sources)
        and [p for p, _ in a.targets] == [p for p, _ in b.targets]
        and _all_same([t for _, t in a.targets], [t for _, t in b.targets])
        for a, b in zip(before, now, strict=True)
    )


def _all_same(a: list[Source], b: list[Source]) -> bool:
    return len(a) == len(b) and all(map(_same, a, b))


def _numbers(step: Step) -> list[Scalar | None]:
    """Give the numbers that a replay takes as they were."""
    out: list[Scalar | None] = list(step.submitted.scalars)
    for start, stop, _ in step.refreshed:
        out[start:stop] = [None] * (stop - start)
    return out


def _difference(before: list[Step], now: list[Step]) -> str:
    """Say what the first difference is, in ops and at the line of the newer recording."""
    for a, b in zip(before, now, strict=False):
        old, new = a.submitted.structure[0].entries, b.submitted.structure[0].entries
        for i in range(max(len(old), len(new))):
            if i < len(old) and i < len(new) and old[i] == new[i]:
                continue
            was, is_ = (_op(code, i) for code in (old, new))
            where = next((w for w in b.submitted.where[i:] if w), None) or next((w for w in b.submitted.where[::-1] if w), None)
            line = f" at {location(*where)}" if where else ""
            return f"recorded again, op {i} is {is_}{line}; what was replayed had {was} there"
        if _numbers(a) != _numbers(b):
            k = next(k for k, (x, y) in enumerate(zip(_numbers(a), _numbers(b), strict=True)) if x != y)
            return f"recorded again, a number is {_numbers(b)[k]!r}; what was replayed had {_numbers(a)[k]!r}"
    return f"recorded again, it is {len(now)} runs or keeps other values; what was replayed was {len(before)}"


def _op(code: Sequence[tuple[int, tuple[int, ...]]], i: int) -> str:
    if i >= len(code):
        return "nothing"
    rule = RULES[code[i][0] >> 1]
    return f"{rule.op.name} on {', '.join(map(repr, rule.inputs))}" if rule.op else f"an {rule.attrs[0][0]} {rule.outputs[0]!r}"


# -- arguments and results


@dataclass(frozen=True)
class Place:
    """Stands for a tensor."""

    index: int


def _flatten(value: Any, tensors: list[Handle]) -> Any:
    """Give the structure of a value, hashable if its leaves are; its tensors are appended to ``tensors``."""
    if isinstance(value, Handle):
        tensors.append(value)
        return Place(len(tensors) - 1)
    if isinstance(value, tuple | list):
        return type(value), tuple([_flatten(v, tensors) for v in value])
    if isinstance(value, dict):
        return dict, tuple(value), tuple([_flatten(v, tensors) for v in value.values()])
    return "value", type(value), value, math.copysign(1, value) if isinstance(value, float) else 0


def _unflatten(frame: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(frame, Place):
        return tensors[frame.index]
    if frame[0] is dict:
        return dict(zip(frame[1], [_unflatten(f, tensors) for f in frame[2]], strict=True))
    if frame[0] == "value":
        return frame[2]
    items = [_unflatten(f, tensors) for f in frame[1]]
    kind = frame[0]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


__all__ = ["Jit", "JitError", "JitMismatch", "Recorder", "jit"]
