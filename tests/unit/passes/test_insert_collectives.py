"""What communication becomes explicit: shared steps, masks before reductions, reasons."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from gt.ir.evaluate import evaluate
from gt.ir.graph import Graph, Value
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS
from gt.ir.ops.collective import node_bytes
from gt.ir.types import TensorType, float64, int64
from gt.passes.context import Context
from gt.passes.insert_collectives import InsertCollectives
from gt.passes.propagate_sharding import PropagateSharding
from gt.runtime import simulator
from tests.property.sharding_graphs import Recorder, everyone, record

FOUR = everyone(4)
ROWS = Sharding(FOUR, (("w",), ()))


def explicit(graph: Graph) -> Graph:
    context = Context(FOUR)
    return InsertCollectives().run(PropagateSharding().run(graph, context), context)


def total(x: Value, *dims: int) -> Value:
    return OPS["sum"](x, dims=dims, keepdim=False, dtype=float64)


def masks(graph: Graph) -> list[tuple[object, object]]:
    return [(n.attr["dim"], n.attr["reduce"]) for n in explicit(graph).nodes if n.op.name == "mask_pad"]


def one(shape: tuple[int, ...], body: object, dtype: object = float64) -> Graph:
    type_ = TensorType(shape, dtype, Sharding(FOUR, (("w",), *((),) * (len(shape) - 1))))  # type: ignore[arg-type]
    return record([type_], lambda _, x: [body(x)])  # type: ignore[operator]


def test_padding_is_masked_only_where_a_reduction_reads_it() -> None:
    assert masks(one((10, 6), lambda x: total(x, 0))) == [(0, "sum")]
    assert masks(one((8, 6), lambda x: total(x, 0))) == []  # divides: no padding
    assert masks(one((10, 6), lambda x: total(x, 1))) == []  # another dim
    assert masks(one((10, 6), lambda x: OPS["exp"](x))) == []
    assert masks(one((10, 6), lambda x: OPS["amax"](x, dims=(0,), keepdim=False))) == [(0, "max")]
    assert masks(one((10, 6), lambda x: OPS["amin"](x, dims=(0,), keepdim=True))) == [(0, "min")]


FACTORED: dict[str, dict[str, Any]] = {
    "inverse": {}, "cholesky": {}, "lu": {"check": True}, "svd": {"full": False}, "svdvals": {}, "eigh": {"upper": False}, "eig": {}, "eigvals": {},
    "pinv": {"rtol": 0.0, "atol": 0.0, "hermitian": False}, "solve": {},
}  # fmt: skip


@pytest.mark.parametrize("fill", [0.0, np.nan])
@pytest.mark.parametrize("name", FACTORED)
def test_a_factorization_never_refuses_padding(name: str, fill: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven matrices on four workers: what pads the last worker's part is neither singular nor NaN."""

    def body(x: Value) -> Value:
        out = OPS[name](x, x, **FACTORED[name]) if name == "solve" else OPS[name](x, **FACTORED[name])
        return out[0] if isinstance(out, tuple) else out

    x = np.random.default_rng(0).normal(size=(7, 3, 3))
    x = x @ x.transpose(0, 2, 1) + np.eye(3)
    graph = one((7, 3, 3), body)
    assert masks(graph) == [(0, "matmul")]
    filled = lambda shape, dtype: np.full(shape, fill, dtype.numpy)  # noqa: E731
    monkeypatch.setattr(simulator, "parts_of", partial(simulator.parts_of, fill=filled))
    (got,), (want,) = simulator.simulate_graph(graph, [x], (), 4), evaluate(graph, [x])
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    assert masks(one((8, 3, 3), body)) == []


@pytest.mark.parametrize("fill", [0.0, np.nan])
def test_a_triangular_system_in_padding_is_solved_anyhow(fill: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses no matrix, as torch's does not, so nothing is masked: zeros on the diagonal of padding divide."""
    attrs = {"upper": False, "left": True, "unit": False}
    graph = one((7, 3, 3), lambda x: OPS["solve_triangular"](x, x, **attrs))
    assert masks(graph) == []
    x = np.random.default_rng(0).normal(size=(7, 3, 3)) + 3 * np.eye(3)
    filled = lambda shape, dtype: np.full(shape, fill, dtype.numpy)  # noqa: E731
    monkeypatch.setattr(simulator, "parts_of", partial(simulator.parts_of, fill=filled))
    (got,), (want,) = simulator.simulate_graph(graph, [x], (), 4), evaluate(graph, [x])
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.tril(x) @ got, x, rtol=1e-9, atol=1e-9)


