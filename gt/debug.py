"""``gt.debug``: what is recorded and what runs, printed.

Owns: the forms in which it is shown. Next: ``tape`` (what a backward reaches), ``telling`` (counters).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from gt.flush import location
from gt.handle import Handle
from gt.tape import key_of, walk
from gt.telling import stats, workers_text

if TYPE_CHECKING:
    from gt.tensor import Tensor


@dataclass(frozen=True)
class TapeEntry:
    """One recorded op that a backward reaches: its operands' and results' types as text, and the user's line."""

    op: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    where: str


def get_tape(loss: Tensor) -> list[TapeEntry]:
    """Give what ``loss.backward()`` would go through, newest first. Runs nothing.

    Errors: TypeError unless it is a tensor; RuntimeError as backward's, for a tensor without a tape, or one that was freed or changed.
    """
    if not isinstance(loss, Handle):
        raise TypeError(f"get_tape: expected a gt.Tensor, got {type(loss).__name__}")
    key = key_of(loss)
    if key is None or not loss.requires_grad:
        raise RuntimeError("this tensor has no tape: it does not require grad, or backward() has freed it")
    out = []
    for trace, visited in walk([key]).entries.items():
        for entry, rule, _, _ in visited:
            where = trace.where[entry] if entry < len(trace.where) else None
            assert rule.op is not None
            results = rule.outputs if rule.single is None else (rule.single,)
            out.append(
                TapeEntry(
                    rule.op.name, tuple(map(repr, rule.inputs)), tuple(map(repr, results)), str(location(*where)) if where else ""
                )
            )
    return out


def print_tape(loss: Tensor, file: TextIO | None = None) -> None:
    """Print what ``loss.backward()`` would go through, newest first, a line for each op. Errors: as ``get_tape``."""
    for entry in get_tape(loss):
        at = f"  {entry.where}" if entry.where else ""
        print(f"{', '.join(entry.results)} = {entry.op}({', '.join(entry.operands)}){at}", file=file or sys.stdout)


def print_stats(file: TextIO | None = None) -> None:
    """Print ``gt.stats()``."""
    print(stats(), file=file or sys.stdout)


def get_worker_stats() -> dict[int, dict[str, Any]]:
    """Give for each worker its seconds by kind, runs, values and bytes, programs by tier and those that took longest."""
    server = stats().server
    return {} if server is None else {w.id: {**msgspec.to_builtins(w.usage), "tiers": dict(w.tiers)} for w in server.workers}


def print_worker_stats(file: TextIO | None = None) -> None:
    """Print what each worker did."""
    server = stats().server
    lines = ["no worker: nothing has run"] if server is None else workers_text(server)
    print("\n".join(lines), file=file or sys.stdout)


__all__ = ["TapeEntry", "get_tape", "get_worker_stats", "print_stats", "print_tape", "print_worker_stats"]
