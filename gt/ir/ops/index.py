"""Ops that move elements where data says: gather and its opposites, and writes into a part.

Indices are int64 and count from 0; those of ``index`` and ``index_put`` may be negative and count from the end. Next: ``order``,
``position``.
"""

from __future__ import annotations

from builtins import slice as slice_  # the name slice is the op here
from collections.abc import Sequence
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Local, Var, op
from gt.ir.ops.broadcast import constant, expand, reshape, unbroadcast, zeros_like
from gt.ir.ops.compare import eq, ge, logical_and, lt, where
from gt.ir.ops.creation import iota
from gt.ir.ops.elementwise import floor_divide, maximum, minimum, mul, sub
from gt.ir.ops.families import along, check_same, dim_names, nothing, rule_of
from gt.ir.ops.movement import Ints, cut_dims, slice, slice_local, slices
from gt.ir.types import Shape, ShapeError, TensorType, TypeMismatch, broadcast_shapes, int64


def _check_index(name: str, index: TensorType) -> None:
    if index.dtype is not int64:
        raise TypeMismatch(f"{name}: expected an int64 index, got {index!r}")


def _fits(name: str, small: Shape, big: Shape, dim: int) -> None:
    if len(small) != len(big) or any(a > b for d, (a, b) in enumerate(zip(small, big, strict=True)) if d != dim):
        raise ShapeError(f"{name}: index shape {list(small)} does not fit {list(big)} apart from dim {dim}")


def _partial_dims(dim: int, *shapes: Shape) -> set[int]:
    """The dim, and those where the shapes differ: they must be whole."""
    return {d for d in range(len(shapes[0])) if d == dim or len({s[d] for s in shapes}) > 1}


def _corner(x: np.ndarray, shape: Shape, dim: int) -> np.ndarray:
    return x[tuple(slice_(None) if d == dim else slice_(0, n) for d, n in enumerate(shape))]


def in_dim(index: np.ndarray, size: int) -> np.ndarray:
    """Refuse indices that NumPy would count from the end or torch not take."""
    bad = index[(index < 0) | (index >= size)]
    if bad.size:
        raise IndexError(f"index {bad.flat[0]} is out of bounds for a dim of size {size}")
    return index


# -- along one dim


def _gather_infer(x: TensorType, index: TensorType, dim: int) -> TensorType:
    _check_index("gather", index)
    _fits("gather", index.shape, x.shape, dim)
    return TensorType(index.shape, x.dtype)


gather = op(
    "gather", "x index",
    doc="x[..., index, ...] along dim, element by element.",
    infer=_gather_infer,
    numpy=lambda x, index, dim: (
        np.take_along_axis(_corner(x, index.shape, dim), in_dim(index, x.shape[dim]), dim) if x.ndim else x
    ),
    torch="torch.gather({x}, {dim}, {index})",
    vjp=lambda g, y, x, index, dim: (scatter_add(zeros_like(x), index, g, dim=dim), None),
    factors=lambda operands, results, attrs: along(operands, results, _partial_dims(attrs["dim"], *operands)),
    linear=((0,),), saves="x index", refuses=(1,),
)  # fmt: skip


def _scatter_infer(name: str) -> Any:
    def infer(x: TensorType, index: TensorType, source: TensorType, dim: int, **_: Any) -> TensorType:
        _check_index(name, index)
        check_same(name, (x, source))
        _fits(name, index.shape, x.shape, dim)
        if source.shape != index.shape:
            raise ShapeError(f"{name}: expected a source of the index's shape, got {index!r} and {source!r}")
        return x

    return infer


def _places(index: np.ndarray, dim: int) -> tuple[np.ndarray, ...]:
    grid: list[Any] = list(np.indices(index.shape, sparse=True))
    grid[dim] = index
    return tuple(grid)


def _scatter_numpy(x: np.ndarray, index: np.ndarray, source: np.ndarray, dim: int) -> np.ndarray:
    out = x.copy()
    out[_places(in_dim(index, x.shape[dim]), dim) if x.ndim else ()] = source
    return out


