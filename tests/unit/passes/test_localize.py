"""What a node becomes on one worker: padded shapes, attributes of the part, equal sizes in every collective."""

from __future__ import annotations

from gt.ir.graph import Coord, Graph, Node, Stage, Value
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS
from gt.ir.ops import collective
from gt.ir.types import TensorType, float64
from gt.ir.verify import verify
from gt.passes.context import Context
from gt.passes.insert_collectives import InsertCollectives
from gt.passes.localize import Localize
from gt.passes.propagate_sharding import PropagateSharding
from tests.property.sharding_graphs import everyone, record

FOUR = everyone(4)


def local(graph: Graph) -> Graph:
    context = Context(FOUR)
    for step in (PropagateSharding(), InsertCollectives(), Localize()):
        graph = step.run(graph, context)
        verify(graph)
    return graph


def moved(shape: tuple[int, ...], have: Sharding, want: Sharding) -> list[Node]:
    x, y = (Value(TensorType(shape, float64, s)) for s in (have, want))
    context = Context(FOUR)
    graph = Graph("g", (x,), (), (Node(collective.reshard, (x,), (y,)),), (y,), Stage.SHARDED)
    graph = Localize().run(InsertCollectives().run(graph, context), context)
    verify(graph)
    return list(graph.nodes)


def shapes(nodes: list[Node]) -> list[tuple[str, tuple[int, ...]]]:
    return [(n.op.name, n.output.type.shape) for n in nodes]


ROWS, COLUMNS = Sharding(FOUR, (("w",), ())), Sharding(FOUR, ((), ("w",)))
WHOLE, PENDING = Sharding.replicated(FOUR, 2), Sharding(FOUR, ((), ()), (("w", "sum"),))


def test_a_part_is_cut_from_padded_rows() -> None:
    pad, cut = moved((10, 6), WHOLE, ROWS)
    assert shapes([pad, cut]) == [("pad_end", (12, 6)), ("shard_slice", (3, 6))]
    assert cut.attr["start"] == Coord(0, (("w", 3),)) and cut.attr["size"] == 3


def test_collectives_have_equal_sizes_and_padding_is_cut_after() -> None:
    assert shapes(moved((10, 6), ROWS, WHOLE)) == [("all_gather", (12, 6)), ("unpad", (10, 6))]
    assert shapes(moved((8, 6), ROWS, WHOLE)) == [("all_gather", (8, 6))]
    assert shapes(moved((10, 6), ROWS, COLUMNS)) == [
        ("pad_end", (3, 8)), ("all_to_all", (12, 2)), ("unpad", (10, 2)),
    ]  # fmt: skip
    assert shapes(moved((10, 6), PENDING, ROWS)) == [("pad_end", (12, 6)), ("reduce_scatter", (3, 6))]
    assert shapes(moved((10, 6), PENDING, WHOLE)) == [("all_reduce", (10, 6))]


def test_a_whole_value_becomes_pending_on_the_first_worker_only() -> None:
    (node,) = moved((10, 6), WHOLE, PENDING)
    assert node.op.name == "partial_from_whole" and node.attr["index"] == Coord(0, (("w", 1),))


def test_a_part_becomes_pending_between_zeros_and_its_padding_is_cut() -> None:
    placed, cut = moved((10, 6), ROWS, PENDING)
    assert shapes([placed, cut]) == [("partial_from_part", (12, 6)), ("unpad", (10, 6))]
    assert placed.attr["start"] == Coord(0, (("w", 3),)) and placed.attr["whole"] == 12


def test_attributes_follow_the_part() -> None:
    def body(_: object, x: Value) -> list[Value]:
        counts = OPS["iota"](shape=(10, 6), dim=0, dtype=float64)
        return [OPS["add"](x, counts), OPS["reshape"](x, shape=(10, 2, 3))]

    graph = local(record([TensorType((10, 6), float64, ROWS)], body))
    at = {n.op.name: n for n in graph.nodes}
    assert at["iota"].attr["shape"] == (3, 6) and at["iota"].attr["offset"] == Coord(0, (("w", 3),))
    assert at["reshape"].attr["shape"] == (3, 2, 3)
    assert graph.outputs[0].type.shape == (3, 6) and graph.outputs[0].type.sharding == ROWS


def test_a_mask_knows_where_the_part_starts() -> None:
    graph = local(record([TensorType((10, 6), float64, ROWS)], lambda _, x: [OPS["amax"](x, dims=(0,), keepdim=False)]))
    mask = graph.nodes[0]
    assert mask.op.name == "mask_pad"
    assert mask.attr["start"] == Coord(0, (("w", 3),)) and mask.attr["size"] == 10


def test_whole_graphs_keep_their_nodes() -> None:
    graph = record([TensorType((10, 6), float64)], lambda _, x: [OPS["neg"](x)])
    context = Context(everyone(1))
    explicit = InsertCollectives().run(PropagateSharding().run(graph, context), context)
    assert Localize().run(explicit, context).nodes is explicit.nodes


def test_a_graph_without_nodes_has_local_inputs() -> None:
    assert local(record([TensorType((10, 6), float64, ROWS)], lambda _, x: [x])).outputs[0].type.shape == (3, 6)
