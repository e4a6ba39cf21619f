"""The simulator's own laws: exact collectives, and errors where real workers would hang or drift."""

from __future__ import annotations

import numpy as np
import pytest

from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS
from gt.ir.program import Collective, Program, WireType
from gt.ir.types import TensorType, bfloat16, float32, float64, int64
from gt.runtime.simulator import (
    CollectiveMismatch,
    Deadlock,
    ReplicaMismatch,
    exchange,
    parts_of,
    simulate,
    simulate_graph,
    whole_of,
)
from tests.property.sharding_graphs import everyone, record

A, B = np.arange(4.0).reshape(2, 2), np.arange(4.0).reshape(2, 2) * 10


def test_exchanges() -> None:
    for got in exchange("all_reduce", [A, B], {"reduce": "sum"}, float64):
        np.testing.assert_array_equal(got, A + B)
    for got in exchange("all_reduce", [A, B], {"reduce": "max"}, float64):
        np.testing.assert_array_equal(got, np.maximum(A, B))
    for got in exchange("all_gather", [A, B], {"dim": 1}, float64):
        np.testing.assert_array_equal(got, np.concatenate([A, B], 1))
    for i, got in enumerate(exchange("reduce_scatter", [A, B], {"dim": 0, "reduce": "min"}, float64)):
        np.testing.assert_array_equal(got, np.minimum(A, B)[i : i + 1])
    first, second = exchange("all_to_all", [A, B], {"src": 0, "dst": 1}, float64)
    np.testing.assert_array_equal(first, np.concatenate([A[:, :1], B[:, :1]]))
    np.testing.assert_array_equal(second, np.concatenate([A[:, 1:], B[:, 1:]]))


def test_sums_round_as_the_dtype_does() -> None:
    parts = [np.float32(256.0), np.float32(1.0), np.float32(1.0)]  # bfloat16 has 8 digits: 257 is no bfloat16
    got = exchange("all_reduce", [np.full((1,), p) for p in parts], {"reduce": "sum"}, bfloat16)
    assert got[0][0] == 256.0


def reduce(number: int, slot: int, group: tuple[int, ...], **changes: object) -> Collective:
    fields: dict[str, object] = {
        "kind": "all_reduce", "number": number, "input": slot, "output": slot, "type": WireType((2, 2), "float64"),
        "group": group, "attrs": (("reduce", "sum"),),
    }  # fmt: skip
    return Collective(**(fields | changes))  # type: ignore[arg-type]


def program(worker: int, *steps: Collective) -> Program:
    return Program(worker, ((0, 0), (1, 1)), (), steps, ((0, 0), (1, 1)))


INPUTS = {0: [A, A], 1: [B, B]}


def test_groups_meet() -> None:
    both = {w: program(w, reduce(0, 0, (0, 1)), reduce(1, 1, (0, 1))) for w in (0, 1)}
    out = simulate(both, INPUTS)
    assert all(np.array_equal(out[w][i], A + B) for w in (0, 1) for i in (0, 1))


def test_collectives_in_different_order_are_a_deadlock_that_says_who_waits_where() -> None:
    first, second = reduce(0, 0, (0, 1)), reduce(1, 1, (0, 1))
    crossed = {0: program(0, first, second), 1: program(1, second, first)}
    with pytest.raises(Deadlock, match=r"worker 0 waits at collective 0(.|\n)*worker 1 waits at collective 1"):
        simulate(crossed, INPUTS)


def test_a_member_that_never_comes_is_a_deadlock() -> None:
    with pytest.raises(Deadlock, match="worker 1 has ended"):
        simulate({0: program(0, reduce(0, 0, (0, 1))), 1: program(1)}, INPUTS)


@pytest.mark.parametrize(
    "changes",
    [{"kind": "all_gather"}, {"attrs": (("reduce", "max"),)}, {"type": WireType((1, 2), "float64")}, {"group": (1, 0)}],
)
def test_members_that_disagree_are_told(changes: dict[str, object]) -> None:
    changes = dict(changes)
    with pytest.raises(CollectiveMismatch, match="collective 0"):
        other = reduce(0, 0, changes.pop("group", (0, 1)), **changes)  # type: ignore[arg-type]
        simulate({0: program(0, reduce(0, 0, (0, 1))), 1: program(1, other)}, INPUTS)


