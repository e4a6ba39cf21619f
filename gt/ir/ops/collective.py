"""Ops that move a value from one placement to another: collectives between workers, and their local companions.

In the EXPLICIT stage shapes are global, so each op here is the identity on the value and only its sharding changes:
``parts`` is 1, a slice takes everything, a mask masks nothing. ``localize`` gives the same nodes their per-worker
attributes: ``parts`` the number of workers along ``axes``, starts as Coords.

Owns: ``reshard`` (a placement change not yet planned), the collectives (effect "comm": no NumPy and no torch form, the
executor issues them) and the local ops (ordinary compute). Every collective has equal sizes on all its workers: padding
is added before and cut off after by ``pad_end`` and ``unpad``. A transfer alone is no meeting of all: who sends whom what
follows from its two placements (``gt.ir.tiles``).
Must not know: how a change of placement is planned. Next: ``gt.passes.reshard`` (plans), ``gt.passes.localize``.

=================== ==================== ===========================================================================
op                  attributes           meaning on one worker (n = parts, group = the workers along axes)
=================== ==================== ===========================================================================
all_reduce          axes, reduce         the sum/max/min over the group, everywhere. with_next: it starts in one launch with the next
all_gather          axes, dim            the group's parts joined along dim: size p -> n*p
reduce_scatter      axes, dim, reduce    the sum/max/min over the group; each keeps its part of dim: n*p -> p
all_to_all          axes, src, dst       each keeps its part of dst, gets all of src: src p -> n*p, dst n*q -> q
transfer            group, whole, part   the part of another placement, from workers that hold it; those outside the group
                                         keep theirs. whole: the global shape, part: the local one. rows, sizes, fill:
                                         it is of other rows of the value than it has (``gt.ir.tiles.Rows``)
shard_slice         dim, start, size     the worker's own part of a whole value; no communication
partial_from_whole  index                the value where index is 0, zeros elsewhere: a pending sum; no communication
partial_from_part   dim, start, whole    the worker's part of dim from start on, zeros elsewhere: a pending sum; no communication
mask_pad            dim, reduce, ...     rows from global row ``size`` on become the identity of ``reduce``; of "matmul": matrices
pad_end, unpad      dim, size            zeros appended to dim up to size; dim cut to size
=================== ==================== ===========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from gt.ir.graph import Node
from gt.ir.mesh import Reduction
from gt.ir.opdef import op
from gt.ir.ops.families import nothing, number, unchanged
from gt.ir.tiles import Rows, busiest
from gt.ir.types import DType, TensorType

Axes = tuple[str, ...]


# What one worker sends, as a share of the value as if whole along its group of n.
SHARE: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n**2,
}


def sent_bytes(kind: str, parts: int, nbytes: int) -> int:
    """Give what one worker sends. ``nbytes``: the value as if whole along the ``parts`` workers of the group."""
    return round(SHARE[kind](parts) * nbytes) if parts > 1 and kind in SHARE else 0


def node_bytes(node: Node) -> int:
    """Give what one worker sends for an EXPLICIT collective node; 0 for a local one."""
    placed = node.inputs[0].type.sharding
    if not node.op.effect or placed is None:
        return 0
    if node.op is transfer:
        return transfer_load(node)[1]
    axes = node.attr["axes"]
    assert isinstance(axes, tuple)
    size = lambda names: math.prod(placed.mesh.axis_size(a) for a in names)  # noqa: E731
    others = [a for d in placed.dims for a in d if a not in axes]
    return sent_bytes(node.op.name, size(axes), node.inputs[0].type.nbytes // size(others))


def transfer_load(node: Node) -> tuple[int, int]:
    """Give the most messages, and bytes in all, that one worker sends or gets in a transfer."""
    value, want = node.inputs[0].type, node.output.type.sharding
    assert value.sharding is not None and want is not None
    whole = node.attr.get("whole") or value.shape
    assert isinstance(whole, tuple)
    numel, messages = busiest(value.sharding, want, whole, rows_of(node))  # type: ignore[arg-type]
    return messages, numel * value.dtype.itemsize


def rows_of(node: Node) -> Rows | None:
    """Give which rows of the value a transfer's result is made of; None if it is the value."""
    if "rows" not in node.attr:
        return None
    return Rows.of(node.attr["rows"], node.attr["sizes"], node.attr["fill"])  # type: ignore[arg-type]


