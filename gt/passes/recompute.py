"""Values that live across the peak of memory, made once more where they are read behind it instead of kept.

Recomputed is kept, bit by bit: the same ops on the same values, random ones too, which are functions of their seed. What is made
again is made from what is there anyway or is itself made again; a worker's collectives are not repeated. Owns: ``Recompute``, of one
graph and one moment. Must not know: limits, any op. Next: ``fit_memory`` (who decides what).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gt.ir.graph import Graph, Node, Value
from gt.ir.types import TensorType
from gt.passes.context import MemoryPlan, Region
from gt.passes.cost import Machine, compute_s, time_text
from gt.passes.plan_memory import Storage
from gt.passes.work import node_work

MOST_NODES = 40  # made again for one value
LEAST_AWAY = 4  # nodes from the peak to where a value is next read
LEAST_PART = 2000  # of the peak: what is smaller is kept

Regions = tuple[Region, ...] | None


@dataclass(frozen=True)
class Candidate:
    """A value that need not be kept: what is made again for it alone, and how long that takes."""

    value: Value
    nodes: tuple[Node, ...]
    seconds: float


def seconds(node: Node, machine: Machine) -> float:
    """Give the predicted seconds of a node by itself."""
    if node.op.view:
        return 0.0
    return compute_s(node_work(node), sum(v.type.nbytes for v in (*node.inputs, *node.outputs)), machine)


class Recompute:
    """A graph, what its memory plan says of the peak, and what can be made again behind it."""

    def __init__(self, graph: Graph, regions: Regions, memory: MemoryPlan, machine: Machine) -> None:
        self.graph, self.regions, self.memory, self.machine = graph, regions, memory, machine
        self.place = {node: i for i, node in enumerate(graph.nodes)}
        self.at = self.place.get(memory.peak_at, len(graph.nodes)) if memory.peak_at is not None else -1
        self.storage = Storage(graph)
        self.first: dict[Value, int] = {}  # by storage: where it is next read behind the peak
        for i in range(len(graph.nodes) - 1, self.at, -1):
            for value in graph.nodes[i].inputs:
                self.first[self.storage.root[value]] = i

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Give what need not be kept, cheapest bytes first; of equals what was made first, as it is kept longest."""
        found = []
        for value in self.memory.peak:
            made, read = self.storage.made.get(value), self.first.get(value)
            if made is None or made >= self.at or read is None or read < self.at + LEAST_AWAY:
                continue
            if value.type.nbytes * LEAST_PART < self.memory.most:
                continue
            if value in self.storage.kept or not self._here(value, read):
                continue
            chain = self.chain(value, ())
            if chain is not None:
                nodes = chain[0]
                found.append(Candidate(value, nodes, sum(seconds(node, self.machine) for node in nodes)))
        return sorted(found, key=lambda c: (c.seconds / max(c.value.type.nbytes, 1), self.storage.made[c.value]))

    def _here(self, value: Value, read: int) -> bool:
        """Whether what reads a value behind the peak computes on its mesh."""
        mesh = lambda t: t.sharding.mesh if t.sharding is not None else None  # noqa: E731
        users = [self.graph.nodes[read], *(u for u, _ in self.graph.uses.get(value, ()) if self.place[u] > self.at)]
        return all(u.op.effect or mesh(u.outputs[0].type) == mesh(value.type) for u in users)

    def chain(self, value: Value, dropped: Collection[Value]) -> tuple[tuple[Node, ...], set[Value]] | None:
        """Give the nodes that make a value where it is read, and from what that is there; None if that cannot be, or is too much."""
        at, found, there = self.first[value], dict[Node, None](), set[Value]()
        todo = [value]
        while todo:
            v = todo.pop()
            node = self.graph.producer.get(v)
            root = self.storage.root[v]
            if node is None or node in found:
                continue
            if root is not value and root not in dropped and self.storage.last.get(root, -1) >= at:
                there.add(root)
                continue
            if not self._repeats(node) or len(found) == MOST_NODES:
                return None
            found[node] = None
            todo += node.inputs
        return tuple(found), there

    def _repeats(self, node: Node) -> bool:
        return not node.op.effect and node not in self.memory.inplace

    def cheap(self) -> list[Value]:
        """Give the candidates that can all go together, in order."""
        dropped: dict[Value, set[Value]] = {}  # each with what it is made from
        for candidate in self.candidates:
            now = {*dropped, candidate.value}
            others = (v for v, there in dropped.items() if candidate.value in there)
            chains = {v: self.chain(v, now) for v in (candidate.value, *others)}
            fit = {v: chain[1] for v, chain in chains.items() if chain is not None}
            if len(fit) == len(chains):
                dropped |= fit
        return list(dropped)

    def without(self, dropped: Iterable[Value]) -> tuple[Graph, Regions, dict[Node, list[Node]]]:
        """Give the graph in which these are made again behind the peak, its regions, and by what made each what does so again."""
        return _Rewrite(self, set(dropped)).run()


