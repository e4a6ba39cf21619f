"""What the printed form looks like, and that the parser's errors name the place. Round trips: tests/property."""

from __future__ import annotations

import pytest

from gt.ir.graph import Graph, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.text import ParseError, parse_graph, print_graph
from gt.ir.types import TensorType, float32

# Workers of its own: equal types are one object, which shows the name that an equal mesh had first in this process.
GOOD = """gtir 1
mesh @all {dp: 2, tp: 2} workers 40 41 42 43
signal @mlp {"shard": {"axis": 1}}
graph @step explicit {
  input %x: f32[4@dp, 8@tp] donated
  scalar %lr: f32[]
  %y = sum(%x, dims=(1,), keepdim=false, dtype=f32) : f32[4@dp] +tp taped signal @mlp loc L1 ; 32 flops, 16 bytes
  return %y, %lr
}
loc L1 "train.py" 3 "<module>" "y = x.sum(1)"
"""


def test_placement_stands_inside_the_shape() -> None:
    graph = parse_graph(GOOD)
    assert repr(graph.inputs[0].type) == "f32[4@dp, 8@tp] on all"
    assert repr(graph.nodes[0].output.type) == "f32[4@dp] +tp on all"
    assert graph.donated == {0} and graph.nodes[0].taped and graph.nodes[0].signal == "mlp"
    assert str(graph.nodes[0].loc) == "train.py:3"
    assert print_graph(graph, locations=True) == GOOD  # with the remark, which is the reason of what a pass inserted


def test_names_are_kept_and_numbered() -> None:
    values = tuple(Value(TensorType((), float32), hint) for hint in ("x", "", "x", "", "0", "a b"))
    text = print_graph(Graph("g", values, (), (), values))
    assert 'return %x, %0, %x#2, %1, %"0", %"a b"' in text


def test_meshes_of_one_name_stay_apart() -> None:
    a, b = Mesh("all", (("w", 2),), (0, 1)), Mesh("all", (("w", 2),), (2, 3))
    values = tuple(Value(TensorType((4,), float32, Sharding(m, (("w",),)))) for m in (a, b))
    graph = Graph("g", values, (), (), values)
    text = print_graph(graph)
    assert "mesh @all {w: 2} workers 0 1\nmesh @all_2 {w: 2} workers 2 3\n" in text
    back = parse_graph(text)
    assert back == graph and back.inputs[1].type.sharding is not None
    assert back.inputs[1].type.sharding.mesh.workers == (2, 3)


@pytest.mark.parametrize(
    ("old", "new", "place", "why"),
    [
        ("gtir 1", "gtir 2", "line 1, column 6", "this is gtir 2"),
        ("workers 40 41 42 43", "workers 40 41", "line 2, column 6", "does not hold"),
        ('{"shard"', '{"shart"', "line 3, column 13", "shart"),
        ("explicit", "final", "line 4, column 13", "unknown stage final"),
        ("@dp, 8@tp] donated", "@pp, 8@tp] donated", "line 5, column 13", "no axis pp"),
        ("input %x: f32", "input %x: f31", "line 5, column 13", "unknown dtype f31"),
        ("scalar %lr", "scalar %x", "line 6, column 10", "%x is defined twice"),
        ("sum(%x", "som(%x", "line 7, column 8", "unknown op som"),
        ("sum(%x", "sum(%z", "line 7, column 12", "%z is not defined above"),
        ("dims=(1,)", "dims=(1,", "line 7, column 24", "expected a value, got ,"),
        ("keepdim=false", "keepdim=maybe", "line 7, column 35", "expected a value, got maybe"),
        ("loc L1 ;", "loc L2 ;", "line 7, column 91", "location L2 is not in the table"),
        ("return %y, %lr\n}", "return %y, %lr\n", "line 4, column 22", "the graph's { is never closed"),
        ("%y = sum", "%y, %z = sum", "line 7, column 3", "2 results but 1 types"),
        ("scalar", "\x00", "line 6, column 3", "unexpected"),
    ],
)
def test_errors_name_line_and_column(old: str, new: str, place: str, why: str) -> None:
    assert old in GOOD
    with pytest.raises(ParseError) as caught:
        parse_graph(GOOD.replace(old, new))
    assert place in str(caught.value) and why in str(caught.value), str(caught.value)
