"""Matrix products with torch's rank rules.

Next: ``gt.ir.ops.matmul`` (meaning).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gt.functions.pointwise import add, mul
from gt.functions.shape import reshape, squeeze, unsqueeze
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import ShapeError
from gt.trace import record

if TYPE_CHECKING:
    from gt.tensor import Tensor

MATMUL = OPS["matmul"]


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Multiply matrices: [..., m, k] x [..., k, n] -> [..., m, n]; a 1-d operand is a row (left) or column (right)."""
    if not isinstance(input, Handle) or not isinstance(other, Handle):
        raise TypeError(f"matmul(): expected two tensors, got {type(input).__name__} and {type(other).__name__}")
    a, b = input._type, other._type
    if a.dtype is not b.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {a.dtype.name} != {b.dtype.name}")
    na, nb = len(a.shape), len(b.shape)
    if na >= 2 and nb >= 2:
        return record(MATMUL, (input, other))
    if not na or not nb:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {na}D and {nb}D")
    if na == 1 and nb == 1:
        if a.shape != b.shape:
            raise ShapeError(f"inconsistent tensor size, expected tensor [{a.shape[0]}] and src [{b.shape[0]}] to have the same number of elements, but got {a.shape[0]} and {b.shape[0]} elements respectively")
        return reshape(record(MATMUL, (unsqueeze(input, 0), unsqueeze(other, 1))), ())
    if nb == 1:
        if a.shape[-1] != b.shape[0]:
            raise ShapeError(f"size mismatch, got input ({a.shape[-2]}), mat ({a.shape[-2]}x{a.shape[-1]}), vec ({b.shape[0]})")
        return squeeze(record(MATMUL, (input, unsqueeze(other, 1))), -1)
    return squeeze(record(MATMUL, (unsqueeze(input, 0), other)), -2)


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Multiply two matrices."""
    if input.ndim != 2 or mat2.ndim != 2:
        raise RuntimeError("self must be a matrix" if input.ndim != 2 else "mat2 must be a matrix")
    return matmul(input, mat2)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Multiply two batches of matrices."""
    if input.ndim != 3 or mat2.ndim != 3:
        raise RuntimeError("batch1 must be a 3D tensor" if input.ndim != 3 else "batch2 must be a 3D tensor")
    if input._type.shape[0] != mat2._type.shape[0]:
        raise ShapeError(f"Expected size for first two dimensions of batch2 tensor to be: [{input._type.shape[0]}, {input._type.shape[2]}] but got: {list(mat2._type.shape[:2])}.")
    return matmul(input, mat2)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Multiply two vectors elementwise and add up."""
    if input.ndim != 1 or tensor.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {input.ndim}D and {tensor.ndim}D tensors")
    return matmul(input, tensor)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Give the products of every pair of elements."""
    return mul(unsqueeze(input, 1), unsqueeze(vec2, 0))


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Give ``beta * input + alpha * (mat1 @ mat2)``."""
    product = mm(mat1, mat2)
    return add(input if beta == 1 else mul(input, beta), product if alpha == 1 else mul(product, alpha))
