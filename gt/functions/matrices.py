"""``torch.linalg``: norms, factorizations, solves, inverses and what is made of them.

Owns: signatures, checks and compositions. Next: ``gt.linalg`` (the namespace), ``gt.ir.ops.factorization`` (meaning).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.functions.arrange import diagonal as diagonal_
from gt.functions.create import eye, full, zeros
from gt.functions.linalg import matmul
from gt.functions.linalg import tensordot as tensordot_
from gt.functions.numeric import angle, conj
from gt.functions.numeric import complex as complex_
from gt.functions.pointwise import abs as abs_
from gt.functions.pointwise import maximum, where
from gt.functions.promote import broadcast, cast
from gt.functions.reduce import amax, amin, sum
from gt.functions.shape import movedim, reshape, stack, transpose, unsqueeze
from gt.functions.statistics import power_norm
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import ShapeError, broadcast_shapes, dtype_of, int32, int64, normalize_dim, real_dtype
from gt.trace import record

if TYPE_CHECKING:
    from gt.tensor import Tensor


class QR(NamedTuple):
    """x = Q R."""

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """x = U diag(S) Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class Eigen(NamedTuple):
    """Eigenvalues and eigenvectors."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SlogDet(NamedTuple):
    """Sign and log of the absolute value."""

    sign: Tensor
    logabsdet: Tensor


class LU(NamedTuple):
    """x = P L U."""

    P: Tensor
    L: Tensor
    U: Tensor


class LUFactor(NamedTuple):
    """L (below the diagonal) and U in one matrix, and LAPACK's pivots."""

    LU: Tensor
    pivots: Tensor


class WithInfo(NamedTuple):
    """A result and a zero for each matrix: failures raise instead."""

    result: Tensor
    info: Tensor


class LstSq(NamedTuple):
    """What torch.linalg.lstsq gives."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def _float(name: str, A: Tensor) -> Tensor:  # noqa: N803 - torch's name
    if A.dtype.kind not in "fc":
        raise RuntimeError(
            f"linalg.{name}: Expected a floating point or complex tensor as input. Got {A.dtype.name.capitalize()}"
        )
    if A.dtype.itemsize == 2:
        raise RuntimeError(f"linalg.{name}: Low precision dtypes not supported. Got {A.dtype.name.capitalize()}")
    return A


def _matrix(name: str, A: Tensor, square: bool = False) -> Tensor:  # noqa: N803
    _float(name, A)
    if A.ndim < 2:
        raise RuntimeError(f"linalg.{name}: The input tensor A must have at least 2 dimensions.")
    if square and A._type.shape[-1] != A._type.shape[-2]:
        m, n = A._type.shape[-2:]
        raise RuntimeError(f"linalg.{name}: A must be batches of square matrices, but they are {m} by {n} matrices")
    return A


def _info(A: Tensor) -> Tensor:  # noqa: N803
    return zeros(A._type.shape[:-2], dtype=int32)


# -- norms


def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Give the p-norm over dims (all if None)."""
    if x.dtype.kind not in "fc":
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {x.dtype.name.capitalize()}"
        )
    if dtype is not None:
        x = cast(x, dtype_of(dtype))
    dims = _dims(dim, x.ndim)
    shape = x._type.shape
    if (ord < 0 or ord == math.inf) and any(shape[d] == 0 for d in dims):
        if dim is None or len(dims) == x.ndim:
            raise RuntimeError(
                f"linalg.vector_norm cannot compute the {_text(ord)} norm on an empty tensor because the operation does not have an identity"
            )
        bad = next(d for d in dims if shape[d] == 0)
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {_text(ord)} norm on the dimension {bad} because this dimension is empty and the "
            "operation does not have an identity"
        )
    return power_norm(x, ord, dims, keepdim)


def _text(ord: float) -> str:
    return str(ord)


def _dims(dim: Any, ndim: int) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(ndim))
    given = (dim,) if isinstance(dim, int) else tuple(dim)
    if not given:
        return tuple(range(ndim))
    out = tuple(normalize_dim(d, ndim) for d in given)
    if len(set(out)) != len(out):
        raise RuntimeError(f"dim {out[0]} appears multiple times in the list of dims")
    return tuple(sorted(out)) if ndim else ()


def matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:  # noqa: N803
    """Give a matrix norm: "fro", "nuc", or inf, -inf, 1, -1, 2, -2."""
    if A.dtype.kind not in "fc":
        raise RuntimeError(
            f"linalg.matrix_norm: Expected a floating point or complex tensor as input. Got {A.dtype.name.capitalize()}"
        )
    if A.ndim < 2:
        raise RuntimeError("linalg.matrix_norm: The input tensor A must have at least 2 dimensions.")
    if dtype is not None:
        A = cast(A, dtype_of(dtype))  # noqa: N806
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if len(dims) != 2:
        raise RuntimeError(f"linalg.matrix_norm: dim must be a 2-tuple. Got {' '.join(map(str, dims))}")
    a, b = (normalize_dim(d, A.ndim) for d in dims)
    if a == b:
        raise RuntimeError(f"linalg.matrix_norm: dims must be different. Got ({dims[0]}, {dims[1]})")
    if ord == "fro":
        return vector_norm(A, 2, (a, b), keepdim)
    if ord in (2, -2, "nuc"):
        s = svdvals(movedim(A, (a, b), (-2, -1)))
        out = sum(s, -1) if ord == "nuc" else amax(s, -1) if ord == 2 else amin(s, -1)
    elif ord in (1, -1, math.inf, -math.inf):
        over, then = (a, b) if abs(ord) == 1 else (b, a)
        size = sum(abs_(A), over, True)
        out = (amax if ord > 0 else amin)(size, then, True)
        return out if keepdim else reshape(out, tuple(n for d, n in enumerate(A._type.shape) if d not in (a, b)))
    elif isinstance(ord, str):
        raise RuntimeError(f"linalg.matrix_norm: Order {ord} not supported.")
    else:
        raise RuntimeError(f"linalg.matrix_norm: Order {ord} not supported.")
    if keepdim:
        out = reshape(out, tuple(1 if d in (a, b) else n for d, n in enumerate(A._type.shape)))
    return out


def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:  # noqa: N803
    """Give a vector norm, or with two dims (or a matrix and an ``ord``) a matrix norm."""
    if ord is not None:
        if isinstance(ord, str) and (dim is None and A.ndim != 2):
            raise RuntimeError(
                "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got " + f"{A.ndim}D."
            )
        dims = None if dim is None else ((dim,) if isinstance(dim, int) else tuple(dim))
        if dims is not None and len(dims) not in (1, 2):
            raise RuntimeError(f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(dims)}")
        if dims is None and A.ndim not in (1, 2):
            raise RuntimeError(
                f"linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {A.ndim}D."
            )
        if (dims is not None and len(dims) == 2) or (dims is None and A.ndim == 2):
            return matrix_norm(A, ord, dims or (0, 1), keepdim, dtype=dtype)
        return vector_norm(A, ord, dim, keepdim, dtype=dtype)
    return vector_norm(A, 2, dim, keepdim, dtype=dtype)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Give the dot products of vectors along ``dim``."""
    if x.dtype.kind not in "fc":
        raise RuntimeError(
            f"linalg.vecdot: Expected a floating point or complex tensor as input. Got {x.dtype.name.capitalize()}"
        )
    a, b = broadcast(x, y)
    return sum(conj(a) * b, dim)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Give the cross products of vectors of three along ``dim``."""
    if input.ndim != other.ndim:
        raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
    d = normalize_dim(dim, input.ndim)
    if input._type.shape[d] != 3 or other._type.shape[d] != 3:
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got {input._type.shape[d]} and {other._type.shape[d]}"
        )
    a, b = broadcast(input, other)
    (ax, ay, az), (bx, by, bz) = (t.unbind(d) for t in (a, b))
    return stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], d)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:  # noqa: N803
    """Give a diagonal of the last two dims. A view."""
    return diagonal_(A, offset, dim1, dim2)


# -- factorizations


def qr(A: Tensor, mode: str = "reduced") -> QR:  # noqa: N803
    """Factor into orthonormal and upper triangular; mode: reduced, complete or r."""
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'"
        )
    _matrix("qr", A)
    q, r = record(OPS["qr"], (A,), (("complete", mode == "complete"),))
    return QR(zeros(0, dtype=A.dtype), r) if mode == "r" else QR(q, r)


def svd(A: Tensor, full_matrices: bool = True, *, driver: Any = None) -> SVD:  # noqa: N803
    """Factor into singular vectors and values."""
    return SVD(*record(OPS["svd"], (_matrix("svd", A),), (("full", bool(full_matrices)),)))


def svdvals(A: Tensor, *, driver: Any = None) -> Tensor:  # noqa: N803
    """Give the singular values, falling."""
    return record(OPS["svdvals"], (_matrix("svdvals", A),))


