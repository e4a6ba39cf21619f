"""Batches of sequences of different lengths, padded."""

from __future__ import annotations

from collections.abc import Sequence

from gt.functions.shape import stack
from gt.nn.functional.padding import pad
from gt.tensor import Tensor


def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Give [longest, batch, *] (``batch_first``: [batch, longest, *]) of sequences [length, *]."""
    if padding_side not in ("left", "right"):
        raise ValueError(f"padding_side should be 'left' or 'right', got {padding_side!r}")
    longest = max(s.shape[0] for s in sequences)
    rows = []
    for s in sequences:
        missing = longest - s.shape[0]
        edge = [0, 0] * (s.ndim - 1) + ([missing, 0] if padding_side == "left" else [0, missing])
        rows.append(pad(s, edge, value=padding_value) if missing else s)
    return stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False) -> list[Tensor]:
    """Give the sequences of a padded batch."""
    sizes = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [x[i, :n] for i, n in enumerate(sizes)]
