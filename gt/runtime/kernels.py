"""Torch functions that op lowerings call as ``kernels.<name>(...)`` where torch has no single function.

Each equals its op's ``numpy`` meaning and works under ``torch.compile``. Must not know: programs, workers.
Next: ``gt.ir.ops`` (who calls these), ``optim_kernels`` (optimizer steps), ``layer_kernels`` (heavy layers).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from gt.ir.ops.philox import M0, M1, MASK, ROUNDS, W0, W1
from gt.runtime.layer_kernels import (
    attention,
    attention_backward,
    avg_pool_backward,
    convolution,
    convolution_input_grad,
    convolution_weight_grad,
    layer_norm,
    layer_norm_backward,
    row_linear,
    row_matmul,
    windows,
)  # fmt: skip
from gt.runtime.loss_kernels import cross_entropy_grad
from gt.runtime.optim_adaptive_kernels import (
    adadelta_step,
    adadelta_step_,
    adamax_step,
    adamax_step_,
    nadam_step,
    nadam_step_,
    radam_step,
    radam_step_,
)  # fmt: skip
from gt.runtime.optim_kernels import (
    adagrad_step,
    adagrad_step_,
    adam_step,
    adam_step_,
    adamw_step,
    adamw_step_,
    lion_step,
    lion_step_,
    rmsprop_step,
    rmsprop_step_,
    sgd_step,
    sgd_step_,
)  # fmt: skip

Scalar: TypeAlias = Tensor | float | int | bool
Key: TypeAlias = Tensor | int  # a seed, a stream: a 0-d int64
Shape: TypeAlias = tuple[int, ...]
Words: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


def pad(x: Tensor, low: Shape, high: Shape, interior: Shape, value: float) -> Tensor:
    """Pad around dims and between elements."""
    sizes = [n + max(n - 1, 0) * i for n, i in zip(x.shape, interior, strict=True)]
    out = x.new_full([lo + n + hi for lo, n, hi in zip(low, sizes, high, strict=True)], value)
    out[tuple(slice(lo, lo + n, i + 1) for lo, n, i in zip(low, sizes, interior, strict=True))] = x
    return out


def iota(
    shape: Shape, dim: int, dtype: torch.dtype, start: float, step: float, offset: int, device: torch.device
) -> Tensor:
    """Count along a dim, in int64 or float64 before the one cast. Each element has a place of its own, as it may be overwritten."""
    line = torch.arange(shape[dim], device=device) + offset
    if not (isinstance(start, int) and isinstance(step, int)):
        line = line.to(torch.float64)
    line = (start + step * line).to(dtype)
    return line.reshape(-1, *(1,) * (len(shape) - dim - 1)).expand(shape).contiguous()


def from_start(index: Tensor, size: int) -> Tensor:
    """Give an index for torch functions that take no negative ones; code compiled by Inductor would count them from the end."""
    return torch.where(index < 0, size, index) if torch.compiler.is_compiling() else index


def own_rows(x: Tensor, index: Tensor, dim: int, start: int, rows: int, from_end: bool = False) -> Tensor:
    """Give what an index takes of a part of a dim of ``rows``, from ``start``: zeros for those of other parts; those of none are refused.

    ``from_end``: negative ones count from the end.
    """
    if not index.is_cuda and not torch.compiler.is_compiling():
        for bad in index[(index < (-rows if from_end else 0)) | (index >= rows)][:1].tolist():
            raise IndexError(f"index {bad} is out of bounds for dimension {dim} with size {rows}")
    if from_end:
        index = torch.where(index < 0, index + rows, index)
    own = (index >= start) & (index < start + x.shape[dim])
    other = torch.where((index >= 0) & (index < rows), 0, x.shape[dim])
    whole: list[slice | Tensor] = [slice(None)] * dim
    taken = x[(*whole, torch.where(own, index - start, other))]
    return taken.masked_fill(~own.view((*own.shape, *(1,) * (x.dim() - dim - 1))), -0.0)  # which adds nothing, not even to -0.0


def log_softmax_backward_(g: Tensor, y: Tensor, dim: int) -> Tensor:
    """Write the gradient of log_softmax over ``g``, which torch does rightly where its elements are in order."""
    backward = torch.ops.aten._log_softmax_backward_data
    if g.is_contiguous():
        return backward.out(g, y, dim, y.dtype, out=g)
    return g.copy_(backward(g, y, dim, y.dtype))


def nll_loss_backward(g: Scalar, target: Tensor, shape: Shape, ignore_index: int) -> Tensor:
    """Put -g at each target's class."""
    dim = 1 if len(shape) > 1 else 0
    g = g if isinstance(g, Tensor) else torch.full((), g, device=target.device)
    index = target.unsqueeze(dim)
    counted = index != ignore_index
    if torch.compiler.is_compiling():  # a comparison fuses with what reads it; a scatter would be written out in full
        classes = torch.arange(shape[dim], device=target.device).view(-1, *(1,) * (len(shape) - dim - 1))
        hit = (index == classes) & counted
        return torch.where(hit, -(g.unsqueeze(dim) if g.dim() else g), torch.zeros((), dtype=g.dtype, device=g.device))
    source = torch.where(
        counted, -(g.unsqueeze(dim) if g.dim() else g), torch.zeros((), dtype=g.dtype, device=g.device)
    )
    return torch.zeros(shape, dtype=g.dtype, device=target.device).scatter_(dim, torch.where(counted, index, 0), source)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply integer matrices, for which CUDA has no kernel."""
    if not a.is_cuda:
        return torch.matmul(a, b)
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2, dtype=a.dtype)


def wide_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices of halves, giving the float32 sums that kernels for halves round at the end."""
    if not a.is_cuda or a.dtype is torch.float32:
        return torch.matmul(a.float(), b.float())
    if b.ndim == 2:
        return torch.mm(a.reshape(-1, a.shape[-1]), b, out_dtype=torch.float32).reshape(*a.shape[:-1], b.shape[-1])
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (t.expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:]) for t in (a, b))
    return torch.bmm(a, b, out_dtype=torch.float32).reshape(*batch, a.shape[-2], b.shape[-1])


