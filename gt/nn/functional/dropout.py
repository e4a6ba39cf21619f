"""Dropout of elements and of channels. Next: ``gt.ir.ops.random`` (meaning)."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from gt.functions import create
from gt.functions.promote import operand
from gt.ir.ops import OPS
from gt.ir.types import CallError, int64
from gt.nn.functional.activation import written
from gt.random import draw
from gt.recording import record

if TYPE_CHECKING:
    from gt.tensor import Tensor

DROPOUT = OPS["dropout"]


def _check(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _drop(input: Tensor, p: float) -> Tensor:
    seed, stream = draw(None)
    return record(DROPOUT, (input, operand(seed, int64), operand(stream, int64)), (("p", float(p)),))


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability ``p`` and scale the rest by 1 / (1 - p)."""
    _check(p)
    return written(input, lambda: _drop(input, p), inplace) if training and p else input


def _channels(input: Tensor, p: float, training: bool, inplace: bool, lead: int) -> Tensor:
    """Drop whole channels: the first ``lead`` dims are a batch, if there are two, and the channels."""
    _check(p)
    if not training or not p:
        return input
    if input.ndim < lead:
        raise CallError("Feature dropout requires at least 2 dimensions in the input")
    shape = (*input._type.shape[:lead], *(1,) * (input.ndim - lead))
    return written(input, lambda: input * _drop(create.ones(shape, dtype=input.dtype), p), inplace)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero whole channels of [n, c, l] or [c, l]."""
    if input.ndim not in (2, 3):
        raise CallError(f"dropout1d: Expected 2D or 3D input, but received a {input.ndim}D input.")
    return _channels(input, p, training, inplace, input.ndim - 1)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero whole channels of [n, c, h, w]. Other ranks are taken as [n, c, ...], with torch's warning: 3-d is [n, c, l]."""
    if input.ndim == 3:
        warnings.warn(
            "dropout2d: Received a 3D input to dropout2d and assuming that channel-wise 1D dropout behavior is desired - input is "
            "interpreted as shape (N, C, L), where C is the channel dim.",
            stacklevel=4,
        )
    elif input.ndim != 4:
        _warn_rank("dropout2d", input, 2)
    return _channels(input, p, training, inplace, 2)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero whole channels of [n, c, d, h, w] or [c, d, h, w]. Other ranks are taken as [c, ...], with torch's warning."""
    if input.ndim not in (4, 5):
        _warn_rank("dropout3d", input, 3)
    return _channels(input, p, training, inplace, 2 if input.ndim == 5 else 1)


def _warn_rank(name: str, input: Tensor, dims: int) -> None:
    warnings.warn(
        f"{name}: Received a {input.ndim}-D input to {name}, which is deprecated and will result in an error in a future release. To "
        f"retain the behavior and silence this warning, please use dropout instead. Note that {name} exists to provide channel-wise "
        f"dropout on inputs with {dims} spatial dimensions, a channel dimension, and an optional batch dimension "
        f"(i.e. {dims + 1}D or {dims + 2}D inputs).",
        stacklevel=5,
    )


def _alpha(input: Tensor, p: float, training: bool, inplace: bool, shape: tuple[int, ...]) -> Tensor:
    _check(p)
    if not training or not p:
        return input
    if p == 1:
        return written(input, lambda: input * 0, inplace)
    floor = -1.7580993408473766  # what selu tends to; dropped elements take it, and the result keeps mean and variance
    scale = 1 / ((floor * floor * p + 1) * (1 - p)) ** 0.5
    keep = _drop(create.ones(shape, dtype=input.dtype), p) * (1 - p)
    return written(input, lambda: input * (keep * scale) + ((1 - keep) * floor - p * floor) * scale, inplace)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Set elements to selu's lower limit, keeping mean 0 and variance 1."""
    return _alpha(input, p, training, inplace, input._type.shape)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Set whole channels (dim 1) to selu's lower limit, keeping mean 0 and variance 1."""
    if input.ndim < 2 and training and 0 < p < 1:
        raise CallError("Feature dropout requires at least 2 dimensions in the input")
    shape = (*input._type.shape[:2], *(1,) * (input.ndim - 2))
    return _alpha(input, p, training, inplace, shape)


__all__ = ["alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"]
