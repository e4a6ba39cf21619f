"""The printed form of a graph, ``.gtir``, which parses back: ``parse_graph(print_graph(g)) == g``.

One node a line; the user's names are kept, sharding stands inside the shape, what follows ``;`` is derived and ignored
by the parser. No times, addresses or hashes, so the text serves as a test format.

    gtir 1
    mesh @all {w: 4} workers 0 1 2 3
    graph @step local {
      input %x: bf16[64@w, 4096]
      %h = matmul(%x, %w1) : bf16[64@w, 16384] +w taped signal @mlp loc L1
      return %h
    }
    loc L1 "train.py" 12 "forward" "h = x @ w1"

Owns: printing, of programs too. Must not know: passes. Next: ``parse`` (the other direction), ``verify``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from gt.ir.graph import AttrValue, Coord, Graph, Location, Node, Stage, Value
from gt.ir.mesh import Mesh
from gt.ir.parse import VERSION, ParseError, parse_graph
from gt.ir.program import Collective, Compute, Free, Program, WireNode, WireType, unpack_attrs
from gt.ir.signals import PlanOptions
from gt.ir.types import SHORT, DType, TensorType

_BARE = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)


def print_graph(graph: Graph, locations: bool = False) -> str:
    """Give the graph as text. ``locations`` adds references to the user's lines, and the lines at the end."""
    meshes = _mesh_names(graph)
    names = value_names(graph)
    types = _TypePrinter(graph.stage, meshes)
    locs: dict[Location, str] = {}
    lines = [f"gtir {VERSION}"]
    for mesh, name in meshes.items():
        axes = ", ".join(f"{_bare(a)}: {size}" for a, size in mesh.axes)
        lines.append(f"mesh @{name} {{{axes}}} workers {' '.join(map(str, mesh.workers))}")
    lines += [f"signal @{_bare(name)} {_struct_text(config)}" for name, config in graph.signals]
    if graph.options != PlanOptions():
        lines.append(f"options {_struct_text(graph.options)}")
    lines.append(f"graph @{_bare(graph.name)} {graph.stage.value} {{")
    for i, value in enumerate(graph.inputs):
        donated = " donated" if i in graph.donated else ""
        lines.append(f"  input {names[value]}: {types(value.type)}{donated}")
    lines += [f"  scalar {names[v]}: {types(v.type)}" for v in graph.scalars]
    for node in graph.nodes:
        line = f"  {node_text(node, names, types)}"
        if locations and node.loc is not None:
            line += f" loc {locs.setdefault(node.loc, f'L{len(locs) + 1}')}"
        lines.append(line + (f" ; {' '.join(node.why.split())}" if node.why else ""))
    lines.append(f"  return {', '.join(names[v] for v in graph.outputs)}".rstrip())
    lines.append("}")
    for loc, ref in locs.items():
        lines.append(f"loc {ref} {_quote(loc.file)} {loc.line} {_quote(loc.function)} {_quote(loc.source)}")
    return "\n".join(lines) + "\n"


def node_text(node: Node, names: dict[Value, str], types: Callable[[TensorType], str] = repr) -> str:
    """Give one node as text, without its location."""
    results = ", ".join(names.get(v, "%?") for v in node.outputs)
    args = [names.get(v, "%?") for v in node.inputs]
    args += [f"{name}={attr_text(value)}" for name, value in node.attrs]
    text = f"{results} = {node.op.name}({', '.join(args)}) : {', '.join(types(v.type) for v in node.outputs)}"
    if node.taped:
        text += " taped"
    return text if node.signal is None else f"{text} signal @{_bare(node.signal)}"


def value_names(graph: Graph) -> dict[Value, str]:
    """Give each value's printed name: the user's, with ``#2``, ``#3`` where one comes again, or a number."""
    names: dict[Value, str] = {}
    seen: dict[str, int] = {}
    numbered = 0
    for value in graph.values:
        if not value.hint:
            names[value] = f"%{numbered}"
            numbered += 1
            continue
        count = seen[value.hint] = seen.get(value.hint, 0) + 1
        names[value] = f"%{_bare(value.hint)}" + (f"#{count}" if count > 1 else "")
    return names


def readable_names(inputs: Iterable[Value], nodes: Iterable[Node]) -> dict[Value, str]:
    """Give each value a name for people: the user's, else its op and line, as ``%sum:12``, with ``#2`` where these come again.

    What is only moved has the name of what it is moved from.
    """
    names = {value: f"%{value.hint or f'input{i}'}" for i, value in enumerate(inputs)}
    seen: dict[str, int] = {}
    for node in nodes:
        for value in node.outputs:
            if value.hint:
                names[value] = f"%{value.hint}"
            elif (node.op.effect == "comm" or node.op.name == "reshard") and node.inputs[0] in names:
                names[value] = names[node.inputs[0]]
            else:
                name = node.op.name if node.loc is None else f"{node.op.name}:{node.loc.line}"
                count = seen[name] = seen.get(name, 0) + 1
                names[value] = f"%{name}" + (f"#{count}" if count > 1 else "")
    return names


