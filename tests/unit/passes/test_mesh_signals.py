"""Signals over meshes of several axes: which mesh, which dims, parameters by name, gradients, optimizer state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from gt.ir.evaluate import evaluate
from gt.ir.graph import Graph, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS
from gt.ir.signals import ShardConfig, SignalConfig
from gt.ir.types import TensorType, float32, float64
from gt.passes.autodiff import Autodiff
from gt.passes.context import Context
from gt.passes.pipeline import Pipeline
from gt.passes.plan import Cluster, plan_graph
from gt.passes.signal_placement import ParamPlacement, cut, fitted, signal_mesh
from gt.runtime.simulator import simulate_graph
from tests.property.sharding_graphs import Recorder, everyone, record

FOUR = everyone(4)
DP_TP = (("dp", 2), ("tp", 2))
UP_TO_EXPLICIT = Pipeline.parse("autodiff,decompose,simplify,cse,dce,propagate_sharding,insert_collectives")


def over(mesh: dict[str, int] | Any, dims: Any, **more: Any) -> SignalConfig:
    return SignalConfig(ShardConfig(dims=dims, **more), mesh=mesh)


def explicit(graph: Graph, workers: int = 4) -> tuple[Graph, Context]:
    context = Context(Cluster(tuple(range(workers))).mesh)
    return UP_TO_EXPLICIT.run(graph, context, verify="each"), context


def comms(graph: Graph) -> Counter[str]:
    return Counter(n.op.name for n in explicit(graph)[0].nodes if n.op.effect == "comm")


def correct(graph: Graph, num_workers: int = 4) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-3, 4, v.type.shape).astype(v.type.dtype.numpy) for v in graph.inputs]
    whole = Autodiff().run(graph, Context(FOUR))
    for a, b in zip(simulate_graph(graph, inputs, (), num_workers), evaluate(whole, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


# -- which mesh


@pytest.mark.parametrize(
    ("axes", "count", "want", "fault"),
    [
        ((("dp", 2), ("tp", 2)), 4, (("dp", 2), ("tp", 2)), False),
        ((("dp", -1), ("tp", 2)), 8, (("dp", 4), ("tp", 2)), False),
        ((("dp", -1), ("tp", 2)), 1, (("dp", 1), ("tp", 1)), True),
        ((("dp", 2), ("tp", 2)), 2, (("dp", 1), ("tp", 2)), True),
        ((("dp", 2), ("tp", 2)), 3, (("dp", 1), ("tp", 2)), True),
        ((("dp", 2),), 4, (("dp", 2),), False),
    ],
)
def test_a_mesh_takes_the_workers_there_are(axes: Any, count: int, want: Any, fault: bool) -> None:
    got, problem = fitted(axes, count)
    assert got == want and bool(problem) == fault


def test_a_mesh_is_row_major_over_the_listed_workers() -> None:
    mesh, problem = signal_mesh(over(DP_TP, {0: "dp"}, workers=(3, 1, 0, 2)), FOUR)
    assert mesh is not None and not problem
    assert mesh.coords(3) == {"dp": 0, "tp": 0} and mesh.coords(1) == {"dp": 0, "tp": 1}
    assert mesh.coords(0) == {"dp": 1, "tp": 0}


def test_absent_workers_and_undeclared_axes_are_said() -> None:
    mesh, problem = signal_mesh(over(DP_TP, {0: "dp"}, workers=(0, 1, 2, 9)), FOUR)
    assert mesh is not None and mesh.workers == (0, 1) and "[9]" in problem
    assert "asks for 4 workers, 3 are named" in signal_mesh(over(DP_TP, {0: "dp"}, workers=(0, 1, 2)), FOUR)[1]
    assert signal_mesh(over((), {0: "dp"}), FOUR)[1] == "mesh axis 'dp' is not declared: add 'mesh: {dp: SIZE}'"
    assert signal_mesh(over(DP_TP, {0: "dpp"}), FOUR)[1] == "mesh axis 'dpp' is not declared; did you mean 'dp'?"


def test_absent_workers_are_told_with_those_that_are_used() -> None:
    mesh, problem = signal_mesh(over(DP_TP, {0: "dp"}, workers=(3, 1, 0, 9)), FOUR)
    assert mesh is not None and mesh.workers == (3, 1) and "workers [9] are not present, using [3, 1]:" in problem


@pytest.mark.parametrize("shard", [{"axis": 0}, {"replicated": True}, {"axis": None}])
def test_what_names_no_axes_uses_all_its_workers_whatever_the_mesh_of_parameters(shard: Any) -> None:
    """Three workers are not a mesh of 2 x 2, on which parameters are split."""
    config = SignalConfig(ShardConfig(workers=(0, 1, 2), **shard), mesh=DP_TP, params={"*": {0: "tp"}})
    assert signal_mesh(config, FOUR)[0] == Mesh.line((0, 1, 2))
    (rule,) = ParamPlacement.of([config], FOUR).rules
    assert rule[2] == Mesh.grid((("dp", 1), ("tp", 2)), (0, 1))
    shuffled = msgspec.structs.replace(config, shard=ShardConfig(workers=(3, 1, 0, 2), **shard))
    assert signal_mesh(shuffled, FOUR)[0] == Mesh.grid(DP_TP, (3, 1, 0, 2))  # as the parameters are


def test_a_note_tells_of_all_workers_that_are_present() -> None:
    """Also where those that are used of them are fewer."""

    def body(recorder: Recorder, x: Value) -> list[Value]:
        recorder.signal = "s"
        return list(recorder.emit(OPS["exp"], (x,), ()))

    graph = record([TensorType((8, 6), float64)], body, {"s": over(DP_TP, {0: "dp"})})
    _, context = explicit(graph, 3)
    assert [note for _, note in context.notes if "asks for" in note] == [
        "signal 's': the mesh asks for 4 workers, 3 are present: using {dp: 1, tp: 2}"
    ]


@pytest.mark.parametrize(
    ("dims", "shape", "want", "words"),
    [
        ({0: "dp", 1: "tp"}, (8, 6), (("dp",), ("tp",)), ""),
        ({-1: "tp"}, (8, 6, 4), ((), (), ("tp",)), ""),
        ({0: ("dp", "tp")}, (9,), (("dp", "tp"),), ""),
        ({0: "dp", 1: "tp"}, (8,), (("dp",),), "has no dim 1"),
        ({0: "dp", -2: "tp"}, (8, 6), (("dp",), ()), "split over dp already"),
        ({0: ("dp", "tp")}, (3, 6), ((), ()), "smaller than 4 workers"),
        ({0: "dp"}, (), (), "has no dim 0"),
    ],
)
def test_dims(dims: Any, shape: Any, want: Any, words: str) -> None:
    mesh = Mesh.grid(DP_TP, (0, 1, 2, 3))
    placed, problem = cut(ShardConfig(dims=dims), mesh, TensorType(shape, float32))
    assert placed == Sharding(mesh, want) and words in problem and bool(words) == bool(problem)


def test_a_placement_is_the_same_in_the_axes_of_a_finer_mesh() -> None:
    grid = Mesh.grid((("a", 2), ("b", 3)), (0, 1, 2, 3, 4, 5))
    line = Mesh("all", (("w", 6),), grid.workers)
    assert Sharding(line, (("w",), ())).on(grid) == Sharding(grid, (("a", "b"), ()))
    assert Sharding(grid, (("a",), ())).on(line) is None
    for worker in grid.workers:
        finer = Sharding(line, (("w",), ())).on(grid)
        assert finer is not None
        assert finer.bounds((12, 2), worker) == Sharding(line, (("w",), ())).bounds((12, 2), worker)


# -- what follows in a graph


def two_layers(rules: dict[str, Any], batch: Any = None, signals: dict[str, SignalConfig] | None = None) -> Graph:
    """x @ up, relu, @ down under signal "batch", with parameters named ``up.weight`` and ``down.weight``."""

    def body(recorder: Recorder, *inputs: Value) -> list[Value]:
        recorder.signal = "batch"
        (x,) = recorder.emit(OPS["copy"], inputs[:1], ())
        recorder.signal = None
        h = OPS["relu"](OPS["matmul"](x, inputs[1]))
        return [OPS["matmul"](h, inputs[2])]

    batch = SignalConfig(ShardConfig(dims=batch) if batch else None, mesh=DP_TP, params=rules)
    types = [TensorType(s, float64) for s in ((8, 6), (6, 12), (12, 6))]
    graph = record(types, body, {"batch": batch, **(signals or {})})
    names = {v: Value(v.type, h) for v, h in zip(graph.inputs, ("x", "up.weight", "down.weight"), strict=True)}
    get = lambda values: tuple(names.get(v, v) for v in values)  # noqa: E731
    nodes = tuple(replace(n, inputs=get(n.inputs)) for n in graph.nodes)
    return replace(graph, inputs=get(graph.inputs), nodes=nodes)


def test_column_then_row_by_parameter_names_is_one_all_reduce() -> None:
    graph = two_layers({"up.*": {1: "tp"}, "down.*": {0: "tp"}}, {0: "dp"})
    assert comms(graph) == {"all_reduce": 1}
    correct(graph)


def test_the_first_matching_rule_counts_and_the_plan_says_so() -> None:
    graph = two_layers({"up.weight": {}, "*.weight": {0: "tp"}})
    placed, context = explicit(graph)
    assert any("'*.weight'" in why for _, why in context.notes)
    split = {v.hint for v in placed.values if v.type.sharding and v.type.sharding.is_split}
    assert "down.weight" in split


def test_inputs_split_over_all_workers_are_read_in_the_meshs_axes() -> None:
    graph = two_layers({"up.*": {1: "tp"}}, {0: "dp"})
    x = graph.inputs[0]
    moved = Value(x.type.placed(Sharding(FOUR, (("w",), ()))), x.hint)
    nodes = tuple(replace(n, inputs=tuple(moved if v is x else v for v in n.inputs)) for n in graph.nodes)
    graph = replace(graph, inputs=(moved, *graph.inputs[1:]), nodes=nodes)
    assert "transfer" not in comms(graph)
    correct(graph)


def gradient_step(backward: SignalConfig | None) -> Graph:
    """The gradient of a loss in w; the forward ran under signal "layer"."""
    layer = SignalConfig(ShardConfig(dims={0: "dp"}), "bwd" if backward else None, mesh=DP_TP, backward_config=backward)

    def body(recorder: Recorder, x: Value, w: Value) -> list[Value]:
        recorder.signal = "layer"
        y = OPS["matmul"](x, w)
        recorder.signal = None
        loss = OPS["sum"](y, dims=(0, 1), keepdim=False, dtype=float64)
        recorder.nodes = [replace(n, taped=True) for n in recorder.nodes]
        return [recorder.emit(OPS["grad"], (loss, w), (("has_seed", False),))[0]]

    return record([TensorType((8, 6), float64), TensorType((6, 4), float64)], body, {"layer": layer})


def test_gradients_follow_the_backward_signal_of_the_forward_scope() -> None:
    graph = gradient_step(SignalConfig(ShardConfig(dims={0: "tp"}), mesh=DP_TP))
    (out,) = plan_graph(graph, Cluster((0, 1, 2, 3))).outputs
    assert out.dims == (("tp",), ())
    correct(graph)
    (out,) = plan_graph(gradient_step(None), Cluster((0, 1, 2, 3))).outputs
    assert out.is_replicated


def optimizer_step(signal: SignalConfig | None, state: Sharding | None = None, first: bool = False) -> Graph:
    """One AdamW step of a parameter whose gradient comes from a batch split over dp. ``first``: the graph makes parameter and state."""

    def body(recorder: Recorder, x: Value, p: Value, m: Value, v: Value, lr: Value, step: Value) -> list[Value]:
        recorder.signal = "batch"
        (x,) = recorder.emit(OPS["copy"], (x,), ())
        recorder.signal = None
        grad = OPS["matmul"](OPS["permute"](x, dims=(1, 0)), x)
        if first:
            p = OPS["neg"](p)
        recorder.signal = "step" if signal else None
        if first:
            m, v = OPS["neg"](m), OPS["exp"](v)
        names = ("beta1", "beta2", "eps", "weight_decay", "amsgrad", "maximize")
        attrs = (("num", 1), *zip(names, (0.9, 0.99, 1e-8, 0.01, False, False), strict=True))
        return list(recorder.emit(OPS["adamw_step"], (p, grad, m, v, lr, step), attrs))

    types = [TensorType(s, float64) for s in ((8, 8), (8, 8), (8, 8), (8, 8), (), ())]
    types[2:4] = [t.placed(state) for t in types[2:4]]
    signals = {"batch": over(DP_TP, {0: "dp"})} | ({"step": signal} if signal else {})
    return record(types, body, signals)


def test_a_step_in_a_signal_shards_the_optimizer_state_and_keeps_the_parameter() -> None:
    graph = optimizer_step(over(DP_TP, {0: "dp"}))
    p, m, v = plan_graph(graph, Cluster((0, 1, 2, 3))).outputs
    assert p.is_replicated and m.dims == v.dims == (("dp",), ())
    graph = optimizer_step(over(DP_TP, {0: "dp"}), m)  # as every later step finds it
    assert plan_graph(graph, Cluster((0, 1, 2, 3))).outputs == (p, m, v)
    assert comms(graph) == {"reduce_scatter": 1, "all_gather": 1}, "ZeRO-1: the gradient in parts, the parameter joined"


def test_so_does_the_first_step_whose_graph_makes_parameter_and_state() -> None:
    graph = optimizer_step(over(DP_TP, {0: "dp"}), first=True)
    p, m, v = plan_graph(graph, Cluster((0, 1, 2, 3))).outputs
    assert p.is_replicated and m.dims == v.dims == (("dp",), ())
    correct(graph)


def test_without_one_the_step_is_plain_data_parallel() -> None:
    graph = optimizer_step(None)
    assert comms(graph) == {"all_reduce": 1}
    assert all(o.is_replicated for o in plan_graph(graph, Cluster((0, 1, 2, 3))).outputs)
