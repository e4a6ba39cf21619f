"""How long runs take on a device that works by itself, by events in its stream, and how far launching may be ahead of it.

Owns: ``DeviceClock``. Nothing waits for a result: events that have passed are read when the next run is launched. Only where more than
``AHEAD_S`` of work is launched does the next launch wait, so that what another client asks for is not behind a long line in the device's
own queue; at least one run is always ahead, so the device never waits. Must not know: programs, torch. Next: ``executor`` (makes one on
a GPU), ``runner`` (asks).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

AHEAD_S = 0.02
RECENT = 0.2  # weight of the last run in a plan's average


class DeviceEvent(Protocol):
    """A place in the device's stream, as torch.cuda.Event."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any) -> float: ...


@dataclass(slots=True)
class Launched:
    """A run that may not be over."""

    plan: int
    start: DeviceEvent
    end: DeviceEvent


class DeviceClock:
    """Times the runs of one stream. ``averages``: device seconds by plan, None until a run of it is over."""

    def __init__(self, event: Callable[[], DeviceEvent], ahead_s: float = AHEAD_S) -> None:
        self.event, self.ahead_s = event, ahead_s
        self.launched: deque[Launched] = deque()
        self.averages: dict[int, float | None] = {}
        self.last: DeviceEvent | None = None  # the end of the run launched last
        self.start: DeviceEvent | None = None

    def begin(self, plan: int) -> None:
        """Hear that a run is about to be launched; wait while too much is ahead of it."""
        self.averages.setdefault(plan, None)
        while self.launched and self.launched[0].end.query():
            self._over()
        while len(self.launched) > 1 and sum(self.averages.get(run.plan) or self.ahead_s for run in self.launched) > self.ahead_s:
            self.launched[0].end.synchronize()
            self._over()
        self.start = self.last if self.launched else None
        if self.start is None:  # the device may have been idle since the last run
            self.start = self.event()
            self.start.record()

    def end(self, plan: int) -> None:
        """Hear that it has been launched."""
        assert self.start is not None
        end = self.event()
        end.record()
        self.launched.append(Launched(plan, self.start, end))
        self.last, self.start = end, None

    def _over(self) -> None:
        run = self.launched.popleft()
        seconds = run.start.elapsed_time(run.end) / 1000
        if run.plan not in self.averages:
            return  # forgotten meanwhile
        before = self.averages[run.plan]
        self.averages[run.plan] = seconds if before is None else before + (seconds - before) * RECENT

    def seconds(self, plan: int) -> float | None:
        """Give what a run of the plan takes on the device, by those that are over; None if none is."""
        return self.averages.get(plan)

    def forget(self, plan: int) -> None:
        """Let go of a plan."""
        self.averages.pop(plan, None)


__all__ = ["AHEAD_S", "DeviceClock"]
