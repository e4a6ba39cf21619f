"""``gt.nn.functional``: torch.nn.functional's names over gt's ops.

Owns: their arguments and checks. Next: ``gt.ir.ops.nn`` (meaning).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.functions.index import one_hot
from gt.functions.pointwise import abs, log, relu, sigmoid, square, tanh, where
from gt.functions.promote import cast, float_unary, operand
from gt.functions.reduce import log_softmax, mean, softmax, sum
from gt.ir.ops import OPS
from gt.ir.types import ShapeError, int64
from gt.random import draw
from gt.trace import record

if TYPE_CHECKING:
    from gt.tensor import Tensor

LINEAR, CROSS_ENTROPY, EMBEDDING, DROPOUT = OPS["linear"], OPS["cross_entropy"], OPS["embedding"], OPS["dropout"]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Give ``input @ weight.T + bias``: [..., k] x [n, k] (+ [n]) -> [..., n]."""
    x, w = input._type, weight._type
    if not x.shape or x.shape[-1] != w.shape[-1]:
        rows = x.numel // x.shape[-1] if x.shape and x.shape[-1] else 1
        raise ShapeError(
            f"mat1 and mat2 shapes cannot be multiplied ({rows}x{x.shape[-1] if x.shape else 1} and {w.shape[-1]}x{w.shape[0]})"
        )
    if x.dtype is not w.dtype:
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {x.dtype.name} and {w.dtype.name}")
    return record(LINEAR, (input, weight) if bias is None else (input, weight, bias))


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Give x times the normal distribution function of x; ``approximate``: "none" or "tanh"."""
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")
    return record(OPS["gelu"], (input,), (("approximate", approximate),))


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Give x * sigmoid(x)."""
    return float_unary(OPS["silu"], input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Give x where positive, else ``negative_slope * x``."""
    return where(input > 0, input, input * negative_slope)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability ``p`` and scale the rest by 1 / (1 - p)."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0.0:
        return input
    seed, stream = draw(None)
    return record(DROPOUT, (input, operand(seed, int64), operand(stream, int64)), (("p", float(p)),))


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Give rows of ``weight`` by index: [...] of [v, d] -> [..., d]."""
    if input.dtype.kind not in "iu":
        raise RuntimeError(
            f"Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got {input.dtype.name} instead"
        )
    rows = weight.shape[0]
    pad = -1 if padding_idx is None else padding_idx % rows
    return record(EMBEDDING, (weight, input), (("padding_idx", pad),))


def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise over the last dims to mean 0 and variance 1, then scale and shift."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if tuple(input.shape[input.ndim - len(shape) :]) != shape:
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [{', '.join(['*', *map(str, shape)])}], "
            f"but got input of size{list(input.shape)}"
        )
    operands = [input] + [t for t in (weight, bias) if t is not None]
    return record(
        OPS["layer_norm"], tuple(operands),
        (("ndim", len(shape)), ("eps", float(eps)), ("weight", weight is not None), ("bias", bias is not None)),
    )  # fmt: skip


# -- losses


def _reduce(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return mean(loss)
    if reduction == "sum":
        return sum(loss)
    if reduction == "none":
        return loss
    raise ValueError(f"{reduction} is not a valid value for reduction")


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Give the negative log likelihood of ``target`` (class indices, or probabilities) under softmax(input)."""
    if weight is not None:
        raise NotImplementedError("cross_entropy: class weights are not supported")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if target.dtype.kind in "iu":
        target = cast(target, int64)
        if input.ndim > 1 and input.shape[0] != target.shape[0]:
            raise ValueError(f"Expected input batch_size ({input.shape[0]}) to match target batch_size ({target.shape[0]}).")
    attrs = (("reduction", reduction), ("ignore_index", ignore_index), ("label_smoothing", float(label_smoothing)))
    return record(CROSS_ENTROPY, (input, target), attrs)


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Give minus the log probability of the target classes."""
    if weight is not None:
        raise NotImplementedError("nll_loss: class weights are not supported")
    inner = "none" if reduction == "none" else "sum"
    target = cast(target, int64)
    loss = record(OPS["nll_loss"], (input, target), (("reduction", inner), ("ignore_index", ignore_index)))
    return loss / sum(target != ignore_index) if reduction == "mean" else loss


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Give the squared difference."""
    return _reduce(square(input - target), reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Give the absolute difference."""
    return _reduce(abs(input - target), reduction)


def binary_cross_entropy(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Give the binary cross entropy of probabilities; logarithms are kept above -100."""
    low = -100.0
    loss = -(target * log(input).clamp(min=low) + (1 - target) * log(1 - input).clamp(min=low))
    return _reduce(loss, reduction)


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Give the binary cross entropy of logits, without overflow."""
    loss = relu(input) - input * target + (-abs(input)).exp().log1p()
    return _reduce(loss, reduction)


__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "dropout", "embedding", "gelu",
    "l1_loss", "layer_norm", "leaky_relu", "linear", "log_softmax", "mse_loss", "nll_loss", "one_hot", "relu",
    "sigmoid", "silu", "softmax", "tanh",
]  # fmt: skip
