"""Collectives that take long begin as soon as what they send is there and are waited for where they are first read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gt.ir.graph import Graph, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS
from gt.ir.program import Collective, Compute, Program
from gt.ir.signals import PlanOptions
from gt.ir.text import parse_graph, print_program
from gt.ir.types import TensorType, float32
from gt.ir.verify import verify
from gt.passes.context import Context, Region
from gt.passes.cost import H100
from gt.passes.estimate import estimate
from gt.passes.gather_again import GatherAgain
from gt.passes.pipeline import DEFAULT
from gt.passes.plan import Cluster, plan_graph
from gt.passes.schedule import overlap, schedule
from gt.passes.timeline import timeline
from gt.passes.transfers import Half
from gt.passes.work import node_work
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
    graph = replace(step(sharded=True), options=PlanOptions(memory_limit=1 << 40))
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
        assert node_work(node) == 2 * 5 * (8 * 8) * 3 * 9


def moved(body: str) -> list[str]:
    """Give the order, by the values made, of a LOCAL graph's nodes once all its collectives have been moved forward."""
    text = f"gtir 1\nmesh @all {{w: 4}} workers 0 1 2 3\ngraph @g local {{\n{body}\n}}\n"
    graph = parse_graph(text)
    order = overlap(graph, schedule(graph), lambda node: True)
    assert set(order) == set(graph.nodes)
    verify(graph.with_nodes(order))
    return [node.output.hint for node in order]


def test_what_is_done_to_a_value_to_send_it_serves_all_that_send_it() -> None:
    order = moved(
        """
  input %x: f32[8, 2@w]
  input %a: f32[2@w, 8]
  input %b: f32[2@w, 8]
  %n = permute(%x, dims=(1, 0)) : f32[2@w, 8]
  %t = all_to_all(%n, axes=("w",), src=0, dst=1, parts=4) : f32[8, 2@w]
  %y = relu(%t) : f32[8, 2@w]
  %g1 = all_gather(%a, axes=("w",), dim=0, parts=4) : f32[8, 8]
  %y1 = matmul(%g1, %y) : f32[8, 2@w]
  %g2 = all_gather(%b, axes=("w",), dim=0, parts=4) : f32[8, 8]
  %y2 = matmul(%g2, %y1) : f32[8, 2@w]
  %g3 = all_gather(%n, axes=("w",), dim=0, parts=4) : f32[8, 8]
  %y3 = matmul(%g3, %y2) : f32[8, 2@w]
  return %y3"""
    )
    assert order.index("n") < order.index("t") < order.index("y"), "the first that sends it does not wait for a gather's turn"


def test_a_gather_needed_first_does_not_wait_for_one_of_the_same_value_needed_late() -> None:
    order = moved(
        """
  input %x: f32[8, 2@w]
  input %a: f32[2@w, 8]
  input %p: f32[8, 8] +w
  %g0 = all_gather(%a, axes=("w",), dim=0, parts=4) : f32[8, 8]
  %y0 = relu(%g0) : f32[8, 8]
  %n = permute(%x, dims=(1, 0)) : f32[2@w, 8]
  %late = all_gather(%n, axes=("w",), dim=0, parts=4) : f32[8, 8]
  %early = all_gather(%n, axes=("w",), dim=0, parts=4) : f32[8, 8]
  %y1 = matmul(%y0, %early) : f32[8, 8]
  %s = all_reduce(%p, axes=("w",), reduce="sum", parts=4) : f32[8, 8]
  %y2 = matmul(%y1, %s) : f32[8, 8]
  %y3 = matmul(%y2, %late) : f32[8, 8]
  return %y3"""
    )
    assert order.index("n") < order.index("early") < order.index("y0"), "it travels while what stands before computes"


