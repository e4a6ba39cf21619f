"""A program cut into pieces: what runs between two collectives, and is compiled as one.

Owns: ``Piece``, ``Stretch`` (a piece at its place), ``Layout`` and ``lay_out``. Must not know: torch, source.
Next: ``render`` (a piece's source).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from gt.ir.opdef import OPS
from gt.ir.program import Collective, Compute, Program, WireNode, made_types
from gt.ir.types import DType, TensorType

Inplace: TypeAlias = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]

MIN_REPEATS = 3  # a region that comes this often in a program is worth compiling once, as a piece of its own
MAX_PIECE_NODES = 2000  # Inductor's time grows faster than the graph; past this a piece ends at a region's edge
MAX_SMALL_NODES = 300  # the same where pieces are compiled side by side and cost nothing to call, in one CUDA graph


class Piece(msgspec.Struct, frozen=True):
    """Nodes that run together. Slots are numbered inputs, then scalars, then results: equal pieces are equal structs.

    ``outputs`` may name inputs. ``inplace`` as in Compute. Locations are not part of a piece.
    """

    inputs: int
    scalars: tuple[str, ...]  # dtypes
    nodes: tuple[WireNode, ...]
    outputs: tuple[int, ...]
    inplace: Inplace = ()

    def made_types(self) -> dict[int, TensorType]:
        """Give the types, by slot, of all but the inputs."""
        scalars = {slot: TensorType((), DType.by_name[dtype]) for slot, dtype in enumerate(self.scalars, self.inputs)}
        return scalars | made_types(self.nodes)

    def mutated(self) -> frozenset[int]:
        """Give the inputs whose memory the piece overwrites."""
        roots = self.roots()
        found = set()
        for index, pairs in self.inplace:
            found |= {roots[self.nodes[index].inputs[operand]] for _, operand in pairs}
        return frozenset(slot for slot in found if slot < self.inputs)

    def roots(self) -> dict[int, int]:
        """Give for each slot the slot whose memory an in-place update reuses for it: itself if none."""
        root = {slot: slot for slot in range(self.inputs + len(self.scalars))}
        inplace = dict(self.inplace)
        for i, node in enumerate(self.nodes):
            for slot in node.outputs:
                root[slot] = slot
            for result, operand in inplace.get(i, ()):
                root[node.outputs[result]] = root[node.inputs[operand]]
        return root

    def kept(self) -> tuple[int, ...]:
        """For each output, the input that it is after the run (updated in place or passed on), or -1 if it is new."""
        roots = self.roots()
        return tuple(roots[slot] if roots[slot] < self.inputs else -1 for slot in self.outputs)


@dataclass(frozen=True)
class Stretch:
    """A piece at its place in a program: which of its slots it reads and defines, and the nodes' locations."""

    piece: Piece
    inputs: tuple[int, ...]
    scalars: tuple[int, ...]  # positions in the run's list of scalars
    outputs: tuple[int, ...]
    compile: bool
    locations: tuple[int, ...]  # of each node, in the program's table


@dataclass(frozen=True)
class Layout:
    """A program cut into stretches and collectives, in order."""

    program: Program
    parts: tuple[Stretch | Collective, ...]

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        return tuple(p for p in self.parts if isinstance(p, Stretch))

    @property
    def is_single(self) -> bool:
        """The whole program is one piece that reads all inputs and gives all outputs in order."""
        if len(self.parts) != 1 or not isinstance(self.parts[0], Stretch):
            return False
        (only,) = self.stretches
        ins, outs = (slot for _, slot in self.program.inputs), (slot for _, slot in self.program.outputs)
        return only.inputs == tuple(ins) and only.outputs == tuple(outs)


# -- cutting a program into pieces


def lay_out(program: Program, cut_repeats: bool = False, undo: bool = False) -> Layout:
    """Cut a program at its collectives, and where ``compile`` changes.

    ``cut_repeats``: regions that repeat (a model's layers) become equal pieces, each compiled once, and long ones stay
    apart; calls cost more. ``undo``: up to the last op that may refuse its values no piece overwrites an input, so that nothing is lost
    where one does; what comes after is a piece of its own.
    """
    program, end = _with_end_apart(program) if undo else (program, 0)
    counts = Counter(step.key for step in program.steps if isinstance(step, Compute)) if cut_repeats else Counter[str]()
    most = MAX_SMALL_NODES if cut_repeats else MAX_PIECE_NODES
    own = {key for key, count in counts.items() if count >= MIN_REPEATS}
    groups: list[list[Compute] | Collective] = []
    kept = 0  # so many groups overwrite no input
    for i, step in enumerate(program.steps):
        if i == end:
            kept = len(groups)
        if isinstance(step, Collective):
            groups.append(step)
        elif isinstance(step, Compute):
            last = groups[-1] if groups else None
            joins = isinstance(last, list) and last[0].compile == step.compile and _size([*last, step]) <= most
            if isinstance(last, list) and joins and len(groups) > kept and step.key not in own and last[0].key not in own:
                last.append(step)
            else:
                groups.append([step])
    whole = len(groups) == 1
    parts: list[Stretch | Collective] = []
    if end == len(program.steps):
        kept = len(groups)
    for i, (group, after) in enumerate(zip(groups, _needed_after(groups, program), strict=True)):
        parts.append(group if isinstance(group, Collective) else _stretch(group, after, program, whole, i < kept))
    return Layout(program, tuple(parts))


