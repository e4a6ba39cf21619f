"""Recording elementwise ops with torch's type promotion.

Owns: the way from user operands (tensors of any dtype, Python numbers) to the IR's strict operands.
Next: ``pointwise`` (the functions), ``gt.trace.record``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gt.handle import Handle
from gt.ir.opdef import OpDef
from gt.ir.ops import OPS
from gt.ir.types import DType, Scalar, TensorType, float32, result_type
from gt.trace import Number, record

if TYPE_CHECKING:
    from gt.tensor import Tensor

CAST = OPS["cast"]
_pairs: dict[tuple[TensorType, TensorType], DType] = {}
_numbers: dict[tuple[TensorType, type], DType] = {}


def cast(t: Any, dtype: DType) -> Any:
    """Convert to ``dtype``; the same tensor if it has it."""
    return t if t._type.dtype is dtype else record(CAST, (t,), (("dtype", dtype),))


def number_dtype(t: Handle, value: Scalar) -> DType:
    """Give the dtype of an op between a tensor and a Python number."""
    key = (t._type, value.__class__)
    dtype = _numbers.get(key)
    if dtype is None:
        dtype = _numbers[key] = result_type((t._type,), (value,))
    return dtype


def pair_dtype(a: Handle, b: Handle) -> DType:
    key = (a._type, b._type)
    dtype = _pairs.get(key)
    if dtype is None:
        dtype = _pairs[key] = result_type(key)
    return dtype


def operand(value: Scalar, dtype: DType) -> Number:
    """Make a Python number a run-time scalar of ``dtype``."""
    kind = dtype.kind
    if kind in "ui":
        bits = 8 * dtype.itemsize
        value = int(value) & ((1 << bits) - 1)
        if kind == "i" and value >> (bits - 1):
            value -= 1 << bits
    elif kind == "f":
        value = float(value)  # type: ignore[arg-type]
    elif kind == "b":
        value = bool(value)
    return Number(value, dtype)


def is_number(value: object) -> bool:
    return isinstance(value, int | float | complex | np.number | np.bool_)


def refuse(name: str, value: object) -> TypeError:
    return TypeError(
        f"{name}(): expected a gt.Tensor or a number, got {type(value).__name__}"
        + ("; use gt.tensor(...) or gt.from_numpy(...) first" if isinstance(value, np.ndarray | list | tuple) else "")
    )


def binary(op: OpDef, a: Any, b: Any, floating: bool = False) -> Any:
    """Record an elementwise op of two operands; ``floating``: integers become the default float first."""
    if isinstance(a, Handle):
        if isinstance(b, Handle):
            if a._type.dtype is b._type.dtype:
                dtype = a._type.dtype
                if not floating or dtype.kind in "fc":
                    return record(op, (a, b))
            else:
                dtype = pair_dtype(a, b)
            if floating and dtype.kind not in "fc":
                dtype = float32
            return record(op, (cast(a, dtype), cast(b, dtype)))
        if not is_number(b):
            raise refuse(op.name, b)
        dtype = number_dtype(a, b)
        if floating and dtype.kind not in "fc":
            dtype = float32
        return record(op, (cast(a, dtype), operand(b, dtype)))
    if not isinstance(b, Handle) or not is_number(a):
        raise refuse(op.name, b if isinstance(a, Handle) or is_number(a) else a)
    dtype = number_dtype(b, a)
    if floating and dtype.kind not in "fc":
        dtype = float32
    return record(op, (operand(a, dtype), cast(b, dtype)))


def float_unary(op: OpDef, t: Tensor) -> Tensor:
    """Record a function of real numbers; integers become the default float first."""
    if not isinstance(t, Handle):
        raise refuse(op.name, t)
    return record(op, (t if t._type.dtype.kind in "fc" else cast(t, float32),))


def unary(op: OpDef, t: Tensor) -> Tensor:
    if not isinstance(t, Handle):
        raise refuse(op.name, t)
    return record(op, (t,))
