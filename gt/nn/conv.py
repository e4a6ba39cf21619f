"""Convolution layers with torch's constructors, parameter names and initialisation. Next: ``functional.conv``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.functions import create
from gt.ir.types import is_int
from gt.nn import functional as F  # noqa: N812 - torch's name
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.tensor import Tensor

MODES = {"zeros", "reflect", "replicate", "circular"}


def _tuple(value: Any, dims: int) -> tuple[int, ...]:
    return (value,) * dims if is_int(value) else tuple(value)


class _ConvNd(Module):
    """What convolutions and their transposes share."""

    dims: int
    function: Any
    transposed = False
    weight: Parameter
    bias: Parameter | None

    def _setup(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, output_padding: Any,
        groups: int, bias: bool, padding_mode: str, dtype: Any,
    ) -> None:  # fmt: skip
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups:
            raise ValueError("out_channels must be divisible by groups")
        n = self.dims
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, _tuple(kernel_size, n)
        self.stride, self.dilation, self.output_padding = (
            _tuple(stride, n),
            _tuple(dilation, n),
            _tuple(output_padding, n),
        )
        self.padding: Any = padding if isinstance(padding, str) else _tuple(padding, n)
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'same', 'valid'}}")
            if padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError("padding='same' is not supported for strided convolutions")
        if padding_mode not in MODES:
            raise ValueError(f"padding_mode must be one of {MODES}, but got padding_mode='{padding_mode}'")
        self.groups, self.padding_mode = groups, padding_mode
        channels = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(create.empty(*channels, *self.kernel_size, dtype=dtype))
        self.register_parameter("bias", Parameter(create.empty(out_channels, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and bias uniformly within 1 / sqrt(fan_in)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = self.weight.shape[1] * math.prod(self.weight.shape[2:])
            bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    @property
    def _reversed_padding_repeated_twice(self) -> list[int]:
        return self._edges()

    def _edges(self) -> list[int]:
        """Give the padding as ``pad`` takes it: last dim first, low and high."""
        out = []
        for i in reversed(range(self.dims)):
            if isinstance(self.padding, str):
                total = self.dilation[i] * (self.kernel_size[i] - 1) if self.padding == "same" else 0
                out += [total // 2, total - total // 2]
            else:
                out += [self.padding[i]] * 2
        return out

    def extra_repr(self) -> str:
        n = self.dims
        s = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0,) * n:
            s += f", padding={self.padding}"
        if self.dilation != (1,) * n:
            s += f", dilation={self.dilation}"
        if self.output_padding != (0,) * n:
            s += f", output_padding={self.output_padding}"
        if self.groups != 1:
            s += f", groups={self.groups}"
        if self.bias is None:
            s += ", bias=False"
        if self.padding_mode != "zeros":
            s += f", padding_mode={self.padding_mode}"
        return s


class _Conv(_ConvNd):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._setup(in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, bias, padding_mode, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Correlate with other weights: what layers that change theirs call."""
        padding = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._edges(), self.padding_mode), 0
        return type(self).function(input, weight, bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Conv):
    """Correlate [n, in, l] -> [n, out, l']."""

    dims, function = 1, staticmethod(F.conv1d)


class Conv2d(_Conv):
    """Correlate [n, in, h, w] -> [n, out, h', w']."""

    dims, function = 2, staticmethod(F.conv2d)


class Conv3d(_Conv):
    """Correlate [n, in, d, h, w] -> [n, out, d', h', w']."""

    dims, function = 3, staticmethod(F.conv3d)


class _ConvTransposeNd(_ConvNd):
    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
        groups: int = 1, bias: bool = True, dilation: Any = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        self._setup(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            bias,
            padding_mode,
            dtype,
        )

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra = self.output_padding if output_size is None else self._extra(input, tuple(output_size))
        return type(self).function(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _extra(self, input: Tensor, size: tuple[int, ...]) -> tuple[int, ...]:
        """Give the output padding that makes the output of ``size``."""
        n, lead = self.dims, input.ndim - self.dims
        wanted = size[lead:] if len(size) == lead + n else size
        if len(wanted) != n:
            raise ValueError(
                f"ConvTranspose{n}D: for {input.ndim}D input, output_size must have {n} or {lead + n} elements (got {len(wanted)})"
            )
        each = zip(input.shape[lead:], self.stride, self.padding, self.dilation, self.kernel_size, strict=True)
        low = [(m - 1) * s - 2 * p + d * (k - 1) + 1 for m, s, p, d, k in each]
        high = [m + s - 1 for m, s in zip(low, self.stride, strict=True)]
        if any(not a <= w <= b for a, w, b in zip(low, wanted, high, strict=True)):
            raise ValueError(
                f"requested an output size of {list(wanted)}, but valid sizes range from {low} to {high} (for an input of "
                f"{tuple(input.shape[2:])})"
            )
        return tuple(w - a for w, a in zip(wanted, low, strict=True))


class ConvTranspose1d(_ConvTransposeNd):
    """The transpose of Conv1d: [n, in, l] -> [n, out, l']."""

    dims, function = 1, staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTransposeNd):
    """The transpose of Conv2d: [n, in, h, w] -> [n, out, h', w']."""

    dims, function = 2, staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_ConvTransposeNd):
    """The transpose of Conv3d: [n, in, d, h, w] -> [n, out, d', h', w']."""

    dims, function = 3, staticmethod(F.conv_transpose3d)
