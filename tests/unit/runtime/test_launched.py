"""What hangs on a collective that is aborted on a device is not taken for a result, though its run was launched without an error."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gt.ir.program import Collective, Compute, Program, WireNode, WireType
from gt.runtime import wire
from gt.runtime.collective import Groups
from gt.runtime.device_clock import DeviceClock
from gt.runtime.errors import Fault
from gt.runtime.launched import LaunchedRuns
from gt.runtime.numpy_engine import NumpyEngine
from gt.runtime.runner import Runner
from tests.unit.runtime import test_device_clock as clocks


@dataclass
class Device(clocks.Device):
    """``meanwhile``: what happens while it is waited for."""

    meanwhile: Callable[[], object] = lambda: None


class Event(clocks.Event):
    device: Device

    def synchronize(self) -> None:
        self.device.meanwhile()
        super().synchronize()


LOST = Fault("worker_lost", "worker 1 was lost", 1)
BOTH, OTHERS = (0, 1), (0, 2)


def launch(device: Device, runs: LaunchedRuns, epoch: int, inputs: tuple[int, ...], outputs: tuple[int, ...], *groups: tuple[int, ...]) -> None:
    runs.begin(epoch, inputs, groups)
    device.launch(1.0)
    assert runs.end(outputs) is None


def test_runs_that_are_not_over_and_what_reads_them_are_broken_and_no_others() -> None:
    device = Device()
    runs = LaunchedRuns(lambda: Event(device))
    launch(device, runs, 1, (1,), (11,), BOTH)
    device.now = 1.5
    launch(device, runs, 2, (2,), (12, 13), BOTH)
    launch(device, runs, 3, (12, 3), (14,))  # alone, of what is not there yet
    launch(device, runs, 4, (3,), (15,))  # of another
    launch(device, runs, 5, (3,), (16,), OTHERS)
    launch(device, runs, 6, (14, 15), (17,), OTHERS)
    assert not runs.are_over
    runs.abort([BOTH], LOST)
    told = runs.take()
    assert {uid: (fault.kind, fault.worker, fault.epoch) for uid, fault in told.items()} == {
        uid: ("worker_lost", 1, 2) for uid in (12, 13, 14, 17)
    }
    assert not runs.broken and runs.take() == {}
    device.now = 20.0
    assert runs.are_over
    runs.abort([BOTH, OTHERS], LOST)
    assert not runs.broken


@pytest.mark.parametrize("meets", [True, False])
def test_a_run_that_is_being_launched_says_so_itself(meets: bool) -> None:
    device = Device()
    runs = LaunchedRuns(lambda: Event(device))
    launch(device, runs, 1, (1,), (11,), BOTH)
    runs.begin(2, (2,) if meets else (11,), [BOTH] if meets else [])
    runs.abort([BOTH], LOST)
    fault = runs.end((12,))
    assert fault is not None and fault.epoch == (2 if meets else 1) and set(runs.broken) == {11}
    runs.begin(3, (11,), [])  # before anybody has taken it
    assert runs.end((13,)) == runs.broken[11]
    runs.begin(4, (2,), [OTHERS])
    assert runs.end((14,)) is None


def test_a_loss_is_heard_of_while_the_device_takes_no_more() -> None:
    device = Device()

    class Full(Event):
        def record(self) -> None:
            hearing = threading.Thread(target=runs.abort, args=([BOTH], LOST), daemon=True)
            hearing.start()
            hearing.join(10)
            assert not hearing.is_alive(), "what would end the wait for room waits for it"
            super().record()

    runs = LaunchedRuns(lambda: Full(device))
    runs.begin(1, (1,), [BOTH])
    fault = runs.end((11,))
    assert fault is not None and fault.kind == "worker_lost" and runs.are_over


class Member:
    """A group on a device: what it gives is there later, and is anything if it is aborted meanwhile."""

    def __init__(self, device: Device) -> None:
        self.device, self.aborted = device, 0

    captures = True

    def run(self, step: Collective, tensor: Any) -> Any:
        self.device.launch(1.0)
        return tensor

    def abort(self) -> None:
        self.aborted += 1
        self.device.now = self.device.ends

    def __getattr__(self, name: str) -> Any:
        return lambda: None


class Link:
    """An outlet that keeps what it is told, and what is read."""

    def __init__(self) -> None:
        self.dones: dict[int, wire.Done] = {}
        self.read: dict[int, Any] = {}

    def reply(self, message: Any) -> None:
        if isinstance(message, wire.Done):
            self.dones[message.epoch] = message

    def room(self, *_: object) -> None:
        """Nothing is shared."""

    def ship(self, token: bytes, message: Any, array: Any) -> None:
        self.read[message.request] = message.fault if isinstance(message, wire.PartFailed) else array


class Asynchronous(NumpyEngine):
    """As a GPU's engine: a value can be read once the device is through with it."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.clock = DeviceClock(lambda: Event(device))

    def to_host(self, value: Any, dtype: Any, out: Any = None) -> np.ndarray:
        assert self.device.now >= self.device.ends, "it would wait with a lock"
        return super().to_host(value, dtype, out)