def message(kind: str, number: int, slot: int, group: tuple[int, int] = (0, 1)) -> Collective:
    ends = {"input": -1 if kind == "receive" else slot, "output": -1 if kind == "send" else slot}
    return reduce(number, 0, group, kind=kind, attrs=(), **ends)


def taken(number: int, slot: int, group: tuple[int, int] = (0, 1)) -> tuple[Collective, Collective]:
    return message("receive", number, slot, group), message("wait", number, slot, group)


def test_a_send_waits_for_nobody() -> None:
    """Both send first and receive then: with sends that wait, neither would ever get to receive."""
    crossed = {0: program(0, message("send", 0, 0), *taken(1, 1, (1, 0))),
               1: program(1, message("send", 1, 0, (1, 0)), *taken(0, 1))}  # fmt: skip
    out = simulate(crossed, INPUTS)
    np.testing.assert_array_equal(out[0][1], B)
    np.testing.assert_array_equal(out[1][1], A)


def test_messages_out_of_order_lost_or_missing_are_told() -> None:
    first, second = message("send", 0, 0), message("send", 1, 1)
    with pytest.raises(CollectiveMismatch, match="number 1, meets .* number 0"):
        simulate({0: program(0, first, second), 1: program(1, *taken(1, 0), *taken(0, 1))}, INPUTS)
    with pytest.raises(CollectiveMismatch, match="nobody receives .* number 1"):
        simulate({0: program(0, first, second), 1: program(1, *taken(0, 0))}, INPUTS)
    with pytest.raises(Deadlock, match="worker 1 waits at collective 0, wait"):
        simulate({0: program(0), 1: program(1, *taken(0, 0))}, INPUTS)
    with pytest.raises(CollectiveMismatch, match="which it never began"):
        simulate({0: program(0, first), 1: program(1, message("wait", 0, 0))}, INPUTS)


def test_parts_of_different_sizes_are_told() -> None:
    with pytest.raises(CollectiveMismatch, match="parts of"):
        simulate({w: program(w, reduce(0, 0, (0, 1))) for w in (0, 1)}, {0: [A, A], 1: [B[:1], B]})


def test_a_worker_outside_the_group_is_told() -> None:
    with pytest.raises(CollectiveMismatch, match="worker 1"):
        simulate({w: program(w, reduce(0, 0, (0,))) for w in (0, 1)}, INPUTS)


def test_parts_are_padded_with_junk_and_put_together_again() -> None:
    placed, type_ = Sharding(everyone(4), (("w",), ())), TensorType((5, 2), float64)
    array = np.arange(10.0).reshape(5, 2)
    parts = parts_of(array, placed, float64)
    assert {p.shape for p in parts.values()} == {(2, 2)} and np.isnan(parts[2][1]).all() and np.isnan(parts[3]).all()
    np.testing.assert_array_equal(whole_of(parts, placed, type_), array)


def test_replicas_that_differ_in_a_bit_are_told() -> None:
    placed, type_ = Sharding.replicated(everyone(2), 1), TensorType((2,), float32)
    one, two = np.zeros(2, np.float32), np.array([0.0, -0.0], np.float32)
    with pytest.raises(ReplicaMismatch, match="worker 1"):
        whole_of({0: one, 1: two}, placed, type_)


def test_the_whole_way() -> None:
    graph = record([TensorType((5, 2), float64, Sharding(everyone(3), (("w",), ())))], lambda _, x: [
        OPS["sum"](x, dims=(0,), keepdim=False, dtype=float64), OPS["cast"](OPS["neg"](x), dtype=int64),
    ])  # fmt: skip
    array = np.arange(10.0).reshape(5, 2)
    total, negative = simulate_graph(graph, [array], (), 3)
    np.testing.assert_array_equal(total, array.sum(0))
    np.testing.assert_array_equal(negative, -array)
    assert negative.dtype == np.int64
