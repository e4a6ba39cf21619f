"""Signals configured in Python, without a file: the same as config_sharding.yaml, and a mesh with rules for parameters.

    python examples/config_from_python.py --workers 4
    python examples/config_from_python.py --workers 4 --layout tensor
    gt plan examples/config_from_python.py --workers 4 -- --layout tensor    # what is sent, and how long it is predicted to take
"""

from __future__ import annotations

import argparse

import gt
from gt import ShardConfig, SignalConfig, nn


def configure(layout: str) -> None:
    if layout == "data":  # every worker has the whole model and a part of the batch
        gt.register_config("batch", SignalConfig(shard=ShardConfig(axis=0)))
    elif layout == "tensor":  # every worker has the whole batch and a part of the model: columns, then rows
        gt.register_mesh({"tp": -1})
        gt.register_config("batch", SignalConfig())
        gt.register_params({"0.weight": {0: "tp"}, "0.bias": {0: "tp"}, "2.weight": {1: "tp"}, "*": {}})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--layout", choices=("none", "data", "tensor"), default="data")
    options.add_argument("--steps", type=int, default=5)
    args = options.parse_args()
    configure(args.layout)
    if args.workers > 1:
        gt.gpu_workers(args.workers)

    gt.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(args.steps):
        with gt.signal.context("batch"):
            x = gt.randn(32, 16)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.6f}")
    print("first weight:", gt.explain(model[0].weight).type)
    print("signals:", dict(gt.get_config().signals))


if __name__ == "__main__":
    main()
