"""Philox4x32-10 against Random123's published known answers, and the distributions drawn from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gt.ir.ops import philox
from gt.runtime import kernels

# The "philox4x32 10" lines of tests/kat_vectors in Random123 1.14.0 (github.com/DEShawResearch/random123): counter, key, answer
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], answer: tuple[int, ...]) -> None:
    got = philox.philox(tuple(np.array([c], np.uint64) for c in counter), key)  # type: ignore[arg-type]
    assert tuple(int(w[0]) for w in got) == answer


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers_in_torch(counter: tuple[int, ...], key: tuple[int, int], answer: tuple[int, ...]) -> None:
    got = kernels.philox(tuple(torch.tensor([c]) for c in counter), *key)
    assert tuple(int(w[0]) for w in got) == answer


def test_counter_layout() -> None:
    """The counter is (index low, index high, stream low, stream high), the key (seed low, seed high)."""
    seed, stream, index = 0x0123456789ABCDEF, 0x7EDCBA9876543210, (5 << 32) | 7
    words = philox.words(seed, stream, np.array([index]))
    counter = tuple(np.array([c], np.uint64) for c in (7, 5, 0x76543210, 0x7EDCBA98))
    assert [int(w[0]) for w in words] == [int(w[0]) for w in philox.philox(counter, (0x89ABCDEF, 0x01234567))]  # type: ignore[arg-type]


def test_negative_seed_is_its_bit_pattern() -> None:
    a = kernels.random_bits(torch.tensor(-3), torch.tensor(-1), (4,), torch.int64, (4,), (0,), torch.device("cpu"))
    assert a.tolist() == philox.bits63(philox.words(-3, -1, np.arange(4))).tolist()


def test_uniform_moments() -> None:
    u = philox.uniform(philox.words(1, 2, np.arange(200_000)), 24)
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.005 and abs(u.var() - 1 / 12) < 0.002
    counts, _ = np.histogram(u, 20, (0, 1))
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 50  # chi-square, 19 degrees of freedom


def test_normal_moments() -> None:
    n = philox.normal(philox.words(1, 2, np.arange(200_000)))
    assert abs(n.mean()) < 0.01 and abs(n.var() - 1) < 0.02
    assert abs((n**3).mean()) < 0.05 and abs((n**4).mean() - 3) < 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_uniform_never_rounds_to_one(dtype: torch.dtype) -> None:
    top = tuple(np.full(1, 0xFFFFFFFF, np.uint64) for _ in range(4))
    bits = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}[dtype]
    assert torch.tensor(philox.uniform(top, bits)).to(dtype).item() < 1  # type: ignore[arg-type]


def test_parts_equal_the_whole() -> None:
    whole = philox.words(9, 4, philox.element_index((6, 5), (6, 5), (0, 0)))[0]
    part = philox.words(9, 4, philox.element_index((3, 2), (6, 5), (2, 3)))[0]
    assert (whole[2:5, 3:5] == part).all()
