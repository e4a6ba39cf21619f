"""Solving linear equations, inverses, ranks.

Owns: signatures, checks and compositions. Next: ``factorization``, ``gt.ir.ops.factorization`` (meaning).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.functions.create import full, zeros
from gt.functions.factorization import adjoint as adjoint_of
from gt.functions.factorization import check_pivots, eigvalsh, need_matrix, permutation, svd, svdvals, zero_info
from gt.functions.linalg import matmul
from gt.functions.norms import matrix_norm
from gt.functions.pointwise import abs as abs_
from gt.functions.pointwise import maximum, where
from gt.functions.promote import cast
from gt.functions.reduce import amax, sum
from gt.functions.shape import movedim, reshape, transpose, unsqueeze
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import CallError, ShapeError, broadcast_shapes, int64, normalize_dim, real_dtype
from gt.recording import record
from gt.return_types import named
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor


@named("linalg_solve_ex")
class Solved(NamedTuple):
    """The solution and a zero for each matrix: failures raise instead."""

    result: Tensor
    info: Tensor


@named("linalg_inv_ex")
class Inverse(NamedTuple):
    """The inverse and a zero for each matrix: failures raise instead."""

    inverse: Tensor
    info: Tensor


@named("triangular_solve")
class TriangularSolved(NamedTuple):
    """The solution, and the matrix."""

    solution: Tensor
    cloned_coefficient: Tensor


@named("linalg_lstsq")
class LstSq(NamedTuple):
    """What torch.linalg.lstsq gives."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def _is_vector(A: Tensor, B: Tensor) -> bool:  # noqa: N803
    return B.ndim == 1 or (A.ndim - 1 == B.ndim and A._type.shape[:-1] == B._type.shape)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:  # noqa: N803
    """Solve A X = B (or X A = B)."""
    need_matrix("solve", A, True)
    if A.dtype is not B.dtype:
        raise CallError(
            f"linalg.solve: Expected A and B to have the same dtype, but found A of type {A.dtype!r} and B of type {B.dtype!r} instead"
        )
    if not B.ndim:
        raise CallError("linalg.solve: The input tensor B must have at least 1 dimension.")
    vector = _is_vector(A, B)
    if vector and not left:
        raise CallError(
            "linalg.solve: Vector broadcasting of the left hand side is not supported for left=False. In this case linalg.solve is "
            "equivalent to B / A.squeeze(-1)"
        )
    b = unsqueeze(B, -1) if vector else B
    if not left:
        return transpose(solve(transpose(A, -2, -1), transpose(b, -2, -1)), -2, -1).contiguous()
    if b._type.shape[-2] != A._type.shape[-1]:
        raise ShapeError(
            f"linalg.solve: Incompatible shapes of A and B for the equation AX = B ({A._type.shape[-2]}x{A._type.shape[-1]} and "
            f"{b._type.shape[-2]}x{b._type.shape[-1]})"
        )
    lead = broadcast_shapes(A._type.shape[:-2], b._type.shape[:-2])
    a, b = A.expand(*lead, *A._type.shape[-2:]), b.expand(*lead, *b._type.shape[-2:])
    out = record(OPS["solve"], (a, b))
    return reshape(out, out._type.shape[:-1]) if vector else out


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Solved:  # noqa: N803
    """Solve, and give zeros; a singular matrix raises."""
    out = solve(A, B, left=left)
    return Solved(out, zero_info(A))


def solve_triangular(
    A: Tensor,
    B: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,  # noqa: N803
) -> Tensor:
    """Solve with a triangular matrix; unitriangular: its diagonal counts as 1."""
    if B.ndim < 2:
        raise CallError(f"linalg.solve_triangular: The input tensor B must have at least 2 dimensions, but it has {B.ndim}.")
    need_matrix("solve_triangular", A, True)
    attrs = (("upper", bool(upper)), ("left", bool(left)), ("unit", bool(unitriangular)))
    return record(OPS["solve_triangular"], (A, B), attrs)