def slice_scatter(x: Tensor, source: Tensor, starts: Shape, stops: Shape, steps: Shape) -> Tensor:
    """Write a source over a strided part."""
    return slice_scatter_(x.clone(), source, starts, stops, steps)


def slice_scatter_(x: Tensor, source: Tensor, starts: Shape, stops: Shape, steps: Shape) -> Tensor:
    x[tuple(map(slice, starts, stops, steps))] = source
    return x


def as_strided(x: Tensor, size: Shape, stride: Shape, offset: int) -> Tensor:
    """Give elements by their row-major place, wherever in its memory the tensor begins."""
    if torch.compiler.is_compiling():  # which memory it is in is not known yet; the places fuse with what reads them
        place = torch.full((), offset, device=x.device)
        for n, step in zip(size, stride, strict=True):
            place = place.unsqueeze(-1) + torch.arange(n, device=x.device) * step
        return x.reshape(-1)[place]
    x = x.contiguous()
    return x.as_strided(size, stride, x.storage_offset() + offset)


def argmax(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    """The first of equals, which torch does not promise for bool."""
    return torch.argmax(x.to(torch.uint8) if x.dtype is torch.bool else x, dim, keepdim)


def argmin(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    return torch.argmin(x.to(torch.uint8) if x.dtype is torch.bool else x, dim, keepdim)


def prod(x: Tensor, dims: Shape, keepdim: bool) -> Tensor:
    """Multiply over several dims, one at a time from the last."""
    for d in sorted(dims, reverse=True):
        x = torch.prod(x, d, keepdim, dtype=x.dtype)
    return x


def cumprod_backward(g: Tensor, x: Tensor, dim: int) -> Tensor:
    """sum over j >= i of g[j] times the product of x[0..j] without x[i], for each i."""
    if not x.dim():
        return g.clone()
    g, x = g.movedim(dim, -1), x.movedim(dim, -1)
    n = x.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=x.device)
    without = torch.where(eye, torch.ones((), dtype=x.dtype, device=x.device), x.unsqueeze(-2))
    terms = torch.triu(torch.cumprod(without, -1)).conj() * g.unsqueeze(-2)
    return terms.sum(-1).movedim(-1, dim)


def one_hot(index: Tensor, classes: int, dtype: torch.dtype, offset: int) -> Tensor:
    return (index.unsqueeze(-1) == torch.arange(classes, device=index.device) + offset).to(dtype)


# -- random values: philox.py's arithmetic in int64, whose products wrap to the same bits


def philox(counter: Words, k0: Key, k1: Key) -> Words:
    c0, c1, c2, c3 = counter
    for _ in range(ROUNDS):
        p0, p1 = c0 * M0, c2 * M1
        c0, c1, c2, c3 = ((p1 >> 32) & MASK) ^ c1 ^ k0, p1 & MASK, ((p0 >> 32) & MASK) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + W0) & MASK, (k1 + W1) & MASK
    return c0, c1, c2, c3


