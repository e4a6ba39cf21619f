"""What a person sees at a terminal while something takes over two seconds: what is waited for, and since when. Elsewhere nothing.

Owns: ``awaited``, ``shown``, ``Line``, ``Waits``, ``percent``. Drawn on stderr by rich, which is loaded then only. Must not know: what is waited for.
Next: ``handle`` (reads of values: plans, compiling, uploads, recovery), ``checkpoint.saving``, ``gt.runtime.interrupt`` (runs that wait).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gt import session as sessions
from gt.runtime.errors import GtError
from gt.runtime.interrupt import SHIELD, await_done, on_wait

if TYPE_CHECKING:
    from rich.status import Status

T = TypeVar("T")
AFTER_S = 2.0
LOOK_S = 1.0  # between two looks at what is going on


def awaited(future: Future[T], session: Any) -> T:
    """Give a future's result; at a terminal, say after a while what the session is busy with. Errors: the future's."""
    if not await_done(future, AFTER_S):
        shown(partial(await_done, future), lambda: f"a value, {busy_with(session)}")
    try:
        return future.result()
    finally:
        del future  # an error has this frame: with the future in it, it would keep itself, and what the frames above hold


def shown(wait: Callable[[float | None], bool], what: Callable[[], str]) -> None:
    """Wait until ``wait``, which is told how long it may take, says that it is over. ``what``: is waited for."""
    if not at_terminal():
        wait(None)
        return
    began, line = time.monotonic() - AFTER_S, Line(what)
    try:
        while not wait(0.2):
            line.show(time.monotonic() - began)
    finally:
        line.end()


def at_terminal() -> bool:
    """Say whether stderr is one; the script may have closed it, or put something else there."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except Exception:
        return False


class Line:
    """A line at the terminal about ``what`` is waited for. Whatever goes wrong with it goes wrong for nobody who waits."""

    def __init__(self, what: Callable[[], str]) -> None:
        self.what = what
        self._status: Status | None = None
        self._looked, self._text = 0.0, ""

    def show(self, seconds: float) -> None:
        with suppress(Exception):
            if self._status is None:
                from rich.console import Console  # loaded once something takes long

                self._status = Console(file=sys.stderr).status("gt: waiting")
                self._status.start()
            if time.monotonic() - self._looked >= LOOK_S:
                with SHIELD.lifted():  # the server may not answer
                    self._looked, self._text = time.monotonic(), self.what()
            self._status.update(f"gt: {seconds:.0f} s for {self._text}")

    def end(self) -> None:
        with suppress(Exception):
            if self._status is not None:
                self._status.stop()


class Waits:
    """Shows that a run waits for those before it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: Line | None = None

    def tell(self, seconds: float | None) -> None:
        """Hear for how long it has been, None: it is over. Who tells meanwhile, in another thread, is not heard."""
        if (self._line is None if seconds is None else seconds < AFTER_S) or not self._lock.acquire(blocking=False):
            return
        try:
            if seconds is None:
                line, self._line = self._line, None
                if line is not None:
                    line.end()
            elif at_terminal():
                self._line = self._line or Line(lambda: f"the runs before this one, {busy_with(sessions.running())}")
                self._line.show(seconds)
        finally:
            self._lock.release()


on_wait.append(Waits().tell)


def percent(done: float, whole: float) -> str:
    """Give ", 45 %" of what is known to be so much, else "". It is 100 % only once nothing is left."""
    return f", {min(100, int(100 * done / whole))} %" if whole > 0 else ""


def busy_with(session: Any) -> str:
    """Say in a few words what a session is doing: recovering, planning, uploading, running, compiling, reading."""
    if getattr(session, "recovering", False):
        done, whole = getattr(session, "replayed", (0, 0))
        return f"recovering from the loss of a worker{percent(done, whole)}"
    ask = getattr(session, "status", None)
    if ask is None:
        return "the workers are busy"
    try:
        found = ask()
    except GtError:
        return "the server does not answer"
    doing = []
    if found.plans_made:
        doing.append(f"{found.plans_made} plan{'s' * (found.plans_made > 1)} being made")
    uploading = sum(c.uploading_nbytes for c in found.clients)
    if uploading:
        given = sum(c.upload_nbytes for c in found.clients if c.uploading_nbytes)
        doing.append(f"uploading{percent(given - uploading, given)}")
    busy = sorted({w for epoch in found.in_flight for w in epoch.waiting})
    if found.num_in_flight:
        doing.append(
            f"{found.num_in_flight} run{'s' * (found.num_in_flight > 1)} on worker{'s' * (len(busy) > 1)} {', '.join(map(str, busy))}"
        )
    compiling = [(p.made, p.marked) for w in found.workers for p in w.programs if p.marked]
    if compiling:
        made, marked = (sum(counts) for counts in zip(*compiling, strict=True))
        doing.append(f"compiling {marked} piece{'s' * (marked > 1)}{percent(made, marked)}")
    come, parts = session.reading() if hasattr(session, "reading") else (0, 0)
    if come:
        doing.append(f"reading{percent(come, parts)}")
    if not any(w.joined for w in found.workers):
        doing.append("no worker has joined")
    waiting = sum(c.waiting for c in found.clients)
    if waiting and not found.plans_made:
        doing.append(f"{waiting} calls wait")
    return ", ".join(doing) or "it is on its way"


__all__ = ["awaited", "busy_with", "percent", "shown"]
