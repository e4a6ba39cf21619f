"""Matrix factorizations of the last two dims and what is made of them: QR, SVD, eig, eigh, LU, triangular solves, pinv, exp.

Leading dims are a batch, which may be split; the matrices are whole. Gradients are those of the reduced forms.
Sources: Walter and Lehmann 2018 (QR), Townsend 2016 (SVD), Golub and Pereyra 1973 (pinv). Next: ``linalg``.
"""

from __future__ import annotations

from builtins import slice as slice_  # the name slice is an op here
from collections.abc import Sequence
from typing import Any

import numpy as np

from gt.ir.opdef import Var, op
from gt.ir.ops import flops
from gt.ir.ops.broadcast import cast, constant, expand, reshape, sum, unbroadcast, zeros_like
from gt.ir.ops.compare import eq
from gt.ir.ops.creation import iota
from gt.ir.ops.elementwise import add, cj, complex_, div, imag, mul, neg, real, sub
from gt.ir.ops.families import check_kind, check_same
from gt.ir.ops.linalg import adjoint, inverse, solve
from gt.ir.ops.matmul import matmul
from gt.ir.ops.movement import cat, slice
from gt.ir.ops.position import tril, triu
from gt.ir.types import ShapeError, TensorType, broadcast_shapes, complex_dtype, int32, int64, real_dtype


def _matrix(name: str, x: TensorType, square: bool = False, kinds: str = "f") -> tuple[int, int]:
    check_kind(name, kinds, x)
    if x.ndim < 2:
        raise ShapeError(f"linalg.{name}: The input tensor A must have at least 2 dimensions.")
    if square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(
            f"linalg.{name}: A must be batches of square matrices, but they are {x.shape[-2]} by {x.shape[-1]} matrices"
        )
    return x.shape[-2], x.shape[-1]


def _with(x: TensorType, *tail: int, dtype: Any = None) -> TensorType:
    return TensorType((*x.shape[:-2], *tail), dtype or x.dtype)


def part(x: Var, rows: tuple[int, int], columns: tuple[int, int]) -> Any:
    """A block of each matrix."""
    lead = x.type.shape[:-2]
    if rows == (0, x.type.shape[-2]) and columns == (0, x.type.shape[-1]):
        return x
    return slice(
        x, starts=(*(0,) * len(lead), rows[0], columns[0]), stops=(*lead, rows[1], columns[1]), steps=(1,) * x.type.ndim
    )


def diagonal_mask(x: Var) -> Any:
    """1 on the diagonal and 0 elsewhere, in the shape of the matrices of x."""
    shape = x.type.shape[-2:]
    on = eq(iota(shape=shape, dim=0, dtype=int64), iota(shape=shape, dim=1, dtype=int64))
    return expand(cast(on, dtype=x.type.dtype), shape=x.type.shape)


def real_part(x: Var) -> Any:
    """Drop the imaginary part; the dtype stays."""
    return as_dtype(real(x), x) if x.type.dtype.is_complex else x


def as_dtype(x: Var, like: Var) -> Any:
    """Convert real values to the dtype of the matrices they go with, which may be complex."""
    return x if x.type.dtype is like.type.dtype else cast(x, dtype=like.type.dtype)


def column(x: Var) -> Any:
    return reshape(x, shape=(*x.type.shape, 1))


def row(x: Var) -> Any:
    return reshape(x, shape=(*x.type.shape[:-1], 1, x.type.shape[-1]))


def right_solve(x: Var, a: Var) -> Any:
    """x a^-H."""
    return adjoint(solve(a, adjoint(x)))


# -- QR


def _qr_infer(x: TensorType, complete: bool) -> tuple[TensorType, TensorType]:
    m, n = _matrix("qr", x, kinds="fc")
    k = m if complete else min(m, n)
    return _with(x, m, k), _with(x, k, n)


def _qr_vjp(gs: tuple[Any, Any], ys: tuple[Var, Var], x: Var, complete: bool) -> tuple[Any]:
    q, r = ys
    m, n = x.type.shape[-2:]
    if complete and m > n:
        return (zeros_like(x),)  # it has none: the API says so
    gq = gs[0] if gs[0] is not None else zeros_like(q)
    gr = gs[1] if gs[1] is not None else zeros_like(r)
    if m >= n:
        return (_qr_square(gq, gr, q, r),)
    gr1, gr2 = part(gr, (0, m), (0, m)), part(gr, (0, m), (m, n))
    r1, r2 = part(r, (0, m), (0, m)), part(r, (0, m), (m, n))
    left = _qr_square(add(gq, matmul(q, matmul(r2, adjoint(gr2)))), gr1, q, r1)
    return (cat(left, matmul(q, gr2), dim=x.type.ndim - 1),)


