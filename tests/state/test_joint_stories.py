"""Stories of a graph that a plan's workers capture together: all in one epoch, replayed by all in the same epochs, dropped together."""

from __future__ import annotations

from typing import Any

import pytest

from gt.runtime import wire
from gt.runtime.errors import Fault
from tests.state.stories import Story, plans, sent


class Training(Story):
    """Two workers run one plan with a collective, again and again. ``use``: what the last run's workers were told."""

    def __init__(self, groups: tuple[tuple[int, ...], ...] = ((0, 1),)) -> None:
        super().__init__(workers=2)
        self.at = 2
        self.put(1)
        self.define(1)
        (make,) = plans(self.run(1, (1,), (2,)))
        for group in sent(self.plan(make, groups=groups), wire.MakeGroup, "w0"):
            for w in range(2):
                self.done(w, group.epoch)
        self.plan_id = make.plan
        self.epoch = self.state.epochs.epoch
        self.end("")

    def begin(self) -> str:
        self.at += 1
        told = self.run(1, (1,), (self.at,))
        (one,), (other,) = sent(told, wire.Execute, "w0"), sent(told, wire.Execute, "w1")
        assert one.graph == other.graph
        self.epoch = one.epoch
        return one.graph

    def end(self, *stages: Any, epoch: int | None = None, fault: Fault | None = None) -> list[Any]:
        stages = stages * 2 if len(stages) == 1 else stages
        told = []
        for w, stage in enumerate(stages):
            told += self.say(f"w{w}", wire.Done(self.epoch if epoch is None else epoch, 0.01, fault, graph=stage))
        return told

    def step(self, *stages: Any) -> str:
        use = self.begin()
        self.end(*stages)
        return use

    def replaying(self) -> Training:
        assert [self.step("ready"), self.step("captured"), self.step("")] == ["", "capture", "replay"]
        return self


def drops(told: list[Any]) -> list[tuple[int, str]]:
    return [(d.plan, d.refused) for w in ("w0", "w1") for d in sent(told, wire.DropGraph, w)]


def test_all_capture_in_one_epoch_once_each_is_ready_and_replay_once_each_has() -> None:
    t = Training()
    assert t.step("ready", "") == ""
    assert t.step("ready", "") == ""
    assert t.step("", "ready") == ""
    assert t.begin() == "capture"
    asked = t.epoch
    assert t.begin() == ""  # while they do
    t.end("captured", epoch=asked)
    t.end("")
    assert [t.step("") for _ in range(3)] == ["replay"] * 3


def test_a_plan_without_collectives_is_its_workers_own_affair() -> None:
    t = Training(groups=())
    assert [t.step("ready") for _ in range(3)] == [""] * 3


def test_where_one_cannot_none_does_and_none_is_asked_again() -> None:
    t = Training()
    t.step("ready")
    assert t.begin() == "capture"
    why = "worker 1 could not capture the program"
    assert drops(t.end("captured", "refused")) == [(t.plan_id, why)] * 2
    assert [t.step("ready") for _ in range(3)] == [""] * 3


@pytest.mark.parametrize("fault", [None, Fault("run", "broke", 1)])
def test_a_run_that_was_to_be_captured_and_was_not_is_tried_again(fault: Fault | None) -> None:
    t = Training()
    t.step("ready")
    assert t.begin() == "capture"
    told = t.say("w0", wire.Done(t.epoch, 0.01, graph="captured"))
    told += t.say("w1", wire.Done(t.epoch, 0.01, fault))
    assert drops(told) == [(t.plan_id, "")] * 2
    assert [t.step("ready"), t.step("captured"), t.step("")] == ["", "capture", "replay"]


def test_a_graph_kept_for_values_that_are_gone_is_dropped_by_all() -> None:
    t = Training().replaying()
    assert drops(t.say("w1", wire.GraphIdle(t.plan_id))) == [(t.plan_id, "")] * 2
    assert drops(t.say("w0", wire.GraphIdle(t.plan_id))) == []
    assert drops(t.say("w0", wire.GraphIdle(99))) == []
    assert [t.step("ready"), t.step("captured"), t.step("")] == ["", "capture", "replay"]


def test_what_comes_late_of_an_earlier_capture_does_not_count() -> None:
    t = Training()
    t.step("ready")
    assert t.begin() == "capture"
    old = t.epoch
    t.say("w0", wire.Done(old, 0.01, graph="captured"))
    t.say("w0", wire.GraphIdle(t.plan_id))
    t.say("w1", wire.Done(old, 0.01, graph="captured"))
    assert [t.step("ready"), t.begin()] == ["", "capture"]


def test_with_a_group_that_failed_the_graphs_go_and_come_again() -> None:
    t = Training().replaying()
    assert t.begin() == "replay"
    t.end("", fault=Fault("collective", "timed out"))
    told = t.run(1, (1,), (100,))
    (group,) = sent(told, wire.MakeGroup, "w0")
    (run,) = sent(told, wire.Execute, "w0")
    assert run.graph == ""
    t.end("", epoch=group.epoch)
    t.end("", epoch=run.epoch)
    t.at = 100
    assert [t.step("ready"), t.step("captured"), t.step("")] == ["", "capture", "replay"]
