"""``gt.jit``: a step function recorded a few times, then replayed without running its Python.

Owns: what a call reads and writes (``Recorder``), when calls are taken to be alike, and the replay. Must not know: ops.
Next: ``flush`` (which tells the recorder what was run), ``gt.optim.optimizer`` and ``random`` (numbers that change each time).

A call is some runs of known graphs. Replaying it names the buffers that its tensors hold now, makes new ones for the results,
and lets the same tensors hold those: arguments and results of the call, and every tensor that the function found or left
elsewhere, as parameters, their gradients and optimizer state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from sys import getrefcount
from typing import Any, ParamSpec, TypeAlias, TypeVar

from gt import session as sessions
from gt.config import get_config
from gt.flush import Counters, Submitted, counters, location
from gt.handle import COPY, Handle
from gt.ir.types import Scalar
from gt.precision import get_float32_matmul_precision
from gt.runtime.session import Session
from gt.trace import RULES, Buffer, Trace, new_buffers, put_back, record, settle, state, take_dead, tensor_of

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


Source: TypeAlias = "Arg | Made | Handle"  # a handle: whatever that tensor holds at the time


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
        self.ambiguous = False  # a value was reached both as an argument and otherwise: which one a replay should take?

    # -- what recording tells

    def entered(self, tensor: Handle, buffer: Buffer) -> None:
        self.holders.setdefault(buffer.id, tensor)
        if self.given.get(buffer.id, tensor) is not tensor:
            self.ambiguous = True

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
        raise JitError(
            "a value is read inside a function under gt.jit: what follows could depend on it, and a replay would not. Return "
            "the tensor and read it outside"
        )

    # -- what comes of it

    def steps(self, arguments: list[Handle], results: list[Handle]) -> list[Step]:
        at = {id(t): i for i, t in enumerate(arguments)}
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

    def _source(self, t: Handle, at: dict[int, int]) -> Source:
        return Arg(at[id(t)]) if id(t) in at else t


@dataclass
class Signature:
    """One way to call the function: the recording that the latest call made or was."""

    steps: list[Step] = field(default_factory=list)
    alike: int = 0  # recordings in a row that were equal
    calls: int = 0
    results: Any = None  # the structure of what the function returned, with numbers for tensors
    passed: dict[int, Source] = field(default_factory=dict)  # results that the call did not make


class Jit:
    """A function that is replayed once its calls have become alike; see ``jit``."""

    def __init__(self, function: Callable[..., Any], check_every: int) -> None:
        if check_every < 1:
            raise ValueError(f"gt.jit: check_every is a number of calls from 1 up, got {check_every}")
        functools.update_wrapper(self, function)
        self.function, self.check_every = function, check_every
        self.signatures: dict[Any, Signature] = {}
        self.replays = 0

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
        known = self._signature(frame, given, tensors, session)
        if known.alike >= ALIKE and (known.calls + 1) % self.check_every:
            results = _replay(session, known, given)
            if results is not None:
                known.calls += 1
                self.replays += 1
                return _unflatten(known.results, results)
        return self._record(known, frame, given, tensors)

    def _signature(self, frame: Any, given: list[Handle], tensors: list[Handle], session: Session) -> Signature:
        modes = (
            state.grad, state.autocast, state.signals[-1] if state.signals else None, get_config().version,
            get_float32_matmul_precision(), id(session),
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

    def _record(self, known: Signature, frame: Any, given: list[Handle], tensors: list[Handle]) -> Any:
        """Run the function as if it were not under ``jit``, and compare what it did with the call before."""
        for mine, theirs in zip(given, tensors, strict=True):
            if mine is not theirs:  # a view, or what was pending elsewhere
                mine._rg = theirs._rg
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
        before, known.steps = known.steps, recorder.steps(given, results)
        known.results, known.calls = structure, known.calls + 1
        made = {result for step in known.steps for _, result in step.returned}
        known.passed = {i: recorder._source(t, {id(g): k for k, g in enumerate(given)}) for i, t in enumerate(results) if i not in made}
        alike, expected = _alike(before, known.steps), known.alike >= ALIKE
        for step in known.steps:
            step.submitted.forget()
        known.alike = 0 if recorder.ambiguous else known.alike + 1 if alike else 1
        if expected and not alike:
            raise JitMismatch(f"{self.function.__qualname__}: {_difference(before, known.steps)}")
        return _unflatten(structure, [_result(t) if i in made else t for i, t in enumerate(results)])


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
    made: list[list[Buffer]] = []
    results: dict[int, Handle] = {}
    first = True
    for step in known.steps:
        run = step.submitted
        inputs: list[Buffer] = []
        for source in step.sources:
            if source.__class__ is Made:
                inputs.append(made[source.run][source.output])  # type: ignore[union-attr]
            else:
                t = arguments[source.index] if source.__class__ is Arg else source  # type: ignore[union-attr]
                if t._buffer is None:  # type: ignore[union-attr]
                    return _nothing(first)
                inputs.append(t._buffer)  # type: ignore[union-attr]
        if [b.type for b in inputs] != run.input_types:
            return _nothing(first)
        for i in step.donated:  # held by the tensor, the list of inputs and the call that counts; else someone else has it too
            if getrefcount(inputs[i]) > 3 and step.sources[i].__class__ is not Made:
                return _nothing(first)
        scalars = run.scalars
        for start, stop, refresh in step.refreshed:
            scalars[start:stop] = refresh()
        outputs = new_buffers(run.types, session)
        frees = [inputs[i].id for i in step.donated]
        names = [b.id for b in inputs]
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
            t = arguments[source.index] if source.__class__ is Arg else source  # type: ignore[union-attr]
            t._buffer, t._trace, t._tape = outputs[place], None, None  # type: ignore[union-attr]
            t._version += 1  # type: ignore[union-attr]
        for place, result in step.returned:
            results[result] = tensor_of(outputs[place])
        first = False
        del inputs
    for result, source in known.passed.items():
        results[result] = arguments[source.index] if source.__class__ is Arg else source  # type: ignore[union-attr, assignment]
    return [results[i] for i in range(len(results))]


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
        for a, b in zip(before, now, strict=True)
    )


def _numbers(step: Step) -> list[Scalar | None]:
    """Give the numbers that a replay takes as they were."""
    out: list[Scalar | None] = list(step.submitted.scalars)
    for start, stop, _ in step.refreshed:
        out[start:stop] = [None] * (stop - start)
    return out


def _difference(before: list[Step], now: list[Step]) -> str:
    """Say what the first difference is, in ops and at the line of the newer recording."""
    for a, b in zip(before, now, strict=False):
        old, new = a.submitted.structure[0], b.submitted.structure[0]
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
class Slot:
    """Stands for a tensor."""

    index: int


def _flatten(value: Any, tensors: list[Handle]) -> Any:
    """Give the structure of a value, hashable if its leaves are; its tensors are appended to ``tensors``."""
    if isinstance(value, Handle):
        tensors.append(value)
        return Slot(len(tensors) - 1)
    if isinstance(value, tuple | list):
        return type(value), tuple([_flatten(v, tensors) for v in value])
    if isinstance(value, dict):
        return dict, tuple(value), tuple([_flatten(v, tensors) for v in value.values()])
    return "value", type(value), value


def _unflatten(frame: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(frame, Slot):
        return tensors[frame.index]
    if frame[0] is dict:
        return dict(zip(frame[1], [_unflatten(f, tensors) for f in frame[2]], strict=True))
    if frame[0] == "value":
        return frame[2]
    items = [_unflatten(f, tensors) for f in frame[1]]
    kind = frame[0]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


__all__ = ["Jit", "JitError", "JitMismatch", "Recorder", "jit"]
