"""Random graphs for sharding tests, whose every value is a small whole number.

Sums of whole numbers are exact in any order, so the sharded result must equal the unsharded one bit by bit, comparisons
included. Values are kept small by clamping. Next: ``test_sharding.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

import gt.ir.ops  # noqa: F401 - fills the table
from gt.ir.graph import Attrs, Graph, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS, OpDef, emitting
from gt.ir.signals import ShardConfig, SignalConfig
from gt.ir.text import print_graph
from gt.ir.types import Shape, TensorType, float64, int8, int32, int64, uint8

LIMIT = 2.0**40  # bound on magnitudes before a clamp
SIZES = (2, 3, 4, 5, 6, 7, 9)
SIGNALS = ("s0", "s1")


@dataclass
class Recorder:
    """An emitter into a list of nodes, each under the signal of the moment."""

    nodes: list[Node] = field(default_factory=list)
    signal: str | None = None

    def emit(self, op: OpDef, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
        types = op.infer_types(tuple(v.type for v in inputs), attrs)
        outputs = tuple(Value(t) for t in types)
        self.nodes.append(Node(op, tuple(inputs), outputs, attrs, signal=self.signal))
        return outputs

    def constant(self, value: bool | int | float, dtype: Any) -> Any:
        return self.emit(OPS["full"], (), (("shape", ()), ("value", value), ("dtype", dtype)))[0]


def record(
    types: Sequence[TensorType],
    body: Callable[..., Sequence[Value]],
    signals: Mapping[str, ShardConfig | SignalConfig] | None = None,
    donated: Sequence[int] = (),
) -> Graph:
    """Give the graph of ``body(recorder, *inputs)``."""
    inputs = tuple(Value(t, f"x{i}") for i, t in enumerate(types))
    recorder = Recorder()
    with emitting(recorder):
        outputs = body(recorder, *inputs)
    given = (signals or {}).items()
    configs = tuple((name, SignalConfig(shard=s) if isinstance(s, ShardConfig) else s) for name, s in given)
    return Graph(
        "g", inputs, (), tuple(recorder.nodes), tuple(outputs), donated=frozenset(donated), signals=configs
    )


@dataclass(frozen=True)
class Case:
    """A graph, its inputs, and how many workers there are."""

    graph: Graph
    inputs: tuple[np.ndarray, ...]
    num_workers: int

    def __repr__(self) -> str:
        return f"{self.num_workers} workers\n{print_graph(self.graph)}"


class Maker:
    """Grows a graph, one op or so at a time. ``places``: those of the k best are looked at, too."""

    places = True

    def __init__(self, rng: Random, values: Sequence[Value], sizes: Sequence[int]) -> None:
        self.rng, self.sizes = rng, sizes
        self.values = list(values)
        self.bound: dict[Value, float] = dict.fromkeys(values, 4.0)

    def grow(self, recorder: Recorder, count: int, names: Iterable[str]) -> None:
        """Make at least ``count`` nodes, each under one of the signals or none."""
        names = tuple(names)
        while (before := len(recorder.nodes)) < count:
            recorder.signal = self.rng.choice((None, None, *names))
            self.step()
            if len(recorder.nodes) == before:
                self.create()

    def pick(self, *, ndim: int = 0, dtype: Any = float64) -> Value | None:
        found = [v for v in self.values if v.type.ndim >= ndim and v.type.dtype is dtype and v.type.numel]
        recent = found[-3:] if self.rng.random() < 0.6 else found  # long chains carry pending sums further
        return self.rng.choice(recent) if found else None

    def dim(self, value: Value) -> int:
        return self.rng.randint(0, value.type.ndim - 1)

    def keep(self, value: Any, bound: float) -> None:
        self.bound[value] = bound
        if bound > LIMIT or (bound > 64 and self.rng.random() < 0.1):
            value = clamped(value, -4.0, 4.0) if value.type.dtype is float64 else value
            self.bound[value] = 4.0 if value.type.dtype is float64 else bound
        self.values.append(value)

    def step(self) -> None:
        getattr(self, self.rng.choice(STEPS))()

    # -- one method for each family

    def unary(self) -> None:
        if (x := self.pick()) is not None:
            self.keep(OPS[self.rng.choice(["neg", "abs", "relu", "copy", "sign"])](x), self.bound[x])

    def binary(self) -> None:
        a = self.pick()
        if a is None:
            return
        fits = [v for v in self.values if v.type.dtype is float64 and broadcasts(a.type.shape, v.type.shape)]
        b = self.rng.choice(fits)
        name = self.rng.choice(["add", "sub", "add", "mul", "maximum", "minimum", "where"])
        if self.rng.choice((True, False)):
            a, b = b, a
        bounds = self.bound[a], self.bound[b]
        out = OPS["where"](OPS["gt"](a, b), a, b) if name == "where" else OPS[name](a, b)
        self.keep(out, bounds[0] * bounds[1] if name == "mul" else sum(bounds))

    def matmul(self) -> None:
        a = self.pick(ndim=2)
        if a is None:
            return
        k = a.type.shape[-1]
        fits = [v for v in self.values if v.type.dtype is float64 and v.type.ndim == 2 and v.type.shape[0] == k]
        if fits:
            b = self.rng.choice(fits)
            self.keep(OPS["matmul"](a, b), self.bound[a] * self.bound[b] * k)
        else:
            b = self.rng.choice([v for v in self.values if v.type.dtype is float64 and v.type.ndim == 2] or [a])
            if a.type.ndim == b.type.ndim == 2 and k == b.type.shape[1]:
                self.keep(OPS["linear"](a, b), self.bound[a] * self.bound[b] * k)

    def reduce(self) -> None:
        x = self.pick(ndim=1)
        if x is None:
            return
        dims = tuple(sorted({self.dim(x) for _ in range(self.rng.randint(1, 3))}))
        keepdim, name = self.rng.choice((True, False)), self.rng.choice(["sum", "sum", "amax", "amin"])
        if name == "sum":
            count = x.type.numel
            self.keep(OPS["sum"](x, dims=dims, keepdim=keepdim, dtype=float64), self.bound[x] * count)
        else:
            self.keep(OPS[name](x, dims=dims, keepdim=keepdim), self.bound[x])

    def reshape(self) -> None:
        if (x := self.pick()) is not None:
            self.keep(OPS["reshape"](x, shape=self.rng.choice(factorings(x.type.numel))), self.bound[x])

    def permute(self) -> None:
        if (x := self.pick(ndim=2)) is not None:
            self.keep(OPS["permute"](x, dims=tuple(self.rng.sample(range(x.type.ndim), x.type.ndim))), self.bound[x])

    def expand(self) -> None:
        x = self.pick()
        if x is not None and x.type.ndim < 3:
            extra = (self.rng.choice(self.sizes),)
            wide = tuple(self.rng.choice(self.sizes) if s == 1 else s for s in x.type.shape)
            self.keep(OPS["expand"](x, shape=extra + wide if self.rng.choice((True, False)) else wide), self.bound[x])

    def cut(self, shape: Shape) -> dict[str, Shape]:
        """Give the attributes of a slice of one dim."""
        n = len(shape)
        d = self.rng.randint(0, n - 1)
        a = self.rng.randint(0, shape[d] - 1)
        b, s = self.rng.randint(a + 1, shape[d]), self.rng.randint(1, 2)
        starts = tuple(a if i == d else 0 for i in range(n))
        stops = tuple(b if i == d else size for i, size in enumerate(shape))
        return {"starts": starts, "stops": stops, "steps": tuple(s if i == d else 1 for i in range(n))}

    def slice(self) -> None:
        if (x := self.pick(ndim=1)) is not None:
            self.keep(OPS["slice"](x, **self.cut(x.type.shape)), self.bound[x])

    def write(self) -> None:
        """A slice of one value written over another's."""
        if (x := self.pick(ndim=1)) is not None:
            other, where = self.rng.choice([v for v in self.values if v.type is x.type]), self.cut(x.type.shape)
            self.keep(OPS["slice_scatter"](x, OPS["slice"](OPS["neg"](other), **where), **where), max(self.bound[x], self.bound[other]))

    def pad(self) -> None:
        if (x := self.pick(ndim=1)) is not None and x.type.numel < 200:
            d, n = self.dim(x), x.type.ndim
            low = tuple(self.rng.randint(0, 2) if i == d else 0 for i in range(n))
            self.keep(OPS["pad"](x, low=low, high=low[::-1], interior=(0,) * n, value=0.0), self.bound[x])

    def cat(self) -> None:
        if (x := self.pick(ndim=1)) is not None and x.type.numel < 200:
            other = self.rng.choice([v for v in self.values if v.type is x.type])
            self.keep(OPS["cat"](x, other, dim=self.dim(x)), max(self.bound[x], self.bound[other]))

    def move(self) -> None:
        if (x := self.pick(ndim=1)) is not None:
            d = self.dim(x)
            kind = self.rng.choice(("flip", "roll", "cumsum", "cumsum"))
            if kind == "flip":
                self.keep(OPS["flip"](x, dims=(d,)), self.bound[x])
            elif kind == "roll":
                self.keep(OPS["roll"](x, shifts=(self.rng.randint(-3, 3),), dims=(d,)), self.bound[x])
            else:
                self.keep(OPS["cumsum"](x, dim=d), self.bound[x] * x.type.shape[d])

    def windows(self) -> None:
        """A convolution with a made weight, its input's gradient, or the largest of windows."""
        x = self.pick(ndim=3)
        if x is None:
            flat = self.pick(ndim=1)
            if flat is None or flat.type.numel > 100:
                return
            x = OPS["reshape"](flat, shape=(*(1,) * max(0, 4 - flat.type.ndim), *flat.type.shape))
            self.bound[x] = self.bound[flat]
        if x.type.ndim == 4 and self.rng.random() < 0.3 and min(x.type.shape[2:]) > 1:
            attrs = {"kernel": (2, 2), "stride": (self.rng.randint(1, 2), 1), "padding": (self.rng.randint(0, 1), 0)}
            self.keep(OPS["max_pool"](x, **attrs, dilation=(1, 1), ceil_mode=self.rng.random() < 0.3)[0], self.bound[x])
            return
        spatial = x.type.ndim - 2
        pick = lambda *options: tuple(self.rng.choice(options) for _ in range(spatial))  # noqa: E731
        kernel = tuple(self.rng.randint(1, min(3, n)) for n in x.type.shape[2:])
        weight = OPS["iota"](shape=(2, x.type.shape[1], *kernel), dim=self.rng.randint(0, spatial + 1), dtype=float64)
        attrs = {
            "stride": pick(1, 1, 2), "padding": tuple(self.rng.randint(0, (k - 1) // 2) for k in kernel), "dilation": (1,) * spatial,
            "transposed": False, "output_padding": (0,) * spatial, "groups": 1,
        }  # fmt: skip
        taps = 9 * 3**spatial  # the largest weight, so often
        bound = self.bound[x] * x.type.shape[1] * taps
        y = OPS["convolution"](x, weight, **attrs)
        self.keep(y, bound)
        if self.rng.random() < 0.4:
            self.keep(OPS["convolution_input_grad"](y, weight, shape=x.type.shape, **attrs), bound * 2 * taps)
        if self.rng.random() < 0.3:
            numel = y.type.numel
            self.keep(OPS["convolution_weight_grad"](y, x, shape=weight.type.shape, **attrs), bound * self.bound[x] * numel)

    def triangle(self) -> None:
        if (x := self.pick(ndim=2)) is not None:
            self.keep(OPS[self.rng.choice(["tril", "triu"])](x, diagonal=self.rng.randint(-2, 2)), self.bound[x])

    def create(self) -> None:
        shape = tuple(self.rng.choices(self.sizes, k=self.rng.randint(0, 2)))
        kind = self.rng.choice(["full", "iota", "random"])
        if kind == "random":
            seed, stream = (OPS["full"](shape=(), value=v, dtype=int64) for v in (7, 3))
            low, high = (OPS["full"](shape=(), value=v, dtype=int64) for v in (-4, 4))
            out = OPS["random_int"](seed, stream, low, high, shape=shape, dtype=int64)
            self.keep(OPS["cast"](out, dtype=float64), 4.0)
        elif kind == "iota" and shape:
            self.keep(OPS["iota"](shape=shape, dim=self.rng.randint(0, len(shape) - 1), dtype=float64), 8.0)
        else:
            self.keep(OPS["full"](shape=shape, value=2.0, dtype=float64), 2.0)

    def lookup(self) -> None:
        """Rows by index, the index being made from a value."""
        table, source = self.pick(ndim=1), self.pick()
        if table is None or source is None or source.type.ndim > 2:
            return
        rows = table.type.shape[0]
        index = OPS["cast"](clamped(source, 0.0, rows - 1.0), dtype=int64)
        if table.type.ndim == 2:
            self.keep(OPS["embedding"](table, index), self.bound[table])
        elif index.type.ndim == 1:
            self.keep(OPS["index_select"](table, index, dim=0), self.bound[table])
        else:
            self.keep(OPS["one_hot"](index, classes=rows, dtype=float64), 1.0)

    def scatter(self) -> None:
        x = self.pick(ndim=1)
        if x is None:
            return
        sources = [v for v in self.values if v.type.shape[1:] == x.type.shape[1:] and v.type.ndim == x.type.ndim]
        source = self.rng.choice([v for v in sources if v.type.dtype is float64])
        rows = OPS["iota"](shape=source.type.shape[:1], dim=0, dtype=float64)
        index = OPS["cast"](clamped(rows, 0.0, x.type.shape[0] - 1.0), dtype=int64)
        self.keep(OPS["index_add"](x, index, source, dim=0), self.bound[x] + self.bound[source] * 8)

    def accumulate(self) -> None:
        """Sums that may stay pending through what follows: two added up, then an op that is linear or not."""
        x = self.pick(ndim=1)
        if x is None or self.bound[x] > 2.0**30:
            return
        other = self.rng.choice([v for v in self.values if v.type is x.type])
        d, bound = self.dim(x), (self.bound[x] + self.bound[other]) * 64
        a, b = (OPS["sum"](v, dims=(d,), keepdim=False, dtype=float64) for v in (x, other))
        out = OPS[self.rng.choice(("add", "sub", "maximum"))](a, b)
        scale = OPS["full"](shape=(), value=2.0, dtype=float64)
        after = {
            "neg": lambda: OPS["neg"](out), "relu": lambda: OPS["relu"](out), "abs": lambda: OPS["abs"](out),
            "mul": lambda: OPS["mul"](out, scale), "add": lambda: OPS["add"](out, scale),
            "reshape": lambda: OPS["reshape"](out, shape=(1, *out.type.shape)),
            "sum": lambda: OPS["sum"](out, dims=tuple(range(out.type.ndim)), keepdim=False, dtype=float64),
        }  # fmt: skip
        self.values.append(result := after[self.rng.choice(list(after))]())
        self.bound[result] = bound * 64

    def whole(self) -> None:
        """Whole numbers that wrap around, summed, and what is made of the sums: parts of them add up in their own dtype alone."""
        if (x := self.pick(ndim=1)) is None:
            return
        dtype, scale = self.rng.choice(((uint8, 100), (int8, 50), (int32, 2**29)))
        numbers = OPS["cast"](OPS["cast"](clamped(x, -4.0, 4.0), dtype=int64), dtype=dtype)
        numbers = OPS["mul"](numbers, OPS["full"](shape=(), value=scale, dtype=dtype))
        out = OPS["sum"](numbers, dims=(self.dim(x),), keepdim=False, dtype=dtype)
        rest = tuple(range(out.type.ndim))
        after = {
            "float": lambda: out, "wide": lambda: OPS["cast"](out, dtype=int64),
            "sum": lambda: OPS["sum"](out, dims=rest, keepdim=False, dtype=self.rng.choice((dtype, int64))),
            "later": lambda: OPS["sum"](OPS["cast"](out, dtype=float64), dims=rest, keepdim=False, dtype=float64),
        }  # fmt: skip
        made = after[self.rng.choice(list(after))]()
        self.keep(made if made.type.dtype is float64 else OPS["cast"](made, dtype=float64), 2.0**31 * x.type.numel)

    def sort(self) -> None:
        if (x := self.pick(ndim=1)) is not None:
            values, where = OPS["sort"](x, dim=self.dim(x), descending=self.rng.choice((True, False)))
            self.keep(values, self.bound[x])
            self.keep(OPS["cast"](where, dtype=float64), 8.0)

    def extremes(self) -> None:
        """Where the largest or smallest stands, and the k best: exact over parts of the dim too."""
        if (x := self.pick(ndim=1)) is None:
            return
        d = self.dim(x)
        if self.rng.choice((True, False)):
            where = OPS[self.rng.choice(("argmax", "argmin"))](x, dim=d, keepdim=self.rng.choice((True, False)))
            self.keep(OPS["cast"](where, dtype=float64), 16.0)
        else:
            k = self.rng.randint(1, x.type.shape[d])
            values, where = OPS["topk"](x, k=k, dim=d, largest=self.rng.choice((True, False)))
            self.keep(values, self.bound[x])
            if self.places:
                self.keep(OPS["cast"](where, dtype=float64), 16.0)

    def classes(self) -> None:
        """The log likelihood of targets, and its gradient."""
        x = self.pick(ndim=2)
        if x is None or x.type.ndim != 2:
            return
        rows, count = x.type.shape
        ones = OPS["iota"](shape=(rows,), dim=0, dtype=float64)
        target = OPS["cast"](clamped(ones, 0.0, count - 1.0), dtype=int64)
        loss = OPS["nll_loss"](x, target, reduction=self.rng.choice(("sum", "none")), ignore_index=self.rng.choice((-100, 1)))
        self.keep(loss, self.bound[x] * rows)
        self.keep(OPS["nll_loss_backward"](loss, target, shape=(rows, count), ignore_index=-100), self.bound[x] * rows)

    def logic(self) -> None:
        if (x := self.pick(ndim=1)) is not None:
            mask = OPS["gt"](x, OPS["full"](shape=(), value=0.0, dtype=float64))
            out = OPS[self.rng.choice(["any", "all"])](mask, dims=(self.dim(x),), keepdim=True)
            self.keep(OPS["cast"](out if self.rng.choice((True, False)) else mask, dtype=float64), 1.0)


STEPS = [
    "unary", "binary", "binary", "binary", "matmul", "matmul", "matmul", "reduce", "reduce", "reshape", "permute",
    "expand", "slice", "write", "write", "pad", "cat", "move", "windows", "windows", "triangle", "create", "lookup", "scatter", "sort", "logic",
    "accumulate", "accumulate", "accumulate", "extremes", "classes", "whole", "whole",
]  # fmt: skip


def clamped(x: Any, low: float, high: float) -> Any:
    low_, high_ = (OPS["full"](shape=(), value=v, dtype=float64) for v in (low, high))
    return OPS["minimum"](OPS["maximum"](x, low_), high_)


def broadcasts(a: Shape, b: Shape) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1], strict=False)) and max(len(a), len(b)) <= 4