class _Rewrite:
    def __init__(self, plan: Recompute, dropped: set[Value]) -> None:
        self.plan, self.dropped = plan, dropped
        self.again: dict[Value, Value] = {}
        self.before: dict[Node, list[Node]] = {}  # what is put in front of a node
        self.made: dict[Node, list[Node]] = {plan.graph.producer[v]: [] for v in sorted(dropped, key=plan.storage.made.__getitem__)}

    def run(self) -> tuple[Graph, Regions, dict[Node, list[Node]]]:
        graph, root = self.plan.graph, self.plan.storage.root
        nodes: dict[Node, Node] = {}
        for i, node in enumerate(graph.nodes):
            nodes[node] = node
            if i > self.plan.at and any(root[v] in self.dropped for v in node.inputs):
                near: dict[Value, Value] = {}
                out = self.before[node] = []
                inputs = tuple(self._again(v, i, near, out, graph.producer[root[v]]) if root[v] in self.dropped else v for v in node.inputs)
                nodes[node] = replace(node, inputs=inputs)
        listed = [n for old in graph.nodes for n in (*self.before.get(old, ()), nodes[old])]
        live = _live(listed, graph.outputs)
        regions = placed_in(self.plan.regions, graph, nodes, self.before, {}, live)
        return graph.with_nodes(n for n in listed if n in live), regions, {old: [n for n in new if n in live] for old, new in self.made.items()}

    def _again(self, value: Value, at: int, near: dict[Value, Value], out: list[Node], owner: Node) -> Value:
        """Give what stands for a value at a place, made there if it is not there. ``owner`` made what this is needed for."""
        plan = self.plan
        root, node = plan.storage.root[value], plan.graph.producer.get(value)
        if value in self.again or value in near:
            return self.again.get(value) or near[value]
        there = root not in self.dropped and plan.storage.last.get(root, -1) >= at
        if node is None or there or not plan._repeats(node):
            return value
        owner = plan.graph.producer[root] if root in self.dropped else owner
        inputs = tuple(self._again(v, at, near, out, owner) for v in node.inputs)
        fresh = tuple(Value(v.type, v.hint) for v in node.outputs)
        out.append(replace(node, inputs=inputs, outputs=fresh, why="recomputed"))
        self.made[owner].append(out[-1])
        for old, new in zip(node.outputs, fresh, strict=True):
            (self.again if plan.storage.root[old] in self.dropped else near)[old] = new
        return self.again.get(value) or near[value]


def _live(nodes: list[Node], outputs: Iterable[Value]) -> set[Node]:
    wanted, live = set(outputs), set[Node]()
    for node in reversed(nodes):
        if node.op.effect or any(out in wanted for out in node.outputs):
            live.add(node)
            wanted.update(node.inputs)
    return live


def placed_in(
    regions: Regions, graph: Graph, nodes: dict[Node, Node], before: dict[Node, list[Node]], behind: dict[Node, list[Node]],
    live: Collection[Node],
) -> Regions:  # fmt: skip
    """Give the regions of a graph whose nodes became others, with more put before and behind some: beside them, or between regions."""
    if regions is None:
        return None
    of = {node: i for i, region in enumerate(regions) for node in region.nodes}
    made: list[tuple[object, Region]] = []
    for old in graph.nodes:
        key: object = of.get(old, old)
        region = regions[of[old]] if old in of else Region(())
        for new in (*before.get(old, ()), nodes.get(old), *behind.get(old, ())):
            if new is None or new.op.effect or new not in live:
                continue
            if made and made[-1][0] == key:
                made[-1] = key, replace(made[-1][1], nodes=(*made[-1][1].nodes, new))
            else:
                made.append((key, Region((new,), region.compile)))
    return tuple(region for _, region in made)


def described(again: Mapping[Node, Sequence[Node]], machine: Machine) -> list[str]:
    """Give what is not kept, by op, type and line, with the bytes and with the seconds that it takes to make again; longest first."""
    found: dict[tuple[str, TensorType, str], tuple[int, float]] = {}
    for node, nodes in again.items():
        key = node.op.name, node.outputs[0].type.placed(None), str(node.loc or "")
        count, took = found.get(key, (0, 0.0))
        found[key] = count + 1, took + sum(seconds(n, machine) for n in nodes)
    order = sorted(found.items(), key=lambda item: -item[1][1])
    return [
        f"{count} x {name} {type_!r}, {count * type_.nbytes / 1e6:.4g} MB, {time_text(s)}" + (f", at {at}" if at else "")
        for (name, type_, at), (count, s) in order
    ]  # fmt: skip


__all__ = ["Candidate", "Recompute", "described", "placed_in", "seconds"]
