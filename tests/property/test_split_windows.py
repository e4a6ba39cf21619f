"""Convolution, pooling, and what they are made of, over split rows: equal to the whole, and only a few rows are sent.

Repeat a failure with ``pytest tests/property/test_split_windows.py --hypothesis-seed=N``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gt.ir.ops  # noqa: F401 - fills the table
from gt.ir.evaluate import evaluate
from gt.ir.graph import Graph, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS
from gt.ir.signals import PlanOptions
from gt.ir.types import Shape, TensorType, float64
from gt.passes.plan import Cluster, plan_graph
from gt.runtime.simulator import simulate_graph
from tests.property.budget import examples
from tests.property.sharding_graphs import Recorder, record

GRID = Mesh("grid", (("dp", 2), ("sp", 2)), (0, 1, 2, 3))


def line(k: int) -> Mesh:
    return Mesh("all", (("w", k),), tuple(range(k)))


def on(mesh: Mesh, shape: Shape, where: dict[int, tuple[str, ...]]) -> Sharding:
    return Sharding(mesh, tuple(where.get(d, ()) for d in range(len(shape))))


def rows(shape: Shape, dim: int, k: int) -> TensorType:
    return TensorType(shape, float64, on(line(k), shape, {dim: ("w",)}))


def check(graph: Graph, num_workers: int, seed: int = 0) -> list[Any]:
    """Run it on simulated workers, compare, and give the communication of one worker's program after another."""
    numbers = np.random.default_rng(seed)
    inputs = [numbers.integers(-4, 5, v.type.shape).astype(np.float64) for v in graph.inputs]
    want = evaluate(graph, inputs)
    got = simulate_graph(graph, inputs, (), num_workers)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"output {i}")
    plan = plan_graph(graph, Cluster(tuple(range(num_workers))))
    return [list(plan.programs[w].collectives) for w in range(num_workers)]


def nbytes(sent: list[Any]) -> list[int]:
    return [sum(c.nbytes for c in each) for each in sent]


def kinds(sent: list[Any]) -> set[str]:
    return {c.kind for each in sent for c in each} - {"send", "receive", "wait"}


def conv(**attrs: Any) -> dict[str, Any]:
    n = len(attrs.get("stride", (1, 1)))
    base = {"stride": (1,) * n, "padding": (0,) * n, "dilation": (1,) * n, "transposed": False, "output_padding": (0,) * n, "groups": 1}
    return base | attrs


# -- only moving rows


@pytest.mark.parametrize(
    ("name", "attrs", "sent"),
    [
        ("roll", {"shifts": (1,), "dims": (0,)}, [1, 1, 1, 1]),
        ("roll", {"shifts": (-2,), "dims": (0,)}, [2, 2, 2, 2]),
        ("slice", {"starts": (1, 0), "stops": (16, 3), "steps": (1, 1)}, [0, 1, 1, 1]),  # a shift: x[1:]
        ("slice", {"starts": (0, 0), "stops": (15, 3), "steps": (1, 1)}, [0, 0, 0, 0]),  # x[:-1]
        ("pad", {"low": (1, 0), "high": (0, 0), "interior": (0, 0), "value": 0.0}, [0, 1, 2, 3]),
        ("flip", {"dims": (0,)}, [4, 4, 4, 4]),
    ],
)
def test_what_moves_rows_sends_just_those(name: str, attrs: dict[str, Any], sent: list[int]) -> None:
    graph = record([rows((16, 3), 0, 4)], lambda _, x: [OPS[name](x, **attrs)])
    found = check(graph, 4)
    if name == "pad":  # 17 rows over 4 workers are cut at 5, 10 and 15
        sent = [0, 0, 1, 2]
    assert kinds(found) == set()
    assert nbytes(found) == [n * 3 * 8 for n in sent]


def test_a_shift_written_as_joined_slices_stays_split() -> None:
    def body(_: Recorder, x: Value) -> list[Value]:
        last = OPS["slice"](x, starts=(14, 0), stops=(16, 3), steps=(1, 1))
        return [OPS["cat"](last, OPS["slice"](x, starts=(0, 0), stops=(14, 3), steps=(1, 1)), dim=0)]

    graph = record([rows((16, 3), 0, 2)], body)
    found = check(graph, 2)
    assert kinds(found) == set() and max(nbytes(found)) <= 4 * 3 * 8
    assert plan_graph(graph, Cluster((0, 1))).outputs[0].dims[0] == ("w",)