def _qr_square(gq: Var, gr: Var, q: Var, r: Var) -> Any:
    inner = triu(sub(matmul(gr, adjoint(r)), matmul(adjoint(q), gq)), diagonal=0)
    both = sub(add(inner, adjoint(inner)), real_part(mul(inner, diagonal_mask(inner))))
    return right_solve(add(gq, matmul(q, both)), r)


qr = op(
    "qr", "x", doc="x = q r with orthonormal q and upper triangular r; complete: q is square.",
    infer=_qr_infer, numpy=lambda x, complete: tuple(np.linalg.qr(x, "complete" if complete else "reduced")),
    torch=lambda names, attrs, types: f"tuple(torch.linalg.qr({names[0]}, mode={'complete' if attrs['complete'] else 'reduced'!r}))",
    vjp=_qr_vjp, factors="...mn->...mk,...kn | !m !n !k", work=flops.qr,
)  # fmt: skip

# -- SVD


def _svd_infer(x: TensorType, full: bool) -> tuple[TensorType, TensorType, TensorType]:
    m, n = _matrix("svd", x, kinds="fc")
    k = min(m, n)
    return _with(x, m, m if full else k), TensorType((*x.shape[:-2], k), real_dtype(x.dtype)), _with(x, n if full else k, n)


def _gaps(s: Var) -> Any:
    """s_j**2 - s_i**2, 1 on the diagonal."""
    square = mul(s, s)
    apart = sub(row(square), column(square))
    return add(apart, diagonal_mask(apart))


def _svd_vjp(gs: tuple[Any, Any, Any], ys: tuple[Var, Var, Var], x: Var, full: bool) -> tuple[Any]:
    m, n = x.type.shape[-2:]
    k = min(m, n)
    s = as_dtype(ys[1], x)
    u, vh = part(ys[0], (0, m), (0, k)), part(ys[2], (0, k), (0, n))
    gu = None if gs[0] is None else part(gs[0], (0, m), (0, k))
    gv = None if gs[2] is None else part(gs[2], (0, k), (0, n))
    inner = mul(diagonal_mask(matmul(adjoint(u), u)), row(as_dtype(gs[1], x) if gs[1] is not None else zeros_like(s)))
    if gu is not None:
        turn = matmul(adjoint(u), gu)
        turn = sub(turn, adjoint(turn))
        inner = add(inner, mul(div(turn, _gaps(s)), row(s)))
        if gv is not None and x.type.dtype.is_complex:  # u and v turn together by a phase
            inner = add(inner, mul(div(turn, row(mul(s, constant(2, s)))), diagonal_mask(turn)))
    if gv is not None:
        turn = matmul(vh, adjoint(gv))
        inner = add(inner, mul(column(s), div(sub(turn, adjoint(turn)), _gaps(s))))
    out = matmul(u, matmul(inner, vh))
    if gu is not None and m > k:
        rest = div(sub(gu, matmul(u, matmul(adjoint(u), gu))), row(s))
        out = add(out, matmul(rest, vh))
    if gv is not None and n > k:
        rest = div(sub(gv, matmul(matmul(gv, adjoint(vh)), vh)), column(s))
        out = add(out, matmul(u, rest))
    return (out,)


def _turned(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x.conj(), -1, -2)


def _svd_settled(operands: Sequence[np.ndarray], results: Sequence[np.ndarray], attrs: dict[str, Any]) -> tuple[np.ndarray, ...]:
    u, s, vh = results
    k = s.shape[-1]
    return u[..., :k] * s[..., None, :] @ vh[..., :k, :], s, _turned(u) @ u, vh @ _turned(vh)


