"""What a worker says its time went to: an estimate that fails ends nothing."""

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


@pytest.mark.parametrize("inputs", [[((8, 8), "object")], []])
def test_what_cannot_be_estimated_is_told_once_and_counts_as_nothing(inputs: list, caplog: pytest.LogCaptureFixture) -> None:
    runner = Runner(0, NumpyEngine(), Told())
    runner.spent[3] = PlanSpent(SQUARE, inputs, 4, 3.0, 2.0)
    with caplog.at_level(logging.ERROR, "gt.worker"):
        assert runner.usage.now().kinds_s == runner.usage.now().kinds_s == {}
    assert len(caplog.records) == 1 and "what kinds of op" in caplog.text
