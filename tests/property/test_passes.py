"""The pass laws on random graphs: valid in, valid out, the same bits, the same object back when there is nothing to
do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gt.ir.evaluate import as_dtype, evaluate, evaluate_node
from gt.ir.graph import Graph, Node, Rewriter, Value
from gt.ir.mesh import Mesh
from gt.ir.opdef import emitting
from gt.ir.ops import OPS
from gt.ir.program import Compute, Free, Program, unpack_attrs
from gt.ir.text import parse_graph, print_graph
from gt.ir.types import DType, float64
from gt.ir.verify import verify
from gt.passes.context import Context
from gt.passes.emit import NodeEmitter
from gt.passes.pipeline import DEFAULT, Pipeline
from gt.passes.plan import Cluster
from gt.passes.plan_memory import Storage
from tests.property.random_graphs import arrays, graphs, same_bits
from tests.property.sharding_graphs import Case, cases

CLEANING = [
    "decompose",
    "decompose{all=true}",
    "simplify",
    "cse",
    "dce",
    "simplify,cse,dce",
    "cse,simplify,simplify,dce",
    "keep_narrow{least=1,away=1}",
]
ONE = Mesh("all", (("w", 1),), (0,))


def same(expected: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> bool:
    return len(expected) == len(got) and all(same_bits(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("pipeline", CLEANING)
@given(graph=graphs(), seed=st.integers(0, 99))
def test_cleaning_keeps_every_bit(pipeline: str, graph: Graph, seed: int) -> None:
    inputs, scalars = arrays(graph, seed)
    expected = evaluate(graph, inputs, scalars)
    after = Pipeline.parse(pipeline).run(graph, Context(ONE), verify="each")
    assert same(expected, evaluate(after, inputs, scalars))
    assert len(after.inputs) == len(graph.inputs) and after.donated == graph.donated


@given(graphs())
def test_same_object_back_when_nothing_changed(graph: Graph) -> None:
    for step in DEFAULT.passes[:6]:
        for _ in range(8):  # simplify works through the graph once per run
            after = step.run(graph, Context(ONE))
            if after is graph:
                break
            graph = after
        assert step.run(graph, Context(ONE)) is graph, step.name


@given(graphs(), st.integers(0, 99), st.sampled_from(["", "simplify", "cse", "dce", "fuse_hot_path", "plan_memory"]))
def test_programs_compute_the_graph(graph: Graph, seed: int, left_out: str) -> None:
    """One worker's program, run with memory as shared as the plan says, gives the bits of the graph."""
    inputs, scalars = arrays(graph, seed)
    expected = evaluate(graph, inputs, scalars)
    names = [name for name in str(DEFAULT).split(",") if name != left_out]
    context = Context(ONE)
    lowered = Pipeline.parse(",".join(names)).run(graph, context, verify="each")
    assert context.programs is not None and len(context.output_shardings) == len(lowered.outputs)
    program = msgspec.msgpack.decode(msgspec.msgpack.encode(context.programs[0]), type=Program)
    assert program == context.programs[0]
    got, after = run_program(program, inputs, scalars)
    assert same(expected, got)
    for i, (before, now) in enumerate(zip(inputs, after, strict=True)):
        if i not in graph.donated:
            assert same_bits(before, now), f"input {i} was overwritten and is not donated"


