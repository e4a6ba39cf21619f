"""``gt.jit``: a step function recorded a few times, then replayed without running its Python.

Owns: ``jit``, for which calls a recording stands, and the replay. Must not know: ops. Next: ``recorded_call`` (what a call reads and
leaves behind).

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
from typing import Any, ParamSpec, TypeVar

from gt import session as sessions
from gt.buffers import Buffer, put_back, take_dead
from gt.config import get_config
from gt.flush import Counters, counters
from gt.functions.promote import get_default_dtype
from gt.handle import COPY, Handle
from gt.ir.advice import Advised
from gt.precision import get_float32_matmul_precision
from gt.recorded_call import Arg, GradOf, JitError, Made, Recorder, Slot, Source, Step, alike, difference, same
from gt.recording import new_buffers, record, tensor_of
from gt.runtime.interrupt import SHIELD
from gt.runtime.session import Session
from gt.trace import replacements, settle, state

P = ParamSpec("P")
R = TypeVar("R")
MAX_SIGNATURES = 64  # of one function; each keeps its tensors alive
ALIKE = 2  # recordings in a row that must be equal before a call is replayed


class JitMismatch(Advised, RuntimeError):
    """A function under ``gt.jit`` did something else than what was recorded and has been replayed since."""


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
        if not callable(function):
            raise TypeError(f"gt.jit: expected a function, got {function!r}; how often it checks itself is gt.jit(check_every=...)")
        if not isinstance(check_every, int) or check_every < 1:
            kind = ValueError if isinstance(check_every, int | float) else TypeError
            raise kind(f"gt.jit: check_every is a number of calls from 1 up, got {check_every!r}")
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
                with SHIELD:  # a run is sent and tensors come to hold what it makes, as one step
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
        known.passed = {i: recorder.leaf(t, given) for i, t in enumerate(results) if i not in made}
        repeats = alike(before, known.steps) and known.slots == slots
        known.slots = slots
        unchanged = [a is b for a, b in zip(known.arguments, given, strict=False)]
        known.pinned, known.arguments = unchanged if known.alike else [False] * len(given), given
        for step in known.steps:
            step.submitted.forget()
        known.alike = 0 if recorder.ambiguous else known.alike + 1 if repeats else 1
        if check and not repeats and not recorder.ambiguous:
            raise JitMismatch(f"{self.function.__qualname__}: {difference(before, known.steps)}")
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
        session.await_window()  # before numbers are drawn and steps counted for a run
        run = step.submitted
        inputs: list[Any] = [None] * len(step.sources)
        tensors, others = step.read
        for i, t in tensors:
            inputs[i] = t._buffer
        for i, source in others:
            inputs[i] = made[source.run][source.output] if isinstance(source, Made) else _at(source, arguments)._buffer
        if not all(inputs):
            return _nothing(first)
        names = [b.id for b in inputs]
        if [b.type for b in inputs] != run.input_types or len(set(names)) != len(names):
            return _nothing(first)  # of other types, or two tensors have come to share a buffer
        for i in step.donated:  # held by the tensor, the list of inputs and the call that counts; else someone else has it too
            if getrefcount(inputs[i]) > 3 and not isinstance(step.sources[i], Made):
                return _nothing(first)
        donated = [inputs[i] for i in step.donated]
        scalars = run.scalars
        for start, stop, refresh in step.refreshed:
            scalars[start:stop] = refresh()
        outputs = new_buffers(run.types, session, [])
        tensors, others = step.changed
        new = [(place, source) for place, source in others if _is_new(known, source)]
        targets = tensors + [(place, _at(source, arguments)) for place, source in others if not _is_new(known, source)]
        replaces = [-1] * len(outputs)
        for place, t in targets:
            old = t._buffer
            if old is not None:
                replaces[place] = old.id
        frees = [b.id for b in donated]
        for b in donated:
            b.id = -1 - b.id  # the run frees it, not its finalizer
        dead = take_dead(session)
        try:
            session.run(run.known, names, [b.id for b in outputs], scalars, frees + dead, replaces)
        except BaseException:
            for b in donated:
                b.id = -1 - b.id
            put_back(session, dead)
            raise
        _count(counters)
        made.append(outputs)
        for place, source in new:
            fresh[id(_at(source.leaf, arguments))] = tensor_of(outputs[place])  # type: ignore[union-attr]
        for place, t in targets:
            old = t._buffer
            if old is not None and old.mark is not None:
                old.replaced()
            t._buffer, t._trace, t._tape = outputs[place], None, None
            t._version += 1
        for place, result in step.returned:
            results[result] = tensor_of(outputs[place])
        first = False
        del inputs, donated
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


def _is_new(known: Signature, source: Source) -> bool:
    """Whether a source is a gradient that is a new tensor after each call."""
    return source.__class__ is GradOf and not _keeps(known, source.leaf)  # type: ignore[union-attr]


def _keeps(known: Signature, leaf: Arg | Handle) -> bool:
    return any(slot.kept and same(slot.leaf, leaf) for slot in known.slots)


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
