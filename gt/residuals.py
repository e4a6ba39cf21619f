"""Residuals: what a backward over a trace will read, so that a flush makes it and a tape keeps it.

Owns: ``residuals``; the walk from an entry to those before it, and which values gradients flow to. Must not know: how gradients are
computed. Next: ``flush`` (what becomes of them), ``tape`` (what a backward reaches), ``versions`` (what torch would have saved).
"""

from __future__ import annotations

from collections.abc import Iterator

from gt.handle import Handle
from gt.passes.autodiff import saved_values
from gt.rule import RULES, Rule
from gt.trace import Trace
from gt.versions import Saved


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


def residuals(trace: Trace, roots: list[Handle]) -> tuple[set[int], set[int]]:
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
