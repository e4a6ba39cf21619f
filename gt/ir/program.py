"""What a worker runs: a straight line of regions, collectives and frees, in a form that travels.

Owns: the wire form of regions and programs, and of graphs. Only op names and attributes travel, never source.
Must not know: torch, sockets. Next: ``gt.passes.lower_programs`` (makes them), ``gt.runtime.executor`` (runs them).
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, cast

import msgspec

from gt.ir.advice import Advised
from gt.ir.graph import Attrs, AttrValue, Coord, Graph, Location, Node, Stage, Value
from gt.ir.mesh import Mesh, Reduction, Sharding
from gt.ir.opdef import OpDef
from gt.ir.ops import OPS
from gt.ir.signals import PlanOptions, Precision, SignalConfig
from gt.ir.types import DTYPES, DType, TensorType

MAX_NODES = 200_000
MAX_VALUES = 1_000_000
MAX_NUMEL = 1 << 48
MAX_TEXT = 4096
MAX_ATTR_DEPTH = 8
MAX_ATTR_ITEMS = 65_536
SAFE_TEXT = re.compile(r"[\w ,.>-]*")  # what a text attribute may hold: nothing that ends a string or calls anything


class WireError(Advised, ValueError):
    """What a peer sent is not a graph: the message is refused, the peer told why, nothing else happens."""


class WireType(msgspec.Struct, frozen=True, array_like=True):
    """A local tensor type."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, type_: TensorType) -> WireType:
        return cls(type_.shape, type_.dtype.name)

    @property
    def tensor_type(self) -> TensorType:
        return TensorType(self.shape, DType.by_name[self.dtype])


class WireNode(msgspec.Struct, frozen=True, array_like=True):
    """One op over slots of its region or program. ``loc`` indexes the program's table of locations, -1 for none."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    types: tuple[WireType, ...]
    attrs: tuple[tuple[str, Any], ...]
    loc: int = -1

    @property
    def refusable(self) -> tuple[int, ...]:
        """Give the slots whose values the op may refuse when it runs."""
        op = OPS[self.op]
        if op.nonzero and DType.by_name[self.types[0].dtype].kind not in "ui":
            return ()
        return tuple(self.inputs[i] for i in op.refused(len(self.inputs)))


def made_types(nodes: Iterable[WireNode]) -> dict[int, TensorType]:
    """Give the types of what nodes make, by slot."""
    return {slot: type_.tensor_type for node in nodes for slot, type_ in zip(node.outputs, node.types, strict=True)}


class Compute(msgspec.Struct, frozen=True, tag_field="step", tag="compute"):
    """Run nodes over slots. ``inputs`` are the slots read from outside, ``outputs`` those needed after.

    ``key`` names the region by its structure: regions of equal key have equal code up to slot numbers.
    ``inplace``: (node index, ((result, operand), ...)) of nodes whose operand's buffer may be overwritten.
    """

    nodes: tuple[WireNode, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    key: str
    compile: bool = False
    inplace: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()


class Collective(msgspec.Struct, frozen=True, tag_field="step", tag="collective"):
    """One collective between ``group``'s workers, or one end of a message from group[0] to group[1].

    kind: all_reduce, all_gather, reduce_scatter, all_to_all; send, receive, wait. ``number`` orders them within the plan; all
    members agree on it. A send waits for nobody and has ``output`` -1. A receive begins and has ``input`` -1: its slot may be read
    after its wait. So it is with any other kind that ``begins``. ``nbytes``: what this worker sends, by the planner's count.
    attrs: ``reduce`` (sum, max, min), ``dim``, ``src``, ``dst`` as the op of that name. ``inplace``: the result may be in the input's
    memory, which nothing else reads.
    """

    kind: str
    number: int
    input: int
    output: int
    type: WireType  # of the output, or of what is sent
    group: tuple[int, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    nbytes: int = 0
    loc: int = -1
    why: str = ""
    begins: bool = False
    inplace: bool = False


class Free(msgspec.Struct, frozen=True, tag_field="step", tag="free"):
    """Drop slots nothing reads any more."""

    slots: tuple[int, ...]


Step = Compute | Collective | Free


class Program(msgspec.Struct, frozen=True):
    """One worker's part of a plan.

    ``inputs``/``outputs``: (position in the flush's list, slot) pairs: a worker may hold only some of them.
    ``scalars``: slot and dtype of each run-time scalar, in the order of the graph.
    ``donated``: slots of inputs that this program overwrites. No Coord is left in the attributes: they hold this
    worker's own numbers. ``peak_nbytes``: the most memory alive at once, inputs included, by the planner's estimate.
    ``float32_matmul``: how exactly float32 matrices are multiplied, see ``PlanOptions``. ``part_of``: the number of the plan that it is a part
    of, -1 if of none; ``goes_on``: this worker has a later part of it.
    """

    worker: int
    inputs: tuple[tuple[int, int], ...]
    scalars: tuple[tuple[int, str], ...]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[int, int], ...]
    locations: tuple[tuple[str, int, str], ...] = ()
    donated: tuple[int, ...] = ()
    name: str = ""
    peak_nbytes: int = 0
    float32_matmul: Precision = "highest"
    part_of: int = -1
    goes_on: bool = False

    @property
    def collectives(self) -> tuple[Collective, ...]:
        return tuple(s for s in self.steps if isinstance(s, Collective))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Give the groups that it takes part in."""
        return tuple(dict.fromkeys(c.group for c in self.collectives))

    @property
    def made_types(self) -> dict[int, TensorType]:
        """Give the types, by slot, of all but the inputs."""
        types = {slot: TensorType((), DType.by_name[dtype]) for slot, dtype in self.scalars}
        for step in self.steps:
            if isinstance(step, Compute):
                types.update(made_types(step.nodes))
            elif isinstance(step, Collective) and step.output >= 0:
                types[step.output] = step.type.tensor_type
        return types

    def line(self, loc: int) -> str:
        """Give the user's line of an entry of ``locations``, "" if there is none."""
        return ":".join(map(str, self.locations[loc][:2])) if 0 <= loc < len(self.locations) else ""

    @property
    def refuses(self) -> bool:
        """Whether some op may refuse its values."""
        return any(node.refusable for s in self.steps if isinstance(s, Compute) for node in s.nodes)


# -- attributes on the wire: dtypes and coords become tagged maps, everything else is plain


def pack_attr(value: AttrValue) -> Any:
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, Coord):
        return {"coord": [value.base, [list(s) for s in value.strides]]}
    if isinstance(value, tuple):
        return [pack_attr(v) for v in value]
    return value


