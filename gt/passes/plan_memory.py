"""Decides what shares memory: which outputs need a copy, which nodes may overwrite an operand, and the peak.

Outputs own their memory: an output that is an input, a view, or shares memory with another output gets a ``copy`` node.
An operand is overwritten by proof only; what could not be is noted with the reason. Owns: storage analysis.
Must not know: buffers, workers' stores. Next: ``lower_programs``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from gt.ir.graph import Graph, Location, Node, Value
from gt.ir.mesh import Mesh
from gt.ir.ops import OPS
from gt.ir.ops.collective import transfer
from gt.passes.context import Context, MemoryPlan, Region
from gt.passes.parts import parts_of, travelling
from gt.passes.schedule import moved_inputs
from gt.passes.transfers import is_kept

InPlace: TypeAlias = dict[Node, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class PlanMemory:
    """Insert copies, then plan reuse. ``inplace`` off: nothing is overwritten."""

    name: ClassVar[str] = "plan_memory"
    inplace: bool = True

    def run(self, graph: Graph, context: Context) -> Graph:
        graph, context.memory = memory_plan(graph, context, self.inplace)
        if text := over_limit(graph, context.memory.most):
            context.placement_notes.append(text)
        return graph


def memory_plan(graph: Graph, context: Context, reuse: bool = True) -> tuple[Graph, MemoryPlan]:
    """Give the graph with its copies, which are noted and put into the context's regions, and what shares memory."""
    given, storage = graph, Storage(graph)
    graph = _copy_outputs(graph, storage, context)
    storage = storage if graph is given else Storage(graph)
    inplace: InPlace = {}
    if reuse:
        given = graph
        graph, inplace = _plan_inplace(graph, storage, context)
        storage = storage if graph is given else Storage(graph)
    overwritten = {node.inputs[o] for node, pairs in inplace.items() for _, o in pairs}
    peaks, at, alive = _peak(graph, storage, inplace, context)
    return graph, MemoryPlan(inplace, frozenset(i for i, v in enumerate(graph.inputs) if v in overwritten), peaks, at, alive)


def over_limit(graph: Graph, peak: int) -> str:
    """Say that a plan takes more than the memory limit, by how much, and whether it is the run that moves parameters."""
    limit = graph.options.memory_limit
    if limit is None or peak <= limit:
        return ""
    moved = moved_inputs(graph)
    moves = any(node.op.effect == "comm" and node.output in moved for node in graph.nodes)
    once = "; it brings inputs to where later runs have them, which those need not" if moves else ""
    return f"memory_limit: a run takes up to {peak / 1e6:.4g} MB on a worker, over the limit of {limit / 1e6:.4g} MB{once}"


class Storage:
    """Whose memory each value is in: ``root`` is the value that owns it, ``resized`` views that are not all of it, or have some of it twice.

    A worker that keeps rows of what it sends reads these where it puts them together with what it receives: where the result is first
    read, and workers read different ones first. ``until``: by root, the last node before which that may be.
    """

    def __init__(self, graph: Graph) -> None:
        self.root: dict[Value, Value] = {v: v for v in (*graph.inputs, *graph.scalars)}
        self.resized: set[Value] = set()
        self.last: dict[Value, int] = {}  # by root: the last node that reads the storage
        self.until: dict[Value, int] = {}
        self.made: dict[Value, int] = {}
        coming: dict[Value, Value] = {}  # results of transfers, with the root of what some worker keeps rows of
        come: set[Value] = set()  # those of them that have been read
        for i, node in enumerate(graph.nodes):
            op, shares = node.op, node.op.view
            if op.shares is not None or op is transfer:
                shares = op.may_share([v.type for v in node.inputs], [v.type for v in node.outputs]) or _stays(node)
            for value in node.inputs:
                self.last[self.root[value]] = i
                if (root := coming.get(value)) is not None:
                    self.until[root] = i
                    if value not in come:
                        self.last[root] = i
                        come.add(value)
            if node.op is transfer and not is_kept(node) and _shared(node):
                coming[node.output] = self.root[node.inputs[0]]
            for out in node.outputs:
                if shares:
                    source = node.inputs[0]
                    self.root[out] = self.root[source]
                    if source in self.resized or out.type.numel != source.type.numel or op is OPS["as_strided"]:
                        self.resized.add(out)
                else:
                    self.root[out] = out
                    self.made[out] = i
        for value in coming.keys() & set(graph.outputs):
            self.until[coming[value]] = len(graph.nodes)
            if value not in come:
                self.last[coming[value]] = len(graph.nodes)
        self.roots = tuple([v for v, root in self.root.items() if root is v])
        self.kept = {self.root[v] for v in graph.outputs}
        self.scalars = set(graph.scalars)
        self.undonated = {v for i, v in enumerate(graph.inputs) if i not in graph.donated}


