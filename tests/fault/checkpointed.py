"""A training run that saves checkpoints as it goes and goes on from the newest: its losses, to the last bit, one a line with the process.

    python -m tests.fault.checkpointed FOLDER LOSSES STEPS [STOP]    # STOP: the step after which it stops, with all its threads
    python -m tests.fault.checkpointed --kills 20        # killed so often at moments drawn by --seed, compared with a run that is not

Next: ``test_checkpoint_killed``, the short form.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gt
from gt import checkpoint
from gt.utils.data import DataLoader, TensorDataset
from tests.integration.programs import ROOT, environment

STEPS, EVERY = 24, 2


def train(folder: Path, losses: Path, steps: int = STEPS, stop: int = 0) -> None:
    """Train to the end from where a checkpoint left off; add each step's loss to a file. Stop the process after step ``stop``."""
    gt.manual_seed(11)
    random.seed(11)
    rng = np.random.default_rng(11)
    values = rng.standard_normal((50, 6)).astype(np.float32)
    loader = DataLoader(
        TensorDataset(gt.from_numpy(values), gt.from_numpy(values @ rng.standard_normal((6, 2)).astype(np.float32))), 8, True
    )
    model = gt.nn.Sequential(gt.nn.Linear(6, 16), gt.nn.BatchNorm1d(16), gt.nn.ReLU(), gt.nn.Dropout(0.1), gt.nn.Linear(16, 2))
    optimizer = gt.optim.AdamW(model.parameters(), 1e-2)
    scheduler = gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader, "rng": rng}
    step, saving = checkpoint.resume(folder, **parts).step, None
    while step < steps:
        for x, y in loader:
            noise = float(rng.normal()) * random.random()
            loss = (model(x + noise * 0.01 * gt.randn_like(x)) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1
            with losses.open("a") as out:
                out.write(f"{step} {loss.item().hex()} {os.getpid()}\n")
            if step == stop:
                os.kill(os.getpid(), signal.SIGSTOP)
            if step % EVERY == 0:
                if saving is not None:
                    saving.wait()
                saving = checkpoint.save(folder, parts, step=step, keep=2, host_random=True)
            if step == steps:
                break


def begin(folder: Path, losses: Path, steps: int = STEPS, stop: int = 0) -> subprocess.Popen[bytes]:
    """Start the run in a process of its own."""
    command = [sys.executable, "-m", "tests.fault.checkpointed", *map(str, (folder, losses, steps, stop))]
    return subprocess.Popen(command, cwd=ROOT, env=environment(GT_BACKEND="torch"), stderr=subprocess.PIPE)


def seen(losses: Path) -> list[tuple[int, str, str]]:
    """Give (step, loss, process) of the whole lines that are there."""
    lines = losses.read_text().split("\n")[:-1] if losses.exists() else []
    return [(int(step), loss, process) for step, loss, process in map(str.split, lines)]


def wait_for(losses: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until so many steps are done, or the process has ended."""
    until = time.monotonic() + 60
    while len(seen(losses)) < lines and process.poll() is None:
        assert time.monotonic() < until, f"step {lines} was not done within 60 s"
        time.sleep(0.002)


def kill_often(kills: int, seed: int) -> None:
    """Kill a run at drawn moments until it has been so often, let it end, and compare every loss."""
    draw, steps = random.Random(seed), 20 * kills + 20
    with tempfile.TemporaryDirectory() as name:
        whole, killed, folder = Path(name, "whole"), Path(name, "killed"), Path(name, "runs")
        train(Path(name, "undisturbed"), whole, steps)
        wanted = {step: loss for step, loss, _ in seen(whole)}
        for kill in range(kills):
            with begin(folder, killed, steps) as process:
                wait_for(killed, len(seen(killed)) + draw.randrange(1, 25), process)
                time.sleep(draw.random() * 0.02)
                process.kill()
            print(f"kill {kill + 1}: {len(seen(killed))} steps seen, newest checkpoint {checkpoint.latest(folder)}")
        with begin(folder, killed, steps) as process:
            _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err.decode()
        found = seen(killed)
        wrong = [(step, loss, wanted[step]) for step, loss, _ in found if wanted[step] != loss]
        assert not wrong, f"{len(wrong)} losses differ, the first {wrong[0]} (seed {seed})"
        assert {step for step, _, _ in found} == set(wanted)
        print(f"{len(found)} losses of {len({p for *_, p in found})} processes are those of a run that was not killed")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--kills"]:
        options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        options.add_argument("--kills", type=int, default=20)
        options.add_argument("--seed", type=int, default=0)
        kill_often(**vars(options.parse_args()))
    else:
        train(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
