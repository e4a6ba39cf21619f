"""``torch.signal.windows``: window functions. They are made on the client, in float64, and rounded once.

Next: ``create`` (upload).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.functions.create import upload
from gt.functions.promote import get_default_dtype
from gt.ir.types import dtype_of

if TYPE_CHECKING:
    from gt.tensor import Tensor


def _make(
    name: str,
    M: int,
    dtype: Any,
    requires_grad: bool,
    window: Callable[[np.ndarray], np.ndarray],
    sym: bool,
    layout: Any = None,  # noqa: N803
) -> Tensor:
    if not isinstance(M, int):
        raise TypeError(f"{name}(): argument 'M' must be int, not {type(M).__name__}")
    if M < 0:
        raise ValueError(f"{name} requires non-negative window length, got M={M}")
    if layout is not None and getattr(layout, "name", "strided") != "strided":
        raise ValueError(f"{name} is implemented for strided tensors only, got: {layout}")
    own = dtype_of(dtype) if dtype is not None else get_default_dtype()
    if own.kind != "f" or own.itemsize < 4:
        raise ValueError(f"{name} expects float32 or float64 dtypes, got: {own!r}")
    length = M if sym else M + 1
    values = np.ones(M) if M == 1 else window(np.arange(length, dtype=np.float64))[:M]
    out = upload(values.astype(own.numpy), own)
    return out.requires_grad_() if requires_grad else out


def _cosines(weights: Iterable[float], k: np.ndarray) -> np.ndarray:
    angle = 2 * math.pi * k / max(len(k) - 1, 1)
    return np.sum([(-1) ** i * a * np.cos(i * angle) for i, a in enumerate(weights)], axis=0)


def general_cosine(
    M: int,
    *,
    a: Iterable[float],
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # noqa: N803
    """Give a weighted sum of cosines."""
    if not isinstance(a, Iterable):
        raise TypeError("Coefficients must be a list/tuple")
    weights = list(a)
    if not weights:
        raise ValueError("Coefficients cannot be empty")
    return _make("general_cosine", M, dtype, requires_grad, lambda k: _cosines(weights, k), sym, layout)


def _fixed(name: str, weights: tuple[float, ...]) -> Any:
    def window(
        M: int,
        *,
        sym: bool = True,
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:  # noqa: N803
        return _make(name, M, dtype, requires_grad, lambda k: _cosines(weights, k), sym, layout)

    window.__name__ = window.__qualname__ = name
    window.__doc__ = f"Give the {name} window of length M; sym=False: periodic."
    return window


hamming, hann = _fixed("hamming", (0.54, 0.46)), _fixed("hann", (0.5, 0.5))
blackman = _fixed("blackman", (0.42, 0.5, 0.08))
nuttall = _fixed("nuttall", (0.3635819, 0.4891775, 0.1365995, 0.0106411))


def general_hamming(
    M: int,
    *,
    alpha: float = 0.54,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # noqa: N803
    """Give alpha - (1 - alpha) cos."""
    return _make("general_hamming", M, dtype, requires_grad, lambda k: _cosines((alpha, 1 - alpha), k), sym, layout)


def bartlett(
    M: int, *, sym: bool = True, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:  # noqa: N803
    """Give the triangular window."""
    return _make("bartlett", M, dtype, requires_grad, lambda k: 1 - np.abs(2 * k / max(len(k) - 1, 1) - 1), sym, layout)


def cosine(
    M: int, *, sym: bool = True, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:  # noqa: N803
    """Give half a sine."""
    return _make("cosine", M, dtype, requires_grad, lambda k: np.sin(math.pi * (k + 0.5) / len(k)), sym, layout)


def exponential(
    M: int,
    *,
    center: float | None = None,
    tau: float = 1.0,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # noqa: N803
    """Give exp(-|k - center| / tau)."""
    if tau <= 0:
        raise ValueError(f"Tau must be positive, got: {tau} instead.")
    if sym and center is not None:
        raise ValueError("Center must be None for symmetric windows")

    def window(k: np.ndarray) -> np.ndarray:
        middle = (len(k) - 1) / 2 if center is None else center
        return np.exp(-np.abs(k - middle) / tau)

    return _make("exponential", M, dtype, requires_grad, window, sym, layout)


def gaussian(
    M: int,
    *,
    std: float = 1.0,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # noqa: N803
    """Give the bell of standard deviation ``std``."""
    if std <= 0:
        raise ValueError(f"Standard deviation must be positive, got: {std} instead.")
    return _make(
        "gaussian", M, dtype, requires_grad, lambda k: np.exp(-(((k - (len(k) - 1) / 2) / std) ** 2) / 2), sym, layout
    )


def kaiser(
    M: int,
    *,
    beta: float = 12.0,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # noqa: N803
    """Give the Kaiser window."""
    if beta < 0:
        raise ValueError(f"beta must be non-negative, got: {beta} instead.")

    def window(k: np.ndarray) -> np.ndarray:
        x = 2 * k / max(len(k) - 1, 1) - 1
        return np.i0(beta * np.sqrt(np.maximum(1 - x * x, 0))) / np.i0(beta)

    return _make("kaiser", M, dtype, requires_grad, window, sym, layout)
