"""Torch source of a program, from the op table: what is printed is what runs.

Owns: the source of pieces and of the driver that calls them. Two forms of a piece differ in how run-time scalars come:
as Python numbers (``eager``), or in two packed vectors (``compiled``), so that a changed scalar is never a new program.
Must not know: torch, threads. Next: ``executor`` (runs the source), ``compiler`` (compiles it elsewhere).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gt.ir.advice import Advised
from gt.ir.graph import Attrs, AttrValue, Coord, Location
from gt.ir.opdef import OPS, OpDef
from gt.ir.ops.families import number
from gt.ir.program import SAFE_TEXT, Collective, Program, WireNode, WireType, unpack_attrs
from gt.ir.types import SHORT, DType, Scalar, TensorType
from gt.runtime.layout import Layout, Piece, Stretch, lay_out

Form: TypeAlias = Literal["eager", "compiled"]

_HALVES = ("float16", "bfloat16")


class RenderError(Advised, ValueError):
    """A program that is not made of the op table's ops and plain attributes."""


@dataclass(frozen=True)
class Source:
    """Source of one function. ``nodes[i]`` is the node (or part) that line ``i + 1`` runs, -1 for none."""

    name: str
    text: str
    nodes: tuple[int, ...]


# -- source of a piece


def render_piece(piece: Piece, form: Form, name: str = "region", locations: Sequence[Location | None] = ()) -> Source:
    """Give the source of ``name(a, s)``, which takes inputs as a list, which it empties, and numbers; gives a list.

    The compiled form is ``name(a, floats, ints)`` and gives only those outputs that are new (``Piece.kept``).
    """
    return _PieceWriter(piece, form, name, locations).write()


@dataclass(frozen=True)
class _Kind:
    """One op on given types. ``template``: its source, with a place for each operand, or "" where that has to be asked each time."""

    op: OpDef
    attrs: dict[str, Any]
    types: tuple[TensorType, ...]
    template: str
    literal: str | None
    comment: str


