"""Long plans in parts: programs cut where no collective is under way, each part a program of its own, so that others' runs go in between.

Owns: ``Cut`` (the parts of a plan), ``cut_plan``, ``Going`` (a run whose parts are being sent). Pure. A cut is at the same place of the order
of collectives on all workers; between two of them each worker is cut where it has done the same share of its work. What is alive at a
cut is kept under uids of the run's own. A part may overwrite what the whole program would. Must not know: messages, whose turn it is.
Next: ``parts`` (which sends the parts, each as an epoch).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from gt.ir import ops  # noqa: F401  the op table
from gt.ir.opdef import OPS
from gt.ir.program import Collective, Compute, Free, Program, Step, WireNode, unpack_attrs
from gt.ir.types import TensorType
from gt.passes.work import multiply_adds
from gt.runtime.errors import Fault
from gt.runtime.schedule import Buffer, Flight
from gt.runtime.wire import Run

if TYPE_CHECKING:
    from gt.runtime.plan_records import PlanRecord

MAX_PARTS = 512
OP_S = 5e-6  # of any op, however small
MACS_S, BYTES_S = 1e-12, 1e-11  # of which only the ratio counts: parts are shares of what the whole takes


@dataclass(frozen=True)
class Part:
    """One part: programs by worker, without those that have nothing to do in it; its share of the plan's time.

    Positions of inputs count the run's inputs, its outputs, then what is kept between parts; those of outputs count the last two.
    ``last_inputs``: positions among the run's inputs that no later part reads; ``last_kept`` the same among what is kept.
    """

    id: int
    programs: Mapping[int, Program]
    share: float
    last_inputs: frozenset[int]
    last_kept: frozenset[int]


@dataclass(frozen=True)
class Cut:
    """A plan's parts, in order. ``kept``: how many values may be alive between two, on the worker that keeps most."""

    parts: tuple[Part, ...]
    kept: int


@dataclass(eq=False)
class Going:
    """A run of which some parts are sent. ``outputs`` have no names yet: the client's later calls wait until the last part is sent.

    ``kept``: the uids of what is alive between parts. ``fault``: why the rest is not sent.
    """

    run: Run
    plan: PlanRecord
    cut: Cut
    inputs: list[Buffer]
    outputs: tuple[Buffer, ...]
    kept: tuple[int, ...]
    seconds: float
    refuses: bool
    next: int = 0
    flights: list[Flight] = field(default_factory=list)
    fault: Fault | None = None


def cut_plan(programs: Mapping[int, Program], num_inputs: int, num_outputs: int, parts: int, first_id: int, plan: int = -1) -> Cut | None:
    """Cut ``plan`` into at most so many parts of about equal time, numbered from ``first_id``; None where it cannot be cut."""
    workers = {w: _Worker(p, num_inputs, num_outputs) for w, p in programs.items()}
    if not all(w.in_order for w in workers.values()):
        return None
    edges = _edges(workers, min(parts, MAX_PARTS))
    if len(edges) < 3:
        return None
    ends = [max(w.last_part(i, edges, at) for at, w in workers.items()) for i in range(num_inputs)]
    made = []
    for n, (a, b) in enumerate(zip(edges, edges[1:], strict=False)):
        built = {w: one.part(a[w], b[w], plan) for w, one in workers.items() if a[w] < b[w]}
        share = max((one.seconds[b[w]] - one.seconds[a[w]] for w, one in workers.items()), default=0.0)
        made.append((built, share, frozenset(i for i, end in enumerate(ends) if max(end, 0) == n)))
    kept = max(len(w.kept) for w in workers.values())
    ends_of = [one.last_kept(edges, at) for at, one in workers.items()]
    lasts = [max(end[k] for end in ends_of if k < len(end)) for k in range(kept)]
    total = sum(share for _, share, _ in made) or 1.0
    return Cut(
        tuple(
            Part(first_id + n, built, share / total, last, frozenset(k for k, end in enumerate(lasts) if end == n))
            for n, (built, share, last) in enumerate(made)
        ),
        kept,
    )


Item = tuple[Step, int]  # a step, and which node of a Compute


