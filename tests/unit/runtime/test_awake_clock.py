"""Silence is measured in time in which whoever judges it could hear."""

from __future__ import annotations

import pytest

from gt.runtime import awake_clock


def test_of_a_gap_no_more_counts_than_whoever_runs_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 100.0
    monkeypatch.setattr(awake_clock.time, "monotonic", lambda: at)
    clock = awake_clock.AwakeClock()
    began = clock()
    for passed, counted in ((0.25, 0.25), (3600.0, awake_clock.MOST_S), (0.5, 0.5), (0.0, 0.0)):
        before, at = clock(), at + passed
        assert clock() - before == counted
    assert clock() - began == 0.75 + awake_clock.MOST_S
