"""The tape: which recorded entries a backward reaches, over one trace or several, and what may still be read of them.

Owns: walking, version checks, freeing. Must not know: how gradients are computed. Next: ``autograd``, ``expand``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gt.handle import Handle
from gt.residuals import entries_backwards, reached, requires, saved_by
from gt.rule import Rule
from gt.trace import Trace, state
from gt.versions import Saved, changed_since

if TYPE_CHECKING:
    from gt.tensor import Tensor

Key = tuple[Trace, int]
SECOND_TIME = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). Saved "
    "intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you need to "
    "backward through the graph a second time or if you need to access saved tensors after calling backward."
)


Visited = list[tuple[int, Rule, tuple[int, ...], int]]


@dataclass
class Tape:
    """What a backward reaches: entries newest first by trace, and the leaves whose gradients they make."""

    entries: dict[Trace, Visited] = field(default_factory=dict)
    leaves: list[tuple[Key, Tensor]] = field(default_factory=list)
    hooked: bool = False
    reached: set[Key] = field(default_factory=set)  # of the values asked for


def key_of(t: Handle) -> Key | None:
    """Give where a tensor's value was recorded, if its tape still exists."""
    if t._base is not None and t._seen != t._root._version:
        t._refresh()
    return _key_of(t)


def _key_of(t: Handle) -> Key | None:
    return linked(t._trace, t._index) if t._trace is not None else t._tape


def history_of(t: Handle) -> Key | None:
    """Give where a tensor's history begins: a write off the tape changes its value, but not whose gradient it has."""
    return _history_of(key_of(t))


def _history_of(key: Key | None) -> Key | None:
    while key is not None and key[1] in key[0].grafts:
        key = linked(key[0], key[0].grafts[key[1]])
    return key


def linked(trace: Trace, id: int) -> Key:
    """Give where a value was recorded first, if that was in an earlier trace."""
    while id in trace.links:
        trace, id = trace.links[id]
    return trace, id


def _retains(tensor: Tensor, key: Key) -> bool:
    """Say whether a tensor keeps its gradient, and its value is not another by now."""
    return tensor._retains and _history_of(_key_of(tensor)) == key


@dataclass
class Walked:
    """What a walk over one pending trace found: where a step comes again, its trace has the same code, and so the same tape."""

    code: list[tuple[int, tuple[int, ...]]]
    leaves: set[int]  # every leaf of the trace
    visited: Visited
    reached: list[int]  # the leaves among the values that gradients flow through


_walked: OrderedDict[tuple[int, int], Walked] = OrderedDict()  # by root and number of entries; the newest last
MAX_WALKED = 32


def _walk_again(roots: Sequence[Key], extra: Sequence[Key]) -> Tape | None:
    """Give the tape of a pending trace whose like has been walked before, in a tenth of the time."""
    trace, root = roots[0]
    if len(roots) > 1 or extra or trace.sealed or trace.links or trace.freed or trace.overwritten or trace.hooks:
        return None
    known = _walked.get((root, len(trace.code)))
    if known is None or known.leaves != trace.leaves.keys() or known.code != trace.code:
        return None
    leaves: list[tuple[Key, Tensor]] = []
    for id in known.reached:
        tensor = trace.leaves[id][0]()
        if tensor is not None and tensor._rg and (tensor._leaf or _retains(tensor, (trace, id))):
            leaves.append(((trace, id), tensor))
    return Tape({trace: known.visited}, leaves)


def _remember(root: Key, visited: Visited, ids: set[int]) -> None:
    trace, id = root
    key = (id, len(trace.code))
    _walked[key] = Walked(list(trace.code), set(trace.leaves), visited, [i for i in ids if i in trace.leaves])
    _walked.move_to_end(key)
    if len(_walked) > MAX_WALKED:
        _walked.popitem(last=False)


