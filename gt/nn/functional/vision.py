"""Rearranging and resizing images."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

from gt.functions import create, linalg
from gt.functions.promote import cast
from gt.ir.types import DType, float32, int64

if TYPE_CHECKING:
    from gt.tensor import Tensor


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Move channels into space: [..., c * r * r, h, w] -> [..., c, h * r, w * r]."""
    r = upscale_factor
    *lead, channels, h, w = input._type.shape
    if channels % (r * r):
        raise RuntimeError(
            f"pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, but "
            f"input.size(-3)={channels} is not divisible by {r * r}"
        )
    n, c = len(lead), channels // (r * r)
    apart = input.reshape(*lead, c, r, r, h, w)
    return apart.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2).reshape(*lead, c, h * r, w * r)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Move space into channels: [..., c, h * r, w * r] -> [..., c * r * r, h, w]."""
    r = downscale_factor
    *lead, c, h, w = input._type.shape
    if h % r or w % r:
        raise RuntimeError(f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but got {h}x{w} and {r}")
    n = len(lead)
    apart = input.reshape(*lead, c, h // r, r, w // r, r)
    return apart.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3).reshape(*lead, c * r * r, h // r, w // r)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Interleave the channels (dim 1) of ``groups`` groups."""
    n, c, *rest = input._type.shape
    if c % groups:
        raise RuntimeError("Number of channels must be divisible by groups. Got " + f"{c} channels and {groups} groups.")
    return input.reshape(n, groups, c // groups, *rest).transpose(1, 2).reshape(n, c, *rest)


def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Resize the spatial dims. ``mode``: "nearest", "nearest-exact", "linear", "bilinear" or "trilinear"."""
    dims = input.ndim - 2
    linear = {"linear": 1, "bilinear": 2, "trilinear": 3}
    if antialias or mode in ("bicubic", "area"):
        raise NotImplementedError(
            f"interpolate: mode={mode!r}, antialias={antialias} is not supported: use 'bilinear', or adaptive_avg_pool for 'area'"
        )
    if mode not in linear and mode not in ("nearest", "nearest-exact"):
        raise NotImplementedError(f"Input Error: unknown interpolation mode {mode!r}")
    if mode in linear and linear[mode] != dims:
        raise NotImplementedError(f"Got {input.ndim}D input, but {mode} mode needs {linear[mode] + 2}D input")
    if align_corners is not None and mode not in linear:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
        )
    if (size is None) == (scale_factor is None):
        raise ValueError(
            "either size or scale_factor should be defined"
            if size is None
            else "only one of size or scale_factor should be defined"
        )
    shape = input._type.shape[2:]
    if size is not None:
        sizes = (size,) * dims if isinstance(size, int) else tuple(int(s) for s in size)
        factors: tuple[float | None, ...] = (None,) * dims
    else:
        given = (scale_factor,) * dims if isinstance(scale_factor, int | float) else tuple(scale_factor)
        sizes = tuple(math.floor(n * f) for n, f in zip(shape, given, strict=True))
        factors = (None,) * dims if recompute_scale_factor else given
    if len(sizes) != dims:
        raise ValueError(f"Input and output must have the same number of spatial dimensions, but got {dims} and {len(sizes)}")
    out = input
    for d, (n, o, f) in enumerate(zip(shape, sizes, factors, strict=True), start=2):
        step = n / o if f is None else 1 / f
        if mode in linear:
            out = _along(out, d, _linear_weights(n, o, step, bool(align_corners), input.dtype))
        else:
            at = (create.arange(o, dtype=float32) + (0.5 if mode == "nearest-exact" else 0.0)) * step
            out = out.index_select(d, cast(at.floor(), int64).clamp(max=n - 1))
    return out


def _along(x: Tensor, dim: int, weights: Tensor) -> Tensor:
    """Multiply one dim by a matrix [out, in]."""
    return linalg.matmul(x.movedim(dim, -1), weights.mT).movedim(-1, dim)


def _linear_weights(size: int, out: int, step: float, align_corners: bool, dtype: DType) -> Tensor:
    """Give the matrix [out, size] of linear interpolation."""
    line = create.arange(out, dtype=float32)
    if align_corners:
        at = line * ((size - 1) / (out - 1) if out > 1 else 0.0)
    else:
        at = ((line + 0.5) * step - 0.5).clamp(min=0)
    low = at.floor().clamp(max=size - 1)
    share = (at - low).clamp(0, 1).unsqueeze(1)
    place = create.arange(size, dtype=float32)
    left = cast(place == low.unsqueeze(1), float32)
    right = cast(place == (low + 1).clamp(max=size - 1).unsqueeze(1), float32)
    return cast(left * (1 - share) + right * share, dtype)


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """Do ``interpolate``; torch's old name."""
    warnings.warn("`nn.functional.upsample` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=2)
    return interpolate(input, size, scale_factor, mode, align_corners)


__all__ = ["channel_shuffle", "interpolate", "pixel_shuffle", "pixel_unshuffle", "upsample"]
