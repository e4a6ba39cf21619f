"""Norms, similarities and distances of vectors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gt.functions import reduce
from gt.functions.create import from_numpy
from gt.functions.norms import vector_norm
from gt.functions.numeric import broadcast_tensors
from gt.functions.promote import cast, pair_dtype
from gt.ir.types import CallError, KindError, scalar_type
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor


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
    whole = [cast(x, dtype) if x.dtype.kind in "bui" else x for x in (x1, x2)]
    a, b = broadcast_tensors(*whole)  # ``dim`` counts in the shape they broadcast to
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
    if input.dtype.kind != "f":
        raise CallError("pdist only supports floating-point dtypes")
    first, second = np.triu_indices(input._type.shape[0], 1)
    if input.dtype.itemsize == 2 and len(first) and input._type.shape[1]:
        raise KindError(f"\"pdist\" not implemented for '{scalar_type(input.dtype)}'")
    return vector_norm(input.index_select(0, from_numpy(first)) - input.index_select(0, from_numpy(second)), p, 1)


__all__ = ["cosine_similarity", "normalize", "pairwise_distance", "pdist"]
