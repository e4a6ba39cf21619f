"""Random valid graphs for the property tests of the text form and of the passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gt.ir.evaluate import as_dtype
from gt.ir.graph import Graph, Location, Node, Rewriter, Value
from gt.ir.opdef import emitting
from gt.ir.ops import OPS
from gt.ir.signals import ShardConfig, SignalConfig
from gt.ir.types import DType, TensorType, bfloat16, bool_, float32, float64, int64
from gt.passes.emit import NodeEmitter

SHAPES = [(), (1,), (4,), (3, 4), (4, 3), (1, 4), (3, 1), (2, 3, 4), (0, 4)]
SMOOTH = ["tanh", "exp", "sin", "sigmoid"]
SIGNALS = (
    ("plain", SignalConfig()),
    ("rows", SignalConfig(shard=ShardConfig(axis=0), backward_signal="back")),
    ("back", SignalConfig(shard=ShardConfig(axis=1, workers=(0, 1)))),
    ("hot", SignalConfig(compile=True)),
)
NAMES = ["", "", "x", "h", "layers.0.weight", "a b", 'q"#2', "7"]


class Maker:
    """Builds a graph by calling ops; operands come from what was made before."""

    def __init__(self, name: str, inputs: Sequence[Value], scalars: Sequence[Value] = (), taped: bool = False) -> None:
        self.graph = Graph(name, tuple(inputs), tuple(scalars), (), ())
        self.rewriter = Rewriter(self.graph)
        self.emit = NodeEmitter(self.rewriter)
        self.emit.taped = taped

    def op(self, name: str, *inputs: Value, **attrs: Any) -> Value:
        with emitting(self.emit):
            return OPS[name](*inputs, **attrs)

    def finish(self, outputs: Sequence[Value], **changes: Any) -> Graph:
        self.rewriter.changed = True
        return self.rewriter.finish(**changes).with_nodes(self.rewriter.nodes, outputs)


@st.composite
def graphs(draw: st.DrawFn, dtype: DType | None = None, max_nodes: int = 12, smooth: bool = False) -> Graph:
    """Give a GLOBAL graph of up to ``max_nodes`` ops over a few inputs. ``smooth``: differentiable everywhere."""
    one = dtype or draw(st.sampled_from([float32, float64, bfloat16, int64]))
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4))
    inputs = [Value(TensorType(s, one), draw(st.sampled_from(NAMES))) for s in shapes]
    scalars = [Value(TensorType((), one))] if draw(st.booleans()) else []
    maker = Maker("random", inputs, scalars, taped=smooth)
    values = [*inputs, *scalars]
    for _ in range(draw(st.integers(1, max_nodes))):
        made = _grow(draw, maker, values, smooth)
        values += made if isinstance(made, tuple) else (made,)
    nodes = [_decorate(draw, node, smooth) for node in maker.rewriter.nodes]
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    donated = draw(st.frozensets(st.integers(0, len(inputs) - 1)))
    graph = maker.finish(outputs, donated=donated, signals=SIGNALS)
    return graph.with_nodes(nodes)


def _decorate(draw: st.DrawFn, node: Node, smooth: bool) -> Node:
    if smooth:
        return node
    loc = draw(
        st.sampled_from([None, Location("a.py", 3, "f", "y = x + 1"), Location('b "c".py', 9, "<module>", "é ; #")])
    )
    signal = draw(st.sampled_from([None, None, "rows", "back", "hot", "not loaded"]))
    return Node(node.op, node.inputs, node.outputs, node.attrs, loc, signal, draw(st.booleans()), node.why)


def _grow(draw: st.DrawFn, maker: Maker, values: list[Value], smooth: bool) -> Value | tuple[Value, ...]:
    x = draw(st.sampled_from(values))
    shape, ndim, dtype = x.type.shape, x.type.ndim, x.type.dtype
    choices = ["binary", "reshape", "permute", "expand", "sum", "constant", "neg", "matmul", "cat", "fence"]
    choices += [] if smooth else ["slice", "cast", "copy", "alias", "compare", "amax"]
    choices += ["smooth"] if dtype.kind == "f" else []
    choices += ["step", "step"] if dtype.kind == "f" and not smooth else []
    kind = draw(st.sampled_from(choices))
    if kind == "binary":
        fits = [v for v in values if v.type.dtype is dtype and _broadcast(v.type.shape, shape)]
        op = draw(st.sampled_from(["add", "sub", "mul"] if dtype is not bool_ else ["add", "mul"]))
        return maker.op(op, *draw(st.permutations([x, draw(st.sampled_from(fits))])))
    if kind == "smooth":
        return maker.op(draw(st.sampled_from(SMOOTH)), x)
    if kind == "reshape":
        return maker.op("reshape", x, shape=draw(st.sampled_from([(x.type.numel,), (1, *shape), shape])))
    if kind == "permute":
        return maker.op("permute", x, dims=tuple(draw(st.permutations(range(ndim)))))
    if kind == "expand":
        return maker.op(
            "expand", x, shape=draw(st.sampled_from([shape, (2, *shape)] if x.type.numel <= 64 else [shape]))
        )
    if kind == "sum":
        dims = draw(st.frozensets(st.integers(0, ndim - 1))) if ndim else frozenset()
        wide = int64 if dtype.kind in "biu" else dtype
        return maker.op("sum", x, dims=tuple(sorted(dims)), keepdim=draw(st.booleans()), dtype=wide)
    if kind == "constant":
        number = draw(st.sampled_from([0, 1, -1, 2] if dtype.kind != "f" else [0.0, -0.0, 1.0, 0.5]))
        number = bool(number) if dtype is bool_ else number
        value = maker.op("full", shape=draw(st.sampled_from([(), shape])), value=number, dtype=dtype)
        ops = [
            "mul",
            "add",
            *(["sub"] if dtype is not bool_ else []),
            *(["div"] if dtype.kind == "f" and not smooth else []),
        ]
        return maker.op(draw(st.sampled_from(ops)), x, value)
    if kind == "matmul" and ndim == 2 and dtype is not bool_:
        other = maker.op("permute", x, dims=(1, 0))
        return maker.op("matmul", x, other)
    if kind == "cat" and ndim and x.type.numel <= 64:
        return maker.op("cat", x, x, dim=draw(st.integers(0, ndim - 1)))
    if kind == "step":  # the one kind that may overwrite: two parameters at once
        y = draw(st.sampled_from([v for v in values if v.type.dtype is dtype]))
        lr = maker.op("full", shape=(), value=0.5, dtype=dtype)
        plain = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "dampening": 0.0, "maximize": False}
        return maker.op("sgd_step", x, y, maker.op("neg", x), maker.op("neg", y), lr, num=2, **plain)
    if kind == "slice":
        starts = tuple(draw(st.integers(0, n)) for n in shape)
        steps = tuple(draw(st.integers(1, 2)) for _ in shape)
        stops = tuple(draw(st.integers(a, n)) for a, n in zip(starts, shape, strict=True))
        return maker.op("slice", x, starts=starts, stops=stops, steps=steps)
    if kind == "cast":
        return maker.op("cast", x, dtype=draw(st.sampled_from([float32, float64, bfloat16, dtype])))
    if kind == "compare":
        return maker.op("lt", x, x)
    if kind == "amax" and x.type.numel and ndim:
        return maker.op("amax", x, dims=(0,), keepdim=False)
    if kind in ("copy", "alias"):
        return maker.op(kind, x)
    if kind == "fence":
        return maker.op("fence", x, draw(st.sampled_from(values)))
    return maker.op("neg", x) if dtype is not bool_ else maker.op("logical_not", x)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(a[::-1], b[::-1], strict=False))


def arrays(graph: Graph, seed: int) -> tuple[list[np.ndarray], list[float]]:
    """Give inputs and scalars for a graph: small numbers, signed zeros among them."""
    rng = np.random.default_rng(seed)
    out = []
    for value in graph.inputs:
        data = np.round(rng.normal(size=value.type.shape) * 2, 2)
        data = np.where(rng.random(value.type.shape) < 0.1, -0.0, data)
        out.append(as_dtype(data, value.type.dtype))
    return out, [1.5 if v.type.dtype.kind == "f" else 2 for v in graph.scalars]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two arrays are equal to the bit, any NaN equal to any other."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    nan = np.isnan(a)
    alike = [np.array_equal(nan, np.isnan(b)), np.array_equal(np.signbit(a)[~nan], np.signbit(b)[~nan])]
    return all(alike) and bool(np.array_equal(a[~nan], b[~nan]))
