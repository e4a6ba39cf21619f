"""Batches of sequences of different lengths: padded, and packed step by step.

Owns: ``PackedSequence`` and the ways to it and from it. How long sequences are is a matter of shapes, so lengths given as a tensor
are read. Next: ``gt.nn.recurrent`` (layers that take packed sequences).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np

from gt.functions import create
from gt.functions.gathering import index_select
from gt.functions.promote import need_tensor, refuse_torch
from gt.functions.shape import cat, stack
from gt.handle import Handle
from gt.ir.types import got
from gt.nn.functional.padding import pad
from gt.tensor import Tensor


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Fields):
    """Sequences without padding: all first elements, then all second ones, the longest sequence first.

    ``data``: [sum of lengths, *]; ``batch_sizes``: how many sequences have a t-th element, int64; ``sorted_indices``: the order in
    which the sequences were put, or None; ``unsorted_indices``: the way back.
    """

    _sizes: list[int] | None = None

    def __new__(
        cls, data: Any, batch_sizes: Any = None, sorted_indices: Tensor | None = None, unsorted_indices: Tensor | None = None
    ) -> Self:
        if batch_sizes is None:
            if not isinstance(data, list | tuple) or len(data) != 2:
                raise AssertionError("Expected data to be a list or tuple of length 2")
            data, batch_sizes = data
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    @property
    def sizes(self) -> list[int]:
        """Give ``batch_sizes`` as numbers, reading them if only the tensor is known."""
        if self._sizes is None:
            self._sizes = [int(n) for n in self.batch_sizes.tolist()]
        return self._sizes

    def with_data(self, data: Tensor) -> PackedSequence:
        """Give other data of the same sequences."""
        out = PackedSequence(data, self.batch_sizes, self.sorted_indices, self.unsorted_indices)
        out._sizes = self._sizes
        return out

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Convert the data as ``Tensor.to`` does."""
        data = self.data.to(*args, **kwargs)
        return self if data is self.data else self.with_data(data)

    def _itself(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Give the sequences themselves: placement is the signals' matter."""
        return self

    cuda = cpu = pin_memory = _itself

    def double(self) -> PackedSequence:
        return self.with_data(self.data.double())

    def float(self) -> PackedSequence:
        return self.with_data(self.data.float())

    def half(self) -> PackedSequence:
        return self.with_data(self.data.half())

    def long(self) -> PackedSequence:
        return self.with_data(self.data.long())

    def int(self) -> PackedSequence:
        return self.with_data(self.data.int())

    def short(self) -> PackedSequence:
        return self.with_data(self.data.short())

    def char(self) -> PackedSequence:
        return self.with_data(self.data.char())

    def byte(self) -> PackedSequence:
        return self.with_data(self.data.byte())

    is_cuda = False

    def is_pinned(self) -> bool:
        """Say no: no tensor here is."""
        return False


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Give the permutation that undoes one: int64 [n] -> [n]."""
    if permutation is None:
        return None
    return create.empty_like(permutation).scatter(0, permutation, create.arange(permutation.numel()))


def _numbers(lengths: Tensor | Sequence[int]) -> list[int]:
    return [int(n) for n in (lengths.tolist() if isinstance(lengths, Handle) else lengths)]


def _indices(values: Iterable[int]) -> Tensor:
    return create.from_numpy(np.array(list(values), np.int64))


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack a padded batch [longest, batch, *] (``batch_first``: [batch, longest, *]).

    ``enforce_sorted``: the longest sequence is the first, else they are put in that order. Lengths given as a tensor are read.
    Errors: RuntimeError for lengths that are not positive, in another order, or not one for each sequence.
    """
    need_tensor("pack_padded_sequence", input=input)
    refuse_torch("pack_padded_sequence", lengths)
    sizes = _numbers(lengths)
    order = None
    if not enforce_sorted:
        order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
        sizes = [sizes[i] for i in order]
    x = input.transpose(0, 1) if batch_first else input
    if not x.numel():
        raise RuntimeError("Cannot pack empty tensors.")
    if len(sizes) != x.shape[1]:
        raise RuntimeError(f"Expected `len(lengths)` to be equal to batch_size, but got {len(sizes)} (batch_size={x.shape[1]})")
    if min(sizes) <= 0:
        raise RuntimeError("Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0")
    if sizes != sorted(sizes, reverse=True):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass `enforce_sorted=False` to "
            "pack_padded_sequence and/or pack_sequence to sidestep this requirement if you do not need ONNX exportability."
        )
    if sizes[0] > x.shape[0]:
        raise RuntimeError(f"Expected sequences of at most {x.shape[0]} elements, the padded length, but got one of {sizes[0]}")
    active = [sum(n > t for n in sizes) for t in range(sizes[0])]
    rows = order if order is not None else list(range(len(sizes)))
    data = index_select(
        x.reshape(-1, *x.shape[2:]), 0, _indices(t * len(sizes) + b for t, n in enumerate(active) for b in rows[:n])
    )
    out = PackedSequence(data, _indices(active), None if order is None else _indices(order))
    out._sizes = active
    return out


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Give the padded batch [longest, batch, *] (``batch_first``: [batch, longest, *]) and its lengths, in the order before packing.

    ``total_length``: pad to this length. Errors: ValueError if a sequence is longer.
    """
    sizes = sequence.sizes
    longest, data = len(sizes), sequence.data
    if total_length is not None and total_length < longest:
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {longest}"
        )
    starts = [0, *accumulate(sizes)]
    batch, nothing = sizes[0], data.shape[0]
    at = [[starts[t] + b if b < n else nothing for b in range(batch)] for t, n in enumerate(sizes)]
    at += [[nothing] * batch] * ((total_length or longest) - longest)
    grid = np.array(at, np.int64)
    source = cat([data, create.full((1, *data.shape[1:]), padding_value, dtype=data.dtype)])
    if batch_first:
        grid = grid.T
    x = index_select(source, 0, _indices(grid.reshape(-1))).reshape(*grid.shape, *data.shape[1:])
    lengths = _indices(sum(n > b for n in sizes) for b in range(batch))
    if sequence.unsorted_indices is None:
        return x, lengths
    return index_select(x, 0 if batch_first else 1, sequence.unsorted_indices), index_select(lengths, 0, sequence.unsorted_indices)


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences [length, *]."""
    lengths = [s.shape[0] for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """Give the sequences [length, *] that were packed, in their order before."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Give [longest, batch, *] (``batch_first``: [batch, longest, *]) of sequences [length, *]."""
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    if not isinstance(sequences, Iterable):
        raise RuntimeError(f"pad_sequence: Expected iterable for input sequences, but got arg of type: {type(sequences)}")
    sequences = list(sequences)
    if not sequences:
        raise RuntimeError("received an empty list of sequences")
    for i, s in enumerate(sequences):
        if not isinstance(s, Handle):
            raise TypeError(f"expected Tensor as element {i} in argument 0, but got {got(s)}")
        if not s.ndim:
            raise RuntimeError(f"pad_sequence: expected sequences of at least one dim, but element {i} has none")
    longest = max(s.shape[0] for s in sequences)
    rows = []
    for s in sequences:
        missing = longest - s.shape[0]
        edge = [0, 0] * (s.ndim - 1) + ([missing, 0] if padding_side == "left" else [0, missing])
        rows.append(pad(s, edge, value=padding_value) if missing else s)
    return stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False) -> list[Tensor]:
    """Give the sequences of a padded batch. Lengths given as a tensor are read."""
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [x[i, :n] for i, n in enumerate(_numbers(lengths))]