def unpack_attr(value: Any) -> AttrValue:
    if isinstance(value, dict):
        if "dtype" in value:
            return DType.by_name[value["dtype"]]
        base, strides = value["coord"]
        return Coord(base, tuple((axis, stride) for axis, stride in strides))
    if isinstance(value, list | tuple):
        return tuple(unpack_attr(v) for v in value)
    return value


def pack_attrs(attrs: Attrs) -> tuple[tuple[str, Any], ...]:
    return tuple((name, pack_attr(value)) for name, value in attrs)


def unpack_attrs(attrs: tuple[tuple[str, Any], ...]) -> Attrs:
    return tuple((name, unpack_attr(value)) for name, value in attrs)


# -- graphs on the wire


class WireGraph(msgspec.Struct, frozen=True):
    """A captured graph as a client sends it: values are numbered inputs, then scalars, then results in order."""

    name: str
    inputs: tuple[WireType, ...]
    scalars: tuple[WireType, ...]
    nodes: tuple[WireNode, ...]
    outputs: tuple[int, ...]
    hints: tuple[tuple[int, str], ...] = ()
    taped: tuple[int, ...] = ()
    signals: tuple[tuple[int, str], ...] = ()  # node index, signal name
    configs: tuple[tuple[str, Any], ...] = ()
    locations: tuple[tuple[str, int, str, str], ...] = ()
    donated: tuple[int, ...] = ()
    options: PlanOptions = PlanOptions()


class WireSharding(msgspec.Struct, frozen=True, array_like=True):
    """A placement: the mesh by value, then as ``Sharding``."""

    mesh: str
    axes: tuple[tuple[str, int], ...]
    workers: tuple[int, ...]
    dims: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, sharding: Sharding) -> WireSharding:
        mesh = sharding.mesh
        return cls(mesh.name, mesh.axes, mesh.workers, sharding.dims, sharding.partial)

    @property
    def sharding(self) -> Sharding:
        partial = cast(tuple[tuple[str, Reduction], ...], self.partial)
        return Sharding(Mesh(self.mesh, self.axes, self.workers), self.dims, partial)

    def checked(self, ndim: int, workers: Sequence[int]) -> Sharding | None:
        """Give the placement of a whole value if it can be that of a tensor of ``ndim`` dims on these workers, else None.

        For what a peer sends that is not trusted.
        """
        sizes, used = dict(self.axes), [axis for axes in self.dims for axis in axes]
        sound = (
            not self.partial and len(self.dims) == ndim and len(sizes) == len(self.axes) and len(set(used)) == len(used)
            and sizes.keys() >= set(used) and all(size > 0 for size in sizes.values())
            and 0 < len(self.workers) == len(set(self.workers)) == math.prod(sizes.values()) and set(workers) >= set(self.workers)
        )  # fmt: skip
        return self.sharding if sound else None


