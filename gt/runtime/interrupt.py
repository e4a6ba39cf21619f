"""Ctrl-C while state changes hands: held back until the change is whole, so that a session outlives an interrupt.

Owns: ``SHIELD``; ``on_end_signals``, for processes that others start.
Python may raise KeyboardInterrupt between any two steps of the main thread; inside ``with SHIELD:`` it
waits for the end of the block, or for a wait marked by ``with SHIELD.lifted():``. Must not know: what is shielded.
Next: ``embedded`` and ``remote`` (every call), ``gt.flush`` (from a trace to its run).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Shield:
    """Reentrant; costs a few microseconds in the main thread, and nothing is done in others, which no signal reaches."""

    def __init__(self) -> None:
        self._depth = 0
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._noted = False

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        if self._depth == 0:
            handler = _signal.getsignal(signal.SIGINT)  # the C module: signal.signal spends most of its time on enums
            self._handler = handler if callable(handler) else None
            if self._handler is not None:
                _signal.signal(signal.SIGINT, self._note)
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        self._depth -= 1
        if self._depth == 0 and self._handler is not None:
            self._release(self._handler)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Let Ctrl-C through for a wait that has changed nothing yet."""
        handler = self._handler
        if self._depth == 0 or handler is None or threading.get_ident() != threading.main_thread().ident:
            yield
            return
        try:
            self._release(handler)
            yield
        finally:
            _signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True

    def _release(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        noted, self._noted = self._noted, False
        _signal.signal(signal.SIGINT, handler)
        if noted:
            handler(signal.SIGINT, None)


SHIELD = Shield()


def on_end_signals(stop: Callable[[int, FrameType | None], Any], parent_fd: int | None) -> None:
    """Have ``stop`` called at SIGTERM and SIGINT, unless there is a parent, at whose end this process ends.

    A scheduler sends SIGTERM to all processes of a job at once: the script may have its work to save, for which it needs the others.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop if parent_fd is None else _leave_to_parent)


def _leave_to_parent(number: int, frame: FrameType | None) -> None:
    """Do nothing. Not SIG_IGN, which this process's own children would inherit."""

__all__ = ["SHIELD", "Shield", "on_end_signals"]
