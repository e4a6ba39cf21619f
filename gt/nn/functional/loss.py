"""Losses of regression and of probabilities. Next: ``class_loss`` (losses over classes), ``margin_loss``."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

from gt.functions import pointwise, reduce
from gt.functions.promote import binary, cast, pair_dtype
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import CallError, DType, KindError, ShapeError, broadcast_shapes, class_name, scalar_type
from gt.nn.functional.activation import logsigmoid
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor

XLOGY, BCE = OPS["xlogy"], OPS["binary_cross_entropy"]


def legacy(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """Give the reduction that torch's two old arguments mean, if either is given."""
    if size_average is None and reduce is None:
        return reduction
    average, reduces = (v is None or bool(v) for v in (size_average, reduce))
    found = "none" if not reduces else "sum" if not average else "mean"
    warnings.warn(f"size_average and reduce args will be deprecated, please use reduction='{found}' instead.", stacklevel=3)
    return found


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """Average, add up or keep the elements of a loss."""
    if reduction == "mean":
        return reduce.mean(loss)
    if reduction == "sum":
        return reduce.sum(loss)
    if reduction == "none":
        return loss
    raise ValueError(f"{reduction} is not a valid value for reduction")


def _pair(name: str, input: Tensor, target: Tensor) -> None:
    if not isinstance(input, Handle) or not isinstance(target, Handle):
        raise TypeError(f"{name}(): expected two tensors, got {class_name(input)} and {class_name(target)}")
    if input._type.shape != target._type.shape:
        warnings.warn(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}). "
            "This will likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
            stacklevel=3,
        )
        broadcast_shapes(input._type.shape, target._type.shape)


def _difference(name: str, input: Tensor, target: Tensor) -> Tensor:
    """Give input - target in the dtype of both together, which a bool target does not change. Dtypes: floating point."""
    dtype = pair_dtype(input, target)
    if dtype.kind != "f":
        raise KindError(f"\"{name}\" not implemented for '{scalar_type(dtype)}'")
    return cast(input, dtype) - cast(target, dtype)


def check_result(found: DType, wanted: DType) -> None:
    """Refuse to give up imaginary parts, as torch, where the result has the dtype of an argument."""
    if found.kind == "c" and wanted.kind != "c":
        raise CallError(f"result type {scalar_type(found)} can't be cast to the desired output type {scalar_type(wanted)}")


def _weighted(loss: Tensor, weight: Tensor | None, reduction: str, by_weight: bool = True) -> Tensor:
    """Reduce with weights; ``by_weight``: their mean divides by the sum of weights, as torch's but for ``huber_loss``."""
    if weight is None:
        return reduced(loss, reduction)
    if weight._type.shape != loss._type.shape:
        raise ValueError("Weights and input must have the same size.")
    scaled = loss * weight
    return reduce.sum(scaled) / reduce.sum(weight) if reduction == "mean" and by_weight else reduced(scaled, reduction)


def _unweighted(given: dict[str, Any]) -> str | None:
    return "input target" if given.get("weight") is None else None


@saves(_unweighted)
def mse_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Give the squared difference."""
    _pair("mse_loss", input, target)
    return _weighted(pointwise.square(_difference("mse_loss", input, target)), weight, legacy(size_average, reduce, reduction))


def l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Give the absolute difference."""
    _pair("l1_loss", input, target)
    return _weighted(pointwise.abs(input - target), weight, legacy(size_average, reduce, reduction))


def _near_and_far(d: Tensor, far: Tensor, limit: float, scale: float, beyond: Tensor) -> Tensor:
    """Give scale * d**2, or ``beyond`` where ``far``; what is not taken has no infinite gradient, which times 0 would be NaN."""
    return pointwise.where(far, beyond, pointwise.square(pointwise.where(far, limit, d)) * scale)


@saves(_unweighted)
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """Give the squared difference / (2 beta) below ``beta``, the absolute one - beta / 2 above."""
    _pair("smooth_l1_loss", input, target)
    if beta < 0:
        raise CallError("smooth_l1_loss does not support negative values for beta.")
    d = pointwise.abs(_difference("smooth_l1_loss", input, target))
    loss = d if beta == 0 else _near_and_far(d, d >= beta, beta, 0.5 / beta, d - 0.5 * beta)
    return reduced(loss, legacy(size_average, reduce, reduction))