def test_one_row_of_many_is_sent_and_not_the_whole() -> None:
    graph = record([rows((64, 512), 0, 2)], lambda _, x: [OPS["slice"](x, starts=(63, 0), stops=(64, 512), steps=(1, 1))])
    found = check(graph, 2)
    assert kinds(found) == set() and nbytes(found) == [0, 512 * 8]


def test_a_row_that_many_workers_want_is_joined_if_that_is_faster() -> None:
    last = lambda _, x: [OPS["slice"](x, starts=(7, 0), stops=(8, x.type.shape[1]), steps=(1, 1))]  # noqa: E731
    assert kinds(check(record([rows((8, 4), 0, 4)], last), 4)) == {"all_gather"}
    plan = plan_graph(record([rows((8, 1 << 22), 0, 4)], last), Cluster((0, 1, 2, 3)))
    sent = [sum(c.nbytes for c in plan.programs[w].collectives if c.kind == "send") for w in range(4)]
    assert sent == [0, 0, 0, 3 * 8 << 22], "not seven rows to everyone"


# -- windows


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (5, 2), (3, 0), (7, 3), (4, 1)])
def test_a_convolution_sends_the_rows_its_windows_share(k: int, kernel: int, padding: int) -> None:
    shape, weight = (2, 3, 12, 5), TensorType((4, 3, kernel, 3), float64)
    graph = record([rows(shape, 2, k), weight], lambda _, x, w: [OPS["convolution"](x, w, **conv(padding=(padding, 1)))])
    found = check(graph, k)
    assert kinds(found) == set(), "no collective joins the rows"
    row = 2 * 3 * 5 * 8
    if kernel == 2 * padding + 1:  # as many rows as there were: a worker in the middle sends that many to each side
        inside = [row * padding * ((w > 0) + (w < k - 1)) for w in range(k)]
        if 12 // k >= padding:
            assert nbytes(found) == inside
    assert max(nbytes(found)) <= row * 2 * (kernel - 1)


def test_three_layers_stay_split_and_each_sends_its_rows() -> None:
    w = TensorType((3, 3, 3, 3), float64)

    def body(_: Recorder, x: Value, a: Value, b: Value, c: Value) -> list[Value]:
        for weight in (a, b, c):
            x = OPS["relu"](OPS["convolution"](x, weight, **conv(padding=(1, 1))))
        return [x]

    graph = record([rows((1, 3, 16, 4), 2, 4), w, w, w], body)
    found = check(graph, 4)
    assert kinds(found) == set()
    assert nbytes(found) == [n * 3 * (3 * 4 * 8) for n in (1, 2, 2, 1)]
    plan = plan_graph(graph, Cluster((0, 1, 2, 3)))
    assert plan.outputs[0].dims[2] == ("w",), "the result stays split"


def test_rows_and_batch_split_together() -> None:
    shape = (4, 3, 8, 5)
    x = TensorType(shape, float64, on(GRID, shape, {0: ("dp",), 2: ("sp",)}))
    graph = record([x, TensorType((2, 3, 3, 3), float64)], lambda _, x, w: [OPS["convolution"](x, w, **conv(padding=(1, 1)))])
    found = check(graph, 4)
    assert kinds(found) == set()
    assert nbytes(found) == [2 * 3 * 5 * 8] * 4, "one row of each worker's own part of the batch"


@pytest.mark.parametrize("dim", [0, 2, 3])
def test_rows_over_one_worker_are_whole(dim: int) -> None:
    """Windows over an axis of one worker were written in windows again, without an end."""
    shape = (2, 1, 6, 4)
    one = Mesh("one", (("dp", 1), ("tp", 2)), (0, 1))
    x = TensorType(shape, float64, on(one, shape, {dim: ("dp",)} | ({} if dim == 0 else {0: ("tp",)})))
    given = TensorType((2, 1, 2, 3), float64), TensorType((2, 2, 5, 2), float64)
    graph = record([x, *given], lambda _, x, w, g: [OPS["convolution"](x, w, **conv()), *gradients(x, w, g, conv())])
    check(graph, 2)


