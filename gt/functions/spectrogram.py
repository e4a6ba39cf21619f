"""Short-time Fourier transforms and back.

Owns: framing, windows, overlap-add. Next: ``fourier`` (the transforms of frames).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gt.functions import fourier
from gt.functions.create import from_numpy, ones, zeros
from gt.functions.numeric import view_as_complex, view_as_real
from gt.functions.promote import cast
from gt.functions.shape import narrow, reshape, transpose
from gt.functions.strided import unfold
from gt.ir.ops import OPS
from gt.ir.types import CallError, real_dtype
from gt.recording import record
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor


def _whole_window(name: str, window: Tensor | None, n_fft: int, win_length: int, dtype: Any) -> Tensor:
    """Give the window in the middle of ``n_fft`` elements; ones if there is none."""
    if not 0 < win_length <= n_fft:
        raise CallError(f"{name}: expected 0 < win_length <= n_fft, but got win_length={win_length} and n_fft={n_fft}")
    if window is not None and window._type.shape != (win_length,):
        raise CallError(
            f"{name}: expected a 1D window tensor of size equal to win_length={win_length}, but got window with size "
            f"{list(window._type.shape)}"
        )
    own = ones(win_length, dtype=dtype) if window is None else window
    low = (n_fft - win_length) // 2
    attrs = (("low", (low,)), ("high", (n_fft - win_length - low,)), ("interior", (0,)), ("value", 0.0))
    return record(OPS["pad"], (own,), attrs) if win_length < n_fft else own


def _reflected(x: Tensor, pad: int, mode: str) -> Tensor:
    """Pad both ends of the last dim."""
    n = x._type.shape[-1]
    if mode == "reflect" and pad >= n:
        raise CallError(
            f"Argument #4: Padding size should be less than the corresponding input dimension, but got: padding ({pad}, {pad}) at "
            f"dimension {x.ndim - 1} of input {list(x._type.shape)}"
        )
    at = np.arange(-pad, n + pad)
    if mode == "constant":
        outside = from_numpy((at < 0) | (at >= n))
        return x.index_select(-1, from_numpy(at.clip(0, n - 1))).masked_fill(outside, 0)
    where = {"reflect": (n - 1) - np.abs((n - 1) - np.abs(at)), "replicate": at.clip(0, n - 1), "circular": at % n}
    if mode not in where:
        raise NotImplementedError(f"stft: pad_mode {mode!r} is not one of constant, reflect, replicate, circular")
    return x.index_select(-1, from_numpy(where[mode]))


def _padded(given: dict[str, Any]) -> str | None:
    """Torch keeps what it reflects to pad it, and multiplies a copy by the window; without either it transforms its input."""
    if given.get("center", True):
        return "input!:input window:input" if given.get("pad_mode", "reflect") in ("reflect", "replicate") else "window:input"
    return "input:input" if given.get("window") is None else None


@saves(_padded)
def stft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None,
    center: bool = True, pad_mode: str = "reflect", normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None, align_to_window: bool | None = None,
) -> Tensor:  # fmt: skip
    """Give the Fourier transforms of overlapping windows: [b, l] -> [b, frequencies, frames]. Source: torch.stft."""
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    complex_input = input.dtype.kind == "c" or (window is not None and window.dtype.kind == "c")
    if return_complex is None and not complex_input:
        raise CallError(
            "stft requires the return_complex parameter be given for real inputs, and will further require that return_complex=True in "
            "a future PyTorch release."
        )
    if align_to_window is not None:
        raise CallError("stft align_to_window should only be set when center = false, and is not offered")
    if input.ndim not in (1, 2) or input.dtype.kind not in "fc":
        raise CallError(f"stft: expected a 1D or 2D tensor of floating point or complex values, got {input._type!r}")
    x = _reflected(input, n_fft // 2, pad_mode) if center else input
    if not 0 < n_fft <= x._type.shape[-1]:
        raise CallError(f"stft: expected 0 < n_fft <= {x._type.shape[-1]}, but got n_fft={n_fft}")
    if hop <= 0:
        raise CallError(f"stft: expected hop_length > 0, but got hop_length={hop}")
    whole = _whole_window("stft", window, n_fft, width, real_dtype(input.dtype))
    frames = unfold(x, x.ndim - 1, n_fft, hop) * whole
    one = not complex_input if onesided is None else onesided
    norm = "ortho" if normalized else None
    found = fourier.rfft(frames, norm=norm) if one else fourier.fft(frames, norm=norm)
    out = transpose(found, -2, -1)
    return out if return_complex or return_complex is None else view_as_real(out)


def istft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None,
    center: bool = True, normalized: bool = False, onesided: bool | None = None, length: int | None = None, return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """Give the signal whose ``stft`` comes closest: [b, frequencies, frames] -> [b, l]. Flushes, to see that windows cover it."""
    if input.dtype.kind != "c":
        if input.ndim < 3 or input._type.shape[-1] != 2:
            raise CallError("istft requires a complex-valued input tensor matching the output from stft with return_complex=True.")
        input = view_as_complex(input)
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    if not input.numel() or input.ndim not in (2, 3):
        raise CallError(f"istft: expected a tensor with 2 or 3 dimensions that is not empty, got {input._type!r}")
    bins, frames = input._type.shape[-2:]
    one = bins != n_fft if onesided is None else onesided
    if bins != (n_fft // 2 + 1 if one else n_fft):
        raise CallError(
            f"istft: expected the frequency dimension (3rd to the last) of the input tensor to match n_fft "
            f"{'/ 2 + 1 ' if one else ''}when onesided={one}, but got {bins}"
        )
    if not 0 < hop <= width:
        raise CallError(f"istft: expected 0 < hop_length <= win_length, but got hop_length={hop} and win_length={width}")
    if return_complex and one:
        raise CallError("istft: cannot have onesided output if window or input is complex: return_complex needs onesided=False")
    whole = _whole_window("istft", window, n_fft, width, real_dtype(input.dtype))
    spectra = transpose(input, -2, -1)
    norm = "ortho" if normalized else None
    if return_complex:
        each = fourier.ifft(spectra, n_fft, norm=norm)
    else:  # of a transform that is not one-sided, too, torch reads that half
        each = fourier.irfft(narrow(spectra, -1, 0, n_fft // 2 + 1), n_fft, norm=norm)
    total = n_fft + hop * (frames - 1)
    signal = _overlapped(each * whole, hop, total)
    cover = _overlapped((whole * whole).expand(frames, n_fft), hop, total)
    start = n_fft // 2 if center else 0
    stop = total - start if length is None else min(start + length, total)
    signal, cover = (narrow(t, -1, start, stop - start) for t in (signal, cover))
    if bool((cover.abs().amin() if cover.numel() else cover.sum()) < 1e-11):
        raise CallError("window overlap add min: 1")
    out = signal / cover
    if length is not None and stop - start < length:
        missing = zeros((*out._type.shape[:-1], length - (stop - start)), dtype=out.dtype)
        out = record(OPS["cat"], (out, missing), (("dim", out.ndim - 1),))
    return out


def _overlapped(frames: Tensor, hop: int, total: int) -> Tensor:
    """Add frames up where they overlap: [..., frames, n] -> [..., total]."""
    count, n = frames._type.shape[-2:]
    at = from_numpy((np.arange(count)[:, None] * hop + np.arange(n)).reshape(-1))
    flat = reshape(frames, (*frames._type.shape[:-2], count * n))
    empty = zeros((*flat._type.shape[:-1], total), dtype=flat.dtype)
    return record(OPS["index_add"], (empty, at, cast(flat, empty._type.dtype)), (("dim", empty.ndim - 1),))


__all__ = ["istft", "stft"]
