"""Factorizations of matrices: QR, SVD, eigenvalues, Cholesky, LU.

Owns: their checks and what they give. Next: ``solving`` (what is made of them), ``gt.ir.ops.factorization`` (meaning).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gt.functions.create import eye, zeros
from gt.functions.linalg import matmul
from gt.functions.numeric import conj
from gt.functions.promote import cast, without_gradient
from gt.functions.shape import transpose, unsqueeze
from gt.ir.blame import warn_user
from gt.ir.ops import OPS
from gt.ir.types import CallError, ShapeError, int32, int64, scalar_type
from gt.recording import record
from gt.return_types import another, named
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor


@named("linalg_qr")
class QR(NamedTuple):
    """x = Q R."""

    Q: Tensor
    R: Tensor


@named("linalg_svd")
class SVD(NamedTuple):
    """x = U diag(S) Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


@named("linalg_eigh")
class Eigen(NamedTuple):
    """Eigenvalues and eigenvectors."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@named("linalg_lu")
class LU(NamedTuple):
    """x = P L U."""

    P: Tensor
    L: Tensor
    U: Tensor


@named("linalg_lu_factor")
class LUFactor(NamedTuple):
    """L (below the diagonal) and U in one matrix, and LAPACK's pivots."""

    LU: Tensor
    pivots: Tensor


