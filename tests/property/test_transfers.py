"""Values sent from mesh to mesh, by whole programs on simulated workers: equal, and nobody gets what it has.

Repeat a failure with ``pytest tests/property/test_transfers.py --hypothesis-seed=N``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.ir.graph import Graph, Node, Stage, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.ops import OPS
from gt.ir.ops.collective import transfer
from gt.ir.program import Collective, Free
from gt.ir.tiles import Rows, Span, Tile, busiest, members, tiles
from gt.ir.types import Shape, TensorType, float64
from gt.ir.verify import verify
from gt.passes.context import Context
from gt.passes.localize import Localize
from gt.passes.pipeline import Pipeline
from gt.runtime.simulator import parts_of, simulate, simulate_local, whole_of
from tests.property.test_sharding_moves import EVERYONE, MESHES, any_placement

REST = Pipeline.parse("localize,bucket_collectives,fuse_hot_path,plan_memory,lower_programs")


def chain(rng: Random, shape: Shape, length: int) -> tuple[Graph, list[Sharding]]:
    """A value that goes from placement to placement, is computed with at each, and is kept at some."""
    placements = [any_placement(rng, rng.choice(MESHES), shape, partial=False) for _ in range(length + 1)]
    value = first = Value(TensorType(shape, float64, placements[0]), "x")
    nodes, outputs = [], []
    for have, want in zip(placements[:-1], placements[1:], strict=True):
        attrs = (("group", members(have, want, shape)),)
        moved, made = (Value(TensorType(shape, float64, want)) for _ in range(2))
        nodes += [Node(transfer, (value,), (moved,), attrs), Node(OPS["neg"], (moved,), (made,))]
        if rng.random() < 0.3:  # what is read once more later arrives no later
            outputs.append(moved)
        value = made
    outputs.append(value)
    if rng.random() < 0.5:  # receives stand where values are first read: not in the order in which they were sent
        nodes.sort(key=lambda node: node.op is not transfer and node.outputs[0] is not value)
        nodes = _ordered(nodes, first)
    return Graph("g", (first,), (), tuple(nodes), tuple(outputs), Stage.EXPLICIT), placements


def _ordered(nodes: list[Node], first: Value) -> list[Node]:
    done, order = {first}, []
    while nodes:
        node = next(n for n in nodes if all(v in done for v in n.inputs))
        nodes.remove(node)
        order.append(node)
        done.update(node.outputs)
    return order


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_any_placement_to_any_other_by_programs(seed: int) -> None:
    rng = Random(seed)
    shape = tuple(rng.choice((2, 3, 5, 6, 7, 12)) for _ in range(rng.randint(0, 3)))
    graph, placements = chain(rng, shape, rng.randint(1, 4))
    verify(graph)
    context = Context(EVERYONE)
    context.output_shardings = []
    REST.run(graph, context)
    assert context.programs is not None
    array = np.random.default_rng(seed).integers(-99, 99, shape).astype(float)
    parts = parts_of(array, placements[0], float64)
    results = simulate(context.programs, {w: [parts.get(w)] for w in EVERYONE.workers})
    for i, (value, placed) in enumerate(zip(graph.outputs, context.output_shardings, strict=True)):
        got = whole_of({w: results[w][i] for w in placed.mesh.workers}, placed, value.type)
        np.testing.assert_array_equal(np.abs(got), np.abs(array))


def most(found: Iterable[Tile]) -> tuple[int, int]:
    """Give the most elements that tiles have one worker send or get, and in how many messages."""
    away = [t for t in found if t.source != t.target]
    numel, count = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for tile in away:
        for end in (("sends", tile.source), ("gets", tile.target)):
            numel[end] += tile.numel
            count[end] += 1
    return max(numel.values(), default=0), max(count.values(), default=0)


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_each_worker_gets_just_what_it_lacks(seed: int) -> None:
    rng = Random(seed)
    shape = tuple(rng.choice((1, 2, 5, 6, 12)) for _ in range(rng.randint(1, 3)))
    have, want = (any_placement(rng, rng.choice(MESHES), shape, partial=False) for _ in range(2))
    found = tiles(have, want, shape)
    assert busiest(have, want, shape) == most(found)
    for w in want.mesh.workers:
        needed = np.zeros(shape, int)
        needed[tuple(slice(*b) for b in want.bounds(shape, w))] = 1
        for tile in found:
            if tile.target == w:
                where = tuple(slice(*b) for b in tile.box)
                assert all(a <= c and d <= b for (c, d), (a, b) in zip(tile.box, have.bounds(shape, tile.source), strict=True))
                needed[where] -= 1
                if w in have.mesh.workers and tile.source != w:
                    own = have.bounds(shape, w)
                    assert any(max(a, c) >= min(b, d) for (a, b), (c, d) in zip(tile.box, own, strict=True)), "it has that"
        assert not needed.any(), "each element once"


def test_copies_are_sent_by_different_holders_and_one_message_carries_a_part() -> None:
    line = lambda *workers: Mesh.line(workers)  # noqa: E731
    whole = Sharding.replicated(line(0, 1), 2)
    found = tiles(whole, Sharding.replicated(line(2, 3), 2), (4, 6))
    assert [(t.source, t.target) for t in found] == [(1, 2), (0, 3)], "the nearest first, then who has sent less"
    halves = Sharding(line(0, 1), (("w0_1",), ()))
    found = tiles(halves, Sharding(line(2, 3), (("w2_3",), ())), (4, 6))
    assert [(t.source, t.target, t.box) for t in found] == [(0, 2, ((0, 2), (0, 6))), (1, 3, ((2, 4), (0, 6)))]
    found = tiles(halves, Sharding(line(2, 1), ((), ("w2_1",))), (4, 6))
    assert [(t.source, t.target) for t in found] == [(0, 2), (1, 2), (0, 1), (1, 1)]


def test_both_ends_begin_in_one_order_and_only_reading_waits() -> None:
    """Two values go from worker 0 to worker 1, which reads the second first."""
    shape, zero, one = (2,), *(Sharding.replicated(Mesh.line((w,)), 1) for w in (0, 1))
    value = lambda placed: Value(TensorType(shape, float64, placed))  # noqa: E731
    x, a, b, at_a, at_b, y, z = (value(p) for p in (zero, zero, zero, one, one, one, one))
    send = lambda v, to: Node(transfer, (v,), (to,), (("group", (0, 1)),))  # noqa: E731
    nodes = (
        Node(OPS["neg"], (x,), (a,)), send(a, at_a), Node(OPS["exp"], (x,), (b,)), send(b, at_b),
        Node(OPS["neg"], (at_b,), (y,)), Node(OPS["add"], (y, at_a), (z,)),
    )  # fmt: skip
    context = Context(Mesh.line((0, 1)))
    REST.run(Graph("g", (x,), (), nodes, (z,), Stage.EXPLICIT), context)
    assert context.programs is not None
    kinds = {w: [s.kind if isinstance(s, Collective) else s.nodes[0].op for s in p.steps if not isinstance(s, Free)]
             for w, p in context.programs.items()}  # fmt: skip
    assert kinds == {0: ["neg", "send", "exp", "send"], 1: ["receive", "receive", "wait", "neg", "wait", "add"]}
    assert [[c.number for c in p.collectives] for p in context.programs.values()] == [[0, 1], [0, 1, 1, 0]]
    results = simulate(context.programs, {w: [np.array([1.0, 2.0]) if w == 0 else None] for w in (0, 1)})
    np.testing.assert_allclose(results[1][0], -np.exp([1.0, 2.0]) - [1.0, 2.0])


def any_spans(rng: Random, size: int) -> tuple[tuple[Span, ...], int]:
    """A few spans of a dim, apart, some backwards, some spread; and how many rows the result has."""
    if rng.random() < 0.3:
        return (Span(0, 0, size),), size
    spans, at = [], rng.randint(0, 3)
    for _ in range(rng.randint(0, 3)):
        count, step, spread = rng.randint(1, size), rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 1, 2, 3))
        count = min(count, (size - 1) // step + 1)
        start = rng.randint(0, size - 1 - (count - 1) * step)
        turned = rng.random() < 0.3
        spans.append(Span(at, start + (count - 1) * step if turned else start, count, -step if turned else step, spread))
        at += (count - 1) * spread + 1 + rng.randint(0, 2)
    return tuple(spans), max(1, at + rng.randint(0, 2))


def rows_by_numpy(x: np.ndarray, rows: Rows) -> np.ndarray:
    out = np.full(rows.shape, rows.fill, x.dtype)
    at = [[s.at + i * s.spread for s in spans for i in range(s.count)] for spans in rows.spans]
    taken = [[s.start + i * s.step for s in spans for i in range(s.count)] for spans in rows.spans]
    out[np.ix_(*at)] = x[np.ix_(*taken)]
    return out


@settings(max_examples=500)
@given(st.integers(0, 2**32))
def test_rows_of_a_value_by_programs_and_node_by_node(seed: int) -> None:
    rng = Random(seed)
    shape = tuple(rng.choice((1, 2, 3, 5, 6, 7, 12)) for _ in range(rng.randint(1, 3)))
    spans, sizes = zip(*(any_spans(rng, n) for n in shape), strict=True)
    rows = Rows(spans, sizes, rng.choice((0.0, 7.0)))
    have = any_placement(rng, rng.choice(MESHES), shape, partial=False)
    want = any_placement(rng, have.mesh if rng.random() < 0.7 else rng.choice(MESHES), rows.shape, partial=False)
    assert busiest(have, want, shape, rows) == most(tiles(have, want, shape, rows))
    x, y = Value(TensorType(shape, float64, have), "x"), Value(TensorType(rows.shape, float64, want), "y")
    attrs = (("group", members(have, want, shape, rows)), ("rows", rows.attr), ("sizes", rows.shape), ("fill", rows.fill))
    graph = Graph("g", (x,), (), (Node(transfer, (x,), (y,), attrs),), (y,), Stage.EXPLICIT)
    verify(graph)
    array = np.random.default_rng(seed).integers(-99, 99, shape).astype(float)
    expected = rows_by_numpy(array, rows)
    context = Context(EVERYONE)
    local = Localize().run(graph, context)
    verify(local)
    (got,) = simulate_local(local, [parts_of(array, have, float64)])
    np.testing.assert_array_equal(whole_of(got, want, y.type), expected)
    context = Context(EVERYONE)
    REST.run(graph, context)
    assert context.programs is not None
    parts = parts_of(array, have, float64)
    results = simulate(context.programs, {w: [parts.get(w)] for w in EVERYONE.workers})
    np.testing.assert_array_equal(whole_of({w: results[w][0] for w in want.mesh.workers}, want, y.type), expected)
    sent = sum(c.nbytes for p in context.programs.values() for c in p.collectives)
    assert sent == 8 * sum(t.numel for t in tiles(have, want, shape, rows) if t.source != t.target)
