"""Each rule of each stage, broken once: the error names the fault, the node, the user's line and the nodes around
it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gt.ir.graph import Coord, Graph, Location, Node, Stage, Value
from gt.ir.ops import OPS
from gt.ir.text import parse_graph
from gt.ir.types import TensorType, float32
from gt.ir.verify import VerifyError, verify

LOC = Location("train.py", 7, "step", "y = x * 2")
TEXT = """gtir 1
mesh @all {w: 2} workers 0 1
graph @g sharded {
  input %x: f32[4@w]
  scalar %s: f32[]
  %a = exp(%x) : f32[4@w]
  %b = sin(%a) : f32[4@w]
  return %b
}
"""


def rebuilt(graph: Graph, at: int, **changes: object) -> Graph:
    nodes = list(graph.nodes)
    nodes[at] = replace(nodes[at], loc=LOC, **changes)  # type: ignore[arg-type]
    return replace(graph, nodes=tuple(nodes))


def fault(graph: Graph) -> str:
    with pytest.raises(VerifyError) as caught:
        verify(graph)
    return str(caught.value)


def test_a_valid_graph_passes_at_its_stage() -> None:
    verify(parse_graph(TEXT))
    verify(parse_graph(TEXT.replace("sharded", "local")))


def test_the_error_shows_where() -> None:
    graph = parse_graph(TEXT)
    text = fault(rebuilt(graph, 1, inputs=(Value(TensorType((9,), float32), "lost"),)))
    assert "operand 0 (%lost: f32[9]) is not defined" in text
    assert "train.py:7 in step: y = x * 2" in text
    assert "   0  %a = exp(%x)" in text and "->    1  %b = sin(%?)" in text


def test_ssa() -> None:
    graph = parse_graph(TEXT)
    a, b = graph.nodes
    assert "is not defined before the node" in fault(replace(graph, nodes=(b, a)))
    assert "is defined twice" in fault(replace(graph, nodes=(a, a, b)))
    assert "output 0" in fault(replace(graph, nodes=(a,)))
    assert "input 1 is listed twice" in fault(replace(graph, inputs=graph.inputs * 2))
    assert "donated" in fault(replace(graph, donated=frozenset({3})))
    assert "scalar 0 is not 0-d" in fault(replace(graph, scalars=(Value(graph.inputs[0].type),)))


def test_types_are_those_the_op_gives() -> None:
    graph = parse_graph(TEXT)
    wrong = Value(TensorType((5,), float32, graph.inputs[0].type.sharding))
    assert "result 0 is declared f32[5], sin gives f32[4]" in fault(rebuilt(graph, 1, outputs=(wrong,)))
    assert "sin takes x, got 2 operands" in fault(rebuilt(graph, 1, inputs=graph.inputs + graph.scalars))
    assert "reshape does not take these operands" in fault(
        rebuilt(graph, 1, op=OPS["reshape"], attrs=(("shape", (3,)),))
    )
    assert "0 results where sin gives 1" in fault(rebuilt(graph, 1, outputs=()))
    assert "an attribute is given twice" in fault(rebuilt(graph, 1, attrs=(("k", 1), ("k", 2))))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("scalar %s: f32[]", "scalar %s: f32[] unplaced", "has no sharding in a sharded graph"),
        ("%a = exp(%x) : f32[4@w]", "%a = exp(%x) : f32[4@w] +w", "uses a mesh axis twice"),
        (
            "%a = exp(%x) : f32[4@w]",
            '%a = all_reduce(%x, axes=("w",), reduce="sum") : f32[4@w]',
            "a collective in a sharded graph",
        ),
        ("%a = exp(%x) : f32[4@w]", "%a = grad(%s, %x, has_seed=false) : f32[4@w]", "a grad node is left"),
        ("%a = exp(%x) : f32[4@w]", "%a = exp(%x, k=coord(0, w*2)) : f32[4@w]", "an attribute that differs by worker"),
    ],
)
def test_rules_of_placed_graphs(old: str, new: str, why: str) -> None:
    assert old in TEXT
    assert why in fault(parse_graph(TEXT.replace(old, new)))


def test_attributes_that_differ_by_worker_are_read_as_the_first_worker_has_them() -> None:
    graph = parse_graph(TEXT.replace("sharded", "local"))
    cut = OPS["shard_slice"]
    attrs = (("axes", ("w",)), ("dim", 0), ("start", Coord(0, (("w", 4),))), ("size", 4))
    verify(rebuilt(graph, 1, op=cut, attrs=attrs))
    assert isinstance(graph.nodes[0], Node) and graph.stage is Stage.LOCAL
