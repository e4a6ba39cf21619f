"""Calls sent once more, by another link, on which other workers may stand where some stood.

Owns: ``Replay``, of a log or of what was in flight; ``define``. Must not know: why they are sent again, who waits for answers.
Next: ``run_log`` and ``in_flight`` (what is sent), ``seats`` (who stands for whom), ``recovering`` (when).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from gt.runtime import wire
from gt.runtime.errors import Fault
from gt.runtime.in_flight import Call
from gt.runtime.remote import RemoteSession
from gt.runtime.run_log import Asked, Kept, Put, RunLog
from gt.runtime.seats import Seats

POLL_S = 0.02

Check: TypeAlias = Callable[[], None]


class Replay:
    """What is sent again to a link with ``seats``. ``graphs``: encoded, by key; of those that are ``defined`` the link has been told.

    ``check``: called before each call and while one waits; ends it by raising.
    """

    def __init__(self, link: RemoteSession, seats: Seats, graphs: Mapping[int, bytes], defined: set[int], check: Check) -> None:
        self._link, self._seats, self._graphs, self._defined, self._check = link, seats, graphs, defined, check
        self._runs = self._values = 0  # of a log
        self._values_sent = 0

    @property
    def progress(self) -> tuple[int, int]:
        """Say how many of a log's runs are over, and how many there are; of values sent where there are no runs."""
        return (min(self._link.runs_over, self._runs), self._runs) if self._runs else (self._values_sent, self._values)

    def log(self, log: RunLog, behind: set[int], ask: Callable[[Asked], None]) -> int:
        """Send what makes a log's values again, and wait until all of it has run; give how many runs that is.

        ``ask``: called with each read, where it stands. ``behind``: graphs, less those of which a run is sent.
        """
        self._runs, self._values = log.num_runs, len(log.base) + sum(isinstance(entry, Put) for entry in log.entries)
        for buffer, kept in log.base.items():
            self._check()
            self._values_sent += 1
            if isinstance(kept, Fault):
                self._link.tell(wire.Fail(buffer, kept))
            else:
                self._put(buffer, kept)
        runs, tiers = 0, dict(log.tiers)
        for entry in list(log.entries):
            self._check()
            match entry:
                case wire.RanAt():
                    tiers[entry.key] = entry.tiers
                case Put(buffer, kept):
                    self._values_sent += 1
                    self._put(buffer, kept)
                case Asked():
                    ask(entry)
                case wire.Run():
                    runs += 1
                    behind.discard(entry.key)
                    self._run(self._seats.run(entry, tiers.get(entry.key, ())))
                case wire.Rebalance():
                    self._link.tell(self._seats.rebalance(entry))
                case _:
                    self._link.tell(entry)
        while not self._link.idle(POLL_S):
            self._check()
        return runs

    def call(self, call: Call) -> None:
        """Send a call that was in flight."""
        match call:
            case Put(buffer, kept):
                self._put(buffer, kept)
            case wire.Run():
                self._run(call)
            case _:
                self._link.tell(call)

    def _run(self, run: wire.Run) -> None:
        while not self._link.admits(POLL_S):
            self._check()
        define(self._link, run.key, self._seats, self._graphs, self._defined)
        self._link.submit(run)

    def _put(self, buffer: int, kept: Kept) -> None:
        placed, signal = (None, None) if kept.placed is None else self._seats.placement(kept.placed)
        self._link.put(buffer, kept.type, kept.data, signal or self._seats.signal(kept.signal), placed)


def define(link: RemoteSession, key: int, seats: Seats, graphs: Mapping[int, bytes], defined: set[int]) -> None:
    """Tell a link of a graph, unless it has been told."""
    if key not in defined and key in graphs:
        link.tell(wire.Define(key), seats.graph(graphs[key]))
        defined.add(key)


__all__ = ["Replay", "define"]