def summed(*groups: tuple[int, ...]) -> Program:
    steps = [Collective("all_reduce", i, i, i + 1, WireType((4, 4), "float32"), g, (("reduce", "sum"),)) for i, g in enumerate(groups)]
    return Program(0, ((0, 0),), (), tuple(steps), ((0, len(groups)),), (("train.py", 12, "step"),), (), "sums")


def worker() -> tuple[Device, Asynchronous, Groups, Runner, Link]:
    device, link = Device(), Link()
    groups = Groups(0, lambda: None, "", 1.0, numpy=False)  # type: ignore[arg-type,return-value]
    groups.groups = {BOTH: Member(device), OTHERS: Member(device)}  # type: ignore[dict-item]
    engine = Asynchronous(device)
    runner = Runner(0, engine, link, groups)  # type: ignore[arg-type]
    runner.handle(wire.Load(1, summed(BOTH)))
    runner.handle(wire.Load(2, summed(OTHERS)))
    runner.values.put((10,), (np.ones((4, 4), np.float32),))
    runner.state.values.add(10)
    return device, engine, groups, runner, link


def run(runner: Runner, epoch: int, plan: int, read: int, made: int) -> None:
    runner.handle(wire.Execute(epoch, plan, (read,), (made,), (), ()))


def fetch(runner: Runner, uid: int) -> None:
    runner.handle(wire.Ship(uid, b"", uid, WireType((4, 4), "float32"), ((0, 4), (0, 4)), 1, True))


def test_events_are_used_again_and_never_let_go_of() -> None:
    device = Device()
    made: list[Event] = []

    def event() -> Event:
        made.append(Event(device))
        return made[-1]

    runs = LaunchedRuns(event)
    for epoch in range(100):
        launch(device, runs, epoch, (), (epoch,), BOTH)
        device.now += 0.5
        runs.overdue(device.now, 60.0)
    assert 40 < len(made) < 60  # as many as are ever ahead
    device.now = device.ends
    for epoch in range(100, 140):
        launch(device, runs, epoch, (), (epoch,), BOTH)
    assert len(made) < 60
    kept = [sys.getrefcount(e) for e in made]
    device.now = device.ends
    runs.abort([BOTH], LOST)
    assert [sys.getrefcount(e) for e in made] == kept


def test_what_a_lost_worker_leaves_on_the_device_is_not_read_nor_used() -> None:
    device, _, groups, runner, link = worker()
    run(runner, 1, 1, 10, 11)
    device.now = device.ends
    run(runner, 2, 1, 11, 12)
    run(runner, 3, 2, 10, 13)
    assert [link.dones[epoch].fault for epoch in (1, 2, 3)] == [None] * 3
    groups.abort(1)
    run(runner, 4, 2, 12, 14)
    assert link.dones[4].fault.kind == "worker_lost" and link.dones[4].fault.worker == 1
    for uid in (10, 11, 12, 13):
        fetch(runner, uid)
    told = link.read[12]
    assert (told.kind, told.worker, told.epoch, told.where) == ("worker_lost", 1, 2, "train.py:12")
    for uid in (10, 11, 13):  # over before, or of others
        np.testing.assert_array_equal(link.read[uid], np.ones((4, 4)))


