"""When two tiers' results are the same: equal up to rounding, by the values' own scale.

Owns: ``disagreement``, ``apart``, ``nudged``. Large values are compared a part at a time, so that a check takes little memory beside
them. Must not know: pieces, programs. Next: ``piece`` (who checks).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor

PART = 1 << 18  # elements compared at once: in float64 2 MiB, and five such at once
_TOLERANCE = {
    torch.float64: 1e-9, torch.float32: 2e-4, torch.complex64: 2e-4, torch.complex128: 1e-9, torch.float16: 2e-2, torch.bfloat16: 4e-2,
}  # fmt: skip


def disagreement(expected: Tensor, got: Tensor, halves: bool = False) -> str:
    """Say how two tiers' results differ beyond rounding, or give "". Floats by the value's own scale; whole numbers may
    differ in one element of a thousand, where a rounding decides a comparison or an argmax. ``got`` may be in the host's memory.

    ``halves``: some value on the way is a half, which a compiler may round later than eager code does.
    """
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"{expected.dtype}{list(expected.shape)} and {got.dtype}{list(got.shape)}"
    if not expected.numel():
        return ""
    if not (expected.is_floating_point() or expected.is_complex()):
        wrong = sum(int((e != g).sum()) for e, g in _pairs(expected, got))
        return f"{wrong} of {expected.numel()} elements" if wrong > expected.numel() / (50 if halves else 1000) else ""
    tolerance = max(_TOLERANCE[expected.dtype], _TOLERANCE[torch.bfloat16] if halves else 0.0)
    scale = max(_largest(e) for (e,) in _parts(expected))
    atol = tolerance * max(scale, 1e-6)
    if all(torch.allclose(e, g, rtol=tolerance, atol=atol, equal_nan=True) for e, g in _pairs(expected, got)):
        return ""
    if halves and _rounding_alone(expected, got, tolerance):
        return ""
    error = apart(expected, got) if scale else float("nan")
    return f"{expected.dtype}{list(expected.shape)}, largest difference {error:.3g} at a scale of {scale:.3g}"


def apart(a: Tensor, b: Tensor) -> float:
    """Give the largest difference of two tensors, infinite where they are not finite at the same places."""
    return max((float(d.abs().max()) for d, _ in _differences(a, b)), default=0.0)


def nudged(t: Tensor, halves: bool, device: torch.device) -> Tensor:
    """Give a copy there whose floats are moved by up to two of their last bits, of a half's where values on the way are halves."""
    out = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device).copy_(t)
    if out.is_floating_point():
        size = 2 * max(torch.finfo(t.dtype).eps, torch.finfo(torch.bfloat16).eps if halves else 0.0)
        random = torch.Generator(device).manual_seed(0)
        for (part,) in _parts(out):
            part.mul_(1 + size * (2 * torch.rand(part.shape, generator=random, device=device, dtype=torch.float64) - 1))
    return out


def _parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Give views of tensors of one shape, in parts of at most ``PART`` elements."""
    first = tensors[0]
    if first.numel() <= PART:
        if first.numel():
            yield tensors
        return
    dim = max(range(first.ndim), key=first.shape.__getitem__)
    size = max(1, first.shape[dim] * PART // first.numel())
    for part in zip(*(t.split(size, dim) for t in tensors), strict=True):
        yield from _parts(*part) if size == 1 else (part,)


def _pairs(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Give parts of two tensors of one shape where the first is."""
    for x, y in _parts(a, b):
        yield x, y.to(x.device)


def _differences(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Give in parts the differences of two tensors and the first's values, zero where both are not finite, infinite where one is."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    for x, y in _pairs(a, b):
        finite, other = torch.isfinite(x), torch.isfinite(y)
        x, y = torch.where(finite, x, 0).to(wide), torch.where(other, y, 0).to(wide)
        yield torch.where(finite == other, y - x, float("inf")), x


def _largest(t: Tensor) -> float:
    return float(torch.where(torch.isfinite(t), t, 0).abs().max())


def _rounding_alone(expected: Tensor, got: Tensor, tolerance: float) -> bool:
    """Tell whether values differ as sums of rounded halves do: little in all, and nowhere by much of the largest."""
    errors, values, error, largest = 0.0, 0.0, 0.0, 0.0
    for d, e in _differences(expected, got):
        errors += float(torch.linalg.vector_norm(d)) ** 2
        values += float(torch.linalg.vector_norm(e)) ** 2
        error, largest = max(error, float(d.abs().max())), max(largest, float(e.abs().max()))
    return errors**0.5 <= 2 * tolerance * values**0.5 and error <= 4 * tolerance * largest


__all__ = ["apart", "disagreement", "nudged"]
