"""Values that are made again are those that there were, bit for bit, where runs had climbed to compiled code meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.gpus import GPUS, needs_gpu
from tests.integration.programs import output

SCRIPT = """
import os, signal, sys, time, zlib
import numpy as np
import psutil
import gt
from gt import session as sessions

interval_s, workers, letters = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]  # ``letters``: of the tiers to reach
if "gpus" in sys.argv:
    from pytest import MonkeyPatch
    from tests.integration import gpus
    gpus.share(workers, MonkeyPatch())
gt.gpu_workers(workers)
gt.recover(interval_s=interval_s)
gt.manual_seed(0)
model = gt.nn.Sequential(gt.nn.Linear(33, 64), gt.nn.GELU(), gt.nn.LayerNorm(64), gt.nn.Linear(64, 10))
opt = gt.optim.AdamW(model.parameters(), lr=1e-2)
rng = np.random.default_rng(0)

def step():
    x, y = gt.from_numpy(rng.standard_normal((32, 33), dtype=np.float32)), gt.from_numpy(rng.integers(0, 10, 32))
    loss = gt.nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()

def bits():
    return zlib.crc32(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))

until, climbed = time.monotonic() + 80, 0
while climbed < 8 and time.monotonic() < until:
    step()
    time.sleep(0.02)
    climbed += set(letters) <= {letter for run in sessions.running()._tiers.values() for _, tiers in run for letter in tiers}
for _ in range(2):
    before, (worker, *_) = bits(), [p for p in psutil.Process().children(recursive=True) if "gt.runtime.worker" in p.cmdline()]
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(10)
    time.sleep(0.3)
    after = bits()
    print("climbed", climbed, "equal", before == after, "recoveries", len(sessions.running().recoveries))
    for _ in range(3):
        step()
"""


EQUAL = ["climbed 8 equal True recoveries 1", "climbed 8 equal True recoveries 2"]


@pytest.mark.timeout(200)
@pytest.mark.skipif(GPUS > 0, reason="workers have GPUs")
@pytest.mark.parametrize(("interval_s", "workers"), [(1000, 2), (1.5, 1)])
def test_what_is_made_again_is_at_the_tiers_that_it_was_at(interval_s: float, workers: int, tmp_path: Path) -> None:
    """From the script's begin, across the step at which compiled code is swapped in; and from a snapshot behind that."""
    said = output(SCRIPT, tmp_path, interval_s, workers, "c", timeout_s=180, GT_BACKEND="torch", GT_COMPILE_AFTER="5")
    assert said.splitlines() == EQUAL


@needs_gpu
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("interval_s", "workers", "letters"), [(1000, 1, "g"), (1.5, 1, "c"), (1000, 2, "c")])
def test_on_gpus_too(interval_s: float, workers: int, letters: str, tmp_path: Path) -> None:
    """Also where runs were a CUDA graph, of one worker or of two with NCCL's collectives."""
    said = output(SCRIPT, tmp_path, interval_s, workers, letters, "gpus", timeout_s=180, GT_BACKEND="torch", GT_COMPILE_AFTER="5")
    assert said.splitlines() == EQUAL
