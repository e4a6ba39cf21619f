"""Which placements and collectives come out of the factor rules: the four strategies, training, signals, updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gt.ir.evaluate import evaluate
from gt.ir.graph import Graph, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS
from gt.ir.signals import PlanOptions, ShardConfig
from gt.ir.types import Shape, TensorType, float32, float64, int64, uint8
from gt.ir.verify import verify
from gt.passes.context import Context
from gt.passes.insert_collectives import InsertCollectives
from gt.passes.propagate_sharding import PropagateSharding
from gt.runtime.simulator import simulate_graph
from tests.property.sharding_graphs import Recorder, everyone, record

TWO, FOUR = everyone(2), everyone(4)


def f64(shape: Shape, *dims: str, mesh: Mesh = FOUR) -> TensorType:
    """A type split as named: ``f64((8, 6), "w", "")``; unplaced if no dims are named."""
    if not dims:
        return TensorType(shape, float64)
    return TensorType(shape, float64, Sharding(mesh, tuple((d,) if d else () for d in dims)))


def lowered(graph: Graph, mesh: Mesh = FOUR) -> tuple[Graph, Context]:
    context = Context(mesh)
    sharded = PropagateSharding().run(graph, context)
    verify(sharded)
    explicit = InsertCollectives().run(sharded, context)
    verify(explicit)
    return explicit, context


def comms(graph: Graph) -> list[str]:
    return [n.op.name for n in lowered(graph)[0].nodes if n.op.effect == "comm"]


def correct(graph: Graph, num_workers: int = 4) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-3, 4, v.type.shape).astype(v.type.dtype.numpy) for v in graph.inputs]
    for a, b in zip(simulate_graph(graph, inputs, (), num_workers), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def total(x: Value, *dims: int) -> Value:
    return OPS["sum"](x, dims=dims, keepdim=False, dtype=x.type.dtype)


def made(
    types: Sequence[TensorType], body: Callable[..., object], signals: dict[str, ShardConfig] | None = None
) -> Graph:
    def outputs(recorder: Recorder, *inputs: Value) -> Sequence[Value]:
        out = body(recorder, *inputs)
        return out if isinstance(out, list) else [out]  # type: ignore[list-item]

    return record(types, outputs, signals)


# -- the four strategies


def test_strategy_1_row_sharded_matmul_needs_nothing() -> None:
    graph = made([f64((8, 6), "w", ""), f64((6, 5))], lambda _, a, b: OPS["matmul"](a, b))
    assert comms(graph) == []
    assert lowered(graph)[1].output_shardings == [Sharding(FOUR, (("w",), ()))]
    correct(graph)


def test_strategy_2_a_sum_over_shards_is_one_all_reduce() -> None:
    graph = made([f64((10, 6), "w", "")], lambda _, a: total(a, 0, 1))
    assert comms(graph) == ["all_reduce"]
    correct(graph)


def test_strategy_2_a_mean_over_shards_is_one_all_reduce() -> None:
    def mean(_: Recorder, a: Value) -> Value:
        return OPS["div"](total(a, 0), OPS["full"](shape=(), value=10.0, dtype=float64))

    graph = made([f64((10, 6), "w", "")], mean)
    assert comms(graph) == ["all_reduce"]
    correct(graph)


def test_strategy_3_operands_split_on_the_inner_dim_give_one_all_reduce() -> None:
    graph = made([f64((8, 6), "", "w"), f64((6, 5), "w", "")], lambda _, a, b: OPS["matmul"](a, b))
    assert comms(graph) == ["all_reduce"]
    correct(graph)


def test_strategy_4_of_two_row_sharded_operands_the_right_one_is_gathered_once() -> None:
    def body(_: Recorder, a: Value, b: Value, c: Value) -> list[Value]:
        return [OPS["matmul"](a, c), OPS["matmul"](b, c), OPS["relu"](OPS["matmul"](OPS["neg"](a), c))]

    graph = made([f64((8, 8), "w", ""), f64((8, 8), "w", ""), f64((8, 8), "w", "")], body)
    explicit, _ = lowered(graph)
    gathers = [n for n in explicit.nodes if n.op.effect]
    assert [(n.op.name, n.inputs[0]) for n in gathers] == [("all_gather", explicit.inputs[2])]
    correct(graph)


# -- training


def mlp(batch: int, place: dict[int, Sharding] | None = None, signal: ShardConfig | None = None) -> Graph:
    """Two linear layers, a sum of squares, gradients by hand as autodiff gives them, and SGD."""

    def body(recorder: Recorder, x: Value, w1: Value, w2: Value, lr: Value) -> list[Value]:
        recorder.signal = "dp" if signal else None
        h = OPS["matmul"](x, w1)
        recorder.signal = None
        a = OPS["relu"](h)
        y = OPS["matmul"](a, w2)
        loss = total(OPS["mul"](y, y), 0, 1)
        gy = OPS["add"](y, y)
        swap = lambda v: OPS["permute"](v, dims=(1, 0))  # noqa: E731
        g2 = OPS["matmul"](swap(a), gy)
        ga = OPS["matmul"](gy, swap(w2))
        gh = OPS["where"](OPS["gt"](h, OPS["full"](shape=(), value=0.0, dtype=float64)), ga, OPS["sub"](ga, ga))
        g1 = OPS["matmul"](swap(x), gh)
        flags = dict(momentum=0.0, nesterov=False, weight_decay=0.0, dampening=0.0, maximize=False)
        return [loss, *OPS["sgd_step"](w1, w2, g1, g2, lr, num=2, **flags)]

    types = [f64((batch, 12)), f64((12, 8)), f64((8, 4)), f64(())]
    for i, sharding in (place or {}).items():
        types[i] = types[i].placed(sharding)
    return record(types, body, {"dp": signal} if signal else None, donated=(1, 2))


def test_data_parallel_reduces_each_gradient_once() -> None:
    for batch in (64, 37):  # 37 rows do not divide
        graph = mlp(batch, signal=ShardConfig(axis=0))
        assert Counter(comms(graph)) == {"all_reduce": 3}  # two parameters and the loss
        assert lowered(graph)[1].output_shardings == [Sharding.replicated(FOUR, n) for n in (0, 2, 2)]
        correct(graph)


def test_data_parallel_from_where_the_batch_lives() -> None:
    graph = mlp(64, {0: Sharding(FOUR, (("w",), ()))})
    assert Counter(comms(graph)) == {"all_reduce": 3}
    correct(graph)


def test_a_sharded_parameter_stays_where_it_is_and_its_gradient_is_scattered() -> None:
    rows = Sharding(FOUR, (("w",), ()))
    graph = mlp(64, {0: rows, 1: rows})
    found = Counter(comms(graph))
    assert found["reduce_scatter"] == 1 and found["all_gather"] == 1, found
    assert lowered(graph)[1].output_shardings[1:] == [rows, Sharding.replicated(FOUR, 2)]
    correct(graph)


def test_sums_of_gradients_are_reduced_once() -> None:
    def body(_: Recorder, x: Value, y: Value) -> Value:
        return OPS["add"](OPS["add"](total(x, 0), total(y, 0)), total(x, 0))

    graph = made([f64((8, 6), "w", ""), f64((9, 6), "w", "")], body)
    assert comms(graph) == ["all_reduce"]
    correct(graph)


def test_a_pending_sum_meets_a_whole_value_before_it_is_reduced() -> None:
    """Adding the whole value on every worker would count it four times."""
    graph = made([f64((8, 6), "w", ""), f64((6,))], lambda _, x, b: OPS["add"](total(x, 0), b))
    assert comms(graph) == ["all_reduce"]
    correct(graph)


@pytest.mark.parametrize("options", [PlanOptions(), PlanOptions(auto="search")])
def test_sums_of_whole_numbers_pass_in_their_own_dtype_alone(options: PlanOptions) -> None:
    """Parts of them add up modulo their width: as floats, or in a wider dtype, they would be another sum."""
    types = [TensorType((2, 1000), dtype, Sharding(TWO, (("w",), ()))) for dtype in (int64, uint8)]

    def body(_: Recorder, large: Value, small: Value) -> list[Value]:
        in_float = OPS["cast"](total(large, 0), dtype=float64)
        wide = OPS["sum"](total(small, 0), dims=(0,), keepdim=False, dtype=int64)
        return [total(in_float, 0), wide, total(total(small, 0), 0)]

    graph = replace(record(types, body), options=options)
    large, small = np.array([[2**60 + 1], [-(2**60)]]).repeat(1000, 1), np.full((2, 1000), 200, np.uint8)
    got = simulate_graph(graph, [large, small], (), 2)
    assert [x.item() for x in got] == [1000.0, 1000 * (400 % 256), 400000 % 256]


@pytest.mark.parametrize("op", ["index", "index_select"])
def test_rows_taken_of_a_split_dim_are_sent_and_nothing_else(op: str) -> None:
    attrs = {"dims": (0,)} if op == "index" else {"dim": 0}
    graph = made([f64((4096, 64), "w", ""), TensorType((9,), int64)], lambda _, x, i: OPS[op](x, i, **attrs))
    assert comms(graph) == ["all_reduce"], "each worker gives the rows that it has"
    inputs = [np.random.default_rng(0).normal(size=(4096, 64)), np.arange(9) * 500]
    (got,) = simulate_graph(graph, inputs, (), 4)
    np.testing.assert_array_equal(got, inputs[0][inputs[1]])


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (3, 4), (1, 4)])
def test_rows_are_cut_from_the_parts_of_nothing(start: int, stop: int) -> None:
    """Each worker's part has no elements, but rows of its own."""
    attrs = {"starts": (0, start), "stops": (0, stop), "steps": (1, 1)}
    graph = made([f64((0, 4), "", "w")], lambda _, x: OPS["neg"](OPS["slice"](x, **attrs)))
    (got,) = simulate_graph(graph, [np.zeros((0, 4))], (), 4)
    assert got.shape == (0, stop - start)


