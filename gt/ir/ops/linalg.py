"""Linear algebra on the last two dims, in torch's batched kernels.

Leading dims are a batch, which may be split; the matrices are whole. Next: ``nn``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir.opdef import Var, op
from gt.ir.ops import flops
from gt.ir.ops.broadcast import cast, constant, expand, reshape
from gt.ir.ops.compare import eq
from gt.ir.ops.creation import iota
from gt.ir.ops.elementwise import add, cj, mul, neg, sub
from gt.ir.ops.families import check_kind, check_same
from gt.ir.ops.matmul import matmul
from gt.ir.ops.movement import swap_last
from gt.ir.ops.position import tril
from gt.ir.types import ShapeError, TensorType, int64


def _square(name: str, x: TensorType) -> TensorType:
    check_kind(name, "fc", x)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"linalg.{name}: A must be batches of square matrices, but they are {x!r}")
    return x


def adjoint(x: Var) -> Any:
    return swap_last(cj(x))


inverse = op(
    "inverse", "x", doc="Inverse of square matrices.",
    infer=lambda x: _square("inv", x), numpy=np.linalg.inv, torch="torch.linalg.inv({x})",
    vjp=lambda g, y, x: (neg(matmul(adjoint(y), matmul(g, adjoint(y)))),),
    factors="...ij->...ij | !i !j", work=flops.inverse, refuses=(0,),
)  # fmt: skip


def _solve_infer(a: TensorType, b: TensorType) -> TensorType:
    _square("solve", a)
    check_same("solve", (a, b))
    if b.shape[:-1] != a.shape[:-1]:
        raise ShapeError(f"linalg.solve: Incompatible shapes of A and B for the equation AX = B: {a!r} and {b!r}")
    return b


def _solve_vjp(g: Var, y: Var, a: Var, b: Var) -> tuple[Any, Any]:
    gb = solve(adjoint(a), g)
    return neg(matmul(gb, adjoint(y))), gb


solve = op(
    "solve", "a b", doc="x in a x = b: [..., n, n], [..., n, k] -> [..., n, k].",
    infer=_solve_infer, numpy=np.linalg.solve, torch="torch.linalg.solve({a}, {b})", vjp=_solve_vjp,
    factors="...ij,...jk->...ik | !i !j", linear=((1,),), work=flops.solve, saves="a y", refuses=(0,),
)  # fmt: skip


def _det_vjp(g: Var, y: Var, x: Var) -> tuple[Any]:
    """det(x) * inverse(x)^H: x must be invertible."""
    scale = mul(g, cj(y))
    return (mul(reshape(scale, shape=(*scale.type.shape, 1, 1)), adjoint(inverse(x))),)


det = op(
    "det",
    "x",
    doc="Determinant of square matrices.",
    infer=lambda x: TensorType(_square("det", x).shape[:-2], x.dtype),
    numpy=np.linalg.det,
    torch="torch.linalg.det({x})",
    vjp=_det_vjp,
    factors="...ij->... | !i !j",
    work=flops.lu,
)


def _halved(x: Var) -> Any:
    """The lower triangle, with half of the diagonal."""
    n = x.type.shape[-1]
    on = eq(iota(shape=(n, n), dim=0, dtype=int64), iota(shape=(n, n), dim=1, dtype=int64))
    half = mul(cast(on, dtype=x.type.dtype), constant(0.5, x))
    return sub(tril(x, diagonal=0), mul(x, expand(half, shape=x.type.shape)))


def _cholesky_vjp(g: Var, y: Var, x: Var) -> tuple[Any]:
    """Source: Murray 2016, equation 10; symmetric, as torch's."""
    up = inverse(adjoint(y))
    inner = matmul(up, matmul(_halved(matmul(adjoint(y), g)), inverse(y)))
    return (mul(add(inner, adjoint(inner)), constant(0.5, inner)),)


cholesky = op(
    "cholesky", "x", doc="Lower triangular l with l l^H = x, of positive definite matrices.",
    infer=lambda x: _square("cholesky", x), numpy=np.linalg.cholesky, torch="torch.linalg.cholesky({x})",
    vjp=_cholesky_vjp, factors="...ij->...ij | !i !j", work=flops.cholesky, refuses=(0,),
)  # fmt: skip