def test_what_is_kept_of_a_run_that_fails_hangs_on_it_too() -> None:
    device, _, groups, runner, link = worker()
    shape = (WireType((4, 4), "float32"),)
    nodes = WireNode("neg", (0,), (2,), shape, ()), WireNode("neg", (1,), (3,), shape, ())
    runner.handle(wire.Load(3, Program(0, ((0, 0), (1, 1)), (), (Compute(nodes, (0, 1), (2, 3), ""),), ((0, 2), (1, 3)))))
    runner.state.poison[20] = Fault("index", "broke")
    run(runner, 1, 1, 10, 11)
    runner.handle(wire.Execute(2, 3, (20, 11), (21, 22), (), ()))
    runner.handle(wire.Execute(3, 3, (20, 10), (23, 24), (), ()))
    groups.abort(1)
    for uid in (21, 22, 23, 24):
        fetch(runner, uid)
    assert [link.read[uid].kind for uid in (21, 22, 23)] == ["index", "worker_lost", "index"]
    np.testing.assert_array_equal(link.read[24], -np.ones((4, 4)))


def test_a_loss_while_a_value_is_waited_for_is_told_whoever_reads_it() -> None:
    device, _, groups, runner, link = worker()
    run(runner, 1, 1, 10, 11)
    device.meanwhile = lambda: groups.abort(1)
    fetch(runner, 11)
    assert link.read[11].kind == "worker_lost"
    device.meanwhile = lambda: None
    groups.lost.clear()
    run(runner, 2, 1, 10, 12)
    device.meanwhile = lambda: groups.leave(9, (BOTH,), "worker 1 could not go on")
    fetch(runner, 12)
    assert link.read[12].kind == "collective" and "could not go on" in link.read[12].message
    assert device.now == device.ends


def test_what_a_device_does_not_get_on_with_is_given_up_after_a_while() -> None:
    device, _, groups, runner, link = worker()
    runs = runner.launched
    assert runs is not None
    for epoch in (1, 2, 3):
        run(runner, epoch, 1 if epoch < 3 else 2, 10, 10 + epoch)
    for now in range(0, 100, 10):
        device.now = 0.5 + now / 100  # the first is over in between
        assert not runs.overdue(now, 60.0)
    assert not runs.overdue(109.0, 60.0)
    late = runs.overdue(111.0, 60.0)
    assert late == {BOTH}
    groups.leave_overdue(late)
    assert groups.groups[BOTH].aborted == 1 and groups.groups[OTHERS].aborted == 0  # type: ignore[attr-defined]
    for uid in (11, 12, 13):
        fetch(runner, uid)
    assert link.read[12].kind == "collective" and "[0, 1]: a collective was not over within 1 s" in link.read[12].message
    assert isinstance(link.read[11], np.ndarray) and isinstance(link.read[13], np.ndarray)
    run(runner, 4, 1, 10, 14)
    assert link.dones[4].fault is not None and link.dones[4].fault.kind == "collective"
    assert not runs.overdue(1000.0, 60.0)


@pytest.mark.parametrize("begun", [True, False])
def test_what_a_run_that_failed_leaves_undone_is_given_up_after_a_while_too(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device, _, _, runner, link = worker()
    runs = runner.launched
    assert runs is not None

    def broke(*_: object) -> None:
        raise MemoryError("no room")

    if begun:
        monkeypatch.setattr(runner.loaded[1], "run", broke)
    else:
        runner.state.poison[20] = Fault("memory", "no room")
    run(runner, 1, 1, 10 if begun else 20, 11)
    assert link.dones[1].fault is not None and link.dones[1].fault.kind == "memory" and device.ends == 1.0
    assert not runs.overdue(0.0, 60.0)
    assert runs.overdue(61.0, 60.0) == {BOTH}


def test_a_loss_with_the_dispatcher_is_known_to_the_next_one() -> None:
    device, _, groups, runner, _ = worker()
    run(runner, 1, 1, 10, 11)
    called = []
    device.meanwhile = lambda: called.append(groups.call_off())  # as another thread does when that takes too long
    runner.past(((1, 0),))
    assert called and 11 in runner.state.poison and 11 not in runner.state.values and 10 in runner.state.values
