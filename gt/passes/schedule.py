"""The order in which a LOCAL graph's nodes run: compute that waits for nothing first, collectives late and together.

Values that are only gathered, such as split parameters, are the exception: each is joined when it is first needed, so
that all of them are never whole at once. Owns: ``schedule``, ``ranks``. Next: ``bucket_collectives``, ``fuse_hot_path``.
"""

from __future__ import annotations

from gt.ir.graph import Graph, Node, Value
from gt.ir.ops import collective


def schedule(graph: Graph) -> list[Node]:
    """Give the nodes in the order to run them; without collectives, as they are."""
    if not any(node.op.effect == "comm" for node in graph.nodes):
        return list(graph.nodes)
    return sorted(graph.nodes, key=ranks(graph).__getitem__)


def ranks(graph: Graph) -> dict[Node, int]:
    """Give when each node runs: compute of rank 2n waits for n collectives, a collective of rank 2n + 1 for n others."""
    depth: dict[Value, int] = {}  # how many collectives deep a value is
    rank: dict[Node, int] = {}
    late = {node for node in joins_early(graph) if graph.uses.get(node.output)}
    for node in graph.nodes:
        below = max((depth.get(v, 0) for v in node.inputs), default=0)
        comm = node.op.effect == "comm" and node not in late
        rank[node] = 2 * below + comm
        depth.update(dict.fromkeys(node.outputs, below + comm))
    for node in reversed(graph.nodes):
        readers = [rank[user] for out in node.outputs for user, _ in graph.uses.get(out, ())]
        if readers and (not node.inputs or node in late):  # made in the region that reads it
            rank[node] = min(readers) // 2 * 2
    return rank


def joins_early(graph: Graph) -> set[Node]:
    """Give the gathers that wait for no other collective."""
    waits: set[Value] = set()
    found: set[Node] = set()
    for node in graph.nodes:
        waiting = any(v in waits for v in node.inputs)
        if node.op is collective.all_gather and not waiting:
            found.add(node)
        if waiting or node.op.effect == "comm":
            waits.update(node.outputs)
    return found


__all__ = ["joins_early", "ranks", "schedule"]