def gradients(x: Value, w: Value, g: Value, attrs: dict[str, Any]) -> list[Value]:
    return [
        OPS["convolution_input_grad"](g, w, shape=x.type.shape, **attrs),
        OPS["convolution_weight_grad"](g, x, shape=w.type.shape, **attrs),
    ]


def test_gradients_of_a_convolution_send_a_few_rows_and_one_sum() -> None:
    shape, weight = (2, 3, 16, 5), (4, 3, 3, 3)
    types = [rows(shape, 2, 4), TensorType(weight, float64), rows((2, 4, 16, 5), 2, 4)]
    graph = record(types, lambda _, x, w, g: gradients(x, w, g, conv(padding=(1, 1))))
    found = check(graph, 4)
    assert kinds(found) == {"all_reduce"}
    sums = [c.nbytes for c in found[0] if c.kind == "all_reduce"]
    assert sums == [2 * 3 * 4 * 3 * 3 * 3 * 8 // 4]
    halo = [sum(c.nbytes for c in each if c.kind == "send") for each in found]
    assert max(halo) == 2 * (2 * 3 * 5 * 8) + 2 * (2 * 4 * 5 * 8), "one row of x and one of g to each side"


@examples(150)
@given(st.integers(0, 2**32))
def test_any_convolution_and_its_gradients(seed: int) -> None:
    rng = Random(seed)
    spatial, k = rng.choice((1, 2, 2)), rng.choice((2, 3, 4))
    pick = lambda *options: tuple(rng.choice(options) for _ in range(spatial))  # noqa: E731
    groups = rng.choice((1, 1, 2))
    attrs = conv(
        stride=pick(1, 1, 2, 3), padding=pick(0, 1, 2), dilation=pick(1, 1, 2), transposed=rng.random() < 0.3,
        output_padding=(0,) * spatial, groups=groups,
    )  # fmt: skip
    if attrs["transposed"]:
        attrs["output_padding"] = tuple(rng.randint(0, max(s, d) - 1) for s, d in zip(attrs["stride"], attrs["dilation"], strict=True))
    kernel = pick(1, 2, 3, 4)
    shape = (rng.choice((1, 2, 4)), 2, *(rng.randint(4, 13) for _ in range(spatial)))
    weight = (2, 4 // groups, *kernel) if attrs["transposed"] else (4, 2 // groups, *kernel)
    try:
        (y,) = OPS["convolution"].infer_types((TensorType(shape, float64), TensorType(weight, float64)), tuple(attrs.items()))
    except (ValueError, RuntimeError):
        return
    if k == 4 and spatial == 2 and rng.random() < 0.5:
        mesh, dims = GRID, {0: ("dp",), 2: ("sp",)} if rng.random() < 0.5 and shape[0] > 1 else {2: ("dp",), 3: ("sp",)}
    else:
        mesh, dims = line(k), {rng.randint(2, 1 + spatial): ("w",)}
    fits = lambda s: {d: a for d, a in dims.items() if s[d] >= 4}  # noqa: E731
    types = [
        TensorType(shape, float64, on(mesh, shape, fits(shape))), TensorType(weight, float64),
        TensorType(y.shape, float64, on(mesh, y.shape, fits(y.shape) if rng.random() < 0.8 else {})),
    ]  # fmt: skip
    graph = record(types, lambda _, x, w, g: [OPS["convolution"](x, w, **attrs), *gradients(x, w, g, attrs)])
    check(graph, mesh.size, seed)


@examples(150)
@given(st.integers(0, 2**32))
def test_any_pooling_and_its_gradient(seed: int) -> None:
    rng, k = Random(seed), Random(seed + 1).choice((2, 3, 4))
    pick = lambda *options: (rng.choice(options), rng.choice(options))  # noqa: E731
    kernel = pick(1, 2, 4)
    attrs: dict[str, Any] = {"kernel": kernel, "stride": pick(1, 2, 3), "padding": tuple(rng.randint(0, n // 2) for n in kernel)}
    attrs |= {"ceil_mode": rng.random() < 0.4}
    largest = rng.random() < 0.5
    attrs |= {"dilation": pick(1, 1, 2)} if largest else {"count_include_pad": rng.random() < 0.5}
    if not largest:
        attrs |= {"kernel": (4, 2), "stride": (rng.choice((1, 2, 4)), rng.choice((1, 2))), "padding": (rng.randint(0, 2), rng.randint(0, 1))}
    shape = (2, 2, rng.randint(6, 13), rng.randint(6, 13))
    try:
        (y, *_) = OPS["max_pool" if largest else "avg_pool"].infer_types((TensorType(shape, float64),), tuple(attrs.items()))
    except (ValueError, RuntimeError):
        return
    x = rows(shape, rng.choice((2, 3)), k)
    if largest:
        g = rows(y.shape, 2, k) if y.shape[2] >= k and rng.random() < 0.8 else y

        def body(_: Recorder, x: Value, g: Value) -> list[Value]:
            value, places = OPS["max_pool"](x, **attrs)
            return [value, places, OPS["max_pool_backward"](g, places, shape=shape, **attrs)]

        graph = record([x, g], body)
    else:
        g = rows(y.shape, 2, k) if y.shape[2] >= k else y
        graph = record([x, g], lambda _, x, g: [OPS["avg_pool"](x, **attrs), OPS["avg_pool_backward"](g, shape=shape, **attrs)])
    check_close(graph, k, seed)


def check_close(graph: Graph, num_workers: int, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    inputs = [numbers.normal(size=v.type.shape) for v in graph.inputs]
    for a in inputs:
        a[numbers.random(a.shape) < 0.2] = -np.inf if len(graph.outputs) == 3 and a is inputs[0] else 0
    got = simulate_graph(graph, inputs, (), num_workers)
    for a, b in zip(got, evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
def test_pooling_sends_the_rows_its_windows_share(name: str) -> None:
    attrs: dict[str, Any] = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "ceil_mode": False}
    attrs |= {"dilation": (1, 1)} if name == "max_pool" else {"count_include_pad": True}
    call: Callable[..., Any] = OPS[name]
    graph = record([rows((1, 2, 16, 5), 2, 4)], lambda _, x: list(call(x, **attrs)) if name == "max_pool" else [call(x, **attrs)])
    numbers = np.random.default_rng(0).normal(size=(1, 2, 16, 5))
    for a, b in zip(simulate_graph(graph, [numbers], (), 4), evaluate(graph, [numbers]), strict=True):
        np.testing.assert_allclose(a, b)
    plan = plan_graph(graph, Cluster((0, 1, 2, 3)))
    found = [list(plan.programs[w].collectives) for w in range(4)]
    assert kinds(found) == set() and nbytes(found) == [n * 2 * 5 * 8 for n in (1, 2, 2, 1)]


def test_the_gradient_of_largest_sends_a_few_rows() -> None:
    attrs: dict[str, Any] = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "ceil_mode": False}
    shape = (1, 2, 16, 6)

    def body(_: Recorder, x: Value, g: Value) -> list[Value]:
        return [OPS["max_pool_backward"](g, OPS["max_pool"](x, **attrs)[1], shape=shape, **attrs)]

    found = check(record([rows(shape, 2, 4), rows((1, 2, 8, 3), 2, 4)], body), 4)
    assert kinds(found) == set()
    back = [sum(c.nbytes for c in each if c.type.shape[3] == 3) for each in found]
    assert back == [0, 2 * 48, 2 * 48, 2 * 48], "a row of g and one of places to the worker before; of floats and integers"


def test_neighbours_rows_are_no_fault_in_strict_mode() -> None:
    graph = record([rows((1, 2, 16, 5), 2, 4), TensorType((2, 2, 3, 3), float64)], lambda _, x, w: [OPS["convolution"](x, w, **conv(padding=(1, 1)))])
    check(replace(graph, options=PlanOptions(strict=True)), 4)


def test_a_kernel_of_one_row_needs_no_neighbour() -> None:
    types = [rows((2, 3, 8, 4), 2, 4), TensorType((5, 3, 1, 3), float64), rows((2, 5, 8, 4), 2, 4)]
    attrs = conv(padding=(0, 1))
    graph = record(types, lambda _, x, w, g: [OPS["convolution"](x, w, **attrs), *gradients(x, w, g, attrs)])
    found = check(graph, 4)
    assert {c.kind for each in found for c in each} == {"all_reduce"}
