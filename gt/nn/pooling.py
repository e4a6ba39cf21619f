"""Pooling as modules. Next: ``functional.pooling``."""

from __future__ import annotations

from typing import Any

from gt.ir.types import is_int
from gt.nn import functional as F  # noqa: N812 - torch's name
from gt.nn.module import Module
from gt.tensor import Tensor


class MaxPool2d(Module):
    """The largest of each window of [n, c, h, w]."""

    function: Any = staticmethod(F.max_pool2d)

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation, self.return_indices, self.ceil_mode = padding, dilation, return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        return type(self).function(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            ceil_mode=self.ceil_mode,
            return_indices=self.return_indices,
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(MaxPool2d):
    """The largest of each window of [n, c, l]."""

    function = staticmethod(F.max_pool1d)


class MaxPool3d(MaxPool2d):
    """The largest of each window of [n, c, d, h, w]."""

    function = staticmethod(F.max_pool3d)


class AvgPool1d(Module):
    """The average of each window of [n, c, l]."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        one = lambda v: (v,) if is_int(v) else v  # noqa: E731 - torch shows these as tuples
        self.kernel_size, self.stride = one(kernel_size), one(kernel_size if stride is None else stride)
        self.padding, self.ceil_mode, self.count_include_pad = one(padding), ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """The average of each window of [n, c, h, w]."""

    function: Any = staticmethod(F.avg_pool2d)

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool3d(AvgPool2d):
    """The average of each window of [n, c, d, h, w]."""

    function = staticmethod(F.avg_pool3d)


class LPPool2d(Module):
    """The p-norm of each window of [n, c, h, w]."""

    function: Any = staticmethod(F.lp_pool2d)

    def __init__(self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> None:
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(LPPool2d):
    """The p-norm of each window of [n, c, l]."""

    function = staticmethod(F.lp_pool1d)


class LPPool3d(LPPool2d):
    """The p-norm of each window of [n, c, d, h, w]."""

    function = staticmethod(F.lp_pool3d)


class AdaptiveAvgPool2d(Module):
    """Averages of ``output_size`` that cover the last two dims."""

    function: Any = staticmethod(F.adaptive_avg_pool2d)

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """Averages of ``output_size`` that cover the last dim."""

    function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool3d(AdaptiveAvgPool2d):
    """Averages of ``output_size`` that cover the last three dims."""

    function = staticmethod(F.adaptive_avg_pool3d)


class AdaptiveMaxPool2d(Module):
    """Maxima of ``output_size`` that cover the last two dims."""

    function: Any = staticmethod(F.adaptive_max_pool2d)

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input: Tensor) -> Any:
        return type(self).function(input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(AdaptiveMaxPool2d):
    """Maxima of ``output_size`` that cover the last dim."""

    function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool3d(AdaptiveMaxPool2d):
    """Maxima of ``output_size`` that cover the last three dims."""

    function = staticmethod(F.adaptive_max_pool3d)


class MaxUnpool2d(Module):
    """Values at the places that ``MaxPool2d`` found them, zeros elsewhere."""

    function: Any = staticmethod(F.max_unpool2d)
    dims = 2

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        each = lambda v: (v,) * self.dims if is_int(v) else tuple(v)  # noqa: E731 - torch shows these as tuples
        self.kernel_size, self.stride = each(kernel_size), each(kernel_size if stride is None else stride)
        self.padding = each(padding)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return type(self).function(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(MaxUnpool2d):
    """Values at the places that ``MaxPool1d`` found them, zeros elsewhere."""

    function = staticmethod(F.max_unpool1d)
    dims = 1


class MaxUnpool3d(MaxUnpool2d):
    """Values at the places that ``MaxPool3d`` found them, zeros elsewhere."""

    function = staticmethod(F.max_unpool3d)
    dims = 3
