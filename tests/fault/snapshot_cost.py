"""``python -m tests.fault.snapshot_cost``: what recovery costs a training job while nothing is lost.

Prints steps per second without recovery, with the log alone, and with snapshots as often as can be; and from these the share of time
that the log, and one snapshot each 60 s, take. Times are the least of several rounds, taken in turns. The log's share is from the
processor time of the thread that records, as its work is there alone: other programs on the machine change it little.
"""

from __future__ import annotations

import os
import time

import click
import numpy as np

import gt
from gt import session as sessions
from gt.runtime import env
from gt.runtime.recovery import Recovery

NEVER = Recovery(interval_s=1e9, max_bytes=1 << 40, max_calls=1 << 40)


class Job:
    """A step of an MLP with Adam on one batch."""

    def __init__(self, width: int, batch: int) -> None:
        layers = [gt.nn.Linear(width, width), gt.nn.ReLU(), gt.nn.Linear(width, width), gt.nn.ReLU(), gt.nn.Linear(width, 10)]
        self.model = gt.nn.Sequential(*layers)
        self.optimizer = gt.optim.Adam(self.model.parameters(), lr=1e-3)
        data = np.random.default_rng(0)
        self.x, self.y = data.standard_normal((batch, width)).astype(np.float32), data.integers(0, 10, batch)

    def steps(self, count: int) -> tuple[float, float]:
        """Give the seconds that so many steps take, their uploads and a read of the loss each included, and this thread's share of it."""
        start, cpu = time.perf_counter(), time.thread_time()
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = gt.nn.functional.cross_entropy(self.model(gt.from_numpy(self.x)), gt.from_numpy(self.y))
            loss.backward()
            self.optimizer.step()
            loss.item()
        return time.perf_counter() - start, time.thread_time() - cpu


@click.command()
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1))
@click.option("--width", default=1024, show_default=True, type=click.IntRange(1))
@click.option("--batch", default=64, show_default=True, type=click.IntRange(1))
@click.option("--steps", default=30, show_default=True, type=click.IntRange(1), help="Of each round.")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1))
@click.option("--backend", type=click.Choice(["numpy", "torch"]), default="torch", show_default=True)
def main(workers: int, width: int, batch: int, steps: int, rounds: int, backend: str) -> None:
    """Measure the cost of recovery."""
    os.environ.setdefault("GT_COMPILE_AFTER", "0")
    env.BACKEND.set(backend)
    gt.gpu_workers(workers)
    session = sessions.current()
    job = Job(width, batch)
    job.steps(steps)
    off, log, shots = [], [], []
    for _ in range(rounds):
        session.recover(None)  # type: ignore[attr-defined]
        off.append(job.steps(steps))
        session.recover(NEVER)  # type: ignore[attr-defined]
        job.steps(2)
        log.append(job.steps(steps))
        before = session.snapshots.taken  # type: ignore[attr-defined]
        session.recover(Recovery(interval_s=1e-6))  # type: ignore[attr-defined]
        seconds, _ = job.steps(steps)
        shots.append((seconds, session.snapshots.taken - before))  # type: ignore[attr-defined]
    (seconds, count), (alone, _), (logged, _) = min(shots), min(off), min(log)
    each = max(0.0, seconds - logged) / max(1, count)
    share = (min(cpu for _, cpu in log) - min(cpu for _, cpu in off)) / alone
    taken, nbytes, total = session.snapshots  # type: ignore[attr-defined]
    print(
        f"{steps / alone:.2f} steps/s without recovery, {steps / logged:.2f} with its log, {steps / seconds:.2f} with {count} snapshots"
    )
    print(
        f"a snapshot: {nbytes / taken / 2**20:.1f} MiB, {1000 * total / taken:.1f} ms until it is whole, steps {1000 * each:.1f} ms later"
    )
    print(f"cost at one snapshot in 60 s: {100 * share:.2f} % for the log, {100 * each / 60:.2f} % for the snapshot")
    gt.disconnect()


if __name__ == "__main__":
    main()