@named("linalg_lu_factor_ex")
class LUFactorInfo(NamedTuple):
    """``LUFactor`` and a zero for each matrix."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


EIG, OLD_QR, UNPACKED = another("linalg_eig", Eigen), another("qr", QR), another("lu_unpack", LU)


@named("svd")
class OldSVD(NamedTuple):
    """x = U diag(S) V^H."""

    U: Tensor
    S: Tensor
    V: Tensor


@named("linalg_cholesky_ex")
class CholeskyInfo(NamedTuple):
    """A Cholesky factor and a zero for each matrix: failures raise instead."""

    L: Tensor
    info: Tensor


def _float(name: str, A: Tensor) -> Tensor:  # noqa: N803 - torch's name
    if A.dtype.kind not in "fc":
        raise CallError(f"linalg.{name}: Expected a floating point or complex tensor as input. Got {scalar_type(A.dtype)}")
    if A.dtype.itemsize == 2:
        raise CallError(f"linalg.{name}: Low precision dtypes not supported. Got {scalar_type(A.dtype)}")
    return A


def need_matrix(name: str, A: Tensor, square: bool = False) -> Tensor:  # noqa: N803
    _float(name, A)
    if A.ndim < 2:
        raise CallError(f"linalg.{name}: The input tensor A must have at least 2 dimensions.")
    if square and A._type.shape[-1] != A._type.shape[-2]:
        m, n = A._type.shape[-2:]
        raise CallError(f"linalg.{name}: A must be batches of square matrices, but they are {m} by {n} matrices")
    return A


def zero_info(A: Tensor) -> Tensor:  # noqa: N803
    return zeros(A._type.shape[:-2], dtype=int32)


# -- orthogonal and spectral


def qr(A: Tensor, mode: str = "reduced") -> QR:  # noqa: N803
    """Factor into orthonormal and upper triangular; mode: reduced, complete or r."""
    if mode not in ("reduced", "complete", "r"):
        raise CallError(f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'")
    need_matrix("qr", A)
    text = "The derivative of linalg.qr depends on Q, which is not computed when mode='r'. Please use linalg.qr(A, mode='reduced') if you are "
    if mode == "r":
        (A,) = without_gradient(text + "going to differentiate through linalg.qr.", A, error=RuntimeError)
    elif mode == "complete" and A._type.shape[-2] > A._type.shape[-1]:
        text = "The QR decomposition is not differentiable when mode='complete' and nrows > ncols."
        (A,) = without_gradient(text, A, error=RuntimeError)
    q, r = record(OPS["qr"], (A,), (("complete", mode == "complete"),))
    return QR(zeros(0, dtype=A.dtype), r) if mode == "r" else QR(q, r)


def svd(A: Tensor, full_matrices: bool = True, *, driver: Any = None) -> SVD:  # noqa: N803
    """Factor into singular vectors and values."""
    return SVD(*record(OPS["svd"], (need_matrix("svd", A),), (("full", bool(full_matrices)),)))


def svdvals(A: Tensor, *, driver: Any = None) -> Tensor:  # noqa: N803
    """Give the singular values, falling."""
    return record(OPS["svdvals"], (need_matrix("svdvals", A),))


def eigh(A: Tensor, UPLO: str = "L") -> Eigen:  # noqa: N803
    """Give eigenvalues, rising, and eigenvectors of symmetric matrices; reads the lower ("L") or upper triangle."""
    if UPLO.upper() not in ("L", "U"):
        raise CallError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    return Eigen(*record(OPS["eigh"], (need_matrix("eigh", A, True),), (("upper", UPLO.upper() == "U"),)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:  # noqa: N803
    """Give the eigenvalues of symmetric matrices, rising."""
    return eigh(A, UPLO).eigenvalues


def eig(A: Tensor) -> Eigen:  # noqa: N803
    """Give eigenvalues and eigenvectors of any square matrix. Dtypes: complex."""
    return EIG(*record(OPS["eig"], (need_matrix("eig", A, True),)))


def eigvals(A: Tensor) -> Tensor:  # noqa: N803
    """Give the eigenvalues of any square matrix. Dtypes: complex."""
    return record(OPS["eigvals"], (need_matrix("eigvals", A, True),))


# -- triangular


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:  # noqa: N803
    """Give lower triangular L with L Lᴴ = A (upper: its adjoint), of positive definite matrices."""
    out = record(OPS["cholesky"], (need_matrix("cholesky", A, True),))
    return adjoint(out) if upper else out


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyInfo:  # noqa: N803
    """Give the Cholesky factor and zeros; a matrix that has none raises."""
    return CholeskyInfo(cholesky(A, upper=upper), zero_info(A))


def adjoint(A: Tensor) -> Tensor:  # noqa: N803
    """Transpose the last two dims and conjugate. What has no dims is conjugated alone, with a warning."""
    return adjoint_of(A, "adjoint()")


def adjoint_of(A: Tensor, name: str) -> Tensor:  # noqa: N803
    """Give the adjoint; ``name``: what an error calls it."""
    if A.ndim == 1:
        raise CallError(f"tensor.{name} is only supported on matrices or batches of matrices. Got {A.ndim}-D tensor.")
    if not A.ndim:
        warn_user("Tensor.mH is deprecated on 0-D tensors. Consider using x.conj().")
    return conj(transpose(A, -2, -1)) if A.ndim else conj(A)


def lu(A: Tensor, *, pivot: bool = True) -> LU:  # noqa: N803
    """Factor into permutation, lower and upper triangular."""
    _pivoting("lu", pivot)
    return LU(*record(OPS["lu"], (need_matrix("lu", A),), (("check", False),))[:3])


def _pivoting(name: str, pivot: bool) -> None:
    if not pivot:
        raise CallError(f"linalg.{name}: LU without pivoting is not implemented on the CPU")


@saves("result0 result1")
def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactor:  # noqa: N803
    """Give L and U in one matrix, and pivots. A zero pivot, by which ``lu_solve`` would divide, raises."""
    _pivoting("lu_factor", pivot)
    _, low, up, pivots = record(OPS["lu"], (need_matrix("lu_factor", A),), (("check", True),))
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


@saves("result0 result1")
def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorInfo:  # noqa: N803
    """Give L and U in one matrix, pivots and zeros."""
    return LUFactorInfo(*lu_factor(A, pivot=pivot), zero_info(A))


def permutation(pivots: Tensor, n: int, dtype: Any) -> Tensor:
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


def check_pivots(name: str, LU: Tensor, pivots: Tensor) -> None:  # noqa: N803
    """Raise unless ``pivots`` are those of a factorization like this."""
    if pivots.dtype is not int32:
        raise CallError(f"{name}: LU_pivots is expected to be a contiguous tensor of torch.int32 dtype, got {pivots._type!r}")
    want = (*LU._type.shape[:-2], min(LU._type.shape[-2:]))
    if pivots._type.shape != want:
        raise ShapeError(f"{name}: expected pivots of shape {list(want)} for LU of shape {list(LU._type.shape)}, got {list(pivots._type.shape)}")


def lu_unpack(
    LU_data: Tensor,
    LU_pivots: Tensor,
    unpack_data: bool = True,
    unpack_pivots: bool = True,  # noqa: N803
) -> LU:
    """Give P, L and U from ``lu_factor``'s result."""
    if LU_data.ndim < 2:
        raise CallError(f"torch.lu_unpack: Expected tensor with 2 or more dimensions. Got size: {list(LU_data._type.shape)} instead")
    check_pivots("torch.lu_unpack", LU_data, LU_pivots)
    m, n = LU_data._type.shape[-2:]
    k = min(m, n)
    empty = zeros(0, dtype=LU_data.dtype)
    p = permutation(LU_pivots, m, LU_data.dtype) if unpack_pivots else empty
    if not unpack_data:
        return UNPACKED(p, empty, empty)
    low = LU_data[..., :k].tril(-1) + eye(m, k, dtype=LU_data.dtype)
    return UNPACKED(p, low, LU_data[..., :k, :].triu())


