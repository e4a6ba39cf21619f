"""Linear maps and table lookups. Next: ``gt.ir.ops.matmul``, ``gt.ir.ops.nn`` (meaning)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gt.amp import low
from gt.functions import linalg
from gt.functions.promote import cast
from gt.ir.ops import OPS
from gt.ir.types import ShapeError, int64
from gt.trace import record, state

if TYPE_CHECKING:
    from gt.tensor import Tensor

LINEAR, EMBEDDING = OPS["linear"], OPS["embedding"]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Give ``input @ weight.T + bias``: [..., k] x [n, k] (+ [n]) -> [..., n]."""
    if state.autocast is not None:
        input, weight, bias = low(input, weight, bias)
    x, w = input._type, weight._type
    if len(w.shape) == 1:
        out = linalg.matmul(input, weight)
        return out if bias is None else out + bias
    if not x.shape or x.shape[-1] != w.shape[-1]:
        rows = x.numel // x.shape[-1] if x.shape and x.shape[-1] else 1
        raise ShapeError(
            f"mat1 and mat2 shapes cannot be multiplied ({rows}x{x.shape[-1] if x.shape else 1} and {w.shape[-1]}x{w.shape[0]})"
        )
    if x.dtype is not w.dtype:
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {x.dtype.name} and {w.dtype.name}")
    return record(LINEAR, (input, weight) if bias is None else (input, weight, bias))


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Give x1 A x2 + b: [..., i], [..., j], [n, i, j] -> [..., n]."""
    s1, s2, w = input1._type.shape, input2._type.shape, weight._type.shape
    if s1[:-1] != s2[:-1]:
        raise ShapeError(f"bilinear(): input batch dimensions do not match: got {list(s1)} and {list(s2)}")
    for i, (s, name) in enumerate(((s1, "input1"), (s2, "input2")), start=1):
        if s[-1] != w[i]:
            raise ShapeError(f"bilinear(): {name} size does not match weight size: got {s[-1]} but expected {w[i]}")
    a, b = input1.reshape(-1, 1, 1, s1[-1]), input2.reshape(-1, 1, s2[-1], 1)
    out = linalg.matmul(linalg.matmul(a, weight), b).reshape(*s1[:-1], w[0])
    return out if bias is None else out + bias


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """Give rows of ``weight`` by index: [...] of [v, d] -> [..., d]. The row ``padding_idx`` gets no gradient."""
    if input.dtype.kind not in "iu":
        raise RuntimeError(
            f"Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got {input.dtype.name} instead"
        )
    if max_norm is not None:
        raise NotImplementedError("embedding: max_norm is not supported: renormalise the weight under no_grad() before the call")
    if scale_grad_by_freq or sparse:
        raise NotImplementedError("embedding: scale_grad_by_freq and sparse are not supported: gradients are dense sums")
    rows = weight._type.shape[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise AssertionError("Padding_idx must be within num_embeddings")
    pad = -1 if padding_idx is None else padding_idx % rows
    return record(EMBEDDING, (weight, cast(input, int64)), (("padding_idx", pad),))


__all__ = ["bilinear", "embedding", "linear"]
