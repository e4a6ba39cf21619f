"""Ops that depend on where an element stands: triangles, one-hot. Their attributes carry a shard's offset.

Next: ``nn``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Local, op
from gt.ir.ops.families import dim_names, rule_of
from gt.ir.ops.movement import Ints
from gt.ir.types import Shape, ShapeError, TensorType


def _band(shape: Shape, diagonal: int, offset: Ints) -> np.ndarray:
    rows = np.arange(shape[-2])[:, None] + offset[0]
    columns = np.arange(shape[-1])[None, :] + offset[1]
    return columns - rows - diagonal


def _tri_local(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    n = where.outputs[0].ndim
    return attrs | {"offset": (where.offset(0, n - 2), where.offset(0, n - 1))}


def _tri_infer(name: str) -> Any:
    def infer(x: TensorType, diagonal: int, offset: Ints = (0, 0)) -> TensorType:
        if x.ndim < 2:
            raise ShapeError(f"{name}: input tensor must have at least 2 dimensions, got {x!r}")
        return x

    return infer


def _tri_torch(name: str) -> Any:
    """Shards start at an offset: the diagonal moves with them."""

    def torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
        row, column = attrs.get("offset", (0, 0))
        return f"torch.{name}({names[0]}, {attrs['diagonal'] + row - column})"

    return torch


tril = op(
    "tril", "x", doc="Zero above the diagonal of the last two dims.",
    infer=_tri_infer("tril"),
    numpy=lambda x, diagonal, offset=(0, 0): np.where(_band(x.shape, diagonal, offset) <= 0, x, np.zeros((), x.dtype)),
    torch=_tri_torch("tril"), vjp=lambda g, y, x, diagonal, offset=(0, 0): (tril(g, diagonal=diagonal),),
    factors=fx.elementwise, linear=((0,),), local=_tri_local,
)  # fmt: skip
triu = op(
    "triu", "x", doc="Zero below the diagonal of the last two dims.",
    infer=_tri_infer("triu"),
    numpy=lambda x, diagonal, offset=(0, 0): np.where(_band(x.shape, diagonal, offset) >= 0, x, np.zeros((), x.dtype)),
    torch=_tri_torch("triu"), vjp=lambda g, y, x, diagonal, offset=(0, 0): (triu(g, diagonal=diagonal),),
    factors=fx.elementwise, linear=((0,),), local=_tri_local,
)  # fmt: skip


def _one_hot_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    names = dim_names(len(operands[0]))
    return rule_of([names], [[*names, "c"]], (*operands, *results))


def _one_hot_local(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    n = where.outputs[0].ndim - 1
    return attrs | {"classes": where.outputs[0].shape[n], "offset": where.offset(0, n)}


one_hot = op(
    "one_hot", "index",
    doc="1 at the index, 0 elsewhere, on a new last dim of `classes`.",
    infer=lambda index, classes, dtype, offset=0: TensorType((*index.shape, classes), dtype),
    numpy=lambda index, classes, dtype, offset=0: (index[..., None] == np.arange(classes) + offset).astype(dtype.numpy),
    torch=lambda names, attrs, types: (
        f"kernels.one_hot({names[0]}, {attrs['classes']}, torch.{attrs['dtype'].name}, {attrs.get('offset', 0)})"
    ),
    vjp=lambda g, y, index, **attrs: (None,),
    factors=_one_hot_rule, local=_one_hot_local, refuses=(0,),
)  # fmt: skip
