"""The ops every gradient needs: cast, reshape, expand and its opposite, sum; ``unbroadcast``.

Must not know: other ops. Next: ``compare``, ``elementwise``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import OPS, Linear, Var, emitter, op
from gt.ir.ops.families import local_shape, reduced, rule_of, unary, unchanged
from gt.ir.types import DType, Shape, ShapeError, TensorType, complex64, float16, float32, int64


def _cast_numpy(x: Any, dtype: DType) -> Any:
    if np.iscomplexobj(x) and not dtype.is_complex:
        x = x != 0 if dtype.kind == "b" else x.real
    array = np.asarray(x)
    if dtype is float16 and array.dtype == np.float64:
        array = array.astype(np.float32)  # rounded twice, as torch does
    return array.astype(dtype.numpy)


def _cast_vjp(g: Var, y: Var, x: Var, dtype: DType) -> tuple[Var | None]:
    if not (dtype.is_differentiable and x.type.dtype.is_differentiable):
        return (None,)
    if g.type.dtype.is_complex and not x.type.dtype.is_complex:
        g = OPS["real"](g)  # declared later
    return (cast(g, dtype=x.type.dtype) if g.type.dtype is not x.type.dtype else g,)


def _cast_linear(num_operands: int, attrs: dict[str, Any]) -> Linear:
    return ((0,),) if attrs["dtype"].is_differentiable else ()  # to integers it truncates


cast = op(
    "cast", "x",
    doc="Convert the elements to dtype; floats to integers truncate, to bool as `x != 0`.",
    infer=lambda x, dtype: TensorType(x.shape, dtype),
    numpy=_cast_numpy,
    torch="{x}.to({dtype})",
    vjp=_cast_vjp,
    factors=fx.elementwise, linear=_cast_linear, shares=unchanged,
)  # fmt: skip

alias = op(
    "alias", "x",
    doc="The same value under another name; gradients stop here (detach).",
    infer=lambda x: x, numpy=lambda x: x, torch="{x}.detach()", factors=fx.elementwise, linear=((0,),), view=True,
)  # fmt: skip

copy = unary(
    "copy", lambda x: np.array(x, copy=True), "{x}.clone()", lambda g, y, x: g,
    kinds="buifc", linear=((0,),), doc="The same value in memory of its own (clone).",
)  # fmt: skip


def _graft_infer(x: TensorType, y: TensorType) -> TensorType:
    if x is not y:
        raise ShapeError(f"graft takes two values of one type, got {x!r} and {y!r}")
    return y


graft = op(
    "graft", "x y",
    doc="The value of y with the history of x: gradients pass to x alone. A tensor changed in place off the tape becomes this.",
    infer=_graft_infer, numpy=lambda x, y: np.array(y, copy=True), torch="{y}.clone()",
    vjp=lambda g, out, x, y: (g, None), factors=fx.elementwise, linear=((1,),),
)  # fmt: skip


def _reshape_infer(x: TensorType, shape: Shape) -> TensorType:
    if math.prod(shape) != x.numel:
        raise ShapeError(f"shape '{list(shape)}' is invalid for input of size {x.numel}")
    return TensorType(shape, x.dtype)


reshape = op(
    "reshape", "x",
    doc="The elements in row-major order as another shape of the same size.",
    infer=_reshape_infer,
    numpy=lambda x, shape: np.reshape(x, shape),
    torch="{x}.reshape({shape})",
    vjp=lambda g, y, x, shape: (reshape(g, shape=x.type.shape),),
    factors=lambda operands, results, attrs: fx.reshape_rule(operands[0], results[0]),
    linear=((0,),), local=local_shape, view=True,
)  # fmt: skip


def _expand_infer(x: TensorType, shape: Shape) -> TensorType:
    tail = shape[len(shape) - x.ndim :] if x.ndim <= len(shape) else ()
    if len(tail) != x.ndim or any(a not in (1, b) for a, b in zip(x.shape, tail, strict=True)):
        raise ShapeError(
            f"The expanded size of the tensor ({list(shape)}) must match the existing size ({list(x.shape)}) "
            "at non-singleton dimensions"
        )
    return TensorType(shape, x.dtype)


def _expand_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    ((source,), (target,)) = operands, results
    names = [f"d{i}" for i in range(len(target))]
    own = names[len(target) - len(source) :]
    own = [n if size == target[i - len(source)] else "" for i, (n, size) in enumerate(zip(own, source, strict=True))]
    return rule_of([own], [names], (source, target))


expand = op(
    "expand", "x",
    doc="Repeat size-1 dims, and add leading dims, up to `shape`.",
    infer=_expand_infer,
    numpy=lambda x, shape: np.broadcast_to(x, shape),
    torch="{x}.expand({shape})",
    vjp=lambda g, y, x, shape: (unbroadcast(g, x.type),),
    factors=_expand_rule, linear=((0,),), local=local_shape, view=True,
)  # fmt: skip


def reduced_shape(shape: Shape, dims: tuple[int, ...], keepdim: bool) -> Shape:
    return tuple(1 if d in dims else s for d, s in enumerate(shape) if keepdim or d not in dims)


def keep(x: Var, like: Var, dims: tuple[int, ...], keepdim: bool) -> Any:
    """Put the reduced dims back as size 1, so that a reduction's result broadcasts against its operand."""
    shape = reduced_shape(like.type.shape, dims, True)
    return x if keepdim or x.type.shape == shape else reshape(x, shape=shape)


