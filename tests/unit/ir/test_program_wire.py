"""Graphs from a peer that is not trusted: every made-up field is refused with a reason, never believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gt.ir.graph import Graph, Stage
from gt.ir.mesh import Mesh, Sharding
from gt.ir.program import WireError, WireGraph, WireNode, WireSharding, WireType, decode_graph, encode_graph
from gt.ir.text import parse_graph

TEXT = """gtir 1
graph @g global {
  input %x: f32[4, 3] donated
  scalar %s: f32[]
  %a = sum(%x, dims=(1,), keepdim=false, dtype=f32) : f32[4] taped signal @rows loc L1
  %b = mul(%a, %s) : f32[4]
  return %b
}
loc L1 "a.py" 1 "f" "x.sum(1)"
"""


@pytest.fixture
def wire() -> WireGraph:
    return encode_graph(parse_graph(TEXT))


def node(wire: WireGraph, at: int, **changes: Any) -> dict[str, Any]:
    nodes = list(wire.nodes)
    nodes[at] = msgspec.structs.replace(nodes[at], **changes)
    return {"nodes": tuple(nodes)}


def refused(wire: WireGraph, **changes: Any) -> str:
    sent = msgspec.msgpack.encode(msgspec.structs.replace(wire, **changes))
    with pytest.raises(WireError) as caught:
        decode_graph(msgspec.msgpack.decode(sent, type=WireGraph))
    return str(caught.value)


def test_the_good_one_passes(wire: WireGraph) -> None:
    assert decode_graph(wire) == parse_graph(TEXT)


def test_inputs_are_placed_by_the_receiver(wire: WireGraph) -> None:
    placed = Sharding(Mesh("all", (("w", 2),), (0, 1)), (("w",), ()))
    sent = msgspec.msgpack.encode(WireSharding.of(placed))
    back = msgspec.msgpack.decode(sent, type=WireSharding).sharding
    assert back == placed and back.mesh.name == "all"
    graph = decode_graph(wire, [back])
    assert graph.inputs[0].type.sharding == placed and graph.inputs[0].hint == "x"
    assert graph.nodes[0].inputs == graph.inputs


def test_only_captured_graphs_travel() -> None:
    graph = replace(parse_graph(TEXT), stage=Stage.LOCAL)
    with pytest.raises(AssertionError, match="only captured graphs travel"):
        encode_graph(graph)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"op": "system"}, "unknown op"),
        ({"op": "all_reduce"}, "holds no collectives"),
        ({"inputs": (0, 0)}, "takes x, got 2 operands"),
        ({"inputs": ()}, "takes x, got 0 operands"),
        ({"inputs": (7,)}, "value 7 is not defined"),
        ({"inputs": (-1,)}, "value -1 is not defined"),
        ({"inputs": (2,)}, "value 2 is not defined"),
        ({"outputs": (3,)}, "results are numbered (3,)"),
        ({"types": (WireType((4, 3), "float32"),)}, "declared"),
        ({"types": (WireType((4,), "float99"),)}, "unknown dtype"),
        ({"types": (WireType((-4,), "float32"),)}, "out of bounds"),
        ({"types": (WireType((1 << 40, 1 << 40), "float32"),)}, "out of bounds"),
        ({"types": ()}, "declared"),
        ({"attrs": ()}, "node 0 (sum)"),
        ({"attrs": (("dims", [9]), ("keepdim", False), ("dtype", {"dtype": "float32"}))}, "node 0 (sum)"),
        ({"attrs": (("dims", "x" * 5000), ("keepdim", False), ("dtype", {"dtype": "float32"}))}, "5000 characters"),
        ({"attrs": (("dims", {"coord": [0, []]}),)}, "of kind dict does not travel"),
        ({"attrs": (("dtype", {"dtype": "f33"}),)}, "of kind dict does not travel"),
        ({"attrs": (("dtype", {"dtype": [1]}),)}, "of kind dict does not travel"),
        ({"attrs": (("dims", b"raw"),)}, "of kind bytes does not travel"),
        ({"attrs": (("dims", "x') or __import__('os').system('true"),)}, "which no op takes"),
        ({"attrs": (("dims", ["{a}"]),)}, "which no op takes"),
        ({"attrs": (("k", 1), ("k", 2))}, "given twice"),
        ({"loc": 5}, "location 5"),
        ({"loc": -2}, "location -2"),
    ],
)
def test_made_up_nodes(wire: WireGraph, changes: dict[str, Any], why: str) -> None:
    assert why in refused(wire, **node(wire, 0, **changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"outputs": (99,)}, "value 99"),
        ({"donated": (1,)}, "donated"),
        ({"scalars": (WireType((2,), "float32"),)}, "a scalar has dims"),
        ({"name": "x" * 5000}, "5000 characters"),
        ({"hints": ((0, "x" * 5000),)}, "5000 characters"),
        ({"configs": (("rows", {"shard": {"axis": "zero"}}),)}, "signal 'rows'"),
        ({"configs": (("rows", {"exec": 1}),)}, "signal 'rows'"),
        ({"locations": (("x" * 5000, 1, "f", ""),)}, "5000 characters"),
        ({"inputs": (WireType((1,) * 65, "float32"),)}, "out of bounds"),
    ],
)
def test_made_up_graphs(wire: WireGraph, changes: dict[str, Any], why: str) -> None:
    assert why in refused(wire, **changes)


def test_deep_and_long_attributes_are_refused(wire: WireGraph) -> None:
    deep: Any = 1
    for _ in range(30):
        deep = [deep]
    assert "too large" in refused(wire, **node(wire, 0, attrs=(("dims", deep),)))
    assert "too large" in refused(wire, **node(wire, 0, attrs=(("dims", [0] * 70_000),)))


def test_too_many_nodes(wire: WireGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.ir.program.MAX_NODES", 1)
    assert "2 nodes, the most is 1" in refused(wire)


def test_wire_nodes_are_compact() -> None:
    graph: Graph = parse_graph(TEXT)
    sent = msgspec.msgpack.encode(encode_graph(graph).nodes[1])
    assert len(sent) < 60 and msgspec.msgpack.decode(sent, type=WireNode).op == "mul"
