"""Collectives that take long begin as soon as what they send is there and are waited for where they are first read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gt.ir.graph import Graph, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS
from gt.ir.program import Collective, Compute, Program
from gt.ir.signals import PlanOptions
from gt.ir.text import print_program
from gt.ir.types import TensorType, float32
from gt.passes.context import Context
from gt.passes.estimate import estimate, work
from gt.passes.pipeline import DEFAULT
from gt.passes.plan import Cluster, plan_graph
from gt.runtime.layout import lay_out
from gt.runtime.render import render_driver
from tests.property.sharding_graphs import Recorder, record

MESH = Mesh("all", (("w", 4),), (0, 1, 2, 3))
WIDTH, LAYERS = 4096, 4


def placed(shape: tuple[int, ...], *dims: tuple[str, ...]) -> TensorType:
    return TensorType(shape, float32, Sharding(MESH, dims or ((),) * len(shape)))


def step(sharded: bool) -> Graph:
    """Layers of large weights, forward, backward, and a plain update of each weight; rows of the batch are split."""
    weight = placed((WIDTH, WIDTH), ("w",), ()) if sharded else placed((WIDTH, WIDTH))

    def body(_: Recorder, x: Value, rate: Value, *weights: Value) -> list[Value]:
        kept = [x]
        for w in weights:
            kept.append(OPS["relu"](OPS["matmul"](kept[-1], w)))
        g = kept[-1]
        new = []
        for w, h in zip(reversed(weights), reversed(kept[:-1]), strict=True):
            back = OPS["matmul"](OPS["permute"](h, dims=(1, 0)), g)
            g = OPS["matmul"](g, OPS["permute"](w, dims=(1, 0)))
            new.append((w, back))
        return [OPS["sub"](w, OPS["mul"](back, rate)) for w, back in new]

    graph = record([placed((4096, WIDTH), ("w",), ()), placed(()), *([weight] * LAYERS)], body)
    updates = {v for v in graph.outputs}
    assert len(updates) == LAYERS
    return graph


def walk(program: Program) -> list[str]:
    """Give the steps: what region computes how many products, and collectives with their numbers."""
    found = []
    for s in program.steps:
        if isinstance(s, Collective):
            found.append(f"{'begin ' if s.begins else ''}{s.kind} {s.number}")
        elif isinstance(s, Compute):
            found.append("+".join(n.op for n in s.nodes if n.op in ("matmul", "sub")) or "-")
    return found


def test_gradients_of_data_parallel_travel_during_the_backward() -> None:
    program = plan_graph(step(sharded=False), Cluster((0, 1, 2, 3))).programs[0]
    steps = walk(program)
    begins = [i for i, s in enumerate(steps) if s.startswith("begin all_reduce")]
    waits = [i for i, s in enumerate(steps) if s.startswith("wait")]
    assert len(begins) == LAYERS and len(waits) == LAYERS, "the last travels while weights are updated"
    for a, b in zip(begins, begins[1:], strict=False):
        assert any("matmul" in s for s in steps[a:b]), "the backward goes on between two buckets"
    assert waits[0] > begins[-1]
    assert all("sub" in s or s.startswith(("wait", "all_reduce")) for s in steps[waits[0] :])
    numbers = [s.split()[-1] for s in steps if s.startswith(("begin", "all_reduce"))]
    assert numbers == sorted(numbers, key=int)


def test_the_dump_shows_begin_and_wait() -> None:
    program = plan_graph(step(sharded=False), Cluster((0, 1, 2, 3))).programs[0]
    text = print_program(program)
    assert text.count("= begin all_reduce(") == LAYERS and text.count("= wait(") == LAYERS
    driver = render_driver(lay_out(program)).text
    assert driver.count("# begin all_reduce#") == LAYERS and driver.count("# wait#") == LAYERS
    between = driver[driver.index("# begin all_reduce#0") : driver.index("# wait#0")]
    assert between.count("= region") == LAYERS - 1, "the other layers' backward"


def test_the_next_parameters_are_joined_while_a_layer_computes() -> None:
    program = plan_graph(step(sharded=True), Cluster((0, 1, 2, 3))).programs[0]
    steps = walk(program)
    gathers = [i for i, s in enumerate(steps) if "all_gather" in s]
    assert len(gathers) >= LAYERS and sum(steps[i].startswith("begin") for i in gathers) >= len(gathers) - 2
    alive = most = 0
    for s in steps:  # never more than the one in use and the next
        alive += s.startswith("begin all_gather")
        alive -= s.startswith("wait") and alive > 0
        most = max(most, alive)
    assert most <= 2


def test_gathers_stay_where_they_are_needed_if_memory_is_limited() -> None:
    graph = replace(step(sharded=True), options=PlanOptions(memory_bytes=1 << 40))
    steps = walk(plan_graph(graph, Cluster((0, 1, 2, 3))).programs[0])
    assert not any(s.startswith("begin all_gather") for s in steps)


def test_small_collectives_are_not_worth_a_cut() -> None:
    types = [placed((8, 4), ("w",), ()), placed((4, 4)), placed((4, 4))]

    def body(_: Recorder, x: Value, a: Value, b: Value) -> list[Value]:
        h = OPS["matmul"](x, a)
        first = OPS["matmul"](OPS["permute"](x, dims=(1, 0)), h)
        return [OPS["neg"](first), OPS["matmul"](h, b)]

    program = plan_graph(record(types, body), Cluster((0, 1, 2, 3))).programs[0]
    assert [s.kind for s in program.collectives] == ["all_reduce"] and not program.collectives[0].begins


def test_the_estimate_reckons_with_it() -> None:
    def seconds(pipeline: str) -> tuple[float, float]:
        context = Context(MESH)
        graph = type(DEFAULT).parse(pipeline).run(step(sharded=False), context)
        found = estimate(graph, context)
        return found.seconds, found.compute_s + found.comm_s

    now, apart = seconds(str(DEFAULT))
    assert now < 0.8 * apart, "the buckets travel beside the backward"
    late, one_by_one = seconds(str(DEFAULT).replace("fuse_hot_path", "fuse_hot_path{overlap_s=1.0}"))
    assert late == pytest.approx(one_by_one)


def test_the_work_of_a_convolution_is_counted_once_for_each_product() -> None:
    attrs = (("stride", (2, 1)), ("padding", (1, 1)), ("dilation", (1, 1)), ("transposed", False), ("output_padding", (0, 0)), ("groups", 1))
    types = tuple(TensorType(s, float32) for s in ((2, 3, 16, 8), (5, 3, 3, 3), (5,)))
    for operands in (types[:2], types):
        values = tuple(Value(t) for t in operands)
        node = Node(OPS["convolution"], values, tuple(map(Value, OPS["convolution"].infer_types(operands, attrs))), attrs)
        assert work(node) == 2 * 5 * (8 * 8) * 3 * 9