def encode_graph(graph: Graph) -> WireGraph:
    """Give a captured graph in the form that travels. Placements of inputs travel apart (``WireSharding``)."""
    assert graph.stage is Stage.GLOBAL, f"only captured graphs travel, not {graph.stage.value} ones"
    number = {value: i for i, value in enumerate(graph.values)}
    locs: dict[Location, int] = {}
    nodes = []
    for node in graph.nodes:
        loc = -1 if node.loc is None else locs.setdefault(node.loc, len(locs))
        inputs = tuple(number[v] for v in node.inputs)
        outputs = tuple(number[v] for v in node.outputs)
        types = tuple(WireType.of(v.type) for v in node.outputs)
        nodes.append(WireNode(node.op.name, inputs, outputs, types, pack_attrs(node.attrs), loc))
    return WireGraph(
        name=graph.name,
        inputs=tuple(WireType.of(v.type) for v in graph.inputs),
        scalars=tuple(WireType.of(v.type) for v in graph.scalars),
        nodes=tuple(nodes),
        outputs=tuple(number[v] for v in graph.outputs),
        hints=tuple((i, v.hint) for v, i in number.items() if v.hint),
        taped=tuple(i for i, n in enumerate(graph.nodes) if n.taped),
        signals=tuple((i, n.signal) for i, n in enumerate(graph.nodes) if n.signal is not None),
        configs=tuple((name, msgspec.to_builtins(config)) for name, config in graph.signals),
        locations=tuple((loc.file, loc.line, loc.function, loc.source) for loc in locs),
        donated=tuple(sorted(graph.donated)),
        options=graph.options,
    )


def decode_graph(wire: WireGraph, shardings: Sequence[Sharding | None] = ()) -> Graph:
    """Rebuild a graph from a peer that is not trusted; ``shardings`` place its inputs. Errors: WireError."""
    return _Decoder(wire).graph(shardings)


