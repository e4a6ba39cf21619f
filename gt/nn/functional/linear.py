"""Linear maps and table lookups. Next: ``gt.ir.ops.matmul``, ``gt.ir.ops.nn`` (meaning)."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

from gt.autocasting import low
from gt.functions import create, linalg, norms, pointwise
from gt.functions.counting import searchsorted
from gt.functions.promote import c_name, cast, pair_dtype
from gt.grad_mode import no_grad
from gt.ir.ops import OPS
from gt.ir.types import CallError, ShapeError, TensorType, bool_, int32, int64, scalar_type
from gt.recording import record
from gt.trace import state
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor

LINEAR, EMBEDDING = OPS["linear"], OPS["embedding"]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Give ``input @ weight.T + bias``: [..., k] x [n, k] (+ [n]) -> [..., n]."""
    if state.autocast is not None:
        input, weight, bias = low(input, weight, bias)
    x, w = input._type, weight._type
    if len(w.shape) == 2 and x.dtype is w.dtype and x.shape and x.shape[-1] == w.shape[1]:
        if bias is None:
            return record(LINEAR, (input, weight))
        own = bias._type
        if own.dtype is w.dtype:
            if len(own.shape) == 1 and own.shape[0] == w.shape[0]:
                return record(LINEAR, (input, weight, bias))
            out = record(LINEAR, (input, weight))
            linalg.check_expands(own.shape, out._type.shape)
            return out + bias
    _check_linear(x, w, None if bias is None else bias._type)
    return linalg.matmul(input, weight)  # a weight of one dim


def _check_linear(x: TensorType, w: TensorType, bias: TensorType | None) -> None:
    if not x.shape or not w.shape:
        raise ShapeError(f"both arguments to linear need to be at least 1D, but they are {len(x.shape)}D and {len(w.shape)}D")
    if len(w.shape) > 2:
        raise CallError(f"t() expects a tensor with <= 2 dimensions, but self is {len(w.shape)}D")
    for name, other in (("self", bias), ("mat1", x)):
        if bias is not None and other is not None and other.dtype is not w.dtype:
            raise CallError(f"{name} and mat2 must have the same dtype, but got {scalar_type(other.dtype)} and {scalar_type(w.dtype)}")
    if len(w.shape) == 1:
        if bias is not None:
            raise CallError("mat2 must be a matrix, got 1-D tensor")
        return
    if x.dtype is not w.dtype:
        raise CallError(f"expected m1 and m2 to have the same dtype, but got: {c_name(x.dtype)} != {c_name(w.dtype)}")
    if x.shape[-1] != w.shape[1]:
        rows = x.numel // x.shape[-1] if x.shape[-1] else 1
        raise ShapeError(f"mat1 and mat2 shapes cannot be multiplied ({rows}x{x.shape[-1]} and {w.shape[1]}x{w.shape[0]})")


@saves("input1:input2,weight input2:input1,weight weight:input1,input2")
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Give x1 A x2 + b: [..., i], [..., j], [n, i, j] -> [..., n]."""
    s1, s2, w = input1._type.shape, input2._type.shape, weight._type.shape
    if len(s1) != len(s2) or not s1 or len(w) != 3:
        raise ShapeError(f"bilinear(): input dimensions do not match: got {len(s1)} and {len(s2)}, and a weight of {len(w)} dims")
    given = {"input1": input1, "input2": input2, "weight": weight, **({} if bias is None else {"bias": bias})}
    if any(t.dtype is not input1.dtype for t in given.values()):
        names = ", ".join(f"{name}: {c_name(t.dtype)}" for name, t in given.items())
        raise CallError(f"All tensors must have the same dtype, got {names}")
    if s1[:-1] != s2[:-1]:
        d = next(d for d in range(len(s1)) if s1[d] != s2[d])
        raise ShapeError(f"bilinear(): input batch dimensions do not match at dim {d}: got {s1[d]} and {s2[d]}")
    for i, (s, name) in enumerate(((s1, "input1"), (s2, "input2")), start=1):
        if s[-1] != w[i]:
            raise ShapeError(f"bilinear(): {name} size does not match weight size: got {s[-1]} but expected {w[i]}")
    if bias is not None and bias._type.shape[:1] != w[:1]:
        size = bias._type.shape[0] if bias.ndim else 1
        raise ShapeError(f"bilinear(): bias size does not match weight size: got {size} but expected {w[0]}")
    a, b = input1.reshape(-1, 1, 1, s1[-1]), input2.reshape(-1, 1, s2[-1], 1)
    out = linalg.matmul(linalg.matmul(a, weight), b).reshape(*s1[:-1], w[0])
    return out if bias is None else out + bias


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """Give rows of ``weight`` by index: [...] of [v, d] -> [..., d]. The row ``padding_idx`` gets no gradient."""
    if input.dtype is not int64 and input.dtype is not int32:
        raise CallError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
            f"gt.{scalar_type(input.dtype)}Tensor instead (while checking arguments for embedding)"
        )
    if sparse:
        raise NotImplementedError("embedding: sparse=True is not supported: gradients are dense")
    if weight.ndim != 2:
        raise ShapeError(f"'weight' must be 2-D, got {list(weight._type.shape)}")
    rows = weight._type.shape[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise AssertionError("Padding_idx must be within num_embeddings")
    pad = -1 if padding_idx is None else operator.index(padding_idx) % rows
    index = cast(input, int64)
    if max_norm is not None:
        _renorm(weight, index, max_norm, norm_type)
    out = record(EMBEDDING, (weight, index), (("padding_idx", pad),))
    return _by_frequency(out, index, rows) if scale_grad_by_freq else out


def _renorm(weight: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows of ``weight`` that are looked up down to a norm of ``max_norm``, in place."""
    with no_grad():
        seen = create.zeros(weight._type.shape[0], dtype=bool_).index_fill(0, index.flatten(), True)
        size = norms.vector_norm(weight, norm_type, 1)
        scale = (max_norm / (size + 1e-7)).masked_fill(pointwise.logical_or(size <= max_norm, pointwise.logical_not(seen)), 1)
        weight.mul_(scale.unsqueeze(1))