svd = op(
    "svd", "x", doc="x = u diag(s) vh with s falling; full: u and vh are square.",
    infer=_svd_infer, numpy=lambda x, full: tuple(np.linalg.svd(x, full_matrices=full)),
    torch="tuple(torch.linalg.svd({x}, full_matrices={full}))", vjp=_svd_vjp,
    factors="...mn->...mk,...s,...ln | !m !n !k !s !l", work=flops.svd, refuses=(0,), settled=_svd_settled,
)  # fmt: skip
svdvals = op(
    "svdvals", "x", doc="Singular values, falling.",
    infer=lambda x: _svd_infer(x, False)[1], numpy=lambda x: np.linalg.svd(x, compute_uv=False),
    torch="torch.linalg.svdvals({x})", factors="...mn->...s | !m !n !s", work=flops.svdvals,
    vjp=lambda g, y, x: (_svdvals_vjp(g, x),), saves="y", refuses=(0,),
)  # fmt: skip


def _svdvals_vjp(g: Var, x: Var) -> Any:
    u, _, vh = svd(x, full=False)
    return matmul(mul(u, row(as_dtype(g, x))), vh)


# -- symmetric eigenvalues


def _eigh_infer(x: TensorType, upper: bool) -> tuple[TensorType, TensorType]:
    n, _ = _matrix("eigh", x, square=True, kinds="fc")
    return TensorType((*x.shape[:-2], n), real_dtype(x.dtype)), x


def _eigh_vjp(gs: tuple[Any, Any], ys: tuple[Var, Var], x: Var, upper: bool) -> tuple[Any]:
    values, v = as_dtype(ys[0], x), ys[1]
    inner = mul(diagonal_mask(v), row(as_dtype(gs[0], x) if gs[0] is not None else zeros_like(values)))
    if gs[1] is not None:
        apart = sub(row(values), column(values))
        turned = div(matmul(adjoint(v), gs[1]), add(apart, diagonal_mask(apart)))
        inner = add(inner, sub(turned, mul(turned, diagonal_mask(turned))))
    half = mul(add(inner, adjoint(inner)), constant(0.5, inner))  # symmetric, as the operand is
    return (matmul(v, matmul(half, adjoint(v))),)