def _with_end_apart(program: Program) -> tuple[Program, int]:
    """Cut the region in which the last op is that may refuse its values, behind it; give the program and how many steps that is.

    What one op has taken counts as taken by all.
    """
    taken: set[int] = set()
    root: dict[int, int] = {}
    last: tuple[int, int] | None = None
    for i, step in enumerate(program.steps):
        for j, node in enumerate(step.nodes if isinstance(step, Compute) else ()):
            op = OPS[node.op]
            if (op.view or op.name == "in_range") and node.inputs:
                root[node.outputs[0]] = root.get(node.inputs[0], node.inputs[0])
            found = {root.get(slot, slot) for slot in node.refusable}
            if not found <= taken:
                last = i, j + 1
            taken |= found
    if last is None:
        return program, 0
    at, end = last
    step = program.steps[at]
    assert isinstance(step, Compute)
    if end == len(step.nodes):
        return program, at + 1
    head = tuple((i, pairs) for i, pairs in step.inplace if i < end)
    rest = tuple((i - end, pairs) for i, pairs in step.inplace if i >= end)
    halves = (
        msgspec.structs.replace(step, nodes=step.nodes[:end], inplace=head),
        msgspec.structs.replace(step, nodes=step.nodes[end:], inplace=rest),
    )
    return msgspec.structs.replace(program, steps=(*program.steps[:at], *halves, *program.steps[at + 1 :])), at + 1


def _size(steps: list[Compute]) -> int:
    return sum(len(s.nodes) for s in steps)


def _reads(part: list[Compute] | Collective) -> set[int]:
    if isinstance(part, Collective):
        return {part.input}
    return {slot for step in part for node in step.nodes for slot in node.inputs}


def _needed_after(groups: Sequence[list[Compute] | Collective], program: Program) -> list[set[int]]:
    """Give for each group the slots read by anything after it."""
    alive, out = {slot for _, slot in program.outputs}, []
    for group in reversed(groups):
        out.append(set(alive))
        alive |= _reads(group)
    return out[::-1]


def _stretch(steps: list[Compute], after: set[int], program: Program, whole: bool, kept: bool) -> Stretch:
    """Renumber the steps' slots. A piece that is the whole program takes all inputs and gives the program's outputs.

    ``kept``: it overwrites no input.
    """
    nodes: list[WireNode] = []
    inplace: list[tuple[int, tuple[tuple[int, int], ...]]] = []
    for step in steps:
        inplace += [(len(nodes) + index, pairs) for index, pairs in step.inplace]
        nodes += step.nodes
    scalar_at = {slot: i for i, (slot, _) in enumerate(program.scalars)}
    inputs = dict.fromkeys(slot for _, slot in program.inputs) if whole else {}
    scalars: dict[int, None] = {}
    defined: dict[int, None] = {}
    for node in nodes:
        for slot in node.inputs:
            if slot not in defined:
                (scalars if slot in scalar_at else inputs)[slot] = None
        for slot in node.outputs:
            defined[slot] = None
    outputs = tuple(slot for _, slot in program.outputs) if whole else tuple(slot for slot in defined if slot in after)
    number_of = {slot: i for i, slot in enumerate((*inputs, *scalars))}
    renumbered, count = [], len(number_of)
    for node in nodes:
        ins = tuple([number_of[slot] for slot in node.inputs])
        first = count
        for slot in node.outputs:
            number_of[slot] = count
            count += 1
        renumbered.append(WireNode(node.op, ins, tuple(range(first, count)), node.types, node.attrs))
    piece = Piece(
        len(inputs), tuple(program.scalars[scalar_at[s]][1] for s in scalars), tuple(renumbered),
        tuple(number_of[slot] for slot in outputs), tuple(inplace),
    )  # fmt: skip
    if kept:
        piece = _with_inputs_kept(piece)
    places = tuple(scalar_at[s] for s in scalars)
    return Stretch(piece, tuple(inputs), places, outputs, steps[0].compile, tuple(node.loc for node in nodes))


def _with_inputs_kept(piece: Piece) -> Piece:
    """Take an input's memory for no result."""
    roots = piece.roots()
    others = ((i, tuple(p for p in pairs if roots[piece.nodes[i].inputs[p[1]]] >= piece.inputs)) for i, pairs in piece.inplace)
    return msgspec.structs.replace(piece, inplace=tuple((i, pairs) for i, pairs in others if pairs))


__all__ = ["Layout", "Piece", "Stretch", "lay_out"]
