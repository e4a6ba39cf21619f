"""Runs the update of parameters as soon as their gradients are complete, so that not all gradients are there at once.

An optimizer's step over all tensors is written as one for each of a few groups, each behind the last of its gradients and of what
else reads what it overwrites. Owns: ``updates_soon``. Must not know: any one op (``OpDef.subset`` says how). Next: ``fit_memory``,
``fuse_hot_path``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from gt.ir.graph import Graph, Node, Value
from gt.passes.recompute import Regions, placed_in
from gt.passes.work import is_mere

GROUPS = 16  # of one step at most: each is some kernels more
Ready: TypeAlias = tuple[int, int]  # the last node that is waited for, and of gradients on their way, which comes last


def updates_soon(graph: Graph, regions: Regions, sent: int = -1) -> tuple[Graph, Regions]:
    """Give the graph with updates in groups; the same object if all gradients are complete at one moment.

    ``sent``: the last long collective, of a graph whose gradients travel while others are computed. What others give is used behind it, in
    the order in which it comes, and is cast and cut only there; what it gives itself at the end. A step stays whole of which some group
    could run before.
    """
    place = {node: i for i, node in enumerate(graph.nodes)}
    behind: dict[Node, list[Node]] = {}
    gone: set[Node] = set()
    for node in graph.nodes:
        groups = _groups(graph, node, place, sent) if node.op.subset is not None else []
        if len(groups) > 1 and groups[0][0] >= sent:
            gone.add(node)
            for at, part in groups:
                late = [n for n in _maps(graph, part) if place[n] > at and n not in gone]
                gone.update(late)
                behind.setdefault(graph.nodes[at], []).extend((*sorted(late, key=place.__getitem__), part))
    if not gone:
        return graph, regions
    nodes = {node: node for node in graph.nodes if node not in gone}
    listed = [n for old in graph.nodes for n in (*((old,) if old in nodes else ()), *behind.get(old, ()))]
    return graph.with_nodes(listed), placed_in(regions, graph, nodes, {}, behind, set(listed))


def _groups(graph: Graph, node: Node, place: dict[Node, int], sent: int) -> list[tuple[int, Node]]:
    """Give the parts of a step, each with the number of the node behind which it can run."""
    num = node.attr["num"]
    assert isinstance(num, int) and node.op.subset is not None
    ready = []
    for i in range(num):
        until = _until(graph, node, i, place)
        last, came = _ready(graph, node, i, place, sent)
        ready.append(((min(last, until), came), until, i))
    size = lambda i: node.inputs[i].type.nbytes  # noqa: E731
    share = sum(map(size, range(num))) / GROUPS
    groups: list[list[int]] = [[]]
    ends: list[Ready] = [(-1, -1)]
    latest = len(place)  # that the group may run
    for at, until, i in sorted(ready):
        if at[0] > latest or (sum(map(size, groups[-1])) >= share and at > ends[-1]):
            groups.append([])
            ends.append((-1, -1))
            latest = len(place)
        groups[-1].append(i)
        ends[-1], latest = at, min(latest, until)
    out = []
    for (end, _), members in zip(ends, groups, strict=True):
        operands, results, attrs = node.op.subset(dict(node.attrs), sorted(members))
        inputs, outputs = tuple(node.inputs[i] for i in operands), tuple(node.outputs[i] for i in results)
        out.append((end, replace(node, inputs=inputs, outputs=outputs, attrs=tuple(attrs.items()))))
    return out


def _ready(graph: Graph, node: Node, member: int, place: dict[Node, int], sent: int) -> Ready:
    """Give the last node that one member's update waits for: what makes its operands, what else reads them or a part of them.

    What makes an operand is on its way until ``sent`` is over, if it is a collective.
    """
    assert node.op.subset is not None
    operands, _, _ = node.op.subset(dict(node.attrs), [member])
    seen: set[Value] = set()
    todo = [node.inputs[i] for i in operands if node.inputs[i].type.shape]
    makers = [graph.producer[v] for i in operands if (v := node.inputs[i]) in graph.producer]
    last, came = 0, -1
    for maker in makers:
        chain = _mapped(graph, maker)
        at = place[chain[-1]]
        if chain[-1].op.effect == "comm" and at <= sent:
            last, came = max(last, sent if at < sent else place[node]), max(came, at)
        else:
            last = max(last, place[maker])
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        for user, _ in graph.uses.get(value, ()):
            if user is not node:
                last = max(last, place[user])
                todo += user.outputs if user.op.view else ()
    return last, came


def _mapped(graph: Graph, node: Node) -> list[Node]:
    """Give a node and, if it only casts or is a view for one reader, what makes its operand, and so on."""
    chain = [node]
    while is_mere(chain[-1]) and len(graph.uses.get(chain[-1].output, ())) == 1:
        if chain[-1].output in graph.outputs or (maker := graph.producer.get(chain[-1].inputs[0])) is None:
            break
        chain.append(maker)
    return chain


def _maps(graph: Graph, part: Node) -> set[Node]:
    """Give what does nothing but cast or view the operands of a part."""
    return {n for v in part.inputs if v in graph.producer for n in _mapped(graph, graph.producer[v])[:-1]}


def _until(graph: Graph, node: Node, member: int, place: dict[Node, int]) -> int:
    """Give the last node behind which one member's update is done before its results are read."""
    assert node.op.subset is not None
    _, results, _ = node.op.subset(dict(node.attrs), [member])
    users = (user for r in results for user, _ in graph.uses.get(node.outputs[r], ()))
    return min(map(place.__getitem__, users), default=len(place)) - 1


__all__ = ["updates_soon"]
