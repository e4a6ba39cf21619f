"""Which workers have a program of a graph: those that its signals and inputs name, all where nothing says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gt.ir.evaluate import evaluate
from gt.ir.graph import Graph, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS
from gt.ir.signals import PlanOptions, ShardConfig, SignalConfig
from gt.ir.types import TensorType, float64
from gt.passes.plan import Cluster, plan_graph
from gt.passes.signal_placement import involved
from gt.runtime.simulator import simulate_graph
from tests.property.sharding_graphs import Recorder, everyone, record

FOUR, PAIR = everyone(4), Mesh.line((1, 3))
T = TensorType((8, 8), float64)
EVERYWHERE = T.placed(Sharding.replicated(FOUR, 2))
ON_PAIR = T.placed(Sharding.replicated(PAIR, 2))
SPLIT = T.placed(Sharding(PAIR, ((PAIR.axes[0][0],), ())))


def graph_of(left: TensorType, right: TensorType, **signals: ShardConfig) -> Graph:
    """``h = a @ b`` under the first signal, ``-h`` under the last, and a sum that no signal marks."""

    def body(recorder: Recorder, x: Value, w: Value) -> Sequence[Value]:
        names = list(signals)
        recorder.signal = names[0] if names else None
        h = OPS["matmul"](x, w)
        recorder.signal = names[-1] if names else None
        out = OPS["neg"](h)
        recorder.signal = None
        return [out, OPS["sum"](w, dims=(0, 1), keepdim=False, dtype=float64)]

    return record([left, right], body, signals or None)


def workers(graph: Graph) -> set[int]:
    """Give who has a program, having checked that the values are right and live on no other worker."""
    plan = plan_graph(graph, Cluster((0, 1, 2, 3)))
    for placed in plan.outputs:
        assert set(placed.mesh.workers) <= set(plan.programs)
    arrays = [np.random.default_rng(i).integers(-3, 4, (8, 8)).astype(float) for i in range(2)]
    for got, want in zip(simulate_graph(graph, arrays, (), 4), evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
    return set(plan.programs)


def test_signals_that_name_workers_keep_the_rest_of_the_graph_there() -> None:
    rows = ShardConfig(workers=(3, 1))
    assert workers(graph_of(T, T, rows=rows)) == {1, 3}
    assert workers(graph_of(EVERYWHERE, EVERYWHERE, rows=rows)) == {1, 3}
    assert workers(graph_of(T, T, one=ShardConfig(workers=(2,)))) == {2}
    assert workers(graph_of(T, T, a=ShardConfig(workers=(0, 1)), b=ShardConfig(workers=(2,)))) == {0, 1, 2}


def test_all_workers_take_part_where_a_signal_names_none_or_nothing_says() -> None:
    assert workers(graph_of(T, T)) == {0, 1, 2, 3}
    assert workers(graph_of(EVERYWHERE, T)) == {0, 1, 2, 3}
    assert workers(graph_of(T, T, rows=ShardConfig())) == {0, 1, 2, 3}
    assert workers(graph_of(T, T, a=ShardConfig(workers=(0,)), b=ShardConfig())) == {0, 1, 2, 3}
    assert workers(graph_of(T, T, gone=ShardConfig(workers=(7,)))) == {0, 1, 2, 3}  # ignored, as none is present


def test_work_without_signals_stays_where_its_inputs_are() -> None:
    assert workers(graph_of(SPLIT, EVERYWHERE)) == {1, 3}
    assert workers(graph_of(ON_PAIR, EVERYWHERE)) == {1, 3}
    assert workers(graph_of(ON_PAIR, SPLIT)) == {1, 3}
    assert workers(graph_of(ON_PAIR, ON_PAIR, zero=ShardConfig(workers=(0,)))) == {0, 1, 3}  # it has to be sent there
    assert workers(graph_of(ON_PAIR, ON_PAIR, one=ShardConfig(workers=(1,)))) == {1}  # worker 1 has it whole


def test_automatic_placement_may_use_all_workers() -> None:
    graph = replace(graph_of(SPLIT, EVERYWHERE), options=PlanOptions(auto="rows"))
    assert workers(graph) == {0, 1, 2, 3}


def test_many_workers_are_told_apart_at_once() -> None:
    everything = everyone(2**16)
    began = time.process_time()
    found = involved([SignalConfig(shard=ShardConfig(axis=0))], [], everything)
    assert found == everything and time.process_time() - began < 2, "not by comparing each with each"


def test_whoever_holds_what_is_updated_there_has_a_part() -> None:
    """Workers 0 and 1 would do for the second parameter, but not once 3 to 5 have a part too: it stays on worker 2 as well."""
    homes = [Mesh.line((0, 1)), Mesh.line((0, 1, 2)), Mesh.line((3, 4, 5))]
    split = Sharding(homes[0], ((homes[0].axes[0][0],), ()))
    placed = [split, *(Sharding.replicated(mesh, 2) for mesh in homes[1:])]
    lr = TensorType((), float64)

    def body(recorder: Recorder, *inputs: Value) -> Sequence[Value]:
        flags = dict(momentum=0.0, nesterov=False, weight_decay=0.0, dampening=0.0, maximize=False)
        return OPS["sgd_step"](*inputs, num=3, **flags)

    types = [T.placed(where) for where in (*placed, *placed)]
    graph = record([*types, lr.placed(Sharding.replicated(homes[2], 0))], body, donated=(0, 1, 2))
    plan = plan_graph(graph, Cluster(tuple(range(6))))
    assert set(plan.programs) == set(range(6))
    assert [found.mesh.workers for found in plan.outputs] == [mesh.workers for mesh in homes]
    arrays = [*(np.random.default_rng(i).integers(-3, 4, (8, 8)).astype(float) for i in range(6)), np.asarray(2.0)]
    for got, want in zip(simulate_graph(graph, arrays, (), 6), evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
