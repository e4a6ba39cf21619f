"""Matrix products.

Next: ``nn``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Linear, Var, op
from gt.ir.ops.broadcast import reshape, total, unbroadcast
from gt.ir.ops.elementwise import add, cj
from gt.ir.ops.families import check_kind, check_same, rule_of
from gt.ir.ops.movement import swap_last
from gt.ir.types import DType, ShapeError, TensorType, broadcast_shapes


def contract(a: TensorType, b: TensorType, dtype: DType | None = None) -> TensorType:
    own = check_same("matmul", (a, b))
    check_kind("matmul", "uifc", a)
    if a.ndim < 2 or b.ndim < 2:
        raise ShapeError(f"matmul: expected two dims at least, got {a!r} and {b!r}")
    if a.shape[-1] != b.shape[-2]:
        (m, k), (j, n) = a.shape[-2:], b.shape[-2:]
        raise ShapeError(f"mat1 and mat2 shapes cannot be multiplied ({m}x{k} and {j}x{n})")
    return TensorType((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), dtype or own)


def wide(x: np.ndarray) -> np.ndarray:
    """Give halves as float32, which torch accumulates in."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _matmul_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    if "dtype" in attrs:
        return f"kernels.wide_matmul({', '.join(names)})"
    if not types[0].dtype.is_differentiable:
        return f"kernels.matmul({', '.join(names)})"  # CUDA has no integer matmul
    return f"{'kernels.row_matmul' if types[0].shape[-2] == 1 else 'torch.matmul'}({', '.join(names)})"


matmul = op(
    "matmul", "a b",
    autocast="low", doc="Batched matrix product: [..., m, k] x [..., k, n] -> [..., m, n].",
    infer=contract,
    numpy=lambda a, b, dtype=None: np.matmul(wide(a), wide(b)),
    torch=_matmul_torch, wide=True,
    vjp=lambda g, y, a, b: (
        unbroadcast(matmul(g, swap_last(cj(b))), a.type), unbroadcast(matmul(swap_last(cj(a)), g), b.type),
    ),
    factors="...mk,...kn->...mn | +k", linear=((0,), (1,)),
)  # fmt: skip


def _linear_infer(x: TensorType, weight: TensorType, *bias: TensorType, dtype: DType | None = None) -> TensorType:
    own = check_same("linear", (x, weight, *bias))
    check_kind("addmm_impl_cpu_", "uifc", x)
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"linear: expected [..., k] and [n, k], got {x!r} and {weight!r}")
    if bias and bias[0].shape != (weight.shape[0],):
        raise ShapeError(f"linear: expected a bias of [{weight.shape[0]}], got {bias[0]!r}")
    return TensorType((*x.shape[:-1], weight.shape[0]), dtype or own)


def _linear_numpy(x: np.ndarray, weight: np.ndarray, *bias: np.ndarray, dtype: DType | None = None) -> np.ndarray:
    out = np.matmul(wide(x), wide(weight).T)
    return out + wide(bias[0]) if bias else out


def _linear_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    if "dtype" in attrs:
        product = f"kernels.wide_matmul({names[0]}, {names[1]}.t())"
        return f"({product} + {names[2]})" if len(names) == 3 else product
    one = types[0].numel == types[0].shape[-1] and types[0].dtype.is_differentiable
    return f"{'kernels.row_linear' if one else 'torch.nn.functional.linear'}({', '.join(names)})"


def _linear_vjp(g: Var, y: Var, x: Var, weight: Var, *bias: Var) -> tuple[Any, ...]:
    if x.type.ndim == 1:
        gx = reshape(matmul(reshape(g, shape=(1, g.type.shape[0])), cj(weight)), shape=x.type.shape)
    else:
        gx = matmul(g, cj(weight))
    gw = matmul(swap_last(g), cj(x)) if x.type.ndim == 2 else linear_backward_weight(g, cj(x))
    lead = tuple(range(g.type.ndim - 1))
    return (gx, gw, total(g, lead) if lead else g) if bias else (gx, gw)


def _linear_groups(num_operands: int, attrs: dict[str, Any]) -> Linear:
    return ((0, 2), (1, 2)) if num_operands == 3 else ((0,), (1,))


def _linear_rule(operands: Any, results: Any, attrs: dict[str, Any]) -> Any:
    from_text = (
        "...k,nk,n->...n | !k" if len(operands) == 3 else "...k,nk->...n | +k"
    )  # a split k would add the bias twice
    return fx.rule(from_text, operands, results)


def _backward_weight_infer(g: TensorType, x: TensorType, dtype: DType | None = None) -> TensorType:
    own = check_same("linear_backward_weight", (g, x))
    if g.ndim < 1 or g.shape[:-1] != x.shape[:-1]:
        raise ShapeError(f"linear_backward_weight: expected [..., n] and [..., k], got {g!r} and {x!r}")
    return TensorType((g.shape[-1], x.shape[-1]), dtype or own)


def _rows(x: np.ndarray) -> np.ndarray:
    return wide(x).reshape(-1 if x.shape[-1] else int(np.prod(x.shape[:-1])), x.shape[-1])


def _backward_weight_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    n, k = types[0].shape
    if not n or not k:
        return f"torch.zeros({(n, k)}, dtype=torch.{types[0].dtype.name}, device={names[0]}.device)"
    matmul = "kernels.wide_matmul" if "dtype" in attrs else "torch.matmul"
    return f"{matmul}({names[0]}.reshape(-1, {n}).t(), {names[1]}.reshape(-1, {k}))"


def _backward_weight_rule(operands: Any, results: Any, attrs: dict[str, Any]) -> fx.Rule:
    rows = [f"b{i}" for i in range(len(operands[0]) - 1)]
    kinds: dict[str, fx.FactorKind] = dict.fromkeys(rows, "sum")
    return rule_of([[*rows, "n"], [*rows, "k"]], [["n", "k"]], (*operands, *results), kinds)


linear_backward_weight = op(
    "linear_backward_weight", "g x",
    autocast="low", doc="Sum over all rows of the outer products g x: [..., n] and [..., k] -> [n, k].",
    infer=_backward_weight_infer,
    numpy=lambda g, x, dtype=None: np.matmul(_rows(g).T, _rows(x)),
    torch=_backward_weight_torch, wide=True,
    vjp=lambda gg, y, g, x: (linear(cj(x), gg), _backward_weight_x(gg, g)),
    factors=_backward_weight_rule, linear=((0,), (1,)),
)  # fmt: skip


def _backward_weight_x(gg: Any, g: Any) -> Any:
    if g.type.ndim > 1:
        return matmul(cj(g), gg)
    return reshape(matmul(reshape(cj(g), shape=(1, g.type.shape[0])), gg), shape=(gg.type.shape[1],))


def _linear_when_split(inputs: tuple[Any, ...], attrs: dict[str, Any], shards: int) -> Any:
    """The bias is added once, after the partial products."""
    x, weight, *bias = inputs
    return (add(linear(x, weight), bias[0]),) if bias else (linear(x, weight),)


linear = op(
    "linear", "x weight *bias",
    autocast="low", doc="x @ weight.T + bias: [..., k] x [n, k] (+ [n]) -> [..., n].",
    infer=_linear_infer,
    numpy=_linear_numpy,
    torch=_linear_torch, wide=True,
    vjp=_linear_vjp,
    factors=_linear_rule, linear=_linear_groups, when_split=_linear_when_split,
)  # fmt: skip