def _scatter_add_numpy(x: np.ndarray, index: np.ndarray, source: np.ndarray, dim: int) -> np.ndarray:
    out = x.astype(np.float32) if x.dtype == np.float16 else x.copy()
    np.add.at(out, _places(in_dim(index, x.shape[dim]), dim) if x.ndim else (), source)
    return out


def _scatter_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    return along(operands, results, _partial_dims(attrs["dim"], *operands))


def _zero_at(g: Var, index: Var, dim: int) -> Any:
    return scatter(g, index, expand_zero(g, index.type.shape), dim=dim)


def expand_zero(like: Var, shape: Shape) -> Any:
    zero = constant(0, like)
    return expand(zero, shape=shape) if shape else zero


scatter = op(
    "scatter", "x index source",
    doc="x with source written at index along dim; of repeated indices any one wins.",
    infer=_scatter_infer("scatter"), numpy=_scatter_numpy, torch="torch.scatter({x}, {dim}, {index}, {source})",
    torch_inplace=lambda names, attrs, types: f"{names[0]}.scatter_({attrs['dim']}, {names[1]}, {names[2]})", inplace=((0, 0),),
    vjp=lambda g, y, x, index, source, dim: (_zero_at(g, index, dim), None, gather(g, index, dim=dim)),
    factors=_scatter_rule, linear=((0, 2),), refuses=(1,),
)  # fmt: skip
scatter_add = op(
    "scatter_add",
    "x index source",
    doc="x with source added at index along dim; repeated indices add up.",
    infer=_scatter_infer("scatter_add"),
    numpy=_scatter_add_numpy,
    torch="torch.scatter_add({x}, {dim}, {index}, {source})", inplace=((0, 0),),
    torch_inplace=lambda names, attrs, types: f"{names[0]}.scatter_add_({attrs['dim']}, {names[1]}, {names[2]})",
    vjp=lambda g, y, x, index, source, dim: (g, None, gather(g, index, dim=dim)),
    factors=_scatter_rule,
    linear=((0, 2),), refuses=(1,),
)


def own_rows(x: np.ndarray, index: np.ndarray, dim: int, start: int) -> np.ndarray:
    """Give what an index along a dim takes of the part of it from ``start``; nothing that adds to what others give for what it takes of theirs."""
    own = (index >= start) & (index < start + x.shape[dim])
    taken = np.take(x, np.where(own, index - start, 0), axis=dim)
    return np.where(own.reshape((*own.shape, *(1,) * (x.ndim - dim - 1))), taken, np.full((), nothing(x.dtype), x.dtype))


def rows_local(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    """``rows``: how many the indexed dim has, where this worker's begin at ``start``."""
    (dim,) = attrs.get("dims") or (attrs.get("dim", 0),)
    rows = where.global_inputs[0].shape[dim]
    if where.inputs[0].shape[dim] == rows:
        return attrs
    return attrs | {"start": where.input_offset(0, dim), "rows": rows}


def _select_infer(x: TensorType, index: TensorType, dim: int, start: int = 0, rows: int = 0) -> TensorType:
    _check_index("index_select", index)
    if index.ndim != 1 or not x.ndim:
        raise ShapeError(f"index_select: expected a 1-d index and at least one dim, got {x!r} and {index!r}")
    return TensorType((*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]), x.dtype)


def _rows_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    """x, 1-d index[, source]: rows along dim. The index's own dim passes where only the result has it.

    For reads the rows may be split: each worker gives those that it has.
    """
    dim, names = attrs["dim"], dim_names(len(operands[0]))
    named = lambda f: [*names[:dim], f, *names[dim + 1 :]]  # noqa: E731
    kinds: dict[str, fx.FactorKind] = {"v": "index"}
    if len(operands) == 2:
        return rule_of([named("v"), ["i"]], [named("i")], (*operands, *results), kinds)
    kinds = {"v": "whole", "i": "whole"}
    return rule_of([named("v"), ["i"], named("i")], [named("v")], (*operands, *results), kinds)


