"""Pauses of one's own are not others' silence."""

from __future__ import annotations

from gt.runtime.present import PAUSE_S, PresentClock


def test_only_pauses_of_its_own_are_left_out() -> None:
    times = iter([100.0, 100.5, 100.5 + PAUSE_S, 160.0, 160.25])
    clock = PresentClock(lambda: next(times))
    assert [clock() for _ in range(4)] == [100.5, 100.5 + PAUSE_S, 100.5 + PAUSE_S, 100.75 + PAUSE_S]
