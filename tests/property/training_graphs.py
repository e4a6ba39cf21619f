"""Random steps for real workers: graphs whose states are inputs that they replace, some in place, run several times in a row.

Whole numbers stay exact, as in ``sharding_graphs``. Besides there are values that are not: what is smooth of anything, gradients, and
optimizers' steps. No comparison reads those, so they differ from NumPy's by rounding alone. Next: ``test_sharding_torch.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from gt.ir.graph import Attrs, Graph, Value
from gt.ir.opdef import OPS
from gt.ir.text import print_graph
from gt.ir.types import DType, TensorType, float16, float32, float64, int64
from tests.property.sharding_graphs import (
    SIZES,
    STEPS,
    Maker,
    Recorder,
    any_signals,
    clamped,
    placement,
    record,
)

SMALL = 64.0  # the bound beyond which what is not exact is made smaller, so that its rounding stays small
PLAIN: dict[str, dict[str, Any]] = {
    "tanh": {}, "sigmoid": {}, "gelu": {"approximate": "none"}, "silu": {}, "erf": {}, "softplus": {"beta": 1.0, "threshold": 20.0},
    "mish": {}, "square": {}, "cos": {},
}  # fmt: skip
COMPARING = ("unary", "lookup", "sort", "logic", "whole", "extremes")  # steps that read exact values only
SMOOTH = ("curve", "curve", "norm", "norm", "softmax", "softmax", "affine", "quotient", "running", "attend", "average")
EXACT = ("picked", "picked", "complexes", "drop", "windowed", "products")  # besides those of any maker
OPTIMIZERS: dict[str, tuple[int, int, Attrs]] = {  # states, run-time scalars, attributes
    "sgd_step": (1, 1, (("weight_decay", 0.01), ("momentum", 0.9), ("dampening", 0.0), ("nesterov", False), ("maximize", False), ("first", False))),
    "adamw_step": (2, 2, (("beta1", 0.9), ("beta2", 0.99), ("eps", 0.1), ("weight_decay", 0.01), ("amsgrad", False), ("maximize", False))),
    "adagrad_step": (1, 2, (("lr_decay", 0.1), ("weight_decay", 0.0), ("eps", 0.1), ("maximize", False))),
    "rmsprop_step": (1, 1, (("alpha", 0.9), ("eps", 0.1), ("weight_decay", 0.0), ("momentum", 0.0), ("centered", False), ("maximize", False))),
}  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """A graph to be run ``runs`` times. ``states``: by input that is replaced, the output that does. ``layouts``: how each input lies.

    ``held``: inputs that are still held when they are replaced, so that they may not be overwritten.
    """

    graph: Graph
    inputs: tuple[np.ndarray, ...]
    num_workers: int
    states: dict[int, int]
    layouts: tuple[str, ...]
    held: frozenset[int]
    runs: int

    def __repr__(self) -> str:
        how = ", ".join(f"x{i} {layout}{' held' if i in self.held else ''}" for i, layout in enumerate(self.layouts))
        replaced = ", ".join(f"x{i} by output {o}" for i, o in self.states.items())
        return f"{self.num_workers} workers, {self.runs} runs; {how}; replaced: {replaced}\n{print_graph(self.graph)}"


class SmoothMaker(Maker):
    """A maker with steps that round. ``rough``: values that are not exact. ``half``: steps are to be of halves, of which there are no
    complex numbers.
    """

    places = False  # where several are equal, torch's are others

    def __init__(self, rng: Random, values: Sequence[Value], sizes: Sequence[int], recorder: Recorder, rough: Sequence[Value], half: bool) -> None:
        super().__init__(rng, values, sizes)
        self.half = half
        self.recorder, self.rough, self.seen = recorder, set(rough), 0
        self.exact_only = False

    def pick(self, *, ndim: int = 0, dtype: Any = float64) -> Value | None:
        if not self.exact_only:
            return super().pick(ndim=ndim, dtype=dtype)
        found = [v for v in self.values if v.type.ndim >= ndim and v.type.dtype is dtype and v.type.numel and v not in self.rough]
        return self.rng.choice(found) if found else None

    def step(self) -> None:
        name = self.rng.choice(SMOOTH if self.rng.random() < 0.3 else EXACT if self.rng.random() < 0.15 else STEPS)
        self.exact_only = name in COMPARING
        getattr(self, name)()
        self.exact_only = False
        self.look()

    def look(self) -> None:
        """Note what is not exact of the nodes made since the last look, and keep it small."""
        nodes = self.recorder.nodes
        for node in nodes[self.seen :]:
            if node.op.name in ROUNDING or any(v in self.rough for v in node.inputs):
                self.rough.update(v for v in node.outputs if v.type.dtype.kind in "fc")
        for i, value in enumerate(self.values):
            if value in self.rough and self.bound[value] > SMALL:
                self.values[i] = self.small(value)
        self.seen = len(nodes)

    # -- steps that round

    def small(self, x: Any) -> Any:
        """Give a value, or one of at most 4 made from it, smoothly where no comparison may read it."""
        if self.bound[x] <= 8.0:
            return x
        if x not in self.rough:
            small = clamped(x, -4.0, 4.0)
        else:
            four = OPS["full"](shape=(), value=4.0, dtype=float64)
            small = OPS["mul"](OPS["tanh"](OPS["div"](x, four)), four)
            self.rough.add(small)
        self.bound[small] = 4.0
        return small

    def curve(self) -> None:
        if (x := self.pick()) is not None:
            name = self.rng.choice(list(PLAIN))
            self.keep(OPS[name](self.small(x), **PLAIN[name]), SMALL)

    def like(self, x: Value, shape: tuple[int, ...]) -> Any:
        """A value of a shape: one that is there, or a made one."""
        fits = [v for v in self.values if v.type.shape == shape and v.type.dtype is float64]
        return self.small(self.rng.choice(fits)) if fits else OPS["full"](shape=shape, value=1.5, dtype=float64)

    def norm(self) -> None:
        """A norm over the last dim, its gradients at times from statistics that lie in another order."""
        if (x := self.pick(ndim=1)) is None:
            return
        x, shape = self.small(x), x.type.shape[-1:]
        weight, bias = self.like(x, shape), self.like(x, shape)
        if self.rng.random() < 0.2 and x.type.ndim > 1:
            weight, bias = (self.like(x, x.type.shape[1:2]) for _ in range(2))
            y, mean, var = OPS["batch_norm"](x, weight, bias, eps=1.0)
            if not self.half:  # their statistics are float32
                self.keep(mean, 8.0)
            self.keep(y, SMALL)
            return
        if self.rng.random() < 0.3:
            self.keep(OPS["rms_norm"](x, weight, eps=1.0), SMALL)
            return
        y, mean, rstd = OPS["layer_norm"](x, weight, bias, eps=1.0)
        self.keep(y, SMALL)
        if self.rng.random() < 0.5 and x.type.ndim == 3:
            turned = OPS["permute"](x, dims=(1, 0, 2))
            mean, rstd = (OPS["permute"](s, dims=(1, 0, 2)) for s in OPS["layer_norm"](turned, weight, bias, eps=1.0)[1:])
        if self.rng.random() < 0.5:
            for grad in OPS["layer_norm_backward"](self.like(x, x.type.shape), x, mean, rstd, weight):
                self.keep(grad, 2 * SMALL)

    def softmax(self) -> None:
        if (x := self.pick(ndim=1)) is None:
            return
        x, d = self.small(x), self.dim(x)
        name = self.rng.choice(("softmax", "log_softmax", "log_softmax"))
        y = OPS[name](x, dim=d)
        self.keep(y, 2 * SMALL if name == "log_softmax" else 1.0)
        if name == "log_softmax" and self.rng.random() < 0.6:
            g = OPS["mul"](self.like(x, x.type.shape), OPS["full"](shape=(), value=0.5, dtype=float64))
            self.keep(OPS["log_softmax_backward"](g, y, dim=d), 2 * SMALL)

    def affine(self) -> None:
        """A linear layer with a bias."""
        if (x := self.pick(ndim=1)) is None:
            return
        k = x.type.shape[-1]
        weights = [v for v in self.values if v.type.dtype is float64 and v.type.ndim == 2 and v.type.shape[1] == k]
        if weights:
            w = self.small(self.rng.choice(weights))
            self.keep(OPS["linear"](self.small(x), w, self.like(x, w.type.shape[:1])), 64.0 * k + 8)

    def quotient(self) -> None:
        a = self.pick()
        if a is None:
            return
        b = self.like(a, a.type.shape)
        one = OPS["full"](shape=(), value=1.0, dtype=float64)
        self.keep(OPS["div"](a, OPS["add"](OPS["square"](b), one)), self.bound[a])

    def running(self) -> None:
        if (x := self.pick(ndim=1)) is None:
            return
        d, x = self.dim(x), self.small(x)
        name = self.rng.choice(("logsumexp", "logcumsumexp", "var", "norm"))
        if name == "logcumsumexp":
            self.keep(OPS[name](x, dim=d), SMALL)
        elif name == "var":
            self.keep(OPS[name](x, dims=(d,), keepdim=self.rng.choice((True, False)), correction=0), SMALL)
        elif name == "logsumexp":
            self.keep(OPS[name](x, dims=(d,), keepdim=self.rng.choice((True, False))), SMALL)
        else:
            self.keep(OPS[name](x, dims=(d,), keepdim=False), SMALL)

    def average(self) -> None:
        if (x := self.pick(ndim=1)) is not None:
            dims = tuple(sorted({self.dim(x) for _ in range(2)}))
            self.keep(OPS["mean"](x, dims=dims, keepdim=self.rng.choice((True, False))), self.bound[x])

    def attend(self) -> None:
        """Attention of a value to others of its shape, and its gradients."""
        x = self.pick(ndim=2)
        if x is None or x.type.ndim > 3:
            return
        shape = x.type.shape
        four = (*(1,) * (4 - len(shape)), *shape)
        q, k, v, g = (OPS["reshape"](self.like(x, shape), shape=four) for _ in range(4))
        attrs = {"is_causal": self.rng.choice((True, False)), "scale": 0.5}
        y, lse = OPS["scaled_dot_product_attention"](q, k, v, **attrs)
        self.keep(y, 8.0)
        if self.rng.random() < 0.5:
            for grad in OPS["attention_backward"](g, q, k, v, y, lse, **attrs):
                self.keep(grad, 2 * SMALL)

    # -- more steps that do not

    def picked(self) -> None:
        """Rows taken or written by an index that is made, whose entries differ where one is written."""
        x = self.pick(ndim=1)
        if x is None:
            return
        d, shape = self.dim(x), x.type.shape
        index = OPS["cast"](OPS["flip"](OPS["iota"](shape=shape, dim=d, dtype=float64), dims=(d,)), dtype=int64)
        other, name = self.like(x, shape), self.rng.choice(("gather", "scatter", "scatter_add", "index_put"))
        if name == "gather":
            self.keep(OPS["gather"](x, index, dim=d), self.bound[x])
        elif name == "index_put":
            rows = OPS["cast"](OPS["iota"](shape=(2,), dim=0, dtype=float64), dtype=int64)
            if shape[0] >= 2:
                source = OPS["slice"](other, starts=(0,) * len(shape), stops=(2, *shape[1:]), steps=(1,) * len(shape))
                self.keep(OPS["index_put"](x, rows, source, dims=(0,), accumulate=False), max(8.0, self.bound[x]))
        else:
            self.keep(OPS[name](x, index, other, dim=d), self.bound[x] + 8.0)

    def complexes(self) -> None:
        if (x := self.pick()) is not None and self.bound[x] < 2.0**20 and not self.half:
            z = OPS["complex"](x, self.like(x, x.type.shape))
            z = OPS["conj"](z) if self.rng.random() < 0.6 else z
            z = OPS["mul"](z, z) if self.rng.random() < 0.5 else z
            self.keep(OPS[self.rng.choice(("real", "imag"))](z), 2 * (self.bound[x] + 8.0) ** 2)

    def drop(self) -> None:
        if (x := self.pick(ndim=1)) is not None:
            seed, stream = (OPS["full"](shape=(), value=v, dtype=int64) for v in (7, self.rng.randint(0, 9)))
            shape = x.type.shape
            self.keep(OPS["dropout"](x, seed, stream, p=0.5, global_shape=shape, offsets=(0,) * len(shape)), 2 * self.bound[x])

    def products(self) -> None:
        if (x := self.pick(ndim=1)) is not None:
            d = self.dim(x)
            self.keep(OPS["cumprod"](OPS["sign"](x) if x not in self.rough else self.small(x), dim=d), 1.0 if x not in self.rough else 8.0**9)

    def windowed(self) -> None:
        """Averages of pairs, doubled."""
        x = self.pick(ndim=2)
        if x is None or x.type.ndim > 3:
            return
        x4 = OPS["reshape"](x, shape=(*(1,) * (4 - x.type.ndim), *x.type.shape))
        attrs = {"kernel": (1, 2), "stride": (1, 1), "padding": (0, 0), "ceil_mode": False}
        if x4.type.shape[3] > 1:
            y = OPS["avg_pool"](x4, **attrs, count_include_pad=True)
            self.keep(OPS["mul"](y, OPS["full"](shape=(), value=2.0, dtype=float64)), 2 * self.bound[x])


ROUNDING = {
    *PLAIN, "layer_norm", "layer_norm_backward", "rms_norm", "batch_norm", "softmax", "log_softmax", "log_softmax_backward", "div", "logsumexp",
    "logcumsumexp", "var", "norm", "mean", "scaled_dot_product_attention", "attention_backward",
}  # fmt: skip


# -- states, each with what replaces it


def replaced(maker: SmoothMaker, x: Value) -> Any:
    """Give a new value of an exact state: a chain over it, rows written into it, or a value computed otherwise."""
    rng = maker.rng
    fits = [v for v in maker.values if v.type.shape == x.type.shape and v not in maker.rough and maker.bound[v] < 2.0**40]
    how, other = rng.choice(("chain", "chain", "rows", "index", "other")), rng.choice(fits)
    if how == "rows" and x.type.ndim:
        where = maker.cut(x.type.shape)
        return OPS["slice_scatter"](x, OPS["slice"](clamped(other, -4.0, 4.0), **where), **where)
    if how == "index" and x.type.ndim:
        rows = OPS["cast"](clamped(OPS["iota"](shape=x.type.shape[:1], dim=0, dtype=float64), 0.0, 1.0), dtype=int64)
        return OPS["fmod"](OPS["index_add"](x, rows, clamped(other, -4.0, 4.0), dim=0), OPS["full"](shape=(), value=5.0, dtype=float64))
    if how == "chain":
        out = OPS[rng.choice(("add", "sub"))](x, clamped(other, -2.0, 2.0))
        scale = OPS["full"](shape=(), value=rng.choice((-1.0, 0.0, 1.0)), dtype=float64)
        return OPS["mul"](out, scale) if rng.random() < 0.3 else clamped(out, -4.0, 4.0)
    return clamped(other, -4.0, 4.0)


def slopes(recorder: Recorder, maker: SmoothMaker, params: Sequence[Value]) -> list[Value]:
    """Give gradients of the parameters by the graph so far; values of their shapes where a comparison has read what is not exact."""
    read = [v for n in recorder.nodes if n.op.name in KINKED for v in n.inputs]
    if maker.rng.random() < 0.3 or any(v in maker.rough for v in read):
        return [maker.like(p, p.type.shape) for p in params]
    found = [v for v in maker.values if v.type.dtype is float64 and v.type.numel and maker.bound[v] < 2.0**12]
    last = maker.rng.choice(found[-4:])
    loss = OPS["sum"](last, dims=tuple(range(last.type.ndim)), keepdim=False, dtype=float64)
    recorder.nodes = [replace(node, taped=True) for node in recorder.nodes]
    return list(recorder.emit(OPS["grad"], (loss, *params), (("has_seed", False),)))


KINKED = {"relu", "abs", "maximum", "minimum", "gt", "amax", "amin", "sort", "topk", "max_pool"}


def updated(recorder: Recorder, maker: SmoothMaker, name: str, params: Sequence[Value], moments: Sequence[Value]) -> list[Value]:
    """Give an optimizer's step of all parameters: these and their moments, new."""
    _, scalars, attrs = OPTIMIZERS[name]
    grads = [clamped(g, -4.0, 4.0) for g in slopes(recorder, maker, params)]
    numbers = [OPS["full"](shape=(), value=v, dtype=float64) for v in (0.1, 3.0)[:scalars]]
    return list(recorder.emit(OPS[name], (*params, *grads, *moments, *numbers), (("num", len(params)), *attrs)))


