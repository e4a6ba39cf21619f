"""What a worker does with a run that cannot be as it was meant."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from gt.ir.program import Compute, Program, WireNode, WireType
from gt.runtime import wire
from gt.runtime.errors import Fault
from gt.runtime.numpy_engine import NumpyEngine
from gt.runtime.runner import Runner
from gt.runtime.store import LARGE
from gt.runtime.usage import PlanSpent, Usage
from tests.state.stories import program

BROKE = Fault("index", "broke", 0, 1, "train.py:3")


class Told:
    """An outlet that keeps what it is told of runs."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.used: list[wire.Used] = []

    def reply(self, message: Any) -> None:
        (self.used if isinstance(message, wire.Used) else self.replies).append(message)

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
    runner.values.put((11,), (np.ones(3),))
    runner.state.values.add(11)
    runner.handle(wire.Execute(1, 1, (10, 11), (12,), (), (10, 11)))
    (done,) = told.replies
    assert done.fault is not None and 12 in runner.state.poison
    assert ("no such program" in done.fault.message) == isinstance(engine, Unable)
    runner.handle(wire.Free(done.kept))
    assert len(runner.values) == 0 and runner.state.values == set() and 10 not in runner.state.poison


@pytest.mark.parametrize("pieces", [1, 5])
def test_what_is_dropped_in_pieces_goes_back_to_the_system_too(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    runner = Runner(0, NumpyEngine(), Told())
    monkeypatch.setattr("gt.runtime.runner.give_memory_back", lambda: given.append(len(runner.values)))
    for uid in range(5):
        runner.values.put((uid,), (np.empty(LARGE // 4, np.uint8),))
        runner.state.values.add(uid)
    for first in range(0, 5, 5 // pieces):
        runner.handle(wire.Free(tuple(range(first, first + 5 // pieces))))
    assert given == ([0] if pieces == 1 else [])
    for _ in range(2):  # with nothing to do
        runner.tidy()
    assert given == ([0, 0] if pieces == 1 else [0])


def test_another_dispatcher_is_told_of_a_program_that_is_like_one_of_before() -> None:
    told = Told()
    runner = Runner(0, NumpyEngine(), told)
    for generation in (1, 2):
        runner.handle(wire.Load(1, program(0, 1, 1)))
        assert [[p.plan for p in used.programs] for used in told.used] == [[1]] * generation
        runner.past(((generation, 0),))
        runner.rejoined(0)


def test_the_end_of_what_was_before_is_told_at_once_unless_what_comes_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.runtime.runner.SHORT_S", 10.0)
    runner = Runner(0, NumpyEngine(), Told())
    runner.handle(wire.Load(1, program(0, 1, 1)))
    runner.values.put((10,), (np.ones((4, 4)),))
    runner.state.values.add(10)
    run = wire.Execute(1, 1, (10,), (11,), (), ())
    assert not runner.is_short(run)  # nobody knows
    runner.handle(run)
    assert runner.is_short(run) and runner.is_short(wire.Free((11,)))
    assert not runner.is_short(wire.Ship(11, b"", 1, wire.WireType((4, 4), "float32"), ((0, 4), (0, 4)), 1, True))
    assert not runner.is_short(wire.Execute(2, 1, (10,), (12,), (), (), "capture"))
    runner.spent[1].last_s = 11.0
    assert not runner.is_short(run)
    runner.handle(wire.Load(2, program(0, 1, 1, ((0, 1),))))
    runner.spent[2] = PlanSpent(program(0, 1, 1, ((0, 1),)), [])
    assert not runner.is_short(wire.Execute(3, 2, (10,), (13,), (), ()))  # it waits for others
    runner.spent[1].last_s = 0.0
    assert runner.is_short(run)
    monkeypatch.setattr(NumpyEngine, "clock", object())  # as of a device, which may be behind
    assert not runner.is_short(run)


class Shipped(Told):
    """Keeps what is sent to clients, too."""

    def __init__(self) -> None:
        super().__init__()
        self.shipped: list[Any] = []

    def ship(self, *shipped: Any) -> None:
        self.shipped.append(shipped)


@pytest.mark.parametrize("padded", [False, True])
def test_a_value_that_is_read_with_its_run_is_told_with_its_end_unless_it_cannot_be_read(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Shipped()
    runner = Runner(0, NumpyEngine(), told)
    runner.handle(wire.Load(1, msgspec.structs.replace(program(0, 1, 1), outputs=((0, 0),))))
    value = np.arange(12, dtype=np.float32).reshape(4, 3)
    runner.values.put((10,), (value,))
    runner.state.values.add(10)
    rows = ((0, 3 if padded else 4), (0, 3))
    ship = wire.Ship(11, b"t", 5, wire.WireType((rows[0][1], 3), "float32"), rows, 1, True)
    runner.handle(wire.Execute(1, 1, (10,), (11,), (), (), reads=(0, ship)))
    (done,) = told.replies
    assert done.fault is None and done.value == value[: rows[0][1]].tobytes() and told.shipped == []

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(runner.engine, "to_host", fail)
    runner.handle(wire.Execute(2, 1, (10,), (12,), (), (), reads=(0, msgspec.structs.replace(ship, uid=12))))
    assert told.replies[1].value is None and told.replies[1].fault is None
    ((token, failed, array),) = told.shipped
    assert (token, failed.request, failed.fault.kind, array) == (b"t", 5, "memory", None)


class Asking:
    """A lock at which another thread asks what time went to, whenever somebody comes to it."""

    def __init__(self, usage: Usage) -> None:
        self.usage, self.lock, self.found = usage, usage._lock, list[float]()

    def ask(self) -> None:
        self.usage._lock = self.lock
        self.found.append(sum(self.usage.now().kinds_s.values()))

    def __enter__(self) -> None:
        self.ask()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_what_went_to_a_program_is_counted_at_every_moment_of_its_unloading() -> None:
    runner = Runner(0, NumpyEngine(), Told())
    node = WireNode("exp", (0,), (1,), (WireType((3,), "float32"),), ())
    runner.handle(wire.Load(1, Program(0, ((0, 0),), (), (Compute((node,), (0,), (1,), ""),), ((0, 1),))))
    runner.values.put((1,), (np.ones(3, np.float32),))
    runner.state.values.add(1)
    runner.handle(wire.Execute(1, 1, (1,), (2,), (), ()))
    asking = runner.usage._lock = Asking(runner.usage)  # type: ignore[assignment]
    runner.handle(wire.Unload((1,)))
    asking.ask()
    assert not runner.spent and len(asking.found) == 2 and asking.found[0] == asking.found[1] > 0


class Full(NumpyEngine):
    """Has no memory left for what comes from outside."""

    def from_host(self, array: Any, dtype: Any) -> Any:
        raise MemoryError("no room")


@pytest.mark.parametrize("engine", [NumpyEngine(), Full()], ids=["too large to pad", "no room"])
def test_a_value_that_cannot_be_kept_costs_its_readers_alone(engine: NumpyEngine) -> None:
    told = Told()
    told.ship = lambda token, message, array: told.replies.append(message)  # type: ignore[method-assign]
    runner = Runner(0, engine, told, uploads={})
    local = (2**46, 2) if type(engine) is NumpyEngine else (1, 2)
    store = wire.Store(7, wire.WireType((1, 2), "float32"), ((0, 1), (0, 2)), local)
    assert runner.handle(store, memoryview(bytes(8)))
    runner.uploads[8] = (MemoryError("no room"), "float32", None)
    runner.handle(wire.Load(1, program(0, 2, 1)))
    runner.handle(wire.Execute(1, 1, (7, 8), (9,), (), ()))
    for uid in (7, 8):
        runner.handle(wire.Ship(uid, b"t", uid, wire.WireType((1, 2), "float32"), ((0, 1), (0, 2)), 1, True))
    done, *failed = told.replies
    assert "Memory" in done.fault.message and [f.request for f in failed] == [7, 8]
    assert all(isinstance(f, wire.Unshipped) and "Memory" in f.fault.message for f in failed)


def test_a_run_that_names_too_few_values_for_its_program_fails_alone() -> None:
    told = Told()
    runner = Runner(0, NumpyEngine(), told)
    runner.handle(wire.Load(1, program(0, 2, 1)))
    for inputs, outputs in (((1,), (2,)), ((1, 2), ()), ((), ())):
        runner.handle(wire.Execute(1, 1, inputs, outputs, (), ()))
    assert [d.fault.kind for d in told.replies] == ["protocol"] * 3
    assert "plan 1 takes 2 values and makes 1, others are named" in told.replies[0].fault.message


def test_rows_that_a_value_does_not_have_are_an_error_of_their_reader() -> None:
    told = Told()
    told.ship = lambda token, message, array: told.replies.append(message)  # type: ignore[method-assign]
    runner = Runner(0, NumpyEngine(), told)
    type_ = wire.WireType((2, 2), "float32")
    runner.handle(wire.Store(7, type_, ((0, 2), (0, 2)), (2, 2)), memoryview(bytes(16)))
    assert runner.handle(wire.Ship(7, b"t", 1, wire.WireType((5, 5), "float32"), ((0, 5), (0, 5)), 1, True))
    assert runner.handle(wire.Ship(7, b"t", 2, type_, ((0, 2), (0, 2)), 1, True))
    assert [type(reply) for reply in told.replies] == [wire.PartFailed, wire.Part]


class Timed:
    """A clock that knows one plan."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self, plan: int) -> None:
        self.calls.append(("begin", plan))

    def end(self, plan: int) -> None:
        self.calls.append(("end", plan))

    def forget(self, plan: int) -> None:
        self.calls.append(("forget", plan))

    def seconds(self, plan: int) -> float | None:
        return 5.0 if plan == 1 else None


@pytest.mark.parametrize("timed", [True, False])
def test_what_a_run_takes_is_the_devices_word_where_clients_share_it(timed):
    told, engine = Told(), NumpyEngine()
    engine.clock = clock = Timed()
    runner = Runner(0, engine, told, timed=timed)
    for plan in (1, 2):
        runner.handle(wire.Load(plan, program(0, 1, 0)))
        runner.handle(wire.Store(10 + plan, wire.WireType((1,), "float32"), ((0, 1),), (1,)), np.ones(1, np.float32))
        runner.handle(wire.Execute(plan, plan, (10 + plan,), (), (), ()))
    runner.handle(wire.Unload((2,)))
    seconds = [done.seconds for done in told.replies]
    assert (seconds[0] == 5.0) == timed and seconds[1] < 5.0
    expected = [("begin", 1), ("end", 1), ("begin", 2), ("end", 2), ("forget", 2)]
    assert clock.calls == (expected if timed else [])