def factorings(n: int) -> list[Shape]:
    """Give the shapes of up to three dims and n elements."""
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    pairs = [(d, n // d) for d in divisors]
    return [(n,), *pairs, *((d, e, n // d // e) for d in divisors for e in divisors if n // d % e == 0)]


def signal(rng: Random, num_workers: int) -> ShardConfig:
    """Any signal: workers shuffled, some only, absent ones among them; dims a tensor may lack."""
    workers = rng.sample(range(num_workers + 1), rng.randint(1, num_workers)) if rng.random() < 0.4 else None
    axis, replicated = rng.choice((0, 0, 0, 1, -1, 2, -2)), rng.random() < 0.15
    return ShardConfig(axis=0 if replicated else axis, workers=None if workers is None else tuple(workers), replicated=replicated)


MESHES: dict[int, tuple[dict[str, int], ...]] = {
    2: ({"dp": 2}, {"dp": 1, "tp": 2}), 3: ({"dp": -1},), 4: ({"dp": 2, "tp": 2}, {"dp": -1, "tp": 2}, {"dp": 3}, {"dp": 4, "tp": 2}),
}  # fmt: skip


def grid_signal(rng: Random, num_workers: int, mesh: dict[str, int]) -> SignalConfig:
    """A signal over named axes: dims a tensor may lack or have twice, two axes on a dim, rules for inputs by name."""

    def dims() -> dict[int, tuple[str, ...]]:
        axes = rng.sample(list(mesh), rng.randint(1, len(mesh)))
        if rng.random() < 0.3:
            return {rng.choice((0, 1, -1)): tuple(axes)}
        return dict(zip(rng.sample((0, 1, -1, 2), len(axes)), ((a,) for a in axes), strict=True))

    workers = rng.sample(range(num_workers + 1), num_workers) if rng.random() < 0.3 else None
    params = {rng.choice(("x0", "x[12]", "*", "y")): dims() if rng.random() < 0.8 else {}} if rng.random() < 0.5 else {}
    shard = ShardConfig(dims=dims(), workers=None if workers is None else tuple(workers)) if rng.random() < 0.8 else None
    return SignalConfig(shard=shard, mesh=mesh, params=params)


def placement(rng: Random, shape: Shape, num_workers: int) -> Sharding | None:
    """Where an input's buffer lives: unplaced, whole on some workers, or split."""
    kind = rng.choice(("none", "none", "whole", "split", "split", "split"))
    if kind == "none":
        return None
    if num_workers == 4 and rng.random() < 0.3:
        return grid_placement(rng, shape)
    mesh = everyone(num_workers)
    if rng.random() < 0.3:
        workers = tuple(rng.sample(mesh.workers, rng.randint(1, num_workers)))
        mesh = mesh if workers == mesh.workers else Mesh.line(workers)
    cuttable = [d for d, size in enumerate(shape) if size >= mesh.size]
    if kind == "whole" or not cuttable or mesh.size == 1:
        return Sharding.replicated(mesh, len(shape))
    dim = rng.choice(cuttable)
    return Sharding(mesh, tuple((mesh.axes[0][0],) if d == dim else () for d in range(len(shape))))


def everyone(num_workers: int) -> Mesh:
    return Mesh("all", (("w", num_workers),), tuple(range(num_workers)))


def grid_placement(rng: Random, shape: Shape) -> Sharding:
    """A placement on two mesh axes, both of them on one dim at times."""
    mesh = Mesh("grid", (("dp", 2), ("tp", 2)), (0, 1, 2, 3))
    dims: list[tuple[str, ...]] = [() for _ in shape]
    for axis, _ in rng.sample(mesh.axes, 2):
        fits = [d for d, size in enumerate(shape) if size >= 2 ** (len(dims[d]) + 1)]
        if fits and rng.random() < 0.8:
            dims[rng.choice(fits)] += (axis,)
    return Sharding(mesh, tuple(dims))


def any_signals(rng: Random, num_workers: int) -> dict[str, ShardConfig | SignalConfig]:
    """Give up to two signals by name, in short form or on a mesh of two axes."""
    grid = rng.choice(MESHES[num_workers])
    return {
        name: grid_signal(rng, num_workers, grid) if rng.random() < 0.5 else signal(rng, num_workers)
        for name in SIGNALS[: rng.randint(0, 2)]
    }


def make_case(seed: int, count: int) -> Case:
    """Any graph of about ``count`` nodes over any placements and signals on 2 to 4 workers.

    Fewer nodes of one seed are a prefix of more, so a failure shrinks by the count.
    """
    rng = Random(seed)
    num_workers = rng.randint(2, 4)
    sizes = (*rng.sample(SIZES, 3), 8, 1)
    shapes = [tuple(rng.choices(sizes[:4], k=rng.choice((0, 1, 2, 2, 2, 3)))) for _ in range(rng.randint(2, 4))]
    types = [TensorType(s, float64, placement(rng, s, num_workers)) for s in shapes]
    configs = any_signals(rng, num_workers)

    def body(recorder: Recorder, *inputs: Value) -> list[Value]:
        maker = Maker(rng, inputs, sizes)
        maker.grow(recorder, count, configs)
        unread = [v for n in recorder.nodes for v in n.outputs if all(v not in m.inputs for m in recorder.nodes)]
        return [*unread[:4], *rng.choices(maker.values, k=rng.randint(0, 3)), maker.values[-1]]

    graph = record(types, body, configs)
    numbers = np.random.default_rng(seed)
    return Case(graph, tuple(numbers.integers(-4, 5, s).astype(np.float64) for s in shapes), num_workers)


def cases(max_nodes: int = 30) -> st.SearchStrategy[Case]:
    """Any case, named by its seed and size."""
    count = st.integers(1, max_nodes) | st.integers(max_nodes // 2, max_nodes)
    return st.builds(make_case, st.integers(0, 2**32), count)


__all__ = ["Case", "Recorder", "cases", "everyone", "make_case", "placement", "record"]
