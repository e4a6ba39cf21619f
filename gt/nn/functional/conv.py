"""Convolutions of one to three spatial dims and their transposes. Next: ``gt.ir.ops.convolution`` (meaning)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gt.autocasting import low
from gt.functions.create import from_numpy
from gt.functions.numeric import complex, imag, real
from gt.functions.promote import c_name
from gt.functions.shape import cat, stack
from gt.ir.graph import Attrs
from gt.ir.ops import OPS
from gt.ir.types import CallError, ShapeError, is_int, normalize_dim
from gt.nn.functional.padding import pad
from gt.recording import record
from gt.trace import state

if TYPE_CHECKING:
    from gt.tensor import Tensor

CONVOLUTION = OPS["convolution"]
Ints = int | Sequence[int]


def each(value: Ints, dims: int, name: str = "argument") -> tuple[int, ...]:
    """Give one number for each spatial dim."""
    if is_int(value):
        return (operator.index(value),) * dims
    out = tuple(int(v) for v in value)
    if len(out) == 1:
        return out * dims
    if len(out) != dims:
        raise CallError(
            f"expected {name} to be a single integer value or a list of {dims} values to match the convolution dimensions, but got {name}={list(out)}"
        )
    return out


def _batched(input: Tensor, dims: int, name: str) -> tuple[Tensor, bool]:
    if input.ndim not in (dims + 1, dims + 2):
        raise CallError(
            f"Expected {dims + 1}D (unbatched) or {dims + 2}D (batched) input to {name}, but got input of size: {list(input._type.shape)}"
        )
    return (input, True) if input.ndim == dims + 2 else (input.unsqueeze(0), False)


def _operands(
    input: Tensor, weight: Tensor, bias: Tensor | None, dims: int, name: str
) -> tuple[Tensor, Tensor, Tensor | None, bool]:
    """Give the operands in mixed precision's dtype, with a batch, and whether there was one."""
    if state.autocast is not None:
        input, weight, bias = low(input, weight, bias)
    x, batched = _batched(input, dims, name)
    if weight.ndim != x.ndim:
        raise ShapeError(
            f"Expected {weight.ndim}-dimensional input for {weight.ndim}-dimensional weight {list(weight._type.shape)}, but got "
            f"{x.ndim}-dimensional input of size {list(x._type.shape)} instead"
        )
    for t in (weight, bias):
        if t is not None and t.dtype is not x.dtype:
            raise CallError(f"Input type ({c_name(x.dtype)}) and bias type ({c_name(t.dtype)}) should be the same")
    return x, weight, bias, batched


def _check_geometry(geometry: dict[str, tuple[int, ...]], groups: int) -> None:
    if groups <= 0:
        raise CallError("non-positive groups is not supported")
    if any(s <= 0 for s in geometry["stride"]):
        raise CallError("non-positive stride is not supported")
    if any(p < 0 for p in geometry["padding"]):
        raise CallError("negative padding is not supported")
    if any(d <= 0 for d in geometry["dilation"]):
        raise CallError("dilation should be greater than zero")


def _conv(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: str | Ints,
    dilation: Ints,
    groups: int,
) -> Tensor:
    x, weight, bias, batched = _operands(input, weight, bias, dims, f"conv{dims}d")
    steps, dilations = each(stride, dims, "stride"), each(dilation, dims, "dilation")
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise CallError(f"Invalid padding string: '{padding}': use 'same', 'valid' or numbers")
        if padding == "same" and any(s != 1 for s in steps):
            raise CallError("padding='same' is not supported for strided convolutions")
        x, pads = _same(x, weight, dilations) if padding == "same" else (x, (0,) * dims)
    else:
        pads = each(padding, dims, "padding")
    _check_geometry({"stride": steps, "padding": pads, "dilation": dilations}, groups)
    effective = [d * (k - 1) + 1 for d, k in zip(dilations, weight._type.shape[2:], strict=True)]
    padded = [n + 2 * p for n, p in zip(x._type.shape[2:], pads, strict=True)]
    if any(n < k for n, k in zip(padded, effective, strict=True)):
        sizes = lambda v: "(" + " x ".join(map(str, v)) + ")"  # noqa: E731
        raise ShapeError(
            f"Calculated padded input size per channel: {sizes(padded)}. Kernel size: {sizes(effective)}. Kernel size can't be "
            "greater than actual input size"
        )
    return _run(x, weight, bias, batched, steps, pads, dilations, (0,) * dims, groups, False)