def _eigh_settled(values: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
    return values, v * values[..., None, :] @ _turned(v), _turned(v) @ v


eigh = op(
    "eigh", "x", doc="Eigenvalues, rising, and orthonormal eigenvectors of symmetric matrices; reads one triangle.",
    infer=_eigh_infer, numpy=lambda x, upper: tuple(np.linalg.eigh(x, "U" if upper else "L")),
    torch=lambda names, attrs, types: f"tuple(torch.linalg.eigh({names[0]}, UPLO={'U' if attrs['upper'] else 'L'!r}))",
    vjp=_eigh_vjp, factors="...ij->...i,...ij | !i !j", work=flops.eigh, refuses=(0,),
    settled=lambda operands, results, attrs: _eigh_settled(*results),
)  # fmt: skip

# -- eigenvalues of any square matrix


def _eig_infer(x: TensorType) -> tuple[TensorType, TensorType]:
    n, _ = _matrix("eig", x, square=True, kinds="fc")
    dtype = complex_dtype(x.dtype)
    return TensorType((*x.shape[:-2], n), dtype), TensorType(x.shape, dtype)


def _eig_numpy(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eig(x)
    dtype = np.result_type(x.dtype, np.complex64)
    return values.astype(dtype), vectors.astype(dtype)


def _eig_vjp(gs: tuple[Any, Any], ys: tuple[Var, Var], x: Var) -> tuple[Any]:
    """Source: Boeddeker et al. 2017, equations 4.60 and 4.77, as torch; vectors have norm 1, so their scale has no gradient."""
    values, v = ys
    vh, on = adjoint(v), diagonal_mask(v)
    inner = mul(on, row(gs[0] if gs[0] is not None else zeros_like(values)))
    if gs[1] is not None:
        turned = matmul(vh, gs[1])
        scale = real_part(sum(mul(on, turned), dims=(x.type.ndim - 2,), keepdim=True, dtype=v.type.dtype))
        turned = sub(turned, matmul(vh, mul(v, expand(scale, shape=v.type.shape))))
        apart = add(cj(sub(row(values), column(values))), on)
        inner = add(inner, mul(div(turned, apart), sub(constant(1, on), on)))
    found = solve(vh, matmul(inner, vh))
    return (found if x.type.dtype.is_complex else real(found),)


def _powers(values: np.ndarray) -> np.ndarray:
    """What sums of powers of eigenvalues are, in whatever order these come."""
    return np.stack([(values**k).sum(-1) for k in (1, 2, 3)], -1)


def _eig_settled(operands: Sequence[np.ndarray], results: Sequence[np.ndarray], attrs: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """Vectors turn freely: what is right of them is x v = v diag(values), here as x with nothing added, and their norms."""
    (x,), (values, v) = operands, results
    return x + (x @ v - v * values[..., None, :]) @ _turned(v), np.linalg.norm(v, axis=-2), _powers(values)


eig = op(
    "eig", "x", doc="Complex eigenvalues, in no order, and eigenvectors of norm 1 of square matrices.",
    infer=_eig_infer, numpy=_eig_numpy, torch="tuple(torch.linalg.eig({x}))", vjp=_eig_vjp, factors="...ij->...i,...ij | !i !j",
    work=flops.eig, refuses=(0,), settled=_eig_settled,
)  # fmt: skip
eigvals = op(
    "eigvals", "x", doc="Complex eigenvalues, in no order.", infer=lambda x: _eig_infer(x)[0],
    numpy=lambda x: np.asarray(np.linalg.eigvals(x), np.result_type(x.dtype, np.complex64)), torch="torch.linalg.eigvals({x})",
    vjp=lambda g, y, x: _eig_vjp((g, None), eig(x), x), factors="...ij->...i | !i !j", work=flops.eigvals,
    saves="y", refuses=(0,), settled=lambda operands, results, attrs: (_powers(results[0]),),
)  # fmt: skip

# -- determinants


def _slogdet_infer(x: TensorType) -> tuple[TensorType, TensorType]:
    _matrix("slogdet", x, square=True, kinds="fc")
    return TensorType(x.shape[:-2], x.dtype), TensorType(x.shape[:-2], real_dtype(x.dtype))


def _slogdet_vjp(gs: tuple[Any, Any], ys: tuple[Var, Var], x: Var) -> tuple[Any]:
    scale = None if gs[1] is None else as_dtype(gs[1], x)
    if gs[0] is not None and x.type.dtype.is_complex:
        turned = imag(mul(gs[0], cj(ys[0])))
        phase = complex_(mul(turned, constant(0, turned)), turned)
        scale = phase if scale is None else add(scale, phase)
    return (None if scale is None else mul(column(column(scale)), adjoint(inverse(x))),)


slogdet = op(
    "slogdet", "x", doc="Sign and log of the absolute value of the determinant.",
    infer=_slogdet_infer, numpy=lambda x: tuple(np.linalg.slogdet(x)), torch="tuple(torch.linalg.slogdet({x}))",
    vjp=_slogdet_vjp, factors="...ij->...,... | !i !j", work=flops.lu, saves="x y0",
)  # fmt: skip

# -- LU with row pivoting


def _lu_infer(x: TensorType, check: bool) -> tuple[TensorType, ...]:
    m, n = _matrix("lu", x)
    k = min(m, n)
    return _with(x, m, m), _with(x, m, k), _with(x, k, n), TensorType((*x.shape[:-2], k), int32)


def _lu_numpy(x: np.ndarray, check: bool) -> tuple[np.ndarray, ...]:
    m, n = x.shape[-2:]
    k = min(m, n)
    flat = x.reshape(-1, m, n)
    p, low, up = (
        np.zeros((len(flat), m, m), x.dtype),
        np.zeros((len(flat), m, k), x.dtype),
        np.zeros((len(flat), k, n), x.dtype),
    )
    pivots = np.zeros((len(flat), k), np.int32)
    for b, a in enumerate(flat):
        a, order = a.astype(np.float64), np.arange(m)
        for j in range(k):
            best = j + int(np.argmax(np.abs(a[j:, j])))
            pivots[b, j] = best + 1
            a[[j, best]], order[[j, best]] = a[[best, j]], order[[best, j]]
            if check and not a[j, j]:
                raise np.linalg.LinAlgError(f"torch.linalg.lu_factor: U[{j + 1},{j + 1}] is zero: lu_solve would divide by it")
            if a[j, j]:
                a[j + 1 :, j] /= a[j, j]
                a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j, j + 1 :])
        p[b, order, np.arange(m)] = 1
        low[b], up[b] = np.tril(a[:, :k], -1) + np.eye(m, k), np.triu(a[:k])
    lead = x.shape[:-2]
    return p.reshape(*lead, m, m), low.reshape(*lead, m, k), up.reshape(*lead, k, n), pivots.reshape(*lead, k)


def _lu_vjp(gs: tuple[Any, ...], ys: tuple[Var, ...], x: Var, check: bool) -> tuple[Any]:
    p, low, up, _ = ys
    m, n = x.type.shape[-2:]
    k = min(m, n)
    gl = gs[1] if gs[1] is not None else zeros_like(low)
    gu = gs[2] if gs[2] is not None else zeros_like(up)
    l1, u1 = part(low, (0, k), (0, k)), part(up, (0, k), (0, k))
    gl1, gu1 = part(gl, (0, k), (0, k)), part(gu, (0, k), (0, k))
    below, above = matmul(adjoint(l1), gl1), matmul(gu1, adjoint(u1))
    if n > m:
        u2, gu2 = part(up, (0, k), (k, n)), part(gu, (0, k), (k, n))
        below = sub(below, matmul(gu2, adjoint(u2)))
    if m > n:
        l2, gl2 = part(low, (k, m), (0, k)), part(gl, (k, m), (0, k))
        above = sub(above, matmul(adjoint(l2), gl2))
    inner = add(tril(below, diagonal=-1), triu(above, diagonal=0))
    out = solve(adjoint(l1), right_solve(inner, u1))
    if n > m:
        out = cat(out, solve(adjoint(l1), gu2), dim=x.type.ndim - 1)
    if m > n:
        out = cat(out, right_solve(gl2, u1), dim=x.type.ndim - 2)
    return (matmul(p, out),)


lu = op(
    "lu", "x", doc="x = p l u with row pivoting, and the pivots as LAPACK counts them (from 1). check: refuses a u with a zero pivot.",
    infer=_lu_infer, numpy=_lu_numpy,
    torch="(lambda f: (*torch.lu_unpack(*f[:2]), f[1]))((torch.linalg.lu_factor if {check} else torch.linalg.lu_factor_ex)({x}))",
    vjp=_lu_vjp, factors="...mn->...mo,...mk,...kn,...k | !m !n !o !k", work=flops.lu, refuses=(0,),
)  # fmt: skip

# -- triangular solve


def _triangular_infer(a: TensorType, b: TensorType, upper: bool, left: bool, unit: bool) -> TensorType:
    check_same("solve_triangular", (a, b))
    _matrix("solve_triangular", a, square=True)
    if b.ndim < 2 or b.shape[-2 if left else -1] != a.shape[-1]:
        raise ShapeError(
            f"linalg.solve_triangular: Incompatible shapes of A and B for the equation {'AX = B' if left else 'XA = B'} "
            f"({a.shape[-2]}x{a.shape[-1]} and {b.shape[-2]}x{b.shape[-1]})"
        )
    return TensorType((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), b.dtype)


def _triangular_numpy(a: np.ndarray, b: np.ndarray, upper: bool, left: bool, unit: bool) -> np.ndarray:
    a = np.triu(a) if upper else np.tril(a)
    if unit:
        a = np.where(np.eye(a.shape[-1], dtype=bool), 1, a)
    if left:
        return _substituted(a, b, upper)
    return np.swapaxes(_substituted(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2), not upper), -1, -2)