def run_program(program: Program, inputs: Sequence[np.ndarray], scalars: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Run a program whose in-place nodes really overwrite: what else reads that memory later computes a wrong value."""
    buffers = [np.array(a) for a in inputs]
    slots: dict[int, Any] = {slot: buffers[i] for i, slot in program.inputs}
    with np.errstate(all="ignore"):
        for (slot, name), number in zip(program.scalars, scalars, strict=True):
            slots[slot] = as_dtype(number, DType.by_name[name])
    for step in program.steps:
        if isinstance(step, Free):
            for slot in step.slots:
                del slots[slot]
            continue
        assert isinstance(step, Compute)
        values = {slot: slots[slot] for slot in step.inputs}
        inplace = dict(step.inplace)
        for i, node in enumerate(step.nodes):
            types = [t.tensor_type for t in node.types]
            results = list(
                evaluate_node(OPS[node.op], [values[s] for s in node.inputs], unpack_attrs(node.attrs), types)
            )
            if i not in inplace and not OPS[node.op].view:
                results = [np.array(r) for r in results]
            for result, operand in inplace.get(i, ()):
                target = values[node.inputs[operand]]
                target[...] = results[result]
                results[result] = target
            values.update(zip(node.outputs, results, strict=True))
        slots.update((slot, values[slot]) for slot in step.outputs)
    outputs = [slots[slot] for _, slot in program.outputs]
    assert set(slots) == {slot for _, slot in program.outputs}, "slots are left that nothing reads"
    return outputs, buffers


@given(graphs())
def test_outputs_own_their_memory(graph: Graph) -> None:
    context = Context(ONE)
    after = Pipeline.parse("plan_memory").run(graph, context, verify="each")
    storage = Storage(after)
    roots = [storage.root[v] for v in after.outputs]
    assert len(set(roots)) == len(roots) and not {*after.inputs, *after.scalars} & set(roots)
    assert context.memory is not None
    biggest = max((v.type.nbytes for v in after.values if storage.root[v] is v), default=0)
    live = sum(v.type.nbytes for v in after.inputs)
    assert context.memory.peak_nbytes[0] >= max(live, biggest)
    assert context.memory.peak_nbytes[0] <= sum(v.type.nbytes for v in after.values)


@given(graph=graphs(dtype=float64, smooth=True, max_nodes=8), seed=st.integers(0, 99))
def test_gradients_against_finite_differences(graph: Graph, seed: int) -> None:
    tracked = with_gradient(graph)
    verify(tracked)
    inputs, scalars = arrays(graph, seed)
    values = evaluate(graph.with_nodes(graph.nodes, graph.values), inputs, scalars)
    assume(all(np.abs(a).max(initial=0) < 20 for a in values))  # steep functions have no finite differences to speak of
    expanded = Pipeline.parse("autodiff,simplify,cse,dce").run(tracked, Context(ONE), verify="each")
    assert not any(n.op.effect == "grad" or n.taped for n in expanded.nodes)
    loss, *grads = evaluate(expanded, inputs, scalars)
    assume(all(np.abs(g).max(initial=0) < 50 for g in grads))
    rng = np.random.default_rng(seed)
    for i, grad in enumerate(grads):
        way = rng.normal(size=grad.shape)
        step = 1e-5
        moved = [[*inputs[:i], inputs[i] + sign * step * way, *inputs[i + 1 :]] for sign in (1, -1)]
        high, low = (evaluate(tracked_loss(graph), at, scalars)[0] for at in moved)
        slope = (high - low) / (2 * step)
        assert np.allclose((grad * way).sum(), slope, rtol=1e-4, atol=1e-4 * max(1.0, abs(float(loss))))


def tracked_loss(graph: Graph) -> Graph:
    """Give the graph whose one output is the sum of the sines of the last value, so that gradients stay small."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        rewriter.copy(node)
    emit = NodeEmitter(rewriter)
    emit.taped = True
    with emitting(emit):
        last = OPS["sin"](graph.nodes[-1].output)
        loss = OPS["sum"](last, dims=tuple(range(last.type.ndim)), keepdim=False, dtype=float64)
    return graph.with_nodes(rewriter.nodes, [loss])


def with_gradient(graph: Graph) -> Graph:
    graph = tracked_loss(graph)
    (loss,) = graph.outputs
    node = Node(OPS["grad"], (loss, *graph.inputs), tuple(Value(v.type) for v in graph.inputs), (("has_seed", False),))
    return graph.with_nodes((*graph.nodes, node), (loss, *node.outputs))


@given(cases(max_nodes=15))
def test_every_stage_of_a_sharded_graph_is_valid_and_prints(case: Case) -> None:
    def look(name: str, before: Graph, after: Graph, seconds: float) -> None:
        assert parse_graph(print_graph(after)) == after, name

    context = Context(Cluster(tuple(range(case.num_workers))).mesh)
    DEFAULT.run(case.graph, context, verify="each", on_pass=look)
    assert context.programs is not None
    members: dict[int, set[object]] = {}
    channels: dict[tuple[object, ...], list[int]] = {}
    for program in context.programs.values():
        meetings = [c for c in program.collectives if c.kind not in ("send", "receive", "wait")]
        numbers = [c.number for c in meetings]
        assert numbers == sorted(set(numbers)), "collectives are issued in plan order"
        for c in program.collectives:
            assert program.worker in c.group
            if c not in meetings:
                channels.setdefault((c.kind, c.group), []).append(c.number)
        for c in meetings:
            members.setdefault(c.number, set()).add((c.kind, c.group, c.attrs))
            assert all(c.number in [o.number for o in context.programs[w].collectives] for w in c.group)
    assert all(len({kind for kind, _, _ in seen}) == 1 for seen in members.values())  # type: ignore[misc]
    for (kind, group), numbers in channels.items():
        if kind != "wait":
            assert numbers == sorted(set(numbers)), "they begin in plan order"
            waited = sorted(n for n in channels["wait", group] if n in numbers)  # what travels may have the same group
            assert numbers == channels["receive" if kind == "send" else "send", group] == waited