def test_a_contraction_masks_both_operands() -> None:
    types = [
        TensorType((6, 10), float64, Sharding(FOUR, ((), ("w",)))), TensorType((10, 5), float64, ROWS),
    ]  # fmt: skip
    assert masks(record(types, lambda _, a, b: [OPS["matmul"](a, b)])) == [(1, "sum"), (0, "sum")]


def test_indices_in_padding_become_0() -> None:
    types = [TensorType((7, 3), float64), TensorType((10,), int64, Sharding(FOUR, (("w",),)))]
    assert masks(record(types, lambda _, table, index: [OPS["embedding"](table, index)])) == [(0, "sum")]
    types = [TensorType((7,), int64), TensorType((10,), int64, Sharding(FOUR, (("w",),)))]
    assert masks(record(types, lambda _, table, index: [OPS["index_select"](table, index, dim=0)])) == [(0, "sum")]


LONE = {  # each with one row of the dim that is indexed, so no factor of the rule says that it must be whole
    "gather": (1, {"dim": 1}), "scatter": (2, {"dim": 1}), "scatter_add": (2, {"dim": 1}), "scatter_reduce": (2, {"dim": 1, "reduce": "amax"}),
    "index_select": (1, {"dim": 0}), "index": (1, {"dims": (0,)}), "one_hot": (0, {"classes": 3, "dtype": int64}),
}  # fmt: skip


@pytest.mark.parametrize("name", LONE)
def test_indices_of_a_dim_of_one_row_are_masked_too(name: str) -> None:
    """Whole numbers among whole numbers: what is an index, the op says."""
    count, attrs = LONE[name]
    along = name in ("gather", "scatter", "scatter_add", "scatter_reduce")
    index = TensorType((10, 1) if along else (10,), int64, Sharding(FOUR, (("w",), ()) if along else (("w",),)))
    data = TensorType((10, 1) if along else (1, 3), int64, ROWS if along else None)
    types = [data, index, data][: count + 1] if count else [index]
    graph = record(types, lambda _, *inputs: [OPS[name](*inputs, **attrs)])
    assert (0, "sum") in masks(graph)
    numbers = [np.zeros(t.shape, np.int64) if t is index else np.arange(t.numel).reshape(t.shape) for t in types]
    (got,), (want,) = simulator.simulate_graph(graph, numbers, (), 4), evaluate(graph, numbers)
    np.testing.assert_array_equal(got, want)


def test_divisors_in_padding_are_not_0() -> None:
    """torch raises for an integer divided by zero, in padding too."""
    types = [TensorType((10,), int64, Sharding(FOUR, (("w",),)))] * 2
    for name in ("floor_divide", "trunc_divide", "remainder", "fmod"):
        assert masks(record(types, lambda _, a, b, name=name: [OPS[name](a, b)])) == [(0, "min")]


def test_a_mask_serves_all_readers() -> None:
    graph = record([TensorType((10, 6), float64, ROWS)], lambda _, x: [total(x, 0), total(x, 0, 1)])
    assert masks(graph) == [(0, "sum")]


def test_one_reshard_serves_all_readers_and_says_why() -> None:
    def body(_: Recorder, x: Value) -> list[Value]:
        return [*OPS["sort"](x, dim=0, descending=False), OPS["cumprod"](x, dim=0)]

    graph = explicit(record([TensorType((8, 6), float64, ROWS)], body))
    (moved,) = [n for n in graph.nodes if n.op.effect]
    assert moved.op.name == "all_to_all" and "sort" in moved.why, "rows are exchanged for columns, not joined"
    assert node_bytes(moved) == 8 * 6 * 8 * 3 // 16


def test_outputs_are_never_pending() -> None:
    graph = explicit(record([TensorType((8, 6), float64, ROWS)], lambda _, x: [total(x, 0)]))
    assert [n.op.name for n in graph.nodes] == ["sum", "all_reduce"]
    assert graph.outputs[0].type.sharding == Sharding.replicated(FOUR, 1)