def _stays(node: Node) -> bool:
    """Whether a worker on both sides of a transfer reads its part where it is."""
    return node.op is transfer and is_kept(node) and _shared(node)


def _shared(node: Node) -> bool:
    """Whether some worker is on both sides of a transfer."""
    meshes = [v.type.sharding.mesh.workers for v in (*node.inputs, *node.outputs) if v.type.sharding is not None]
    return not set(meshes[0]).isdisjoint(meshes[1])


def _copy_outputs(graph: Graph, storage: Storage, context: Context) -> Graph:
    outside = {*graph.inputs, *graph.scalars}
    taken: set[Value] = set()
    copies: list[Node] = []
    outputs: list[Value] = []
    for value, loc in zip(graph.outputs, context.output_locs or [None] * len(graph.outputs), strict=True):
        root = storage.root[value]
        reason = ""
        if root in outside:
            reason = "an output may not share memory with an input"
        elif root in taken:
            reason = "two outputs may not share memory"
        elif value in storage.resized:
            reason = "an output that is a part of a larger value would keep all of it alive"
        taken.add(root)
        if reason:
            copy = _copy(value, reason, loc)
            copies.append(copy)
            context.note(value, f"copied: {reason}")
            value = copy.output
        outputs.append(value)
    if not copies:
        return graph
    if context.regions is not None:
        context.regions = _with_copies(context.regions, graph.nodes, copies)
    return graph.with_nodes((*graph.nodes, *copies), outputs)


def _with_copies(regions: tuple[Region, ...], nodes: Sequence[Node], copies: list[Node]) -> tuple[Region, ...]:
    if regions and regions[-1].nodes[-1] is nodes[-1]:
        return (*regions[:-1], replace(regions[-1], nodes=(*regions[-1].nodes, *copies)))
    return (*regions, Region(tuple(copies)))


def _plan_inplace(graph: Graph, storage: Storage, context: Context) -> tuple[Graph, InPlace]:
    """Find the nodes that may overwrite. Where only some operands of a node may be, the others are copied for it."""
    plan: InPlace = {}
    swaps: dict[Node, tuple[Node, ...]] = {}
    for i, node in enumerate(graph.nodes):
        pairs = node.op.inplace_pairs(len(node.inputs), node.attrs) if node.op.torch_inplace is not None else ()
        if not pairs:
            continue
        reads = Counter(storage.root[v] for v in node.inputs)
        faults = {o: _why_not(node.inputs[o], node.outputs[r], i, reads, storage) for r, o in pairs}
        bad = {operand: fault for operand, fault in faults.items() if fault}
        for operand, fault in bad.items():
            context.note(node.inputs[operand], f"not updated in place by {node.op.name}: {fault}")
        if not bad:
            plan[node] = pairs
        elif len(bad) < len(pairs) and not any(fault.startswith("the result") for fault in bad.values()):
            copies = {o: _copy(node.inputs[o], fault, node.loc) for o, fault in bad.items()}
            inputs = tuple(copies[o].output if o in copies else v for o, v in enumerate(node.inputs))
            new = replace(node, inputs=inputs)
            swaps[node] = (*copies.values(), new)
            plan[new] = pairs
    outputs = set(graph.outputs)
    for value in storage.roots:
        if value not in storage.kept and value not in storage.made:
            plan.update(_chain(value, graph, outputs, storage, plan))
    if not swaps:
        return graph, plan
    swapped = lambda nodes: tuple(n for node in nodes for n in swaps.get(node, (node,)))  # noqa: E731
    if context.regions is not None:
        context.regions = tuple(replace(r, nodes=swapped(r.nodes)) for r in context.regions)
    return graph.with_nodes(swapped(graph.nodes)), plan


def _chain(value: Value, graph: Graph, outputs: Set[Value], storage: Storage, plan: InPlace) -> InPlace:
    """Give the elementwise nodes that lead from an input to the output which replaces it, all in the input's memory.

    So running statistics and counters stay where they are. Nothing, unless each node is the last reader of the one before.
    """
    found: InPlace = {}
    while storage.last.get(value, len(graph.nodes)) < len(graph.nodes):
        node = graph.nodes[storage.last[value]]
        operand = node.inputs.index(value) if value in node.inputs else -1
        if operand not in node.op.into or node in plan:
            return {}
        reads = Counter([storage.root[v] for v in node.inputs])
        if _why_not(value, node.output, storage.last[value], reads, storage):
            return {}
        found[node] = ((0, operand),)
        value = node.output
        if value in outputs:
            return found
    return {}


def _copy(value: Value, why: str, loc: Location | None) -> Node:
    return Node(OPS["copy"], (value,), (Value(value.type, value.hint),), loc=loc, why=why)


