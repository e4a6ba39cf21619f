"""Whether what a backward reads has been changed in place since it was recorded: torch's versions, over the values of traces.

A change in place marks the value that the changed tensor named: in ``overwritten`` of the trace it is pending in, with the entry from
which on, and on its buffer for the tapes of earlier traces. A view's value goes with its base's: a change through one view is one of
the base, and of all its views. What counts is what torch would have saved (``OpDef.saves``, ``saves`` for functions of several ops), not what
gt's gradient reads: old values are all at hand here. Must not know: tensors, how gradients are computed. Next: ``tape`` (who asks), ``flush`` (what a tape keeps).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gt.buffers import Buffer, Mark
from gt.ir.ops import OPS
from gt.operand import Operand
from gt.passes.autodiff import saved_values
from gt.recording import record
from gt.rule import RULES, Rule
from gt.trace import Trace, state
from gt.views import VIEWS

if TYPE_CHECKING:
    from collections.abc import Mapping

F = TypeVar("F", bound=Callable[..., Any])
What = str | Callable[[dict[str, Any]], str | Sequence[Any] | None]
ALIAS = OPS["alias"]
VIEW_OPS = frozenset(OPS[name] for name in VIEWS)

Indices = tuple[tuple[int, ...], tuple[int, ...]]


def kept_by(rule: Rule, needs: tuple[bool, ...], numbers: tuple[bool, ...] | None = None) -> Indices:
    """Give which operands and results torch saves for the gradients of the operands in ``needs``. ``numbers``: which are Python's."""
    key = needs if numbers is None else (needs, numbers)
    found = rule.kept.get(key)
    if found is None:
        op = rule.op
        assert op is not None
        if op.saves is None:
            found = saved_values(op, rule.attrs, rule.inputs, rule.outputs, needs)
        else:
            text = op.saves if isinstance(op.saves, str) else op.saves(rule.inputs, dict(rule.attrs), numbers or (False,) * len(needs))
            found = _indices(text, op.operand_names(len(needs)), needs, rule.count)
        rule.kept[key] = found
    return found


def _indices(text: str, operands: Sequence[str], needs: Sequence[bool], num_results: int) -> Indices:
    results = ["y"] if num_results == 1 else [f"y{i}" for i in range(num_results)]
    wanted = {name for name, need in zip(operands, needs, strict=True) if need}
    names = {name for name, conditions in _items(text) if not conditions or not wanted.isdisjoint(conditions)}
    assert names <= {*operands, *results}, f"{text!r} names what is neither one of {operands} nor of {results}"
    return tuple(i for i, n in enumerate(operands) if n in names), tuple(i for i, n in enumerate(results) if n in names)


