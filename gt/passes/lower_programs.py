"""From the one LOCAL graph to each worker's program: slots, regions, collectives with one plan-wide numbering, frees.

A worker takes part in a node if the node's result lives on it. Workers alike share all they can; attributes that
differ by worker (Coords) become numbers here. Nothing can wait in a circle: all that workers do together begins in the one order
of the graph on each of them, and no send or receive waits; what is received is waited for where it is first read.
Owns: slot numbering, the order of steps, group lists. Must not know: torch, sockets.
Next: ``transfers``, ``gt.ir.program`` (the form), ``gt.runtime.executor`` (runs it).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, cast

import msgspec

from gt.ir.graph import Attrs, AttrValue, Coord, Graph, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.ops.collective import sent_bytes, transfer
from gt.ir.program import Collective, Compute, Free, Program, Step, WireNode, WireType, pack_attrs
from gt.passes.context import Context, PlanRefused, Region
from gt.passes.parts import Part, parts_of
from gt.passes.schedule import launches, scatters_soon
from gt.passes.transfers import Frame, Half, ended, is_kept, receives, region_key, sends, waited

Coords: TypeAlias = dict[Mesh, dict[str, int]]  # a worker's coordinates on each mesh it is of
_PLACING = ("axes", "parts", "group", "with_next")  # attributes of collectives that the plan's groups and launches replace


@dataclass(frozen=True)
class LowerPrograms:
    """Fill ``context.programs`` and ``context.output_shardings``; the graph itself is done and stays."""

    name: ClassVar[str] = "lower_programs"

    def run(self, graph: Graph, context: Context) -> Graph:
        plan = _Plan(graph, context)
        context.programs = Programs(plan, tuple(w for w in context.mesh.workers if any(plan.kind(w))))
        context.output_shardings = [plan.sharding(v) for v in graph.outputs]
        if graph.options.comm_bytes is not None:
            _check_budget(context.programs, graph, graph.options.comm_bytes)
        return graph


def _check_budget(programs: Programs, graph: Graph, budget: int) -> None:
    """Refuse to send more than the client allows, and name what sends most. In transfers workers alike send more or less."""
    for worker in programs if any(node.op is transfer for node in graph.nodes) else programs.roles():
        program = programs[worker]
        sent = sum(c.nbytes for c in program.collectives)
        if sent > budget:
            lines = [f"comm_budget: worker {worker} would send {sent} bytes, {budget} are allowed. Most are sent by:"]
            for c in sorted(program.collectives, key=lambda c: -c.nbytes)[:5]:
                file, line, _ = program.locations[c.loc] if c.loc >= 0 else ("?", 0, "")
                lines.append(f"  {c.nbytes} B {c.kind} for {c.why or 'its readers'}, {file}:{line}")
            raise PlanRefused("\n".join(lines))


class Programs(Mapping[int, Program]):
    """Each worker's program, made when asked for: planning for many workers costs no more than for the ones looked at."""

    def __init__(self, plan: _Plan, workers: tuple[int, ...]) -> None:
        self._plan, self._workers = plan, dict.fromkeys(workers)
        self._made: dict[int, Program] = {}

    def __getitem__(self, worker: int) -> Program:
        if worker not in self._workers:
            raise KeyError(worker)
        if worker not in self._made:
            self._made[worker] = self._plan.program(worker)
        return self._made[worker]

    def __iter__(self) -> Iterator[int]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def parts(self, worker: int) -> list[tuple[Part | Half, list[Node]]]:
        """Give what a worker does, in order: regions, collectives and ends of transfers, each with the nodes it takes part in."""
        return self._plan.layout(worker).parts

    def roles(self) -> dict[int, tuple[int, ...]]:
        """Give one worker for each program that differs in more than numbers, with all workers that run it."""
        alike: dict[tuple[bool, ...], list[int]] = {}
        for worker in self._workers:
            alike.setdefault(self._plan.kind(worker), []).append(worker)
        return {workers[0]: tuple(workers) for workers in alike.values()}


