"""A clock that stands still while this thread does: by it others are judged silent.

A process that was stopped, swapped out or kept from running finds, as it goes on, that time has passed before it finds what others sent
meanwhile; by ``time.monotonic`` it would give all of them up. Owns: ``PresentClock``. Must not know: who is listened to.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S = 2.0


class PresentClock:
    """``clock()``: seconds, in which what passes between two calls counts for nothing where it is longer than ``PAUSE_S``.

    For a loop that calls it more often than that while it runs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest = clock()
        self._away = 0.0

    def __call__(self) -> float:
        now = self._clock()
        if now - self._latest > PAUSE_S:
            self._away += now - self._latest
        self._latest = now
        return now - self._away


__all__ = ["PAUSE_S", "PresentClock"]