def _by_frequency(out: Tensor, index: Tensor, rows: int) -> Tensor:
    """Give the same values, with gradients divided by how often each row was looked up."""
    flat = index.flatten()
    counts = create.zeros(rows, dtype=out.dtype).index_add(0, flat, create.ones(flat._type.shape, dtype=out.dtype))
    same = out.detach()
    return same + (out - same) / counts[index].unsqueeze(-1)


@saves("weight:per_sample_weights input offsets per_sample_weights")
def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Give the sums, means or maxima of bags of rows: one bag for each row of ``input``, or from each offset to the next."""
    _check_bags(input, weight, offsets, per_sample_weights, mode)
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if offsets is not None:
        input = cast(input, pair_dtype(input, offsets))
    rows, flat = weight._type.shape[0], input.flatten()
    n, pad = flat._type.shape[0], None if padding_idx is None else padding_idx % rows
    if offsets is None:
        bags, bag = input._type.shape[0], create.arange(n) // max(input._type.shape[1], 1)
    else:
        bags = offsets._type.shape[0] - bool(include_last_offset)
        bag = searchsorted(cast(offsets[:bags], int64), create.arange(n), right=True) - 1
    found = embedding(flat, weight, pad, max_norm, norm_type, scale_grad_by_freq, sparse)
    kept = create.ones(n, dtype=bool_) if pad is None else flat != pad
    if per_sample_weights is not None:
        found = found * per_sample_weights.flatten().unsqueeze(1)
    empty = create.zeros((bags, weight._type.shape[1]), dtype=weight.dtype)
    counts = create.zeros(bags, dtype=weight.dtype).index_add(0, bag, cast(kept, weight.dtype))
    if mode == "max":
        low = found.masked_fill(pointwise.logical_not(kept).unsqueeze(1), -math.inf)
        top = empty.scatter_reduce(0, bag.unsqueeze(1).expand(found._type.shape), low, "amax", include_self=False)
        return top.masked_fill((counts == 0).unsqueeze(1), 0)
    total = empty.index_add(0, bag, found.masked_fill(pointwise.logical_not(kept).unsqueeze(1), 0))
    return total / counts.clamp(min=1).unsqueeze(1) if mode == "mean" else total


def _check_bags(input: Tensor, weight: Tensor, offsets: Tensor | None, weights: Tensor | None, mode: str) -> None:
    if weights is not None and weights._type.shape != input._type.shape:
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({list(weights._type.shape)}) is not None, then it must have the same shape as the "
            f"input ({list(input._type.shape)})"
        )
    if weight.ndim != 2:
        raise ValueError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.ndim}")
    if input.ndim not in (1, 2):
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim}")
    if input.ndim == 2 and offsets is not None:
        raise ValueError("if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length sequences.")
    if input.ndim == 1 and (offsets is None or offsets.ndim != 1):
        raise ValueError("offsets has to be a 1D Tensor but got " + ("None" if offsets is None else f"{offsets._type!r}"))
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if weights is not None and mode != "sum":
        raise NotImplementedError(f"embedding_bag: per_sample_weights is only supported for mode='sum' (got mode='{mode}').")


__all__ = ["bilinear", "embedding", "embedding_bag", "linear"]
