"""What a worker says its time went to: an estimate that fails ends nothing."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from gt.ir.program import Compute, Program, WireNode, WireType
from gt.runtime import wire
from gt.runtime.cutting import cut_plan
from gt.runtime.numpy_engine import NumpyEngine
from gt.runtime.runner import Runner
from gt.runtime.usage import PlanSpent, state_of
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
    runner.values.put((10,), (np.ones((8, 8), np.float32),))
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


def test_a_run_that_goes_in_parts_counts_once_as_one_of_its_plan() -> None:
    chain = tuple(WireNode("neg", (i,), (i + 1,), (WireType((4,), "float32"),), ()) for i in range(9))
    whole = Program(0, ((0, 0),), (), (Compute(chain, (0,), (9,), ""),), ((0, 9),), name="long")
    cut = cut_plan({0: whole}, 1, 1, 3, first_id=7, plan=5)
    assert cut is not None and len(cut.parts) == 3
    runner = Runner(0, NumpyEngine(), Told())
    runner.values.put((10,), (np.ones(4, np.float32),))
    runner.state.values.add(10)
    kept = tuple(range(20, 20 + cut.kept))
    counts = []
    for epoch, part in enumerate(cut.parts, 1):
        runner.handle(wire.Load(part.id, part.programs[0]))
        runner.handle(wire.Execute(epoch, part.id, (10, 11, *kept), (11, *kept), (), ()))
        counts.append(runner.usage.now().runs)
    usage = runner.usage.now()
    assert counts == [0, 0, 1] and (runner.values[11] == -1).all()
    (busiest,) = usage.busiest
    assert (busiest.plan, busiest.name, busiest.runs) == (5, "long", 1)
    assert busiest.seconds == pytest.approx(sum(spent.seconds for spent in runner.spent.values()))


def test_a_program_that_is_loaded_is_told_of_alone_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told, seen = Told(), list[int]()
    runner = Runner(0, NumpyEngine(), told)
    monkeypatch.setattr("gt.runtime.usage.state_of", lambda plan, loaded: (seen.append(plan), state_of(plan, loaded))[1])
    for plan in range(40):
        runner.handle(wire.Load(plan, SQUARE))
    assert seen == list(range(40))  # none is looked at again, whose number would make the next load slower
    assert [(used.usage, [state.plan for state in used.programs]) for used in told.used] == [(None, [plan]) for plan in range(40)]
    assert runner.usage.changed() == ()
