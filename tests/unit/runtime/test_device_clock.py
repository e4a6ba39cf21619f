"""Runs on a device are timed by its events, and launched no further ahead than is good for others."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gt.runtime.device_clock import DeviceClock


@dataclass
class Device:
    """A stream: ``ends`` is when all that was launched is over. The host's time goes on as told, or by waiting."""

    now: float = 0.0
    ends: float = 0.0
    waits: list[float] = field(default_factory=list)

    def launch(self, seconds: float) -> None:
        self.ends = max(self.ends, self.now) + seconds


@dataclass
class Event:
    device: Device
    at: float = 0.0

    def record(self) -> None:
        self.at = max(self.device.ends, self.device.now)

    def query(self) -> bool:
        return self.device.now >= self.at

    def synchronize(self) -> None:
        if self.at > self.device.now:
            self.device.waits.append(self.at - self.device.now)
            self.device.now = self.at

    def elapsed_time(self, end_event: Event) -> float:
        assert end_event.query() and self.query(), "both must be over"
        return (end_event.at - self.at) * 1000


def made() -> tuple[Device, DeviceClock]:
    device = Device()
    return device, DeviceClock(lambda: Event(device))


def run(device: Device, clock: DeviceClock, plan: int, seconds: float) -> None:
    clock.begin(plan)
    device.launch(seconds)
    clock.end(plan)


def test_a_run_is_known_once_it_is_over_and_a_later_one_begins():
    device, clock = made()
    run(device, clock, 1, 0.003)
    assert clock.seconds(1) is None
    device.now += 1.0  # idle for long, which is no part of any run
    run(device, clock, 2, 0.001)
    device.now += 1.0
    run(device, clock, 2, 0.001)
    assert clock.seconds(1) == pytest.approx(0.003) and clock.seconds(2) == pytest.approx(0.001)
    assert device.waits == []


def test_runs_in_line_are_timed_each_by_itself():
    device, clock = made()
    run(device, clock, 0, 0.001)
    device.now = device.ends
    for i in range(6):
        run(device, clock, i % 2, (0.001, 0.004)[i % 2])
        device.now += 0.003
    device.now += 1.0
    clock.begin(9)
    assert clock.seconds(0) == pytest.approx(0.001) and clock.seconds(1) == pytest.approx(0.004)


def test_short_runs_are_launched_far_ahead_in_number_and_long_ones_one():
    device, clock = made()
    run(device, clock, 1, 0.0001)
    device.now = 1.0
    for _ in range(150):
        run(device, clock, 1, 0.0001)
    assert device.waits == [] and len(clock.launched) == 150
    device.now = 2.0
    for _ in range(20):
        run(device, clock, 2, 0.035)
        assert len(clock.launched) <= 2 and device.ends - device.now <= 2 * 0.035 + 1e-9
    assert device.ends == pytest.approx(2.0 + 20 * 0.035)  # the device was never without work


def test_what_is_in_line_is_no_more_than_was_allowed_and_the_run_itself():
    device, clock = made()
    for _ in range(200):
        run(device, clock, 1, 0.003)
        assert device.ends - device.now <= 0.02 + 2 * 0.003


def test_a_plan_that_is_forgotten_takes_no_memory():
    device, clock = made()
    run(device, clock, 1, 0.001)
    device.now = 1.0
    run(device, clock, 2, 0.001)
    clock.forget(1)
    clock.forget(2)
    clock.forget(7)
    device.now = 2.0
    clock.begin(3)
    assert clock.seconds(2) is None and list(clock.averages) == [3]
