"""Whether what a backward reads has been changed in place since it was recorded: torch's versions, over the values of traces.

A change in place marks the value that the changed tensor named: in ``overwritten`` of the trace it is pending in, with the entry from
which on, and on its buffer for the tapes of earlier traces. A view's value goes with its base's: a change through one view is one of
the base, and of all its views. What counts is what torch would have saved (``OpDef.saves``), not what gt's gradient reads: old values
are all at hand here. Must not know: tensors, how gradients are computed. Next: ``tape`` (who asks), ``flush`` (what a tape keeps).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from gt.ir.ops import OPS
from gt.passes.autodiff import saved_values
from gt.trace import RULES, Buffer, Mark, Rule, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

VIEWS = frozenset(OPS[name] for name in ("alias", "reshape", "permute", "slice", "expand", "as_strided"))

Indices = tuple[tuple[int, ...], tuple[int, ...]]


def kept_by(rule: Rule, needs: tuple[bool, ...]) -> Indices:
    """Give which operands and results torch saves for the gradients of the operands in ``needs``."""
    found = rule.kept.get(needs)
    if found is None:
        assert rule.op is not None
        found = rule.kept[needs] = saved_values(rule.op, rule.attrs, rule.inputs, rule.outputs, needs)
    return found


def kept_values(rule: Rule, needs: tuple[bool, ...], operands: Sequence[int], first: int) -> list[int]:
    """Give the ids of what torch saves for an entry. ``first``: the id of its first result."""
    ins, outs = kept_by(rule, needs)
    return [*[operands[i] for i in ins], *[first + i for i in outs]]


def wholes(trace: Trace) -> dict[int, int]:
    """Give, by value, the value that it is a view of."""
    found: dict[int, int] = {}
    first = 0
    for id, operands in trace.code:
        rule = RULES[id >> 1]
        if rule.op in VIEWS:
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


__all__ = ["changed_since", "kept_by", "kept_values", "watch", "wholes"]