def _substituted(a: np.ndarray, b: np.ndarray, upper: bool) -> np.ndarray:
    """Solve row by row. A zero on the diagonal divides, as in BLAS: it refuses none, so padding may be anything."""
    rows = range(a.shape[-1])
    x = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), np.result_type(a, b))
    with np.errstate(all="ignore"):
        for i in reversed(rows) if upper else rows:
            done = slice_(i + 1, None) if upper else slice_(0, i)
            known = np.matmul(a[..., i : i + 1, done], x[..., done, :])
            x[..., i : i + 1, :] = (b[..., i : i + 1, :] - known) / a[..., i : i + 1, i : i + 1]
    return x


def _triangular_vjp(g: Var, y: Var, a: Var, b: Var, upper: bool, left: bool, unit: bool) -> tuple[Any, Any]:
    gb = solve_triangular(adjoint(a), g, upper=not upper, left=left, unit=unit)
    ga = neg(matmul(gb, adjoint(y)) if left else matmul(adjoint(y), gb))
    shift = 1 if unit else 0
    ga = triu(ga, diagonal=shift) if upper else tril(ga, diagonal=-shift)
    return unbroadcast(ga, a.type), unbroadcast(gb, b.type)


solve_triangular = op(
    "solve_triangular", "a b", doc="x in a x = b (left) or x a = b, a triangular; unit: its diagonal counts as 1.",
    infer=_triangular_infer, numpy=_triangular_numpy,
    torch="torch.linalg.solve_triangular({a}, {b}, upper={upper}, left={left}, unitriangular={unit})",
    vjp=_triangular_vjp, factors="...ij,...kl->...kl | !i !j !k !l", linear=((1,),), saves="a y",
    work=flops.solve_triangular,
)  # fmt: skip

