"""What a client asks of planning: strict placement, a budget of bytes, and reasons for where values are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gt.ir.graph import Graph, Location, Value
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS
from gt.ir.signals import PlanOptions, ShardConfig, SignalConfig
from gt.ir.types import TensorType, float64
from gt.passes.context import PlanRefused
from gt.passes.plan import Cluster, plan_graph
from tests.property.sharding_graphs import Recorder, everyone, record

FOUR = Cluster((0, 1, 2, 3))
ROWS = Sharding(everyone(4), (("w",), ()))


def graph(op: str, options: PlanOptions, signals: dict[str, SignalConfig] | None = None) -> Graph:
    """x by rows under signal "s"; then one op that reads it."""

    def body(recorder: Recorder, x: Value, w: Value) -> list[Value]:
        recorder.signal = "s"
        (x,) = recorder.emit(OPS["copy"], (x,), ())
        recorder.signal = None
        h = OPS["neg"](x)
        out = OPS["matmul"](h, w) if op == "matmul" else OPS["sort"](h, dim=0, descending=False)[0]
        if op == "sum":
            out = OPS["sum"](h, dims=(0, 1), keepdim=False, dtype=float64)
        loc = Location("train.py", 7, "<module>", "out = f(h)")
        recorder.nodes = [replace(n, loc=loc) for n in recorder.nodes]
        return [out]

    asked = {"s": SignalConfig(ShardConfig(0))}
    made = record([TensorType((8, 8), float64), TensorType((8, 6), float64)], body, asked | (signals or {}))
    return replace(made, options=options)


def test_strict_refuses_to_move_what_no_signal_moves() -> None:
    with pytest.raises(PlanRefused) as caught:
        plan_graph(graph("sort", PlanOptions(strict=True)), FOUR)
    message = str(caught.value)
    for words in ("strict: ", "operand 0 of sort", "train.py:7", "out = f(h)", "signal 's'"):
        assert words in message, message


@pytest.mark.parametrize("op", ["matmul", "sum"])
def test_strict_allows_what_needs_nothing_and_pending_sums(op: str) -> None:
    plan_graph(graph(op, PlanOptions(strict=True)), FOUR)


def test_not_strict_moves_it() -> None:
    assert plan_graph(graph("sort", PlanOptions()), FOUR).programs[0].collectives


def test_a_budget_of_bytes_names_what_sends_most() -> None:
    sent = sum(c.nbytes for c in plan_graph(graph("sort", PlanOptions()), FOUR).programs[0].collectives)
    plan_graph(graph("sort", PlanOptions(comm_bytes=sent)), FOUR)
    with pytest.raises(PlanRefused, match=rf"would send {sent} bytes, {sent - 1} are allowed(.|\n)*all_to_all(.|\n)*train.py:7"):
        plan_graph(graph("sort", PlanOptions(comm_bytes=sent - 1)), FOUR)


def test_reasons_go_back_to_what_was_said() -> None:
    (reasons,) = plan_graph(graph("matmul", PlanOptions()), FOUR).reasons
    assert "matmul computes it there, which splits factor m over w at train.py:7" in reasons[0]
    assert "neg computes it there" in reasons[1]
    assert reasons[2].endswith("signal 's' at train.py:7")
    (whole,) = plan_graph(graph("sum", PlanOptions()), FOUR).reasons
    assert "whole on all workers" in whole[0]
