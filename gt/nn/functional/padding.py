"""Padding with a constant, or with the input's own edge. Next: ``gt.ir.ops.movement`` (meaning)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.autocasting import autocasting
from gt.functions.numeric import complex as complex_
from gt.functions.numeric import imag, real
from gt.functions.shape import cat
from gt.ir.ops import OPS
from gt.ir.types import CallError, Scalar
from gt.recording import record
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor


def constant_pad_nd(input: Tensor, pad: Sequence[int], value: Scalar = 0) -> Tensor:
    """Pad with a constant: what torch calls ``pad`` by in its own namespace."""
    return _constant(input, list(zip(pad[::2], pad[1::2], strict=True)), value)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad the last dims by (low, high) pairs, last dim first; negative numbers crop.

    ``mode``: "constant" (with ``value``), "reflect", "replicate" or "circular".
    """
    sizes = [int(p) for p in pad]
    if len(sizes) % 2:
        raise CallError(f"Padding length must be divisible by 2, but got {len(sizes)}")
    if len(sizes) // 2 > input.ndim:
        raise CallError(
            f"Padding length should be less than or equal to two times the input dimension but got padding length {len(sizes)} and "
            f"input of dimension {input.ndim}"
        )
    pairs = list(zip(sizes[::2], sizes[1::2], strict=True))
    if mode == "constant":
        return _constant(input, pairs, 0 if value is None else value)
    if mode not in ("reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if value is not None and value != 0:
        raise ValueError(f"Padding mode '{mode}' doesn't take in value argument")
    if len(pairs) not in (input.ndim - 1, input.ndim - 2) or len(pairs) > 3:
        raise NotImplementedError(
            "Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now: one (low, high) pair for each spatial dim"
        )
    return (_reflected if mode == "reflect" else _replicated if mode == "replicate" else _edges)(input, pairs, mode)


@saves(lambda given: "" if given["mode"] == "circular" else "input!")
def _edges(input: Tensor, pairs: list[tuple[int, int]], mode: str) -> Tensor:
    out = input
    for i, (low, high) in enumerate(pairs):
        out = _edge(out, input.ndim - 1 - i, low, high, mode)
    return out.contiguous() if max(map(max, pairs)) > 0 else out.clone()  # what only crops gave a view


_reflected, _replicated = autocasting(_edges, "reflection_pad"), autocasting(_edges, "replication_pad")


def _constant(input: Tensor, pairs: list[tuple[int, int]], value: Any) -> Tensor:
    n = input.ndim
    each = [(0, 0)] * (n - len(pairs)) + pairs[::-1]
    shape = input._type.shape
    for d, (low, high) in enumerate(each):
        if shape[d] + low + high < 0:
            raise CallError(
                f"The input size {shape[d]}, plus negative padding {low} and {high} resulted in a negative output size, which is invalid."
            )
    if any(low < 0 or high < 0 for low, high in each):
        input = input[tuple(slice(max(-low, 0), s - max(-high, 0)) for s, (low, high) in zip(shape, each, strict=True))]
    lows, highs = (tuple(max(p[i], 0) for p in each) for i in (0, 1))
    if not any(lows) and not any(highs):
        return input.clone()
    kind = input.dtype.kind
    if kind == "c" and isinstance(value, complex):
        parts = ((real(input), value.real), (imag(input), value.imag))
        highs_lows = [(lows[d], highs[d]) for d in range(n)][::-1]  # what was to be cropped is gone
        return complex_(*(_constant(part, highs_lows, number) for part, number in parts))
    number = bool(value) if kind == "b" else int(value) if kind in "ui" else float(value)
    return record(OPS["pad"], (input,), (("low", lows), ("high", highs), ("interior", (0,) * n), ("value", number)))


def _edge(x: Tensor, dim: int, low: int, high: int, mode: str) -> Tensor:
    size = x._type.shape[dim]
    if low < 0 or high < 0:
        x = x.narrow(dim, max(-low, 0), size - max(-low, 0) - max(-high, 0))
        low, high, size = max(low, 0), max(high, 0), x._type.shape[dim]
    if mode == "reflect" and max(low, high) >= size:
        raise CallError(
            f"Argument #4: Padding size should be less than the corresponding input dimension, but got: padding ({low}, {high}) at "
            f"dimension {dim} of input {list(x._type.shape)}"
        )
    if mode == "circular" and max(low, high) > size:
        raise CallError("Padding value causes wrapping around more than once.")
    before = after = None
    if mode == "reflect":
        before = x.narrow(dim, 1, low).flip(dim) if low else None
        after = x.narrow(dim, size - 1 - high, high).flip(dim) if high else None
    elif mode == "circular":
        before = x.narrow(dim, size - low, low) if low else None
        after = x.narrow(dim, 0, high) if high else None
    else:
        shape = lambda n: tuple(n if d == dim else s for d, s in enumerate(x._type.shape))  # noqa: E731
        before = x.narrow(dim, 0, 1).expand(shape(low)) if low else None
        after = x.narrow(dim, size - 1, 1).expand(shape(high)) if high else None
    parts = [p for p in (before, x, after) if p is not None]
    return cat(parts, dim) if len(parts) > 1 else x


__all__ = ["constant_pad_nd", "pad"]
