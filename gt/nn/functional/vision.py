"""Rearranging and resizing images."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.functions import create, linalg, pointwise
from gt.functions.promote import cast
from gt.functions.shape import stack
from gt.handle import Handle
from gt.ir.types import CallError, DType, KindError, float32, float64, int64, scalar_type, uint8
from gt.nn.functional.pooling import adaptive_avg

if TYPE_CHECKING:
    from gt.tensor import Tensor


def _check_shuffle(name: str, input: Tensor, least: int, argument: str, factor: int) -> None:
    if input.ndim < least:
        raise CallError(f"{name} expects input to have at least {least} dimensions, but got input with {input.ndim} dimension(s)")
    if factor <= 0:
        raise CallError(f"{name} expects a positive {argument}, but got {factor}")


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Give where each output position lies in the input: [n, 2, 3] for size [n, c, h, w] -> [n, h, w, 2]; [n, 3, 4] in 3-d."""
    if theta.dtype.kind != "f":
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    dims = len(size) - 2
    if dims not in (2, 3):
        raise NotImplementedError(
            "affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively. Got size "
            f"{list(size)}."
        )
    if theta.ndim != 3 or tuple(theta.shape[1:]) != (dims, dims + 1):
        raise ValueError(
            f"Expected a batch of {dims}D affine matrices of shape Nx{dims}x{dims + 1} for size {list(size)}. Got {tuple(theta.shape)}."
        )
    if min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {list(size)}")
    spatial = tuple(size[2:])
    axes = []
    for d, n in enumerate(spatial):
        at = create.linspace(-1, 1, n, dtype=theta.dtype) if n > 1 else create.zeros(1, dtype=theta.dtype)
        at = at if align_corners else at * ((n - 1) / n)
        axes.append(at.reshape(*(-1 if i == d else 1 for i in range(dims))).expand(*spatial))
    base = stack([*axes[::-1], create.ones(*spatial, dtype=theta.dtype)], -1).reshape(1, -1, dims + 1)
    return linalg.matmul(base, theta.transpose(1, 2)).reshape(size[0], *spatial, dims)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Move channels into space: [..., c * r * r, h, w] -> [..., c, h * r, w * r]."""
    r = upscale_factor
    _check_shuffle("pixel_shuffle", input, 3, "upscale_factor", r)
    *lead, channels, h, w = input._type.shape
    if channels % (r * r):
        raise CallError(
            f"pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, but "
            f"input.size(-3)={channels} is not divisible by {r * r}"
        )
    n, c = len(lead), channels // (r * r)
    apart = input.reshape(*lead, c, r, r, h, w)
    return apart.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2).clone().reshape(*lead, c, h * r, w * r)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Move space into channels: [..., c, h * r, w * r] -> [..., c * r * r, h, w]."""
    r = downscale_factor
    _check_shuffle("pixel_unshuffle", input, 3, "downscale_factor", r)
    *lead, c, h, w = input._type.shape
    if h % r or w % r:
        raise CallError(f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but got {h}x{w} and {r}")
    n = len(lead)
    apart = input.reshape(*lead, c, h // r, r, w // r, r)
    return apart.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3).clone().reshape(*lead, c * r * r, h // r, w // r)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Interleave the channels (dim 1) of ``groups`` groups."""
    if groups <= 0:
        raise CallError(f"Number of groups to divide channels in must be positive. Value of groups:{groups}")
    if input.ndim < 3:
        raise CallError(f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(input._type.shape)}")
    n, c, *rest = input._type.shape
    if c % groups:
        raise CallError("Number of channels must be divisible by groups. Got " + f"{c} channels and {groups} groups.")
    return input.reshape(n, groups, c // groups, *rest).transpose(1, 2).clone().reshape(n, c, *rest)


def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Resize the spatial dims. ``mode``: "nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic" or "area"."""
    dims = input.ndim - 2
    linear = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}
    if antialias:
        raise NotImplementedError("interpolate: antialias=True is not supported: average windows first, for example with avg_pool2d")
    if mode not in linear and mode not in ("nearest", "nearest-exact", "area"):
        raise NotImplementedError(f"Input Error: unknown interpolation mode {mode!r}")
    if dims not in (1, 2, 3):
        raise NotImplementedError(
            f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {input.ndim}D) for the modes: nearest | linear | bilinear | "
            f"bicubic | trilinear | area | nearest-exact (got {mode})"
        )
    if mode in linear and linear[mode] != dims:
        raise NotImplementedError(f"Got {input.ndim}D input, but {mode} mode needs {linear[mode] + 2}D input")
    if input.dtype.kind != "f" and input.dtype is not uint8:
        raise KindError(f"interpolate is not implemented for '{scalar_type(input.dtype)}'")
    if 0 in input._type.shape[1:]:
        raise CallError(f"Non-empty {input.ndim}D data tensor expected but got a tensor with sizes {list(input._type.shape)}")
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
    if size is not None and recompute_scale_factor:
        raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
    shape = input._type.shape[2:]
    sizes, factors = _sizes(shape, size, scale_factor)
    factors = (None,) * dims if recompute_scale_factor else factors
    if mode == "area":
        return adaptive_avg(dims, input, sizes)
    if input.dtype is uint8 and mode in ("linear", "trilinear"):
        raise KindError(f"\"interpolate\" of mode {mode!r} not implemented for 'Byte'")
    if min(sizes, default=1) <= 0:
        given, made = (", ".join(f"{d}: {n}" for d, n in zip("DHW"[3 - dims :], of, strict=True)) for of in (shape, sizes))
        raise CallError(f"Input and output sizes should be greater than 0, but got input ({given}) output ({made})")
    weights = _cubic_weights if mode == "bicubic" else _linear_weights
    out = input
    for d, (n, o, f) in reversed(list(enumerate(zip(shape, sizes, factors, strict=True), start=2))):
        step = n / o if f is None else 1 / f
        if mode in linear and input.dtype is uint8:
            out = _along_bytes(out, d, weights(n, o, step, bool(align_corners), float64))
        elif mode in linear:
            out = _along(out, d, weights(n, o, step, bool(align_corners), input.dtype))
        else:
            at = (create.arange(o, dtype=float32) + (0.5 if mode == "nearest-exact" else 0.0)) * step
            out = out.index_select(d, cast(at.floor(), int64).clamp(max=n - 1))
    return out.contiguous()


def _sizes(shape: tuple[int, ...], size: Any, scale_factor: Any) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Give the sizes of the result, and by how much each dim grows if that was given."""
    dims = len(shape)
    given = size if size is not None else scale_factor
    each = tuple(given) if isinstance(given, list | tuple) else (given,) * dims
    each = tuple([g.item() if isinstance(g, Handle) and not g.ndim else g for g in each])
    what = "size" if size is not None else "scale_factor"
    kinds = (int, np.integer) if size is not None else (int, float, np.integer, np.floating)
    if any(isinstance(g, bool) or not isinstance(g, kinds) for g in each):
        raise TypeError(f"interpolate(): expected {what} to be a number or a tuple of {dims} numbers, but got {given!r}")
    if len(each) != dims:
        raise ValueError(
            f"Input and {'output' if size is not None else what} must have the same number of spatial dimensions, but got input with "
            f"spatial dimensions of {list(shape)} and {'output size' if size is not None else f'{what} of shape'} {each}."
        )
    if size is not None:
        return tuple(int(s) for s in each), (None,) * dims
    if not all(math.isfinite(f) for f in each):
        raise CallError("value cannot be converted to type int64_t without overflow")
    return tuple(math.floor(n * f) for n, f in zip(shape, each, strict=True)), each


def _along_bytes(x: Tensor, dim: int, weights: Tensor) -> Tensor:
    """Do ``_along`` of uint8 as torch: with weights of 15 bits, rounded and kept in range after each dim."""
    scale = 2.0 ** (pointwise.log2(32767.5 / weights.amax()).ceil() - 1)
    whole = (weights.abs() * scale + 0.5).floor() * weights.sign()
    return cast((_along(cast(x, float64), dim, whole) / scale + 0.5).floor().clamp(0, 255), uint8)


def _along(x: Tensor, dim: int, weights: Tensor) -> Tensor:
    """Multiply one dim by a matrix [out, in]."""
    return linalg.matmul(x.movedim(dim, -1), weights.mT).movedim(-1, dim)


def _linear_weights(size: int, out: int, step: float, align_corners: bool, dtype: DType) -> Tensor:
    """Give the matrix [out, size] of linear interpolation."""
    wide = float64 if dtype is float64 else float32
    at = _sources(size, out, step, align_corners, wide).clamp(min=0)
    low = at.floor().clamp(max=size - 1)
    share = (at - low).clamp(0, 1).unsqueeze(1)
    return cast(_hits(low, size, wide) * (1 - share) + _hits(low + 1, size, wide) * share, dtype)


def _sources(size: int, out: int, step: float, align_corners: bool, dtype: DType) -> Tensor:
    """Give where in the input each element of the result lies."""
    line = create.arange(out, dtype=dtype)
    return line * ((size - 1) / (out - 1) if out > 1 else 0.0) if align_corners else (line + 0.5) * step - 0.5


def _hits(at: Tensor, size: int, dtype: DType) -> Tensor:
    """Give the matrix [out, size] of ones at whole positions, those beyond the edges at the edges."""
    return cast(create.arange(size, dtype=dtype) == at.clamp(0, size - 1).unsqueeze(1), dtype)


def _cubic_weights(size: int, out: int, step: float, align_corners: bool, dtype: DType) -> Tensor:
    """Give the matrix [out, size] of cubic convolution, a = -0.75. Source: Keys 1981."""
    wide, a = (float64 if dtype is float64 else float32), -0.75
    at = _sources(size, out, step, align_corners, wide)
    low = at.floor()
    t = at - low
    far = lambda x: ((a * x - 5 * a) * x + 8 * a) * x - 4 * a  # noqa: E731 - between one and two elements away
    near = lambda x: ((a + 2) * x - (a + 3)) * x * x + 1  # noqa: E731
    shares = (far(t + 1), near(t), near(1 - t), far(2 - t))
    parts = [_hits(low + k, size, wide) * share.unsqueeze(1) for k, share in enumerate(shares, start=-1)]
    return cast(parts[0] + parts[1] + parts[2] + parts[3], dtype)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Do ``interpolate`` to the nearest element; torch's old name."""
    warnings.warn("`nn.functional.upsample_nearest` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=2)
    return interpolate(input, size, scale_factor, mode="nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Do ``interpolate`` bilinearly with corners aligned; torch's old name."""
    warnings.warn("`nn.functional.upsample_bilinear` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=2)
    return interpolate(input, size, scale_factor, mode="bilinear", align_corners=True)


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """Do ``interpolate``; torch's old name."""
    warnings.warn("`nn.functional.upsample` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=2)
    return interpolate(input, size, scale_factor, mode, align_corners)


__all__ = ["channel_shuffle", "interpolate", "pixel_shuffle", "pixel_unshuffle", "upsample", "upsample_bilinear", "upsample_nearest"]
