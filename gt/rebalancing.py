"""``gt.rebalance``: moving values onto the workers that there are now.

Owns: what a user calls, and what this process's signals say of workers and meshes. Next: ``gt.runtime.moving`` (where values go),
docs/sharing.md (what is promised).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from gt import session as sessions
from gt.config import get_config
from gt.ir.signals import SignalConfig, mesh_axes
from gt.progress import awaited
from gt.trace import settle, state


def rebalance(workers: Iterable[int] | None = None) -> int:
    """Move this script's values onto the workers present now; give how many have moved. Values stay the same, to the bit.

    Workers that join a server serve the next plan and the next values by themselves; what was there before stays where it was until this
    is called. A value that is whole becomes whole on all workers, one that is split stays split along the same dims, into as many parts as
    there are workers or as its declared mesh has by now; one on just those workers that a signal of the configuration names stays on them.
    ``workers``: use these alone, from here on, so that others can leave without a loss; a later call without it takes all again.
    Waits until all has moved, in parts of 256 MiB or one value, between which other clients' runs go on.
    Errors: ValueError for workers that are not there; OutOfMemoryError, QuotaExceeded, WorkerLost: what has not moved by then is where it
    was. On one worker in this process there is nothing to move.
    """
    session = sessions.current()
    chosen = () if workers is None else tuple(sorted(set(workers)))
    absent = sorted(set(chosen) - set(session.workers()))
    if absent or (workers is not None and not chosen):
        there = f"the workers there are: {list(session.workers())}"
        raise ValueError(
            f"gt.rebalance: workers {absent} are not there; {there}" if absent else f"gt.rebalance: no worker is named; {there}"
        )
    settle(state.trace, "gt.rebalance")
    move: Callable[..., Future[int]] | None = getattr(session, "rebalance", None)  # a session in this process has one worker
    if move is None:
        return 0
    configs = list(_configs())
    named = dict.fromkeys(tuple(c.shard.workers) for c in configs if c.shard is not None and c.shard.workers is not None)
    meshes = dict.fromkeys(mesh_axes(c.mesh) for c in configs if c.mesh)
    return awaited(move(chosen, tuple(named), tuple(meshes)), session)


def _configs() -> Iterable[SignalConfig]:
    config = get_config()
    for name in config.signals:
        found = config.resolve(name)
        if found is not None:
            yield found
    if config.base is not None:
        yield config.base[1]


__all__ = ["rebalance"]
