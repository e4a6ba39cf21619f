"""Normalization over batches, layers, groups and instances. Next: ``gt.ir.ops.normalization`` (meaning)."""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gt.autograd import no_grad
from gt.functions import create, reduce
from gt.functions.promote import cast
from gt.ir.graph import Attrs
from gt.ir.ops import OPS
from gt.ir.types import CallError, DType, KindError, ShapeError, TensorType, float32, int64, is_int, real_dtype, scalar_type
from gt.nn.functional.padding import pad
from gt.recording import record
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor

LAYER_NORM, RMS_NORM, GROUP_NORM, BATCH_NORM = OPS["layer_norm"], OPS["rms_norm"], OPS["group_norm"], OPS["batch_norm"]
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def _affine(x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Give scale and shift in the dtype of ``x``; ones and zeros where there are none."""
    w = create.ones(shape, dtype=x.dtype) if weight is None else cast(weight, x.dtype)
    b = create.zeros(shape, dtype=x.dtype) if bias is None else cast(bias, x.dtype)
    return w, b


def _check_dtypes(input: Tensor, *params: Tensor | None) -> None:
    """Refuse parameters of another dtype than the input's, except that those of halves may all be float32."""
    dtype = input.dtype
    dtypes = [p.dtype for p in params if p is not None]
    if dtype.kind != "f" or all(d is dtype for d in dtypes):
        return
    if not all(d is float32 for d in dtypes):
        raise CallError(
            f"mixed dtype (CPU): expect parameter to have scalar type of Float, or all of {scalar_type(dtype)}, but got "
            f"{', '.join(map(scalar_type, dtypes))}"
        )
    if dtype.itemsize != 2:
        raise CallError("mixed dtype (CPU): all inputs must share same datatype.")


def _common(input: Tensor, *params: Tensor | None) -> Tensor:
    """Give the input in float32 where parameters are wider than a half input."""
    wide = any(p is not None and p.dtype.itemsize > input.dtype.itemsize for p in params)
    return cast(input, float32) if wide and input.dtype.itemsize == 2 else input


def _shape(input: Tensor, normalized_shape: Any) -> tuple[int, ...]:
    if normalized_shape.__class__ is tuple and normalized_shape and input._type.shape[-len(normalized_shape) :] == normalized_shape:
        return normalized_shape
    shape = (normalized_shape,) if is_int(normalized_shape) else tuple(int(n) for n in normalized_shape)
    if not shape:
        raise CallError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got normalized_shape = []"
        )
    if input.ndim < len(shape) or input._type.shape[input.ndim - len(shape) :] != shape:
        raise ShapeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [{', '.join(['*', *map(str, shape)])}], "
            f"but got input of size{list(input._type.shape)}"
        )
    return shape


@lru_cache(maxsize=1 << 12)
def _plain(input: TensorType, weight: TensorType, bias: TensorType, shape: tuple[int, ...], eps: float) -> Attrs | None:
    """Give the attributes of a layer norm that the op takes as it is; None for all else, faults included."""
    fits = shape and input.shape[-len(shape) :] == weight.shape == bias.shape == shape
    return (("eps", float(eps)),) if fits and input.dtype is weight.dtype is bias.dtype else None


def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise over the last dims to mean 0 and variance 1, then scale and shift."""
    if weight is not None and bias is not None and normalized_shape.__class__ is tuple and eps.__class__ is float:
        attrs = _plain(input._type, weight._type, bias._type, normalized_shape, eps)
        if attrs is not None:
            return record(LAYER_NORM, (input, weight, bias), attrs, first=True)
    shape = _shape(input, normalized_shape)
    for name, p in (("weight", weight), ("bias", bias)):
        if p is not None and p._type.shape != shape:
            raise ShapeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape {list(p._type.shape)} and "
                f"normalized_shape = {list(shape)}"
            )
    _check_dtypes(input, weight, bias)
    x = _common(input, weight, bias)
    return cast(record(LAYER_NORM, (x, *_affine(x, shape, weight, bias)), (("eps", float(eps)),), first=True), input.dtype)


def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Divide by the root mean square over the last dims, then scale. ``eps`` None: the dtype's."""
    shape = _shape(input, normalized_shape)
    if input.dtype.kind not in "fc":
        raise KindError(f"\"rms_norm\" not implemented for '{scalar_type(input.dtype)}'")
    if weight is not None and weight._type.shape != shape:
        raise ShapeError(
            f"Expected weight to be of same shape as normalized_shape, but got weight of shape {list(weight._type.shape)} and "
            f"normalized_shape = {list(shape)}"
        )
    if input.dtype.kind == "c":
        last = tuple(range(input.ndim - len(shape), input.ndim))
        out = input * (reduce.mean(input * input, last, True) + _eps(real_dtype(input.dtype), eps)).rsqrt()
        return out if weight is None else cast(out * weight, input.dtype)
    x = _common(input, weight)
    w = create.ones(shape, dtype=x.dtype) if weight is None else cast(weight, x.dtype)
    return cast(record(RMS_NORM, (x, w), (("eps", _eps(input.dtype, eps)),)), input.dtype)