def walk(roots: Sequence[Key], extra: Sequence[Key] = (), only: Collection[int] | None = None) -> Tape:
    """Find what a backward from ``roots`` reaches.

    ``extra``: values, not leaves, whose gradients are asked for. ``only``: ids of the tensors that are, if not all leaves are: what leads
    to none of them is left out. Errors: RuntimeError for what was freed, or changed in place since.
    """
    tape = _walk_again(roots, extra) or _walk(roots, extra)
    if only is not None:
        _keep_leading(tape, {key for key, t in tape.leaves if id(t) in only} | tape.reached)
    for trace, visited in tape.entries.items():
        _check_freed(trace, visited)
        if trace.overwritten or trace.sealed:
            _check_versions(trace, visited)
    return tape


def _walk(roots: Sequence[Key], extra: Sequence[Key]) -> Tape:
    tape = Tape()
    needed: dict[Trace, set[int]] = {}
    for trace, id in roots:
        needed.setdefault(trace, set()).add(id)
    wanted = set(extra)
    while needed:
        trace = max(needed, key=lambda t: t.number)
        ids = needed.pop(trace)
        tape.entries[trace] = visited = []
        trace.wait()
        tape.hooked = tape.hooked or trace.hooks
        for entry, rule, taped, operands, first in entries_backwards(trace):
            if not taped or not reached(rule, first, ids):
                continue
            visited.append((entry, rule, operands, first))
            ids.update(operands)
        tape.reached.update(key for key in wanted if key[0] is trace and key[1] in ids)
        for id in ids:
            link = trace.links.get(id)
            if link is not None:
                needed.setdefault(link[0], set()).add(link[1])
            leaf = trace.leaves.get(id)
            tensor = leaf[0]() if leaf is not None else None
            if tensor is not None and tensor._rg and (tensor._leaf or (trace, id) in wanted or _retains(tensor, (trace, id))):
                tape.leaves.append(((trace, id), tensor))
        if len(roots) == 1 and roots[0][0] is trace is state.trace and not (extra or trace.links or trace.freed or trace.hooks):
            _remember(roots[0], visited, ids)
    return tape


def _keep_leading(tape: Tape, targets: set[Key]) -> None:
    """Leave the entries that lead to one of ``targets``."""
    for trace in sorted(tape.entries, key=lambda t: t.number):
        leading: Visited = []
        for each in reversed(tape.entries[trace]):
            _, rule, operands, first = each
            if any([(trace, id) in targets or linked(trace, id) in targets for id in operands]):
                leading.append(each)
                targets.update([(trace, first + i) for i in range(rule.count)])
        tape.entries[trace] = leading[::-1]


def _check_freed(trace: Trace, visited: Visited) -> None:
    """Raise if a value that is to be read was let go of by a backward."""
    if not trace.freed:
        return
    for entry, rule, operands, _ in visited:
        if entry in trace.freed and any(saved_by(rule, requires(trace, operands))):
            raise RuntimeError(SECOND_TIME)


def _check_versions(trace: Trace, visited: Visited) -> None:
    """Raise if a value that torch would have saved was changed in place after it was recorded."""
    since = changed_since(trace)
    if since is None:
        return
    saved = Saved(trace)
    for entry, rule, operands, first in visited:
        if any(entry < since(id) for id in saved(entry, rule, requires(trace, operands), operands, first)):
            assert rule.op is not None
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{rule.op.name} needs a value that was overwritten since"
            )


def free(tape: Tape) -> None:
    """Let go of what the visited entries saved; walking them again is an error."""
    for trace, visited in tape.entries.items():
        trace.freed.update([entry for entry, _, _, _ in visited])
        for entry in trace.custom.keys() & trace.freed:
            del trace.custom[entry]
        if trace.sealed and trace.saved:
            kept: set[int] = set()
            for entry, rule, taped, operands, first in entries_backwards(trace):
                if taped and entry not in trace.freed:
                    ins, outs = saved_by(rule, requires(trace, operands))
                    kept.update(operands[i] for i in ins)
                    kept.update(first + i for i in outs)
            for id in trace.saved.keys() - kept:
                del trace.saved[id]