class _PieceWriter:
    """Writes one function, line by line. A name is ``v`` and the slot, ``t`` for a number made a tensor."""

    def __init__(self, piece: Piece, form: Form, name: str, locations: Sequence[Location | None]) -> None:
        self.piece, self.form, self.name, self.locations = piece, form, name, locations
        self.lines: list[str] = []
        self.owners: list[int] = []
        self.numbers: dict[int, tuple[str, str]] = {}  # slot -> source of the number, dtype
        self.tensors: set[int] = set()  # numbers that have been made tensors
        self.inexact: set[int] = set()  # numbers that their dtype rounds, and torch would not
        self.kinds: dict[object, _Kind] = {}
        self.last_use: dict[int, int] = {}
        for i, node in enumerate(piece.nodes):
            self.last_use.update(dict.fromkeys((*node.inputs, *node.outputs), i))
        kept = piece.kept()
        self.returned = [s for s, k in zip(piece.outputs, kept, strict=True) if form == "eager" or k < 0]
        self.last_use.update(dict.fromkeys(piece.outputs, len(piece.nodes)))
        self.inplace = dict(piece.inplace)

    def line(self, text: str, owner: int = -1) -> None:
        self.lines.append(text)
        self.owners.append(owner)

    def write(self) -> Source:
        piece = self.piece
        arguments = "a, s" if self.form == "eager" else "a, floats, ints"
        self.line(f"def {self.name}({arguments}):")
        unused = [s for s in range(piece.inputs) if s not in self.last_use]
        if piece.inputs:
            self.line(f"    {_targets(range(piece.inputs))} = a; a.clear(){_deleted(unused)}")
        self.scalars()
        for i, node in enumerate(piece.nodes):
            self.node(i, node)
        for slot in self.returned:
            self.tensor(slot, len(piece.nodes) - 1)
        self.line(f"    return [{', '.join(self.text(s) for s in self.returned)}]")
        return Source(self.name, "\n".join(self.lines) + "\n", tuple(self.owners))

    def scalars(self) -> None:
        first = self.piece.inputs
        slots = range(first, first + len(self.piece.scalars))
        if self.form == "eager":
            self.numbers.update({s: (f"v{s}", d) for s, d in zip(slots, self.piece.scalars, strict=True)})
            self.inexact.update(s for s in slots if self.numbers[s][1] in _HALVES)
            if slots:
                self.line(f"    {_targets(slots)} = s")
            return
        for slot, dtype, (vector, at) in zip(slots, self.piece.scalars, packing(self.piece.scalars), strict=True):
            source = f"{vector}[{at}]"
            if DType.by_name[dtype].kind == "c":
                source = f"torch.complex({vector}[{at}], {vector}[{at + 1}])"
            self.line(f"    v{slot} = {source}.to(torch.{dtype})")

    def kind(self, node: WireNode) -> _Kind:
        """Give what nodes of one op on like types have in common; many of a piece are alike."""
        key = node.op, id(node.attrs), node.types, len(node.inputs)
        found = self.kinds.get(key)
        if found is None:
            op, attrs, types = checked(node)
            template = ""
            if isinstance(op.torch, str):
                operands = tuple([f"{{{i}}}" for i in range(len(node.inputs))])
                template = expression(op, operands, attrs, types)
                if template.startswith("(") and template.find(")") == len(template) - 1:
                    template = template[1:-1]  # Python's compiler takes a quarter longer with them
            literal, comment = self.literal(op, attrs, types), ", ".join(map(_type_text, node.types))
            found = self.kinds[key] = _Kind(op, attrs, types, template, literal, f"  # {comment}")
        return found

    def node(self, index: int, node: WireNode) -> None:
        kind = self.kind(node)
        if kind.literal is not None:
            self.numbers[node.outputs[0]] = (kind.literal, kind.types[0].dtype.name)
            if kind.types[0].dtype.name in _HALVES and not _is_short(kind.attrs[kind.op.literal]):
                self.inexact.add(node.outputs[0])
            return
        operands = self.operands(kind.op, node, index)
        inplace = self.inplace.get(index, ())
        if kind.template and not inplace:
            source = kind.template.format(*operands)
        else:
            source = expression(kind.op, operands, kind.attrs, kind.types, inplace)
        last, numbers = self.last_use, self.numbers
        dead = {s for s in (*node.inputs, *node.outputs) if last[s] == index and s not in numbers}
        text = f"    {_targets(node.outputs, len(node.outputs) == 1)} = {source}{_deleted(sorted(dead))}{kind.comment}"
        location = self.locations[index] if self.locations else None
        self.line(f"{text}  {location}" if location else text, index)

    def literal(self, op: OpDef, attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str | None:
        """Give the number that a 0-d constant is, or None if the node is none."""
        if not op.literal or types[0].shape:
            return None
        make = {"b": bool, "u": int, "i": int, "f": float, "c": complex}[types[0].dtype.kind]
        value = make(attrs[op.literal])
        if isinstance(value, complex):
            return f"complex({number(value.real)}, {number(value.imag)})"
        return number(value)

    def operands(self, op: OpDef, node: WireNode, index: int) -> tuple[str, ...]:
        """Name the operands. A number stays one where the op takes it, else it is made a 0-d tensor.

        torch computes a half times a number with the number unrounded; the IR's value is rounded to its dtype first.
        """
        if self.numbers.keys().isdisjoint(node.inputs):
            return tuple([f"v{slot}" for slot in node.inputs])
        overwritten = {operand for _, operand in self.inplace.get(index, ())}
        alone = op.numbers is None and all(slot in self.numbers for slot in node.inputs)  # no tensor sets the dtype
        as_number = set() if alone else {i % len(node.inputs) for i in op.number_operands} - overwritten
        out = []
        for i, slot in enumerate(node.inputs):
            if slot not in self.numbers or slot in self.inexact or i not in as_number:
                self.tensor(slot, index)
                out.append(self.text(slot))
            else:
                out.append(self.numbers[slot][0])
        return tuple(out)

    def tensor(self, slot: int, index: int) -> None:
        if slot in self.numbers and slot not in self.tensors:
            source, dtype = self.numbers[slot]
            self.line(f"    t{slot} = torch.full((), {source}, dtype=torch.{dtype}, device=device)", index)
            self.tensors.add(slot)

    def text(self, slot: int) -> str:
        return f"t{slot}" if slot in self.numbers else f"v{slot}"


def packing(dtypes: Iterable[str]) -> list[tuple[str, int]]:
    """Give for each scalar its vector (``floats`` in float64, ``ints`` in int64) and place there; complex takes two."""
    out, used = [], {"floats": 0, "ints": 0}
    for dtype in dtypes:
        kind = DType.by_name[dtype].kind
        vector = "floats" if kind in "fc" else "ints"
        out.append((vector, used[vector]))
        used[vector] += 2 if kind == "c" else 1
    return out


def vector_sizes(dtypes: Sequence[str]) -> tuple[int, int]:
    """Give the lengths of ``floats`` and ``ints``."""
    floats, ints = pack(dtypes, [0] * len(dtypes))
    return len(floats), len(ints)


def pack(dtypes: Sequence[str], values: Sequence[Scalar]) -> tuple[list[float], list[int]]:
    """Lay the scalars of a piece out in its two vectors."""
    floats: list[float] = []
    ints: list[int] = []
    for dtype, value in zip(dtypes, values, strict=True):
        kind = DType.by_name[dtype].kind
        if kind == "c":
            floats += [complex(value).real, complex(value).imag]
        elif kind == "f":
            floats.append(float(value))  # type: ignore[arg-type]
        else:
            ints.append(int(value))  # type: ignore[arg-type]
    return floats, ints


def build(source: Source, **names: Any) -> Callable[..., Any]:
    """Make a function of rendered source, which sees ``names``."""
    namespace = dict(names)
    exec(source.text, namespace)
    function = namespace[source.name]
    function.__code__ = function.__code__.replace(co_filename=f"<gt {source.name}>")
    return function


def expression(
    op: OpDef, operands: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...],
    inplace: tuple[tuple[int, int], ...] = (),
) -> str:  # fmt: skip
    """Give the source of one node's value, or values as a tuple. ``inplace``: (result, operand) pairs that share memory."""
    if inplace and op.into:
        return op.into[inplace[0][1]].format(**dict(zip(op.operands, operands, strict=True)))
    if inplace:
        assert op.torch_inplace is not None, f"{op} has no lowering in place"
        return op.torch_inplace(operands, attrs, types)
    if op.torch is None:
        raise RenderError(f"{op.name} has no torch lowering: it has to be decomposed first")
    if callable(op.torch):
        return op.torch(operands, attrs, types)
    fields = {name: source_of(value) for name, value in attrs.items()}
    fields |= dict(zip(op.operand_names(len(operands)), operands, strict=True))
    return op.torch.format(out=source_of(types[0].dtype), **fields)