def _select_numpy(x: np.ndarray, index: np.ndarray, dim: int, start: int = 0, rows: int = 0) -> np.ndarray:
    in_dim(index, rows or x.shape[dim])
    return own_rows(x, index, dim, start) if rows else np.take(x, index, axis=dim)


def _select_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    (x, index), dim = names, attrs["dim"]
    if attrs.get("rows"):
        return f"kernels.own_rows({x}, {index}, {dim}, {attrs['start']}, {attrs['rows']})"
    return f"torch.index_select({x}, {dim}, kernels.from_start({index}, {x}.shape[{dim}]))"


index_select = op(
    "index_select",
    "x index",
    doc="The rows of dim that a 1-d index names.",
    infer=_select_infer, numpy=_select_numpy, torch=_select_torch,
    vjp=lambda g, y, x, index, dim: (index_add(zeros_like(x), index, g, dim=dim), None),
    factors=_rows_rule, local=rows_local,
    linear=((0,),), refuses=(1,),
)


def _index_add_numpy(x: np.ndarray, index: np.ndarray, source: np.ndarray, dim: int) -> np.ndarray:
    out = x.astype(np.float32) if x.dtype == np.float16 else x.copy()
    place: Any = (*(slice_(None),) * dim, in_dim(index, x.shape[dim]))
    np.add.at(out, place, source)
    return out


def _index_add_infer(x: TensorType, index: TensorType, source: TensorType, dim: int) -> TensorType:
    check_same("index_add", (x, source))
    want = _select_infer(x, index, dim)
    if source.shape != want.shape:
        raise ShapeError(f"index_add: expected a source of {list(want.shape)}, got {source!r}")
    return x


def _index_add_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    (x, index, source), dim = names, attrs["dim"]
    return f"{x}.index_add({dim}, kernels.from_start({index}, {x}.shape[{dim}]), {source})"


index_add = op(
    "index_add", "x index source",
    doc="x with the rows of source added to the rows of dim that a 1-d index names.",
    infer=_index_add_infer, numpy=_index_add_numpy,
    torch=_index_add_torch, torch_inplace=lambda *how: _index_add_torch(*how).replace("index_add", "index_add_", 1), inplace=((0, 0),),
    vjp=lambda g, y, x, index, source, dim: (g, None, index_select(g, index, dim=dim)),
    factors=_rows_rule, linear=((0, 2),), refuses=(1,),
)  # fmt: skip

# -- several index tensors: x[i, j, ...] on chosen dims, as NumPy's advanced indexing


def _index_shape(x: Shape, indices: Sequence[Shape], dims: Ints) -> Shape:
    """Give the shape of x[...]: index dims stand where the first indexed dim was, or lead if those are not adjacent."""
    block = broadcast_shapes(*indices)
    rest = [s for d, s in enumerate(x) if d not in dims]
    at = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    return (*rest[:at], *block, *rest[at:])


def _index_infer(x: TensorType, *indices: TensorType, dims: Ints, start: int = 0, rows: int = 0) -> TensorType:
    for index in indices:
        _check_index("index", index)
    return TensorType(_index_shape(x.shape, [i.shape for i in indices], dims), x.dtype)


def _subscript(indices: Sequence[Any], dims: Ints) -> tuple[Any, ...]:
    out: list[Any] = [slice_(None)] * (max(dims) + 1)
    for d, index in zip(dims, indices, strict=True):
        out[d] = index
    return tuple(out)


def _index_source(indices: Sequence[str], dims: Ints) -> str:
    parts = [":"] * (max(dims) + 1)
    for d, index in zip(dims, indices, strict=True):
        parts[d] = index
    return ", ".join(parts)