@saves("LU pivots result")
def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:  # noqa: N803
    """Solve A X = B (or X A = B, or with the adjoint of A) from ``lu_factor``'s result."""
    need_matrix("lu_solve", LU)
    need_matrix("lu_solve", B)
    check_pivots("linalg.lu_solve", LU, pivots)
    p = permutation(pivots, LU._type.shape[-2], LU.dtype)
    if not left:
        flipped = lu_solve(LU, pivots, adjoint_of(B), left=True, adjoint=not adjoint)
        return adjoint_of(flipped).contiguous()
    if adjoint:
        y = solve_triangular(adjoint_of(LU), B, upper=False)
        return matmul(p, solve_triangular(adjoint_of(LU), y, upper=True, unitriangular=True))
    y = solve_triangular(LU, matmul(adjoint_of(p), B), upper=False, unitriangular=True)
    return solve_triangular(LU, y, upper=True)


@saves("L result")
def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:  # noqa: N803
    """Give the inverse of a matrix from its Cholesky factor."""
    unread = L.tril(-1) if upper else L.triu(1)
    factor = L - unread.detach()  # the other triangle is not read, but torch gives it a gradient
    full = matmul(adjoint_of(factor), factor) if upper else matmul(factor, adjoint_of(factor))
    return inv(full)


@saves("B L result")
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:  # noqa: N803
    """Solve A X = B from A's Cholesky factor."""
    if B.ndim < 2 or L.ndim < 2:
        raise CallError("b should have at least 2 dimensions, but has " + str(B.ndim) + " dimensions instead")
    low = adjoint_of(L) if upper else L
    return solve_triangular(adjoint_of(low), solve_triangular(low, B, upper=False), upper=True)


@saves("b A result0")
def triangular_solve(
    b: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,  # noqa: N803
) -> TriangularSolved:
    """Solve with a triangular matrix; gives the solution and the matrix (torch's old form)."""
    a = A.mT if transpose else A
    out = solve_triangular(a, b, upper=upper != transpose, unitriangular=unitriangular)
    return TriangularSolved(out, A.clone())


@saves("A B result0")
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LstSq:  # noqa: N803
    """Solve least squares by the pseudo-inverse."""
    need_matrix("lstsq", A)
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise CallError("torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)")
    if not B.ndim:
        raise CallError("torch.linalg.lstsq: other must have at least 1 dimension.")
    vector = A.ndim - 1 == B.ndim and A._type.shape[:-1] == B._type.shape
    b = unsqueeze(B, -1) if vector else B
    if A._type.shape[-2] != b._type.shape[-2]:
        raise CallError("torch.linalg.lstsq: input.size(-2) should match other.size(-2)")
    x = matmul(pinv(A, rcond), b)
    m, n = A._type.shape[-2:]
    empty = zeros(0, dtype=real_dtype(A.dtype))
    rest = matmul(A, x) - b
    residuals = sum(abs_(rest) ** 2, -2) if m > n and driver not in (None, "gelsy") else empty
    rank = matrix_rank(A.detach()) if driver != "gels" else zeros(0, dtype=int64)
    values = svdvals(A.detach()) if driver in ("gelsd", "gelss") else empty
    return LstSq(reshape(x, x._type.shape[:-1]) if vector else x, residuals, rank, values)


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:  # noqa: N803
    """Solve tensordot(A, X) = B."""
    a = A
    if dims is not None:
        chosen = [normalize_dim(d, A.ndim) for d in dims]
        a = movedim(A, chosen, list(range(A.ndim - len(chosen), A.ndim)))
    result = a._type.shape[B.ndim :]
    n = math.prod(result)
    if n != math.prod(a._type.shape[: B.ndim]):
        raise CallError(
            "Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == prod(self.shape[:other.ndim])"
        )
    return reshape(solve(reshape(a, (n, n)), reshape(B, -1)), result)


# -- inverses


def inv(A: Tensor) -> Tensor:  # noqa: N803
    """Give the inverse."""
    return record(OPS["inverse"], (need_matrix("inv", A, True),))


def inv_ex(A: Tensor, *, check_errors: bool = False) -> Inverse:  # noqa: N803
    """Give the inverse and zeros; a singular matrix raises."""
    return Inverse(inv(A), zero_info(A))