def make_steps(seed: int, count: int, dtype: DType = float64) -> Steps:
    """Any step of about ``count`` nodes before its updates, over any placements and signals on 2 to 4 workers."""
    rng = Random(seed)
    num_workers = rng.randint(2, 4)
    sizes = (*rng.sample(SIZES, 3), 8, 1)
    kinds = [rng.choice(("data", "exact", "exact", "param", "param")) for _ in range(rng.randint(2, 5))]
    shapes = [tuple(rng.choices(sizes[:4], k=rng.choice((0, 1, 2, 2, 2, 3)))) for _ in kinds]
    name = rng.choice(list(OPTIMIZERS))
    params = [i for i, kind in enumerate(kinds) if kind == "param"]
    for _ in range(OPTIMIZERS[name][0]):
        kinds += ["moment"] * len(params)
        shapes += [shapes[i] for i in params]
    types = [TensorType(s, float64, placement(rng, s, num_workers)) for s in shapes]
    configs = any_signals(rng, num_workers)
    states = [i for i, kind in enumerate(kinds) if kind == "exact"] + params + [i for i, kind in enumerate(kinds) if kind == "moment"]
    shown: list[int] = []

    def body(recorder: Recorder, *inputs: Value) -> list[Value]:
        given = [v for v, kind in zip(inputs, kinds, strict=True) if kind != "moment"]
        maker = SmoothMaker(rng, given, sizes, recorder, [v for v, kind in zip(inputs, kinds, strict=True) if kind == "param"], dtype is float16)
        maker.grow(recorder, count, configs)
        read = {v for n in recorder.nodes for v in n.inputs}
        outputs = [*[v for v in maker.values if v not in read][:4], *rng.choices(maker.values, k=rng.randint(0, 3)), maker.values[-1]]
        shown.append(len(outputs))
        recorder.signal = rng.choice((None, *configs))
        new = [replaced(maker, v) for v, kind in zip(inputs, kinds, strict=True) if kind == "exact"]
        if params:
            moments = [v for v, kind in zip(inputs, kinds, strict=True) if kind == "moment"]
            new += updated(recorder, maker, name, [inputs[i] for i in params], moments)
        return [*outputs, *new]

    held = frozenset(i for i in states if rng.random() < 0.1)
    graph = record(types, body, configs, [i for i in states if i not in held or rng.random() < 0.5])
    layouts = tuple(rng.choice(LAYOUTS if kind == "data" else DENSE) for kind in kinds)
    numbers = np.random.default_rng(seed)
    arrays = [numbers.integers(-4, 5, s).astype(np.float64) for s in shapes]
    for i, (kind, layout) in enumerate(zip(kinds, layouts, strict=True)):
        if kind in ("param", "moment"):
            arrays[i] = np.abs(numbers.normal(size=shapes[i])) if kind == "moment" else numbers.normal(size=shapes[i])
        if layout == "expanded" and shapes[i]:
            arrays[i][:] = arrays[i][:1]
    if dtype is not float64:
        graph, arrays = narrowed(graph, dtype), [array.astype(dtype.numpy) for array in arrays]
    return Steps(graph, tuple(arrays), num_workers, {x: shown[0] + n for n, x in enumerate(states)}, layouts, held, rng.randint(1, 4))


