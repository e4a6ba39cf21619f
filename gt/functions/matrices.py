"""The rest of ``torch.linalg``: determinants, powers and chains of matrices, products of vectors.

Next: ``factorization``, ``solving``, ``norms``, ``gt.linalg`` (the namespace).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.functions.create import eye, full
from gt.functions.factorization import need_matrix
from gt.functions.linalg import matmul
from gt.functions.numeric import angle, conj
from gt.functions.numeric import complex as complex_
from gt.functions.pointwise import where
from gt.functions.promote import broadcast, c_name, cast
from gt.functions.reduce import sum
from gt.functions.shape import reshape, stack, unsqueeze
from gt.functions.solving import inv
from gt.functions.strided import diagonal as diagonal_
from gt.handle import Handle
from gt.ir.blame import warn_user
from gt.ir.ops import OPS
from gt.ir.types import CallError, KindError, int64, normalize_dim, scalar_type
from gt.recording import record
from gt.return_types import another, named
from gt.trace import state

if TYPE_CHECKING:
    from gt.tensor import Tensor


@named("linalg_slogdet")
class SlogDet(NamedTuple):
    """Sign and log of the absolute value."""

    sign: Tensor
    logabsdet: Tensor


# -- vectors


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Give the dot products of vectors along ``dim``."""
    if x.dtype.kind not in "fc":
        raise CallError(
            f"linalg.vecdot: Expected a floating point or complex tensor as input. Got {scalar_type(x.dtype)}"
        )
    if x.dtype is not y.dtype:
        raise CallError(
            f"linalg.vecdot: Expected x and y to have the same dtype, but found x of type {scalar_type(x.dtype)} and y of type "
            f"{scalar_type(y.dtype)} instead"
        )
    a, b = broadcast(x, y)
    return sum(conj(a) * b, dim)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Give the cross products of vectors of three along ``dim``."""
    if input.ndim != other.ndim:
        raise CallError("linalg.cross: inputs must have the same number of dimensions.")
    if input.dtype.kind == "b":
        raise KindError("\"cross\" not implemented for 'Bool'")
    if input.dtype is not other.dtype:
        raise CallError(f"expected scalar type {scalar_type(input.dtype)} but found {scalar_type(other.dtype)}")
    d = normalize_dim(dim, input.ndim)
    if input._type.shape[d] != 3 or other._type.shape[d] != 3:
        raise CallError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got {input._type.shape[d]} and {other._type.shape[d]}"
        )
    a, b = broadcast(input, other)
    (ax, ay, az), (bx, by, bz) = (t.unbind(d) for t in (a, b))
    return stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], d)


def old_cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """Give the cross products along ``dim``, the first of size 3 if none is given: torch.cross's form."""
    if dim is None:
        warn_user("Using gt.cross without specifying the dim arg is deprecated: it takes the first dim of size 3.")
        dim = next((d for d, n in enumerate(input._type.shape) if n == 3), None)
        if dim is None:
            raise CallError("no dimension of size 3 in input")
    return cross(input, other, dim=dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:  # noqa: N803
    """Give a diagonal of the last two dims. A view."""
    return diagonal_(A, offset, dim1, dim2)


# -- matrices


def det(A: Tensor) -> Tensor:  # noqa: N803
    """Give the determinant."""
    return record(OPS["det"], (need_matrix("det", A, True),))


def slogdet(A: Tensor) -> SlogDet:  # noqa: N803
    """Give the sign and the log of the absolute value of the determinant."""
    return SlogDet(*record(OPS["slogdet"], (need_matrix("slogdet", A, True),)))


OldSlogDet = another("slogdet", SlogDet)


def old_slogdet(input: Tensor) -> SlogDet:
    """Give the sign and the log of the absolute value of the determinant: torch's old form."""
    return OldSlogDet(*slogdet(input))


def logdet(input: Tensor) -> Tensor:
    """Give the log of the determinant; NaN if it is negative."""
    sign, size = slogdet(input)
    if sign.dtype.kind == "c":
        return complex_(size, angle(sign))
    return where(sign == -1, math.nan, size)


def matrix_exp(A: Tensor) -> Tensor:  # noqa: N803
    """Give the matrix exponential."""
    return record(OPS["matrix_exp"], (need_matrix("matrix_exp", A, True),))


def matrix_power(A: Tensor, n: int) -> Tensor:  # noqa: N803
    """Multiply a matrix with itself n times; negative: its inverse."""
    if A.ndim < 2 or A._type.shape[-1] != A._type.shape[-2]:
        need_matrix("matrix_power", A, True)
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
        raise CallError("multi_dot(): expected at least 2 tensors but got " + str(len(given)))
    for i, t in enumerate(given):
        if t.dtype is not given[0].dtype and state.autocast is None:
            raise CallError(
                f"multi_dot(): all tensors must have be the same dtype but tensor 0 is {c_name(given[0].dtype)} and tensor {i} "
                f"{c_name(t.dtype)}"
            )
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
                ((cost[i, k][0] + cost[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)),
                key=lambda found: (found[0], -found[1] if n == 3 else found[1]),  # of equals torch takes the first, of two the last
            )

    def product(i: int, j: int) -> Tensor:
        return given[i] if i == j else matmul(product(i, cost[i, j][1]), product(cost[i, j][1] + 1, j))

    return product(0, n - 1)


def chain_matmul(*matrices: Any) -> Tensor:
    """Multiply a chain of matrices: ``linalg.multi_dot`` by its old name."""
    given = list(matrices[0]) if len(matrices) == 1 and not isinstance(matrices[0], Handle) else list(matrices)
    return given[0].clone() if len(given) == 1 else multi_dot(given)


def old_vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:  # noqa: N803
    """Give the Vandermonde matrix of a vector, its highest power first unless ``increasing``. Source: torch.vander."""
    if x.ndim != 1:
        raise CallError("x must be a one-dimensional tensor.")
    n = x._type.shape[0] if N is None else N
    if n < 0:
        raise CallError("N must be non-negative.")
    x = x if x.dtype.kind in "fc" else cast(x, int64)
    if n < 2:
        return x.new_ones((x._type.shape[0], n))
    rising = _powers(x, n)
    return rising if increasing else rising.flip(1)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:  # noqa: N803
    """Give the Vandermonde matrix: powers 0 to N - 1 of each element."""
    if x.dtype.kind == "b" or (x.dtype.kind == "f" and x.dtype.itemsize == 2):
        raise CallError(f"linalg.vander supports floating point, complex, and integer tensors, but got {scalar_type(x.dtype)}")
    x = reshape(x, 1) if not x.ndim else x
    n = x._type.shape[-1] if N is None else N
    if n <= 1:
        raise CallError("N must be greater than 1.")
    return _powers(x if x.dtype.kind in "fc" else cast(x, int64), n)


def _powers(x: Tensor, n: int) -> Tensor:
    powers = x.unsqueeze(-1).expand(*x._type.shape, n - 1)
    return record(OPS["cat"], (x.new_ones((*x._type.shape, 1)), powers.cumprod(-1)), (("dim", x.ndim),))
