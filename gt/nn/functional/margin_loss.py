"""Losses that compare examples or push scores over a margin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from gt.functions import pointwise, reduce
from gt.functions.promote import cast
from gt.grad_mode import is_grad_enabled
from gt.ir.types import CallError, scalar_type
from gt.nn.functional.distance import pairwise_distance
from gt.nn.functional.loss import check_result, legacy, reduced
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor

total = reduce.sum  # the argument `reduce` hides the module


def _positive(x: Tensor) -> Tensor:
    """Give max(x, 0), with torch's gradient of clamp_min at 0: it passes."""
    return x.clamp(0, math.inf)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Give max(0, -target * (input1 - input2) + margin)."""
    if not input1.ndim == input2.ndim == target.ndim:
        raise CallError(
            f"margin_ranking_loss : All input tensors should have same dimension but got sizes: input1: {input1.shape}, "
            f"input2: {input2.shape}, target: {target.shape} "
        )
    return reduced(_positive(-target * (input1 - input2) + margin), legacy(size_average, reduce, reduction))


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Give the input where target is 1, and max(0, margin - input) where it is -1."""
    apart = cast(pointwise.where(target != 1, _positive(margin - input), 0), input.dtype)
    return reduced(apart + pointwise.where(target != -1, input, 0), legacy(size_average, reduce, reduction))


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Give 1 - cos where target is 1, and max(0, cos - margin) where it is -1."""
    if target.ndim not in (0, 1):
        raise CallError("0D or 1D target tensor expected, multi-target not supported")
    if input1.ndim != target.ndim + 1 or input2.ndim != target.ndim + 1:
        raise CallError(
            f"{target.ndim}D target tensor expects {target.ndim + 1}D input tensors, but found inputs with sizes {list(input1.shape)} and "
            f"{list(input2.shape)}."
        )
    eps, d = 1e-12, target.ndim
    lengths = (total(input1 * input1, d) + eps) * (total(input2 * input2, d) + eps)
    cos = total(input1 * input2, d) / lengths.sqrt()
    loss = pointwise.where(target == 1, 1 - cos, 0) + pointwise.where(target == -1, _positive(cos - margin), 0)
    return reduced(loss, legacy(size_average, reduce, reduction))


@saves("input target")
def soft_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Tensor:
    """Give log(1 + exp(-target * input)). Dtypes: ``input`` of real or complex numbers."""
    if input.dtype.kind not in "fc":
        raise CallError(f"result type Float can't be cast to the desired output type {scalar_type(input.dtype)}")
    check_result(target.dtype, input.dtype)
    if target.requires_grad and is_grad_enabled():
        raise CallError(
            "The function 'soft_margin_loss' is not differentiable with respect to argument 'target'. This input cannot have "
            "requires_grad True."
        )
    return reduced(pointwise.log1p(pointwise.exp(-cast(target, input.dtype) * input)), legacy(size_average, reduce, reduction))


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6, swap: bool = False,
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Give max(0, d(anchor, positive) - d(anchor, negative) + margin) with p-norm distances."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    distance = lambda a, b: pairwise_distance(a, b, p, eps)  # noqa: E731
    return _triplet(anchor, positive, negative, distance, margin, swap, legacy(size_average, reduce, reduction))


def _triplet(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance: Callable[[Tensor, Tensor], Tensor],
    margin: float,
    swap: bool,
    reduction: str,
) -> Tensor:
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise CallError(
            f"The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: anchor "
            f"{anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs"
        )
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = pointwise.minimum(far, distance(positive, negative))
    return reduced(_positive(near - far + margin), reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *, distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0, swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Give max(0, d(anchor, positive) - d(anchor, negative) + margin) with a distance of the caller's."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    return _triplet(anchor, positive, negative, distance_function or pairwise_distance, margin, swap, reduction)


__all__ = [
    "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "soft_margin_loss", "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]  # fmt: skip
