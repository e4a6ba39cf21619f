"""What one call of a function under ``gt.jit`` reads, runs and leaves behind, and whether two calls are alike.

Owns: ``Recorder`` and what comes of it (``Step``, ``Slot``), in terms that hold for the next call too: arguments, outputs of earlier
runs, gradients of tensors, tensors. Must not know: when calls are replayed. Next: ``replay``, ``flush`` (which tells the recorder what
was run), ``gt.optim.optimizer`` and ``random`` (numbers that change each time).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from sys import getrefcount
from typing import TypeAlias

from gt.buffers import Buffer
from gt.flush import Submitted
from gt.handle import Handle
from gt.ir.blame import Located
from gt.ir.types import Scalar
from gt.rule import RULES
from gt.source import location
from gt.trace import Trace, state

Refresh: TypeAlias = Callable[[], Sequence[Scalar]]


class JitError(Located, RuntimeError):
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
        return isinstance(other, GradOf) and same(self.leaf, other.leaf)


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
    # Most sources and targets are tensors themselves: those first, then the others, each with its input or output.
    read: tuple[list[tuple[int, Handle]], list[tuple[int, Source]]] = field(init=False)
    changed: tuple[list[tuple[int, Handle]], list[tuple[int, Source]]] = field(init=False)

    def __post_init__(self) -> None:
        self.read, self.changed = _apart(enumerate(self.sources)), _apart(self.targets)


def _apart(places: Iterable[tuple[int, Source]]) -> tuple[list[tuple[int, Handle]], list[tuple[int, Source]]]:
    tensors: list[tuple[int, Handle]] = []
    others: list[tuple[int, Source]] = []
    for at, source in places:
        if isinstance(source, Handle):
            tensors.append((at, source))
        else:
            others.append((at, source))
    return tensors, others


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
        self.refuse(
            "a value is read", "what follows could depend on it, and a replay would not. Return the tensor and read it outside"
        )

    def refuse(self, what: str, why: str) -> None:
        raise JitError(f"{what} inside a function under gt.jit: {why}")

    # -- what comes of it

    def steps(self, arguments: list[Handle], results: list[Handle]) -> list[Step]:
        at: dict[int, Source] = {id(t): Arg(i) for i, t in enumerate(arguments)}
        for leaf, before in self.grads.values():
            place = GradOf(self.leaf(leaf, arguments))
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

    def leaf(self, leaf: Handle, arguments: list[Handle]) -> Arg | Handle:
        return next((Arg(i) for i, t in enumerate(arguments) if t is leaf), leaf)

    def slots(self, arguments: list[Handle]) -> list[Slot]:
        """Give whose gradients the call reads or replaces."""
        return [
            Slot(self.leaf(leaf, arguments), before is not None, leaf._grad is not None, leaf._grad is before)
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
            isinstance(other, Slot) and same(self.leaf, other.leaf)
            and (self.before, self.after, self.kept) == (other.before, other.after, other.kept)
        )  # fmt: skip


def same(a: Source, b: Source) -> bool:
    return a is b or (a.__class__ is b.__class__ and not isinstance(a, Handle) and a == b)


# -- comparing


def alike(before: list[Step], now: list[Step]) -> bool:
    return len(before) == len(now) and all(
        a.submitted.structure == b.submitted.structure
        and _numbers(a) == _numbers(b)
        and a.donated == b.donated
        and a.returned == b.returned
        and _all_same(a.sources, b.sources)
        and [p for p, _ in a.targets] == [p for p, _ in b.targets]
        and _all_same([t for _, t in a.targets], [t for _, t in b.targets])
        for a, b in zip(before, now, strict=True)
    )


def _all_same(a: list[Source], b: list[Source]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def _numbers(step: Step) -> list[Scalar | None]:
    """Give the numbers that a replay takes as they were."""
    out: list[Scalar | None] = list(step.submitted.scalars)
    for start, stop, _ in step.refreshed:
        out[start:stop] = [None] * (stop - start)
    return out


def difference(before: list[Step], now: list[Step]) -> str:
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


__all__ = ["Arg", "GradOf", "JitError", "Made", "Recorder", "Slot", "Source", "Step", "alike", "difference", "same"]