def eigh(A: Tensor, UPLO: str = "L") -> Eigen:  # noqa: N803
    """Give eigenvalues, rising, and eigenvectors of symmetric matrices; reads the lower ("L") or upper triangle."""
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    return Eigen(*record(OPS["eigh"], (_matrix("eigh", A, True),), (("upper", UPLO.upper() == "U"),)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:  # noqa: N803
    """Give the eigenvalues of symmetric matrices, rising."""
    return eigh(A, UPLO).eigenvalues


def eig(A: Tensor) -> Eigen:  # noqa: N803
    """Give eigenvalues and eigenvectors of any square matrix. Dtypes: complex."""
    return Eigen(*record(OPS["eig"], (_matrix("eig", A, True),)))


def eigvals(A: Tensor) -> Tensor:  # noqa: N803
    """Give the eigenvalues of any square matrix. Dtypes: complex."""
    return record(OPS["eigvals"], (_matrix("eigvals", A, True),))


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:  # noqa: N803
    """Give lower triangular L with L Lᴴ = A (upper: its adjoint), of positive definite matrices."""
    out = record(OPS["cholesky"], (_matrix("cholesky", A, True),))
    return adjoint(out) if upper else out


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> WithInfo:  # noqa: N803
    """Give the Cholesky factor and zeros; a matrix that has none raises."""
    return WithInfo(cholesky(A, upper=upper), _info(A))


def adjoint(A: Tensor) -> Tensor:  # noqa: N803
    """Transpose the last two dims and conjugate."""
    if A.ndim < 2:
        raise RuntimeError(
            f"tensor.adjoint() is only supported on matrices or batches of matrices. Got {A.ndim}-D tensor."
        )
    return conj(transpose(A, -2, -1))


def lu(A: Tensor, *, pivot: bool = True) -> LU:  # noqa: N803
    """Factor into permutation, lower and upper triangular."""
    _pivoting("lu", pivot)
    return LU(*record(OPS["lu"], (_matrix("lu", A),))[:3])


def _pivoting(name: str, pivot: bool) -> None:
    if not pivot:
        raise RuntimeError(f"linalg.{name}: LU without pivoting is not implemented on the CPU")


def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactor:  # noqa: N803
    """Give L and U in one matrix, and pivots."""
    _pivoting("lu_factor", pivot)
    _, low, up, pivots = record(OPS["lu"], (_matrix("lu_factor", A),))
    m, n = A._type.shape[-2:]
    k = min(m, n)
    strict = low.tril(-1)
    if n > k:
        strict = _padded(strict, m, n)
    if m > k:
        up = _padded(up, m, n)
    return LUFactor(strict + up, pivots)


def _padded(t: Tensor, m: int, n: int) -> Tensor:
    high = (*(0,) * (t.ndim - 2), m - t._type.shape[-2], n - t._type.shape[-1])
    zero = (0,) * t.ndim
    return record(OPS["pad"], (t,), (("low", zero), ("high", high), ("interior", zero), ("value", 0.0)))


class LUFactorInfo(NamedTuple):
    """``LUFactor`` and a zero for each matrix."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorInfo:  # noqa: N803
    """Give L and U in one matrix, pivots and zeros."""
    return LUFactorInfo(*lu_factor(A, pivot=pivot), _info(A))


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:  # noqa: N803
    """Solve A X = B (or X A = B, or with the adjoint of A) from ``lu_factor``'s result."""
    p = _permutation(pivots, LU._type.shape[-2], LU.dtype)
    if not left:
        flipped = lu_solve(LU, pivots, _adj(B), left=True, adjoint=not adjoint)
        return _adj(flipped)
    if adjoint:
        y = solve_triangular(_adj(LU), B, upper=False)
        return matmul(p, solve_triangular(_adj(LU), y, upper=True, unitriangular=True))
    y = solve_triangular(LU, matmul(_adj(p), B), upper=False, unitriangular=True)
    return solve_triangular(LU, y, upper=True)


_adj = adjoint


def _permutation(pivots: Tensor, n: int, dtype: Any) -> Tensor:
    """Give the matrix P of A = P L U: the pivots' swaps, the last first."""
    out = eye(n, dtype=dtype)
    lead = pivots._type.shape[:-1]
    out = out.expand(*lead, n, n)
    rows = eye(n, dtype=dtype)
    index = cast(pivots, int64) - 1
    for k in range(pivots._type.shape[-1]):
        here = rows[k].reshape(*(1,) * len(lead), n)
        there = cast(unsqueeze(index[..., k], -1) == _count(n), dtype)
        apart = here - there  # I - apart apartᵀ exchanges the two rows
        swap = rows - unsqueeze(apart, -1) * unsqueeze(apart, -2)
        out = matmul(out, swap)
    return out


def _count(n: int) -> Tensor:
    return record(OPS["iota"], (), (("shape", (n,)), ("dim", 0), ("dtype", int64)))


def lu_unpack(
    LU_data: Tensor,
    LU_pivots: Tensor,
    unpack_data: bool = True,
    unpack_pivots: bool = True,  # noqa: N803
) -> LU:
    """Give P, L and U from ``lu_factor``'s result."""
    m, n = LU_data._type.shape[-2:]
    k = min(m, n)
    empty = zeros(0, dtype=LU_data.dtype)
    p = _permutation(LU_pivots, m, LU_data.dtype) if unpack_pivots else empty
    if not unpack_data:
        return LU(p, empty, empty)
    low = LU_data[..., :k].tril(-1) + eye(m, k, dtype=LU_data.dtype)
    return LU(p, low, LU_data[..., :k, :].triu())


# -- solving


def _is_vector(A: Tensor, B: Tensor) -> bool:  # noqa: N803
    return B.ndim == 1 or (A.ndim - 1 == B.ndim and A._type.shape[:-1] == B._type.shape)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:  # noqa: N803
    """Solve A X = B (or X A = B)."""
    _matrix("solve", A, True)
    if A.dtype is not B.dtype:
        raise RuntimeError(
            f"linalg.solve: Expected A and B to have the same dtype, but found A of type {A.dtype!r} and B of type {B.dtype!r} instead"
        )
    vector = _is_vector(A, B)
    if vector and not left:
        raise RuntimeError(
            "linalg.solve: Vector broadcasting of the left hand side is not supported for left=False. In this case linalg.solve is "
            "equivalent to B / A.squeeze(-1)"
        )
    b = unsqueeze(B, -1) if vector else B
    if not left:
        return transpose(solve(transpose(A, -2, -1), transpose(b, -2, -1)), -2, -1)
    if b._type.shape[-2] != A._type.shape[-1]:
        raise ShapeError(
            f"linalg.solve: Incompatible shapes of A and B for the equation AX = B ({A._type.shape[-2]}x{A._type.shape[-1]} and "
            f"{b._type.shape[-2]}x{b._type.shape[-1]})"
        )
    lead = broadcast_shapes(A._type.shape[:-2], b._type.shape[:-2])
    a, b = A.expand(*lead, *A._type.shape[-2:]), b.expand(*lead, *b._type.shape[-2:])
    out = record(OPS["solve"], (a, b))
    return reshape(out, out._type.shape[:-1]) if vector else out


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> WithInfo:  # noqa: N803
    """Solve, and give zeros; a singular matrix raises."""
    out = solve(A, B, left=left)
    return WithInfo(out, _info(A))


def solve_triangular(
    A: Tensor,
    B: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,  # noqa: N803
) -> Tensor:
    """Solve with a triangular matrix; unitriangular: its diagonal counts as 1."""
    _matrix("solve_triangular", A, True)
    attrs = (("upper", bool(upper)), ("left", bool(left)), ("unit", bool(unitriangular)))
    return record(OPS["solve_triangular"], (A, B), attrs)


def inv(A: Tensor) -> Tensor:  # noqa: N803
    """Give the inverse."""
    return record(OPS["inverse"], (_matrix("inv", A, True),))


def inv_ex(A: Tensor, *, check_errors: bool = False) -> WithInfo:  # noqa: N803
    """Give the inverse and zeros; a singular matrix raises."""
    return WithInfo(inv(A), _info(A))


def pinv(A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:  # noqa: N803
    """Give the pseudo-inverse; singular values not above max(atol, rtol * largest) count as 0."""
    _matrix("pinv", A, hermitian)
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
    return matmul(adjoint(vh) * unsqueeze(inverse, -2), adjoint(u))


def _default_tolerance(A: Tensor) -> float:  # noqa: N803
    eps = 2.220446049250313e-16 if A.dtype.name in ("float64", "complex128") else 1.1920928955078125e-07
    return eps * max(A._type.shape[-2:])


def matrix_rank(A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:  # noqa: N803
    """Count the singular values above max(atol, rtol * largest)."""
    _matrix("matrix_rank", A, hermitian)
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
    _matrix("cond", A)
    if p is None or p in (2, -2):
        s = svdvals(A)
        top, bottom = s[..., 0], s[..., -1]
        return bottom / top if p == -2 else top / bottom
    return matrix_norm(A, p) * matrix_norm(inv(A), p)


def det(A: Tensor) -> Tensor:  # noqa: N803
    """Give the determinant."""
    return record(OPS["det"], (_matrix("det", A, True),))


def slogdet(A: Tensor) -> SlogDet:  # noqa: N803
    """Give the sign and the log of the absolute value of the determinant."""
    return SlogDet(*record(OPS["slogdet"], (_matrix("slogdet", A, True),)))


def logdet(input: Tensor) -> Tensor:
    """Give the log of the determinant; NaN if it is negative."""
    sign, size = slogdet(input)
    if sign.dtype.kind == "c":
        return complex_(size, angle(sign))
    return where(sign == -1, math.nan, size)


def matrix_exp(A: Tensor) -> Tensor:  # noqa: N803
    """Give the matrix exponential."""
    return record(OPS["matrix_exp"], (_matrix("matrix_exp", A, True),))


def matrix_power(A: Tensor, n: int) -> Tensor:  # noqa: N803
    """Multiply a matrix with itself n times; negative: its inverse."""
    if A.ndim < 2 or A._type.shape[-1] != A._type.shape[-2]:
        _matrix("matrix_power", A, True)
    if n == 0:
        unit = eye(A._type.shape[-1], dtype=A.dtype).expand(A._type.shape)
        return where(full(A._type.shape, True), unit, A) if A.requires_grad else unit.clone()
    base = inv(A) if n < 0 else A
    out, n = None, abs(n)
    while n:
        if n & 1:
            out = base if out is None else matmul(out, base)
        n >>= 1
        base = matmul(base, base) if n else base
    return out.clone() if out is A else out  # type: ignore[union-attr, return-value]


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Multiply a chain of matrices; the first and last may be vectors."""
    given = list(tensors)
    if len(given) < 2:
        raise RuntimeError("multi_dot(): expected at least 2 tensors but got " + str(len(given)))
    first, last = given[0].ndim == 1, given[-1].ndim == 1
    given[0] = unsqueeze(given[0], 0) if first else given[0]
    given[-1] = unsqueeze(given[-1], 1) if last else given[-1]
    out = _chain(given)
    if first and last:
        return reshape(out, ())
    return reshape(out, -1) if first or last else out


def _chain(given: list[Tensor]) -> Tensor:
    """The cheapest order, by dynamic programming."""
    sizes = [t._type.shape[0] for t in given] + [given[-1]._type.shape[1]]
    n = len(given)
    cost = {(i, i): (0, i) for i in range(n)}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            cost[i, j] = min(
                (cost[i, k][0] + cost[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )

    def product(i: int, j: int) -> Tensor:
        return given[i] if i == j else matmul(product(i, cost[i, j][1]), product(cost[i, j][1] + 1, j))

    return product(0, n - 1)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:  # noqa: N803
    """Give the Vandermonde matrix: powers 0 to N - 1 of each element."""
    x = reshape(x, 1) if not x.ndim else x
    n = x._type.shape[-1] if N is None else N
    if n <= 1:
        raise RuntimeError(f"N must be greater than 1, but got {n}")
    ones = x.unsqueeze(-1) * 0 + 1
    powers = x.unsqueeze(-1).expand(*x._type.shape, n - 1)
    return record(OPS["cat"], (cast(ones, x.dtype), powers.cumprod(-1).to(x.dtype)), (("dim", x.ndim),))


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:  # noqa: N803
    """Give the inverse for tensordot over the first ``ind`` dims."""
    s = A._type.shape
    rows, columns = math.prod(s[:ind]), math.prod(s[ind:])
    if ind <= 0:
        raise RuntimeError("Expected a strictly positive integer for 'ind'")
    if rows != columns:
        raise RuntimeError(
            f"Expected self to satisfy the requirement prod(self.shape[ind:]) == prod(self.shape[:ind]), but got {columns} != {rows}"
        )
    return reshape(inv(reshape(A, (rows, columns))), (*s[ind:], *s[:ind]))


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:  # noqa: N803
    """Solve tensordot(A, X) = B."""
    a = A
    if dims is not None:
        chosen = [normalize_dim(d, A.ndim) for d in dims]
        a = movedim(A, chosen, list(range(A.ndim - len(chosen), A.ndim)))
    result = a._type.shape[B.ndim :]
    n = math.prod(result)
    if n != math.prod(a._type.shape[: B.ndim]):
        raise RuntimeError(
            "Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == prod(self.shape[:other.ndim])"
        )
    return reshape(solve(reshape(a, (n, n)), reshape(B, -1)), result)


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LstSq:  # noqa: N803
    """Solve least squares by the pseudo-inverse."""
    _matrix("lstsq", A)
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError("torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)")
    vector = A.ndim - 1 == B.ndim and A._type.shape[:-1] == B._type.shape
    b = unsqueeze(B, -1) if vector else B
    if A._type.shape[-2] != b._type.shape[-2]:
        raise RuntimeError("torch.linalg.lstsq: input.size(-2) should match other.size(-2)")
    x = matmul(pinv(A, rcond), b)
    m, n = A._type.shape[-2:]
    empty = zeros(0, dtype=real_dtype(A.dtype))
    rest = matmul(A, x) - b
    residuals = sum(abs_(rest) ** 2, -2) if m > n and driver != "gelsy" else empty
    rank = matrix_rank(A.detach()) if driver != "gels" else zeros(0, dtype=int64)
    values = svdvals(A.detach()) if driver in ("gelsd", "gelss") else empty
    return LstSq(reshape(x, x._type.shape[:-1]) if vector else x, residuals, rank, values)


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:  # noqa: N803
    """Give the inverse of a matrix from its Cholesky factor."""
    unread = L.tril(-1) if upper else L.triu(1)
    factor = L - unread.detach()  # the other triangle is not read, but torch gives it a gradient
    full = matmul(_adj(factor), factor) if upper else matmul(factor, _adj(factor))
    return inv(full)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:  # noqa: N803
    """Solve A X = B from A's Cholesky factor."""
    if B.ndim < 2 or L.ndim < 2:
        raise RuntimeError("b should have at least 2 dimensions, but has " + str(B.ndim) + " dimensions instead")
    low = _adj(L) if upper else L
    return solve_triangular(_adj(low), solve_triangular(low, B, upper=False), upper=True)


def triangular_solve(
    b: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,  # noqa: N803
) -> tuple[Tensor, Tensor]:
    """Solve with a triangular matrix; gives the solution and the matrix (torch's old form)."""
    a = A.mT if transpose else A
    out = solve_triangular(a, b, upper=upper != transpose, unitriangular=unitriangular)
    return out, A.clone()


def svd_(input: Tensor, some: bool = True, compute_uv: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Give U, S and V (not its adjoint): torch's old form."""
    u, s, vh = svd(input, not some)
    if not compute_uv:
        m, n = input._type.shape[-2:]
        lead = input._type.shape[:-2]
        return zeros((*lead, m, m), dtype=input.dtype), s, zeros((*lead, n, n), dtype=input.dtype)
    return u, s, _adj(vh)


def qr_(input: Tensor, some: bool = True) -> QR:
    """Factor into orthonormal and upper triangular: torch's old form."""
    return qr(input, "reduced" if some else "complete")


def old_norm(input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Give a norm: torch.norm's form."""
    if input.dtype.kind not in "fc":
        raise RuntimeError(
            f"norm(): expected a floating point or complex tensor as input. Got {input.dtype.name.capitalize()}"
        )
    if p == "nuc":
        dims = (-2, -1) if dim is None else dim
        if dim is None and input.ndim != 2:
            raise RuntimeError("norm: expected a matrix for the nuclear norm")
        return matrix_norm(input, "nuc", dims, keepdim, dtype=dtype)
    order = 2 if p in ("fro", None) else p
    return vector_norm(input, order, dim, keepdim, dtype=dtype)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """Give the p-norm distances between every row of one and every row of another."""
    if x1.ndim < 2 or x2.ndim < 2:
        raise RuntimeError(f"cdist only supports at least 2D tensors, X1 got: {x1.ndim}D")
    if x1._type.shape[-1] != x2._type.shape[-1]:
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x1._type.shape[-1]} X2: {x2._type.shape[-1]}"
        )
    apart = unsqueeze(x1, -2) - unsqueeze(x2, -3)
    if apart._type.shape[-1] == 0:
        return sum(apart, -1)
    return power_norm(apart, p, (apart.ndim - 1,), False)


tensordot = tensordot_


def old_cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """Give the Cholesky factor: torch's old form."""
    return cholesky(input, upper=upper)
