"""The array API's linear algebra: the main namespace's four functions and the ``linalg`` extension.

Next: ``gt.functions.linalg``, ``factorization``, ``norms``, ``solving``, ``matrices``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.array_api.data_types import together
from gt.array_api.manipulation import axes_of, broadcast_arrays
from gt.array_api.reductions import sum
from gt.functions import factorization, linalg, matrices, norms, numeric, shape, solving
from gt.functions.factorization import (
    QR,
    SVD,
    Eigen,
)
from gt.functions.matrices import SlogDet
from gt.functions.promote import cast
from gt.ir.types import DType, real_dtype

if TYPE_CHECKING:
    from gt.tensor import Tensor


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Multiply matrices, or a matrix and a vector; leading dims broadcast."""
    return linalg.matmul(*together(x1, x2))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Exchange the last two dims."""
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose: expected at least 2 dimensions, got {x.ndim}")
    return shape.transpose(x, -2, -1)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """Multiply and add up over pairs of axes."""
    return linalg.tensordot(*together(x1, x2), dims=axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Give the dot products of vectors along an axis, the first one conjugated."""
    a, b = together(x1, x2)
    if not -min(a.ndim, b.ndim) <= axis < 0:
        raise ValueError(f"vecdot: expected a negative axis that both arrays have, got {axis}")
    if a.shape[axis] != b.shape[axis]:
        raise ValueError(f"vecdot: sizes along axis {axis} differ: {a.shape[axis]} and {b.shape[axis]}")
    a, b = broadcast_arrays(a, b)
    return sum(numeric.conj(a) * b, axis=axis, dtype=a.dtype)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Multiply each element of a vector with each of another."""
    return linalg.outer(*together(x1, x2))


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Give the cross products of vectors of three along an axis."""
    a, b = together(x1, x2)
    if a.shape[axis] != 3 or b.shape[axis] != 3:
        raise ValueError(f"cross: expected size 3 along axis {axis}, got {a.shape[axis]} and {b.shape[axis]}")
    a, b = broadcast_arrays(a, b)
    return matrices.cross(a, b, dim=axis)


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """Give the Cholesky factor."""
    return factorization.cholesky(x, upper=upper)


def det(x: Tensor, /) -> Tensor:
    """Give the determinant."""
    return matrices.det(x)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """Give a diagonal of the last two dims."""
    return matrices.diagonal(x, offset=offset)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DType | None = None) -> Tensor:
    """Add up a diagonal of the last two dims. Dtypes: integers give int64."""
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def eig(x: Tensor, /) -> Eigen:
    """Give eigenvalues and eigenvectors, which are complex."""
    return factorization.eig(x)


def eigvals(x: Tensor, /) -> Tensor:
    """Give the eigenvalues, which are complex."""
    return factorization.eigvals(x)


def eigh(x: Tensor, /) -> Eigen:
    """Give eigenvalues and eigenvectors of a symmetric or Hermitian matrix, in rising order."""
    return factorization.eigh(x)


def eigvalsh(x: Tensor, /) -> Tensor:
    """Give the eigenvalues of a symmetric or Hermitian matrix, in rising order."""
    return factorization.eigvalsh(x)


def inv(x: Tensor, /) -> Tensor:
    """Give the inverse."""
    return solving.inv(x)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """Give a norm of matrices: "fro", "nuc", or 1, 2, inf and their negatives."""
    return norms.matrix_norm(x, ord, (-2, -1), keepdims)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Multiply a matrix with itself n times; negative: its inverse."""
    return matrices.matrix_power(x, n)


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """Count the singular values above ``rtol`` times the largest."""
    return solving.matrix_rank(x, rtol=rtol)


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """Give the pseudo-inverse; singular values not above ``rtol`` times the largest count as 0."""
    return solving.pinv(x, rtol=rtol)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QR:
    """Factor into orthonormal and upper triangular; mode: reduced or complete."""
    return factorization.qr(x, mode)


def slogdet(x: Tensor, /) -> SlogDet:
    """Give the sign and the log of the absolute value of the determinant."""
    return matrices.slogdet(x)


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Solve x1 @ x = x2, where ``x2`` is one vector if it has one dim, else matrices."""
    a, b = together(x1, x2)
    if b.ndim == 1:
        return shape.squeeze(solving.solve(a, shape.unsqueeze(b, -1)), -1)
    batch = broadcast_arrays(a[..., 0, 0], b[..., 0, 0])[0].shape if a.numel() and b.numel() else None
    if batch is not None:
        a, b = a.expand((*batch, *a.shape[-2:])), b.expand((*batch, *b.shape[-2:]))
    return solving.solve(a, b)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVD:
    """Factor into U, singular values in falling order, and Vh."""
    return factorization.svd(x, full_matrices)


def svdvals(x: Tensor, /) -> Tensor:
    """Give the singular values, in falling order."""
    return factorization.svdvals(x)


def vector_norm(
    x: Tensor, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """Give the norm of order ``ord`` over axes, all if None."""
    if x.dtype.kind not in "fc":
        raise TypeError(f"vector_norm: expected floating point numbers, got {x.dtype.name}")
    if axis is not None and not isinstance(axis, int) and not axis:
        size = abs(x)
        return cast(size != 0, real_dtype(x.dtype)) if ord == 0 else size
    axes = None if axis is None else axes_of(axis, x.ndim)
    return norms.vector_norm(x, ord, axes, keepdims)


__all__ = [
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot",
    "vector_norm",
]  # fmt: skip
