"""``torch.masked``: reductions and normalizations over the elements a mask keeps.

Next: ``gt.masked`` (the namespace).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.functions import norms, statistics
from gt.functions import reduce as red
from gt.functions.numeric import logaddexp as plain_logaddexp
from gt.functions.pointwise import abs as abs_
from gt.functions.pointwise import where
from gt.functions.promote import cast, floated
from gt.ir.types import DType, bool_, dtype_of, int64, is_int, normalize_dim
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor


def _dims(input: Tensor, dim: Any) -> tuple[int, ...]:
    if dim is None or (isinstance(dim, tuple | list) and not dim):
        return tuple(range(input.ndim))
    given = (dim,) if is_int(dim) else tuple(dim)
    dims = {normalize_dim(d, input.ndim) for d in given}
    return tuple(sorted(dims)) if input.ndim else ()


def _wide(input: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if mask is None:
        return input, None
    mask = cast(mask, bool_)
    while mask.ndim < input.ndim:
        mask = mask.unsqueeze(0)
    return input, mask if mask._type.shape == input._type.shape else mask.clone().expand(input._type.shape)  # torch's copy


def _filled(input: Tensor, mask: Tensor | None, value: Any) -> Tensor:
    input, mask = _wide(input, mask)
    return input if mask is None else where(mask, input, value)


def _out(input: Tensor, dtype: DType | str | None) -> DType:
    if dtype is not None:
        return dtype_of(dtype)
    return int64 if input.dtype.kind in "bui" else input.dtype


def sum(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Add up."""
    return red.sum(_filled(input, mask, 0), _dims(input, dim), keepdim, dtype=_out(input, dtype))


