"""Losses over classes: cross entropy, negative log likelihood, margins. Next: ``gt.ir.ops.nn`` (meaning)."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from gt.autocasting import autocasting
from gt.functions import pointwise, reduce
from gt.functions.promote import cast
from gt.ir.ops import OPS
from gt.ir.types import CallError, ShapeError, int64, scalar_type, uint8
from gt.nn.functional.activation import logsigmoid
from gt.nn.functional.linear import linear
from gt.nn.functional.loss import legacy, reduced
from gt.recording import record
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor

CROSS_ENTROPY, NLL_LOSS = OPS["cross_entropy"], OPS["nll_loss"]
sum, log_softmax = reduce.sum, reduce.log_softmax  # the argument `reduce` hides the module


def _check(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{reduction} is not a valid value for reduction")


def _checked_classes(input: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    """Give class indices as int64, checked against scores: [c], [n, c] or [n, c, d...]."""
    s, t = input._type.shape, target._type.shape
    if not s:
        raise ValueError("Expected an input of at least one dim: the classes")
    if len(s) > 1 and (not t or s[0] != t[0]):
        raise ShapeError(f"Expected input batch_size ({s[0]}) to match target batch_size ({t[0] if t else 1}).")
    wanted = (s[0], *s[2:]) if len(s) > 1 else ()
    if len(s) == 1 and len(t) == 1:
        if t != (1,):
            raise ShapeError(f"For 1D input, 1D target must have size 1, but got target size: {t[0]}")
        target, t = target.reshape(()), ()
    if t != wanted:
        if len(s) > 2:
            raise CallError(f"Expected target size {list(wanted)}, got {list(t)}")
        raise CallError("0D or 1D target tensor expected, multi-target not supported")
    if target.dtype not in (int64, uint8):
        raise CallError(
            f"expected target dtype to be Long or Byte, but got {scalar_type(target.dtype)}: use target.long()"
        )
    classes = s[1] if len(s) > 1 else s[0]
    if weight is not None and weight.dtype is not input.dtype:
        raise CallError(f"expected scalar type {scalar_type(input.dtype)} but found {scalar_type(weight.dtype)}")
    if weight is not None and weight._type.shape != (classes,):
        raise CallError(
            f"weight tensor should be defined either for all {classes} classes or no classes but got weight tensor of shape: "
            f"{list(weight._type.shape)}"
        )
    return cast(target, int64)


def _class_weights(target: Tensor, weight: Tensor, ignore_index: int) -> Tensor:
    """Give each target's class weight, 0 where it is ignored."""
    valid = target != ignore_index
    picked = weight[target.masked_fill(target == ignore_index, 0)]
    return picked * cast(valid, weight.dtype)


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int = -100,
    reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Give the negative log likelihood of ``target`` (class indices, or probabilities) under softmax(input)."""
    reduction = legacy(size_average, reduce, reduction)
    _check(reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise CallError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if target.dtype.kind == "f" and input._type.shape == target._type.shape:
        _check_probabilities(input, target, weight, ignore_index)
        if weight is None and target.dtype is input.dtype:
            return _fused(input, target, reduction, ignore_index, label_smoothing)
        return _weighted_probabilities(input, target, weight, reduction, label_smoothing)
    if input._type.shape == target._type.shape and input.ndim:
        raise CallError(f"Expected floating point type for target with class probabilities, got {scalar_type(target.dtype)}")
    classes = _checked_classes(input, target, weight)
    if label_smoothing and input.ndim == target.ndim == 1:
        raise CallError("output with shape [] doesn't match the broadcast shape [1]: give the one target without a dim")
    target = classes
    if weight is None:
        return _fused(input, target, reduction, ignore_index, label_smoothing)
    return _weighted_classes(input, target, weight, reduction, ignore_index, label_smoothing)


def _fused(input: Tensor, target: Tensor, reduction: str, ignore_index: int, label_smoothing: float) -> Tensor:
    attrs = (("reduction", reduction), ("ignore_index", operator.index(ignore_index)), ("label_smoothing", float(label_smoothing)))
    return record(CROSS_ENTROPY, (input, target), attrs)


def _check_probabilities(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> None:
    if ignore_index >= 0:
        raise CallError("ignore_index is not supported for floating point target")
    classes = input._type.shape[1 if input.ndim > 1 else 0]
    if weight is not None and weight._type.shape != (classes,):
        raise CallError(
            f"cross_entropy: weight tensor should be defined either for all {classes} classes or no classes but got weight tensor of "
            f"shape: {list(weight._type.shape)}"
        )


def _by_class(weight: Tensor, ndim: int) -> Tensor:
    return weight.reshape(-1, *(1,) * (ndim - 2)) if ndim > 1 else weight


def _weighted_probabilities(input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float) -> Tensor:
    c = 1 if input.ndim > 1 else 0
    classes = input._type.shape[c]
    if smoothing:
        target = target * (1 - smoothing) + smoothing / classes
    each = log_softmax(input, c) * target
    loss = -sum(each if weight is None else each * _by_class(weight, input.ndim), c)
    return sum(loss) / max(input.numel() // classes, 1) if reduction == "mean" else reduced(loss, reduction)


@saves("target weight")
def _weighted_classes(input: Tensor, target: Tensor, weight: Tensor, reduction: str, ignore_index: int, smoothing: float) -> Tensor:
    c = 1 if input.ndim > 1 else 0
    logp = log_softmax(input, c)
    each = _class_weights(target, weight, ignore_index)
    loss = record(NLL_LOSS, (logp, target), (("reduction", "none"), ("ignore_index", operator.index(ignore_index)))) * each
    if smoothing:
        spread = -sum(logp * _by_class(weight, input.ndim), c)
        spread = spread.masked_fill(target == ignore_index, 0)
        loss = loss * (1 - smoothing) + spread * (smoothing / input._type.shape[c])
    return sum(loss) / sum(each) if reduction == "mean" else reduced(loss, reduction)


@saves(lambda given: "input! target weight" if given.get("weight") is not None else None)
def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int = -100,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Give minus the log probability of the target classes."""
    reduction = legacy(size_average, reduce, reduction)
    _check(reduction)
    target = _checked_classes(input, target, weight)
    if weight is not None:
        each = _class_weights(target, weight, ignore_index)
        loss = record(NLL_LOSS, (input, target), (("reduction", "none"), ("ignore_index", operator.index(ignore_index)))) * each
        return sum(loss) / sum(each) if reduction == "mean" else reduced(loss, reduction)
    inner = "none" if reduction == "none" else "sum"
    loss = record(NLL_LOSS, (input, target), (("reduction", inner), ("ignore_index", operator.index(ignore_index))))
    return loss / sum(target != ignore_index) if reduction == "mean" else loss


