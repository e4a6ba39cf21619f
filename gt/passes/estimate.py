"""What a plan will cost on each worker, by the planner's constants: flops, bytes, seconds, and memory by user line.

Owns: ``estimate`` and its result. Reads a LOCAL graph and what the passes handed on; runs nothing. Must not know: any one
op. Next: ``cost`` (the constants), ``plan_memory`` (the peak).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gt.ir.graph import Graph, Location, Node, Value
from gt.ir.mesh import Mesh
from gt.ir.ops.collective import sent_bytes, transfer, transfer_load
from gt.passes.context import Context, Region
from gt.passes.cost import H100, Machine, step_s, transfer_s
from gt.passes.lower_programs import Programs
from gt.passes.timeline import Timeline, timeline
from gt.passes.transfers import Half
from gt.passes.work import node_work


@dataclass(frozen=True)
class CollectiveCost:
    """Collectives of one kind, cause and line: how many, what one worker sends in all, and how long they take."""

    kind: str
    why: str
    loc: Location | None
    count: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class MemoryUse:
    """What values made at one line hold at the peak; ``loc`` None: inputs of the run."""

    loc: Location | None
    nbytes: int
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Estimate:
    """One worker's run, the busiest one's where they differ.

    ``run_s``: how long the whole run takes, if something travels beside the computing or workers with programs of their own wait
    for each other; ``bubble``: the share of all workers' time that they wait.
    """

    flops: int
    nbytes: int
    compute_s: float
    collectives: tuple[CollectiveCost, ...]
    peak_nbytes: int
    memory: tuple[MemoryUse, ...]
    run_s: float | None = None
    bubble: float = 0.0

    @property
    def comm_s(self) -> float:
        return sum(c.seconds for c in self.collectives)

    @property
    def comm_nbytes(self) -> int:
        return sum(c.nbytes for c in self.collectives)

    @property
    def seconds(self) -> float:
        return self.compute_s + self.comm_s if self.run_s is None else self.run_s


def estimate(graph: Graph, context: Context, machine: Machine = H100) -> Estimate:
    """Estimate the run of a graph that all passes have seen."""
    memory = context.memory
    peak = max(memory.peak_nbytes.values(), default=0) if memory is not None else 0
    held = tuple(_memory(graph, context))
    time = _timeline(graph, context.programs, machine)
    if time is None:
        regions = [list(region.nodes) for region in context.regions or ()]
        return Estimate(*_computing(graph, regions, machine), tuple(_collectives(graph.nodes, machine)), peak, held)
    assert isinstance(context.programs, Programs)
    parts = context.programs.parts(time.busiest)
    regions = [nodes for part, nodes in parts if isinstance(part, Region)]
    comms = dict.fromkeys(node for part, nodes in parts if not isinstance(part, Region) for node in nodes)
    computing = _computing(graph, regions, machine)
    return Estimate(*computing, tuple(_collectives(comms, machine)), peak, held, time.seconds, time.bubble)


def predicted_s(graph: Graph, context: Context, machine: Machine = H100) -> float:
    """Give the seconds of ``estimate`` alone, which needs no memory by line."""
    time = _timeline(graph, context.programs, machine)
    if time is not None:
        return time.seconds
    computing = _computing(graph, [list(region.nodes) for region in context.regions or ()], machine)[2]
    return computing + sum(sent_and_seconds(node, machine)[1] for node in graph.nodes if node.op.effect == "comm")


def _computing(graph: Graph, regions: Iterable[list[Node]], machine: Machine) -> tuple[int, int, float]:
    """Give the flops, the bytes moved in memory, and the seconds of regions."""
    flops = nbytes = 0
    seconds = 0.0
    for nodes in regions:
        macs, moved = sum(map(node_work, nodes)), _traffic(graph, nodes)
        flops, nbytes = flops + 2 * macs, nbytes + moved
        seconds += max(2 * macs / machine.flops, moved / machine.memory_bandwidth)
    return flops, nbytes, seconds


def _timeline(graph: Graph, programs: object, machine: Machine) -> Timeline | None:
    """Give how workers wait for each other and for what travels meanwhile; None if nothing does."""
    if not isinstance(programs, Programs):
        return None
    if not any(isinstance(part, Half) for worker in programs.roles() for part, _ in programs.parts(worker)):
        return None
    region_s = lambda nodes: _computing(graph, [nodes], machine)[2]  # noqa: E731
    return timeline(programs.roles(), programs.parts, region_s, lambda node: sent_and_seconds(node, machine)[1], machine)


def _traffic(graph: Graph, nodes: Sequence[Node]) -> int:
    """Give the bytes a region moves if all but its contractions is fused: what it reads and writes outside, and theirs."""
    inside = {out for node in nodes for out in node.outputs}
    own, outputs = set(nodes), set(graph.outputs)
    kept = {
        out for out in inside
        if out in outputs or any(user not in own for user, _ in graph.uses.get(out, ()))
    }  # fmt: skip
    outside = {v for node in nodes for v in node.inputs if v not in inside}
    total = sum(v.type.nbytes for v in outside | kept)
    for node in nodes:
        if node_work(node):
            total += sum(v.type.nbytes for v in (*node.inputs, *node.outputs) if v in inside)
    return total


def _collectives(nodes: Iterable[Node], machine: Machine) -> Iterator[CollectiveCost]:
    count: Counter[tuple[str, str, Location | None]] = Counter()
    sent: Counter[tuple[str, str, Location | None]] = Counter()
    seconds: Counter[tuple[str, str, Location | None]] = Counter()
    for node in nodes:
        if node.op.effect != "comm":
            continue
        key = node.op.name, node.why, node.loc
        nbytes, time = sent_and_seconds(node, machine)
        count[key] += 1
        sent[key] += nbytes
        seconds[key] += time  # type: ignore[assignment]
    for key in sorted(count, key=lambda k: (-sent[k], k[0], k[1], str(k[2]))):
        kind, why, loc = key
        yield CollectiveCost(kind, why, loc, count[key], sent[key], float(seconds[key]))


def sent_and_seconds(node: Node, machine: Machine = H100) -> tuple[int, float]:
    """Give the bytes that one worker sends in a collective, and the seconds it takes; the last of a launch takes that to start, too."""
    if node.op is transfer:
        messages, nbytes = transfer_load(node)
        return nbytes, transfer_s(messages, nbytes, len(node.attr["group"]), machine)  # type: ignore[arg-type]
    parts, whole = _group(node)
    return sent_bytes(node.op.name, parts, whole), step_s(node.op.name, parts, whole, machine, not node.attr.get("with_next"))


def _group(node: Node) -> tuple[int, int]:
    """Give how many workers a collective joins and the bytes of its value as if whole along them."""
    source, target = node.inputs[0], node.output
    assert source.type.sharding is not None
    mesh: Mesh = source.type.sharding.mesh
    axes = node.attr["axes"]
    assert isinstance(axes, tuple)
    parts = math.prod([mesh.axis_size(str(axis)) for axis in axes])
    whole = max(source.type.nbytes, target.type.nbytes)
    return parts, whole * (parts if node.op.name == "all_to_all" else 1)


def _memory(graph: Graph, context: Context) -> Iterator[MemoryUse]:
    by_line: dict[Location | None, list[Value]] = {}
    for value in context.memory.peak if context.memory is not None else ():
        producer = graph.producer.get(value)
        by_line.setdefault(producer.loc if producer is not None else None, []).append(value)
    held = {loc: sum(v.type.nbytes for v in values) for loc, values in by_line.items()}
    for loc in sorted(held, key=lambda at: -held[at]):
        yield MemoryUse(loc, held[loc], tuple(by_line[loc]))


__all__ = ["CollectiveCost", "Estimate", "MemoryUse", "estimate", "predicted_s", "sent_and_seconds"]
