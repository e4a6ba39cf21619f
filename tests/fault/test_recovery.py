"""Losing workers without noticing: real processes, killed at the worst moments, and values that are there all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from gt.runtime.errors import SessionClosed, WorkerLost
from gt.runtime.exit_codes import ExitCode
from gt.runtime.launch import LocalCluster, start_local
from gt.runtime.recovering import RecoveringSession
from gt.runtime.recovery import Recovery
from gt.runtime.remote import RemoteSession
from tests.integration.cluster import Desk, rows
from tests.integration.programs import environment, lived, output, server, wait_for

pytestmark = pytest.mark.timeout(120)
SELDOM = Recovery(interval_s=1000)


@contextmanager
def session_at(cluster: LocalCluster, options: Recovery | None = SELDOM) -> Iterator[RecoveringSession]:
    session = RecoveringSession(partial(RemoteSession, cluster.address, timeout=20.0))
    session.recover(options)
    session.replacing = lambda: cluster.replacing
    try:
        yield session
    finally:
        session.close()


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Two workers, each replaced when it dies."""
    started = start_local(2, backend="numpy")
    started.supervise(10)
    yield started
    started.stop()


class Job:
    """Work whose values are known: a number on all workers and one in rows, each the sum of all that was added to it."""

    def __init__(self, session: RecoveringSession) -> None:
        self.desk = Desk(session)
        self.total = 1.0
        self.whole = self.desk.put(np.ones((4, 4)))
        self.split = self.desk.put(np.ones((4, 4)), rows())

    def steps(self, count: int) -> None:
        """Add an upload to both, in place, as often."""
        for _ in range(count):
            more = self.desk.put(np.full((4, 4), self.total))
            self.whole = self.desk.run("add", (self.whole, (4, 4)), (more, (4, 4)), frees=(self.whole,))
            self.split = self.desk.run("add", (self.split, (4, 4)), (more, (4, 4)), frees=(self.split, more))
            self.total *= 2

    def check(self) -> None:
        for buffer in (self.whole, self.split):
            assert np.array_equal(self.desk.get(buffer, 60), np.full((4, 4), self.total, np.float32))


def test_values_survive_one_worker_after_the_other_and_other_clients_notice_nothing(cluster):
    with session_at(cluster) as session, session_at(cluster, None) as other:
        neighbour = Desk(other)
        theirs = neighbour.put(np.full((3, 3), 7.0))
        job = Job(session)
        job.steps(5)
        job.check()
        cluster.workers[0].kill()
        job.steps(3)  # may meet the loss, or not
        job.check()
        assert wait_for(lambda: len(session.recoveries) == 1)
        assert session.workers() == (0, 1) and neighbour.get(theirs, 60)[0, 0] == 7.0
        (first,) = session.recoveries
        done, whole = session.replayed
        assert done == whole == first.runs
        assert first.runs >= 10 and first.workers == 2 and "died" in first.lost and "snapshot" in str(first)
        session.recover(Recovery(interval_s=0.05))
        for _ in range(3):
            time.sleep(0.06)  # a snapshot is due
            job.steps(1)
            job.check()
        assert session.snapshots.taken >= 2 and session.snapshots.nbytes >= 2 * 64
        cluster.workers[1].kill()
        assert wait_for(lambda: len(session.recoveries) == 2, 60)
        job.check()
        assert session.recoveries[1].runs <= 4  # only what came after it


def test_a_recovery_is_as_far_as_its_runs_are_over(cluster, monkeypatch):
    idle, seen = RemoteSession.idle, []

    def idle_later(link, timeout_s):  # all runs are sent
        with monkeypatch.context() as patch:
            patch.setattr(RemoteSession, "runs_over", property(lambda _: 2))
            seen.append(session.replayed)
        return idle(link, timeout_s)

    with session_at(cluster) as session:
        job = Job(session)
        job.steps(3)
        job.check()
        monkeypatch.setattr(RemoteSession, "idle", idle_later)
        cluster.workers[0].kill()
        assert wait_for(lambda: len(session.recoveries) == 1, 60)
        assert seen[0] == (2, session.recoveries[0].runs) and session.recoveries[0].runs >= 6
        job.check()


def test_workers_killed_during_a_snapshot_and_during_a_replay(cluster, monkeypatch):
    replay, killed = RecoveringSession._replay, threading.Event()

    def replaying(session, link, log):
        if not killed.is_set():
            killed.set()
            cluster.workers[1].kill()
            assert wait_for(lambda: session._hurt is not None)
        return replay(session, link, log)

    monkeypatch.setattr(RecoveringSession, "_replay", replaying)
    with session_at(cluster, None) as session:
        job = Job(session)
        job.steps(4)
        job.check()
        os.kill(cluster.workers[0].pid, signal.SIGSTOP)
        os.kill(cluster.workers[1].pid, signal.SIGSTOP)
        session.recover(SELDOM)  # the first snapshot cannot end yet: until it has, there is nothing to fall back on
        assert not session._log.whole
        os.kill(cluster.workers[0].pid, signal.SIGCONT)
        os.kill(cluster.workers[1].pid, signal.SIGCONT)
        assert wait_for(lambda: session._log.whole)
        job.steps(1)
        os.kill(cluster.workers[0].pid, signal.SIGSTOP)
        with session.lock:
            session._take_snapshot(session._log)
        assert session._log.snapshot is not None
        cluster.workers[0].kill()
        job.steps(1)
        job.check()
        assert wait_for(lambda: session.recoveries) and killed.is_set()
        assert session.snapshots.taken == 1


