"""``gt.testing``: comparing tensors in tests. Source: torch.testing. Reads values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gt.functions import create, draw
from gt.handle import Handle
from gt.ir.types import DType, dtype_of

TOLERANCES = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}  # fmt: skip
LOOSER = {"float16": (1e-3, 1e-3), "float32": (1e-4, 1e-5), "float64": (1e-5, 1e-8)}  # of assert_allclose


def assert_close(
    actual: Any, expected: Any, *, allow_subclasses: bool = True, rtol: float | None = None, atol: float | None = None,
    equal_nan: bool = False, check_device: bool = True, check_dtype: bool = True, check_layout: bool = True, check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:  # fmt: skip
    """Raise AssertionError unless tensors, numbers, or sequences and mappings of them are close: |a - b| <= atol + rtol * |b|.

    Without ``rtol`` and ``atol`` they follow the dtypes, as torch's.
    """
    if (rtol is None) != (atol is None):
        raise ValueError(
            f"Both 'rtol' and 'atol' must be either specified or unspecified, but got rtol={rtol} and atol={atol} instead."
        )
    fault = _fault(actual, expected, "", rtol, atol, equal_nan, check_dtype, check_stride)
    if fault:
        raise AssertionError(fault if msg is None else msg(fault) if callable(msg) else msg)


def assert_allclose(
    actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = True, msg: str = ""
) -> None:
    """Do ``assert_close`` of values made tensors, whatever their dtypes; NaNs are equal. Deprecated in torch."""
    a: Any = actual if isinstance(actual, Handle) else create.tensor(actual)
    b: Any = expected if isinstance(expected, Handle) else create.tensor(expected, dtype=a.dtype)
    if rtol is None and atol is None:
        known = [LOOSER.get(v.dtype.name, (0.0, 0.0)) for v in (a, b)]
        rtol, atol = max(k[0] for k in known), max(k[1] for k in known)
    assert_close(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=False, msg=msg or None)


def _fault(
    a: Any, b: Any, at: str, rtol: float | None, atol: float | None, equal_nan: bool, check_dtype: bool, check_stride: bool
) -> str:
    more = (rtol, atol, equal_nan, check_dtype, check_stride)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            return f"The keys of the mappings do not match:\n{sorted(map(str, a))} and {sorted(map(str, b))}{at}"
        return next((f for k in a if (f := _fault(a[k], b[k], f"\n\nThe failure occurred for item [{k!r}]", *more))), "")
    if all(isinstance(v, Sequence) and not isinstance(v, str | bytes) for v in (a, b)):
        if len(a) != len(b):
            return f"The length of the sequences mismatch: {len(a)} != {len(b)}{at}"
        each = enumerate(zip(a, b, strict=True))
        return next((f for i, (x, y) in each if (f := _fault(x, y, f"\n\nThe failure occurred for item [{i}]", *more))), "")
    if a is None and b is None:
        return ""
    for v in (a, b):
        if not isinstance(v, Handle | int | float | complex | np.ndarray | np.generic):
            raise TypeError(f"No comparison pair was able to handle inputs of type {type(a)} and {type(b)}.")
    if isinstance(a, Handle) != isinstance(b, Handle):
        raise TypeError(f"No comparison pair was able to handle inputs of type {type(a)} and {type(b)}.")
    return _difference(a, b, at, *more)


def _values(t: Any) -> np.ndarray[Any, Any]:
    if not isinstance(t, Handle):
        return np.asarray(t)
    own: Any = t.detach()
    return np.asarray((own.float() if t.dtype.name in ("bfloat16", "float16") else own).numpy())


def _difference(
    a: Any, b: Any, at: str, rtol: float | None, atol: float | None, equal_nan: bool, check_dtype: bool, check_stride: bool
) -> str:
    x, y = _values(a), _values(b)
    word = "Tensor-likes" if isinstance(a, Handle) else "Scalars"
    if x.shape != y.shape:
        return f"The values for attribute 'shape' do not match: {a.shape} != {b.shape}.{at}"
    names = [v.dtype.name if hasattr(v, "dtype") else "float64" if isinstance(v, float) else "int64" for v in (a, b)]
    if isinstance(a, Handle) and check_dtype and a.dtype is not b.dtype:
        return f"The values for attribute 'dtype' do not match: {a.dtype} != {b.dtype}.{at}"
    if isinstance(a, Handle) and check_stride and a.stride() != b.stride():
        return f"The values for attribute 'stride()' do not match: {a.stride()} != {b.stride()}.{at}"
    limits = [TOLERANCES.get(n, (0.0, 0.0)) for n in names]
    relative = max(lim[0] for lim in limits) if rtol is None else rtol
    absolute = max(lim[1] for lim in limits) if atol is None else atol
    close = np.isclose(x, y, relative, absolute, equal_nan=equal_nan)
    if close.all():
        return ""
    wide = np.complex128 if "c" in (x.dtype.kind, y.dtype.kind) else np.float64
    with np.errstate(all="ignore"):
        gap = np.where(close, 0, np.abs(x.astype(wide) - y.astype(wide)))
        ratio = gap / np.abs(y.astype(wide))
    first, second = (np.unravel_index(int(np.nanargmax(np.nan_to_num(v))), v.shape) for v in (gap, ratio))
    equal = not relative and not absolute
    where = lambda i: f" at index {tuple(map(int, i))}" if x.ndim else ""  # noqa: E731
    allowed = lambda v: "" if equal else f" (up to {v} allowed)"  # noqa: E731
    text = f"{word} are not {'equal' if equal else 'close'}!\n\n"
    if x.ndim:
        text += f"Mismatched elements: {int((~close).sum())} / {x.size} ({100 * (~close).mean():.1f}%)\n"
    text += f"{'Greatest absolute' if x.ndim else 'Absolute'} difference: {gap[first]}{where(first)}{allowed(absolute)}\n"
    return (
        text + f"{'Greatest relative' if x.ndim else 'Relative'} difference: {ratio[second]}{where(second)}{allowed(relative)}{at}"
    )


def make_tensor(
    *shape: Any, dtype: DType, device: Any = None, low: float | None = None, high: float | None = None, requires_grad: bool = False,
    noncontiguous: bool = False, exclude_zero: bool = False, memory_format: Any = None,
) -> Any:  # fmt: skip
    """Give a tensor of values drawn evenly from low to high: -9 to 9 unless given, 0 to 9 for uint8."""
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    kind = dtype_of(dtype)
    if kind.kind == "b":
        return draw.randint(0, 2, sizes).to(kind)
    start = low if low is not None else 0 if kind.kind == "u" else -9
    end = high if high is not None else 10 if kind.kind in "iu" else 9
    if kind.kind in "iu":
        out = draw.randint(int(start), int(end), sizes, dtype=kind)
    elif kind.kind == "c":
        parts = [draw.rand(*sizes) * (end - start) + start for _ in range(2)]
        out = (parts[0] + parts[1] * 1j).to(kind)
    else:
        out = (draw.rand(*sizes, dtype=kind) * (end - start) + start).to(kind)
    if exclude_zero:
        out = out + (out == 0).to(kind)
    return out.requires_grad_(requires_grad) if requires_grad else out


__all__ = ["assert_allclose", "assert_close", "make_tensor"]