def test_an_op_that_is_not_linear_reads_the_reduced_value() -> None:
    graph = made([f64((8, 6), "w", "")], lambda _, x: OPS["relu"](OPS["neg"](total(x, 0))))
    assert comms(graph) == ["all_reduce"]
    correct(graph)


def test_a_row_is_written_where_it_lies() -> None:
    """A small source is brought to all, and no row of the whole value moves; of a large one it is cheaper to move the whole."""

    def write(rows: int) -> Graph:
        attrs = {"starts": (2, 0), "stops": (2 + 2 * rows, 6), "steps": (2, 1)}
        types = [f64((40, 6), "w", ""), f64((rows, 6))]
        return made(types, lambda _, x, source: OPS["slice_scatter"](x, source, **attrs))

    assert comms(write(1)) == comms(write(10)) == []
    assert comms(write(15)), "more than a part of the whole"
    for rows in (1, 10, 15):
        correct(write(rows))


# -- signals


def asked(graph: Graph) -> tuple[list[Sharding], str]:
    _, context = lowered(graph)
    return context.output_shardings, " / ".join(reason for _, reason in context.notes)


def under(shape: Shape, shard: ShardConfig) -> Graph:
    def body(recorder: Recorder, x: Value) -> Value:
        recorder.signal = "s"
        return OPS["neg"](x)

    return made([f64(shape)], body, {"s": shard})


