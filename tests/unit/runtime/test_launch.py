"""Looking after worker processes: who is replaced, how often, and when no more."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gt.runtime import launch
from gt.runtime.launch import LocalCluster
from tests.integration.programs import wait_for


class Process:
    """A process that has ended, or not yet."""

    pid = 0

    def __init__(self, code: int | None) -> None:
        self.returncode = code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.returncode = -number


def looked_after(folder: Path, workers: list[Any], restarts: int, start: Any) -> LocalCluster:
    cluster = LocalCluster(f"ipc://{folder}/d", folder)
    cluster.workers, cluster._start_worker = workers, start  # type: ignore[method-assign]
    cluster.supervise(restarts)
    cluster.watch()
    return cluster


def test_a_worker_that_died_is_replaced_in_its_place_and_no_other_is(tmp_path: Path) -> None:
    started: list[int] = []

    def start(i: int) -> Any:
        started.append(i)
        return Process(None)

    first = Process(None)
    cluster = looked_after(tmp_path, [first, Process(-9)], 5, start)
    assert wait_for(lambda: started)
    assert wait_for(lambda: cluster.workers[1].returncode is None) and cluster.workers[0] is first
    assert wait_for(lambda: cluster.restarts_left == 4)
    assert started == [1] and cluster.replacing
    cluster.stop()


def test_one_that_cannot_start_is_tried_so_often_and_not_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "RESTART_S", 0.25)
    times: list[float] = []

    def start(i: int) -> Any:
        times.append(time.monotonic())
        if len(times) == 2:
            raise OSError("no memory")
        return Process(3)

    cluster = looked_after(tmp_path, [Process(-9)], 3, start)
    assert wait_for(lambda: cluster.restarts_left == 0 and len(times) == 3)
    assert min(b - a for a, b in zip(times, times[1:], strict=False)) >= 0.25
    assert not cluster.replacing
    cluster.stop()


def test_the_last_that_may_be_replaced_is_until_another_is_there(tmp_path: Path) -> None:
    found: list[bool] = []

    def start(i: int) -> Any:
        found.append(cluster.replacing)
        return Process(None)

    cluster = LocalCluster(f"ipc://{tmp_path}/d", tmp_path)
    cluster.workers, cluster._start_worker = [Process(-9)], start  # type: ignore[method-assign, list-item]
    cluster.supervise(1)
    cluster.watch()
    assert wait_for(lambda: cluster.restarts_left == 0)
    assert found == [True] and cluster.replacing
    cluster.stop()


def test_nobody_is_replaced_unless_that_is_asked_for(tmp_path: Path) -> None:
    looks: list[int] = []

    class Counted(Process):
        def poll(self) -> int | None:
            looks.append(1)
            return super().poll()

    cluster = looked_after(tmp_path, [Counted(-9)], 0, None)
    assert wait_for(lambda: len(looks) > 1)
    cluster.stop()
    assert cluster.workers[0].returncode == -9 and not cluster.replacing


@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_process_in_whose_start_a_signal_comes_is_ended_too(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the handler raises, just behind the fork: dispatcher and workers are known, and ``start_local`` ends them."""
    started: list[Process] = []

    def start(*words: Any, **options: Any) -> Process:
        started.append(Process(None))
        if len(started) == last:
            signal.raise_signal(signal.SIGUSR1)
        return started[-1]

    def late(number: int, frame: Any) -> None:
        raise TimeoutError("a limit of the script's")

    before = signal.signal(signal.SIGUSR1, late)
    monkeypatch.setattr(launch.subprocess, "Popen", start)
    try:
        with pytest.raises(TimeoutError, match="the script's"):
            launch.start_local(2, backend="numpy")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [p.returncode for p in started] == [-signal.SIGTERM] * last


def test_a_death_is_told_though_another_thread_asks_at_the_same_moment(tmp_path: Path) -> None:
    """Of two threads that ask the system at once about a process, Python answers the second that it has not ended."""

    class Asked(Process):
        pid, asked = 77, threading.Lock()

        def poll(self) -> int | None:
            if not self.asked.acquire(blocking=False):
                return None
            time.sleep(0.05)
            self.asked.release()
            return self.returncode

    process = Asked(-9)
    cluster = looked_after(tmp_path, [process], 0, None)
    assert wait_for(process.asked.locked)
    assert [text.partition(".")[0] for text in cluster.ended()] == ["a worker (pid 77) ended by SIGKILL"]
    cluster.stop()
