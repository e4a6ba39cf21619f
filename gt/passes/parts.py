"""What workers do one after the other: regions and collectives, in the graph's order, and which collectives only begin there.

Owns: ``Part``, ``parts_of``, ``travelling``. Must not know: any one worker, steps. Next: ``plan_memory``, ``lower_programs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from gt.ir.graph import Graph, Node, Value
from gt.ir.ops.collective import transfer
from gt.passes.context import Region
from gt.passes.schedule import scatters_soon

Part: TypeAlias = Region | Node  # a region of compute, or one collective


def parts_of(graph: Graph, regions: tuple[Region, ...] | None) -> list[Part]:
    """Give regions and collectives in the graph's order. Without ``fuse_hot_path``: what stands between collectives."""
    if regions is None:
        runs: list[list[Node]] = [[]]
        for node in graph.nodes:
            if node.op.effect == "comm":
                runs.append([])
            else:
                runs[-1].append(node)
        regions = tuple(Region(tuple(run)) for run in runs if run)
    starts = {region.nodes[0]: region for region in regions}
    parts: list[Part] = []
    covered = 0
    for node in graph.nodes:
        if node.op.effect == "comm":
            parts.append(node)
            covered += 1
        elif node in starts:
            parts.append(starts[node])
            covered += len(starts[node].nodes)
    assert covered == len(graph.nodes), "the regions do not cover the graph"
    return parts


def travelling(graph: Graph, parts: Sequence[Part]) -> dict[Node, Node | None]:
    """Give the collectives that travel while others compute, by the node before which they are waited for; None: the end.

    They are waited for where they are first read. Where memory is limited, a sum that each worker keeps a part of is over before
    the next begins: what is sent and what comes is whole gradients.
    """
    soon = scatters_soon(graph)
    unread: dict[Value, bool] = {}  # whether something was computed since
    found: dict[Node, Node | None] = {}
    for part in parts:
        nodes = part.nodes if isinstance(part, Region) else (part,)
        reads = {v for node in nodes for v in node.inputs}
        for value in [v for v in unread if v in reads or (part in soon and graph.producer[v] in soon)]:
            if unread.pop(value):
                found[graph.producer[value]] = nodes[0]
        if isinstance(part, Region):
            unread = dict.fromkeys(unread, True)
        elif part.op is not transfer:
            unread[part.output] = False
    return found | {graph.producer[v]: None for v, computed in unread.items() if computed}


__all__ = ["Part", "parts_of", "travelling"]