def _resized(type_: TensorType, dim: int, size: int) -> TensorType:
    return TensorType((*type_.shape[:dim], size, *type_.shape[dim + 1 :]), type_.dtype)


Padding: TypeAlias = Reduction | Literal["matmul"]  # whose identity padding is made


def identity_of(reduce: Reduction, dtype: DType) -> bool | int | float:
    """Give the value that changes no sum, max or min of a dtype."""
    if reduce == "sum":
        return False if dtype.kind == "b" else 0
    lowest = reduce == "max"
    if dtype.kind == "b":
        return not lowest
    if dtype.kind == "f":
        return -float("inf") if lowest else float("inf")
    info = np.iinfo(dtype.numpy.name)
    return int(info.min if lowest else info.max)


reshard = op(
    "reshard", "x",
    doc="The same value under another placement; insert_collectives replaces it by the cheapest way there.",
    infer=lambda x: x, numpy=lambda x: x,
)  # fmt: skip

all_reduce = op(
    "all_reduce", "x",
    doc="Sum, max or min over the workers along axes, on all of them.",
    infer=lambda x, axes, reduce, parts=1, with_next=False: x, numpy=None, effect="comm",
)  # fmt: skip

all_gather = op(
    "all_gather", "x",
    doc="The parts of dim that the workers along axes hold, joined on all of them.",
    infer=lambda x, axes, dim, parts=1: _resized(x, dim, x.shape[dim] * parts), numpy=None, effect="comm",
)  # fmt: skip

