"""Counts in texts."""

from __future__ import annotations

import pytest

from gt.ir.wording import amount


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [(0, "worker", "0 workers"), (1, "worker", "1 worker"), (2, "new graph", "2 new graphs"), (1, "flush", "1 flush"), (3, "flush", "3 flushes")],
)
def test_one_of_a_thing_is_not_told_as_several(count: int, noun: str, said: str) -> None:
    assert amount(count, noun) == said