def checked(node: WireNode) -> tuple[OpDef, dict[str, Any], tuple[TensorType, ...]]:
    """Look a node up in the op table. Errors: RenderError unless all of it is known and plain."""
    op = OPS.get(node.op)
    if op is None:
        raise RenderError(f"unknown op {node.op!r}")
    attrs: Attrs = unpack_attrs(node.attrs)
    for name, value in attrs:
        if not name.isidentifier():
            raise RenderError(f"{op.name}: {name!r} is no attribute name")
        _check_plain(op, name, value)
    return op, dict(attrs), tuple(t.tensor_type for t in node.types)


def _check_plain(op: OpDef, name: str, value: AttrValue) -> None:
    """Templates paste attributes into source: let only through what can't be anything but a value."""
    if isinstance(value, tuple):
        for item in value:
            _check_plain(op, name, item)
    elif isinstance(value, str):
        if not SAFE_TEXT.fullmatch(value):
            raise RenderError(f"{op.name}: attribute {name} holds {value!r}, which no op takes")
    elif value is not None and type(value) not in (bool, int, float, complex, DType):
        kind = "a number that differs by worker" if isinstance(value, Coord) else type(value).__name__
        raise RenderError(f"{op.name}: attribute {name} is {kind}, expected a plain value")


def source_of(value: AttrValue) -> str:
    """Give the Python source of an attribute."""
    if isinstance(value, DType):
        return f"torch.{value.name}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{source_of(v)}, " for v in value).rstrip(" ") + ")"
    return number(value) if isinstance(value, bool | int | float) else repr(value)