def _index_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    """Dims not indexed pass; for reads the index's dims pass too, and one indexed dim by itself may be split: each worker gives what it has."""
    dims, reading = attrs["dims"], attrs.get("accumulate") is None
    x, out = operands[0], results[0]
    indices = operands[1:] if reading else operands[1:-1]
    names = dim_names(len(x))
    block = broadcast_shapes(*indices)
    block_names = [f"i{k}" for k in range(len(block))]
    at = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    rest = [n for d, n in enumerate(names) if d not in dims]
    taken = [*rest[:at], *block_names, *rest[at:]]
    kinds: dict[str, fx.FactorKind] = {names[d]: "index" if reading and len(dims) == 1 else "whole" for d in dims}
    if not reading:
        kinds |= {n: "whole" for n in block_names}
    index_names = [
        [
            n if size == block[k] else ""
            for k, (n, size) in enumerate(zip(block_names[len(block) - len(s) :], s, strict=True), len(block) - len(s))
        ]
        for s in indices
    ]
    if reading:
        return rule_of([names, *index_names], [taken], (*operands, out), kinds)
    source = operands[-1]
    source_names = [n if size != 1 else "" for n, size in zip(taken[len(taken) - len(source) :], source, strict=True)]
    return rule_of([names, *index_names, source_names], [names], (*operands, out), kinds)


def _index_numpy(x: np.ndarray, *indices: np.ndarray, dims: Ints, start: int = 0, rows: int = 0) -> np.ndarray:
    if not rows:
        return x[_subscript(indices, dims)]
    (index,) = indices
    bad = index[(index < -rows) | (index >= rows)]
    if bad.size:
        raise IndexError(f"index {bad.flat[0]} is out of bounds for axis {dims[0]} with size {rows}")
    return own_rows(x, np.where(index < 0, index + rows, index), dims[0], start)


def _index_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    x, *indices = names
    if not attrs.get("rows"):
        return f"{x}[{_index_source(indices, attrs['dims'])}]"
    (index,), (dim,) = indices, attrs["dims"]
    return f"kernels.own_rows({x}, {index}, {dim}, {attrs['start']}, {attrs['rows']}, from_end=True)"


index = op(
    "index", "x *indices",
    doc="x[..., i, j, ...]: index tensors, which broadcast, on dims; placed as NumPy does.",
    infer=_index_infer, numpy=_index_numpy, torch=_index_torch,
    vjp=lambda g, y, x, *indices, dims: (
        index_put(zeros_like(x), *indices, g, dims=dims, accumulate=True), *(None for _ in indices),
    ),
    factors=_index_rule, linear=((0,),), local=lambda attrs, where: rows_local(attrs, where) if len(attrs["dims"]) == 1 else attrs,
    shares=lambda operands, results: all(not t.shape for t in operands[1:]),  # torch then selects
    refuses=(1,),
)  # fmt: skip


def _put_infer(x: TensorType, *rest: TensorType, dims: Ints, accumulate: bool) -> TensorType:
    *indices, source = rest
    check_same("index_put", (x, source))
    taken = _index_infer(x, *indices, dims=dims).shape
    if broadcast_shapes(taken, source.shape) != taken:
        raise ShapeError(
            f"shape mismatch: value tensor of shape {list(source.shape)} cannot be broadcast to indexing result "
            f"of shape {list(taken)}"
        )
    return x


def _put_numpy(x: np.ndarray, *rest: np.ndarray, dims: Ints, accumulate: bool) -> np.ndarray:
    *indices, source = rest
    out = x.astype(np.float32) if x.dtype == np.float16 else x.copy()
    if accumulate:
        np.add.at(out, _subscript(indices, dims), source)
    else:
        out[_subscript(indices, dims)] = source
    return out


def _put_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    parts = ["None"] * (max(attrs["dims"]) + 1)
    for d, name in zip(attrs["dims"], names[1:-1], strict=True):
        parts[d] = name
    return f"torch.ops.aten.index_put({names[0]}, [{', '.join(parts)}], {names[-1]}, {attrs['accumulate']})"


def _put_vjp(g: Var, y: Var, x: Var, *rest: Var, dims: Ints, accumulate: bool) -> tuple[Any, ...]:
    *indices, source = rest
    gx = g if accumulate else index_put(g, *indices, constant(0, g), dims=dims, accumulate=False)
    return (gx, *(None for _ in indices), unbroadcast(index(g, *indices, dims=dims), source.type))


