"""Which values live on workers of their own: those of one stage of a pipeline, with what an optimizer keeps for them.

Rules for parameters are over the mesh of all workers. What only the work of one stage reads or makes is split within that stage,
and stays there where a graph does nothing with it but update it. Must not know: names, rules. Next: ``propagate_sharding``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gt.ir.graph import Graph, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.passes.placement import components
from gt.passes.signal_placement import signal_mesh


def homes_apart(graph: Graph, everything: Mesh, placed: Mapping[Value, Sharding]) -> dict[Value, Mesh]:
    """Give where values live that do not live where all work is done. ``placed``: where inputs are.

    A value is at home on the workers that each signal names under which it is read or made; or where it is, if it is only updated, and
    with nothing that all workers have.
    """
    named = {name: signal_mesh(c, everything)[0] or everything for name, c in graph.signals if name and c.shard is not None}
    meshes = {*named.values(), *(placed[v].mesh for v in graph.inputs)}
    if all(mesh.workers == everything.workers for mesh in meshes):
        return {}
    marked: dict[Value, list[Mesh]] = {}  # by what signals mark: where they have that done
    plain: set[Value] = set()
    comes_from: dict[Value, set[int]] = {v: set(placed[v].mesh.workers) for v in graph.inputs}
    updates: list[tuple[Value, Value, set[int]]] = []
    for node in graph.nodes:
        for value in node.outputs:
            alike = (comes_from[v] for v in node.inputs if v in comes_from and v.type.shape == value.type.shape)
            comes_from[value] = set().union(*alike)
        if pairs := node.op.inplace_pairs(len(node.inputs), node.attrs):
            updates += _updates(node, pairs, comes_from)
        elif (mesh := named.get(node.signal or "")) is not None:
            for value in (*node.inputs, *node.outputs):
                marked.setdefault(value, []).append(mesh)
        else:
            plain.update(node.inputs, node.outputs)
    homes = {value: on[0] for value, on in marked.items() if len({mesh.workers for mesh in on}) == 1}
    for old, new, workers in updates:
        if old in placed and old not in marked and old not in plain and workers < set(everything.workers):
            homes[old] = placed[old].mesh
        if old in homes and new not in marked:
            homes[new] = homes[old]
    return {value: mesh for value, mesh in homes.items() if mesh.workers != everything.workers}


def _updates(
    node: Node, pairs: Sequence[tuple[int, int]], comes_from: Mapping[Value, set[int]]
) -> Iterator[tuple[Value, Value, set[int]]]:
    """Give what an op updates: each value before and after, and the workers that hold what it is updated with."""
    rule = node.op.rule([v.type for v in node.inputs], [v.type for v in node.outputs], node.attrs)
    parts = [(set(part.results), part.operands) for part in components(rule)] if rule is not None else []
    for result, operand in pairs:
        beside = next((operands for results, operands in parts if result in results), range(len(node.inputs)))
        alike = [node.inputs[i] for i in beside if node.inputs[i].type.shape == node.inputs[operand].type.shape]
        yield node.inputs[operand], node.outputs[result], set().union(*(comes_from.get(v, set()) for v in alike))


__all__ = ["homes_apart"]
