"""What is sent again after the loss of a dispatcher: wherever its workers stopped, all that is alive is there and right, and no more."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gt.ir.types import TensorType, float32
from gt.runtime import wire
from gt.runtime.in_flight import MAX_UPLOADS, Again, Call, InFlight
from gt.runtime.run_log import Kept, Put

T = TensorType((2,), float32)


def put(buffer: int) -> Put:
    return Put(buffer, Kept(T, np.full(2, buffer, np.float32)))


def run(key: int, inputs: tuple[int, ...], outputs: tuple[int, ...], frees: tuple[int, ...] = ()) -> wire.Run:
    return wire.Run(key, inputs, outputs, (), frees)


def do(values: dict[int, object], call: Call) -> None:
    """Carry out a call: a value is how it was made."""
    match call:
        case Put(buffer, kept):
            assert buffer not in values
            values[buffer] = ("put", float(kept.data[0]))
        case wire.Run():
            assert values.keys().isdisjoint(call.outputs), call
            made = call.key, tuple(values[b] for b in call.inputs)
            values |= {b: (*made, i) for i, b in enumerate(call.outputs)}
            for b in call.frees:
                del values[b]
        case wire.Free(buffers):
            for b in buffers:
                del values[b]


def any_calls(r: random.Random) -> list[Call]:
    alive: list[int] = []
    calls: list[Call] = []
    for step in range(r.randrange(1, 14)):
        gone = tuple(r.sample(alive, r.randrange(len(alive) + 1))) if r.random() < 0.6 else ()
        if not alive or r.random() < 0.3:
            calls.append(put(100 + 3 * step))
            alive.append(100 + 3 * step)
        elif r.random() < 0.15 and gone:
            calls.append(wire.Free(gone))
            alive = [b for b in alive if b not in gone]
        else:
            outputs = tuple(100 + 3 * step + i for i in range(r.choice([1, 1, 2])))
            calls.append(run(step, tuple(r.choices(alive, k=r.randrange(1, 3))), outputs, gone))
            alive = [b for b in alive if b not in gone] + list(outputs)
    return calls


@pytest.mark.parametrize("block", range(4))
def test_wherever_the_workers_stopped_all_is_there_again(block: int) -> None:
    for seed in range(block * 250, block * 250 + 250):
        r = random.Random(seed)
        calls, flying, right, there = any_calls(r), InFlight(), {}, {}
        for call in calls:
            do(right, call)
        stopped = r.randrange(len(calls) + 1)
        done = sum(isinstance(c, wire.Run) for c in calls[:stopped])
        heard = r.randrange(done + 1)
        for i, call in enumerate(calls):
            flying.add(call)
            if i < stopped:
                do(there, call)
        flying.heard(heard)
        asked = right.keys() | flying.reads()
        there = {b: value for b, value in there.items() if b in asked}
        again = flying.again(there, right)
        assert again.lost == [], seed
        for call in again.calls:
            do(there, call)
        assert there == right, seed


def test_what_is_torn_and_what_depends_on_it_is_lost_and_nothing_else() -> None:
    flying = InFlight([run(1, (1,), (2,), (1,)), put(3), run(2, (3,), (4,)), run(3, (2, 4), (5,))])
    again = flying.again({9}, {2, 3, 4, 5, 9})
    assert again.lost == [1]
    assert [type(c).__name__ for c in again.calls] == ["Run", "Put", "Run", "Run"]
    assert InFlight().again({1}, {1, 2}) == Again([], [2])


def test_runs_that_are_over_are_forgotten_with_what_came_before_them() -> None:
    flying = InFlight([put(1), run(1, (1,), (2,)), put(3), wire.Free((1,)), run(1, (3,), (4,))])
    flying.heard(1)
    assert repr(flying) == "<InFlight 3 calls after 1 runs>" and flying.reads() == {3}
    flying.heard(2)
    assert not flying.calls and flying.nbytes == flying.uploads == 0
    flying.add(run(1, (4,), (5,)))
    flying.heard(2)
    assert len(flying.calls) == 1


def test_of_many_uploads_the_oldest_are_not_kept() -> None:
    flying = InFlight(map(put, range(MAX_UPLOADS + 3)))
    assert flying.again((), {0, 2, 3}).lost == [0, 2] and flying.uploads == MAX_UPLOADS
    big = InFlight()
    for i in range(3):
        big.add(Put(i, Kept(T, np.broadcast_to(np.float32(0), (8 << 20,)))))
    assert [c.buffer for c in big.calls] == [1, 2]  # 32 MiB each
