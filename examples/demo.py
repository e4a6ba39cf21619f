"""What gt feels like: ops, gradients, a training step, and what ran.

    python examples/demo.py
    python examples/demo.py --workers 4        # the same values from four local workers
    gt compile examples/demo.py --workers 4    # what the script becomes there, without starting any
"""

from __future__ import annotations

import argparse

import numpy as np

import gt
from gt import nn


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=0, help="local worker processes; 0 runs in this process")
    options.add_argument("--steps", type=int, default=20)
    args = options.parse_args()
    if args.workers:
        gt.gpu_workers(args.workers)

    # Ops only record. Reading a value runs what is pending, as one graph.
    a = gt.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    b = (a * 2 + 1) @ gt.ones(3, 2)
    print("b =", b.tolist())

    # Gradients are torch's.
    x = gt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (x**2).sum().backward()
    print("d(x^2)/dx =", x.grad.tolist())

    # A model, and a step that becomes one graph: forward, backward and update.
    gt.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = gt.optim.Adam(model.parameters(), lr=0.02)
    x = gt.randn(64, 8)
    y = x.sum(dim=1, keepdim=True)
    losses = []
    for _ in range(args.steps):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {args.steps} steps, workers: {gt.num_workers()}")
    print(gt.explain(loss))


if __name__ == "__main__":
    main()
