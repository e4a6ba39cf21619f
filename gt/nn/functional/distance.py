"""Norms, similarities and distances of vectors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gt.functions import pointwise, reduce
from gt.functions.create import from_numpy
from gt.functions.promote import broadcast, cast, pair_dtype
from gt.ir.types import CallError, scalar_type
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor


def vector_norm(x: Tensor, p: float, dim: int, keepdim: bool = False) -> Tensor:
    """Give the p-norm along ``dim``; its gradient at 0 is 0, as torch's."""
    x = pointwise.abs(x) if x.dtype.kind == "c" else x
    if p == math.inf:
        return reduce.amax(pointwise.abs(x), dim, keepdim)
    if p == -math.inf:
        return reduce.amin(pointwise.abs(x), dim, keepdim)
    if p == 0:
        return reduce.sum(x != 0, dim, keepdim).to(x.dtype)
    if p == 1:
        return reduce.sum(pointwise.abs(x), dim, keepdim)
    total = reduce.sum(pointwise.square(x) if p == 2 else pointwise.abs(x).pow(p), dim, keepdim)
    flat = total == 0
    safe = total.masked_fill(flat, 1)
    root = pointwise.sqrt(safe) if p == 2 else safe.pow(1 / p)
    return root.masked_fill(flat, 0)


@saves("input")
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Divide by the p-norm along ``dim``, at least ``eps``."""
    if input.dtype.kind not in "fc":
        raise CallError(f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {scalar_type(input.dtype)}")
    return input / vector_norm(input, p, dim, keepdim=True).clamp(eps, math.inf)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Give the cosine of the angle between vectors along ``dim``; inputs broadcast. Dtypes: floating point together."""
    dtype = pair_dtype(x1, x2)
    if dtype.kind != "f":
        raise CallError(f"expected common dtype to be floating point, yet common dtype is {scalar_type(dtype)}")
    a, b = broadcast(cast(x1, dtype), cast(x2, dtype))  # ``dim`` counts in the shape they broadcast to
    return reduce.sum(normalize(a, 2, dim, eps) * normalize(b, 2, dim, eps), dim)


@saves("result")
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """Give the p-norm of x1 - x2 + eps along the last dim."""
    return vector_norm(x1 - x2 + eps, p, -1, keepdim)


@saves("input result")
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Give the p-norm distances between every two rows of a matrix, as a vector."""
    if input.ndim != 2:
        raise CallError(f"pdist only supports 2D tensors, got: {input.ndim}D")
    if p < 0:
        raise CallError("pdist only supports non-negative p values")
    first, second = np.triu_indices(input._type.shape[0], 1)
    return vector_norm(input.index_select(0, from_numpy(first)) - input.index_select(0, from_numpy(second)), p, 1)


__all__ = ["cosine_similarity", "normalize", "pairwise_distance", "pdist"]