class _Decoder:
    """Checks all that a peer could have made up: sizes, ids, ops, attributes, and types against the ops' rules."""

    def __init__(self, wire: WireGraph) -> None:
        self.wire = wire
        self.values: list[Value] = []
        self.hints = dict(wire.hints)
        self.signals = dict(wire.signals)
        self.taped = frozenset(wire.taped)

    def graph(self, shardings: Sequence[Sharding | None]) -> Graph:
        wire = self.wire
        if len(wire.nodes) > MAX_NODES:
            _refuse(f"{len(wire.nodes)} nodes, the most is {MAX_NODES}")
        for text in (wire.name, *self.hints.values(), *self.signals.values()):
            _check_text(text)
        inputs = tuple(self.value(self.type(t, f"input {i}")) for i, t in enumerate(wire.inputs))
        scalars = tuple(self.value(self.type(t, f"scalar {i}")) for i, t in enumerate(wire.scalars))
        if any(v.type.shape for v in scalars):
            _refuse("a scalar has dims")
        if shardings:
            inputs = tuple(Value(v.type.placed(s), v.hint) for v, s in zip(inputs, shardings, strict=True))
            self.values[: len(inputs)] = inputs
        locations = [self.location(*entry) for entry in wire.locations]
        nodes = tuple(self.node(i, n, locations) for i, n in enumerate(wire.nodes))
        outputs = tuple(self.get(i, "the outputs") for i in wire.outputs)
        if not all(0 <= i < len(inputs) for i in wire.donated):
            _refuse("donated names an input that is not there")
        configs = tuple(self.config(name, config) for name, config in wire.configs)
        donated = frozenset(wire.donated)
        return Graph(wire.name, inputs, scalars, nodes, outputs, Stage.GLOBAL, donated, configs, wire.options)

    def value(self, type_: TensorType) -> Value:
        if len(self.values) >= MAX_VALUES:
            _refuse(f"more than {MAX_VALUES} values")
        value = Value(type_, self.hints.get(len(self.values), ""))
        self.values.append(value)
        return value

    def get(self, id_: int, where: str) -> Value:
        if not 0 <= id_ < len(self.values):
            _refuse(f"{where}: value {id_} is not defined there")
        return self.values[id_]

    def type(self, wire: WireType, where: str) -> TensorType:
        if wire.dtype not in DType.by_name:
            _refuse(f"{where}: unknown dtype {wire.dtype[:40]!r}")
        if len(wire.shape) > 64 or any(n < 0 for n in wire.shape) or math.prod(wire.shape) > MAX_NUMEL:
            _refuse(f"{where}: shape {wire.shape[:64]} is out of bounds")
        return wire.tensor_type

    def node(self, at: int, wire: WireNode, locations: Sequence[Location]) -> Node:
        where = f"node {at} ({wire.op[:40]})"
        op = OPS.get(wire.op)
        if op is None:
            _refuse(f"{where}: unknown op")
        if op.effect == "comm":
            _refuse(f"{where}: a captured graph holds no collectives")
        inputs = tuple(self.get(i, where) for i in wire.inputs)
        if not op.takes(len(inputs)):
            _refuse(f"{where}: takes {' '.join(op.operands) or 'no operands'}, got {len(inputs)} operands")
        attrs = tuple((name, _checked_attr(value, where)) for name, value in wire.attrs)
        if len(dict(attrs)) != len(attrs):
            _refuse(f"{where}: an attribute is given twice")
        known = _attrs_of(op)
        if known is not None and not known.issuperset(dict(attrs)):
            _refuse(f"{where}: takes no attribute {sorted(set(dict(attrs)) - known)[0][:40]!r}")
        declared = tuple(self.type(t, where) for t in wire.types)
        try:
            inferred = op.infer_types(tuple(v.type for v in inputs), attrs)
        except Exception as error:  # an op's rule given made-up attributes may raise anything
            raise WireError(f"{where}: {error}") from error
        if declared != inferred:
            _refuse(f"{where}: declared {declared}, the op gives {inferred}")
        if wire.outputs != tuple(range(len(self.values), len(self.values) + len(inferred))):
            _refuse(f"{where}: results are numbered {wire.outputs}, expected to go on from {len(self.values)}")
        if not -1 <= wire.loc < len(locations):
            _refuse(f"{where}: location {wire.loc} is not in the table")
        outputs = tuple(self.value(t) for t in declared)
        loc = locations[wire.loc] if wire.loc >= 0 else None
        return Node(op, inputs, outputs, attrs, loc, self.signals.get(at), at in self.taped)

    def location(self, file: str, line: int, function: str, source: str) -> Location:
        return Location(_check_text(file), line, _check_text(function), _check_text(source))

    def config(self, name: str, config: Any) -> tuple[str, SignalConfig]:
        try:
            return _check_text(name), msgspec.convert(config, SignalConfig)
        except msgspec.ValidationError as error:
            raise WireError(f"signal {name!r}: {error}") from error


@functools.cache
def _attrs_of(op: OpDef) -> frozenset[str] | None:
    """Give the names that an op's attributes may have, by the function that says what it means; None if it takes any."""
    try:
        parameters = inspect.signature(op.numpy).parameters.values() if op.numpy is not None else ()
    except ValueError:  # a ufunc
        return None
    if not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))


def _checked_attr(value: Any, where: str, depth: int = 0) -> AttrValue:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        if not SAFE_TEXT.fullmatch(_check_text(value)):
            _refuse(f"{where}: an attribute holds {value[:40]!r}, which no op takes")
        return value
    if isinstance(value, list | tuple):
        if depth > MAX_ATTR_DEPTH or len(value) > MAX_ATTR_ITEMS:
            _refuse(f"{where}: an attribute is too large")
        return tuple(_checked_attr(v, where, depth + 1) for v in value)
    if isinstance(value, dict) and list(value) == ["dtype"] and value["dtype"] in DTYPE_NAMES:
        return DType.by_name[value["dtype"]]
    _refuse(f"{where}: an attribute of kind {type(value).__name__} does not travel")


def _check_text(text: str) -> str:
    if len(text) > MAX_TEXT:
        _refuse(f"a text of {len(text)} characters, the most is {MAX_TEXT}")
    return text


def _refuse(why: str) -> NoReturn:
    raise WireError(why)


DTYPE_NAMES = tuple(d.name for d in DTYPES)

__all__ = [
    "Collective", "Compute", "Free", "Program", "Step", "WireError", "WireGraph", "WireNode", "WireSharding",
    "WireType", "decode_graph", "encode_graph", "made_types", "pack_attrs", "unpack_attrs",
]  # fmt: skip
