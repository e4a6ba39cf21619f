"""The array API's ``fft`` extension: ``axis`` for ``dim``.

Next: ``gt.functions.fourier``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gt.array_api.manipulation import axes_of
from gt.devices import check_options
from gt.functions import fourier
from gt.functions.promote import get_default_dtype
from gt.ir.types import DType
from gt.naming import named

if TYPE_CHECKING:
    from gt.tensor import Tensor

Norm = Literal["backward", "ortho", "forward"]


def _one(function: Callable[..., Any]) -> Any:
    """Give a transform along one axis."""

    def transform(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
        return function(x, n, axis, norm)

    return named(transform, function.__name__, function.__doc__)


def _many(function: Callable[..., Any]) -> Any:
    """Give a transform along several axes."""

    def transform(
        x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
    ) -> Tensor:
        return function(x, s, axes, norm)

    return named(transform, function.__name__, function.__doc__)


fft, ifft, rfft, irfft = _one(fourier.fft), _one(fourier.ifft), _one(fourier.rfft), _one(fourier.irfft)
hfft, ihfft = _one(fourier.hfft), _one(fourier.ihfft)
fftn, ifftn, rfftn, irfftn = _many(fourier.fftn), _many(fourier.ifftn), _many(fourier.rfftn), _many(fourier.irfftn)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None) -> Tensor:
    """Give the frequencies of ``fft``'s results."""
    check_options("fftfreq", device)
    return fourier.fftfreq(n, d, dtype=dtype or get_default_dtype())


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None) -> Tensor:
    """Give the frequencies of ``rfft``'s results."""
    check_options("rfftfreq", device)
    return fourier.rfftfreq(n, d, dtype=dtype or get_default_dtype())


def fftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Move frequency 0 to the middle."""
    return fourier.fftshift(x, None if axes is None else axes_of(_axes(axes), x.ndim))


def ifftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Move frequency 0 to the front."""
    return fourier.ifftshift(x, None if axes is None else axes_of(_axes(axes), x.ndim))


def _axes(axes: int | Sequence[int]) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else tuple(axes)


__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft", "rfftfreq", "rfftn",
]  # fmt: skip
