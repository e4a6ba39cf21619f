"""From a graph to the problem that its placement is, and from a solution back to where every node computes.

Inputs that a node updates in place are one unit with the output that takes their memory: they may live anywhere, from the
next run on, so where they are now does not count and the next search finds the same. Other inputs stay where they are.
Outputs land where it suits. Gradients, what an update makes, and what this graph itself reads on are free to stay in parts:
such a tensor is seldom read by anything else, and a client's read joins the parts by itself. Of other results, which later
graphs may read whole, half of joining them is charged. What users asked for is given. Owns: ``SearchGraph``. Must not know:
how problems are solved, any op. Next: ``options`` (how a node can compute), ``search_problem``.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gt.ir.graph import Graph, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.types import TensorType
from gt.passes.apart import written_apart
from gt.passes.cost import Machine
from gt.passes.options import Call, Option, Part, parts
from gt.passes.placement import Choice
from gt.passes.search_problem import FOREVER, Problem, Slot, Stay, Unit, Way, Wire, move_s

FUSED = 1 / 16  # of a pass through memory: what a value costs that is made and read within one kernel
JOINED = 0.5  # share of results that are read whole
GRADIENT = "d_"  # begins the names of gradients
VIEW = (1, 0)
OTHERS = 2  # first joined between two uses of an input: then it is joined again, as ``gather_again`` does


@dataclass(frozen=True)
class Given:
    """What is not for the search to decide. ``inputs``: where they are. ``fixed``: where values must be.

    ``settled``: inputs that stay though an update in place would let them move.
    """

    inputs: Mapping[Value, Sharding]
    fixed: Mapping[Value, Sharding]
    settled: frozenset[Value]


@dataclass(frozen=True)
class NodePart:
    node: Node
    part: Part


@dataclass(frozen=True)
class Home:
    """Where an input lives that is updated in place."""

    input: Value
    output: Value


@dataclass(frozen=True)
class Landing:
    """Where a value is for its readers: an output, or what a user placed."""

    value: Value


@dataclass
class _Wire:
    """A wire whose ends are not all known yet."""

    type: TensorType
    stay: Stay
    mates: int
    times: int
    maker: Slot = (-1, -1)
    readers: list[Slot] = field(default_factory=list)

    def done(self) -> Wire:
        return Wire(self.type, self.maker, tuple(self.readers), self.mates, self.times, (self.stay,))


Source: TypeAlias = NodePart | Home | Landing | None


class SearchGraph:
    """``sources``: what each unit of the problem stands for; None for an input that stays where it is."""

    def __init__(self, graph: Graph, mesh: Mesh, given: Given, machine: Machine) -> None:
        self.graph, self.mesh, self.given, self.machine = graph, mesh, given, machine
        self.units: list[Unit] = []
        self.sources: list[Source] = []
        self.wires: list[_Wire] = []
        self.made: dict[Value, _Wire] = {}  # the wire of a value as its node makes it
        self.wire: dict[Value, _Wire] = {}  # the wire that readers read
        self.place = {node: i for i, node in enumerate(graph.nodes)}
        self.is_output = set(graph.outputs)
        self.ties = _ties(graph)
        self.lives = _lifetimes(graph)
        self.firsts = self._firsts()
        made = (v for node in graph.nodes for v in node.outputs if v in graph.uses)
        self.mates = max(sum(self._read_late(v) for v in made), 1)  # gradients, and parameters too: they are as many
        self._inputs()
        for node in graph.nodes:
            self._node(node)
        self._homes()
        wires = tuple(wire.done() for wire in self.wires)
        self.problem = Problem(tuple(self.units), wires, machine, len(graph.nodes) + 1)

    def choices(self, picks: Sequence[int]) -> tuple[dict[Node, Choice], dict[Node, Option], dict[Value, Sharding]]:
        """Give how each node computes, which are written in other ops and how, and where inputs and outputs go."""
        chosen: dict[Node, list[tuple[Part, Option]]] = {}
        landed: dict[Value, Sharding] = {}
        for unit, source, pick in zip(self.units, self.sources, picks, strict=True):
            if isinstance(source, NodePart):
                chosen.setdefault(source.node, []).append((source.part, source.part.options[pick]))
            elif isinstance(source, Home):
                landed[source.input] = landed[source.output] = unit.ways[pick].requires[0]
            elif isinstance(source, Landing):
                landed[source.value] = unit.ways[pick].requires[0]
        apart = {n: option for n, found in chosen.items() for _, option in found if option.apart}
        return {n: _choice(n, found) for n, found in chosen.items()}, apart, landed

    # -- wires

    def _add(self, source: Source, reads: Sequence[_Wire], makes: Sequence[_Wire], ways: Sequence[Way]) -> None:
        unit = len(self.units)
        for slot, wire in enumerate(makes):
            wire.maker = unit, slot
        for slot, wire in enumerate(reads):
            wire.readers.append((unit, slot))
        self.units.append(Unit(tuple(ways)))
        self.sources.append(source)

    def _new(self, value: Value, stay: Stay, mates: int, times: int = 1) -> _Wire:
        self.wires.append(wire := _Wire(value.type.placed(None), stay, mates, times))
        return wire

    def _uses(self, value: Value) -> list[int]:
        return sorted({self.place[node] for node, _ in self.graph.uses.get(value, ())})

    def _firsts(self) -> list[int]:
        """Give where each input of some size is first read."""
        uses = [self._uses(v) for v in self.graph.inputs if v.type.ndim > 1]
        return sorted(at[0] for at in uses if at)

    def _near(self, value: Value, others: int = 0) -> tuple[tuple[int, int], ...]:
        """Give the stretches over which a copy of a value is kept: from its first use to its last, or, with ``others``, of
        uses between which fewer other inputs are first read.
        """
        uses = self._uses(value)
        stretches = [[at, at] for at in uses[:1]]
        for before, after in itertools.pairwise(uses):
            if others and bisect_left(self.firsts, after) - bisect_left(self.firsts, before + 1) >= others:
                stretches.append([after, after])
            else:
                stretches[-1][1] = after
        return tuple((first, last) for first, last in stretches)

    def _mates(self, value: Value) -> int:
        """Give how many can travel with a value: those that only updates read can wait for each other."""
        return self.mates if self._read_late(value) else 1

    def _read_late(self, value: Value) -> bool:
        return all(node.op.follows is not None for node, _ in self.graph.uses.get(value, ()))

    # -- units

    def _inputs(self) -> None:
        donated = {v for i, v in enumerate(self.graph.inputs) if i in self.graph.donated}
        tied = set(self.ties.values())
        for value in (*self.graph.inputs, *self.graph.scalars):
            near = self._near(value, OTHERS)
            held = 2 if value in tied and value not in donated else 1
            dies = FOREVER if value in tied or value not in donated else self.lives[value][1]
            wire = self._new(value, Stay(0, dies, near, held), self.mates, max(len(near), 1))
            self.wire[value] = self.made[value] = wire
            if value not in tied:
                self._add(None, (), (wire,), [Way((), (self.given.inputs[value],), 0.0)])

    def _node(self, node: Node) -> None:
        for value in node.outputs:
            self._value(node, value)
        operands, results = (tuple(v.type.placed(None) for v in values) for values in (node.inputs, node.outputs))
        passes = tuple(self._passes(v) for v in (*node.inputs, *node.outputs))
        call = Call(node.op, node.attrs, operands, results, self.mesh, passes, self.machine)
        for part in parts(call):
            part = written_apart(call, part)
            reads = [self.wire[node.inputs[i]] for i in part.operands]
            makes = [self.made[node.outputs[i]] for i in part.results]
            self._add(NodePart(node, part), reads, makes, [Way(o.requires, o.produces, o.seconds) for o in part.options])
        for value in node.outputs:
            if self.wire[value] != self.made[value] and value not in self.ties:
                self._landing(value)

    def _value(self, node: Node, value: Value) -> None:
        """Make the wires of a result: one, or two where it is moved as soon as it is made."""
        at, mates, near = self.place[node], self._mates(value), self._near(value)
        born, dies = self.lives[value]
        if value not in self.is_output and value not in self.given.fixed:
            self.made[value] = self.wire[value] = self._new(value, Stay(born, dies, near), mates)
            return
        self.made[value] = self._new(value, Stay(at, at), self.mates)
        held = 0 if value in self.ties else 1  # a tied input holds the memory of both
        stay = Stay(at + 1, FOREVER if value in self.is_output else dies, near, held)
        self.wire[value] = self._new(value, stay, mates)

    def _landing(self, value: Value) -> None:
        fixed = self.given.fixed.get(value)
        joined = fixed is None and self._is_result(value)
        ways = []
        for placed in [fixed] if fixed is not None else spread(self.mesh, value.type):
            whole = Sharding.replicated(placed.mesh, value.type.ndim)
            charge = JOINED * move_s(placed, whole, value.type, self.mates, self.machine) if joined else 0.0
            ways.append(Way((placed,), (placed,), charge))
        self._add(Landing(value), [self.made[value]], [self.wire[value]], ways)

    def _is_result(self, value: Value) -> bool:
        """Whether an output is there for later graphs: nothing in this one reads it, it is no gradient and no updated state."""
        return value not in self.graph.uses and not value.hint.startswith(GRADIENT) and self.graph.producer[value].op.follows is None

    def _homes(self) -> None:
        for new, old in self.ties.items():
            at = self.given.inputs[old]
            fixed = self.given.fixed.get(new, at if old in self.given.settled else None)
            ways = []
            for placed in [fixed] if fixed is not None else spread(self.mesh, old.type):
                ways.append(Way((placed,), (placed, placed), 0.0))
            self._add(Home(old, new), [self.made[new]], [self.wire[old], self.wire[new]], ways)

    def _passes(self, value: Value) -> float:
        """Give how often a value goes to memory: hardly, if one op makes it for one other and both only map elements."""
        maker, uses = self.graph.producer.get(value), self.graph.uses.get(value, ())
        if maker is None or len(uses) != 1 or value in self.is_output:
            return 1.0
        return FUSED if _maps(maker) and _maps(uses[0][0]) else 1.0


def _maps(node: Node) -> bool:
    """Whether an op only maps elements, so that it fuses with its neighbours: it reduces nothing and reads nothing larger."""
    rule = node.op.rule([v.type for v in node.inputs], [v.type for v in node.outputs], node.attrs)
    if rule is None or len(node.outputs) != 1:
        return False
    kept = {f for d in rule.results[0] for f in d}
    return all(f in kept for f, _ in rule.sizes) and all(v.type.numel <= node.output.type.numel for v in node.inputs)


def spread(mesh: Mesh, type_: TensorType) -> list[Sharding]:
    """Give every placement of a value that is complete: each axis splits one dim, or none."""
    out = []
    for dims in itertools.product((None, *range(type_.ndim)), repeat=len(mesh.axes)):
        split: list[tuple[str, ...]] = [() for _ in range(type_.ndim)]
        for (axis, size), dim in zip(mesh.axes, dims, strict=True):
            if dim is not None and size > 1:
                split[dim] += (axis,)
        if all(size >= math.prod(map(mesh.axis_size, axes)) for axes, size in zip(split, type_.shape, strict=True) if axes):
            out.append(Sharding(mesh, tuple(split)))
    return list(dict.fromkeys(out))


def _ties(graph: Graph) -> dict[Value, Value]:
    """Give the outputs that take the memory of an input, with that input."""
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    ties: dict[Value, Value] = {}
    for node in graph.nodes:
        for result, operand in node.op.inplace_pairs(len(node.inputs), node.attrs):
            new, old = node.outputs[result], node.inputs[operand]
            if old in inputs and new in outputs and new.type.shape == old.type.shape and old not in ties.values():
                ties[new] = old
    return ties


def _lifetimes(graph: Graph) -> dict[Value, tuple[int, int]]:
    """Give between which nodes each value takes memory. A view takes none, its source lives for as long as it is read."""
    root: dict[Value, Value] = {}
    lives: dict[Value, tuple[int, int]] = {v: (0, 0) for v in (*graph.inputs, *graph.scalars)}
    for i, node in enumerate(graph.nodes):
        for value in node.inputs:
            owner = root.get(value, value)
            lives[owner] = lives[owner][0], i
        for value in node.outputs:
            if node.op.view:
                root[value] = root.get(node.inputs[0], node.inputs[0])
                lives[value] = VIEW
            else:
                lives[value] = i, i
    return lives


def _choice(node: Node, found: list[tuple[Part, Option]]) -> Choice:
    requires: dict[int, Sharding] = {}
    produces: dict[int, Sharding] = {}
    for part, option in found:
        requires |= zip(part.operands, option.requires, strict=True)
        produces |= zip(part.results, option.produces, strict=True)
    return Choice(
        tuple(requires[i] for i in range(len(node.inputs))), tuple(produces[i] for i in range(len(node.outputs))),
        tuple(f for _, option in found for f in option.factors), sum(option.seconds for _, option in found),
    )  # fmt: skip


__all__ = ["Given", "Home", "Landing", "NodePart", "SearchGraph", "Source", "spread"]