def pinv(A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:  # noqa: N803
    """Give the pseudo-inverse; singular values not above max(atol, rtol * largest) count as 0."""
    need_matrix("pinv", A, hermitian)
    relative = rtol if rcond is None else rcond
    absolute = 0.0 if atol is None else atol
    if A.numel() and (isinstance(relative, Handle) or isinstance(absolute, Handle)):
        return _pinv_above(A, relative, absolute)
    if A.numel() == 0:
        return zeros((*A._type.shape[:-2], A._type.shape[-1], A._type.shape[-2]), dtype=A.dtype) + sum(A) * 0
    if relative is None:
        relative = _default_tolerance(A) if absolute <= 0 else 0.0
    attrs = (("rtol", float(relative)), ("atol", float(absolute)), ("hermitian", bool(hermitian)))
    return record(OPS["pinv"], (A,), attrs)


def _pinv_above(A: Tensor, relative: Any, absolute: Any) -> Tensor:  # noqa: N803
    """Give the pseudo-inverse for tolerances that are tensors: one for each matrix, or one for all."""
    u, s, vh = svd(A, False)
    if relative is None:
        relative = where(absolute > 0, 0.0, _default_tolerance(A))
    bounds = [t if isinstance(t, Handle) else full((), t, dtype=s.dtype) for t in (relative, absolute)]
    low = maximum(unsqueeze(cast(bounds[0], s.dtype), -1) * s[..., :1], unsqueeze(cast(bounds[1], s.dtype), -1))
    kept = s > low
    inverse = where(kept, 1 / where(kept, s, 1.0), 0.0)
    return matmul(adjoint_of(vh) * unsqueeze(inverse, -2), adjoint_of(u))


def _default_tolerance(A: Tensor) -> float:  # noqa: N803
    eps = 2.220446049250313e-16 if A.dtype.name in ("float64", "complex128") else 1.1920928955078125e-07
    return eps * max(A._type.shape[-2:])


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:  # noqa: N803
    """Give the inverse for tensordot over the first ``ind`` dims."""
    s = A._type.shape
    rows, columns = math.prod(s[:ind]), math.prod(s[ind:])
    if ind <= 0:
        raise CallError("Expected a strictly positive integer for 'ind'")
    if rows != columns:
        raise CallError(
            f"Expected self to satisfy the requirement prod(self.shape[ind:]) == prod(self.shape[:ind]), but got {columns} != {rows}"
        )
    return reshape(inv(reshape(A, (rows, columns))), (*s[ind:], *s[:ind]))


def matrix_rank(A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:  # noqa: N803
    """Count the singular values above max(atol, rtol * largest)."""
    need_matrix("matrix_rank", A, hermitian)
    absolute = tol if tol is not None else atol
    s = abs_(eigvalsh(A)) if hermitian else svdvals(A)
    if s._type.shape[-1] == 0:
        return zeros(A._type.shape[:-2], dtype=int64)
    given = absolute is not None and (isinstance(absolute, Handle) or absolute > 0)
    relative = rtol if rtol is not None else 0.0 if given else _default_tolerance(A)
    if isinstance(absolute, Handle) and rtol is None and tol is None:
        relative = where(absolute > 0, 0.0, _default_tolerance(A))
    top = amax(s, -1)
    bound = (cast(relative, s.dtype) if isinstance(relative, Handle) else relative) * top
    if absolute is not None:
        floor = cast(absolute, s.dtype) if isinstance(absolute, Handle) else absolute
        bound = where(bound > floor, bound, floor)
    return sum(s > unsqueeze(bound, -1), -1)


def cond(A: Tensor, p: Any = None) -> Tensor:  # noqa: N803
    """Give the condition number."""
    need_matrix("cond", A)
    if 0 in A._type.shape[-2:]:
        return zeros(A._type.shape[:-2], dtype=real_dtype(A.dtype))
    if p is None or p in (2, -2):
        s = svdvals(A)
        top, bottom = s[..., 0], s[..., -1]
        return bottom / top if p == -2 else top / bottom
    return matrix_norm(A, p) * matrix_norm(inv(A), p)
