"""Signals while state changes hands: held back until the change is whole, so that a session outlives what their handlers raise.

Owns: ``SHIELD``; ``await_done`` and ``Window``, waits that may be interrupted; ``on_end_signals``, for processes that others start.
Python may call a signal's handler between any two steps of the main thread, and Ctrl-C's raises there, as a time limit's does. Inside
``with SHIELD:`` all handlers wait for the end of the block, or for a wait marked by ``with SHIELD.lifted():``. Must not know: what is shielded.
Next: ``embedded`` and ``remote`` (every call), ``gt.flush`` (from a trace to its run).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
Handler = Callable[[int, FrameType | None], Any]
NUMBERS = tuple(sorted(map(int, signal.valid_signals())))
MOMENT_S = 0.1  # longer than ``Attended.attend`` takes
POLL_S = 0.05  # a wake-up that an interrupted wait has taken with it is missed for so long
FEW = 8  # runs in flight
SHORT_S = 1e-3
RECENT = 0.2  # weight of the last run's time


class Shield:
    """Reentrant; costs a few microseconds in the main thread, and nothing is done in others, which no handler is called in.

    Handlers are exchanged for a ``_StandIn`` each, as it is only Python that knows of them. Where one raises between two exchanges, or
    puts one back that it has found in a wait, it stays so until the next use: at no depth it calls whom it stands for.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._lifted = False
        self._noted: dict[int, None] = {}
        self._found: list[Any] = []  # all handlers there were when it was last used
        self._stand_ins: tuple[tuple[int, _StandIn], ...] = ()  # for those of them that are Python's
        self.interruption: BaseException | None = None  # what a handler has raised in a wait inside this block

    def __enter__(self) -> None:
        if threading.get_ident() != self._main:
            return
        if self._depth == 0:
            self._hold()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() != self._main:
            return
        if self._depth > 1:
            self._depth -= 1
            return
        self.interruption, self._depth = None, 0
        try:
            self._let_go()
        finally:
            if self._noted:
                self._deliver()

    def lifted(self) -> _Lifted:
        """Let handlers be called in a wait that has changed nothing yet, and takes nothing that is missed if it ends unheard.

        Once one has raised all wait again, until what it has interrupted is whole.
        """
        return _Lifted(self)

    def _lift(self) -> None:
        self._lifted = True
        while self._noted and self._lifted:
            _signal.raise_signal(self._noted.popitem()[0])

    def _hold(self) -> None:
        """Have all signals noted that have a handler in Python."""
        found = [*map(_signal.getsignal, NUMBERS)]  # the C module: that of Python spends most of its time on enums
        if found != self._found:
            self._stand_ins = tuple((n, self._stand_in(h)) for n, h in zip(NUMBERS, found, strict=True) if callable(h))
            self._found = found
        for number, stand_in in self._stand_ins:
            _signal.signal(number, stand_in)

    def _stand_in(self, handler: Handler) -> _StandIn:
        return handler if isinstance(handler, _StandIn) else _StandIn(self, handler)

    def _let_go(self) -> None:
        for number, stand_in in self._stand_ins:
            if _signal.getsignal(number) is stand_in:  # else a handler, called in a wait, has chosen another
                _signal.signal(number, stand_in.handler)

    def _deliver(self) -> None:
        """Let handlers be called for what was noted; each, whatever another raises."""
        number, _ = self._noted.popitem()
        try:
            _signal.raise_signal(number)
        finally:
            if self._noted:
                self._deliver()

    def forked(self) -> None:
        """In a forked child nothing is under way, whatever the main thread of its parent was doing."""
        self._depth, self._lifted, self._noted = 0, False, {}
        self._main = threading.get_ident()
        self._let_go()

    def hear(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        """Note a signal, or call its handler."""
        if self._depth and not self._lifted:
            self._noted[number] = None
            return
        lifted, self._lifted = self._lifted, False
        try:
            handler(number, frame)
        except BaseException as error:
            if lifted:
                self.interruption = error
            raise
        finally:
            if lifted:  # it may have chosen other handlers
                self._hold()
        if lifted:
            self._lift()


class _Lifted:
    """The time in which a shield is lifted."""

    def __init__(self, shield: Shield) -> None:
        self.shield = shield

    def __enter__(self) -> None:
        self.here = self.shield._depth > 0 and threading.get_ident() == self.shield._main
        if self.here:
            try:
                self.shield._lift()
            except BaseException:
                self.shield._lifted = False
                raise

    def __exit__(self, *_: object) -> None:
        if self.here:
            self.shield._lifted = False


class _StandIn:
    """What has the place of a handler meanwhile."""

    def __init__(self, shield: Shield, handler: Handler) -> None:
        self.shield, self.handler = shield, handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.shield.hear(self.handler, number, frame)


SHIELD = Shield()
os.register_at_fork(after_in_child=SHIELD.forked)


class Attended(Future[T]):
    """A future of which whoever waits may do a part himself: ``attend`` does it, for a moment, and ends as soon as the future is done."""

    def __init__(self, attend: Callable[[Future[Any]], None]) -> None:
        super().__init__()
        self.attend = attend

    def result(self, timeout: float | None = None) -> T:
        self._attend(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._attend(timeout)
        return super().exception(timeout)

    def _attend(self, timeout: float | None) -> None:
        if not self.done() and (timeout is None or timeout >= MOMENT_S):
            self.attend(self)


def await_done(future: Future[Any], timeout_s: float | None = None) -> bool:
    """Wait until a future is done; say whether it is. What a signal's handler raises meanwhile leaves the future as it is."""
    if not future.done() and isinstance(future, Attended):
        future.attend(future)
    if future.done():
        return True
    done = threading.Lock()
    with SHIELD:
        done.acquire()
        future.add_done_callback(lambda _: done.release())
        with SHIELD.lifted():
            return done.acquire(timeout=-1 if timeout_s is None else timeout_s)


on_wait: list[Callable[[float | None], None]] = []  # who shows how long a run waits for others; they raise nothing


class Window:
    """How many more runs may be in flight. Any thread. ``wait`` takes nothing, so whoever is interrupted there has lost nothing.

    There may be ``most`` while runs are short, ``SHORT_S`` each as they end one after the other: then the way to the workers and back is what
    takes long. Else there may be ``FEW``: what is queued takes long, and what it reads is kept.
    """

    def __init__(self, most: int) -> None:
        self._few, self._most = min(FEW, most), most
        self._flying = 0
        self._each_s, self._last = 2 * SHORT_S, 0.0  # how far apart runs end, and when one did last
        self._since = 0.0  # when ``awaited`` was entered
        self._lock = threading.Lock()
        self._more = threading.Lock()  # held until there may be more
        self._more.acquire()

    def take(self) -> bool:
        """Take one if there is one. Never waits."""
        with self._lock:
            if not self.any():
                return False
            self._flying += 1
            if self.any():
                self._tell()
            return True

    def any(self) -> bool:
        """Say whether there is one."""
        if self._flying < self._few:
            return True
        return self._flying < self._most and self._each_s < SHORT_S and time.monotonic() - self._last < FEW * SHORT_S

    def none_flying(self) -> bool:
        """Say whether all that were taken have been given back."""
        return self._flying <= 0

    def give(self, count: int = 1) -> None:
        now = time.monotonic()
        with self._lock:
            self._flying -= count
            took, self._last = min((now - self._last) / count, 4 * SHORT_S), now
            self._each_s += min(1.0, RECENT * count) * (took - self._each_s)
            self._tell()

    def wait(self, timeout_s: float = POLL_S) -> None:
        """Wait until there may be one, for at most so long. A signal's handler may raise, inside a shield too."""
        with SHIELD.lifted():
            self._more.acquire(timeout=max(0.0, min(timeout_s, POLL_S)))
        if self._since:
            for tell in on_wait:
                tell(time.monotonic() - self._since)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Wait in here: who is in ``on_wait`` hears at each ``wait`` for how long it has been, and in the end that it is over."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = 0.0
            for tell in on_wait:
                tell(None)

    def await_one(self) -> None:
        """Wait until there is one, and leave it there. A signal's handler may raise, as in ``wait``."""
        if self.any():
            return
        with self.awaited():
            while not self.any():
                self.wait()

    def _tell(self) -> None:
        if self._more.locked():
            self._more.release()


def on_end_signals(stop: Handler, parent_fd: int | None) -> None:
    """Have ``stop`` called at SIGTERM and SIGINT, unless there is a parent, at whose end this process ends.

    A scheduler sends SIGTERM to all processes of a job at once: the script may have its work to save, for which it needs the others.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop if parent_fd is None else _leave_to_parent)


def _leave_to_parent(number: int, frame: FrameType | None) -> None:
    """Do nothing. Not SIG_IGN, which this process's own children would inherit."""


__all__ = ["SHIELD", "Attended", "Shield", "Window", "await_done", "on_end_signals"]