@saves(_unweighted)
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None) -> Tensor:
    """Give half the squared difference below ``delta``, delta * (difference - delta / 2) above."""
    _pair("huber_loss", input, target)
    if delta <= 0:
        raise CallError("huber_loss does not support non-positive values for delta.")
    d = pointwise.abs(_difference("huber_loss", input, target))
    if input.dtype.kind != "f":
        raise CallError(f"result type {scalar_type(d.dtype)} can't be cast to the desired output type {scalar_type(input.dtype)}")
    loss = _near_and_far(d, d > delta, delta, 0.5, (d - 0.5 * delta) * delta)
    return _weighted(cast(loss, input.dtype), weight, reduction, by_weight=False)


@saves("input target weight")
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Give the binary cross entropy of probabilities; logarithms are at least -100, and the gradient divides by 1e-12 or more."""
    if target._type.shape != input._type.shape:
        raise ValueError(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}) is deprecated. "
            "Please ensure they have the same size."
        )
    if input.dtype is not target.dtype:
        raise CallError(f"Found dtype {scalar_type(target.dtype)} but expected {scalar_type(input.dtype)}")
    if weight is not None:
        check_result(weight.dtype, input.dtype)
    loss = binary(BCE, input, target)
    return reduced(loss if weight is None else cast(loss * weight, input.dtype), legacy(size_average, reduce, reduction))


@saves("input target weight pos_weight")
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Give the binary cross entropy of logits, without overflow. ``pos_weight`` scales what positive examples count."""
    if target._type.shape != input._type.shape:
        raise ValueError(f"Target size ({target.shape}) must be the same as input size ({input.shape})")
    if target.dtype.kind in "ui" and input.dtype.kind in "fc":
        raise CallError(f"result type {scalar_type(input.dtype)} can't be cast to the desired output type {scalar_type(target.dtype)}")
    for by in (weight, pos_weight):
        if by is not None:
            check_result(by.dtype, target.dtype)
    log = logsigmoid(input)
    loss = (1 - target) * input - (log if pos_weight is None else ((pos_weight - 1) * target + 1) * log)
    return reduced(cast(loss if weight is None else loss * weight, target.dtype), legacy(size_average, reduce, reduction))


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Give target * (log(target) - input), ``input`` being log probabilities."""
    kind = legacy(size_average, reduce, reduction)
    if input.dtype.kind in "bui" or target.dtype.kind in "bui":
        raise CallError("kl_div: Integral inputs not supported.")
    if "c" in (input.dtype.kind, target.dtype.kind):
        raise CallError("kl_div: Complex inputs not supported.")
    if log_target:
        loss = pointwise.exp(target) * (target - input)
    else:
        loss = binary(XLOGY, target, target) - target * input
    if kind == "batchmean":
        out = reduced(loss, "sum")
        return out / input._type.shape[0] if input.ndim else out
    if kind == "mean":
        warnings.warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support size.'batchmean' divides only by the batch "
            "size, and aligns with the KL div math definition.'mean' will be changed to behave the same as 'batchmean' in the next major "
            "release.",
            stacklevel=3,
        )
    return reduced(loss, kind)


def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, size_average: bool | None = None, eps: float = 1e-8,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Give the negative log likelihood of counts; ``full`` adds Stirling's term for targets above 1."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    loss = pointwise.exp(input) - target * input if log_input else input - target * (input + eps).log()
    if full:
        stirling = target * target.log() - target + 0.5 * (2 * math.pi * target).log()
        loss = loss + stirling.masked_fill(target <= 1, 0)
    return reduced(loss, legacy(size_average, reduce, reduction))


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Give the negative log likelihood under normal distributions of mean ``input`` and variance ``var``, at least ``eps``.

    A negative variance in a tensor is not looked for: that would read it.
    """
    if not isinstance(var, Handle):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = input.new_full(input._type.shape, float(var))
    shape = input._type.shape
    if var._type.shape != shape:
        if shape[:-1] == var._type.shape:
            var = var.unsqueeze(-1)
        elif (
            not (shape[:-1] == var._type.shape[:-1] and var._type.shape[-1] == 1)
            and broadcast_shapes(shape, var._type.shape) != shape
        ):
            raise ShapeError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    if var.dtype.kind in "bui":
        raise CallError(f"result type Float can't be cast to the desired output type {scalar_type(var.dtype)}")
    floor = var.detach().clamp(min=eps) - var.detach()
    var = var + floor  # limited without changing the gradient
    loss = 0.5 * (var.log() + pointwise.square(input - target) / var)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "gaussian_nll_loss", "huber_loss", "kl_div", "l1_loss", "mse_loss",
    "poisson_nll_loss", "smooth_l1_loss",
]  # fmt: skip
