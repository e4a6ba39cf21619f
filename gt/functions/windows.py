"""``torch.signal.windows``: window functions. They are made on the client, in float64, and rounded once.

Next: ``gt.signal`` (where users find them), ``create`` (upload).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from gt.devices import check_options, strided
from gt.functions.create import upload
from gt.functions.promote import get_default_dtype
from gt.ir.types import CallError, dtype_of, is_int

if TYPE_CHECKING:
    from gt.tensor import Tensor


class Options(TypedDict, total=False):
    """What every window takes. ``sym``: symmetric (the default), else one period of a periodic window."""

    sym: bool
    dtype: Any
    layout: Any
    device: Any
    requires_grad: bool


def _make(
    name: str, M: int, options: Options, window: Callable[[np.ndarray], np.ndarray]  # noqa: N803 - torch's name
) -> Tensor:  # fmt: skip
    """Make a window of ``M`` elements from a function of their numbers, the end counted where it is periodic."""
    if not is_int(M):
        raise TypeError(f"{name}(): argument 'M' must be int, not {type(M).__name__}")
    M = operator.index(M)  # noqa: N806 - torch's name
    if M < 0:
        raise ValueError(f"{name} requires non-negative window length, got M={M}")
    layout, dtype = options.get("layout"), options.get("dtype")
    if layout is not None and layout is not strided:
        raise ValueError(f"{name} is implemented for strided tensors only, got: {layout}")
    check_options(name, options.get("device"))
    own = dtype_of(dtype) if dtype is not None else get_default_dtype()
    if own.kind != "f" or own.itemsize < 4:
        raise ValueError(f"{name} expects float32 or float64 dtypes, got: {own!r}")
    k = np.arange(M if options.get("sym", True) else M + 1, dtype=np.float64)
    values = np.ones(M) if M == 1 else window(k)[:M]
    out = upload(values.astype(own.numpy), own)
    return out.requires_grad_() if options.get("requires_grad", False) else out


def _across(k: np.ndarray) -> np.ndarray:
    """Give how far through the window each element stands: 0 at its start, 1 at its end."""
    return k / max(len(k) - 1, 1)


def _cosines(weights: Iterable[float], k: np.ndarray) -> np.ndarray:
    angle = 2 * math.pi * _across(k)
    return np.sum([(-1) ** i * a * np.cos(i * angle) for i, a in enumerate(weights)], axis=0)


def general_cosine(M: int, *, a: Iterable[float], **options: Unpack[Options]) -> Tensor:  # noqa: N803
    """Give a weighted sum of cosines."""
    if not isinstance(a, Iterable):
        raise TypeError("Coefficients must be a list/tuple")
    weights = list(a)
    if not weights:
        raise ValueError("Coefficients cannot be empty")
    return _make("general_cosine", M, options, lambda k: _cosines(weights, k))


def hamming(M: int, **options: Unpack[Options]) -> Tensor:  # noqa: N803
    """Give the Hamming window."""
    return _make("hamming", M, options, lambda k: _cosines((0.54, 0.46), k))


def hann(M: int, **options: Unpack[Options]) -> Tensor:  # noqa: N803
    """Give the Hann window."""
    return _make("hann", M, options, lambda k: _cosines((0.5, 0.5), k))


def blackman(M: int, **options: Unpack[Options]) -> Tensor:  # noqa: N803
    """Give the Blackman window."""
    return _make("blackman", M, options, lambda k: _cosines((0.42, 0.5, 0.08), k))


def nuttall(M: int, **options: Unpack[Options]) -> Tensor:  # noqa: N803
    """Give Nuttall's minimum four-term Blackman-Harris window."""
    return _make("nuttall", M, options, lambda k: _cosines((0.3635819, 0.4891775, 0.1365995, 0.0106411), k))


def general_hamming(M: int, *, alpha: float = 0.54, **options: Unpack[Options]) -> Tensor:  # noqa: N803
    """Give alpha - (1 - alpha) cos."""
    return _make("general_hamming", M, options, lambda k: _cosines((alpha, 1 - alpha), k))


def bartlett(M: int, **options: Unpack[Options]) -> Tensor:  # noqa: N803
    """Give the triangular window."""
    return _make("bartlett", M, options, lambda k: 1 - np.abs(2 * _across(k) - 1))


def cosine(M: int, **options: Unpack[Options]) -> Tensor:  # noqa: N803
    """Give half a sine."""
    return _make("cosine", M, options, lambda k: np.sin(math.pi * (k + 0.5) / len(k)))


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, **options: Unpack[Options]  # noqa: N803
) -> Tensor:  # fmt: skip
    """Give exp(-|k - center| / tau)."""
    if tau <= 0:
        raise ValueError(f"Tau must be positive, got: {tau} instead.")
    if options.get("sym", True) and center is not None:
        raise ValueError("Center must be None for symmetric windows")

    def window(k: np.ndarray) -> np.ndarray:
        middle = (len(k) - 1) / 2 if center is None else center
        return np.exp(-np.abs(k - middle) / tau)

    return _make("exponential", M, options, window)


def gaussian(M: int, *, std: float = 1.0, **options: Unpack[Options]) -> Tensor:  # noqa: N803
    """Give the bell of standard deviation ``std``."""
    if std <= 0:
        raise ValueError(f"Standard deviation must be positive, got: {std} instead.")
    return _make("gaussian", M, options, lambda k: np.exp(-(((k - (len(k) - 1) / 2) / std) ** 2) / 2))


def kaiser(M: int, *, beta: float = 12.0, **options: Unpack[Options]) -> Tensor:  # noqa: N803
    """Give the Kaiser window."""
    if beta < 0:
        raise ValueError(f"beta must be non-negative, got: {beta} instead.")

    def window(k: np.ndarray) -> np.ndarray:
        x = 2 * _across(k) - 1
        return np.i0(beta * np.sqrt(np.maximum(1 - x * x, 0))) / np.i0(beta)

    return _make("kaiser", M, options, window)


# -- torch's old form: the length and whether the window is periodic, which it is unless said otherwise


def _older(name: str, length: int, periodic: bool, options: Options) -> Any:
    """Give the options of the new form. Errors: CallError for a negative length."""
    if is_int(length) and length < 0:
        raise CallError(f"{name} requires non-negative window_length, got window_length={length}")
    return options | {"sym": not periodic}


def hann_window(window_length: int, periodic: bool = True, **options: Unpack[Options]) -> Tensor:
    """Give the Hann window."""
    return hann(window_length, **_older("hann_window", window_length, periodic, options))


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **options: Unpack[Options]
) -> Tensor:
    """Give alpha - beta cos."""
    return general_cosine(window_length, a=(alpha, beta), **_older("hamming_window", window_length, periodic, options))


def blackman_window(window_length: int, periodic: bool = True, **options: Unpack[Options]) -> Tensor:
    """Give the Blackman window."""
    return blackman(window_length, **_older("blackman_window", window_length, periodic, options))


def bartlett_window(window_length: int, periodic: bool = True, **options: Unpack[Options]) -> Tensor:
    """Give the triangular window."""
    return bartlett(window_length, **_older("bartlett_window", window_length, periodic, options))


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, **options: Unpack[Options]
) -> Tensor:  # fmt: skip
    """Give the Kaiser window."""
    return kaiser(window_length, beta=beta, **_older("kaiser_window", window_length, periodic, options))
