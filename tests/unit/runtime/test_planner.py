"""The planner's processes: a request each, another for who waits behind a slow one, a second try for who was killed."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator

import pytest

from gt.runtime import planner
from gt.runtime.planner import Planners, PlanReply, PlanRequest


@pytest.fixture
def planners() -> Iterator[Planners]:
    made = Planners()
    yield made
    made.close()


def request(plan: int) -> PlanRequest:
    return PlanRequest(plan, b"none", (), (0,), 0)


def replies(planners: Planners, count: int) -> list[PlanReply]:
    found: list[PlanReply] = []
    until = time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        select.select(planners.filenos(), [], [], 0.1)
        found += planners.read()
        planners.flush()
        planners.look(time.monotonic())
    return found


def test_who_waits_behind_a_slow_plan_gets_another_process(planners: Planners, monkeypatch: pytest.MonkeyPatch):
    (slow,) = planners.processes
    monkeypatch.setattr(planner, "MOST", 2)  # a busy machine may be slow to start the second
    os.kill(slow.process.pid, signal.SIGSTOP)
    for plan in range(4):
        planners.ask(request(plan))
    assert [r.plan for r in replies(planners, 3)] == [1, 2, 3] and len(planners.processes) == 2
    os.kill(slow.process.pid, signal.SIGCONT)
    assert [r.plan for r in replies(planners, 1)] == [0]
    other = planners.processes[1].process
    monkeypatch.setattr(planner, "IDLE_S", 0.0)
    planners.look(time.monotonic()), planners.look(time.monotonic())
    assert planners.processes == [slow] and other.poll() == -signal.SIGKILL


def test_a_planner_that_is_killed_is_asked_again_once(planners: Planners):
    (process,) = planners.processes
    os.kill(process.process.pid, signal.SIGSTOP)
    planners.ask(request(7))
    process.process.kill()
    (reply,) = replies(planners, 1)
    assert reply.fault is not None and "malformed graph" in reply.fault.message  # by the second process
    for _ in range(2):
        pid = process.process.pid
        os.kill(pid, signal.SIGSTOP)
        if process.asked is None:
            planners.ask(request(8))
        process.process.kill()
        found: list[PlanReply] = []
        while process.process.pid == pid:
            found += planners.read()
    (reply,) = found
    assert reply.plan == 8 and reply.fault is not None and "died twice" in reply.fault.message


def test_a_planner_too_long_at_a_plan_is_killed_and_not_asked_again(planners: Planners, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(planner, "DEADLINE_S", 0.2)
    (process,) = planners.processes
    os.kill(process.process.pid, signal.SIGSTOP)
    planners.ask(request(9))
    (reply,) = replies(planners, 1)
    assert reply.plan == 9 and reply.fault is not None and "took 0.2 s" in reply.fault.message
