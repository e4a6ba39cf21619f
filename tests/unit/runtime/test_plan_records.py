"""Plans by structure and by number."""

from __future__ import annotations

from gt.runtime.dispatcher_events import Planned
from gt.runtime.errors import Fault
from gt.runtime.plan_records import PlanRecords


def test_equal_structures_share_a_plan() -> None:
    plans = PlanRecords(8)
    first = plans.begin("a")
    assert plans.find("a") is first and plans.find("b") is None
    assert plans.made(Planned(0.0, first.id)) is first and first.ready
    assert repr(list(plans)) == "[plan 1 ready]"


def test_a_forgotten_plan_that_comes_late_is_none() -> None:
    plans = PlanRecords(8)
    failed = plans.begin("a")
    assert plans.made(Planned(0.0, failed.id, fault=Fault("plan", "no"))) is failed and not failed.ready
    plans.forget(failed)
    assert plans.find("a") is None and plans.made(Planned(0.0, failed.id)) is None
    assert plans.begin("a").id == failed.id + 1


def test_the_oldest_go_first_but_not_past_one_that_is_being_made() -> None:
    plans = PlanRecords(2)
    old, making = plans.begin("a"), plans.begin("b")
    plans.made(Planned(0.0, old.id))
    plans.begin("c"), plans.begin("d")
    assert plans.evict() == [old] and len(plans) == 3
    plans.made(Planned(0.0, making.id))
    assert plans.evict() == [making] and len(plans) == 2


def test_plans_of_a_lost_worker_are_forgotten() -> None:
    plans = PlanRecords(8)
    both, one = plans.begin("a"), plans.begin("b")
    plans.made(Planned(0.0, both.id))
    plans.made(Planned(0.0, one.id))
    both.programs, one.programs = dict.fromkeys((0, 1)), dict.fromkeys((0,))  # type: ignore[assignment]
    plans.forget_worker(1)
    assert list(plans) == [one]