def _eps(dtype: DType, given: float | None) -> float:
    """Give what is added to a mean square: by default the epsilon of what halves are computed in."""
    return EPS[float32.name if dtype.itemsize == 2 else dtype.name] if given is None else float(given)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise each group of channels (dim 1) of each example, then scale and shift by channel."""
    if input.ndim < 2:
        raise CallError(f"Expected at least 2 dimensions for input tensor but received {input.ndim}")
    channels, num_groups = input._type.shape[1], operator.index(num_groups)
    if num_groups <= 0:
        raise CallError(f"Expected num groups to be greater than 0, got {num_groups}")
    if channels % num_groups:
        raise ShapeError(
            f"Expected number of channels in input to be divisible by num_groups, but got input of shape {list(input._type.shape)} and "
            f"num_groups={num_groups}"
        )
    if input.numel() == num_groups:
        sizes = [input._type.shape[0] * channels // num_groups, num_groups, *input._type.shape[2:]]
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {sizes}")
    _check_dtypes(input, weight, bias)
    x = _common(input, weight, bias)
    attrs = (("groups", num_groups), ("eps", float(eps)))
    return cast(record(GROUP_NORM, (x, *_affine(x, (channels,), weight, bias)), attrs), input.dtype)


def _both_or_neither(running_mean: Tensor | None, running_var: Tensor | None) -> None:
    if (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")


def _channels(input: Tensor, p: Tensor) -> Tensor:
    return p.reshape(-1, *(1,) * (input.ndim - 2))


@saves("input! weight! running_mean running_var")
def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None, bias: Tensor | None = None,
    training: bool = False, momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalise each channel (dim 1) by the batch's statistics while training, else by the running ones.

    Training updates ``running_mean`` and ``running_var`` in place; they are not part of the gradient.
    """
    _both_or_neither(running_mean, running_var)
    if input.ndim < 2:
        raise CallError(f"batch_norm: expected at least 2 dimensions, got {list(input._type.shape)}")
    if eps <= 0:
        raise ValueError(f"batch_norm eps must be positive, but got {eps}")
    channels = input._type.shape[1]
    for name, p in (("running_mean", running_mean), ("running_var", running_var), ("weight", weight), ("bias", bias)):
        if p is not None and p.numel() != channels:
            raise CallError(f"{name} should contain {channels} elements not {p.numel()}")
    if training and input.numel() == channels and channels:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {input.shape}".replace("gt.", "torch.")
        )
    _check_dtypes(input, weight, bias, running_mean, running_var)
    x = _common(input, weight, bias, running_mean)
    w, b = _affine(x, (channels,), weight, bias)
    if not training:
        if running_mean is None or running_var is None:
            raise CallError("Expected running_mean and running_var to be defined when training=False")
        wide = float32 if x.dtype.itemsize == 2 else x.dtype  # halves are rounded once
        x, mean, variance, w, b = (cast(t, wide) for t in (x, running_mean, running_var, w, b))
        return cast((x - _channels(x, mean)) * _channels(x, (variance + eps).rsqrt() * w) + _channels(x, b), input.dtype)
    if not input.numel():
        return cast(_channels(x, w) * x + _channels(x, b), input.dtype)  # no NaN of an empty mean reaches the weights' gradients
    out, mean, variance = record(BATCH_NORM, (x, w, b), (("eps", float(eps)),))
    count = input.numel() // channels
    _update(running_mean, mean, momentum)
    _update(running_var, variance, momentum, count / (count - 1))
    return cast(out, input.dtype)


def _update(running: Tensor | None, value: Tensor, momentum: Any, unbias: float = 1.0) -> None:
    """Move a running statistic towards the batch's."""
    if running is not None:
        with no_grad():
            new = value.detach() if unbias == 1.0 else value.detach() * unbias
            running._renew(cast(running * (1 - momentum) + new * momentum, running.dtype))


@saves("input!")
def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalise each channel of each example over its spatial dims."""
    _both_or_neither(running_mean, running_var)
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise CallError("Expected running_mean and running_var to be defined when use_input_stats=False")
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    count = math.prod(input._type.shape[2:])
    if count == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size {input.shape}".replace("gt.", "torch.")
        )
    channels, spatial = input._type.shape[1], tuple(range(2, input.ndim))
    _check_dtypes(input, weight, bias)
    x = _common(input, weight, bias)
    out = record(GROUP_NORM, (x, *_affine(x, (channels,), weight, bias)), (("groups", channels), ("eps", float(eps))))
    if running_mean is not None:
        with no_grad():
            _update(running_mean, reduce.mean(reduce.mean(x.detach(), spatial), 0), momentum)
            _update(running_var, reduce.mean(reduce.var(x.detach(), spatial), 0), momentum)
    return cast(out, input.dtype)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Divide by (k + alpha * mean of squares over ``size`` neighbouring channels) ** beta."""
    if input.ndim < 3:
        raise ValueError(f"Expected 3D or higher dimensionality                          input (got {input.ndim} dimensions)")
    if not input.numel():
        return input
    if size <= 0:
        sizes = f"kH: {size} kW: 1" if input.ndim == 3 else f"kT: {size} kH: 1 kW: 1"
        raise CallError(f"kernel size should be greater than zero, but got {sizes}")
    dtype, channels = input.dtype, input._type.shape[1]
    if dtype.kind not in "f" and dtype is not int64:
        name = "avg_pool2d" if input.ndim == 3 else "avg_pool3d_out_frame"
        raise KindError(f"\"{name}\" not implemented for '{scalar_type(dtype)}'")
    squares = pad(input * input, [0, 0] * (input.ndim - 2) + [size // 2, (size - 1) // 2])
    wide = cast(squares, float32) if dtype.itemsize == 2 else squares
    total = wide.narrow(1, 0, channels)
    for i in range(1, size):
        total = total + wide.narrow(1, i, channels)
    mean = cast(total / size if dtype.kind == "f" else total // size, dtype)
    return input / (mean * alpha + k).pow(beta)


__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "rms_norm"]
