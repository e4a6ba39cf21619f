"""Finding reads that were not meant: each waits for the work before it.

Owns: ``flush_guard``, ``ReadRefused``. Must not know: how a read flushes. Next: ``trace`` (which calls the guard), ``flush``.
"""

from __future__ import annotations

import logging

from gt.ir.advice import Advised
from gt.ir.blame import users_line
from gt.thread_state import ThreadState
from gt.trace import guard_reads

log = logging.getLogger("gt.flush")


class ReadRefused(Advised, RuntimeError):
    """A value was read inside ``flush_guard("disallow")``."""


class _Guards(ThreadState):
    """The guards of this thread, innermost last."""

    def begin(self) -> None:
        self.modes: list[str] = []


_guards = _Guards()


class flush_guard:  # noqa: N801 - reads as a function
    """Log or refuse, in this thread, every read of a value: each waits for the work before it.

    ``mode``: "log" warns with the user's line, "disallow" raises ``ReadRefused``, "allow" switches an outer guard off.
    """

    def __init__(self, mode: str = "log") -> None:
        if mode not in ("log", "disallow", "allow"):
            raise ValueError(f"flush_guard: expected 'log', 'disallow' or 'allow', got {mode!r}")
        self.mode = mode

    def __enter__(self) -> None:
        guard_reads(_check_read)
        _guards.modes.append(self.mode)

    def __exit__(self, *_: object) -> None:
        _guards.modes.pop()


def _check_read() -> None:
    mode = _guards.modes[-1] if _guards.modes else "allow"
    if mode == "allow":
        return
    where = users_line()
    if mode == "disallow":
        raise ReadRefused(f"a value is read at {where}, inside gt.flush_guard('disallow')")
    log.warning("a value is read at %s", where)


__all__ = ["ReadRefused", "flush_guard"]
