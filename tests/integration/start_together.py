"""Starts pairs of programs that call ``gpu_workers(2)`` at the same moment, and counts how often both do well.

    python -m tests.integration.start_together --pairs 100 --backend numpy
    python -m tests.integration.start_together --pairs 3 --backend torch

Next: ``test_start_stop``, which runs a few.
"""

from __future__ import annotations

import subprocess
import sys
import time

import click

from tests.integration.programs import environment

PROGRAM = """
import sys
import numpy as np
import gt
print("ready", flush=True)
sys.stdin.readline()
gt.gpu_workers(2)
assert gt.num_workers() == 2
seed = float(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
with gt.signal.context("rows"):
    x = gt.from_numpy(np.full((6, 3), seed, np.float32))
assert (x + 1).tolist() == [[seed + 1] * 3] * 6
if sys.argv[2] == "torch":  # a collective between the two workers, which imports torch
    assert (x @ x.T).sum().item() == 6 * 6 * 3 * seed * seed
print("well", flush=True)
"""


def one_pair(number: int, backend: str, limit_s: float) -> list[str]:
    """Start two programs at once; give what went wrong."""
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(2 * number + i), backend], env=environment(GT_BACKEND=backend),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    wrong = []
    try:
        for p in pair:
            assert p.stdout is not None
            p.stdout.readline()
        for p in pair:
            assert p.stdin is not None
            p.stdin.write("go\n")
            p.stdin.flush()
        for p in pair:
            out, err = p.communicate(timeout=limit_s)
            if (p.returncode, out) != (0, "well\n"):
                wrong.append(f"pair {number}: ended with {p.returncode}: {err[-2000:]}")
    except subprocess.TimeoutExpired:
        wrong.append(f"pair {number}: not done in {limit_s:g} s")
    finally:
        for p in pair:
            p.kill()
            p.communicate()
    return wrong


def start_pairs(pairs: int, backend: str, limit_s: float = 90.0, tell: bool = False) -> list[str]:
    """Start pairs one after the other; give what went wrong."""
    wrong: list[str] = []
    slowest = 0.0
    for number in range(pairs):
        start = time.monotonic()
        wrong += one_pair(number, backend, limit_s)
        slowest = max(slowest, time.monotonic() - start)
        if tell and (number + 1 == pairs or number % 10 == 9):
            well = number + 1 - len({w.partition(":")[0] for w in wrong})
            click.echo(f"{well} of {number + 1} pairs on {backend} well, slowest {slowest:.1f} s")
    return wrong


@click.command()
@click.option("--pairs", default=100, show_default=True)
@click.option("--backend", type=click.Choice(["numpy", "torch"]), default="numpy", show_default=True)
def main(pairs: int, backend: str) -> None:
    """Start pairs of programs at the same moment."""
    wrong = start_pairs(pairs, backend, tell=True)
    for text in wrong:
        click.echo(text, err=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