def _why_not(value: Value, made: Value, at: int, reads: Counter[Value], storage: Storage) -> str:
    """Give why an operand's memory cannot hold a result, or nothing if it can. ``reads``: operands by storage."""
    if (value.type.shape, value.type.dtype) != (made.type.shape, made.type.dtype) or (
        value.type.sharding and made.type.sharding and value.type.sharding != made.type.sharding
    ):
        return f"the result is {made.type!r}, it is {value.type!r}"
    root = storage.root[value]
    if root is not value:
        return "it is a view"
    if value in storage.scalars:
        return "a run-time scalar is never overwritten"
    if value in storage.undonated:
        return "the caller still holds it"
    if reads[root] != 1:
        return "the same memory is read by another operand"
    if storage.last[root] != at:
        return "it is read again later"
    if storage.until.get(root, at) > at:
        return "a worker keeps rows of it, which it may read later"
    return "it, or a view of it, is an output" if root in storage.kept else ""


def _peak(graph: Graph, storage: Storage, inplace: InPlace, context: Context) -> tuple[dict[int, int], Node | None, tuple[Value, ...]]:
    """Estimate the most bytes alive at once on each worker, and what they are on the fullest one.

    A donated input dies with its last use; other inputs and the outputs live through the run. What travels while others compute has
    its own copy of what it sends, and room for what comes.
    """
    meshes: dict[Mesh, int] = {}  # by number: the workers of a mesh may be many
    types = dict.fromkeys([v.type for v in graph.values])
    where = {t: meshes.setdefault(t.sharding.mesh if t.sharding else context.mesh, len(meshes)) for t in types}
    held = storage.undonated | storage.scalars | storage.kept
    takes = {node.outputs[r]: node.inputs[o] for node, pairs in inplace.items() for r, o in pairs}
    dies: dict[int, list[Value]] = {}
    for root in storage.roots:
        if root not in held:
            dies.setdefault(storage.last.get(root, storage.made.get(root, -1)), []).append(root)
    members = [(number, frozenset(mesh.workers)) for mesh, number in meshes.items()]
    alike: dict[frozenset[int], list[int]] = {}  # workers that hold the same values
    for worker in context.mesh.workers:
        alike.setdefault(frozenset(number for number, on in members if worker in on), []).append(worker)
    now = [0] * len(meshes)
    for value in (*graph.inputs, *graph.scalars):
        now[where[value.type]] += value.type.nbytes
    most = {group: (sum(now[w] for w in group), -1) for group in alike}
    place = {node: i for i, node in enumerate(graph.nodes)}
    under_way = travelling(graph, parts_of(graph, context.regions))
    waits: dict[int, list[Node]] = {}  # by the node before which they are over
    for node, reader in under_way.items():
        waits.setdefault(place[reader] if reader is not None else len(place), []).append(node)

    def look(at: int) -> None:
        for group, (nbytes, _) in most.items():
            total = sum([now[w] for w in group])
            if total > nbytes:
                most[group] = total, at

    def end(at: int) -> None:
        for node in waits.get(at, ()):
            while_away, when_over = _buffers(node)
            now[where[node.output.type]] += when_over - while_away
            look(at - 1)
            now[where[node.output.type]] -= when_over

    for i, node in enumerate(graph.nodes):
        end(i)
        later = []
        for out in node.outputs:
            if storage.root[out] is not out:
                continue
            if out in takes:
                later.append(out)
            else:
                now[where[out.type]] += out.type.nbytes
        if node in under_way:
            now[where[node.outputs[0].type]] += _buffers(node)[0]
        look(i)
        for root in dies.get(i, ()):
            now[where[root.type]] -= root.type.nbytes
        for out in later:
            now[where[out.type]] += out.type.nbytes
    end(len(place))
    peaks = {worker: most[group][0] for group, workers in alike.items() for worker in workers}
    fullest = max(most, key=lambda group: most[group], default=frozenset())
    at = most[fullest][1] if fullest else -1
    alive = [
        v for v in storage.roots
        if where[v.type] in fullest and storage.made.get(v, -1) <= at and (v in held or storage.last.get(v, -1) >= at) and v not in takes
    ]  # fmt: skip
    return peaks, graph.nodes[at] if at >= 0 else None, tuple(sorted(alive, key=lambda v: -v.type.nbytes))


def _buffers(node: Node) -> tuple[int, int]:
    """Give the bytes that a collective under way takes beside its result: meanwhile, and when the result is put together."""
    sent, made = node.inputs[0].type.nbytes, node.output.type.nbytes
    match node.op.name:
        case "reduce_scatter":  # the parts for all, and all parts to sum
            return 2 * sent, 2 * sent
        case "all_to_all":
            return sent, 2 * sent
        case "all_gather":  # parts, then joined
            return sent, sent + made
        case _:
            return 0, 0


__all__ = ["PlanMemory", "Storage", "memory_plan", "over_limit"]