class _Plan:
    """What all workers' programs share."""

    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph, self.context = graph, context
        self.parts, self.soon = parts_of(graph, context.regions), scatters_soon(graph)
        self.launch = {node: launch for launch in launches(graph) for node in launch}
        comms = [part for part in self.parts if isinstance(part, Node)]
        self.number = {node: i for i, node in enumerate(comms)}
        types = dict.fromkeys([v.type for v in graph.values])
        self.on = {t: t.sharding.mesh if t.sharding is not None else context.mesh for t in types}
        self.meshes = tuple(dict.fromkeys(self.on.values()))
        groups = {cast("tuple[int, ...]", n.attr["group"]) for n in comms if n.op.name == "transfer"}
        self.sets = [frozenset(workers) for workers in (*(m.workers for m in self.meshes), *groups)]
        self.alike: dict[tuple[bool, ...], _Layout] = {}
        self.groups: dict[tuple[Mesh, tuple[str, ...]], dict[int, tuple[int, ...]]] = {}

    def mesh(self, value: Value) -> Mesh:
        return self.on[value.type]

    def sharding(self, value: Value) -> Sharding:
        return value.type.sharding or Sharding.replicated(self.context.mesh, value.type.ndim)

    def group(self, worker: int, node: Node) -> tuple[int, ...]:
        """Give the workers that a collective along mesh axes joins ``worker`` with."""
        key = self.mesh(node.inputs[0]), cast("tuple[str, ...]", node.attr["axes"])
        if key not in self.groups:
            self.groups[key] = _groups(*key)
        return self.groups[key][worker]

    def kind(self, worker: int) -> tuple[bool, ...]:
        """Give which values and transfers the worker takes part in."""
        return tuple(worker in workers for workers in self.sets)

    def layout(self, worker: int) -> _Layout:
        kind = self.kind(worker)
        if kind not in self.alike:
            self.alike[kind] = _Layout(self, worker)
        return self.alike[kind]

    def program(self, worker: int) -> Program:
        return self.layout(worker).program(worker)


