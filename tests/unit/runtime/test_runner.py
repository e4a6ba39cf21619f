"""What a worker does with a run that cannot be as it was meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gt.runtime import wire
from gt.runtime.errors import Fault
from gt.runtime.numpy_engine import NumpyEngine
from gt.runtime.runner import Runner
from tests.state.stories import program

BROKE = Fault("index", "broke", 0, 1, "train.py:3")


class Told:
    """An outlet that keeps what it is told."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    def reply(self, message: Any) -> None:
        self.replies.append(message)

    def room(self, *_: object) -> None:
        """Nothing is shared."""

    def ship(self, *_: object) -> None:
        raise AssertionError("nobody reads")


class Unable(NumpyEngine):
    """Cannot load anything."""

    def load(self, program: Any) -> Any:
        raise RuntimeError("no such program")


@pytest.mark.parametrize("engine", [NumpyEngine(), Unable()], ids=["loaded", "not loaded"])
def test_a_run_that_reads_poison_fails_and_lets_go_of_what_it_was_to_free(engine):
    told = Told()
    runner = Runner(0, engine, told)
    runner.handle(wire.Load(1, program(0, 2, 1)))
    runner.state.poison[10] = BROKE
    runner.values.put(11, np.ones(3))
    runner.state.values.add(11)
    runner.handle(wire.Execute(1, 1, (10, 11), (12,), (), (10, 11)))
    (done,) = told.replies
    assert done.fault is not None and 12 in runner.state.poison
    assert ("no such program" in done.fault.message) == isinstance(engine, Unable)
    runner.handle(wire.Free(done.kept))
    assert len(runner.values) == 0 and runner.state.values == set() and 10 not in runner.state.poison
