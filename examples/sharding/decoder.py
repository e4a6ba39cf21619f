"""Train a small Llama on made-up text. How it is split over workers is only in the YAML file:

    GT_CONFIG=examples/sharding/data.yaml   python -m examples.sharding.decoder --workers 4
    GT_CONFIG=examples/sharding/tensor.yaml python -m examples.sharding.decoder --workers 4

Also: sequence.yaml, fsdp.yaml, grid.yaml. The losses printed are the same for all of them, and for none.
`gt compile examples/sharding/decoder.py --config FILE --workers 4` shows what each of them communicates.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

import gt
from examples.models.llama import Config, Llama
from gt.nn import functional as F  # noqa: N812

CONFIG = Config(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, head_dim=8,
)  # fmt: skip


def batches(count: int, batch: int = 8, length: int = 16) -> Iterator[tuple[gt.Tensor, gt.Tensor]]:
    """Counting in steps of 1 to 4 from anywhere: tokens and the tokens that follow them."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        start, step = rng.integers(0, 64, (batch, 1)), rng.integers(1, 5, (batch, 1))
        text = (start + step * np.arange(length + 1)) % 64
        with gt.signal.context("batch"):
            tokens, following = gt.from_numpy(text[:, :-1]), gt.from_numpy(text[:, 1:])
        yield tokens, following


def train(steps: int) -> list[float]:
    """Give the loss of each step."""
    gt.manual_seed(0)
    model = Llama(CONFIG)
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for tokens, following in batches(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).reshape(-1, CONFIG.vocab_size), following.reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    if options.workers > 1:
        gt.gpu_workers(options.workers)
    for step, loss in enumerate(train(options.steps)):
        print(f"step {step:3d}  loss {loss:.6f}")


if __name__ == "__main__":
    main()