def narrowed(graph: Graph, dtype: DType) -> Graph:
    """Give the graph with values of ``dtype`` in the place of float64's."""
    now = {v: Value(TensorType(v.type.shape, dtype).placed(v.type.sharding), v.hint) for v in graph.inputs}
    nodes = []
    for node in graph.nodes:
        attrs = tuple((name, dtype if value is float64 else value) for name, value in node.attrs)
        inputs = tuple(now[v] for v in node.inputs)
        outputs = tuple(Value(t) for t in node.op.infer_types(tuple(v.type for v in inputs), attrs))
        now.update(zip(node.outputs, outputs, strict=True))
        nodes.append(replace(node, inputs=inputs, outputs=outputs, attrs=attrs))
    return replace(graph, inputs=tuple(now[v] for v in graph.inputs), nodes=tuple(nodes), outputs=tuple(now[v] for v in graph.outputs))


DENSE = ("plain", "transposed")  # as what a program makes lies; a copy of it lies alike, so that copies of a value go on being equal
LAYOUTS = (*DENSE, "sliced", "expanded")


def steps(max_nodes: int = 30) -> st.SearchStrategy[Steps]:
    """Any steps, named by their seed and size."""
    count = st.integers(1, max_nodes) | st.integers(max_nodes // 2, max_nodes)
    return st.builds(make_steps, st.integers(0, 2**32), count, st.sampled_from([float64, float64, float32, float16]))


def laid_out(part: np.ndarray, layout: str) -> torch.Tensor:
    """Give a worker's part as a tensor that lies so."""
    own = torch.from_numpy(np.array(part))
    if layout == "transposed":
        dims = tuple(reversed(range(own.ndim)))
        return own.permute(dims).contiguous().permute(dims)
    if layout == "sliced" and own.ndim:
        wide = torch.full((*own.shape[:-1], 2 * own.shape[-1] + 1), float("nan"), dtype=own.dtype)
        wide[..., 1::2] = own
        return wide[..., 1::2]
    if layout == "expanded" and own.ndim:  # all rows are equal
        return own[:1].expand(own.shape)
    return own


__all__ = ["Steps", "laid_out", "make_steps", "steps"]
