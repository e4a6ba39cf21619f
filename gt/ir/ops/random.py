"""Random values: functions of (seed, stream, global element index), the same on any number of workers.

``seed`` and ``stream`` are 0-d int64 operands given anew at each run. Next: ``philox`` (the numbers), ``nn``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Local, Var, op
from gt.ir.ops import philox
from gt.ir.ops.creation import made
from gt.ir.ops.families import FLOAT, check_kind, dim_names, rule_of
from gt.ir.types import DType, Shape, TensorType, TypeMismatch, int64

BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def _check_keys(name: str, *keys: TensorType) -> None:
    if any(k.shape or k.dtype is not int64 for k in keys):
        raise TypeMismatch(f"{name}: expected 0-d int64 operands, got {' and '.join(map(repr, keys))}")


def place(attrs: dict[str, Any], shape: Shape) -> tuple[Shape, Shape]:
    """Give the global shape and where this part of it starts."""
    return attrs.get("global_shape", shape), attrs.get("offset", (0,) * len(shape))


def _local(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    shape = where.outputs[0].shape
    offset = tuple(where.offset(0, d) for d in range(len(shape)))
    return attrs | {"shape": shape, "global_shape": where.global_outputs[0].shape, "offset": offset}


def _words(seed: Any, stream: Any, shape: Shape, attrs: dict[str, Any]) -> Any:
    return philox.words(int(seed), int(stream), philox.element_index(shape, *place(attrs, shape)))


def _infer(name: str, kinds: str) -> Any:
    def infer(*keys: TensorType, shape: Shape, dtype: DType, **_: Any) -> TensorType:
        _check_keys(name, *keys)
        out = TensorType(shape, dtype)
        check_kind(name, kinds, out)
        return out

    return infer


def _torch(kernel: str) -> Any:
    """Source of a call ``kernels.<kernel>(*operands, shape, dtype, global shape, offset, device)``."""

    def torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
        shape = attrs["shape"]
        global_shape, offset = place(attrs, shape)
        dtype = f"torch.{attrs['dtype'].name}"
        return f"kernels.{kernel}({', '.join(names)}, {shape}, {dtype}, {global_shape}, {offset}, device)"

    return torch


random_uniform = op(
    "random_uniform",
    "seed stream",
    doc="Uniform in [0, 1).",
    infer=_infer("random_uniform", FLOAT),
    numpy=lambda seed, stream, shape, dtype, **attrs: philox.uniform(
        _words(seed, stream, shape, attrs), BITS[dtype.name]
    ),
    torch=_torch("random_uniform"),
    vjp=lambda g, y, *keys, **attrs: (None, None),
    factors=made,
    local=_local,
    creates=True,
    random=True,
    numbers=(0, 1),
)

random_normal = op(
    "random_normal", "seed stream",
    doc="Standard normal, by Box-Muller in float64.",
    infer=_infer("random_normal", FLOAT),
    numpy=lambda seed, stream, shape, dtype, **attrs: philox.normal(_words(seed, stream, shape, attrs)),
    torch=_torch("random_normal"),
    vjp=lambda g, y, *keys, **attrs: (None, None),
    factors=made, local=_local, creates=True, random=True, numbers=(0, 1),
)  # fmt: skip

random_bits = op(
    "random_bits", "seed stream",
    doc="Integers in [0, 2**63), int64.",
    infer=_infer("random_bits", "i"),
    numpy=lambda seed, stream, shape, dtype, **attrs: philox.bits63(_words(seed, stream, shape, attrs)),
    torch=_torch("random_bits"),
    vjp=lambda g, y, *keys, **attrs: (None, None),
    factors=made, local=_local, creates=True, random=True, numbers=(0, 1),
)  # fmt: skip

random_int = op(
    "random_int", "seed stream low high",
    doc="Integers in [low, high); low and high are 0-d int64.",
    infer=_infer("random_int", "iu"),
    numpy=lambda seed, stream, low, high, shape, dtype, **attrs: (
        low + philox.bits63(_words(seed, stream, shape, attrs)) % np.maximum(high - low, 1)
    ),
    torch=_torch("random_int"),
    vjp=lambda g, y, *keys, **attrs: (None,) * 4,
    factors=made, local=_local, creates=True, random=True, numbers=(0, 1, 2, 3),
)  # fmt: skip


# -- dropout: the mask is drawn again in the backward, never stored


def _dropout_infer(x: TensorType, seed: TensorType, stream: TensorType, p: float, **_: Any) -> TensorType:
    check_kind("dropout", FLOAT, x)
    _check_keys("dropout", seed, stream)
    return x


def _dropout_numpy(x: np.ndarray, seed: Any, stream: Any, p: float, **attrs: Any) -> np.ndarray:
    keep = philox.uniform(_words(seed, stream, x.shape, attrs), 53) >= p
    return np.where(keep, x * x.dtype.type(1 / (1 - p) if p < 1 else 0), np.zeros((), x.dtype))


def _dropout_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    global_shape, offset = place(attrs, types[0].shape)
    return f"kernels.dropout({', '.join(names)}, {attrs['p']!r}, {global_shape}, {offset})"


def _dropout_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    names = dim_names(len(operands[0]))
    return rule_of([names, [], []], [names], (*operands, *results))


def _dropout_vjp(g: Var, y: Var, x: Var, seed: Var, stream: Var, p: float, **attrs: Any) -> tuple[Any, None, None]:
    return dropout(g, seed, stream, p=p, **attrs), None, None


def _dropout_local(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    own = _local(attrs, where)
    del own["shape"]
    return own


dropout = op(
    "dropout", "x seed stream",
    doc="Zero each element with probability p and scale the rest by 1 / (1 - p).",
    infer=_dropout_infer, numpy=_dropout_numpy, torch=_dropout_torch, vjp=_dropout_vjp,
    factors=_dropout_rule, linear=((0,),), local=_dropout_local, random=True, numbers=(1, 2),
)  # fmt: skip