def _element_index(shape: Shape, global_shape: Shape, offset: Shape, device: torch.device) -> Tensor:
    index = torch.zeros(shape, dtype=torch.int64, device=device)
    stride = 1
    for d in reversed(range(len(shape))):
        line = (torch.arange(shape[d], dtype=torch.int64, device=device) + offset[d]) * stride
        index = index + line.reshape(-1, *(1,) * (len(shape) - d - 1))
        stride *= global_shape[d]
    return index


def _words(seed: Key, stream: Key, shape: Shape, global_shape: Shape, offset: Shape, device: torch.device) -> Words:
    i = _element_index(shape, global_shape, offset, device)
    zero = torch.zeros_like(i)
    if isinstance(seed, Tensor):
        seed = seed.to(device)
    if isinstance(stream, Tensor):
        stream = stream.to(device)
    counter = (i & MASK, (i >> 32) & MASK, zero + (stream & MASK), zero + ((stream >> 32) & MASK))
    return philox(counter, seed & MASK, (seed >> 32) & MASK)


def _unit53(high: Tensor, low: Tensor) -> Tensor:
    return ((high >> 5) * (1 << 26) + (low >> 6)).to(torch.float64) * 2.0**-53


_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


def _uniform(words: Words, bits: int) -> Tensor:
    return _unit53(words[0], words[1]) if bits == 53 else (words[0] >> (32 - bits)).to(torch.float64) * 2.0**-bits


def _bits63(words: Words) -> Tensor:
    return ((words[0] >> 1) << 32) | words[1]


def random_uniform(
    seed: Key,
    stream: Key,
    shape: Shape,
    dtype: torch.dtype,
    global_shape: Shape,
    offset: Shape,
    device: torch.device,
) -> Tensor:
    return _uniform(_words(seed, stream, shape, global_shape, offset, device), _BITS[dtype]).to(dtype)


def random_normal(
    seed: Key,
    stream: Key,
    shape: Shape,
    dtype: torch.dtype,
    global_shape: Shape,
    offset: Shape,
    device: torch.device,
) -> Tensor:
    words = _words(seed, stream, shape, global_shape, offset, device)
    radius = torch.sqrt(-2.0 * torch.log(1.0 - _unit53(words[0], words[1])))
    return (radius * torch.cos(2.0 * math.pi * _unit53(words[2], words[3]))).to(dtype)


def random_bits(
    seed: Key,
    stream: Key,
    shape: Shape,
    dtype: torch.dtype,
    global_shape: Shape,
    offset: Shape,
    device: torch.device,
) -> Tensor:
    return _bits63(_words(seed, stream, shape, global_shape, offset, device)).to(dtype)


def random_int(
    seed: Key, stream: Key, low: Key, high: Key, shape: Shape, dtype: torch.dtype, global_shape: Shape,
    offset: Shape, device: torch.device,
) -> Tensor:  # fmt: skip
    span = high - low
    span = span.to(device).clamp(min=1) if isinstance(span, Tensor) else max(span, 1)
    low = low.to(device) if isinstance(low, Tensor) else low
    return (low + _bits63(_words(seed, stream, shape, global_shape, offset, device)) % span).to(dtype)


def dropout(x: Tensor, seed: Key, stream: Key, p: float, global_shape: Shape, offset: Shape) -> Tensor:
    keep = _uniform(_words(seed, stream, tuple(x.shape), global_shape, offset, x.device), 53) >= p
    return torch.where(keep, x * (1 / (1 - p) if p < 1 else 0.0), 0.0)


__all__ = [
    "adadelta_step", "adadelta_step_", "adagrad_step", "adagrad_step_", "adam_step", "adam_step_", "adamax_step",
    "adamax_step_", "adamw_step", "adamw_step_", "argmax", "argmin", "attention", "attention_backward", "avg_pool_backward",
    "convolution", "convolution_input_grad", "convolution_weight_grad", "cross_entropy_grad", "cumprod_backward", "dropout",
    "iota", "layer_norm", "layer_norm_backward", "lion_step", "lion_step_", "log_softmax_backward_", "matmul", "nadam_step",
    "nadam_step_", "nll_loss_backward", "one_hot", "pad", "philox", "prod", "radam_step", "radam_step_", "random_bits",
    "random_int", "random_normal", "random_uniform", "rmsprop_step", "rmsprop_step_", "row_linear", "row_matmul",
    "sgd_step", "sgd_step_", "slice_scatter", "slice_scatter_", "wide_matmul", "windows",
]
