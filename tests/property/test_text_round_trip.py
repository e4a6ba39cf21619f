"""Every graph prints to text that parses back to an equal graph, at every stage; so does the wire form."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gt.ir.dot import to_dot, to_json
from gt.ir.graph import AttrValue, Coord, Graph, Node, Stage, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.ops import OPS
from gt.ir.program import WireGraph, decode_graph, encode_graph
from gt.ir.text import parse_graph, print_graph
from gt.ir.types import DTYPES, TensorType, float32
from tests.property.random_graphs import graphs

MESHES = [
    Mesh("all", (("w", 4),), (0, 1, 2, 3)),
    Mesh("all", (("dp", 2), ("tp", 2)), (3, 1, 0, 2)),
    Mesh("odd name", (("w", 1),), (7,)),
]
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(DTYPES)
)
coords = st.builds(
    Coord, st.integers(-9, 9), st.lists(st.tuples(st.sampled_from(["w", "a b"]), st.integers(-9, 9))).map(tuple)
)
values = st.recursive(scalars | coords, lambda v: st.lists(v, max_size=3).map(tuple), max_leaves=6)
attr_names = st.sampled_from(["k", "nan", "inf", "taped", "none", "coord", "dims", "x1"])


@given(graphs())
def test_text(graph: Graph) -> None:
    for locations in (False, True):
        text = print_graph(graph, locations=locations)
        back = parse_graph(text)
        assert back == graph
        assert print_graph(back, locations=locations) == text
    assert [n.loc for n in back.nodes] == [n.loc for n in graph.nodes]


@given(st.lists(st.tuples(attr_names, values), unique_by=lambda item: item[0]))
def test_attributes_of_every_kind(attrs: list[tuple[str, object]]) -> None:
    value = Value(TensorType((2,), float32))
    node = Node(OPS["neg"], (value,), (Value(value.type, "y"),), tuple(attrs))  # type: ignore[arg-type]
    graph = Graph("a b", (value,), (), (node,), node.outputs)
    assert parse_graph(print_graph(graph)) == graph


@st.composite
def placed(draw: st.DrawFn) -> TensorType:
    dtype, ndim = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0, 9)) for _ in range(ndim))
    if draw(st.integers(0, 4)) == 0:
        return TensorType(shape, dtype)
    mesh = draw(st.sampled_from(MESHES))
    dims: list[tuple[str, ...]] = [()] * ndim
    partial = []
    for axis, _ in mesh.axes:
        where = draw(st.integers(-2, ndim - 1))
        if where >= 0:
            dims[where] += (axis,)
        elif where == -1:
            partial.append((axis, draw(st.sampled_from(["sum", "max", "min"]))))
    return TensorType(shape, dtype, Sharding(mesh, tuple(dims), tuple(partial)))


@given(st.lists(placed(), max_size=5), st.sampled_from(list(Stage)))
def test_placements_at_every_stage(types: list[TensorType], stage: Stage) -> None:
    inputs = tuple(Value(t, f"x{i}") for i, t in enumerate(types))
    graph = Graph("g", inputs, (), (), inputs[::-1], stage)
    assert parse_graph(print_graph(graph)) == graph


@given(graphs())
def test_wire(graph: Graph) -> None:
    sent = msgspec.msgpack.encode(encode_graph(graph))
    back = decode_graph(msgspec.msgpack.decode(sent, type=WireGraph))
    assert back == graph
    assert [n.loc for n in back.nodes] == [n.loc for n in graph.nodes]


@given(graphs())
def test_forms_for_other_tools_name_every_node(graph: Graph) -> None:
    dot = to_dot(graph)
    assert all(f"n{i} [label=" in dot for i in range(len(graph.nodes)))
    assert dot.count(" -> n") == sum(len(n.inputs) for n in graph.nodes)
    form = msgspec.json.decode(msgspec.json.encode(to_json(graph)))
    assert [n["op"] for n in form["nodes"]] == [n.op.name for n in graph.nodes]
    assert len(form["values"]) == len(graph.values)


def test_nan_equals_itself_and_kinds_of_number_differ() -> None:
    value = Value(TensorType((), float32))

    def graph(x: AttrValue) -> Graph:
        return Graph("g", (value,), (), (Node(OPS["neg"], (value,), (Value(value.type),), (("k", x),)),), (value,))

    assert graph(float("nan")) == graph(math.nan)
    assert graph(1) != graph(1.0) and graph(1) != graph(True) and graph(0.0) != graph(-0.0)
    assert replace(graph(1), name="h") != graph(1)
