"""Norms of vectors and matrices, distances, and what scales by them.

Next: ``factorization`` (singular values), ``gt.ir.ops.reduction`` (meaning).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.functions.create import ones_like
from gt.functions.factorization import svdvals
from gt.functions.linalg import matmul
from gt.functions.pointwise import abs as abs_
from gt.functions.pointwise import sqrt, where
from gt.functions.promote import cast, need_tensor, pair_dtype
from gt.functions.reduce import amax, amin, sum
from gt.functions.shape import cat, movedim, reshape, unsqueeze
from gt.ir.ops import OPS
from gt.ir.types import CallError, KindError, class_name, dtype_of, float32, is_int, normalize_dim, promote_types, scalar_type
from gt.recording import record
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor


def _checked(name: str, x: Tensor, dtype: Any) -> Tensor:
    """Give a norm's operand in the dtype asked for, which may not be narrower."""
    if dtype is None:
        return x
    wanted = dtype_of(dtype)
    if wanted.kind not in "fc":
        raise CallError(f"{name}: dtype should be floating point or complex, but got {scalar_type(wanted)}")
    if wanted.kind != x.dtype.kind:
        kind = "complex" if x.dtype.kind == "c" else "real"
        raise CallError(f"{name}: dtype should be {kind} for {kind} inputs, but got {scalar_type(wanted)}")
    if promote_types(x.dtype, wanted) is not wanted:
        raise CallError(
            f"{name}: the dtype of the input ({scalar_type(x.dtype)}) should be convertible without narrowing to the specified dtype "
            f"({scalar_type(wanted)})"
        )
    return cast(x, wanted)


def _check_floating(name: str, x: Tensor) -> None:
    if x.dtype.kind not in "fc":
        raise CallError(f"{name}: Expected a floating point or complex tensor as input. Got {scalar_type(x.dtype)}")


MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


@saves("x result")
def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Give the p-norm over dims (all if None). ``dtype``: what it is computed in, not narrower than the operand's."""
    if ord is None or isinstance(ord, str):
        raise TypeError(f"linalg_vector_norm(): argument 'ord' (position 2) must be Number, not {class_name(ord)}")
    _check_floating("linalg.vector_norm", x)
    if isinstance(ord, complex):
        raise CallError("linalg.vector_norm: Expected a non-complex scalar as the order of norm.")
    if (ord < 0 or ord == math.inf) and 0 in x._type.shape:
        _check_not_empty(ord, x, (dim,) if is_int(dim) else tuple(dim or ()))
    return power_norm(_checked("linalg.vector_norm", x, dtype), ord, _dims(dim, x.ndim), keepdim)


def _check_not_empty(ord: float, x: Tensor, dims: tuple[int, ...]) -> None:
    """Refuse a norm of nothing, which has no value: over all dims if none is given."""
    text = f"linalg.vector_norm cannot compute the {ord} norm on"
    if not dims:
        raise CallError(f"{text} an empty tensor because the operation does not have an identity")
    for d in dims:
        if x._type.shape[normalize_dim(d, x.ndim)] == 0:
            raise CallError(f"{text} the dimension {d} because this dimension is empty and the operation does not have an identity")


def _dims(dim: Any, ndim: int) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(ndim))
    given = (dim,) if is_int(dim) else tuple(dim)
    if not given:
        return tuple(range(ndim))
    out = tuple(normalize_dim(d, ndim) for d in given)
    if len(set(out)) != len(out):
        raise CallError(f"dim {out[0]} appears multiple times in the list of dims")
    return tuple(sorted(out)) if ndim else ()


