"""Pooling over windows of the last three dims: over two of them, then over the third. Next: ``pooling`` (one and two dims)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.functions import pointwise
from gt.functions.promote import cast
from gt.ir.types import CallError, int64, is_int, scalar_type
from gt.nn.functional.pooling import (
    Ints,
    adaptive_avg,
    adaptive_max,
    avg_pool2d,
    check_padding,
    each,
    max_pool1d,
    max_pool2d,
    window_counts,
)
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor


def _volumes(input: Tensor, name: str) -> Tensor:
    """Give the input as [n * c, d, h, w]."""
    if input.ndim not in (4, 5):
        raise CallError(f"{name}: non-empty 4D or 5D (batch mode) tensor expected for input, but got {list(input._type.shape)}")
    return input.flatten(0, -4)


def _geometry(kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> list[tuple[int, ...]]:
    k = each(kernel, 3, "kernel_size")
    s = k if stride is None or (not is_int(stride) and not len(stride)) else each(stride, 3, "stride")
    return [k, s, each(padding, 3, "padding"), each(dilation, 3, "dilation")]


@saves("input! result1")
def max_pool3d(
    input: Tensor, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """Give the largest of each window: [n, c, d, h, w] -> [n, c, d', h', w']."""
    x = _volumes(input, "max_pool3d")
    (kd, *k), (sd, *s), (pd, *p), (dd, *d) = _geometry(kernel_size, stride, padding, dilation)
    check_padding((kd, *k), (pd, *p), (dd, *d))
    if 0 in input._type.shape[-4:]:
        raise CallError(f"max_pool3d: Expected input's non-batch dimensions to have positive length, got {list(input._type.shape)}")
    flat, at = max_pool2d(x, k, s, p, d, ceil_mode, True)  # [n * c, d, h', w']
    h, w = flat._type.shape[-2:]
    deep = flat.flatten(2).transpose(1, 2)
    values, slice_ = max_pool1d(deep, kd, sd, pd, dd, ceil_mode, True)  # [n * c, h' * w', d']
    lead = (*input._type.shape[:-3], values._type.shape[-1], h, w)
    out = values.transpose(1, 2).reshape(lead).contiguous()
    if not return_indices:
        return out
    inside = at.flatten(2).transpose(1, 2).gather(2, slice_)
    where = slice_ * (input._type.shape[-1] * input._type.shape[-2]) + inside
    return out, where.transpose(1, 2).reshape(lead).contiguous()


@saves("input!")
def avg_pool3d(
    input: Tensor, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Give the average of each window: [n, c, d, h, w] -> [n, c, d', h', w']."""
    x = _volumes(input, "avg_pool3d")
    if divisor_override == 0:
        raise CallError("divisor must be not zero")
    k, s, p, _ = _geometry(kernel_size, stride, padding)
    flat = avg_pool2d(x, k[1:], s[1:], p[1:], ceil_mode, divisor_override=1)  # the sums of windows
    h, w = flat._type.shape[-2:]
    deep = flat.flatten(2).transpose(1, 2).unsqueeze(1)
    sums = avg_pool2d(deep, (1, k[0]), (1, s[0]), (0, p[0]), ceil_mode, divisor_override=1).transpose(2, 3)
    out = sums.reshape(*input._type.shape[:-3], sums._type.shape[2], h, w)
    if divisor_override is not None:
        return out / divisor_override
    counts = window_counts(input._type.shape[-3:], k, s, p, ceil_mode, count_include_pad)
    return out / cast(counts, out._type.dtype)


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """Give ``output_size`` averages that cover the last three dims."""
    return adaptive_avg(3, input, output_size)


@saves("input! result1")
def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Give ``output_size`` maxima that cover the last three dims."""
    return adaptive_max(3, input, output_size, return_indices)


def lp_pool3d(input: Tensor, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False) -> Tensor:
    """Give the p-norm of each window."""
    kd, kh, kw = each(kernel_size, 3, "kernel_size")
    out = avg_pool3d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (pointwise.sign(out) * pointwise.relu(pointwise.abs(out)) * (kd * kh * kw)).pow(1.0 / norm_type)


# -- the way back: values at the places of their windows' maxima


def _unpool(
    dims: int, input: Tensor, indices: Tensor, kernel: Any, stride: Any, padding: Any, output_size: Any
) -> Tensor:  # fmt: skip
    if indices.dtype is not int64:
        raise CallError(f"elements in indices should be type int64 but got: {scalar_type(indices.dtype)}")
    if input._type.shape != indices._type.shape:
        raise CallError(
            f"Expected shape of indices to be same as that of the input tensor ({list(input._type.shape)}) but got indices tensor "
            f"with shape: {list(indices._type.shape)}"
        )
    k, p = each(kernel, dims, "kernel_size"), each(padding, dims, "padding")
    s = k if stride is None else each(stride, dims, "stride")
    own = input._type.shape[-dims:]
    sizes = tuple((n - 1) * step - 2 * pad + width for n, step, pad, width in zip(own, s, p, k, strict=True))
    if output_size is not None:
        wanted = tuple(output_size)[-dims:]
        for d, (size, want, step) in enumerate(zip(sizes, wanted, s, strict=True)):
            if not size - step < want < size + step:
                raise ValueError(f"invalid output_size {wanted} (dim {d} must be between {size - step} and {size + step})")
        sizes = wanted
    lead = input._type.shape[:-dims]
    numel = 1
    for n in sizes:
        numel *= n
    empty = input.new_zeros((*lead, numel))
    return empty.scatter(-1, indices.flatten(-dims), input.flatten(-dims)).reshape(*lead, *sizes)


def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, output_size: Any = None
) -> Tensor:
    """Put values at the places that ``max_pool1d`` found them, zeros elsewhere."""
    return _unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, output_size: Any = None
) -> Tensor:
    """Put values at the places that ``max_pool2d`` found them, zeros elsewhere."""
    return _unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, output_size: Any = None
) -> Tensor:
    """Put values at the places that ``max_pool3d`` found them, zeros elsewhere."""
    return _unpool(3, input, indices, kernel_size, stride, padding, output_size)


__all__ = [
    "adaptive_avg_pool3d", "adaptive_max_pool3d", "avg_pool3d", "lp_pool3d", "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d",
]  # fmt: skip
