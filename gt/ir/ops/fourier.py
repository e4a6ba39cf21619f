"""Discrete Fourier transforms over dims, as torch.fft's.

``norm`` names the direction that divides by the number of elements: "backward", "forward", or "ortho" (both, by its root).
Next: ``gt.functions.fourier`` (sizes, padding, one-dimensional and Hermitian forms).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Var, op
from gt.ir.ops import flops
from gt.ir.ops.broadcast import constant
from gt.ir.ops.elementwise import mul, real
from gt.ir.ops.families import along, check_kind
from gt.ir.ops.index import slice_scatter
from gt.ir.ops.movement import pad, slice
from gt.ir.types import Shape, TensorType, TypeMismatch, complex_dtype, float32, float64, real_dtype

Ints = tuple[int, ...]
OTHER = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    return along(operands, results, set(attrs["dims"]))


def _c2c_infer(x: TensorType, dims: Ints, inverse: bool, norm: str) -> TensorType:
    check_kind("fft", "c", x)
    return x


fft_c2c = op(
    "fft_c2c", "x", doc="Complex to complex transform over dims.",
    infer=_c2c_infer,
    numpy=lambda x, dims, inverse, norm: (np.fft.ifftn if inverse else np.fft.fftn)(x, axes=dims, norm=norm),
    torch=lambda names, attrs, types: (
        f"torch.fft.{'ifftn' if attrs['inverse'] else 'fftn'}({names[0]}, dim={attrs['dims']}, norm={attrs['norm']!r})"
    ),
    vjp=lambda g, y, x, dims, inverse, norm: (fft_c2c(g, dims=dims, inverse=not inverse, norm=OTHER[norm]),),
    factors=_rule, linear=((0,),), work=flops.fourier,
)  # fmt: skip


def _r2c_infer(x: TensorType, dims: Ints, norm: str) -> TensorType:
    if x.dtype not in (float32, float64):
        raise TypeMismatch(f"rfft: expected float32 or float64, got {x!r}")
    last = dims[-1]
    return TensorType((*x.shape[:last], x.shape[last] // 2 + 1, *x.shape[last + 1 :]), complex_dtype(x.dtype))


def _r2c_vjp(g: Var, y: Var, x: Var, dims: Ints, norm: str) -> tuple[Any]:
    """The adjoint: the missing half is zero, and the result real."""
    zero = (0,) * g.type.ndim
    missing = x.type.shape[dims[-1]] - g.type.shape[dims[-1]]
    high = tuple(missing if d == dims[-1] else 0 for d in range(g.type.ndim))
    whole = pad(g, low=zero, high=high, interior=zero, value=0.0) if missing else g
    return (real(fft_c2c(whole, dims=dims, inverse=True, norm=OTHER[norm])),)


fft_r2c = op(
    "fft_r2c", "x", doc="Real to the non-negative half of complex: the last of dims holds n // 2 + 1.",
    infer=_r2c_infer, numpy=lambda x, dims, norm: np.fft.rfftn(x, axes=dims, norm=norm),
    torch="torch.fft.rfftn({x}, dim={dims}, norm={norm})",
    vjp=_r2c_vjp, factors=_rule, linear=((0,),), work=flops.fourier, saves="x",
)  # fmt: skip


def _c2r_infer(x: TensorType, dims: Ints, size: int, norm: str) -> TensorType:
    check_kind("irfft", "c", x)
    last = dims[-1]
    return TensorType((*x.shape[:last], size, *x.shape[last + 1 :]), real_dtype(x.dtype))


def _c2r_vjp(g: Var, y: Var, x: Var, dims: Ints, size: int, norm: str) -> tuple[Any]:
    """What stands for two elements counts twice."""
    out = fft_r2c(g, dims=dims, norm=OTHER[norm])
    n, last = out.type.ndim, dims[-1]
    twice = size - out.type.shape[last]
    if twice <= 0:
        return (out,)
    where = {
        "starts": tuple(1 if d == last else 0 for d in range(n)),
        "stops": tuple(1 + twice if d == last else s for d, s in enumerate(out.type.shape)),
        "steps": (1,) * n,
    }
    middle = slice(out, **where)
    return (slice_scatter(out, mul(middle, constant(2, middle)), **where),)


def _c2r_numpy(x: np.ndarray, dims: Ints, size: int, norm: str) -> np.ndarray:
    return np.fft.irfftn(x, s=(*(x.shape[d] for d in dims[:-1]), size), axes=dims, norm=norm)


fft_c2r = op(
    "fft_c2r", "x", doc="The inverse of fft_r2c; the last of dims becomes `size`.",
    infer=_c2r_infer, numpy=_c2r_numpy,
    torch=lambda names, attrs, types: (
        f"torch.fft.irfftn({names[0]}, s={tuple(types[0].shape[d] for d in attrs['dims'])}, dim={attrs['dims']}, "
        f"norm={attrs['norm']!r})"
    ),
    vjp=_c2r_vjp, factors=_rule, linear=((0,),), work=flops.fourier,
)  # fmt: skip