class _Layout:
    """What workers that hold the same values share: slots, the order of steps, all steps that no coordinate changes."""

    def __init__(self, plan: _Plan, member: int) -> None:
        self.plan, self.member = plan, member
        self.slots: dict[Value, int] = {}
        self.types: dict[int, WireType] = {}
        self.held = {type_ for type_, mesh in plan.on.items() if member in mesh.workers}
        self.wire_types = {type_: WireType.of(type_) for type_ in plan.on}
        self.resolved: dict[tuple[int, tuple[Attrs, ...]], Compute] = {}  # regions by what the coordinates make of them
        self.wire: dict[Node, WireNode] = {}  # nodes that are the same on all workers
        self.packed: dict[int, tuple[tuple[str, Any], ...]] = {}  # attributes of these by identity: many nodes share theirs
        graph = plan.graph
        for value in (*(v for v in graph.inputs if self.holds(v)), *graph.scalars):
            self.define(value)
        self.read = self.needed()
        self.parts: list[tuple[Part | Half, list[Node]]] = []
        self.coming: list[Node] = []  # transfers that have begun and not been read yet
        self.begins: dict[Node, int] = {}  # before which part they did
        self.unread: dict[Value, int] = {}  # results of collectives, by where these stand among the parts
        for part in plan.parts:
            if nodes := self.taken(part):
                self.add(part, nodes)
        self.receive(list(self.coming))
        self.await_(set(self.unread))
        taken = [node for _, nodes in self.parts for node in nodes]
        self.locations = {loc: i for i, loc in enumerate(dict.fromkeys(n.loc for n in taken if n.loc is not None))}
        outputs = {self.slots[v] for v in graph.outputs if self.holds(v)}
        last, slots = dict.fromkeys(self.slots.values(), -1), self.slots
        for i, (done, nodes) in enumerate(self.parts):
            if not _is_wait(done):
                last.update([(slots[v], i) for node in nodes for v in node.inputs if v in slots])
            else:
                last.update([(slots[out], max(i, last[slots[out]])) for node in nodes for out in node.outputs])
        last.update(dict.fromkeys(outputs, len(self.parts)))
        self.last = last
        self.steps = [self.step(i, part, nodes) for i, (part, nodes) in enumerate(self.parts)]
        self.dying = [self.frees(i) for i in range(-1, len(self.parts))]  # before the first step, then after each

    # -- the order of steps

    def add(self, part: Part, nodes: list[Node]) -> None:
        """Take the next part, after receiving what it reads."""
        started = self.plan.launch.get(part, ()) if isinstance(part, Node) else ()
        reads = {v for node in (*nodes, *started) for v in node.inputs}
        if self.coming and (wanted := [node for node in self.coming if node.output in reads]):
            self.receive(wanted)
        self.await_(reads)
        if isinstance(part, Node) and part.op.name == "transfer":
            if self.holds(part.inputs[0]):
                self.parts.append((Half(part, False), nodes))
            if self.holds(part.inputs[0]) and self.holds(part.output) and is_kept(part):
                self.define(part.output, self.slots[part.inputs[0]])
            elif self.holds(part.output):
                self.coming.append(part)
                self.begins[part] = len(self.parts)
            return
        if isinstance(part, Node):
            if part in self.plan.soon:  # each has whole gradients under way: one is over before the next begins
                self.await_({v for v in self.unread if self.plan.graph.producer[v] in self.plan.soon})
            self.unread[part.output] = len(self.parts)
        self.parts.append((part, nodes))
        for node in nodes:
            for out in node.outputs:
                if self.holds(out):
                    self.define(out)

    def await_(self, reads: Set[Value]) -> None:
        """Wait for collectives whose results are read; at once where nothing was computed meanwhile (``parts.travelling``), but for
        those of a launch, which begin on all of their workers.
        """
        for value in [v for v in self.unread if v in reads]:
            at = self.unread.pop(value)
            node, nodes = self.parts[at]
            assert isinstance(node, Node)
            if node in self.plan.launch or any(isinstance(part, Region) for part, _ in self.parts[at + 1 :]):
                self.parts[at] = Half(node, False), nodes
                self.parts.append((Half(node, True), nodes))

    def receive(self, wanted: list[Node]) -> None:
        """Wait for transfers."""
        for node in wanted:
            self.coming.remove(node)
            self.parts.append((Half(node, True), [node]))
            self.define(node.output)

    # -- who holds what

    def holds(self, value: Value) -> bool:
        return value.type in self.held

    def taken(self, part: Part) -> list[Node]:
        """Give the nodes of a part that these workers take part in."""
        if isinstance(part, Region):
            held, read = self.held, self.read
            return [n for n in part.nodes if any([out.type in held and out in read for out in n.outputs])]
        return [part] if self.holds(part.output) or self.member in _members(part) else []

    def needed(self) -> set[Value]:
        """Give the values that these workers read, send or keep: of those they could compute, others may send their own."""
        found, held = set(self.plan.graph.outputs), self.held
        for node in reversed(self.plan.graph.nodes):
            if node.op.effect == "comm":
                takes = self.member in _members(node) or self.holds(node.output)
            else:
                takes = any([out.type in held and out in found for out in node.outputs])
            if takes:
                found.update(node.inputs)
        return found

    def define(self, value: Value, slot: int | None = None) -> None:
        if slot is None:
            slot = len(self.types)
            self.types[slot] = self.wire_types[value.type]
        self.slots[value] = slot

    # -- steps

    def step(self, at: int, part: Part | Half, nodes: list[Node]) -> Compute | None:
        """Give a finished region; None for what is finished for each worker."""
        return (
            None
            if not isinstance(part, Region) or any(_differs(node.attrs) for node in nodes)
            else self.compute(at, part, nodes, {})
        )

    def frees(self, at: int) -> tuple[int, ...]:
        """Give the slots that die with a step, those inside a region excepted; before the first step, the unread."""
        if at < 0:
            known = len([v for v in self.plan.graph.inputs if v in self.slots]) + len(self.plan.graph.scalars)
            return tuple(slot for slot in range(known) if self.last[slot] < 0)
        part, nodes = self.parts[at]
        seen = {self.slots[v] for node in nodes for v in node.inputs if v in self.slots} if not _is_wait(part) else set()
        made = {self.slots[out] for node in nodes for out in node.outputs if out in self.slots}
        if isinstance(part, Half) and not part.receives:
            made = set()
        outside = seen - made if isinstance(part, Region) else seen | made
        return tuple(sorted(slot for slot in outside if self.last[slot] <= at))

    def program(self, worker: int) -> Program:
        graph, memory = self.plan.graph, self.plan.context.memory
        coords = {mesh: mesh.coords(worker) for mesh in self.plan.meshes if worker in mesh.workers}
        steps: list[Step] = [Free(self.dying[0])] if self.dying[0] else []
        fresh = itertools.count(len(self.types))
        starts: list[int] = []  # of the parts among the steps
        begun: list[tuple[int, int, Step]] = []  # receives, by where and in which order they begin
        for i, ((part, nodes), step) in enumerate(zip(self.parts, self.steps, strict=True)):
            starts.append(len(steps))
            if isinstance(part, Node):
                steps.append(self.collective(worker, part))
            elif isinstance(part, Half) and part.node.op.name != "transfer":
                begins = msgspec.structs.replace(self.collective(worker, part.node), begins=True)
                steps.append(ended(begins) if part.receives else begins)
            elif isinstance(part, Half):
                number = self.plan.number[part.node]
                for made in self.end(part, Frame(worker, number, self.location(part.node), fresh)):
                    steps.append(waited(made))
                    if steps[-1] is not made:
                        begun.append((starts[self.begins[part.node]], number, made))
            else:
                steps.append(step if isinstance(step, Compute) else self.differing(i, part, nodes, coords))
            if self.dying[i + 1]:
                steps.append(Free(self.dying[i + 1]))
        for at, _, receive in reversed(sorted(begun, key=lambda entry: entry[:2])):
            steps.insert(at, receive)
        overwritten = memory.overwritten if memory is not None else frozenset()
        held = [(i, self.slots[v]) for i, v in enumerate(graph.inputs) if v in self.slots]
        return Program(
            worker=worker,
            inputs=tuple(held),
            scalars=tuple((self.slots[v], v.type.dtype.name) for v in graph.scalars),
            steps=tuple(steps),
            outputs=tuple((i, self.slots[v]) for i, v in enumerate(graph.outputs) if v in self.slots),
            locations=tuple((loc.file, loc.line, loc.function) for loc in self.locations),
            donated=tuple(slot for i, slot in held if i in overwritten),
            name=graph.name,
            peak_nbytes=memory.peak_nbytes.get(worker, 0) if memory is not None else 0,
            float32_matmul=graph.options.float32_matmul,
        )

    def differing(self, at: int, region: Region, nodes: list[Node], coords: Coords) -> Compute:
        """Give a region whose attributes differ by worker; workers of equal attributes share it."""
        own = tuple(self.attrs(node, coords) for node in nodes if _differs(node.attrs))
        if (at, own) not in self.resolved:
            self.resolved[at, own] = self.compute(at, region, nodes, coords)
        return self.resolved[at, own]

    def attrs(self, node: Node, coords: Coords) -> Attrs:
        return cast(Attrs, _resolved(node.attrs, coords[self.plan.mesh(node.outputs[0])]))

    def compute(self, at: int, region: Region, nodes: list[Node], coords: Coords) -> Compute:
        wire = tuple(self.node(node, coords) for node in nodes)
        made = [slot for node in wire for slot in node.outputs]
        own = set(made)
        outside = dict.fromkeys([slot for node in wire for slot in node.inputs])
        inputs = tuple([slot for slot in outside if slot not in own])
        outputs = tuple(slot for slot in made if self.last[slot] > at)
        memory = self.plan.context.memory
        plan = memory.inplace if memory is not None else {}
        inplace = tuple((i, plan[node]) for i, node in enumerate(nodes) if node in plan)
        key = region_key(wire, inputs, outputs, [self.types[slot] for slot in inputs], inplace)
        return Compute(wire, inputs, outputs, key, region.compile, inplace)

    def node(self, node: Node, coords: Coords) -> WireNode:
        if node in self.wire:
            return self.wire[node]
        differs, slots = _differs(node.attrs), self.slots
        if differs:
            attrs = pack_attrs(self.attrs(node, coords))
        elif (found := self.packed.get(id(node.attrs))) is not None:
            attrs = found
        else:
            attrs = self.packed[id(node.attrs)] = pack_attrs(node.attrs)
        inputs, outputs = tuple([slots[v] for v in node.inputs]), tuple([slots[v] for v in node.outputs])
        types = tuple([self.wire_types[v.type] for v in node.outputs])
        made = WireNode(node.op.name, inputs, outputs, types, attrs, self.location(node))
        if not differs:
            self.wire[node] = made
        return made

    def location(self, node: Node) -> int:
        return -1 if node.loc is None else self.locations[node.loc]

    def end(self, half: Half, frame: Frame) -> list[Step]:
        source = self.slots.get(half.node.inputs[0])
        if half.receives:
            return receives(half.node, source, self.slots[half.node.output], frame)
        assert source is not None
        return sends(half.node, source, frame)

    def collective(self, worker: int, node: Node) -> Collective:
        source, target = node.inputs[0], node.output
        group = self.plan.group(worker, node)
        whole = max(source.type.nbytes, target.type.nbytes) * (len(group) if node.op.name == "all_to_all" else 1)
        attrs = [(name, value) for name, value in node.attrs if name not in _PLACING]
        if node in self.plan.launch and node is not self.plan.launch[node][-1]:
            attrs.append(("with_next", True))
        return Collective(
            kind=node.op.name,
            number=self.plan.number[node],
            input=self.slots[source],
            output=self.slots[target],
            type=WireType.of(target.type),
            group=group,
            attrs=pack_attrs(tuple(attrs)),
            nbytes=sent_bytes(node.op.name, len(group), whole),
            loc=self.location(node),
            why=node.why,
            inplace=self.may_overwrite(node),
        )

    def may_overwrite(self, node: Node) -> bool:
        """Whether a sum may be in its operand's memory: that is the operand's own, and nothing else reads it."""
        graph, source = self.plan.graph, node.inputs[0]
        maker = graph.producer.get(source)
        if node.op.name != "all_reduce" or maker is None or maker.op.effect or source in graph.outputs:
            return False
        shares = maker.op.may_share([v.type for v in maker.inputs], [v.type for v in maker.outputs])
        return not shares and len(graph.uses[source]) == 1