def accumulator(x: Any) -> Any:
    """Give the dtype NumPy reductions add up in: float32 for halves, as torch does; else their own."""
    return np.float32 if x.dtype == np.float16 else np.complex128 if x.dtype == np.complex64 else None


def _sum_vjp(g: Var, y: Var, x: Var, dims: tuple[int, ...], keepdim: bool, dtype: DType) -> tuple[Var | None]:
    if not x.type.dtype.is_differentiable:
        return (None,)
    g = keep(g, x, dims, keepdim)
    g = g if g.type.dtype is x.type.dtype else cast(g, dtype=x.type.dtype)
    return (expand(g, shape=x.type.shape) if g.type.shape != x.type.shape else g,)


sum = op(  # noqa: A001 - torch's name
    "sum", "x",
    doc="Sum over dims, in `dtype`.",
    infer=lambda x, dims, keepdim, dtype: TensorType(reduced_shape(x.shape, dims, keepdim), dtype),
    numpy=lambda x, dims, keepdim, dtype: np.sum(
        _cast_numpy(x, dtype), axis=dims, keepdims=keepdim, dtype=accumulator(np.empty(0, dtype.numpy))
    ),
    torch="torch.sum({x}, {dims}, keepdim={keepdim}, dtype={dtype})",
    vjp=_sum_vjp,
    factors=reduced("sum"), linear=((0,),), wide=True,
)  # fmt: skip


def total(x: Var, dims: tuple[int, ...] | None = None, keepdim: bool = False) -> Any:
    """Sum over dims (all if None) in the operand's own dtype; integers and bool in int64."""
    dims = tuple(range(x.type.ndim)) if dims is None else dims
    return sum(x, dims=dims, keepdim=keepdim, dtype=x.type.dtype if x.type.dtype.is_differentiable else int64)


def zeros_like(x: Var) -> Any:
    """Give zeros: a gradient that is zero whatever comes in, where 0 times infinity would be NaN."""
    zero = constant(0, x)
    return expand(zero, shape=x.type.shape) if x.type.shape else zero


def unbroadcast(g: Var, type_: TensorType) -> Any:
    """Sum a gradient down to the shape of an operand that was broadcast."""
    shape = g.type.shape
    if shape == type_.shape:
        return g
    extra = len(shape) - type_.ndim
    dims = tuple(i for i, s in enumerate(shape) if i < extra or (type_.shape[i - extra] == 1 and s != 1))
    g = total(g, dims)
    return g if g.type.shape == type_.shape else reshape(g, shape=type_.shape)


def constant(value: bool | int | float, like: Var) -> Any:
    """Give a 0-d constant of the dtype of ``like``."""
    return emitter().constant(value, like.type.dtype)


__all__ = [
    "alias", "cast", "complex64", "constant", "copy", "expand", "float32", "graft", "keep", "reduced_shape", "reshape", "sum",
    "total", "unbroadcast",
]  # fmt: skip