# -- pseudo-inverse and exponential


def _pinv_vjp(g: Var, y: Var, x: Var, rtol: float, atol: float, hermitian: bool) -> tuple[Any]:
    gh, yh = adjoint(g), adjoint(y)
    if x.type.shape[-2] <= x.type.shape[-1]:
        k = matmul(gh, y)
        kyh = matmul(k, yh)
        out = add(neg(adjoint(matmul(y, k))), sub(kyh, matmul(matmul(x, y), kyh)))
        return (add(out, matmul(matmul(yh, y), sub(gh, matmul(k, x)))),)
    k = matmul(y, gh)
    yhk = matmul(yh, k)
    out = add(neg(adjoint(matmul(k, y))), matmul(matmul(sub(gh, matmul(x, k)), y), yh))
    return (add(out, sub(yhk, matmul(matmul(yhk, y), x))),)


def _pinv_numpy(x: np.ndarray, rtol: float, atol: float, hermitian: bool) -> np.ndarray:
    if x.size == 0:
        return np.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    keep = s > np.maximum(atol, rtol * s.max(-1, keepdims=True))
    inv = np.where(keep, 1 / np.where(keep, s, 1), 0)
    return np.conj(np.swapaxes(vh, -1, -2)) @ (inv[..., None] * np.conj(np.swapaxes(u, -1, -2)))


pinv = op(
    "pinv", "x", doc="Pseudo-inverse: singular values not above max(atol, rtol * largest) count as 0.",
    infer=lambda x, rtol, atol, hermitian: _with(x, *reversed(_matrix("pinv", x, hermitian, "fc"))),
    numpy=_pinv_numpy, torch="torch.linalg.pinv({x}, rtol={rtol}, atol={atol}, hermitian={hermitian})",
    vjp=_pinv_vjp, factors="...mn->...nm | !m !n", work=flops.pinv, refuses=(0,),
)  # fmt: skip


def _matrix_exp_numpy(x: np.ndarray) -> np.ndarray:
    """Scaling and squaring of a Taylor polynomial, in float64 or complex128, of each matrix by its own norm."""
    a: np.ndarray = x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)
    with np.errstate(all="ignore"):
        norm = np.abs(a).sum(-1).max(-1, initial=0.0)
        _, power = np.frexp(np.where(np.isfinite(norm), norm, 0.0))
        squarings = np.where(norm > 0, np.maximum(power + 4, 0), 0)[..., None, None]
        a = a / np.exp2(squarings)
        out = term = np.broadcast_to(np.eye(x.shape[-1]), x.shape)
        for k in range(1, 20):
            term = term @ a / k
            out = out + term
        for k in range(int(squarings.max(initial=0))):
            out = np.where(k < squarings, out @ out, out)
    return out


def _matrix_exp_vjp(g: Var, y: Var, x: Var) -> tuple[Any]:
    """The upper right block of exp([[x^H, g], [0, x^H]])."""
    xh, n, last = adjoint(x), x.type.shape[-1], x.type.ndim - 1
    top, bottom = cat(xh, g, dim=last), cat(zeros_like(xh), xh, dim=last)
    return (part(matrix_exp(cat(top, bottom, dim=last - 1)), (0, n), (n, 2 * n)),)


matrix_exp = op(
    "matrix_exp", "x", doc="Exponential of square matrices.",
    infer=lambda x: _with(x, *_matrix("matrix_exp", x, square=True, kinds="fc")),
    numpy=_matrix_exp_numpy, torch="torch.linalg.matrix_exp({x})", vjp=_matrix_exp_vjp, factors="...ij->...ij | !i !j",
    work=flops.matrix_exp,
)  # fmt: skip
