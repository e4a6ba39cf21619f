"""``gt.recover``: going on after the loss of a worker, without the script noticing.

Owns: turning it on and off for this process's session. Next: ``gt.runtime.recovering`` (how it is done), docs/failing.md (what holds).
"""

from __future__ import annotations

from gt import session as sessions
from gt.config import get_config
from gt.ir.signals import truth
from gt.runtime.env import JOB
from gt.runtime.recovery import Recovered, Recovery
from gt.runtime.session import Session

DEFAULT = Recovery()


def recover(
    on: bool = True,
    *,
    interval_s: float = DEFAULT.interval_s,
    wait_s: float | None = None,
    max_bytes: int = DEFAULT.max_bytes,
    max_calls: int = DEFAULT.max_calls,
    tries: int = DEFAULT.tries,
    restarts: int = DEFAULT.restarts,
) -> None:
    """Go on after the loss of a worker, from here on: values that it held come back, and reads that waited are answered.

    Every ``interval_s`` seconds what has changed is copied from the workers to this process (a *snapshot*), while they go on; this call waits for
    the first, of what there is. What is sent after it is kept, and run again after a loss. A snapshot comes sooner when uploads of ``max_bytes`` bytes or ``max_calls``
    calls are kept. So this process needs memory for all tensors of the script, twice while a snapshot is made. Workers that
    ``gt.gpu_workers``, ``gt run`` or ``gt launch`` started are replaced when they die, ``restarts`` times at most on each node; at a
    server, workers that have joined within ``wait_s``
    seconds take part, and fewer than there were if need be. After ``tries`` tries all that waits raises WorkerLost, which says what was
    tried. As ``recover:`` in a configuration file, or GT_RECOVER. Without workers in processes of their own there is nothing to
    lose, and nothing is done. False turns it off. Errors: TypeError, ValueError for numbers that are not above zero.
    """
    truth(on, "on")
    options = Recovery(interval_s, wait_s, max_bytes, max_calls, tries, restarts) if on else None
    get_config().recovery = options
    session = sessions.running()
    if session is not None:
        _apply(session, options)
        if on and (cover := getattr(session, "await_cover", None)) is not None:
            cover()


def recoveries() -> tuple[Recovered, ...]:
    """Give what this process's session has recovered from: the loss, the snapshot's age, runs replayed, workers, seconds."""
    return tuple(getattr(sessions.running(), "recoveries", ()))


def _apply(session: Session, options: Recovery | None) -> None:
    turn = getattr(session, "recover", None)  # a session in this process has no workers to lose
    if turn is None:
        return
    turn(options)
    cluster = sessions.cluster()
    restarts = 0 if options is None else options.restarts
    if cluster is not None:
        cluster.supervise(restarts)
        session.replacing = lambda: cluster.replacing  # type: ignore[attr-defined]
    elif JOB.get():
        session.supervise(restarts)  # type: ignore[attr-defined]
        session.replacing = lambda: restarts > 0  # type: ignore[attr-defined]


def _begin(session: Session) -> None:
    options = get_config().recovery
    if options is not None:
        _apply(session, options)


sessions.on_start.append(_begin)

__all__ = ["recover", "recoveries"]
