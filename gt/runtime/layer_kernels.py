"""Torch functions of the heavy layers, forward and backward: attention, layer norm, convolution, on fused kernels.

Next: ``kernels`` (hands them to op lowerings).
"""

from __future__ import annotations

import functools
import importlib
from typing import TypeAlias

import torch
from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
aten = torch.ops.aten


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> str:
    """Name the fused kernel that takes these: "cpu", "cudnn", "flash", or "" for none.

    All take heads of one size without a mask, halves on a GPU and else on a CPU; which keys a causal query sees they count from
    different ends unless there are as many. cuDNN's is taken where torch prefers it, by its rule.
    """
    size = q.shape[-1]
    if mask is not None or size != v.shape[-1] or not q.numel() or not k.numel() or (is_causal and q.shape[2] != k.shape[2]):
        return ""
    halves = q.dtype in (torch.float16, torch.bfloat16)
    if q.device.type == "cpu":
        return "" if halves else "cpu"
    if not (q.is_cuda and halves and size <= 256 and size % 8 == 0):
        return ""
    return "cudnn" if size <= 128 and min(q.shape[2], k.shape[2]) >= 64 and _prefers_cudnn() else "flash"


@functools.cache
def _prefers_cudnn() -> bool:
    major, minor = torch.cuda.get_device_capability()
    return major in (9, 10) and minor == 0 and (torch.backends.cudnn.version() or 0) >= 90900


def _rows(x: Tensor) -> Tensor:
    """Fused kernels want the last dim's elements side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    scores = (row_matmul if q.shape[-2] == 1 else torch.matmul)(q, k.transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores


def row_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply where ``a`` has one row: [..., 1, k] x [..., k, n]."""
    return _row_product(a, b.mT) if _fuses(a) else torch.matmul(a, b)


def row_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Give x @ weight.T + bias, where x has one row in all."""
    return _row_product(x, weight, bias) if _fuses(x) else torch.nn.functional.linear(x, weight, bias)


def _fuses(x: Tensor) -> bool:
    """One row is bound by reading the matrix: as a sum, a GPU's compiler fuses it with what is around it."""
    return x.is_cuda and torch.compiler.is_compiling()


def _row_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Sum along the last dim of [..., 1, k] (or [k]) and [..., n, k], in float32 for halves, rounded once."""
    x = _written_down(x)
    out = (_wide(x) * _wide(weight)).sum(-1)
    out = out if x.ndim < 2 else out.unsqueeze(-2)
    return (out if bias is None else out + _wide(bias)).to(x.dtype)


def _written_down(x: Tensor) -> Tensor:
    """Have Inductor compute what is here once, where it would again for each row that it is multiplied with."""
    if not torch.compiler.is_compiling():
        return x
    importlib.import_module("torch._inductor.inductor_prims")  # which defines the op
    written: Tensor = torch.ops.prims.inductor_force_stride_order(x, x.stride())
    return written


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Give the attended values and the log of the sums of each row's exponentials."""
    fused = _fused(q, k, v, mask, is_causal)
    if fused:
        q, k, v = _rows(q), _rows(k), _rows(v)
    if fused == "cpu":
        out = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, scale=scale)
        return out[0], out[1]
    if fused == "cudnn":
        out = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, is_causal, False, scale=scale)
        return out[0], out[1].reshape(q.shape[:3])
    if fused:
        out = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False, scale=scale)
        return out[0], out[1]
    dtype, q, k, v = q.dtype, _wide(q), _wide(k), _wide(v)
    scores = _scores(q, k, None if mask is None else _wide(mask), is_causal, scale)
    top = scores.amax(-1, keepdim=True)
    top = torch.where(top == float("-inf"), 0.0, top)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    product = (row_matmul if q.shape[-2] == 1 else torch.matmul)(weights, v)
    out = product / torch.where(total == 0, 1.0, total)  # a row that sees nothing gives zeros
    return out.to(dtype), (total.log() + top).squeeze(-1)