@functools.lru_cache
def _items(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Read a declaration: what is saved, and of what a gradient must be wanted for that; of nothing in particular if that is empty."""
    pairs = [item.replace("!", "").partition(":") for item in text.split()]
    return tuple((name, tuple(condition.split(",")) if condition else ()) for name, _, condition in pairs)


@functools.lru_cache
def _shown(text: str) -> frozenset[str]:
    """Read which names a declaration marks with ``!``."""
    return frozenset(item.partition(":")[0].removesuffix("!") for item in text.split() if "!" in item)


class Saved:
    """What a backward over a trace reads, entry by entry, as torch would have saved it."""

    def __init__(self, trace: Trace) -> None:
        self.numbers = set(trace.scalar_ids)
        self.inside = {entry: (start, ids, shown) for start, end, ids, shown in trace.functions for entry in range(start, end)}

    def __call__(self, entry: int, rule: Rule, needs: tuple[bool, ...], operands: Sequence[int], first: int) -> Sequence[int]:
        """Give the ids of what is saved for an entry. ``first``: of its first result."""
        inside = self.inside.get(entry)
        if inside is not None:
            return inside[1]
        by_number = rule.op is not None and callable(rule.op.saves)
        ins, outs = kept_by(rule, needs, tuple([id in self.numbers for id in operands]) if by_number else None)
        return [*[operands[i] for i in ins], *[first + i for i in outs]]

    def shown(self, entry: int, rule: Rule, operands: Sequence[int]) -> Sequence[int]:
        """Give the ids of what makes torch's gradients of an entry, or of the function that it is part of, need a gradient."""
        inside = self.inside.get(entry)
        if inside is not None:
            return inside[2]
        assert rule.op is not None
        if not isinstance(rule.op.saves, str):
            return ()
        names = _shown(rule.op.saves)
        return [id for id, name in zip(operands, rule.op.operand_names(len(operands)), strict=True) if name in names]


def saves(what: What) -> Callable[[F], F]:
    """Declare of a function of several ops what torch, to which it is one, saves for its backward: see ``OpDef.saves``.

    Names are parameters and ``result``, or ``result0``, ``result1``. A callable gets the arguments by name and gives the text, or
    the tensors, or None where the ops by themselves save what torch does, as they are taken to if the function is called to write ``inplace``.
    """

    def declare(function: F) -> F:
        places = {name: i for i, name in enumerate(inspect.signature(function).parameters)}

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            trace = state.trace
            start = len(trace.code)
            out = function(*args, **kwargs)
            if trace.modes.grad and (out._rg if isinstance(out, Operand) else _flows(out)):
                now = state.trace
                _note(now, start if now is trace else 0, what, places, args, kwargs, out)
            return out

        return call  # type: ignore[return-value]

    return declare


def _flows(results: Any) -> bool:
    return any([getattr(t, "_rg", False) for t in results]) if isinstance(results, tuple) else False


def _note(
    trace: Trace, start: int, what: What, places: dict[str, int], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> None:
    """Write down that the entries from ``start`` on are one function, and what torch would have saved for it."""

    def given(name: str) -> Any:
        at = places.get(name)
        if at is not None:
            return args[at] if at < len(args) else kwargs.get(name)
        results = out if isinstance(out, tuple) else (out,)  # where one of several is asked for, the others are nowhere to be changed
        return out if name == "result" else next(iter(results[int(name[6:]) :]), None)

    end = len(trace.code)
    if end == start or ("inplace" in places and given("inplace")):
        return
    found = what if isinstance(what, str) else what({**dict(zip(places, args, strict=False)), **kwargs})
    if found is None:
        return
    shown: frozenset[str] = frozenset()
    if isinstance(found, str):
        shown = _shown(found)
        names = [name for name, conditions in _items(found) if not conditions or any([getattr(given(n), "_rg", False) for n in conditions])]
        found = [given(name) for name in names]
    else:
        names = [""] * len(found)
    pairs = [(_value_in(trace, t), name) for t, name in zip(found, names, strict=True) if isinstance(t, Operand)]
    ids = tuple([id for id, _ in pairs if id is not None])
    trace.functions.append((start, end, ids, tuple([id for id, name in pairs if id is not None and name in shown])))


def _value_in(trace: Trace, t: Any) -> int | None:
    """Give the value of a trace that a tensor names; one that the function read before a flush is taken up again."""
    if t._trace is not trace or (t._base is not None and t._seen != t._root._version):
        if t._buffer is not None and (known := trace.input_ids.get(t._buffer.id)) is not None:
            return known
        record(ALIAS, (t,))
        return trace.code[-1][1][0] if state.trace is trace else None
    return t._index  # type: ignore[no-any-return]


def wholes(trace: Trace) -> dict[int, int]:
    """Give, by value, the value that it is a view of."""
    found: dict[int, int] = {}
    first = 0
    for id, operands in trace.code:
        rule = RULES[id >> 1]
        if rule.op in VIEW_OPS:
            found[first] = operands[0]
        first += rule.count
    for id, whole in trace.moved.items():
        if whole is None:
            found.pop(id, None)
        else:
            found[id] = whole
    return found


def watch(trace: Trace, ids: Iterable[int], buffers: Mapping[int, Buffer]) -> None:
    """Have the tape of a trace that is flushed told of later changes of the values in ``ids``."""
    of = wholes(trace)
    for id in ids:
        at: int | None = id
        while at is not None:
            buffer = buffers.get(at)
            if buffer is not None:
                if buffer.mark is None:
                    buffer.mark = Mark()
                trace.watched[at] = buffer.mark
            at = of.get(at)


def changed_since(trace: Trace) -> Callable[[int], int] | None:
    """Give the first entry of the last change of a value: entries before it have read another. None: nothing was changed."""
    never = len(trace.code)
    stale = trace.overwritten | {id: never for id, mark in trace.watched.items() if mark.written}
    if not stale:
        return None
    of = wholes(trace)

    def since(id: int) -> int:
        last = 0
        at: int | None = id
        while at is not None:
            last = max(last, stale.get(at, 0))
            at = of.get(at)
        return last

    return since


__all__ = ["Saved", "changed_since", "saves", "watch"]
