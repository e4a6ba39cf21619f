"""``gt.debug``: what is recorded and not yet run, and what running has done so far.

Owns: how both are shown. The printing functions and flags are of gt before it was rewritten: ``GT_DEBUG`` and Python's logging are what
to use. Next: ``gt.flush`` (counters), ``gt.explaining`` (why a value is where it is), ``gt.runtime.log`` (GT_DEBUG).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gt.flush import counters, location
from gt.ir.blame import warn_user
from gt.runtime import env
from gt.trace import RULES, Trace, state

if TYPE_CHECKING:
    from gt.tensor import Tensor

FLAGS = {"VERBOSE": 2, "DEBUG_CLIENT": 3, "DEBUG_DISPATCHER": 3, "DEBUG_WORKER": 3, "DEBUG_COMPILE": 4}  # levels of GT_DEBUG


def get_tape(loss: Tensor | None = None) -> list[dict[str, Any]]:
    """Give the ops recorded together with ``loss``; without it, those of this thread that wait to be run. Runs nothing.

    Each has ``op``, ``inputs`` and ``outputs`` (numbers of values), ``shapes``, ``requires_grad`` and ``where`` (the user's line).
    """
    trace: Trace | None = state.trace
    if loss is not None:
        trace = loss._trace or (loss._tape[0] if loss._tape else None)
    if trace is None:
        return []
    entries, at = [], 0
    for (code, operands), where in zip(tuple(trace.code), tuple(trace.where), strict=False):
        rule = RULES[code >> 1]
        made = list(range(at, at + len(rule.outputs)))
        at += len(made)
        if rule.op is None:  # an input or a number
            continue
        entries.append({
            "op": rule.op.name, "inputs": list(operands), "outputs": made, "shapes": [tuple(t.shape) for t in rule.outputs],
            "requires_grad": bool(code & 1), "where": str(location(*where)) if where else "",
        })  # fmt: skip
    return entries


def print_tape(loss: Tensor | None = None) -> None:
    """Print what ``get_tape`` gives, a line each."""
    tape = get_tape(loss)
    print(f"{len(tape)} ops recorded" + (":" if tape else ""))
    for entry in tape:
        made, taken = (", ".join(f"%{i}" for i in entry[key]) for key in ("outputs", "inputs"))
        grad = "  requires_grad" if entry["requires_grad"] else ""
        print(f"{made} = {entry['op']}({taken})  {entry['shapes']}{grad}  {entry['where']}".rstrip())


def get_worker_stats() -> dict[str, Any]:
    """Give how often this process flushed, how many graphs were new, and why it flushed. ``gt status`` asks a server."""
    return asdict(counters)


def print_worker_stats() -> None:
    """Print what ``get_worker_stats`` gives."""
    for name, value in get_worker_stats().items():
        print(f"{name}: {value}")


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


__all__ = ["get_tape", "get_worker_stats", "print_tape", "print_worker_stats"]