def attention_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of q, k and v."""
    fused = _fused(q, k, v, mask, is_causal)
    if fused:
        g, q, k, v, y, lse = *map(_rows, (g, q, k, v, y)), lse.contiguous()
    if fused == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, y, lse, 0.0, is_causal, scale=scale)
    if fused:
        unused = torch.zeros((), dtype=torch.int64, device=q.device)
        lengths = q.shape[2], k.shape[2], 0.0, is_causal
    if fused == "cudnn":
        return aten._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, y, lse.unsqueeze(-1), unused, unused, None, None, None, *lengths, scale=scale
        )
    if fused:
        return aten._scaled_dot_product_flash_attention_backward(
            g, q, k, v, y, lse, None, None, *lengths, unused, unused, scale=scale
        )
    dtype, g, q, k, v, y = q.dtype, _wide(g), _wide(q), _wide(k), _wide(v), _wide(y)
    scores = _scores(q, k, None if mask is None else _wide(mask), is_causal, scale)
    weights = aten._safe_softmax(scores, -1)  # more exact than from ``lse``, whose rounding grows with the scores
    ds = weights * (torch.matmul(g, v.transpose(-1, -2)) - (g * y).sum(-1, keepdim=True)) * scale
    back = (torch.matmul(ds, k), torch.matmul(ds.transpose(-1, -2), q), torch.matmul(weights.transpose(-1, -2), g))
    return back[0].to(dtype), back[1].to(dtype), back[2].to(dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Give the result, the mean and 1 / deviation, both at least float32."""
    y, mean, rstd = aten.native_layer_norm(x, list(weight.shape), weight, bias, eps)
    return y, _wide(mean), _wide(rstd)


def layer_norm_backward(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if not x.is_cuda:  # the CPU kernel wants the statistics in the dtype of x
        mean, rstd = mean.to(x.dtype), rstd.to(x.dtype)
    mean, rstd = mean.contiguous(), rstd.contiguous()  # torch reads them in order, whatever their strides
    bias = weight  # only whether there is one is read
    return aten.native_layer_norm_backward(g, x, list(weight.shape), mean, rstd, weight, bias, [True, True, True])


def _channels_last(x: Tensor) -> Tensor:
    """Lay images of halves on a GPU out as its tensor cores read them; cuDNN would do so at every call."""
    images = x.is_cuda and x.ndim == 4 and x.dtype in (torch.float16, torch.bfloat16)
    return x.contiguous(memory_format=torch.channels_last) if images else x


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    x, weight = _channels_last(x), _channels_last(weight)
    return aten.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def convolution_input_grad(
    g: Tensor, weight: Tensor, shape: Shape, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    g, weight = _channels_last(g), _channels_last(weight)
    x = _channels_last(g.new_empty(shape))  # only its shape and layout are read
    return aten.convolution_backward(
        g, x, weight, None, stride, padding, dilation, transposed, output_padding, groups, [True, False, False]
    )[0]


def convolution_weight_grad(
    g: Tensor, x: Tensor, shape: Shape, stride: list[int], padding: list[int], dilation: list[int], transposed: bool,
    output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    g, x = _channels_last(g), _channels_last(x)
    weight = _channels_last(g.new_empty(shape))  # only its shape and layout are read
    grad = aten.convolution_backward(
        g, x, weight, None, stride, padding, dilation, transposed, output_padding, groups, [False, True, False]
    )[1]
    return grad.contiguous()  # as the weight it updates is


def avg_pool_backward(
    g: Tensor, shape: Shape, kernel: Shape, stride: Shape, padding: Shape, ceil_mode: bool, count_include_pad: bool
) -> Tensor:
    x = g.new_empty(shape)  # only its shape is read
    return aten.avg_pool2d_backward(g, x, kernel, stride, padding, ceil_mode, count_include_pad, None)


def windows(x: Tensor, rows: tuple[tuple[Shape, ...], ...], sizes: Shape, fill: float) -> Tensor:
    """Give rows of each dim by spans (at, start, count, step, spread), ``fill`` elsewhere."""
    for d, spans in enumerate(rows):
        shape = (*x.shape[:d], sizes[d], *x.shape[d + 1 :])
        out = x.new_full(shape, fill)
        for at, start, count, _, _ in spans:
            out.narrow(d, at, count).copy_(x.narrow(d, start, count))
        x = out
    return x
