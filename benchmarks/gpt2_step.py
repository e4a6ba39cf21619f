"""GPT-2 124M, full training steps on random tokens. How it is split stands in a configuration file:

    gt plan benchmarks/gpt2_step.py --shapes --workers 1024 --config examples/sharding/fsdp.yaml -- --batch 1024
"""

from __future__ import annotations

import argparse

import numpy as np

import gt
from examples.models.gpt2 import GPT2, Config
from gt.nn import functional as F  # noqa: N812


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    model = GPT2(Config(dropout=0.0))
    optimizer = gt.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1)
    tokens = np.random.default_rng(0).integers(0, 50257, (options.batch, options.length + 1))
    for _ in range(options.steps):
        with gt.signal.context("batch"):
            x, y = gt.from_numpy(tokens[:, :-1]), gt.from_numpy(tokens[:, 1:])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).reshape(-1, 50257), y.reshape(-1))
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