@saves("input target weight")
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Give the sum over wrong classes of max(0, margin - x[target] + x[class]) ** p, divided by the number of classes."""
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and weight.ndim != 1:
        raise ValueError("weight must be one-dimensional")
    if weight is not None and weight.dtype is not input.dtype:
        raise CallError(f"expected scalar type {scalar_type(input.dtype)} but found {scalar_type(weight.dtype)}")
    batched = input.ndim > 1
    size = input._type.shape[0] if batched else 1
    if target.ndim > 1 or target.numel() != size:
        raise CallError(
            f"multi_margin_loss: The target tensor should be 1-D with size equal to the batch. Expected target size [{size}], but got "
            f"{list(target._type.shape)}"
        )
    if target.dtype is not int64:
        raise CallError(f"expected scalar type Long but found {scalar_type(target.dtype)}: use target.long()")
    x, t = (input, target) if batched else (input.reshape(1, -1), target.reshape(1))
    classes = x._type.shape[1]
    own = x.gather(1, cast(t, int64).unsqueeze(1))
    each = pointwise.relu(x - own + margin)  # no gradient at 0
    each = pointwise.square(each) if p == 2 else each
    each = each if weight is None else each * weight[cast(t, int64)].unsqueeze(1)
    other = record(OPS["one_hot"], (cast(t, int64),), (("classes", classes), ("dtype", x.dtype)))
    loss = sum(each * (1 - other), 1) / classes
    return reduced(loss if batched else loss.squeeze(0), legacy(size_average, reduce, reduction))


@saves("input target")
def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Tensor:  # fmt: skip
    """Give max(0, 1 - (x[target] - x[class])) over targets, which a -1 ends, and the other classes, divided by the number of classes."""
    how = legacy(size_average, reduce, reduction)
    _check(how)
    shape = input._type.shape
    if len(shape) > 2 or 0 in shape[-1:]:
        raise CallError(f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {list(shape)}")
    if target._type.shape != shape:
        raise CallError(f"inconsistent target size: {list(target._type.shape)} for input of size: {list(shape)}")
    if target.dtype is not int64:
        raise CallError(f"expected scalar type Long but found {scalar_type(target.dtype)}: use target.long()")
    if not shape:
        input, target = input.reshape(1), target.reshape(1)
    classes = input._type.shape[-1]
    named = cast(target >= 0, int64).cumprod(-1)  # 1 up to the first -1
    place = cast(target, int64) * named
    hits = record(OPS["one_hot"], (place,), (("classes", classes), ("dtype", input.dtype))) * cast(named, input.dtype).unsqueeze(-1)
    others = 1 - hits.amax(-2).detach()
    apart = pointwise.relu(1 - input.gather(-1, place).unsqueeze(-1) + input.unsqueeze(-2))
    counted = apart * cast(named, input.dtype).unsqueeze(-1) * others.unsqueeze(-2)
    return reduced(sum(counted, (-2, -1)) / classes, how)


def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None, weight: Tensor | None = None,
    reduction: str = "mean", ignore_index: int | None = None, label_smoothing: float = 0.0, options: object = None,
) -> Tensor:  # fmt: skip
    """Give the cross entropy of ``input @ linear_weight.T + linear_bias``. ``options`` say how torch cuts the work: not needed here."""
    if input.ndim not in (1, 2):
        raise CallError(f"expected input with dimensionality 1 or 2, got {input.ndim}")
    if linear_weight.ndim < 2:
        raise CallError(f"expected linear_weight with dimensionality at least 2, got {linear_weight.ndim}")
    if input._type.shape[-1] != linear_weight._type.shape[-1]:
        raise CallError(
            "expected equal input and linear_weight last dimensions (in_features), got "
            f"{input._type.shape[-1]} and {linear_weight._type.shape[-1]}, respectively"
        )
    outs = linear_weight._type.shape[:-1]
    if linear_bias is not None and linear_bias._type.shape != outs:
        raise CallError(f"expected linear_bias shape {outs}, got {tuple(linear_bias._type.shape)}")
    if len(outs) > 1 and input.ndim == 1:
        raise CallError(
            f"K-dimensional loss defined by linear_weight shape {tuple(linear_weight._type.shape)} requires batched input, "
            f"(N, {input._type.shape[-1]}), got unbatched input with shape {tuple(input._type.shape)}"
        )
    logits = linear(input, linear_weight.flatten(0, -2), None if linear_bias is None else linear_bias.flatten())
    logits = logits.reshape(*input._type.shape[:-1], *outs)
    if target._type.shape == logits._type.shape and ignore_index is not None:
        raise CallError("ignore_index cannot be specified when target contains probabilities")
    ignored = -100 if ignore_index is None else ignore_index
    return autocasting(cross_entropy, "cross_entropy")(logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=label_smoothing)


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Give the binary cross entropy of logits, averaged over the classes (last dim)."""
    loss = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    loss = loss if weight is None else loss * weight
    return reduced(sum(loss, -1) / input._type.shape[-1], legacy(size_average, reduce, reduction))


__all__ = [
    "cross_entropy", "linear_cross_entropy", "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss",
]  # fmt: skip