def prod(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Multiply."""
    out = cast(_filled(input, mask, 1), _out(input, dtype))
    for d in reversed(_dims(input, dim)):
        out = red.prod(out, d, keepdim)
    return out.clone() if out is input else out


def cumsum(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Add up along ``dim``, keeping partial sums."""
    return red.cumsum(_filled(input, mask, 0), dim, dtype=_out(input, dtype))


def cumprod(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Multiply along ``dim``, keeping partial products."""
    return red.cumprod(_filled(input, mask, 1), dim, dtype=_out(input, dtype))


def _extreme(dtype: DType, high: bool) -> Any:
    if dtype.kind == "f":
        return math.inf if high else -math.inf
    if dtype.kind == "b":
        return high
    info = np.iinfo(dtype.numpy)  # type: ignore[type-var]
    return int(info.max if high else info.min)


def amax(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Give the largest."""
    x = input if dtype is None else cast(input, dtype_of(dtype))
    return red.amax(_filled(x, mask, _extreme(x.dtype, False)), _dims(input, dim), keepdim)


def amin(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Give the smallest."""
    x = input if dtype is None else cast(input, dtype_of(dtype))
    return red.amin(_filled(x, mask, _extreme(x.dtype, True)), _dims(input, dim), keepdim)


def argmax(
    input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Give the index of the largest."""
    found = red.argmax(_filled(input, mask, _extreme(input.dtype, False)), dim, keepdim)
    return cast(found, input.dtype if dtype is None else dtype_of(dtype))


def argmin(
    input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Give the index of the smallest."""
    found = red.argmin(_filled(input, mask, _extreme(input.dtype, True)), dim, keepdim)
    return cast(found, input.dtype if dtype is None else dtype_of(dtype))


def _count(input: Tensor, mask: Tensor | None, dims: tuple[int, ...], keepdim: bool) -> Any:
    _, wide = _wide(input, mask)
    if wide is None:
        n = math.prod(input._type.shape[d] for d in dims)
        return n
    return red.sum(wide, dims, keepdim) if input.ndim else cast(wide, int64)


def mean(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Average."""
    x = input if dtype is None else cast(input, dtype_of(dtype))
    dims = _dims(input, dim)
    if mask is None and dtype is None and input.dtype.kind in "ui":
        raise ValueError(f"input with no mask and integer dtype is not supported: {input.dtype!r}")
    total = sum(x, dims, keepdim=keepdim, mask=mask)
    return total / _count(input, mask, dims, keepdim)


def median(
    input: Tensor, dim: int = -1, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Give the median along ``dim``; NaN where nothing is kept."""
    x = input if dtype is None else cast(input, dtype_of(dtype))
    if x.dtype.kind != "f":
        raise ValueError(f"input must be floating point, got {x.dtype!r}")
    return statistics.nanmedian(_filled(x, mask, math.nan), dim, keepdim).values


def logsumexp(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Give log(sum(exp(x)))."""
    x = input if dtype is None else cast(input, dtype_of(dtype))
    out = red.logsumexp(_filled(floated(x), mask, -math.inf), _dims(input, dim), keepdim)
    return cast(out, x.dtype) if x.dtype.kind in "bui" else out


def logaddexp(
    input: Tensor,
    other: Tensor,
    *,
    dtype: Any = None,
    input_mask: Tensor | None = None,
    other_mask: Tensor | None = None,
) -> Tensor:
    """Give log(exp(input) + exp(other)) of what the masks keep."""
    a, b = (x if dtype is None else cast(x, dtype_of(dtype)) for x in (input, other))
    return plain_logaddexp(_filled(a, input_mask, -math.inf), _filled(b, other_mask, -math.inf))


def _kept(given: dict[str, Any]) -> str:
    mask = given.get("mask")
    return "input result" if mask is None else "mask result" if mask._type.shape == given["input"]._type.shape else "result"


@saves(_kept)
def norm(
    input: Tensor,
    ord: float | None = 2.0,
    dim: Any = None,
    *,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Give the p-norm."""
    x = input if dtype is None else cast(input, dtype_of(dtype))
    order = 2.0 if ord is None else ord
    fill = math.inf if order == -math.inf or order < 0 else 0.0
    return norms.power_norm(_filled(x, mask, fill), order, _dims(input, dim), keepdim)


def var(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, *, correction: float | None = None, keepdim: bool = False,
    dtype: Any = None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Give the variance."""
    less = correction if correction is not None else 0 if unbiased is False else 1
    x = input if dtype is None else cast(input, dtype_of(dtype))
    x = floated(x)
    dims = _dims(input, dim)
    n = _count(input, mask, dims, True)
    centred = x - sum(x, dims, keepdim=True, mask=mask) / n
    total = sum(abs_(centred) ** 2, dims, keepdim=keepdim, mask=mask)
    n = _count(input, mask, dims, keepdim)
    left = n - less if isinstance(n, int) else cast(n, total.dtype) - less
    return total / (max(left, 0) if isinstance(n, int) else left.clamp(min=0))


def std(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, *, correction: float | None = None, keepdim: bool = False,
    dtype: Any = None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Give the standard deviation."""
    return var(input, dim, unbiased, correction=correction, keepdim=keepdim, dtype=dtype, mask=mask).sqrt()


def softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Give exp(x) / sum(exp(x)) along ``dim``."""
    x = input if dtype is None else cast(input, dtype_of(dtype))
    return red.softmax(_filled(x, mask, -math.inf), dim)


def log_softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Give log(softmax(x)) along ``dim``."""
    x = input if dtype is None else cast(input, dtype_of(dtype))
    return red.log_softmax(_filled(x, mask, -math.inf), dim)


def softmin(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Give softmax(-x) along ``dim``."""
    x = input if dtype is None else cast(input, dtype_of(dtype))
    return red.softmax(-_filled(x, mask, math.inf), dim)


def normalize(
    input: Tensor, ord: float, dim: int, *, eps: float = 1e-12, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Divide by the p-norm along ``dim``."""
    x = input if dtype is None else cast(input, dtype_of(dtype))
    size = norm(x, ord, dim, keepdim=True, mask=mask)
    return _filled(x, mask, 0) / size.clamp(min=eps)
