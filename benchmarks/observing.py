"""What gt's own tools cost a training step: the instruction log, a trace (gt trace), and both off.

    python benchmarks/observing.py           # about a minute

Steps of an MLP (784-256-10, batch 128) and of a CNN for digits (28x28, batch 64) in this process, where client, dispatcher and worker all
pay. The three ways take turns, in short stretches; a figure is the median over stretches of the mean CPU time of a step, of all threads, its
ratio that of neighbours. Also: what one line costs.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import gt
from gt import session as sessions
from gt.runtime.log import InstructionLog

STRETCHES, STEPS = 25, 40
WAYS = ("off", "traced", "logged")


def mlp() -> gt.nn.Module:
    return gt.nn.Sequential(gt.nn.Linear(784, 256), gt.nn.ReLU(), gt.nn.Linear(256, 10))


def cnn() -> gt.nn.Module:
    return gt.nn.Sequential(
        gt.nn.Conv2d(1, 16, 3, padding=1), gt.nn.ReLU(), gt.nn.MaxPool2d(2), gt.nn.Conv2d(16, 32, 3, padding=1), gt.nn.ReLU(),
        gt.nn.MaxPool2d(2), gt.nn.Flatten(), gt.nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], gt.nn.Module], tuple[int, ...]]] = {"mlp": (mlp, (128, 784)), "cnn": (cnn, (64, 1, 28, 28))}


def step(name: str) -> Callable[[], float]:
    make, shape = MODELS[name]
    gt.manual_seed(0)
    model = make()
    opt = gt.optim.SGD(model.parameters(), lr=0.1)
    x = gt.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))

    def once() -> float:
        loss = (model(x) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return float(loss.item())

    return once


def mean_s(once: Callable[[], float]) -> float:
    start = time.process_time()
    for _ in range(STEPS):
        once()
    return (time.process_time() - start) / STEPS


def embedded_logs() -> list[InstructionLog]:
    session = sessions.running()
    return [session._log, session._dispatcher_log, session.usage.runner.log]  # type: ignore[union-attr]


def switch(logs: list[InstructionLog], way: str, folder: Path) -> None:
    """Have the logs of this process be off, traced, or in a file."""
    for log in logs:
        log.close()
        log.traced()
        if way == "traced":
            log.trace(100_000)
        elif way == "logged":
            log.path = str(folder / "ops.log")
            log._open()
            log.on = True


def measure(name: str, folder: Path) -> None:
    """Print what a step of a model takes in each way."""
    once = step(name)
    for _ in range(30):
        once()
    logs = embedded_logs()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(STRETCHES):
        for way, found in times.items():
            switch(logs, way, folder)
            found.append(mean_s(once))
    switch(logs, "off", folder)
    for way, found in times.items():
        ratios = [a / b for a, b in zip(found, times["off"], strict=True)]
        more = 100 * (statistics.median(ratios) - 1)
        print(f"{name} {way:<9} {statistics.median(found) * 1e6:8.1f} us of CPU a step, {more:+.2f} %")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            measure(name, Path(folder))
        for way in WAYS:
            log = InstructionLog("", "client0")
            switch([log], way, Path(folder))
            start = time.process_time()
            for _ in range(20_000):
                if log.on:
                    log.write("call", "Run", 0, "key=1 made=2")
            print(f"any {way:<9} {(time.process_time() - start) / 20_000 * 1e9:8.0f} ns an event")
            switch([log], "off", Path(folder))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