reduce_scatter = op(
    "reduce_scatter", "x",
    doc="Sum, max or min over the workers along axes; each keeps its part of dim.",
    infer=lambda x, axes, dim, reduce, parts=1: _resized(x, dim, x.shape[dim] // parts), numpy=None, effect="comm",
)  # fmt: skip

all_to_all = op(
    "all_to_all", "x",
    doc="From parts of dim src to parts of dim dst, among the workers along axes.",
    infer=lambda x, axes, src, dst, parts=1: _resized(
        _resized(x, src, x.shape[src] * parts), dst, x.shape[dst] // parts
    ),
    numpy=None, effect="comm",
)  # fmt: skip

transfer = op(
    "transfer", "x",
    doc="A value, or rows of it, under another placement: each worker gets just what it lacks from the nearest that holds it.",
    infer=lambda x, group, rows=None, sizes=None, fill=0, whole=None, part=None: TensorType(part or sizes or x.shape, x.dtype),
    numpy=None, effect="comm",
)  # fmt: skip


def _take(x: Any, dim: int, start: int, size: int) -> Any:
    return x[(slice(None),) * dim + (slice(start, start + size),)]


shard_slice = op(
    "shard_slice", "x",
    doc="The size rows of dim from start on: a worker's own part of a value it holds whole.",
    infer=lambda x, axes, dim, start, size: _resized(x, dim, size),
    numpy=lambda x, axes, dim, start, size: _take(x, dim, start, size),
    torch="torch.narrow({x}, {dim}, {start}, {size})", view=True,
)  # fmt: skip

def _whole_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    (x,) = names
    return f"({x} if {attrs['index']} == 0 else torch.full_like({x}, {nothing(types[0].dtype)}))"


partial_from_whole = op(
    "partial_from_whole", "x",
    doc="The value on the worker whose index is 0 and zeros elsewhere: a whole value as a pending sum.",
    infer=lambda x, axes, index=0: x,
    numpy=lambda x, axes, index=0: x if index == 0 else np.full_like(x, nothing(x.dtype)),
    torch=_whole_torch, shares=unchanged,
)  # fmt: skip


def _place_numpy(x: np.ndarray, axes: Axes, dim: int, start: int = 0, whole: int | None = None) -> np.ndarray:
    if whole is None:
        return x
    out = np.full((*x.shape[:dim], whole, *x.shape[dim + 1 :]), nothing(x.dtype), x.dtype)
    _take(out, dim, start, x.shape[dim])[...] = x
    return out


def _place_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    (x,), dim, start, whole = names, attrs["dim"], attrs.get("start", 0), attrs.get("whole")
    if whole is None:
        return x
    before = "0, 0, " * (types[0].ndim - dim - 1)
    return f"torch.nn.functional.pad({x}, ({before}{start}, {whole} - {x}.shape[{dim}] - {start}), value={nothing(types[0].dtype)})"


partial_from_part = op(
    "partial_from_part", "x",
    doc="The rows of dim from start on, and zeros around them: a value in parts as a pending sum.",
    infer=lambda x, axes, dim, start=0, whole=None: _resized(x, dim, x.shape[dim] if whole is None else whole),
    numpy=_place_numpy, torch=_place_torch,
)  # fmt: skip


def _mask_numpy(x: np.ndarray, dim: int, reduce: Padding, start: int, size: int) -> np.ndarray:
    kept = min(max(size - start, 0), x.shape[dim])
    if kept == x.shape[dim]:
        return x
    out = x.copy()
    fill = np.eye(*x.shape[-2:]) if reduce == "matmul" else identity_of(reduce, DType.by_name[out.dtype.name])
    out[(slice(None),) * dim + (slice(kept, None),)] = fill
    return out


def _mask_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    (x,), dim, type_ = names, attrs["dim"], types[0]
    view = ", ".join("-1" if d == dim else "1" for d in range(type_.ndim))
    rows = f"(torch.arange({type_.shape[dim]}, device={x}.device) + {attrs['start']} >= {attrs['size']}).view({view})"
    if attrs["reduce"] == "matmul":
        m, n = type_.shape[-2:]
        return f"torch.where({rows}, torch.eye({m}, {n}, device={x}.device).to({x}.dtype), {x})"
    fill = identity_of(attrs["reduce"], type_.dtype)
    return f"{x}.masked_fill({rows}, {number(fill)})"


mask_pad = op(
    "mask_pad", "x",
    doc="The value with its padding, rows of dim from global row `size` on, made the identity of a reduction, or identity matrices.",
    infer=lambda x, dim, reduce, start, size: x, numpy=_mask_numpy, torch=_mask_torch,
)  # fmt: skip


def _pad_numpy(x: np.ndarray, dim: int, size: int) -> np.ndarray:
    zeros = np.zeros((*x.shape[:dim], size - x.shape[dim], *x.shape[dim + 1 :]), x.dtype)
    return np.concatenate([x, zeros], dim)


def _pad_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    (x,), dim, size = names, attrs["dim"], attrs["size"]
    before = "0, 0, " * (types[0].ndim - dim - 1)
    return f"torch.nn.functional.pad({x}, ({before}0, {size} - {x}.shape[{dim}]))"


pad_end = op(
    "pad_end", "x",
    doc="Zeros appended to dim up to size rows.",
    infer=lambda x, dim, size: _resized(x, dim, size), numpy=_pad_numpy, torch=_pad_torch,
)  # fmt: skip

unpad = op(
    "unpad", "x",
    doc="The first size rows of dim.",
    infer=lambda x, dim, size: _resized(x, dim, size), numpy=lambda x, dim, size: _take(x, dim, 0, size),
    torch="torch.narrow({x}, {dim}, 0, {size})", view=True,
)  # fmt: skip

dense = op(
    "dense", "x",
    doc="The value in row-major order in memory, as what has been received is: equal values on several workers then sum up alike.",
    infer=lambda x: x, numpy=lambda x: np.asarray(x, order="C"), torch="{x}.contiguous()", shares=lambda operands, results: True,
)  # fmt: skip

__all__ = [
    "Padding", "SHARE", "all_gather", "all_reduce", "all_to_all", "dense", "identity_of", "mask_pad", "node_bytes", "pad_end",
    "partial_from_part", "partial_from_whole", "reduce_scatter", "reshard", "rows_of", "sent_bytes", "shard_slice", "transfer", "transfer_load",
    "unpad",
]  # fmt: skip
