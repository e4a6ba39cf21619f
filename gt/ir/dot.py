"""Graphs for other tools: Graphviz DOT, and a plain structure for JSON.

Owns: both forms; they are for reading only, ``text`` is the form that parses back. Must not know: passes, Graphviz
itself.
"""

from __future__ import annotations

from typing import Any

from gt.ir.graph import Graph, Location, Node, Value
from gt.ir.text import attr_text, value_names
from gt.ir.types import SHORT, TensorType


def to_dot(graph: Graph) -> str:
    """Give the graph as DOT: boxes for nodes, ellipses for inputs and outputs, red for communication."""
    names = value_names(graph)
    lines = [f"digraph {_text(graph.name)} {{", "  rankdir=TB;", '  node [shape=box, fontname="monospace"];']
    for prefix, values in (("i", graph.inputs), ("s", graph.scalars)):
        for i, value in enumerate(values):
            lines.append(f"  {prefix}{i} [shape=ellipse, label={_text(_value_label(names, value))}];")
    source = {v: f"i{i}" for i, v in enumerate(graph.inputs)} | {v: f"s{i}" for i, v in enumerate(graph.scalars)}
    for i, node in enumerate(graph.nodes):
        source.update((out, f"n{i}") for out in node.outputs)
        color = ", color=red" if node.op.effect == "comm" else ""
        tooltip = f", tooltip={_text(str(node.loc))}" if node.loc is not None else ""
        lines.append(f"  n{i} [label={_text(_node_label(node, names))}{color}{tooltip}];")
        lines += [f"  {source[v]} -> n{i} [label={_text(repr(v.type))}];" for v in node.inputs]
    for i, value in enumerate(graph.outputs):
        lines += [f"  o{i} [shape=ellipse, style=bold, label={_text(f'output {i}')}];", f"  {source[value]} -> o{i};"]
    return "\n".join([*lines, "}"]) + "\n"


def to_json(graph: Graph) -> dict[str, Any]:
    """Give the graph as dicts and lists: values by printed name, nodes in order."""
    names = value_names(graph)
    refs = lambda values: [names[v] for v in values]  # noqa: E731
    return {
        "name": graph.name,
        "stage": graph.stage.value,
        "inputs": refs(graph.inputs),
        "scalars": refs(graph.scalars),
        "outputs": refs(graph.outputs),
        "donated": sorted(graph.donated),
        "values": {names[v]: _type(v.type) for v in graph.values},
        "nodes": [
            {
                "op": node.op.name,
                "inputs": refs(node.inputs),
                "outputs": refs(node.outputs),
                "attrs": {name: attr_text(value) for name, value in node.attrs},
                "taped": node.taped,
                "signal": node.signal,
                "why": node.why,
                "location": _location(node.loc),
            }
            for node in graph.nodes
        ],
    }


def _location(loc: Location | None) -> dict[str, Any] | None:
    if loc is None:
        return None
    return {"file": loc.file, "line": loc.line, "function": loc.function, "source": loc.source}


def _type(type_: TensorType) -> dict[str, Any]:
    out: dict[str, Any] = {"dtype": type_.dtype.name, "shape": list(type_.shape)}
    if (placed := type_.sharding) is not None:
        out["sharding"] = {
            "mesh": placed.mesh.name,
            "axes": dict(placed.mesh.axes),
            "workers": list(placed.mesh.workers),
            "dims": [list(axes) for axes in placed.dims],
            "partial": dict(placed.partial),
        }
    return out


def _value_label(names: dict[Value, str], value: Value) -> str:
    return f"{names[value]}\n{SHORT[value.type.dtype]}{list(value.type.shape)}"


def _node_label(node: Node, names: dict[Value, str]) -> str:
    attrs = "".join(f"\n{name}={attr_text(value)}" for name, value in node.attrs)
    return f"{', '.join(names[v] for v in node.outputs)} = {node.op.name}{attrs}"


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


__all__ = ["to_dot", "to_json"]
