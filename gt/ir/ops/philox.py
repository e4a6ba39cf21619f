"""Philox4x32-10 in NumPy: random words as a function of (seed, stream, element index).

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); checked against Random123's known answers.
Next: ``random`` (the ops), ``gt.runtime.kernels`` (the same in torch).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gt.ir.types import Shape

if TYPE_CHECKING:  # loading it takes long
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF
ROUNDS = 10


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Give four 32-bit words for each counter (four 32-bit words each, held in uint64)."""
    mask, shift = np.uint64(MASK), np.uint64(32)
    c0, c1, c2, c3 = (np.asarray(c, np.uint64) for c in counter)
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(M0), c2 * np.uint64(M1)
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & mask, (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & mask
        k0, k1 = (k0 + W0) & MASK, (k1 + W1) & MASK
    return c0, c1, c2, c3


def element_index(shape: Shape, global_shape: Shape, offset: Shape) -> NDArray[np.int64]:
    """Give the global linear index of each element of the part of ``global_shape`` that starts at ``offset``."""
    index = np.zeros(shape, np.int64)
    stride = 1
    for d in reversed(range(len(shape))):
        line = (np.arange(shape[d], dtype=np.int64) + offset[d]) * stride
        index = index + line.reshape(-1, *(1,) * (len(shape) - d - 1))
        stride *= global_shape[d]
    return index


def words(seed: int, stream: int, index: NDArray[np.int64]) -> tuple[Words, Words, Words, Words]:
    """Give four random 32-bit words for each element."""
    i = index.astype(np.uint64)
    s = np.uint64(int(stream) & 0xFFFFFFFFFFFFFFFF)
    low, high = i & np.uint64(MASK), i >> np.uint64(32)
    counter = (low, high, np.broadcast_to(s & np.uint64(MASK), i.shape), np.broadcast_to(s >> np.uint64(32), i.shape))
    return philox(counter, (int(seed) & MASK, (int(seed) >> 32) & MASK))


def unit53(high: Words, low: Words) -> NDArray[np.float64]:
    """Give floats in [0, 1) with 53 random bits."""
    bits = (high >> np.uint64(5)) * np.uint64(1 << 26) + (low >> np.uint64(6))
    return bits.astype(np.float64) * 2.0**-53


def uniform(w: tuple[Words, Words, Words, Words], bits: int) -> NDArray[np.float64]:
    """Give floats in [0, 1) with ``bits`` random bits: exactly representable in the dtype they are meant for."""
    if bits == 53:
        return unit53(w[0], w[1])
    return (w[0] >> np.uint64(32 - bits)).astype(np.float64) * 2.0**-bits


def normal(w: tuple[Words, Words, Words, Words]) -> NDArray[np.float64]:
    """Give standard normals by Box-Muller in float64."""
    radius = np.sqrt(-2.0 * np.log(1.0 - unit53(w[0], w[1])))
    return radius * np.cos(2.0 * math.pi * unit53(w[2], w[3]))


def bits63(w: tuple[Words, Words, Words, Words]) -> NDArray[np.int64]:
    """Give integers in [0, 2**63)."""
    return (((w[0] >> np.uint64(1)) << np.uint64(32)) | w[1]).astype(np.int64)