def test_inputs_that_are_moved_are_gathered_like_those_that_are_there() -> None:
    """Weights that come in rows and live in columns from now on: each is whole near its uses only, and again for the far one."""
    names = range(4)
    lines = [f"  input %p{i}: f32[8@w, 8]" for i in names] + ["  input %x0: f32[8, 8]"]
    lines += [f'  %m{i} = all_to_all(%p{i}, axes=("w",), src=0, dst=1) : f32[8, 8@w]' for i in names]
    for i in names:
        lines += [f'  %w{i} = all_gather(%m{i}, axes=("w",), dim=1) : f32[8, 8]', f"  %x{i + 1} = matmul(%x{i}, %w{i}) : f32[8, 8]"]
    lines += [f"  %x{8 - i} = matmul(%x{7 - i}, %w{i}) : f32[8, 8]" for i in reversed(names)]
    text = "gtir 1\nmesh @all {w: 4} workers 0 1 2 3\ngraph @g explicit {\n" + "\n".join(lines) + "\n  return %x8, %m0, %m1, %m2, %m3\n}\n"
    graph = replace(parse_graph(text), options=PlanOptions("search"))
    again = GatherAgain().run(graph, Context(MESH))
    verify(again)
    assert Counter(n.output.hint for n in again.nodes if n.op.name == "all_gather") == {"w0": 2, "w1": 2, "w2": 1, "w3": 1}
    order = schedule(again)
    readers = [{user for user, _ in again.uses[n.output]} for n in order if n.op.name == "all_gather"]
    firsts = [min(order.index(user) for user in found) for found in readers]
    assert firsts == sorted(firsts) and order.index(again.producer[graph_value(again, "x1")]) < [
        i for i, n in enumerate(order) if n.op.name == "all_gather"
    ][-1], "joined one by one, not all at the start"


def graph_value(graph: Graph, hint: str) -> Value:
    return next(v for v in graph.values if v.hint == hint)


@pytest.mark.parametrize("waits", [0, 1])
def test_a_role_that_waits_for_a_collective_meets_one_that_only_begins_it(waits: int) -> None:
    graph = parse_graph(
        """gtir 1
mesh @all {w: 2} workers 0 1
graph @g local {
  input %x: f32[8] +w
  %s = all_reduce(%x, axes=("w",), reduce="sum", parts=2) : f32[8]
  %y = relu(%s) : f32[8]
  %z = neg(%x) : f32[8] +w
  return %y, %z
}
"""
    )
    s, y, z = graph.nodes
    apart = [(Half(s, False), [s]), (Region((z,)), [z]), (Half(s, True), [s]), (Region((y,)), [y])]
    parts = {waits: [(s, [s]), (Region((y,)), [y])], 1 - waits: apart}
    found = timeline({0: (0,), 1: (1,)}, parts.__getitem__, lambda nodes: 5.0 if nodes == [z] else 1.0, lambda node: 3.0, H100)
    assert found.busy == {waits: 3.0 + 1.0, 1 - waits: 5.0 + 1.0}, "one computes while it travels"
    assert found.seconds == 6.0


WHOLE = 4 * WIDTH**2  # bytes of a weight, and of its gradient


def under_way(program: Program) -> int:
    """Give how many reduce_scatters travel at once."""
    most = 0
    coming: set[int] = set()
    for s in program.collectives:
        if s.kind == "reduce_scatter" and s.begins:
            coming.add(s.output)
        elif s.kind == "wait":
            coming.discard(s.output)
        most = max(most, len(coming))
    return most


def test_gradients_that_travel_are_whole_one_at_a_time_if_memory_is_limited() -> None:
    limited = replace(step(sharded=True), options=PlanOptions(memory_limit=1 << 40))
    program, free = (plan_graph(g, Cluster((0, 1, 2, 3))).programs[0] for g in (limited, step(sharded=True)))
    assert under_way(program) == 1 and any(s.begins for s in program.collectives), "one travels while the next is made"
    assert under_way(free) == LAYERS
    assert program.peak_nbytes <= 5.6 * WHOLE, "3.5 without what is sent and what comes of one of them, 11 with all of them"


def test_the_peak_counts_what_travels() -> None:
    free = plan_graph(step(sharded=True), Cluster((0, 1, 2, 3))).programs[0]
    assert free.peak_nbytes >= LAYERS * 2 * WHOLE
