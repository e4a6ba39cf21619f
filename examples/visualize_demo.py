"""A training step in stages on two workers, drawn as a timeline: who computes, who waits, what is sent.

    python examples/visualize_demo.py                             # writes ops.log and timeline.html
    python examples/visualize_demo.py --output timeline.png       # extra `viz`
    gt visualize ops.log -o all.html                              # with how it began
    GT_INSTRUCTION_LOG=mine.log python examples/demo.py           # such a log of any script
    gt trace -s 5                                                 # the same of a server that runs, and GPU kernels

More microbatches, less waiting (the bubble): --microbatches 1 and 8 look different.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

if "GT_INSTRUCTION_LOG" not in os.environ:  # read when the first op is recorded
    Path("ops.log").unlink(missing_ok=True)  # else lines are appended
    os.environ["GT_INSTRUCTION_LOG"] = "ops.log"

import gt
from gt import nn

WARM = 3  # steps in which programs are planned and processes meet: they are left out of the picture


def elapsed(log: str) -> float:
    """Give the seconds from a log's first event to its last."""
    lines = Path(log).read_text().splitlines()
    first, last = (float(line.split()[0]) for line in (lines[1], lines[-1]))
    return last - first


def train(steps: int, microbatches: int, width: int, log: str) -> tuple[float, float]:
    """Train two stages, each on a worker of its own; give the seconds of the log in which nothing was new."""
    gt.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(width, width), nn.Tanh()), nn.Linear(width, width)]
    pipe = gt.pipeline(stages, microbatches=microbatches, loss_fn=nn.functional.mse_loss)
    optimizer = gt.optim.SGD(pipe.parameters(), lr=0.1)
    begin = 0.0
    for step in range(WARM + steps):
        if step == WARM:
            begin = elapsed(log)
        x = gt.randn(64, width)
        optimizer.zero_grad()
        loss = pipe.step(x, target=x)
        optimizer.step()
        print(f"step {step:2d}  loss {loss.item():.4f}")
    return begin, elapsed(log)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--microbatches", type=int, default=4)
    options.add_argument("--width", type=int, default=256)
    options.add_argument("--output", default="timeline.html", help=".html, .png, .svg, .pdf, or .json for ui.perfetto.dev")
    args = options.parse_args()

    log = os.environ["GT_INSTRUCTION_LOG"]
    gt.gpu_workers(2)
    begin, end = train(args.steps, args.microbatches, args.width, log)
    gt.disconnect()  # the last lines are in the log
    part = ["--since", str(begin), "--until", str(end)]
    sys.exit(subprocess.run([sys.executable, "-m", "gt", "visualize", log, "-o", args.output, *part]).returncode)


if __name__ == "__main__":
    main()
