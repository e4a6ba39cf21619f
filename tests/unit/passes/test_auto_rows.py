"""The simple automatic rule: created tensors are split by rows; uploads, odd sizes and vectors are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gt.ir.evaluate import evaluate
from gt.ir.graph import Graph, Value
from gt.ir.opdef import OPS
from gt.ir.program import decode_graph, encode_graph
from gt.ir.signals import PlanOptions, ShardConfig, SignalConfig
from gt.ir.text import parse_graph, print_graph
from gt.ir.types import Shape, TensorType, float64, int64
from gt.passes.plan import Cluster, plan_graph
from gt.runtime.simulator import simulate_graph
from tests.property.sharding_graphs import Recorder, record

ROWS = PlanOptions(auto="rows")
FOUR = Cluster((0, 1, 2, 3))


def randn(shape: Shape) -> Value:
    seed, stream = (OPS["full"](shape=(), value=v, dtype=int64) for v in (7, 3))
    return OPS["random_normal"](seed, stream, shape=shape, dtype=float64)


def product(signals: dict[str, SignalConfig] | None = None) -> Graph:
    """a, b and c = a @ b, all kept; the upload x beside them."""

    def body(recorder: Recorder, x: Value) -> list[Value]:
        recorder.signal = "s" if signals else None
        a, b = randn((128, 64)), randn((64, 32))
        recorder.signal = None
        return [a, b, OPS["matmul"](a, b), OPS["neg"](x)]

    return replace(record([TensorType((8, 8), float64)], body, signals), options=ROWS)


def test_created_tensors_are_split_and_their_product_is_computed_in_parts() -> None:
    graph = product()
    plan = plan_graph(graph, FOUR)
    assert [o.dims for o in plan.outputs] == [(("w",), ()), (("w",), ()), (("w",), ()), ((), ())]
    assert [c.kind for c in plan.programs[0].collectives] == ["all_gather"], "b is joined, a stays"
    x = np.arange(64.0).reshape(8, 8)
    for got, want in zip(simulate_graph(graph, [x], (), 4), evaluate(graph, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_off_keeps_everything_whole() -> None:
    plan = plan_graph(replace(product(), options=PlanOptions()), FOUR)
    assert all(o.is_replicated for o in plan.outputs) and not plan.programs[0].collectives


def test_a_signal_counts_more_than_the_rule() -> None:
    plan = plan_graph(product({"s": SignalConfig(ShardConfig(replicated=True))}), FOUR)
    assert plan.outputs[0].is_replicated


@pytest.mark.parametrize("shape", [(8,), (), (6, 4), (2, 8), (0, 4)])
def test_what_is_not_split(shape: Shape) -> None:
    graph = replace(record([], lambda _: [randn(shape)]), options=ROWS)
    (placed,) = plan_graph(graph, FOUR).outputs
    assert placed.is_replicated


def test_a_constant_nobody_keeps_is_made_where_it_is_read() -> None:
    def body(recorder: Recorder, x: Value) -> list[Value]:
        return [OPS["add"](x, OPS["full"](shape=(8, 8), value=1.0, dtype=float64))]

    graph = replace(record([TensorType((8, 8), float64)], body), options=ROWS)
    plan = plan_graph(graph, FOUR)
    assert plan.outputs[0].is_replicated and not plan.programs[0].collectives


def test_options_travel_with_the_graph() -> None:
    graph = replace(product(), options=PlanOptions("search", True, 100, 1 << 30))
    assert decode_graph(encode_graph(graph)).options == graph.options
    assert parse_graph(print_graph(graph)) == graph