def test_a_signal_splits_what_it_marks_over_its_workers_in_their_order() -> None:
    mesh = Mesh.line((3, 1))
    placed, notes = asked(under((5, 4), ShardConfig(axis=-1, workers=(3, 1))))
    assert placed == [Sharding(mesh, ((), (mesh.axes[0][0],)))]
    assert "signal 's'" in notes
    correct(under((5, 4), ShardConfig(axis=-1, workers=(3, 1))))


def test_a_signal_that_names_all_workers_means_the_mesh_of_all() -> None:
    assert asked(under((8, 4), ShardConfig(workers=(0, 1, 2, 3))))[0][0].mesh == FOUR


def test_what_cannot_be_split_stays_whole_with_a_note() -> None:
    for shape, shard, reason in (
        ((8,), ShardConfig(axis=1), "has no dim 1"),
        ((8,), ShardConfig(axis=-2), "has no dim -2"),
        ((3, 8), ShardConfig(axis=0), "smaller than 4 workers"),
        ((8,), ShardConfig(workers=(7, 9)), "none of the workers [7, 9] is present"),
    ):
        placed, notes = asked(under(shape, shard))
        assert placed == [Sharding.replicated(FOUR, len(shape))] and reason in notes
        correct(under(shape, shard))


def test_absent_workers_are_left_out_with_a_note() -> None:
    placed, notes = asked(under((8,), ShardConfig(workers=(1, 8, 2))))
    assert placed[0].mesh.workers == (1, 2) and "workers [8] are not present, using [1, 2]" in notes


def test_replicated_keeps_a_value_whole_on_its_workers() -> None:
    graph = under((8,), ShardConfig(workers=(2, 1), replicated=True))
    assert asked(graph)[0] == [Sharding.replicated(Mesh.line((2, 1)), 1)]
    assert comms(graph) == []  # those workers had it already
    correct(graph)


def test_a_transposed_parameter_is_not_split_by_its_layers_signal() -> None:
    def body(recorder: Recorder, x: Value, w: Value) -> Value:
        recorder.signal = "s"
        return OPS["matmul"](x, OPS["permute"](w, dims=(1, 0)))

    graph = made([f64((8, 6)), f64((5, 6))], body, {"s": ShardConfig(axis=0)})
    assert comms(graph) == []
    correct(graph)


# -- backward and homes


def test_what_all_readers_cut_is_made_in_parts() -> None:
    """Random and constant values are made where they are used, not everywhere and then cut."""

    def body(_: Recorder, x: Value) -> Value:
        seed, stream = (OPS["full"](shape=(), value=v, dtype=int64) for v in (1, 2))
        noise = OPS["random_uniform"](seed, stream, shape=(8, 6), dtype=float32)
        return OPS["add"](x, OPS["neg"](OPS["cast"](noise, dtype=float64)))

    graph = made([f64((8, 6), "w", "")], body)
    explicit, _ = lowered(graph)
    assert not any(n.op.name == "shard_slice" for n in explicit.nodes)
    noise = next(n for n in explicit.nodes if n.op.name == "random_uniform")
    assert noise.output.type.sharding == Sharding(FOUR, (("w",), ()))