def _is_short(value: float) -> bool:
    """Tell whether a number has few enough bits to be exact in every float dtype."""
    return value in (float("inf"), float("-inf")) or (abs(value) <= 128 and float(value * 4).is_integer())


def _targets(slots: Iterable[int], bare: bool = False) -> str:
    return ", ".join([f"v{s}" for s in slots]) + ("" if bare else ",")


def _deleted(slots: Sequence[int]) -> str:
    return "; del " + ", ".join([f"v{s}" for s in slots]) if slots else ""


def _type_text(type_: WireType) -> str:
    return f"{SHORT[DType.by_name[type_.dtype]]}[{', '.join(map(str, type_.shape))}]"


# -- source of a program


def render_driver(layout: Layout, name: str = "program") -> Source:
    """Give the source of ``name(a, s, comm)``, which calls ``region0``, ... and hands collectives to ``comm``."""
    lines, owners = [f"def {name}(a, s, comm):"], [-1]
    ins = dict.fromkeys(slot for _, slot in layout.program.inputs)
    outs = [slot for _, slot in layout.program.outputs]
    last_use: dict[int, int] = {}
    for i, part in enumerate(layout.parts):
        touched = (part.input, part.output) if isinstance(part, Collective) else (*part.inputs, *part.outputs)
        last_use.update(dict.fromkeys(touched, i))
    last_use.update(dict.fromkeys(outs, len(layout.parts)))
    if ins:
        unused = [slot for slot in ins if slot not in last_use]
        lines.append(f"    {_targets(slot for _, slot in layout.program.inputs)} = a; a.clear(){_deleted(unused)}")
        owners.append(-1)
    for i, part in enumerate(layout.parts):
        dead = lambda slots: _deleted(sorted(s for s in set(slots) if s >= 0 and last_use[s] == i))  # noqa: B023, E731
        if isinstance(part, Collective):
            source = f"v{part.input}" if part.input >= 0 else "None"
            target = f"v{part.output} = " if part.output >= 0 else ""
            why = f"  # {'begin ' if part.begins else ''}{part.kind}#{part.number} {_type_text(part.type)} {part.nbytes} B"
            lines.append(f"    {target}comm.run(step{i}, {source}){dead((part.input, part.output))}{why}")
            owners.append(i)
            continue
        numbers = "".join(f"s[{at}], " for at in part.scalars)
        # the list takes over the last reference, so the piece can free what it has read
        lines.append(f"    x = [{', '.join(f'v{s}' for s in part.inputs)}]{dead(part.inputs)}")
        target = f"{_targets(part.outputs)} = " if part.outputs else ""
        lines.append(f"    {target}region{i}(x, ({numbers})){dead(set(part.outputs) - set(part.inputs))}")
        owners += [i, i]
    lines.append(f"    return [{', '.join(f'v{s}' for s in outs)}]")
    return Source(name, "\n".join(lines) + "\n", (*owners, -1))


def render_program(program: Program) -> str:
    """Give all source a worker runs for a program, with the user's lines: what ``gt compile --dump-ir`` shows."""
    layout = lay_out(program)
    table = [Location(*entry) for entry in program.locations]
    texts = []
    for i, part in enumerate(layout.parts):
        if isinstance(part, Stretch):
            where = [table[loc] if loc >= 0 else None for loc in part.locations]
            name = "program" if layout.is_single else f"region{i}"
            texts.append(render_piece(part.piece, "eager", name, where).text)
    if not layout.is_single:
        texts.append(render_driver(layout).text)
    return "\n".join(texts)


__all__ = [
    "RenderError", "Source", "build", "checked", "expression", "pack", "packing", "render_driver", "render_piece",
    "render_program", "vector_sizes",
]  # fmt: skip
