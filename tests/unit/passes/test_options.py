"""What a client asks of planning: strict placement, a budget of bytes, and reasons for where values are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gt.ir.graph import Graph, Location, Value
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS
from gt.ir.signals import PlanOptions, ShardConfig, SignalConfig
from gt.ir.types import TensorType, float64
from gt.passes import reasons as told
from gt.passes.context import PlanRefused
from gt.passes.cost import step_s, time_text
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


def marked(reader: str | None, copied: bool) -> Graph:
    """Rows of signal "s", read as they are made or a copy of them later: by a sort over rows, or where ``reader`` says."""

    def body(recorder: Recorder, x: Value) -> list[Value]:
        recorder.signal = "s"
        (h,) = recorder.emit(OPS["copy"], (x,), ())
        recorder.signal = None
        h = OPS["neg"](h) if copied else h
        recorder.signal = reader
        return [OPS["sort"](h, dim=0, descending=False)[0] if reader is None else OPS["abs"](h)]

    asked = {"s": SignalConfig(ShardConfig(0)), "two": SignalConfig(ShardConfig(0, workers=(1, 2)))}
    asked["turned"] = SignalConfig(ShardConfig(0, workers=(3, 1, 0, 2)))
    return replace(record([TensorType((8, 8), float64)], body, asked), options=PlanOptions(strict=True))


@pytest.mark.parametrize("copied", [False, True])
def test_strict_refuses_whether_a_value_is_a_signals_own_or_follows_one(copied: bool) -> None:
    with pytest.raises(PlanRefused, match=r"operand 0 of sort(.|\n)*signal 's'"):
        plan_graph(marked(None, copied), FOUR)


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("reader", ["two", "turned"])
def test_strict_allows_what_a_signal_on_other_workers_or_in_another_order_brings_there(reader: str, copied: bool) -> None:
    assert plan_graph(marked(reader, copied), FOUR).programs


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


def test_what_a_plan_tells_is_what_its_programs_do() -> None:
    plan = plan_graph(graph("sort", PlanOptions()), FOUR)
    assert [(s.kind, s.axes, s.nbytes) for s in plan.told.sent] == [
        (c.kind, ("w",), c.nbytes) for c in plan.programs[0].collectives
    ]
    assert plan.told.why(0) == plan.reasons[0] and plan.told.graph
    assert plan.told.sent[0].where == "train.py:7" and "operand 0 of sort" in plan.told.sent[0].why
    assert plan_graph(graph("sort", PlanOptions()), Cluster((0,))).told.outputs == ()


def test_what_a_plan_tells_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "MAX_TEXT", 20)
    monkeypatch.setattr(told, "MAX_LINES", 2)
    monkeypatch.setattr(told, "MAX_SENT", 0)
    found = plan_graph(graph("matmul", PlanOptions()), FOUR).told
    assert len(found.lines) == 2 and {len(line) for line in found.lines} == {20} and set(found.why(0)) == set(found.lines)
    found = plan_graph(graph("sort", PlanOptions()), FOUR).told
    assert found.sent == () and found.left_out == (1, 0)


def test_conflicts_are_told_with_what_they_cost() -> None:
    def body(recorder: Recorder, x: Value, w: Value) -> list[Value]:
        recorder.signal = "s"
        (x,), (w,) = recorder.emit(OPS["copy"], (x,), ()), recorder.emit(OPS["copy"], (w,), ())
        recorder.signal = None
        return [OPS["matmul"](x, w)]

    made = record([TensorType((64, 64), float64)] * 2, body, {"s": SignalConfig(ShardConfig(0))})
    plan = plan_graph(made, FOUR)
    (gather,) = plan.programs[0].collectives
    seconds = step_s("all_gather", 4, 64 * 64 * 8)
    assert plan.reasons[0][0].endswith(f"; operand 1 is brought there in {time_text(seconds)}") and gather.kind == "all_gather"
