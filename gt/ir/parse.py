"""Reads ``.gtir`` text back into a graph; ``text`` describes the form.

Owns: the lexer, the grammar and ``ParseError``. Must not know: what ops mean (only that they exist). Next: ``verify``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec

from gt.ir.advice import Advised
from gt.ir.graph import AttrValue, Coord, Graph, Location, Node, Stage, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.ops import OPS
from gt.ir.signals import PlanOptions, SignalConfig
from gt.ir.types import LONG, TensorType

VERSION = 1
_T = TypeVar("_T")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class ParseError(Advised, ValueError):
    """A text that is not ``.gtir``: names line and column and shows the line."""


_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOKENS = re.compile(
    rf"""(?P<space>\s+|;[^\n]*)
    | (?P<value>%(?:[A-Za-z_][\w.]*|{_STRING})(?:\#\d+)?|%\d+)
    | (?P<at>@(?:[A-Za-z_][\w.]*|{_STRING}))
    | (?P<number>-?\d+(?:\.\d*)?(?:e[+-]?\d+)?|-inf\b)
    | (?P<string>{_STRING})
    | (?P<word>[A-Za-z_][\w.]*)
    | (?P<punct>[()\[\]{{}},:=+*])""",
    re.VERBOSE | re.ASCII,
)
_REMARK = re.compile(r"[ \t]*; ([^\n]*)")
_NAME = re.compile(rf"%(?:(\d+)|({_STRING})|([^#]+))(?:#\d+)?")
_WORDS: dict[str, AttrValue] = {"none": None, "true": True, "false": False, "inf": float("inf"), "nan": float("nan")}


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_graph(text: str) -> Graph:
    """Read a graph from its text. Errors: ParseError with line and column."""
    return _Parser(text).graph()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._tokens())
        self.at = 0
        self.values: dict[str, Value] = {}
        self.meshes: dict[str, Mesh] = {}
        self.stage = Stage.GLOBAL
        self.locations: dict[str, Location] = {}

    def _tokens(self) -> Iterator[_Token]:
        at = 0
        while at < len(self.text):
            match = _TOKENS.match(self.text, at)
            if match is None:
                self.fail(f"unexpected {self.text[at]!r}", at)
            if match.lastgroup != "space":
                yield _Token(str(match.lastgroup), match.group(), at)
            at = match.end()
        yield _Token("end", "", len(self.text))

    # -- the token stream

    def fail(self, why: str, at: int | None = None) -> NoReturn:
        at = self.tokens[self.at].at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        start = self.text.rfind("\n", 0, at) + 1
        stop = self.text.find("\n", at)
        shown = self.text[start : len(self.text) if stop < 0 else stop]
        raise ParseError(f"line {line}, column {at - start + 1}: {why}\n  {shown}\n  {' ' * (at - start)}^")

    @property
    def peek(self) -> _Token:
        return self.tokens[self.at]

    def take(self, kind: str, what: str = "") -> str:
        token = self.peek
        if token.kind != kind:
            self.fail(f"expected {what or kind}, got {token.text or 'the end'}")
        self.at += 1
        return token.text

    def accept(self, text: str) -> bool:
        if self.peek.text == text and self.peek.kind in ("punct", "word"):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected {text!r}, got {self.peek.text or 'the end'}")

    def integer(self) -> int:
        text = self.take("number", "an integer")
        if not re.fullmatch(r"-?\d+", text):
            self.at -= 1
            self.fail(f"expected an integer, got {text}")
        return int(text)

    def name(self) -> str:
        """Take a word or a quoted name."""
        return self.string() if self.peek.kind == "string" else self.take("word", "a name")

    def at_name(self) -> str:
        text = self.take("at", "@name")[1:]
        return json.loads(text) if text.startswith('"') else text

    def string(self) -> str:
        text = self.take("string", "a quoted string")
        try:
            return str(json.loads(text))
        except ValueError:
            self.at -= 1
            self.fail(f"bad string {text}")

    def many(self, item: Callable[[], _T], end: str) -> list[_T]:
        """Take items between commas up to ``end``, which is taken too; a trailing comma is allowed."""
        out: list[_T] = []
        while not self.accept(end):
            out.append(item())
            if not self.accept(","):
                self.expect(end)
                break
        return out

    # -- the grammar

    def graph(self) -> Graph:
        self.expect("gtir")
        if (version := self.integer()) != VERSION:
            self.at -= 1
            self.fail(f"this is gtir {version}; this version of gt reads gtir {VERSION}")
        signals: list[tuple[str, SignalConfig]] = []
        options = PlanOptions()
        while not self.accept("graph"):
            if self.accept("mesh"):
                self.mesh()
            elif self.accept("signal"):
                signals.append((self.at_name(), self.struct(SignalConfig)))
            elif self.accept("options"):
                options = self.struct(PlanOptions)
            else:
                self.fail(f"expected mesh, signal, options or graph, got {self.peek.text or 'the end'}")
        name, stage = self.at_name(), self.name()
        if stage not in {s.value for s in Stage}:
            self.at -= 1
            self.fail(f"unknown stage {stage}: one of {', '.join(s.value for s in Stage)}")
        self.stage = Stage(stage)
        self.expect("{")
        self.location_table()
        inputs, scalars, nodes, donated = self.body()
        outputs = self.result()
        self.at = len(self.tokens) - 1
        return Graph(
            name, tuple(inputs), tuple(scalars), tuple(nodes), outputs, self.stage, donated, tuple(signals), options
        )

    def mesh(self) -> None:
        start = self.at
        name = self.at_name()
        self.expect("{")
        axes = self.many(lambda: (self.name(), self.size()), "}")
        self.expect("workers")
        workers = []
        while self.peek.kind == "number":
            workers.append(self.integer())
        try:
            self.meshes[name] = Mesh(name, tuple(axes), tuple(workers))
        except AssertionError as error:
            self.at = start
            self.fail(str(error))

    def size(self) -> int:
        self.expect(":")
        return self.integer()

    def struct(self, kind: type[_Struct]) -> _Struct:
        """Take a JSON object in braces as a struct."""
        first = self.peek
        self.expect("{")
        depth = 1
        while depth:
            token = self.peek
            depth += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "punct" else 0
            if token.kind == "end":
                self.fail("the { is never closed", first.at)
            self.at += 1
        stop = self.tokens[self.at - 1].at + 1
        try:
            return msgspec.json.decode(self.text[first.at : stop], type=kind)
        except (msgspec.DecodeError, ValueError) as error:
            self.fail(str(error), first.at)

    def location_table(self) -> None:
        """Read the ``loc`` lines after the graph first: nodes refer to them."""
        resume, depth = self.at, 1
        while depth:
            token = self.peek
            if token.kind == "end":
                self.fail("the graph's { is never closed", self.tokens[resume - 1].at)
            depth += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "punct" else 0
            self.at += 1
        while self.peek.kind != "end":
            self.expect("loc")
            ref = self.take("word", "a location such as L1")
            file, line, function = self.string(), self.integer(), self.string()
            self.locations[ref] = Location(file, line, function, self.string())
        self.at = resume

    def body(self) -> tuple[list[Value], list[Value], list[Node], frozenset[int]]:
        inputs: list[Value] = []
        scalars: list[Value] = []
        nodes: list[Node] = []
        donated: set[int] = set()
        while self.accept("input"):
            inputs.append(self.declared())
            if self.accept("donated"):
                donated.add(len(inputs) - 1)
        while self.accept("scalar"):
            scalars.append(self.declared())
        while self.peek.kind == "value":
            nodes.append(self.node())
        return inputs, scalars, nodes, frozenset(donated)

    def result(self) -> tuple[Value, ...]:
        self.expect("return")
        return tuple(self.many(self.operand, "}"))

    def declared(self) -> Value:
        start = self.at
        name = self.take("value", "%name")
        self.expect(":")
        return self.define(name, self.type(), start)

    def define(self, name: str, type_: TensorType, start: int) -> Value:
        if name in self.values:
            self.at = start
            self.fail(f"{name} is defined twice")
        match = _NAME.fullmatch(name)
        assert match is not None
        hint = match[3] or (json.loads(match[2]) if match[2] else "")
        value = self.values[name] = Value(type_, hint)
        return value

    def operand(self) -> Value:
        name = self.take("value", "%name")
        if name not in self.values:
            self.at -= 1
            self.fail(f"{name} is not defined above")
        return self.values[name]

    def node(self) -> Node:
        start = self.at
        results = self.many(lambda: self.take("value", "%name"), "=")
        op_name = self.take("word", "an op")
        if op_name not in OPS:
            self.at -= 1
            self.fail(f"unknown op {op_name}")
        self.expect("(")
        inputs: list[Value] = []
        attrs: list[tuple[str, AttrValue]] = []
        for item in self.many(self.argument, ")"):
            if isinstance(item, Value):
                inputs.append(item)
            else:
                attrs.append(item)
        self.expect(":")
        types = [self.type()]
        while self.accept(","):
            types.append(self.type())
        if len(types) != len(results):
            self.at = start
            self.fail(f"{len(results)} results but {len(types)} types")
        outputs = tuple(self.define(n, t, start) for n, t in zip(results, types, strict=True))
        taped = self.accept("taped")
        signal = self.at_name() if self.accept("signal") else None
        loc = None
        if self.accept("loc"):
            ref = self.take("word", "a location such as L1")
            if ref not in self.locations:
                self.at -= 1
                self.fail(f"location {ref} is not in the table")
            loc = self.locations[ref]
        return Node(OPS[op_name], tuple(inputs), outputs, tuple(attrs), loc, signal, taped, self.remark())

    def remark(self) -> str:
        """Give the comment at the end of a node's line: the reason of what a pass inserted."""
        last = self.tokens[self.at - 1]
        found = _REMARK.match(self.text, last.at + len(last.text))
        return found[1] if found else ""

    def argument(self) -> Value | tuple[str, AttrValue]:
        if self.peek.kind == "value":
            return self.operand()
        name = self.take("word", "%name or attribute=")
        self.expect("=")
        return name, self.attr()

    def attr(self) -> AttrValue:
        token = self.peek
        if token.kind == "string":
            return self.string()
        if self.accept("("):
            return tuple(self.many(self.attr, ")"))
        if token.kind == "number":
            self.at += 1
            return int(token.text) if re.fullmatch(r"-?\d+", token.text) else float(token.text)
        word = self.take("word", "a value")
        if word in _WORDS:
            return _WORDS[word]
        if word in LONG:
            return LONG[word]
        if word == "coord":
            self.expect("(")
            base = self.integer()
            self.accept(",")
            strides = self.many(self.stride, ")")
            return Coord(base, tuple(strides))
        self.at -= 1
        self.fail(f"expected a value, got {word}")

    def stride(self) -> tuple[str, int]:
        axis = self.name()
        self.expect("*")
        return axis, self.integer()

    def type(self) -> TensorType:
        start = self.peek.at
        short = self.take("word", "a type")
        if short not in LONG:
            self.at -= 1
            self.fail(f"unknown dtype {short}: one of {', '.join(LONG)}")
        self.expect("[")
        dims = self.many(self.dim, "]")
        partial: list[Any] = []
        while self.accept("+"):
            axis = self.name()
            partial.append((axis, self.name() if self.accept(":") else "sum"))
        shape = tuple(size for size, _ in dims)
        if self.accept("unplaced"):
            return TensorType(shape, LONG[short])
        marked = bool(partial) or any(axes for _, axes in dims)
        if self.accept("on"):
            name = self.at_name()
            if name not in self.meshes:
                self.at -= 1
                self.fail(f"mesh @{name} is not declared")
            mesh = self.meshes[name]
        elif marked or self.stage is not Stage.GLOBAL:
            if not self.meshes:
                self.fail("a placed value needs a mesh declared above the graph", start)
            mesh = next(iter(self.meshes.values()))
        else:
            return TensorType(shape, LONG[short])
        for axis in (*(a for _, axes in dims for a in axes), *(a for a, _ in partial)):
            if axis not in dict(mesh.axes):
                self.fail(f"mesh @{mesh.name} has no axis {axis}: it has {', '.join(a for a, _ in mesh.axes)}", start)
        return TensorType(shape, LONG[short], Sharding(mesh, tuple(axes for _, axes in dims), tuple(partial)))

    def dim(self) -> tuple[int, tuple[str, ...]]:
        size, axes = self.integer(), []
        while self.peek.kind == "at":
            axes.append(self.at_name())
        return size, tuple(axes)
