"""Whole training steps as graphs: forward, backward and AdamW, with the optimizer's states as inputs updated in place.

Sizes are those of real models, as their placement is decided by cost. Next: ``test_auto_shard.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from gt.ir.graph import Graph, Value
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS
from gt.ir.signals import PlanOptions, SignalConfig
from gt.ir.types import DType, Shape, TensorType, float32, int64
from tests.property.sharding_graphs import Recorder, record

SEARCH = PlanOptions(auto="search")
ADAMW = (
    ("beta1", 0.9), ("beta2", 0.99), ("eps", 1e-8), ("weight_decay", 0.01), ("amsgrad", False), ("maximize", False),
)  # fmt: skip
Loss = Callable[[Sequence[Value], Sequence[Value]], Value]  # of the data and the parameters


def adamw(
    data: Sequence[TensorType], params: Sequence[Shape], loss: Loss, dtype: DType = float32,
    options: PlanOptions = SEARCH, signals: dict[str, SignalConfig] | None = None,
) -> Graph:  # fmt: skip
    """Give the step of a loss. Outputs are the loss, the parameters and both moments; parameters are named p0, p1, ..."""
    n, d = len(params), len(data)

    def body(recorder: Recorder, *inputs: Value) -> list[Value]:
        weights = inputs[d : d + n]
        result = loss(inputs[:d], weights)
        recorder.signal = None
        recorder.nodes = [replace(node, taped=True) for node in recorder.nodes]
        grads = recorder.emit(OPS["grad"], (result, *weights), (("has_seed", False),))
        out = recorder.emit(OPS["adamw_step"], (*weights, *grads, *inputs[d + n :]), (("num", n), *ADAMW))
        return [result, *out]

    own = [TensorType(s, dtype) for s in params]
    graph = record([*data, *own, *own, *own, *(TensorType((), dtype),) * 2], body, signals, range(d, d + 3 * n))
    names = [*(f"x{i}" for i in range(d)), *(f"{kind}{i}" for kind in "pmv" for i in range(n)), "lr", "step"]
    return with_inputs(graph, [Value(v.type, name) for v, name in zip(graph.inputs, names, strict=True)], options)


def with_inputs(graph: Graph, inputs: Sequence[Value], options: PlanOptions | None = None) -> Graph:
    """Give the graph with other inputs in the place of its own."""
    now = dict(zip(graph.inputs, inputs, strict=True))
    nodes = tuple(replace(node, inputs=tuple(now.get(v, v) for v in node.inputs)) for node in graph.nodes)
    return replace(graph, inputs=tuple(inputs), nodes=nodes, options=options or graph.options)


def next_step(graph: Graph, outputs: Sequence[Sharding]) -> Graph:
    """Give the step that follows one whose outputs landed so: its parameters and moments are there."""
    first = len(graph.inputs) - 2 - (len(outputs) - 1)
    inputs = list(graph.inputs)
    for i, placed in enumerate(outputs[1:], first):
        inputs[i] = Value(inputs[i].type.placed(placed), inputs[i].hint)
    return with_inputs(graph, inputs)


def mean_square(x: Value) -> Value:
    return OPS["mean"](OPS["mul"](x, x), dims=tuple(range(x.type.ndim)), keepdim=False)


def dense(x: Value, params: Iterator[Value]) -> Value:
    return OPS["linear"](x, next(params), next(params))


def mlp(batch: int, sizes: Sequence[int], dtype: DType = float32, options: PlanOptions = SEARCH) -> Graph:
    """Linear layers with biases and a ReLU between each two: sizes of the input, of each layer's output."""
    pairs = list(zip(sizes, sizes[1:], strict=False))

    def loss(data: Sequence[Value], params: Sequence[Value]) -> Value:
        x, own = data[0], iter(params)
        for i in range(len(pairs)):
            x = dense(x if i == 0 else OPS["relu"](x), own)
        return mean_square(x)

    shapes = [s for i, o in pairs for s in ((o, i), (o,))]
    return adamw([TensorType((batch, sizes[0]), dtype)], shapes, loss, dtype, options)


def classifier(batch: int, width: int, classes: int, dtype: DType = float32, options: PlanOptions = SEARCH) -> Graph:
    """One linear layer and the cross entropy of its classes."""

    def loss(data: Sequence[Value], params: Sequence[Value]) -> Value:
        logits = OPS["log_softmax"](dense(data[0], iter(params)), dim=1)
        return OPS["nll_loss"](logits, data[1], reduction="sum", ignore_index=-100)

    data = [TensorType((batch, width), dtype), TensorType((batch,), int64)]
    return adamw(data, [(classes, width), (classes,)], loss, dtype, options)


def residual(batch: int, width: int, inner: int, blocks: int, dtype: DType = float32, options: PlanOptions = SEARCH) -> Graph:
    """Equal blocks: a norm, two linear layers, and the sum with what came in."""

    def loss(data: Sequence[Value], params: Sequence[Value]) -> Value:
        x, own = data[0], iter(params)
        for _ in range(blocks):
            h = OPS["layer_norm"](x, next(own), next(own), eps=1e-5)[0]
            x = OPS["add"](x, dense(OPS["relu"](dense(h, own)), own))
        return mean_square(x)

    block = [(width,), (width,), (inner, width), (inner,), (width, inner), (width,)]
    return adamw([TensorType((batch, width), dtype)], block * blocks, loss, dtype, options)


def any_step(seed: int) -> Graph:
    """A small model of any sizes: linear layers, norms and residual blocks in any order."""
    rng = Random(seed)
    width = lambda: rng.choice((256, 512, 1024, 2048, 4096, 8192))  # noqa: E731
    batch, start, inner = rng.choice((32, 256, 2048, 16384)), width(), width()
    shapes: list[Shape] = []
    kinds, at = rng.choices(("linear", "linear", "block", "norm"), k=rng.randint(1, 4)), start
    for kind in kinds:
        if kind == "linear":
            to = width()
            shapes += [(to, at), (to,)]
            at = to
        else:
            shapes += [(inner, at), (inner,), (at, inner), (at,)] if kind == "block" else [(at,), (at,)]
    shapes.append((width(), at))

    def loss(data: Sequence[Value], params: Sequence[Value]) -> Value:
        x, own = data[0], iter(params)
        for kind in kinds:
            if kind == "linear":
                x = OPS["relu"](dense(x, own))
            elif kind == "block":
                x = OPS["add"](x, dense(OPS["relu"](dense(x, own)), own))
            else:
                x = OPS["layer_norm"](x, next(own), next(own), eps=1e-5)[0]
        return mean_square(OPS["linear"](x, next(own)))

    return adamw([TensorType((batch, start), float32)], shapes, loss)


__all__ = [
    "SEARCH", "adamw", "any_step", "classifier", "dense", "mean_square", "mlp", "next_step", "residual", "with_inputs",
]  # fmt: skip