def attr_text(value: AttrValue) -> str:
    """Give one attribute as text."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, DType):
        return SHORT[value]
    if isinstance(value, Coord):
        return f"coord({', '.join([str(value.base), *(f'{_bare(a)}*{s}' for a, s in value.strides)])})"
    inner = ", ".join(attr_text(v) for v in value)
    return f"({inner},)" if len(value) == 1 else f"({inner})"


class _TypePrinter:
    """Prints types, naming the mesh only where the reader could not know it. Memoised."""

    def __init__(self, stage: Stage, meshes: dict[Mesh, str]) -> None:
        self.stage, self.meshes = stage, meshes
        self.default = next(iter(meshes), None)
        self.memo: dict[TensorType, str] = {}

    def __call__(self, type_: TensorType) -> str:
        found = self.memo.get(type_)
        if found is None:
            found = self.memo[type_] = self._text(type_)
        return found

    def _text(self, type_: TensorType) -> str:
        placed = type_.sharding
        if placed is None:
            text = f"{SHORT[type_.dtype]}[{', '.join(map(str, type_.shape))}]"
            return text if self.stage is Stage.GLOBAL else f"{text} unplaced"
        dims = [
            f"{n}" + "".join(f"@{_bare(a)}" for a in axes) for n, axes in zip(type_.shape, placed.dims, strict=True)
        ]
        text = f"{SHORT[type_.dtype]}[{', '.join(dims)}]"
        for axis, op in placed.partial:
            text += f" +{_bare(axis)}" + ("" if op == "sum" else f":{op}")
        known = placed.mesh == self.default and (self.stage is not Stage.GLOBAL or not placed.is_replicated)
        return text if known else f"{text} on @{self.meshes[placed.mesh]}"


def _mesh_names(graph: Graph) -> dict[Mesh, str]:
    meshes: dict[Mesh, str] = {}
    taken: set[str] = set()
    for value in graph.values:
        placed = value.type.sharding
        if placed is not None and placed.mesh not in meshes:
            name, number = placed.mesh.name, 2
            while name in taken:
                name, number = f"{placed.mesh.name}_{number}", number + 1
            taken.add(name)
            meshes[placed.mesh] = _bare(name)
    return meshes


def _struct_text(struct: msgspec.Struct) -> str:
    return json.dumps(_given(struct))


def _given(struct: msgspec.Struct) -> dict[str, Any]:
    """Give the fields of a struct that differ from their defaults."""
    out: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if value != field.default:
            out[field.encode_name] = _given(value) if isinstance(value, msgspec.Struct) else msgspec.to_builtins(value)
    return out


def _bare(name: str) -> str:
    return name if _BARE.match(name) else _quote(name)


def _quote(text: str) -> str:
    return json.dumps(text)


# -- programs


def print_program(program: Program) -> str:
    """Give a worker's program as text: one step a line, the nodes of a region beneath it."""
    lines = [f"program @{_bare(program.name)} worker {program.worker} {{"]
    lines += [f"  input {i} -> s{slot}" + (" donated" if slot in program.donated else "") for i, slot in program.inputs]
    lines += [f"  scalar {i} -> s{slot}: {SHORT[DType.by_name[d]]}" for i, (slot, d) in enumerate(program.scalars)]
    number = 0
    for step in program.steps:
        if isinstance(step, Compute):
            lines += _region_lines(step, number, program)
            number += 1
        elif isinstance(step, Collective):
            lines.append(_collective_line(step, program))
        elif isinstance(step, Free):
            lines.append(f"  free {_slots(step.slots)}")
    lines += [f"  output {i} <- s{slot}" for i, slot in program.outputs]
    lines.append("}")
    return "\n".join(lines) + "\n"


def _region_lines(step: Compute, number: int, program: Program) -> Iterator[str]:
    compiled = " compile" if step.compile else ""
    yield f"  region {number}{compiled} ({_slots(step.inputs)}) -> ({_slots(step.outputs)}) {{"
    inplace = dict(step.inplace)
    for i, node in enumerate(step.nodes):
        args = [_slots(node.inputs)] if node.inputs else []
        args += [f"{name}={attr_text(value)}" for name, value in unpack_attrs(node.attrs)]
        line = f"    {_slots(node.outputs)} = {node.op}({', '.join(args)}) : {', '.join(map(_wire_type, node.types))}"
        if i in inplace:
            line += " inplace " + ", ".join(f"s{node.outputs[r]}<-s{node.inputs[o]}" for r, o in inplace[i])
        yield line + _line_of(node, program)
    yield "  }"


def _collective_line(step: Collective, program: Program) -> str:
    attrs = "".join(f" {name}={attr_text(value)}" for name, value in unpack_attrs(step.attrs))
    source = f"s{step.input}" if step.input >= 0 else ""
    target = f"s{step.output} = " if step.output >= 0 else ""
    kind = f"begin {step.kind}" if step.begins else step.kind
    line = f"  comm#{step.number} {target}{kind}({source}) : {_wire_type(step.type)}{attrs}"
    line += f" group {' '.join(map(str, step.group))} {step.nbytes} B"
    return line + _line_of(step, program) + (f" ; why: {' '.join(step.why.split())}" if step.why else "")


def _line_of(step: WireNode | Collective, program: Program) -> str:
    if step.loc < 0:
        return ""
    file, line, function = program.locations[step.loc]
    return f" ; {file}:{line} in {function}"


def _wire_type(type_: WireType) -> str:
    return f"{SHORT[DType.by_name[type_.dtype]]}[{', '.join(map(str, type_.shape))}]"


def _slots(slots: tuple[int, ...]) -> str:
    return ", ".join(f"s{s}" for s in slots)


__all__ = ["ParseError", "attr_text", "node_text", "parse_graph", "print_graph", "print_program", "value_names"]
