"""What makes a graph valid, stage by stage.

Owns: ``verify`` and ``VerifyError``, whose text names the fault, the node, the user's line and the nodes around it. The pass
runner calls it after passes. Must not know: passes. Next: ``gt.passes.pipeline``.
"""

from __future__ import annotations

from collections.abc import Iterable

from gt.ir.graph import Attrs, AttrValue, Coord, Graph, Node, Stage, Value
from gt.ir.text import node_text, value_names

_AROUND = 3  # nodes shown before and after the one at fault


class VerifyError(Exception):
    """A graph breaks a rule of its stage. Always gt's own fault, never the user's."""


def verify(graph: Graph) -> None:
    """Check a graph against the rules of its stage. Errors: VerifyError at the first fault."""
    defined: set[Value] = set()
    for kind, values in (("input", graph.inputs), ("scalar", graph.scalars)):
        for i, value in enumerate(values):
            if value in defined:
                raise _fault(graph, f"{kind} {i} is listed twice")
            defined.add(value)
            _check_placement(graph, value, f"{kind} {i}", None)
    for i, value in enumerate(graph.scalars):
        if value.type.shape:
            raise _fault(graph, f"scalar {i} is not 0-d but {value.type!r}")
    if not all(0 <= i < len(graph.inputs) for i in graph.donated):
        raise _fault(graph, f"donated {sorted(graph.donated)} of {len(graph.inputs)} inputs")
    for at, node in enumerate(graph.nodes):
        _check_node(graph, at, node, defined)
    for i, value in enumerate(graph.outputs):
        if value not in defined:
            raise _fault(graph, f"output {i} ({value!r}) is not defined")


def _check_node(graph: Graph, at: int, node: Node, defined: set[Value]) -> None:
    for i, value in enumerate(node.inputs):
        if value not in defined:
            raise _fault(graph, f"operand {i} ({value!r}) is not defined before the node", at)
    for i, value in enumerate(node.outputs):
        if value in defined:
            raise _fault(graph, f"result {i} ({value!r}) is defined twice", at)
        defined.add(value)
        _check_placement(graph, value, f"result {i}", at)
    if len({name for name, _ in node.attrs}) != len(node.attrs):
        raise _fault(graph, "an attribute is given twice", at)
    _check_effect(graph, at, node)
    _check_types(graph, at, node)


def _check_effect(graph: Graph, at: int, node: Node) -> None:
    early = graph.stage in (Stage.GLOBAL, Stage.SHARDED)
    if node.op.effect == "comm" and early:
        raise _fault(graph, f"a collective in a {graph.stage.value} graph", at)
    if node.op.effect == "grad" and graph.stage is not Stage.GLOBAL:
        raise _fault(graph, f"a grad node is left in a {graph.stage.value} graph: autodiff expands it", at)
    if graph.stage is not Stage.LOCAL and any(_has_coord(value) for _, value in node.attrs):
        raise _fault(graph, f"an attribute that differs by worker in a {graph.stage.value} graph", at)


def _check_types(graph: Graph, at: int, node: Node) -> None:
    if not node.op.takes(len(node.inputs)):
        takes = " ".join(node.op.operands) or "no operands"
        raise _fault(graph, f"{node.op.name} takes {takes}, got {len(node.inputs)} operands", at)
    attrs = _at_first_worker(node) if graph.stage is Stage.LOCAL else node.attrs
    try:
        inferred = node.op.infer_types(tuple(v.type for v in node.inputs), attrs)
    except (TypeError, ValueError, IndexError, KeyError, RuntimeError, AssertionError) as error:
        raise _fault(graph, f"{node.op.name} does not take these operands: {error}", at) from error
    if len(inferred) != len(node.outputs):
        raise _fault(graph, f"{len(node.outputs)} results where {node.op.name} gives {len(inferred)}", at)
    for i, (value, want) in enumerate(zip(node.outputs, inferred, strict=True)):
        got = value.type
        if got.shape != want.shape or got.dtype is not want.dtype:
            raise _fault(graph, f"result {i} is declared {got.placed(None)!r}, {node.op.name} gives {want!r}", at)


def _check_placement(graph: Graph, value: Value, what: str, at: int | None) -> None:
    placed = value.type.sharding
    if placed is None:
        if graph.stage is not Stage.GLOBAL:
            raise _fault(graph, f"{what} ({value!r}) has no sharding in a {graph.stage.value} graph", at)
        return
    if len(placed.dims) != value.type.ndim:
        raise _fault(graph, f"{what} ({value!r}) has {value.type.ndim} dims, its sharding {len(placed.dims)}", at)
    used = [a for d in placed.dims for a in d] + [a for a, _ in placed.partial]
    known = dict(placed.mesh.axes)
    for axis in used:
        if axis not in known:
            raise _fault(graph, f"{what} ({value!r}) is placed on axis {axis}, which its mesh lacks", at)
    if len(set(used)) != len(used):
        raise _fault(graph, f"{what} ({value!r}) uses a mesh axis twice", at)


def _has_coord(value: AttrValue) -> bool:
    return isinstance(value, Coord) or (isinstance(value, tuple) and any(_has_coord(v) for v in value))


def _at_first_worker(node: Node) -> Attrs:
    """Give the attributes as the first worker has them: its coordinates are all zero."""
    if not any(_has_coord(value) for _, value in node.attrs):
        return node.attrs
    return tuple((name, _zero(value)) for name, value in node.attrs)


def _zero(value: AttrValue) -> AttrValue:
    if isinstance(value, Coord):
        return value.base
    return tuple(_zero(v) for v in value) if isinstance(value, tuple) else value


def _fault(graph: Graph, fault: str, at: int | None = None) -> VerifyError:
    lines = [f"graph @{graph.name} ({graph.stage.value}): {fault}"]
    if at is None:
        return VerifyError(lines[0])
    node = graph.nodes[at]
    if node.loc is not None:
        lines.append(f"  at {node.loc} in {node.loc.function}" + (f": {node.loc.source.strip()}" if node.loc.source else ""))
    names = value_names(graph)
    lines += _nodes_around(graph.nodes, at, names)
    return VerifyError("\n".join(lines))


def _nodes_around(nodes: tuple[Node, ...], at: int, names: dict[Value, str]) -> Iterable[str]:
    for i in range(max(0, at - _AROUND), min(len(nodes), at + _AROUND + 1)):
        yield f"{'->' if i == at else '  '} {i:4d}  {node_text(nodes[i], names)}"


__all__ = ["VerifyError", "verify"]
