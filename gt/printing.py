"""How tensors print: torch's layout and number formats.

Owns: print options and formatting. Printing reads the value (a flush). Source: torch/_tensor_str.py's behaviour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.ir.types import bool_, complex64, float32, int64

if TYPE_CHECKING:
    from gt.tensor import Tensor


@dataclass
class PrintOptions:
    """precision: digits; threshold: elements above which the middle is left out; edgeitems: kept at each end."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


options = PrintOptions()


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None, linewidth: int | None = None,
    profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """Set how tensors print. ``profile``: "default", "short" or "full"."""
    presets: dict[str, tuple[int, float, int]] = {"default": (4, 1000, 3), "short": (2, 1000, 2), "full": (4, math.inf, 3)}
    if profile is not None:
        options.precision, options.threshold, options.edgeitems = presets[profile]
        options.linewidth = 80
    if precision is not None:
        options.precision = precision
    if threshold is not None:
        options.threshold = threshold
    if edgeitems is not None:
        options.edgeitems = edgeitems
    if linewidth is not None:
        options.linewidth = linewidth
    options.sci_mode = sci_mode


class _Format:
    """Formats the elements of one tensor to one width."""

    def __init__(self, values: np.ndarray) -> None:
        self.width, self.floating, self.sci, self.integral = 1, values.dtype.kind == "f", False, True
        if not self.floating:
            self.width = max((len(str(v)) for v in values.tolist()), default=1)
            return
        finite = values[np.isfinite(values) & (values != 0)].astype(np.float64)
        if finite.size:
            low, high = float(np.abs(finite).min()), float(np.abs(finite).max())
            self.integral = bool((finite == np.ceil(finite)).all())
            wide = high / low > 1000.0 or high > 1.0e8
            self.sci = wide if self.integral else wide or low < 1.0e-4
        if options.sci_mode is not None:
            self.sci = options.sci_mode
        self.width = max((len(self.plain(v)) for v in values.tolist()), default=1)

    def plain(self, value: Any) -> str:
        if not self.floating:
            return str(value)
        if self.sci:
            return f"{value:.{options.precision}e}"
        if not math.isfinite(value):
            return str(value)
        return f"{value:.0f}." if self.integral else f"{value:.{options.precision}f}"

    def __call__(self, value: Any) -> str:
        return self.plain(value).rjust(self.width)


def _edges(array: np.ndarray) -> np.ndarray:
    """Keep only the elements that print."""
    if array.size <= options.threshold:
        return array
    for dim, size in enumerate(array.shape):
        if size > 2 * options.edgeitems:
            keep = np.r_[0 : options.edgeitems, size - options.edgeitems : size]
            array = np.take(array, keep, axis=dim)
    return array


def _vector(array: np.ndarray, show: Any, indent: int, cut: bool) -> str:
    per_line = max(1, (options.linewidth - indent) // (show.width + 2))
    if cut and len(array) > 2 * options.edgeitems:
        n = options.edgeitems
        words = [show(v) for v in array[:n].tolist()] + [" ..."] + [show(v) for v in array[-n:].tolist()]
    else:
        words = [show(v) for v in array.tolist()]
    lines = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _nested(array: np.ndarray, show: Any, indent: int, cut: bool) -> str:
    if array.ndim == 0:
        return show(array.item())
    if array.ndim == 1:
        return _vector(array, show, indent, cut)
    n = options.edgeitems
    if cut and len(array) > 2 * n:
        parts = [_nested(a, show, indent + 1, cut) for a in array[:n]] + ["..."]
        parts += [_nested(a, show, indent + 1, cut) for a in array[-n:]]
    else:
        parts = [_nested(a, show, indent + 1, cut) for a in array]
    return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(parts) + "]"


class _ComplexFormat:
    def __init__(self, values: np.ndarray) -> None:
        self.real, self.imag = _Format(values.real), _Format(values.imag)
        self.width = self.real.width + self.imag.width + 1

    def __call__(self, value: complex) -> str:
        imag = self.imag(value.imag).lstrip()
        return f"{self.real(value.real)}{imag if imag[0] == '-' else '+' + imag}j"


def format_tensor(tensor: Tensor) -> str:
    """Give ``tensor([...], dtype=..., requires_grad=True)`` as torch would."""
    array = tensor._read()
    shown = _edges(array)
    notes = []
    if array.size == 0:
        body = "[]"
        if array.ndim != 1:
            notes.append(f"size={tuple(array.shape)}")
    else:
        flat = shown.reshape(-1)
        body = _nested(array, _ComplexFormat(flat) if array.dtype.kind == "c" else _Format(flat), 7, array.size > options.threshold)
    hidden = (float32, int64, bool_, complex64) if array.size else (float32,)
    if tensor.dtype not in hidden:
        notes.append(f"dtype={tensor.dtype!r}")
    if not tensor.is_leaf and tensor.requires_grad:
        notes.append(f"grad_fn=<{tensor.grad_fn}>")
    elif tensor.requires_grad:
        notes.append("requires_grad=True")
    head = "Parameter containing:\n" if type(tensor).__name__ == "Parameter" else ""
    return f"{head}tensor({', '.join([body, *notes])})"