# -- reflections


@saves("input tau result")
def householder_product(input: Tensor, tau: Tensor) -> Tensor:
    """Give the first columns of the product of reflections I - tau v vᴴ, whose vectors stand below the diagonal."""
    need_matrix("householder_product", input)
    m, n = input._type.shape[-2:]
    k = tau._type.shape[-1] if tau.ndim else 0
    if m < n or n < k:
        raise ShapeError(
            f"torch.linalg.householder_product: input.shape[-2] must be greater than or equal to input.shape[-1], and that to "
            f"tau.shape[-1], got {list(input._type.shape)} and {list(tau._type.shape)}"
        )
    if input.dtype is not tau.dtype or tau._type.shape[:-1] != input._type.shape[:-2]:
        raise CallError(
            f"torch.linalg.householder_product: Expected tau of dtype {input.dtype!r} and shape {[*input._type.shape[:-2], k]}, got "
            f"{tau._type!r}"
        )
    return _reflected(input, tau, eye(m, n, dtype=input.dtype).expand(*input._type.shape[:-2], m, n))


def _reflected(vectors: Tensor, tau: Tensor, onto: Tensor) -> Tensor:
    """Apply the reflections, the last first."""
    m = vectors._type.shape[-2]
    below = vectors.tril(-1) + eye(m, vectors._type.shape[-1], dtype=vectors.dtype)
    for i in reversed(range(tau._type.shape[-1])):
        v = below[..., i : i + 1]
        onto = onto - tau[..., i : i + 1, None] * matmul(v, matmul(adjoint(v), onto))
    return onto


@saves("input tau other result")
def ormqr(input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """Multiply a matrix with the whole product of reflections, or its adjoint, from the left or the right."""
    for name, t in (("input", input), ("other", other)):
        if t.ndim < 2:
            raise CallError(f"torch.ormqr: {name} must have at least 2 dimensions.")
    size = other._type.shape[-2 if left else -1]
    if input._type.shape[-2] != size or tau._type.shape[-1] > input._type.shape[-1]:
        raise ShapeError(
            f"torch.ormqr: other.shape[{-2 if left else -1}] must be equal to input.shape[-2], got {list(input._type.shape)}, "
            f"{list(tau._type.shape)} and {list(other._type.shape)}"
        )
    q = _reflected(input, tau, eye(size, dtype=input.dtype).expand(*input._type.shape[:-2], size, size))
    q = adjoint(q) if transpose else q
    return matmul(q, other) if left else matmul(other, q)


# -- torch's old forms


def svd_(input: Tensor, some: bool = True, compute_uv: bool = True) -> OldSVD:
    """Give U, S and V (not its adjoint): torch's old form."""
    u, s, vh = svd(input, not some)
    if not compute_uv:
        m, n = input._type.shape[-2:]
        lead = input._type.shape[:-2]
        return OldSVD(zeros((*lead, m, m), dtype=input.dtype), s, zeros((*lead, n, n), dtype=input.dtype))
    return OldSVD(u, s, adjoint(vh))


def qr_(input: Tensor, some: bool = True) -> QR:
    """Factor into orthonormal and upper triangular: torch's old form."""
    return OLD_QR(*qr(input, "reduced" if some else "complete"))


def old_cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """Give the Cholesky factor: torch's old form."""
    return cholesky(input, upper=upper)


def old_lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> LUFactorInfo | tuple[Tensor, ...]:  # noqa: N803
    """Give L and U in one matrix, and pivots: torch's old form."""
    found = lu_factor_ex(A, pivot=pivot)
    return found if get_infos else tuple(found)[:2]
