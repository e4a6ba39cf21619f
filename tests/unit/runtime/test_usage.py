"""What a worker says its time went to: nothing is lost with a plan, and an estimate that fails ends nothing."""

from __future__ import annotations

import logging

import pytest

from gt.ir.program import Compute, Program, WireNode, WireType
from gt.runtime.numpy_engine import NumpyEngine
from gt.runtime.runner import Runner
from gt.runtime.usage import PlanSpent
from tests.unit.runtime.test_runner import Told

SQUARE = Program(
    0, ((0, 0),), (), (Compute((WireNode("matmul", (0, 0), (1,), (WireType((8, 8), "float32"),), ()),), (0,), (1,), ""),), ((0, 1),)
)


def test_what_a_plan_took_stays_counted_when_it_is_unloaded() -> None:
    runner = Runner(0, NumpyEngine(), Told())
    runner.spent[3] = PlanSpent(SQUARE, [((8, 8), "torch.float32")], 4, 3.0, 2.0)
    assert runner.usage.now().kinds_s == {"matmul": 2.0} and [p.runs for p in runner.usage.now().busiest] == [4]
    runner.usage.forget(3)
    assert runner.usage.now().kinds_s == {"matmul": 2.0} and runner.usage.now().busiest == ()


@pytest.mark.parametrize("inputs", [[((8, 8), "object")], []])
def test_what_cannot_be_estimated_is_told_once_and_counts_as_nothing(inputs: list, caplog: pytest.LogCaptureFixture) -> None:
    runner = Runner(0, NumpyEngine(), Told())
    runner.spent[3] = PlanSpent(SQUARE, inputs, 4, 3.0, 2.0)
    with caplog.at_level(logging.ERROR, "gt.worker"):
        assert runner.usage.now().kinds_s == runner.usage.now().kinds_s == {}
    assert len(caplog.records) == 1 and "what kinds of op" in caplog.text