def test_without_replacements_the_smaller_set_takes_over_and_with_nobody_left_it_is_told_what_was_tried(cluster):
    cluster.supervise(0)
    with session_at(cluster, Recovery(interval_s=1000, wait_s=0.3, tries=2)) as session:
        job = Job(session)
        job.steps(3)
        job.check()
        cluster.workers[1].kill()
        assert wait_for(lambda: session.recoveries)
        job.steps(3)
        job.check()
        assert session.workers() == (0,) and session.recoveries[0].workers == 1
        cluster.workers[0].kill()
        assert wait_for(lambda: session.closed is not None)
        with pytest.raises(
            WorkerLost, match=r"died, and recovery gave up after 2 tries: try 1: no worker joined .* 0.3 s; try 2: no"
        ):
            session.fetch(job.whole)


def test_a_session_may_end_in_the_middle_of_a_recovery(cluster):
    cluster.supervise(0)
    with session_at(cluster, Recovery(interval_s=1000, wait_s=100)) as session:
        job = Job(session)
        job.check()
        cluster.workers[0].kill()
        assert wait_for(lambda: not session._open.is_set())
        with lived() as seconds:
            session.close()
            assert seconds() < 5.0
        with pytest.raises((WorkerLost, SessionClosed)):
            job.desk.get(job.whole)


JIT_AND_NAMED_WORKERS = """
import os, signal
import numpy as np
import gt
from gt import session
gt.gpu_workers(3)
gt.register_config("two", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[1, 2])))

def train(kills):
    gt.manual_seed(3)
    model = gt.nn.Linear(8, 8)
    optimizer = gt.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    @gt.jit
    def step(x):
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    data = np.random.default_rng(0)
    with gt.signal.context("two"):
        held = gt.from_numpy(np.arange(32, dtype=np.float32).reshape(8, 4))
        doubled = held * 2
    view = doubled[1:3]
    for i in range(20):
        loss = step(gt.from_numpy(data.standard_normal((6, 8)).astype(np.float32)))
        if i in kills:
            os.kill(session.cluster().workers[i % 3].pid, signal.SIGKILL)
            loss.item()
    with gt.signal.context("two"):
        both = held + doubled
    return [loss.item(), model.weight.tolist(), view.tolist(), both.tolist()]

quiet = train(())
gt.recover()  # with all those values there already
assert train((10, 15)) == quiet
print(gt.num_workers(), len(gt.recoveries()) >= 1)
"""


def test_functions_under_jit_views_and_signals_that_name_workers_do_not_notice(tmp_path):
    assert output(JIT_AND_NAMED_WORKERS, tmp_path) == "3 True\n"


HANGS = """
import ctypes, signal
from gt.worker import main
signal.signal(signal.SIGUSR1, lambda *_: ctypes.PyDLL(None).sleep(600))  # keeps the interpreter's lock
main()
"""


def test_at_a_server_a_stopped_worker_is_refused_when_it_comes_back_and_one_stuck_in_python_is_lost_too():
    with server() as there:
        there.add_workers(2)
        command = [sys.executable, "-c", HANGS, "--host", "localhost", "-p", str(there.port)]
        hangs = subprocess.Popen(command, env=environment(), text=True)
        there.workers.append(hangs)
        there.await_workers(3)
        session = RecoveringSession(partial(RemoteSession, there.address, timeout=20.0))
        try:
            session.recover(Recovery(interval_s=1000, wait_s=0))
            job = Job(session)
            job.steps(2)
            job.check()
            stopped = there.workers[0]
            with lived() as seconds:
                os.kill(stopped.pid, signal.SIGSTOP)
                os.kill(hangs.pid, signal.SIGUSR1)
                waiting = session.fetch(job.split)
                assert wait_for(lambda: session._hurt is not None or session.recoveries)
                assert seconds() < 5.0
            assert waiting.result(60)[0, 0] == job.total and wait_for(lambda: session.recoveries)
            assert "stopped answering" in session.recoveries[0].lost
            assert wait_for(lambda: session.num_workers() == 1)
            job.steps(2)
            job.check()
            os.kill(stopped.pid, signal.SIGCONT)
            assert stopped.wait(15) == ExitCode.SERVER_LOST  # it is told that it is not known any more
            job.check()
        finally:
            session.close()
            hangs.kill()


def test_a_message_that_is_lost_while_a_recovery_waits_for_workers_costs_that_try_and_no_more():
    with server() as there:
        there.add_workers(1)
        session = RecoveringSession(partial(RemoteSession, there.address, timeout=20.0))
        try:
            session.recover(Recovery(interval_s=1000, wait_s=100))
            job = Job(session)
            job.steps(2)
            job.check()
            there.workers[0].kill()
            assert wait_for(lambda: session._number == 1 and session._link.closed is None and not session._link.workers())
            session._link._up.numbers.sent[b""].number += 1
            assert wait_for(lambda: session._number == 2)
            there.add_workers(1)
            assert wait_for(lambda: session.recoveries, 30)
            job.steps(1)
            job.check()
        finally:
            session.close()


def test_a_replay_needs_no_more_of_a_quota_than_the_script_did():
    with server(1, "gt.server", "--client-memory", "2KiB") as there:  # four values: the job's two, one to come and one that goes
        session = RecoveringSession(partial(RemoteSession, there.address, timeout=20.0))
        try:
            session.recover(Recovery(interval_s=1000, wait_s=60))
            job = Job(session)
            for _ in range(12):
                job.steps(1)
                job.check()
            there.add_workers(1)
            there.workers[0].kill()
            job.check()
            assert [(r.runs, r.workers) for r in session.recoveries] == [(24, 1)]
            job.steps(1)
            job.check()
        finally:
            session.close()