def _same(x: Tensor, weight: Tensor, dilations: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Give the padding on both sides that keeps the size; an odd rest is added to the high side at once."""
    total = [d * (k - 1) for d, k in zip(dilations, weight._type.shape[2:], strict=True)]
    rest = [t % 2 for t in total]
    if any(rest):
        x = pad(x, [v for r in reversed(rest) for v in (0, r)])
    return x, tuple(t // 2 for t in total)


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, batched: bool, stride: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...], output_padding: tuple[int, ...], groups: int, transposed: bool,
) -> Tensor:  # fmt: skip
    attrs = (
        ("stride", stride), ("padding", padding), ("dilation", dilation), ("transposed", transposed),
        ("output_padding", output_padding), ("groups", groups),
    )  # fmt: skip
    channels = weight._type.shape[1] * groups if transposed else weight._type.shape[0]
    if bias is not None and bias._type.shape != (channels,):
        given = f"Given {f'transposed={int(transposed)}, ' if transposed else ''}weight of size {list(weight._type.shape)}"
        raise ShapeError(
            f"{given}, expected bias to be 1-dimensional with {channels} elements, but got bias of size {list(bias._type.shape)} instead"
        )
    if x.dtype.kind == "c":
        out = _complex_run(x, weight, bias, attrs)
    else:
        out = record(CONVOLUTION, (x, weight) if bias is None else (x, weight, bias), attrs)
    return out if batched else out.squeeze(0)


def _complex_run(x: Tensor, weight: Tensor, bias: Tensor | None, attrs: Attrs) -> Tensor:
    """Convolve both parts of ``x`` at once, as a batch, by the weight's real part and by its imaginary part."""
    parts, n = cat([real(x), imag(x)]), x._type.shape[0]
    before, state.autocast = state.autocast, None  # which leaves complex numbers, and so their parts, alone
    try:
        by_real, by_imag = (record(CONVOLUTION, (parts, w), attrs) for w in (real(weight), imag(weight)))
    finally:
        state.autocast = before
    out = complex(by_real[:n] - by_imag[n:], by_imag[:n] + by_real[n:])
    return out if bias is None else out + bias.reshape(-1, *(1,) * (x.ndim - 2))


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: str | Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """Correlate: [n, i, l] x [o, i / groups, k] -> [n, o, l']."""
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: str | Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """Correlate: [n, i, h, w] x [o, i / groups, k, k] -> [n, o, h', w']."""
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: str | Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """Correlate: [n, i, d, h, w] x [o, i / groups, k, k, k] -> [n, o, d', h', w']."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def _transposed(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> Tensor:
    x, weight, bias, batched = _operands(input, weight, bias, dims, f"conv_transpose{dims}d")
    steps, pads, dilations = (
        each(stride, dims, "stride"),
        each(padding, dims, "padding"),
        each(dilation, dims, "dilation"),
    )
    extra = each(output_padding, dims, "output_padding")
    _check_geometry({"stride": steps, "padding": pads, "dilation": dilations}, groups)
    if any(o >= s and o >= d for o, s, d in zip(extra, steps, dilations, strict=True)):
        raise CallError(
            f"output padding must be smaller than either stride or dilation, but got output_padding: {list(extra)}, stride: {list(steps)}, "
            f"dilation: {list(dilations)}"
        )
    return _run(x, weight, bias, batched, steps, pads, dilations, extra, groups, True)


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Ints = 1, padding: Ints = 0, output_padding: Ints = 0,
    groups: int = 1, dilation: Ints = 1,
) -> Tensor:  # fmt: skip
    """Give the transpose of conv1d: [n, i, l] x [i, o / groups, k] -> [n, o, l']."""
    return _transposed(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Ints = 1, padding: Ints = 0, output_padding: Ints = 0,
    groups: int = 1, dilation: Ints = 1,
) -> Tensor:  # fmt: skip
    """Give the transpose of conv2d: [n, i, h, w] x [i, o / groups, k, k] -> [n, o, h', w']."""
    return _transposed(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Ints = 1, padding: Ints = 0, output_padding: Ints = 0,
    groups: int = 1, dilation: Ints = 1,
) -> Tensor:  # fmt: skip
    """Give the transpose of conv3d."""
    return _transposed(3, input, weight, bias, stride, padding, output_padding, groups, dilation)


def unfold(input: Tensor, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1) -> Tensor:
    """Give every window of [n, c, h, w] as a column: [n, c * kh * kw, windows]."""
    x, batched = (input, True) if input.ndim == 4 else (input.unsqueeze(0), False)
    if x.ndim != 4:
        normalize_dim(min(max(input.ndim, 1), 2), input.ndim)  # an IndexError where there are too few dims, as torch's
        raise CallError(
            f"Expected 3D or 4D (batch mode) tensor for input with possibly 0 batch size, but got: {list(input._type.shape)}"
        )
    if 0 in x._type.shape[1:]:
        raise CallError(
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but got: "
            f"{list(input._type.shape)}"
        )
    k, d, p, s = each(kernel_size, 2), each(dilation, 2), each(padding, 2), each(stride, 2)
    for name, values, least in (("kernel", k, 1), ("dilation", d, 1), ("stride", s, 1), ("padding", p, 0)):
        if min(values) < least:
            bound = "non-negative" if name == "padding" else "greater than zero"
            prefix = "pad" if name == "padding" else name
            raise CallError(f"{name} should be {bound}, but got {prefix}_height: {values[0]} {prefix}_width: {values[1]}")
    x = pad(x, (p[1], p[1], p[0], p[0])) if any(p) else x
    sizes = [(n - d[i] * (k[i] - 1) - 1) // s[i] + 1 for i, n in enumerate(x._type.shape[2:])]
    if min(sizes) < 1:
        raise CallError(
            f"Given input with spatial size {list(input._type.shape[-2:])}, the windows {list(k)} do not fit: output is too small"
        )
    rows, columns = ([slice(at * d[i], at * d[i] + (sizes[i] - 1) * s[i] + 1, s[i]) for at in range(k[i])] for i in (0, 1))
    windows = [x[:, :, r, c].flatten(2) for r in rows for c in columns]
    out = stack(windows, 2).flatten(1, 2)
    return out if batched else out.squeeze(0)


def fold(
    input: Tensor, output_size: Ints, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
) -> Tensor:  # fmt: skip
    """Add columns up where their windows were: [n, c * kh * kw, windows] -> [n, c, h, w]."""
    if input.ndim not in (2, 3):
        raise CallError(f"Input Error: Only unbatched (2D) or batched (3D) input Tensors are supported (got {input.ndim}D)")
    size, k, d, p, s = (each(v, 2) for v in (output_size, kernel_size, dilation, padding, stride))
    counts = [(size[i] + 2 * p[i] - d[i] * (k[i] - 1) - 1) // s[i] + 1 for i in (0, 1)]
    x = input if input.ndim == 3 else input.unsqueeze(0)
    n, width, windows = x._type.shape
    if width % (k[0] * k[1]):
        raise CallError(
            "Expected size of input's dimension 1 to be divisible by the product of kernel_size, but got input.size(1)="
            f"{width} and kernel_size={k}."
        )
    if windows != counts[0] * counts[1]:
        raise CallError(
            f"Given output_size={size}, kernel_size={k}, dilation={d}, padding={p}, stride={s}, expected size of input's dimension 2 to "
            f"match the calculated number of sliding blocks {counts[0]} * {counts[1]} = {counts[0] * counts[1]}, but got "
            f"input.size(2)={windows}."
        )
    rows, columns = (d[i] * np.arange(k[i])[:, None] + s[i] * np.arange(counts[i]) for i in (0, 1))
    high, wide = size[0] + 2 * p[0], size[1] + 2 * p[1]
    at = rows[:, None, :, None] * wide + columns[None, :, None, :]  # tap, tap, window, window
    channels = width // (k[0] * k[1])
    flat = x.reshape(n, channels, at.size)
    out = x.new_zeros((n, channels, high * wide)).index_add(2, from_numpy(at.reshape(-1)), flat).reshape(n, channels, high, wide)
    out = out[:, :, p[0] : high - p[0], p[1] : wide - p[1]]
    return out if input.ndim == 3 else out.squeeze(0)


__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "fold", "unfold"]
