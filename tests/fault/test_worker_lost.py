"""Losing processes: who hears of it, how fast, and who goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from gt.runtime.errors import DispatcherLost, WorkerLost
from gt.runtime.exit_codes import ExitCode
from gt.runtime.launch import LocalCluster, start_local
from gt.runtime.remote import RemoteSession
from tests.integration.cluster import Desk, rows
from tests.integration.programs import ROOT, Process, environment, lived, server, wait_for

pytestmark = pytest.mark.timeout(120)
N = 1500
WITHIN_S = 5.0


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    started = start_local(2, backend="numpy")
    yield started
    started.stop()


def uploads(desk: Desk) -> tuple[int, int]:
    """Give two large values in rows, which are there."""
    x, w = (desk.put(np.ones((N, N)) / N, rows()) for _ in range(2))
    desk.get(x, 60), desk.get(w, 60)
    return x, w


def busy(desk: Desk, x: int, w: int, runs: int) -> int:
    """Put work in flight in which the workers meet; give the last buffer."""
    for _ in range(runs):
        x = desk.run("matmul", (x, (N, N)), (w, (N, N)))
    return x


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_worker_lost_in_the_middle_of_a_run(cluster, how):
    session, other = RemoteSession(cluster.address), RemoteSession(cluster.address)
    desk, neighbour = Desk(session), Desk(other)
    kept = neighbour.put(np.full((3, 3), 7.0))
    assert neighbour.get(neighbour.run("add", (kept, (3, 3)), (kept, (3, 3))))[0, 0] == 14
    last = busy(desk, *uploads(desk), 2)
    desk.get(last, 60)  # the group exists, plans are loaded
    survivor, victim = cluster.workers
    x, w = uploads(desk)
    os.kill(survivor.pid, signal.SIGSTOP)  # until the kill: the other waits in a collective, however late it comes
    future = session.fetch(busy(desk, x, w, 6))
    with lived() as seconds:
        os.kill(victim.pid, how)
        os.kill(survivor.pid, signal.SIGCONT)
        with pytest.raises(WorkerLost, match=r"worker \d+ .*(died|stopped answering)") as caught:
            future.result(30)
        assert seconds() < WITHIN_S
    assert session.workers() == tuple({0, 1} - {caught.value.worker})
    assert caught.value.worker in (0, 1) and caught.value.epoch > 0
    assert "train.py:12" in str(caught.value)
    assert neighbour.get(neighbour.run("add", (kept, (3, 3)), (kept, (3, 3))))[0, 0] == 14
    assert np.array_equal(neighbour.get(kept), np.full((3, 3), 7.0, np.float32))
    fresh = desk.put(np.full((3, 3), 2.0), rows())
    assert desk.get(desk.run("add", (fresh, (3, 3)), (fresh, (3, 3))))[0, 0] == 4
    assert session.num_workers() == 1
    session.close()
    other.close()
    assert victim.wait(10) == -signal.SIGKILL


def test_a_shard_on_a_lost_worker_is_named_when_it_is_read(cluster):
    session = RemoteSession(cluster.address)
    desk = Desk(session)
    whole, split = desk.put(np.ones((4, 4))), desk.put(np.ones((4, 4)), rows())
    assert desk.get(split).sum() == 16
    cluster.workers[0].kill()
    with pytest.raises(WorkerLost):
        wait_for(lambda: desk.get(split) is None)
    assert desk.get(whole).sum() == 16
    session.close()


def test_losing_all_workers_is_an_error_and_not_a_hang(cluster):
    session = RemoteSession(cluster.address)
    desk = Desk(session)
    x = desk.put(np.ones((4, 4)))
    assert desk.get(x).sum() == 16
    for w in cluster.workers:
        w.kill()
    with pytest.raises(WorkerLost):
        wait_for(lambda: desk.get(x) is None)
    session.close()


def test_a_lost_dispatcher_ends_the_session_and_the_workers(cluster):
    session = RemoteSession(cluster.address)
    desk = Desk(session)
    assert desk.get(desk.put(np.ones((2, 2)))).sum() == 4
    cluster.dispatcher.kill()
    with lived() as seconds:
        with pytest.raises(DispatcherLost):
            session.fetch(1).result(20)
        assert seconds() < WITHIN_S + 1
    with pytest.raises(DispatcherLost):
        session.fetch(1)
    for w in cluster.workers:
        assert w.wait(20) == ExitCode.SERVER_LOST
    session.close()


def test_a_killed_planner_fails_one_plan_and_is_replaced(cluster):
    session = RemoteSession(cluster.address)
    desk = Desk(session)
    x = desk.put(np.ones((2, 2)))
    assert desk.get(x).sum() == 4
    (planner,) = psutil.Process(cluster.dispatcher.pid).children()
    planner.kill()
    dispatcher = psutil.Process(cluster.dispatcher.pid)
    assert wait_for(lambda: dispatcher.children() not in ([], [planner]), 20)
    assert desk.get(desk.run("add", (x, (2, 2)), (x, (2, 2)))).sum() == 8
    session.close()


def test_a_worker_that_was_stopped_for_too_long_says_that_it_counts_as_lost():
    with server() as there:
        words = ["-m", "gt.worker", "--host", "localhost", "-p", str(there.port), "--lease", "0"]
        worker = Process([sys.executable, *words], env=environment(), cwd=ROOT)
        session = RemoteSession(there.address)
        assert wait_for(lambda: session.num_workers() == 1)
        worker.send_signal(signal.SIGSTOP)
        assert wait_for(lambda: session.num_workers() == 0)
        worker.send_signal(signal.SIGCONT)
        _, err = worker.communicate(timeout=60)
        session.close()
    assert worker.returncode == ExitCode.SERVER_LOST
    assert f"worker 0 (pid {worker.pid} on " in err and "stopped answering" in err and "counts as lost" in err, err