class _Worker:
    """One worker's program as a line of items: the nodes of its regions, collectives and frees."""

    def __init__(self, program: Program, num_inputs: int, num_outputs: int) -> None:
        self.program, self.num_inputs, self.num_outputs = program, num_inputs, num_outputs
        self.items: list[Item] = []
        for step in program.steps:
            self.items += [(step, i) for i in range(len(step.nodes))] if isinstance(step, Compute) else [(step, -1)]
        self.types: dict[int, TensorType] = {}
        self.seconds = [0.0, *accumulate(map(self._cost, self.items))]
        self.collectives = [(i, s.number) for i, (s, _) in enumerate(self.items) if isinstance(s, Collective) and s.kind != "wait"]
        numbers = [number for _, number in self.collectives]
        self.in_order = numbers == sorted(numbers)
        self.closed = self._closed()
        self.given = {slot: position for position, slot in program.inputs}
        self.slots = {position: slot for position, slot in program.inputs}
        self.results = {slot: position for position, slot in program.outputs}
        self.numbers = {slot for slot, _ in program.scalars}
        self.constants: dict[int, WireNode] = {}
        self.made: dict[int, int] = {}
        self.read: dict[int, int] = {}  # by slot, the last item that reads it
        for i, item in enumerate(self.items):
            reads, writes = _touched(item)
            for slot in reads:
                self.read[slot] = i
            for slot in writes:
                self.made.setdefault(slot, i)
            step, at = item
            if isinstance(step, Compute) and OPS[step.nodes[at].op].literal and not step.nodes[at].types[0].shape:
                self.constants[step.nodes[at].outputs[0]] = step.nodes[at]
        self.kept: dict[int, int] = {}  # by slot, its number among what is kept between parts

    def _cost(self, item: Item) -> float:
        step, at = item
        if isinstance(step, Free):
            return 0.0
        if isinstance(step, Collective):
            self.types[step.output] = step.type.tensor_type
            return OP_S + step.nbytes * BYTES_S
        node = step.nodes[at]
        results = [t.tensor_type for t in node.types]
        operands = [self.types[s] for s in node.inputs if s in self.types]
        self.types.update(zip(node.outputs, results, strict=True))
        whole = len(operands) == len(node.inputs)
        macs = multiply_adds(OPS[node.op], operands, results, unpack_attrs(node.attrs)) if whole else 0
        return OP_S + macs * MACS_S + sum(t.nbytes for t in (*operands, *results)) * BYTES_S

    def _closed(self) -> list[bool]:
        """Say for each place between items whether nothing is under way there that a later item waits for, nor it is inside what a
        signal has compiled as one.
        """
        under_way: set[int] = set()
        closed = [True]
        for step, at in self.items:
            if isinstance(step, Collective):
                if step.kind == "wait":
                    under_way.discard(step.output)
                elif step.begins or step.kind == "receive":
                    under_way.add(step.output)
            inside = isinstance(step, Compute) and step.compile and at < len(step.nodes) - 1
            closed.append(not under_way and not inside)
        return closed

    def between(self, number: int) -> tuple[int, int]:
        """Give the first and last place where all collectives up to a number are done and none after it."""
        at = bisect_left([n for _, n in self.collectives], number + 1)
        low = self.collectives[at - 1][0] + 1 if at else 0
        high = self.collectives[at][0] if at < len(self.collectives) else len(self.items)
        return low, high

    def place(self, number: int, share: float) -> int | None:
        """Give a place between a number and the next where about so much of the work there is done; None if none may be cut."""
        low, high = self.between(number)
        wanted = self.seconds[low] + share * (self.seconds[high] - self.seconds[low])
        near = min(bisect_left(self.seconds, wanted, low, high), high)
        if near > low and wanted - self.seconds[near - 1] < self.seconds[near] - wanted:
            near -= 1
        for away in range(high - low + 1):
            for i in (near - away, near + away):
                if low <= i <= high and self.closed[i]:
                    return i
        return None

    def last_part(self, position: int, edges: Sequence[Mapping[int, int]], worker: int) -> int:
        """Give the last part that reads one of the run's inputs, -1 if none does."""
        slot = self.slots.get(position, -1)
        return self._part_of(self.read[slot], edges, worker) if slot in self.read else -1

    def last_kept(self, edges: Sequence[Mapping[int, int]], worker: int) -> list[int]:
        """Give the last part that reads each value that is kept between parts."""
        return [self._part_of(self.read[slot], edges, worker) for slot in self.kept]

    def _part_of(self, item: int, edges: Sequence[Mapping[int, int]], worker: int) -> int:
        return bisect_right(edges, item, key=lambda edge: edge[worker]) - 1

    def part(self, start: int, end: int, plan: int) -> Program:
        """Give the program of some items, of a plan of this number."""
        inputs: dict[int, int] = {}
        outputs: dict[int, int] = {}
        constants: dict[int, WireNode] = {}
        inside: set[int] = set()
        root: dict[int, int] = {}
        overwritten: set[int] = set()
        for step, at in self.items[start:end]:
            reads, writes = _touched((step, at))
            for slot in reads:
                if slot in inside or slot in self.numbers or slot in inputs:
                    continue
                if slot in self.constants:
                    constants[slot] = self.constants[slot]
                else:
                    inputs[slot] = self._source(slot)
            inside.update(writes)
            if isinstance(step, Compute):
                node = step.nodes[at]
                for result, operand in dict(step.inplace).get(at, ()):
                    taken = root.get(node.inputs[operand], node.inputs[operand])
                    root[node.outputs[result]] = taken
                    overwritten.add(taken)
            for slot in writes:
                if slot in self.results:
                    outputs[slot] = self.results[slot]
                elif self.read.get(slot, -1) >= end and slot not in self.constants:
                    outputs[slot] = self.num_outputs + self.kept.setdefault(slot, len(self.kept))
        known = inside | inputs.keys() | constants.keys()
        steps: list[Step] = []
        if constants:
            nodes = tuple(constants.values())
            steps.append(Compute(nodes, (), tuple(constants), "constants:" + ",".join(map(str, constants))))
        steps += _steps(self.items[start:end], known)
        return msgspec.structs.replace(
            self.program,
            inputs=tuple((position, slot) for slot, position in inputs.items()),
            outputs=tuple((position, slot) for slot, position in outputs.items()),
            steps=tuple(steps),
            donated=tuple(slot for slot in inputs if slot in overwritten),
            part_of=plan,
            goes_on=end < len(self.items),
        )

    def _source(self, slot: int) -> int:
        if slot in self.given:
            return self.given[slot]
        if slot in self.results:
            return self.num_inputs + self.results[slot]
        return self.num_inputs + self.num_outputs + self.kept[slot]