def matrix_norm(A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Tensor:  # noqa: N803
    """Give a matrix norm: "fro", "nuc", or inf, -inf, 1, -1, 2, -2. ``dtype`` as of ``vector_norm``."""
    if ord is None:
        raise TypeError("linalg_matrix_norm(): argument 'ord' must be Number or str, not NoneType")
    if not isinstance(dim, tuple | list):
        raise TypeError(f"linalg_matrix_norm(): argument 'dim' must be tuple of ints, not {type(dim).__name__}")
    return _matrix_norm(A, ord, tuple(dim), keepdim, dtype)


def _matrix_norm(A: Tensor, ord: Any, dims: tuple[int, ...], keepdim: bool, dtype: Any) -> Tensor:  # noqa: N803
    if ord not in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise CallError(f"linalg.matrix_norm: Order {ord} not supported.")
    if A.ndim < 2:
        raise CallError("linalg.matrix_norm: The input tensor A must have at least 2 dimensions.")
    _check_floating("linalg.matrix_norm", A)
    if ord in (2, -2, "nuc") and A.dtype.itemsize == 2:
        raise CallError(f"linalg.matrix_norm: Low precision dtypes not supported. Got {scalar_type(A.dtype)}")
    if len(dims) != 2:
        raise CallError(f"linalg.matrix_norm: dim must be a 2-tuple. Got {' '.join(map(str, dims))}")
    a, b = (normalize_dim(d, A.ndim) for d in dims)
    if a == b:
        raise CallError(f"linalg.matrix_norm: dims must be different. Got ({a}, {b})")
    A = _checked("linalg.matrix_norm", A, dtype)  # noqa: N806
    if ord == "fro":
        return vector_norm(A, 2, (a, b), keepdim)
    if ord in (2, -2, "nuc"):
        s = svdvals(movedim(A, (a, b), (-2, -1)))
        out = sum(s, -1) if ord == "nuc" else amax(s, -1) if ord == 2 else amin(s, -1)
    else:
        over, then = (a, b) if abs(ord) == 1 else (b, a)
        size = sum(abs_(A), over, True)
        out = (amax if ord > 0 else amin)(size, then, True)
        return out if keepdim else reshape(out, tuple(n for d, n in enumerate(A._type.shape) if d not in (a, b)))
    if keepdim:
        out = reshape(out, tuple(1 if d in (a, b) else n for d, n in enumerate(A._type.shape)))
    return out


def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:  # noqa: N803
    """Give a vector norm, or with two dims (or a matrix and an ``ord``) a matrix norm. ``dtype`` as of ``vector_norm``."""
    dims = None if dim is None else ((dim,) if is_int(dim) else tuple(dim))
    if dims is not None and len(dims) not in (1, 2):
        raise CallError(f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(dims)}")
    if dims is None and ord is not None and A.ndim not in (1, 2):
        raise CallError(f"linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {A.ndim}D.")
    if isinstance(ord, str) or (ord is not None and (len(dims) if dims is not None else A.ndim) == 2):
        return _matrix_norm(A, ord, (0, 1) if dims is None else dims, keepdim, dtype)
    return vector_norm(A, 2 if ord is None else ord, dims, keepdim, dtype=dtype)


def old_norm(input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Give a norm: torch.norm's form. ``dtype`` as of ``linalg.vector_norm``."""
    dims = None if dim is None else ((dim,) if is_int(dim) else tuple(dim))
    if not isinstance(p, str) or (p == "fro" and (dims is None or len(dims) <= 2)):
        return vector_norm(input, 2 if p in ("fro", None) else p, dims, keepdim, dtype=dtype)
    return _matrix_norm(input, p, tuple(range(input.ndim)) if dims is None else dims, keepdim, dtype)


@saves("x1 x2 result")
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """Give the p-norm distances between every row of one and every row of another. Dtypes: floating point, the same."""
    if x1.ndim < 2 or x2.ndim < 2:
        raise CallError(f"cdist only supports at least 2D tensors, X1 got: {x1.ndim}D")
    for name, x in (("X1", x1), ("X2", x2)):
        if x.dtype.kind != "f":
            raise CallError(f"cdist only supports floating-point dtypes, {name} got: {scalar_type(x.dtype)}")
    if x1.dtype is not x2.dtype:
        raise CallError(f"expected scalar type {scalar_type(x1.dtype)} but found {scalar_type(x2.dtype)}")
    if x1._type.shape[-1] != x2._type.shape[-1]:
        raise CallError(f"X1 and X2 must have the same number of columns. X1: {x1._type.shape[-1]} X2: {x2._type.shape[-1]}")
    if compute_mode not in MODES:
        raise ValueError(f"{compute_mode} is not a valid value for compute_mode")
    if p < 0:
        raise CallError("cdist only supports non-negative p values")
    rows = max(x1._type.shape[-2], x2._type.shape[-2])
    if p == 2 and (compute_mode == MODES[1] or (compute_mode == MODES[0] and rows > 25)) and x1._type.shape[-1]:
        return _euclidean(x1, x2)
    if x1.dtype.itemsize == 2 and 0 not in (*x1._type.shape, *x2._type.shape):
        raise KindError(f"\"cdist\" not implemented for '{scalar_type(x1.dtype)}'")
    apart = unsqueeze(x1, -2) - unsqueeze(x2, -3)
    return power_norm(apart, p, (apart.ndim - 1,), False) if apart._type.shape[-1] else sum(apart, -1)


def _euclidean(x1: Tensor, x2: Tensor) -> Tensor:
    """Distances from one matrix product: x1² - 2 x1 x2 + x2². Where it is 0, so is the gradient."""
    first, second = (sum(x**2, -1, True) for x in (x1, x2))
    left = cat([x1 * -2, first, ones_like(first)], -1)
    right = cat([x2, ones_like(second), second], -1)
    squares = matmul(left, right.transpose(-2, -1)).clamp(min=0)
    zero = squares == 0
    return where(zero, 0.0, sqrt(where(zero, 1.0, squares)))


@saves("input other result")
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """Give the p-norm of the difference."""
    need_tensor("dist", input=input, other=other)
    if (kind := pair_dtype(input, other)).kind not in "fc":
        raise CallError(f"norm(): input dtype should be either floating point or complex. Got {scalar_type(kind)} instead.")
    return power_norm(reshape(input - other, -1), p, (0,), False)


def power_norm(x: Tensor, p: float, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """Give the p-norm of a real or complex tensor over dims."""
    if p == 2 and x.dtype.kind == "f":
        return record(OPS["norm"], (x,), (("dims", dims), ("keepdim", keepdim)))
    size = abs_(x)
    empty = any(x._type.shape[d] == 0 for d in dims)
    if p == math.inf:
        return zeros_over(size, dims, keepdim) if empty else amax(size, dims, keepdim) if dims else size
    if p == -math.inf:
        return amin(size, dims, keepdim) if dims else size
    if p == 0:
        counted = size._onto(cast(x != 0, size.dtype))  # with a gradient, which is 0
        return sum(counted, dims, keepdim) if dims else counted
    if p == 1:
        return sum(size, dims, keepdim) if dims else size
    if p == 2:
        return record(OPS["norm"], (size,), (("dims", dims), ("keepdim", keepdim)))
    wide = cast(size, float32) if size.dtype.itemsize == 2 else size  # rounded once
    total = sum(safe_power(wide, p), dims, keepdim) if dims else safe_power(wide, p)
    return cast(safe_power(total, 1 / p), size.dtype)


def safe_power(x: Tensor, p: float) -> Tensor:
    """Raise to a power; where x is 0 and the slope infinite, the gradient is 0."""
    if p >= 1:
        return x**p
    zero = x == 0
    return where(zero, 0.0 if p > 0 else math.inf, where(zero, 1.0, x) ** p)


def zeros_over(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    return sum(x, dims, keepdim)


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Scale slices along ``dim`` down to a p-norm of at most ``maxnorm``."""
    if p <= 0:
        raise CallError("renorm: non-positive-norm not supported")
    if maxnorm < 0:
        raise CallError("renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    if input.ndim < 2:
        raise CallError(f"renorm: input needs at least 2 dimensions, got {input.ndim} dimensions")
    d = normalize_dim(dim, input.ndim)
    _check_floating("linalg.vector_norm", input)
    wide = cast(input, float32) if input.dtype.itemsize == 2 else input
    size = power_norm(wide, p, tuple(i for i in range(input.ndim) if i != d), True)
    over = size > maxnorm
    scale = where(over, maxnorm / (where(over, size, 1.0) + 1e-7), 1.0)
    if wide is input:
        return input * scale
    rounded = record(OPS["graft"], (scale, cast(cast(scale, input.dtype), float32)))
    return cast(wide * rounded, input.dtype)  # the product of halves, with a gradient in float32
