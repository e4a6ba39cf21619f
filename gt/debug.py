"""``gt.debug``: what is recorded and what runs, printed.

Owns: the forms in which it is shown. The printing functions and flags of gt before it was rewritten are here too: ``GT_DEBUG`` and Python's
logging are what to use. Next: ``tape`` (what a backward reaches), ``telling`` (counters), ``gt.runtime.log`` (GT_DEBUG).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from gt.handle import Handle
from gt.ir.blame import warn_user
from gt.rule import RULES, Rule
from gt.runtime import env
from gt.source import location
from gt.tape import SECOND_TIME, key_of, walk
from gt.telling import stats, workers_text
from gt.trace import Trace, state

if TYPE_CHECKING:
    from gt.tensor import Tensor

FLAGS = {"VERBOSE": 2, "DEBUG_CLIENT": 3, "DEBUG_DISPATCHER": 3, "DEBUG_WORKER": 3, "DEBUG_COMPILE": 4}  # levels of GT_DEBUG


@dataclass(frozen=True)
class TapeEntry:
    """One recorded op: its operands' and results' types as text, and the user's line."""

    op: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    where: str


def get_tape(loss: Tensor | None = None) -> list[TapeEntry]:
    """Give what ``loss.backward()`` would go through; without a loss, what this thread has recorded and not run. Newest first. Runs nothing.

    Errors: TypeError unless it is a tensor; RuntimeError for one without a tape, or whose tape was freed, or as backward's where what it
    needs was changed.
    """
    if loss is None:
        return [_entry(state.trace, entry, rule) for entry, rule in reversed(list(_pending(state.trace)))]
    if not isinstance(loss, Handle):
        raise TypeError(f"get_tape: expected a gt.Tensor, got {type(loss).__name__}")
    key = key_of(loss)
    if loss.requires_grad and loss.is_leaf:
        raise RuntimeError("this tensor has no tape: it is a leaf, which backward() gives a gradient and goes no further")
    if key is None or not loss.requires_grad:
        raise RuntimeError("this tensor has no tape: it does not require grad, or backward() has freed it")
    try:
        tape = walk([key])
    except RuntimeError as e:
        if str(e) != SECOND_TIME:
            raise
        raise RuntimeError("this tensor's tape is gone: backward() has freed it. Look at it before, or give backward(retain_graph=True)") from None
    return [_entry(trace, entry, rule) for trace, visited in tape.entries.items() for entry, rule, _, _ in visited]


def _pending(trace: Trace) -> Iterator[tuple[int, Rule]]:
    for entry, (code, _) in enumerate(tuple(trace.code)):
        rule = RULES[code >> 1]
        if rule.op is not None:  # else an input or a number
            yield entry, rule


def _entry(trace: Trace, entry: int, rule: Rule) -> TapeEntry:
    where = trace.where[entry] if entry < len(trace.where) else None
    assert rule.op is not None
    results = rule.outputs if rule.single is None else (rule.single,)
    return TapeEntry(rule.op.name, tuple(map(repr, rule.inputs)), tuple(map(repr, results)), str(location(*where)) if where else "")


def print_tape(loss: Tensor | None = None, file: TextIO | None = None) -> None:
    """Print what ``get_tape`` gives, a line for each op, or that nothing is pending. Errors: as ``get_tape``."""
    tape = get_tape(loss)
    if not tape:
        print("nothing is pending: all that was recorded has run, or was sent to run", file=file or sys.stdout)
    for entry in tape:
        at = f"  {entry.where}" if entry.where else ""
        print(f"{', '.join(entry.results)} = {entry.op}({', '.join(entry.operands)}){at}", file=file or sys.stdout)


def print_stats(file: TextIO | None = None) -> None:
    """Print ``gt.stats()``."""
    print(stats(), file=file or sys.stdout)


def get_worker_stats() -> dict[int, dict[str, Any]]:
    """Give for each worker its seconds by kind, runs, values and bytes, programs by tier and those that took longest; of none where the
    server does not answer.
    """
    server = stats().server
    return {} if server is None else {w.id: {**msgspec.to_builtins(w.usage), "tiers": dict(w.tiers)} for w in server.workers}


def print_worker_stats(file: TextIO | None = None) -> None:
    """Print what each worker did."""
    found = stats()
    lines = [found.missing or "no worker: nothing has run"] if found.server is None else workers_text(found.server)
    print("\n".join(lines), file=file or sys.stdout)


def __getattr__(name: str) -> Any:
    if name in FLAGS:
        warn_user(f"gt.debug.{name}: the environment variable GT_DEBUG={FLAGS[name]} stands for it")
        return env.DEBUG.get() >= FLAGS[name]
    flag = "VERBOSE" if name == "verbose_print" else name.upper().replace("DEBUG_PRINT", "DEBUG")
    if flag not in FLAGS or name == flag:
        raise AttributeError(f"module 'gt.debug' has no attribute {name!r}")
    warn_user(f'gt.debug.{name}: use logging.getLogger("gt"), which GT_DEBUG={FLAGS[flag]} lets through')

    def show(*words: Any, **options: Any) -> None:
        if env.DEBUG.get() >= FLAGS[flag]:
            print(*words, **options)

    return show


__all__ = ["TapeEntry", "get_tape", "get_worker_stats", "print_stats", "print_tape", "print_worker_stats"]