def test_random_values_do_not_depend_on_placement() -> None:
    def body(_: Recorder, x: Value) -> list[Value]:
        seed, stream = (OPS["full"](shape=(), value=v, dtype=int64) for v in (5, 9))
        noise = OPS["random_normal"](seed, stream, shape=(9, 5), dtype=float64)
        return [OPS["add"](x, noise), OPS["dropout"](x, seed, stream, p=0.5)]

    array = np.ones((9, 5))
    for dims in (("w", ""), ("", "w")):
        graph = made([f64((9, 5), *dims)], body)
        for a, b in zip(simulate_graph(graph, [array], (), 4), evaluate(graph, [array]), strict=True):
            assert a.tobytes() == b.tobytes()


def test_a_stage_on_other_workers_gets_its_input_once() -> None:
    def body(recorder: Recorder, x: Value, w: Value) -> list[Value]:
        recorder.signal = "first"
        h = OPS["neg"](x)
        recorder.signal = "second"
        return [OPS["matmul"](h, w), OPS["abs"](h)]

    signals = {
        "first": ShardConfig(workers=(0, 1), replicated=True), "second": ShardConfig(workers=(2, 3), replicated=True),
    }  # fmt: skip
    graph = made([f64((8, 6)), f64((6, 6))], body, signals)
    assert comms(graph) == ["transfer"]
    assert {s.mesh.workers for s in lowered(graph)[1].output_shardings} == {(2, 3)}
    correct(graph)


def test_one_worker_and_unmarked_graphs_pass_through() -> None:
    for mesh in (everyone(1), FOUR):
        graph = made([f64((8, 6)), f64((6, 6))], lambda _, a, b: OPS["matmul"](a, b))
        explicit, context = lowered(graph, mesh)
        assert [n.op for n in explicit.nodes] == [n.op for n in graph.nodes]
        assert context.output_shardings == [Sharding.replicated(mesh, 2)]


def test_an_op_without_a_rule_runs_whole_with_a_note() -> None:
    bare = replace(OPS["neg"], name="bare", factors=None)

    def body(recorder: Recorder, x: Value) -> Value:
        return recorder.emit(bare, (x,), ())[0]

    explicit, context = lowered(made([f64((8, 6), "w", "")], body))
    assert [n.op.name for n in explicit.nodes] == ["all_gather", "bare"]
    assert any("bare has no sharding rule" in reason for _, reason in context.notes)


def test_an_older_mesh_of_the_same_axis_name_is_told_apart() -> None:
    """After workers joined, buffers still lie on the former mesh, whose axis had the name of the present one."""
    before = Mesh("all", (("w", 2),), (0, 1))
    graph = made([f64((8, 6), "w", "", mesh=before), f64((8, 6), "w", "")], lambda _, a, b: OPS["add"](a, b))
    explicit, _ = lowered(graph)
    assert explicit.inputs[0].type.sharding is not None
    assert explicit.inputs[0].type.sharding.mesh == Mesh.line((0, 1))
    correct(graph)


# -- sums of what is added up already and of what is new


def test_any_number_of_terms_may_be_added_to_a_pending_sum() -> None:
    def body(_: Recorder, a: Value, b: Value, *terms: Value) -> Value:
        out = OPS["matmul"](a, b)
        for i in range(1000):
            out = OPS["add"](out, terms[i % 2])
        return OPS["relu"](out)

    graph = made([f64((4, 8), "", "w"), f64((8, 4), "w", ""), f64((4, 4)), f64((4,))], body)
    assert comms(graph) == ["all_reduce"]
    correct(graph)


def test_a_residual_stream_that_is_there_is_not_added_up_again() -> None:
    """What a later reader needs whole is made whole at once; a first one that needs parts is given them of that."""
    grid = Mesh("grid", (("dp", 2), ("tp", 2)), (0, 1, 2, 3))

    def body(_: Recorder, x: Value, w: Value, v: Value, u: Value) -> list[Value]:
        y = OPS["add"](x, OPS["matmul"](OPS["matmul"](x, w), v))
        return [OPS["matmul"](y, u), OPS["matmul"](OPS["permute"](OPS["matmul"](y, u), dims=(1, 0)), y)]

    types = [f64((256, 2048), "dp", "", mesh=grid), f64((2048, 256), "", "tp", mesh=grid), f64((256, 2048), "tp", "", mesh=grid)]
    graph = made([*types, f64((2048, 8192), "", "tp", mesh=grid)], body)
    assert comms(graph) == ["all_reduce", "all_gather", "all_gather"]
