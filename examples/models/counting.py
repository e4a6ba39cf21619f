"""What the small decoders are trained on, text that counts, and how their commands are run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

import gt


def batches(count: int, batch: int = 8, length: int = 16) -> Iterator[tuple[gt.Tensor, gt.Tensor]]:
    """Counting in steps of 1 to 4 from anywhere: tokens and the tokens that follow them."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        start, step = rng.integers(0, 64, (batch, 1)), rng.integers(1, 5, (batch, 1))
        text = (start + step * np.arange(length + 1)) % 64
        yield gt.from_numpy(text[:, :-1]), gt.from_numpy(text[:, 1:])


def options(**defaults: int) -> argparse.Namespace:
    """Read options that are whole numbers, ``--workers`` among them, and start the workers."""
    parser = argparse.ArgumentParser()
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    if given.workers > 1:
        gt.gpu_workers(given.workers)
    return given


def show(losses: list[float]) -> None:
    """Print the loss of each step."""
    for step, loss in enumerate(losses):
        print(f"step {step:3d}  loss {loss:.6f}")