def _is_wait(part: Part | Half) -> bool:
    """Whether nothing is read by a part but what a collective that has begun gives."""
    return isinstance(part, Half) and part.receives and part.node.op.name != "transfer"


def _members(node: Node) -> tuple[int, ...]:
    return cast("tuple[int, ...]", node.attr["group"]) if node.op.name == "transfer" else ()


def _groups(mesh: Mesh, axes: Sequence[str]) -> dict[int, tuple[int, ...]]:
    """Give for each worker those that differ from it only on ``axes``, ordered by their coordinates on these."""
    found: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    coords = {worker: mesh.coords(worker) for worker in mesh.workers}
    for worker, own in coords.items():
        rest = tuple(c for axis, c in own.items() if axis not in axes)
        found.setdefault(rest, []).append((tuple(own[axis] for axis in axes), worker))
    groups = [tuple(worker for _, worker in sorted(members)) for members in found.values()]
    return {worker: group for group in groups for worker in group}


def _differs(value: Attrs | AttrValue) -> bool:
    return isinstance(value, Coord) or (isinstance(value, tuple) and any([_differs(v) for v in value]))


def _resolved(value: Any, coords: dict[str, int]) -> Any:
    if isinstance(value, Coord):
        return value.at(coords)
    return tuple(_resolved(v, coords) for v in value) if isinstance(value, tuple) else value


__all__ = ["LowerPrograms", "Programs", "region_key"]
