"""Resizing of bytes gives torch's values, and wrong sizes torch's errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt

SIZES = ({"size": 3}, {"size": (5, 1)}, {"size": (11, 7)}, {"scale_factor": 1.7}, {"scale_factor": (0.6, 2.0)})


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest", "nearest-exact"])
@pytest.mark.parametrize("align", [None, True])
def test_bytes(mode: str, align: bool | None) -> None:
    if mode.startswith("nearest") and align:
        pytest.skip("corners are not aligned in this mode")
    data = np.random.RandomState(0).randint(0, 256, (2, 3, 4, 5)).astype(np.uint8)
    for given in SIZES:
        call = lambda m, t: m.nn.functional.interpolate(t, mode=mode, align_corners=align, **given)  # noqa: B023, E731
        mine, theirs = call(gt, gt.tensor(data)), call(torch, torch.tensor(data))
        assert mine.dtype is gt.uint8 and mine.tolist() == theirs.tolist(), given
    ones = gt.nn.functional.interpolate(gt.ones(1, 1, 2, 2, dtype=gt.uint8), size=3, mode=mode, align_corners=align)
    assert ones.tolist() == [[[[1] * 3] * 3]]


def test_bytes_of_other_ranks() -> None:
    for mode, rank in (("linear", 3), ("trilinear", 5)):
        for m in (gt, torch):
            with pytest.raises(NotImplementedError, match="'Byte'"):
                m.nn.functional.interpolate(m.ones(*[2] * rank, dtype=m.uint8), size=3, mode=mode)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"scale_factor": (2.0,)}, ValueError, r"spatial dimensions of \[2, 2\] and scale_factor of shape \(2\.0,\)"),
        ({"scale_factor": (2.0, 2.0, 2.0)}, ValueError, "Input and scale_factor must have the same number of spatial dimensions"),
        ({"size": (3,)}, ValueError, r"spatial dimensions of \[2, 2\] and output size"),
        ({"size": -1}, RuntimeError, r"greater than 0, but got input \(H: 2, W: 2\) output \(H: -1, W: -1\)"),
        ({"size": (3, 0), "mode": "bicubic"}, RuntimeError, r"output \(H: 3, W: 0\)"),
        ({"scale_factor": 0.1, "mode": "bilinear"}, RuntimeError, r"output \(H: 0, W: 0\)"),
        ({"scale_factor": float("nan")}, RuntimeError, "without overflow"),
        ({"size": 2.5}, TypeError, None),
        ({"size": True}, TypeError, None),
        ({"size": "ab"}, TypeError, None),
        ({"scale_factor": "a"}, TypeError, None),
        ({"size": 2, "recompute_scale_factor": True}, ValueError, "not meaningful with an explicit size"),
        ({"size": -1, "mode": "area"}, RuntimeError, None),
    ],
)
def test_sizes(given: dict[str, Any], error: type[Exception], text: str | None) -> None:
    for m in (gt, torch):
        with pytest.raises(error, match=text):
            m.nn.functional.interpolate(m.ones(1, 1, 2, 2), **given)
