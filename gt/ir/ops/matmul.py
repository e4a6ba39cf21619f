"""Matrix products.

Next: ``nn``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Linear, Var, op
from gt.ir.ops.broadcast import reshape, total, unbroadcast
from gt.ir.ops.elementwise import cj
from gt.ir.ops.families import check_kind, check_same
from gt.ir.ops.movement import swap_last
from gt.ir.types import ShapeError, TensorType, broadcast_shapes


def contract(a: TensorType, b: TensorType) -> TensorType:
    dtype = check_same("matmul", (a, b))
    check_kind("matmul", "uifc", a)
    if a.ndim < 2 or b.ndim < 2:
        raise ShapeError(f"matmul: expected two dims at least, got {a!r} and {b!r}")
    if a.shape[-1] != b.shape[-2]:
        (m, k), (j, n) = a.shape[-2:], b.shape[-2:]
        raise ShapeError(f"mat1 and mat2 shapes cannot be multiplied ({m}x{k} and {j}x{n})")
    return TensorType((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), dtype)


def wide(x: np.ndarray) -> np.ndarray:
    """Give halves as float32, which torch accumulates in."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _matmul_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    where = "torch" if types[0].dtype.is_differentiable else "kernels"  # CUDA has no integer matmul
    return f"{where}.matmul({', '.join(names)})"


matmul = op(
    "matmul", "a b",
    autocast="low", doc="Batched matrix product: [..., m, k] x [..., k, n] -> [..., m, n].",
    infer=contract,
    numpy=lambda a, b: np.matmul(wide(a), wide(b)),
    torch=_matmul_torch,
    vjp=lambda g, y, a, b: (
        unbroadcast(matmul(g, swap_last(cj(b))), a.type), unbroadcast(matmul(swap_last(cj(a)), g), b.type),
    ),
    factors="...mk,...kn->...mn | +k", linear=((0,), (1,)),
)  # fmt: skip


def _linear_infer(x: TensorType, weight: TensorType, *bias: TensorType) -> TensorType:
    dtype = check_same("linear", (x, weight, *bias))
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"linear: expected [..., k] and [n, k], got {x!r} and {weight!r}")
    if bias and bias[0].shape != (weight.shape[0],):
        raise ShapeError(f"linear: expected a bias of [{weight.shape[0]}], got {bias[0]!r}")
    return TensorType((*x.shape[:-1], weight.shape[0]), dtype)


def _linear_numpy(x: np.ndarray, weight: np.ndarray, *bias: np.ndarray) -> np.ndarray:
    out = np.matmul(wide(x), wide(weight).T)
    return out + bias[0] if bias else out


def _linear_vjp(g: Var, y: Var, x: Var, weight: Var, *bias: Var) -> tuple[Any, ...]:
    if x.type.ndim == 1:
        k, n = x.type.shape[0], g.type.shape[0]
        g2, x2 = reshape(g, shape=(1, n)), reshape(x, shape=(1, k))
        gx = reshape(matmul(g2, cj(weight)), shape=(k,))
    else:
        rows = (
            x.type.numel // max(x.type.shape[-1], 1) if x.type.shape[-1] else g.type.numel // max(g.type.shape[-1], 1)
        )
        flat = x.type.ndim == 2
        g2 = g if flat else reshape(g, shape=(rows, g.type.shape[-1]))
        x2 = x if flat else reshape(x, shape=(rows, x.type.shape[-1]))
        gx = matmul(g2, cj(weight))
        gx = gx if flat else reshape(gx, shape=x.type.shape)
    gw = matmul(swap_last(g2), cj(x2))
    return (gx, gw, total(g2, (0,))) if bias else (gx, gw)


def _linear_groups(num_operands: int, attrs: dict[str, Any]) -> Linear:
    return ((0, 2), (1, 2)) if num_operands == 3 else ((0,), (1,))


def _linear_rule(operands: Any, results: Any, attrs: dict[str, Any]) -> Any:
    from_text = (
        "...k,nk,n->...n | !k" if len(operands) == 3 else "...k,nk->...n | +k"
    )  # a split k would add the bias twice
    return fx.rule(from_text, operands, results)


linear = op(
    "linear", "x weight *bias",
    autocast="low", doc="x @ weight.T + bias: [..., k] x [n, k] (+ [n]) -> [..., n].",
    infer=_linear_infer,
    numpy=_linear_numpy,
    torch=lambda names, attrs, types: f"torch.nn.functional.linear({', '.join(names)})",
    vjp=_linear_vjp,
    factors=_linear_rule, linear=_linear_groups,
)  # fmt: skip
