"""Cuts the schedule into regions worth compiling: compute between collectives, repeated structure (a model's layers).

Collectives stay outside regions and keep one order for all workers. Equal regions are compiled once: ``lower_programs``
gives them equal keys. Owns: the cuts. Must not know: any one op. Next: ``plan_memory``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gt.ir.graph import Graph, Node, Value, attrs_key
from gt.ir.ops.collective import transfer
from gt.passes.context import Context, Region
from gt.passes.cost import H100
from gt.passes.estimate import sent_and_seconds
from gt.passes.plan_memory import memory_plan
from gt.passes.schedule import launches, overlap, schedule
from gt.passes.updates_soon import updates_soon
from gt.passes.work import is_heavy, is_mere


@dataclass(frozen=True)
class FuseHotPath:
    """Order nodes so that collectives come late and together, or travel while others compute, then cut.

    A collective that takes ``overlap_s`` longer than to start is not waited for before it is read; what it does not wait for is
    computed meanwhile, unless that takes more memory than is allowed.
    A structure of ``min_nodes`` nodes or more that comes ``min_repeats`` times in a row is cut into regions of its own.
    What does not repeat is cut where it is longer than ``max_nodes``, as its compilation takes more than its share.
    """

    name: ClassVar[str] = "fuse_hot_path"
    min_repeats: int = 3
    min_nodes: int = 12
    max_nodes: int = 300
    overlap_s: float = 20e-6

    def run(self, graph: Graph, context: Context) -> Graph:
        limit, noted = graph.options.memory_limit, len(context.notes)
        filled = self._cut(graph, context, fill=True)
        if limit is None or memory_plan(filled, Context(context.mesh, regions=context.regions))[1].most <= limit:
            return filled
        del context.notes[noted:]
        return self._cut(graph, context, fill=False)

    def _cut(self, graph: Graph, context: Context, fill: bool) -> Graph:
        long = self._long(graph)
        nodes = overlap(graph, schedule(graph), long.__contains__, (lambda node: sent_and_seconds(node)[1]) if fill else None)
        graph = graph if tuple(nodes) == graph.nodes else graph.with_nodes(nodes)
        sent = max((i for i, node in enumerate(graph.nodes) if node in long), default=-1)
        if sent >= 0:  # the gradients that come first are used while the last are on their way
            graph, _ = updates_soon(graph, None, sent)
        nodes = list(graph.nodes)
        compiled = {name for name, config in graph.signals if config.compile}
        regions: list[Region] = []
        runs = list(_runs(nodes, compiled, long.__contains__))
        for run in runs:
            marked = run[0].signal in compiled
            regions += [Region(tuple(piece), marked) for piece in self._pieces(run)]
        nodes, regions = _with_own_views(graph, nodes, regions)
        context.regions = tuple(regions)
        if len(regions) > len(runs):
            context.note(regions[0].nodes[0], f"cut into {len(regions)} regions at repeated structure")
        return graph if tuple(nodes) == graph.nodes else graph.with_nodes(nodes)

    def _long(self, graph: Graph) -> set[Node]:
        """Give the collectives that are not waited for before they are read, those of one launch together."""
        started = {node: launch for launch in launches(graph) for node in launch}
        seconds = lambda node: sum(sent_and_seconds(n)[1] for n in started.get(node, (node,)))  # noqa: E731
        long = lambda node: node.op is transfer or seconds(node) >= H100.launch_s + self.overlap_s  # noqa: E731
        return {node for node in graph.nodes if node.op.effect == "comm" and long(node)}

    def _pieces(self, run: Sequence[Node]) -> Iterable[Sequence[Node]]:
        found = repeats(run, self.min_repeats, self.min_nodes)
        at = 0
        for start, period, count in (_turned(run, *repeat) for repeat in found):
            yield from cut(run[at:start], self.max_nodes)
            for i in range(count):
                yield run[start + i * period : start + (i + 1) * period]
            at = start + count * period
        yield from cut(run[at:], self.max_nodes)


def _runs(nodes: Sequence[Node], compiled: set[str], awaited: Callable[[Node], bool]) -> Iterable[list[Node]]:
    """Give maximal runs of compute nodes on one mesh, cut also where ``compile`` changes.

    What is ``awaited`` from others cuts a run where it is first read: what stands before does not wait for it, but for casts and views.
    """
    run: list[Node] = []
    coming: set[Value] = set()
    for node in nodes:
        comm = node.op.effect == "comm"
        arrived = coming.intersection(node.inputs)
        coming -= arrived
        waits = arrived and not all(map(is_mere, run))
        if run and (comm or waits or _apart(node, run[0], compiled)):
            yield run
            run = []
        if not comm:
            run.append(node)
        elif awaited(node):
            coming.add(node.output)
    if run:
        yield run


def _apart(node: Node, other: Node, compiled: set[str]) -> bool:
    meshes = [n.outputs[0].type.sharding and n.outputs[0].type.sharding.mesh for n in (node, other)]
    return meshes[0] != meshes[1] or (node.signal in compiled) != (other.signal in compiled)


def repeats(run: Sequence[Node], min_repeats: int, min_nodes: int) -> list[tuple[int, int, int]]:
    """Give (start, period, count) of stretches that repeat back to back, longest first come, in order and disjoint.

    Nodes are compared by op, attributes and types; whether two pieces are really equal, wiring included, is decided by
    the regions' keys, so a wrong guess here costs a compilation and nothing else.
    """
    if len(run) < min_repeats * min_nodes:
        return []
    ids: dict[object, int] = {}
    labels = np.array([ids.setdefault(_label(node), len(ids)) for node in run])
    candidates: list[tuple[int, int, int]] = []
    for period in range(min_nodes, len(run) // min_repeats + 1):
        equal = np.concatenate(([False], labels[period:] == labels[:-period], [False]))
        edges = np.flatnonzero(equal[1:] != equal[:-1]).reshape(-1, 2)
        for start, stop in edges.tolist():
            count = (stop - start) // period + 1
            if count >= min_repeats:
                candidates.append((start, period, count))
    candidates.sort(key=lambda c: (-c[1] * c[2], c[1], c[0]))
    taken = np.zeros(len(run), bool)
    chosen: list[tuple[int, int, int]] = []
    for start, period, count in candidates:
        if not taken[start : start + period * count].any():
            taken[start : start + period * count] = True
            chosen.append((start, period, count))
    return sorted(chosen)


def _turned(run: Sequence[Node], start: int, period: int, count: int) -> tuple[int, int, int]:
    """Begin the pieces of a repeat right after a heavy op, if there is one: what maps its result is not parted from it.

    A repeat has no first node: pieces that begin a few nodes later are equal too, one fewer of them.
    """
    crossing = _crossing(run[start : start + 2 * period])
    heavy = [at for at in range(1, period) if is_heavy(run[start + at - 1])]
    if count <= 2 or not heavy or is_heavy(run[start + period - 1]):
        return start, period, count
    shift = min(heavy, key=lambda at: (crossing[at + period], at))
    return start + shift, period, count - 1


def cut(nodes: Sequence[Node], most: int) -> list[Sequence[Node]]:
    """Cut nodes into about equal pieces of at most ``most``, where the fewest bytes pass from one to the next."""
    if len(nodes) <= most:
        return [nodes] if nodes else []
    count = math.ceil(1.25 * len(nodes) / most)  # an edge may be moved by an eighth of a piece either way
    crossing, even = _crossing(nodes), len(nodes) / count
    near = range(-int(even / 8), int(even / 8) + 1)
    edges = [min((round(i * even) + d for d in near), key=lambda at: (crossing[at], at)) for i in range(1, count)]
    return [nodes[start:stop] for start, stop in itertools.pairwise((0, *edges, len(nodes)))]


def _crossing(nodes: Sequence[Node]) -> list[int]:
    """Give for each place between nodes the bytes that are made before it and read after it, within ``nodes``."""
    change = [0] * (len(nodes) + 1)
    made = {out: i + 1 for i, node in enumerate(nodes) for out in node.outputs}
    last = {value: i for i, node in enumerate(nodes) for value in node.inputs if value in made}
    for value, read in last.items():
        change[made[value]] += value.type.nbytes
        change[read + 1] -= value.type.nbytes
    return list(itertools.accumulate(change))


def _with_own_views(graph: Graph, nodes: Sequence[Node], regions: list[Region]) -> tuple[list[Node], list[Region]]:
    """Have each region make the views of the graph's inputs that it reads.

    A view of a parameter beside the parameter itself would keep compiled code from overwriting the parameter.
    """
    inputs = set(graph.inputs)
    views: dict[Value, Node] = {}
    for node in (node for region in regions for node in region.nodes):
        shares = node.op.may_share([v.type for v in node.inputs], [v.type for v in node.outputs])
        if shares and (node.inputs[0] in inputs or node.inputs[0] in views):
            views[node.output] = node
    added: dict[Node, list[Node]] = {}  # views to make, by the region's first node
    renamed: dict[Node, Node] = {}

    def remade(value: Value, made: dict[Value, Value], out: list[Node]) -> Value:
        if value not in views or value in made:
            return made.get(value, value)
        node = views[value]
        new = Value(value.type, value.hint)
        out.append(replace(node, inputs=(remade(node.inputs[0], made, out), *node.inputs[1:]), outputs=(new,)))
        made[value] = new
        return new

    for region in regions:
        made = {out: out for node in region.nodes for out in node.outputs}
        if not any(v in views and v not in made for node in region.nodes for v in node.inputs):
            continue
        new: list[Node] = []
        for node in region.nodes:
            operands = tuple(remade(v, made, new) for v in node.inputs)
            renamed[node] = node if operands == node.inputs else replace(node, inputs=operands)
        added[region.nodes[0]] = new
    if not added:
        return list(nodes), regions
    order = [n for node in nodes for n in (*added.get(node, ()), renamed.get(node, node))]
    alive, dead = set(graph.outputs), set[Node]()
    for node in reversed(order):
        if node.outputs[0] in views and node.outputs[0] not in alive:
            dead.add(node)
        else:
            alive.update(node.inputs)
    of = lambda r: [n for node in r.nodes for n in (*added.get(node, ()), renamed.get(node, node)) if n not in dead]  # noqa: E731
    return [n for n in order if n not in dead], [replace(r, nodes=tuple(own)) for r in regions if (own := of(r))]


def _label(node: Node) -> object:
    types = tuple(v.type for v in (*node.inputs, *node.outputs))
    return node.op.name, attrs_key(node.attrs), types


__all__ = ["FuseHotPath", "cut", "repeats"]
