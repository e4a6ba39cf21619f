"""When programs are compiled: what a signal marks `compile: true` at once, everything else once it has run often.

    python examples/compile_demo.py                                             # GT_COMPILE_AFTER runs, 200 by default
    GT_CONFIG=examples/config_compile.yaml python examples/compile_demo.py      # at the first run
    GT_COMPILE_AFTER=0 python examples/compile_demo.py                          # never, but for what a signal marks
    GT_CONFIG=examples/config_compile.yaml GT_DEBUG=2 python examples/compile_demo.py   # says what is flushed and planned

What a signal marks waits for the compiler at its first run; all else runs uncompiled until compiled code is there. Without a
configuration there is one warning, that the signal is ignored. docs/BATCHING_AND_COMPILATION.md says more.
"""

from __future__ import annotations

import argparse
import statistics
import time

import gt


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--size", type=int, default=256)
    args = options.parse_args()

    gt.manual_seed(0)
    x, first = gt.randn(args.size, args.size), 0.0
    seconds = []
    for step in range(args.steps):
        start = time.perf_counter()
        with gt.signal.context("hot"):
            y = x
            for _ in range(8):  # a chain that compiling fuses
                y = (y * 1.01 + 0.1).tanh() * y.sigmoid()
            total = y.sum()
        value = total.item()
        seconds.append(time.perf_counter() - start)
        first = value if step == 0 else first
    part = max(1, args.steps // 10)
    early, late = (statistics.median(s) * 1e3 for s in (seconds[:part], seconds[-part:]))
    print(f"sum {value:.4f}; every step the same to {abs(value - first) / abs(first):.0e}")
    print(f"the first step: {seconds[0]:.2f} s")
    print(f"a step: {early:.2f} ms among the first {part}, {late:.2f} ms among the last {part}")


if __name__ == "__main__":
    main()
