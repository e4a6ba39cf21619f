"""What a worker says its time went to: an estimate that fails ends nothing."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from gt.ir.program import Compute, Program, WireNode, WireType
from gt.runtime import wire
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


def test_what_a_run_may_reuse_counts_while_it_is_under_way() -> None:
    runner = Runner(0, NumpyEngine(), Told())
    runner.handle(wire.Load(3, SQUARE))
    runner.values.put(10, np.ones((8, 8), np.float32))
    runner.state.values.add(10)
    seen: list[tuple[int, int]] = []
    loaded = runner.loaded[3]
    run = loaded.run

    def watched(*arguments: Any) -> Any:
        assert len(runner.values) == 0  # taken, as nobody reads it after
        usage = runner.usage.now()
        seen.append((usage.values, usage.values_nbytes))
        return run(*arguments)

    loaded.run = watched  # type: ignore[method-assign]
    runner.handle(wire.Execute(1, 3, (10,), (11,), (), (10,)))
    usage = runner.usage.now()
    assert seen == [(1, 256)] and (usage.values, usage.values_nbytes) == (1, 256)
