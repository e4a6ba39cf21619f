"""Runs that a device may not be through with, so that what a collective leaves that is broken off there is known for what it is.

Owns: ``LaunchedRuns``. A run is over for its worker once it is launched. A group that is aborted ends its collectives on the device
wherever they are, without an error, and what comes behind them goes on with what they leave. Must not know: groups, torch.
Next: ``runner`` (launches), ``collective`` (says what is about to be aborted), ``device_clock`` (when a run is over, for its time).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import msgspec

from gt.runtime.device_clock import DeviceEvent
from gt.runtime.errors import Fault

Members = tuple[int, ...]


@dataclass(slots=True)
class LaunchedRun:
    """One run; values by uids. ``where``: the user's line. ``over``: when the device is through with it. ``fault``: why what it makes is
    not right.
    """

    epoch: int
    where: str
    inputs: frozenset[int]
    groups: frozenset[Members]
    outputs: tuple[int, ...] = ()
    over: DeviceEvent | None = None
    fault: Fault | None = None


class LaunchedRuns:
    """The runs of one stream that meet others on the device, and those that read what these make, while they may not be over.

    ``broken``: by uid, what is not right, and why; whoever takes it knows. Events are used again, never let go of: CUDA lets no thread
    destroy one while another waits for the device, maybe for what that thread is about to abort.
    """

    def __init__(self, event: Callable[[], DeviceEvent]) -> None:
        self._event = event
        self._spare: list[DeviceEvent] = []
        self._now: DeviceEvent | None = None
        self._runs: deque[LaunchedRun] = deque()
        self._launching: LaunchedRun | None = None
        self._at, self._since = -1, 0.0  # the epoch that the device is at, since when
        self._lock = threading.Lock()  # what is aborted is said by another thread
        self.broken: dict[int, Fault] = {}

    def begin(self, epoch: int, inputs: Iterable[int], groups: Collection[Members], where: str = "") -> None:
        """Hear that a run is about to be launched, with collectives of these groups."""
        with self._lock:
            while self._runs and _is_over(self._runs[0]):
                run = self._runs.popleft()
                if run.over is not None:
                    self._spare.append(run.over)
                    run.over = None
            read = frozenset(inputs)
            concerned = groups or any(not read.isdisjoint(run.outputs) for run in self._runs)
            self._launching = LaunchedRun(epoch, where, read, frozenset(groups)) if concerned or self.broken else None
            if self._launching is not None:
                self._launching.fault = self._cause(read)

    def end(self, outputs: tuple[int, ...]) -> Fault | None:
        """Hear that it has been launched. Gives why what it makes is not right, if that is so."""
        run = self._launching
        if run is None:
            return None
        over = self._spare.pop() if self._spare else self._event()
        over.record()  # with no lock: it waits for room in the device's queue, maybe for what is about to be aborted
        with self._lock:
            self._launching = None
            if run.fault is not None:
                self._spare.append(over)
                return run.fault
            run.outputs, run.over = outputs, over
            self._runs.append(run)
            return None

    def abort(self, groups: Collection[Members], fault: Fault) -> None:
        """Hear that groups are about to be aborted: runs with collectives of theirs that are not over, and what reads them, are broken."""
        with self._lock:
            launching = () if self._launching is None else (self._launching,)
            for run in (*self._runs, *launching):
                if run.fault is None and not _is_over(run):
                    meets = not run.groups.isdisjoint(groups)
                    own = msgspec.structs.replace(fault, epoch=run.epoch, where=run.where)
                    run.fault = self._cause(run.inputs) or (own if meets else None)
                    if run.fault is not None:
                        self.broken.update(dict.fromkeys(run.outputs, run.fault))

    def take(self) -> dict[int, Fault]:
        """Give what is broken, and forget it."""
        with self._lock:
            broken, self.broken = self.broken, {}
            return broken

    def overdue(self, now: float, timeout_s: float) -> frozenset[Members]:
        """Give the groups of the run that the device has been at for longer than that; none where it gets on. To be asked again and again."""
        with self._lock:
            first = next((run for run in self._runs if not _is_over(run)), None)
            epoch = -1 if first is None else first.epoch
            if epoch != self._at:
                self._at, self._since = epoch, now
            return first.groups if first is not None and now - self._since > timeout_s else frozenset()

    def wait(self) -> None:
        """Wait until the device is through with all of the stream, without a lock of CUDA's: reading a value takes one until it is there."""
        self._now = self._now or self._event()
        self._now.record()
        self._now.synchronize()

    @property
    def are_over(self) -> bool:
        with self._lock:
            return all(_is_over(run) for run in self._runs)

    def _cause(self, inputs: frozenset[int]) -> Fault | None:
        return next((self.broken[uid] for uid in sorted(inputs) if uid in self.broken), None) if self.broken else None


def _is_over(run: LaunchedRun) -> bool:
    try:
        return run.over is not None and run.over.query()
    except RuntimeError:  # the device runs nothing more
        return False


__all__ = ["LaunchedRuns"]