index_put = op(
    "index_put", "x *rest",
    doc="x with the last operand written (or added) at x[..., i, j, ...]; it broadcasts.",
    infer=_put_infer, numpy=_put_numpy, torch=_put_torch, vjp=_put_vjp, factors=_index_rule,
    saves=lambda types, attrs, numbers: " ".join(f"rest{i}" for i in range(len(types) - 2)),
    linear=lambda num_operands, attrs: ((0, num_operands - 1),),
    torch_inplace=lambda *how: _put_torch(*how).replace("index_put", "index_put_"), inplace=((0, 0),), refuses=(1,),
)  # fmt: skip

# -- writes into a slice


def _slice_scatter_infer(x: TensorType, source: TensorType, starts: Ints, stops: Ints, steps: Ints) -> TensorType:
    check_same("slice_scatter", (x, source))
    want = slice.infer(x, starts, stops, steps)
    assert isinstance(want, TensorType)
    if want.shape != source.shape:
        raise ShapeError(f"slice_scatter: expected a source of {list(want.shape)}, got {source!r}")
    return x


def _slice_scatter_numpy(x: np.ndarray, source: np.ndarray, starts: Ints, stops: Ints, steps: Ints) -> np.ndarray:
    out = x.copy()
    out[slices(starts, stops, steps)] = source
    return out


def _slice_scatter_vjp(g: Var, y: Var, x: Var, source: Var, starts: Ints, stops: Ints, steps: Ints) -> tuple[Any, Any]:
    cleared = slice_scatter(g, zeros_like(source), starts=starts, stops=stops, steps=steps)
    return cleared, slice(g, starts=starts, stops=stops, steps=steps)


def _slice_scatter_torch(names: tuple[str, ...], attrs: dict[str, Any], types: Any, kernel: str = "slice_scatter") -> str:
    return f"kernels.{kernel}({', '.join((*names, *(str(attrs[part]) for part in ('starts', 'stops', 'steps'))))})"


def _split_slice_scatter(inputs: tuple[Var, ...], attrs: dict[str, Any], shards: int) -> Any:
    """Where the source is small, all have it and each writes what its rows take of it; else rows are exchanged for columns."""
    x, source = inputs
    if not 0 < source.type.nbytes * shards <= x.type.nbytes:
        return None
    inside, taken = None, source
    for d in sorted(cut_dims(x.type.shape, attrs)):
        start, step, rows = attrs["starts"][d], attrs["steps"][d], source.type.shape[d]
        line = iota(shape=x.type.shape[d : d + 1], dim=0, dtype=int64)
        at = lambda n, like=line: constant(n, like)  # noqa: E731
        place = sub(line, at(start))
        row = floor_divide(place, at(step))
        here = logical_and(logical_and(ge(row, at(0)), lt(row, at(rows))), eq(mul(row, at(step)), place))
        here = reshape(here, shape=tuple(n if i == d else 1 for i, n in enumerate(x.type.shape)))
        inside = here if inside is None else logical_and(inside, here)
        taken = index_select(taken, minimum(maximum(row, at(0)), at(rows - 1)), dim=d)
    assert inside is not None, "no dim is cut, so none has to be whole"
    return (where(inside, taken, x),)


slice_scatter = op(
    "slice_scatter", "x source",
    doc="x with source written over x[starts:stops:steps].",
    infer=_slice_scatter_infer, numpy=_slice_scatter_numpy,
    torch=_slice_scatter_torch, torch_inplace=lambda names, attrs, types: _slice_scatter_torch(names, attrs, types, "slice_scatter_"), inplace=((0, 0),),
    vjp=_slice_scatter_vjp,
    factors=lambda operands, results, attrs: along(operands, results, cut_dims(operands[0], attrs)),
    linear=((0, 1),), local=slice_local, when_split=_split_slice_scatter,
)  # fmt: skip