def _touched(item: Item) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give the slots that an item reads and makes."""
    step, at = item
    if isinstance(step, Compute):
        return step.nodes[at].inputs, step.nodes[at].outputs
    if isinstance(step, Collective):
        made = (step.output,) if step.output >= 0 else ()
        return ((step.input,) if step.input >= 0 else ()), made
    return (), ()


def _steps(items: Sequence[Item], known: set[int]) -> list[Step]:
    """Put items together to steps again; what is freed is only what is there."""
    steps: list[Step] = []
    at = 0
    while at < len(items):
        step, first = items[at]
        if isinstance(step, Compute):
            count = 1
            while at + count < len(items) and items[at + count][0] is step:
                count += 1
            steps.append(_piece(step, first, first + count))
            at += count
            continue
        if isinstance(step, Free):
            slots = tuple(s for s in step.slots if s in known)
            steps += [Free(slots)] if slots else []
        else:
            steps.append(step)
        at += 1
    return steps


def _piece(step: Compute, start: int, end: int) -> Compute:
    """Give some nodes of a region as one of its own."""
    if (start, end) == (0, len(step.nodes)):
        return step
    nodes = step.nodes[start:end]
    made = {slot for node in nodes for slot in node.outputs}
    inputs = tuple(dict.fromkeys(slot for node in nodes for slot in node.inputs if slot not in made))
    later = {slot for node in step.nodes[end:] for slot in node.inputs} | set(step.outputs)
    inplace = tuple((i - start, pairs) for i, pairs in step.inplace if start <= i < end)
    return Compute(nodes, inputs, tuple(s for s in made if s in later), f"{step.key}[{start}:{end}]", step.compile, inplace)


def _edges(workers: Mapping[int, _Worker], parts: int) -> list[dict[int, int]]:
    """Give the places of the cuts on each worker, the beginning and the end included."""
    numbers = [-1, *sorted({n for w in workers.values() for _, n in w.collectives})]
    lengths = []
    for number in numbers:
        spans = [(w, *w.between(number)) for w in workers.values()]
        lengths.append(max(w.seconds[high] - w.seconds[low] for w, low, high in spans))
    ends = list(accumulate(lengths))
    edges = [dict.fromkeys(workers, 0)]
    for j in range(1, parts):
        wanted = ends[-1] * j / parts
        at = min(bisect_left(ends, wanted), len(ends) - 1)
        share = 1 - (ends[at] - wanted) / lengths[at] if lengths[at] else 1.0
        places = {w: one.place(numbers[at], share) for w, one in workers.items()}
        edge = {w: place for w, place in places.items() if place is not None}
        later = len(edge) == len(workers) and all(edge[w] >= edges[-1][w] for w in workers)
        if later and any(edge[w] > edges[-1][w] for w in workers):
            edges.append(edge)
    final = {w: len(one.items) for w, one in workers.items()}
    return [*edges, final] if final != edges[-1] else edges


__all__ = ["Cut", "Going", "Part", "cut_plan"]
