"""What a person sees at a terminal while something takes over two seconds: what is waited for, and since when. Elsewhere nothing.

Owns: ``awaited``, ``shown``, ``percent``. Drawn on stderr by rich, which is loaded then only. Must not know: what is waited for.
Next: ``handle`` (reads of values: plans, compiling, uploads, recovery), ``checkpoint.saving``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from gt.runtime.errors import GtError
from gt.runtime.interrupt import SHIELD, await_done

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
    if not (sys.stderr is not None and sys.stderr.isatty()):
        wait(None)
        return
    from rich.console import Console  # loaded once something takes long

    began, looked, text = time.monotonic() - AFTER_S, 0.0, ""
    console = Console(file=sys.stderr)
    with console.status("gt: waiting") as status:
        while not wait(0.2):
            if time.monotonic() - looked >= LOOK_S:
                with SHIELD.lifted():  # the server may not answer
                    looked, text = time.monotonic(), what()
            status.update(f"gt: {time.monotonic() - began:.0f} s for {text}")


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
