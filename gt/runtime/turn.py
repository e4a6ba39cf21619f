"""Whose turn it is to receive: a thread's own, or that of a caller who waits, while the thread stands aside so that neither wakes the other.

Owns: ``Turn``. Must not know: sockets, what comes. Next: ``remote`` (whose io thread and callers take turns).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from gt.runtime.interrupt import SHIELD
from gt.runtime.session import own_threads

ATTEND_S = 0.02  # that a caller receives itself what it waits for, and that the thread stands aside for the next one


class Turn:
    """``lock``: held by who looks at the sockets. ``is_asked``: whether something is to come, or to be done, for which no caller may come.

    ``over``: nobody need wait any more. A forked child has no turns.
    """

    def __init__(self, is_asked: Callable[[], bool], over: Callable[[], bool]) -> None:
        self.lock = threading.Lock()
        self.parked = False  # whether the thread stands aside
        self._is_asked, self._over = is_asked, over
        self._pid = os.getpid()
        self._aside = False  # whether it is to
        self._needed = threading.Event()  # it is, before its time

    def attend(self, done: Callable[[], bool], hear: Callable[[float], bool]) -> bool:
        """On a caller's thread: receive by ``hear``, for so many seconds and while that says that one may go on, until something is so or
        a moment has passed; say whether it is so. The thread need not be woken then to wake the caller, who does only what is of no
        consequence to others and leaves it the rest.
        """
        if not self.parked or self._pid != os.getpid():
            return False
        with SHIELD:  # for all of it: a handler that reads would wait for the thread, and that for the turn
            if not self.lock.acquire(blocking=False):
                return False
            thread = threading.get_ident()
            own_threads.add(thread)  # so would a finalizer
            try:
                self._aside, until = True, time.monotonic() + ATTEND_S
                while not (so := done()) and not self._over() and (left := until - time.monotonic()) > 0 and hear(left):
                    pass
            finally:
                own_threads.discard(thread)
                self.lock.release()
                if self._is_asked():
                    self._needed.set()
        return so

    def stand_aside(self, until: float) -> None:
        """On the thread: leave the turn to callers, as long as one comes after the other, until a time."""
        self.parked = self._aside
        if self.parked and not self._is_asked():
            while self._aside and not self._over() and (left := until - time.monotonic()) > 0:
                self._aside = False
                if self._needed.wait(min(ATTEND_S, left)):
                    break
        self.parked = self._aside = False
        self._needed.clear()

    def offer(self, to_callers: bool) -> None:
        """On the thread: stand aside next, if callers are likely to come."""
        self._aside = to_callers

    def recall(self) -> None:
        """Have the thread go on, if it stands aside."""
        if self.parked:
            self._needed.set()

    def end(self) -> None:
        """Have the thread go on, and find that all is over."""
        self._needed.set()


__all__ = ["Turn"]
