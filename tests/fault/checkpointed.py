"""A training run that saves checkpoints as it goes and goes on from the newest: its losses, to the last bit, one a line with the process.

    python -m tests.fault.checkpointed FOLDER LOSSES

Next: ``test_checkpoint_killed``, which kills it.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gt
from gt import checkpoint
from gt.utils.data import DataLoader, TensorDataset

STEPS, EVERY = 24, 2


def train(folder: Path, losses: Path, steps: int = STEPS) -> None:
    """Train to the end from where a checkpoint left off; add each step's loss to a file."""
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
            if step % EVERY == 0:
                if saving is not None:
                    saving.wait()
                saving = checkpoint.save(folder, parts, step=step, keep=2, host_random=True)
            if step == steps:
                break


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]))
