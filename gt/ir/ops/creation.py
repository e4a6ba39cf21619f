"""Values made from attributes alone.

Next: ``random``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Local, op
from gt.ir.ops.families import dim_names, local_shape, number, rule_of
from gt.ir.types import DType, Shape, TensorType


def made(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    """Each worker makes its own part: every result dim may be split; operands are 0-d."""
    return rule_of([[] for _ in operands], [dim_names(len(s)) for s in results], (*operands, *results))


full = op(
    "full", "",
    doc="A constant of a shape.",
    infer=lambda shape, value, dtype: TensorType(shape, dtype),
    numpy=lambda shape, value, dtype: np.full(shape, value, dtype.numpy),
    torch=lambda names, attrs, types: (
        f"torch.full({attrs['shape']}, {number(attrs['value'])}, dtype=torch.{attrs['dtype'].name}, device=device)"
    ),
    vjp=lambda g, y, **attrs: (),
    factors=made, local=local_shape, literal="value", creates=True,
)  # fmt: skip


def _iota_numpy(shape: Shape, dim: int, dtype: DType, start: float = 0, step: float = 1, offset: int = 0) -> np.ndarray:
    line = start + step * (np.arange(shape[dim]) + offset)
    tail = (1,) * (len(shape) - dim - 1)
    return np.broadcast_to(line.reshape(-1, *tail), shape).astype(dtype.numpy)


def _iota_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    start, step, offset = attrs.get("start", 0), attrs.get("step", 1), attrs.get("offset", 0)
    return (
        f"kernels.iota({attrs['shape']}, {attrs['dim']}, torch.{attrs['dtype'].name}, {number(start)}, {number(step)}, "
        f"{offset}, device)"
    )


def _iota_local(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    return attrs | {"shape": where.outputs[0].shape, "offset": where.offset(0, attrs["dim"])}


iota = op(
    "iota", "",
    doc="Counts along dim: start + step * index.",
    infer=lambda shape, dim, dtype, start=0, step=1, offset=0: TensorType(shape, dtype),
    numpy=_iota_numpy,
    torch=_iota_torch,
    vjp=lambda g, y, **attrs: (),
    factors=made, local=_iota_local, creates=True,
)  # fmt: skip
