"""Signals: names for pieces of a program, whose meaning stands elsewhere. The values printed are the same every time.

    python examples/signal_demo.py                                                     # no configuration: one warning
    GT_CONFIG=examples/config_sharding.yaml python examples/signal_demo.py --workers 4
    GT_CONFIG=examples/config_sharding.yaml gt compile examples/signal_demo.py --workers 4 --dump-ir

See README_SIGNALS.md for what each signal of the file does.
"""

from __future__ import annotations

import argparse

import numpy as np

import gt


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=0, help="local worker processes; 0 runs in this process")
    args = options.parse_args()
    if args.workers:
        gt.gpu_workers(args.workers)

    rng = np.random.default_rng(0)
    w1, w2 = (gt.from_numpy(rng.standard_normal((64, 64)).astype(np.float32) / 8).requires_grad_() for _ in range(2))

    # A block: what is made and computed inside follows "layer1", its gradients "layer1_bwd".
    with gt.signal.context("layer1", backward="layer1_bwd"):
        x = gt.from_numpy(rng.standard_normal((128, 64)).astype(np.float32))
        h = (x @ w1).relu()
        print("inside:", gt.signal.current_signal(), "backward:", gt.signal.current_backward_signal())

    # Blocks nest, the innermost counts; enter and exit where a "with" does not fit.
    gt.signal.enter("layer2")
    y = h @ w2
    gt.signal.exit("layer2")

    # One tensor: a copy that is placed as the signal says.
    y = gt.signal.tensor(y, name="result")

    loss = (y**2).mean()
    loss.backward()
    print(f"loss {loss.item():.6f}  |dw1| {w1.grad.norm().item():.6f}  |dw2| {w2.grad.norm().item():.6f}")
    for name, value in (("x", x), ("h", h), ("y", y)):
        print(f"{name}: {gt.explain(value).type} on workers {gt.explain(value).workers}")


if __name__ == "__main__":
    main()
