"""The time that a promise of "within five seconds" is held to, on a machine that others use too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TICK_S = 0.05


@contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    """Give what tells the seconds since then, as a thread counts them that only sleeps: while the machine gives it no time, and nobody
    whom a test waits for either, none pass.
    """
    ticks, over = [0], threading.Event()

    def tick() -> None:
        while not over.wait(TICK_S):
            ticks[0] += 1

    thread = threading.Thread(target=tick, name="stopwatch", daemon=True)
    thread.start()
    try:
        yield lambda: ticks[0] * TICK_S
    finally:
        over.set()
        thread.join()
