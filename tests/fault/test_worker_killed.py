"""A worker killed under a script: the error a person sees, in time, and the scripts that go on."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.integration.programs import server, start, wait_for

pytestmark = pytest.mark.timeout(120)

BUSY = """
import sys, time
import numpy as np
import gt
gt.connect(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
with gt.signal.context("rows"):
    x = gt.from_numpy(np.ones((900, 900), np.float32) / 900)
w = gt.from_numpy(np.ones((900, 900), np.float32) / 900)
(x @ w).sum().item()
print("ready", flush=True)
try:
    while True:
        y = x
        for _ in range(6):
            y = y @ w  # the user's line
        y.sum().item()
except gt.WorkerLost as e:
    print(repr(time.time()), e.worker, e.epoch, e.where, flush=True)
    print(e, flush=True)
with gt.signal.context("rows"):
    again = gt.from_numpy(np.ones((8, 4), np.float32))
print(gt.num_workers(), (again + 1).sum().item())
"""

OTHER = """
import sys
import numpy as np
import gt
gt.connect(sys.argv[1])
a = gt.from_numpy(np.arange(6, dtype=np.float32))
print((a + 1).sum().item(), flush=True)
sys.stdin.readline()
print((a * 2).sum().item())
"""


def test_a_killed_worker_is_told_within_five_seconds_and_others_go_on(tmp_path: Path) -> None:
    folders = [tmp_path / "busy", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    with server(2) as there:
        with start(OTHER, folders[1], there.address) as other, start(BUSY, folders[0], there.address) as busy:
            assert other.stdout is not None and other.stdout.readline() == "21.0\n"
            assert busy.stdout is not None and busy.stdout.readline() == "ready\n"
            time.sleep(0.5)  # into the middle of a run
            killed = time.time()
            there.workers[1].send_signal(signal.SIGKILL)
            out, err = busy.communicate(timeout=30)
            assert busy.returncode == 0, err
            when, worker, epoch, where = out.splitlines()[0].split(" ", 3)
            assert 0 < float(when) - killed < 5
            assert worker in "01" and int(epoch) > 1
            line = next(i for i, text in enumerate((folders[0] / "script.py").read_text().splitlines(), 1) if "user's line" in text)
            assert re.search(rf"script\.py:{line}\b", where), where
            message = out.splitlines()[1]
            assert f"worker {worker} (pid {there.workers[1].pid}" in message and f"epoch {epoch}" in message
            assert f"script.py:{line}" in message
            assert out.splitlines()[2] == "1 64.0"
            out, err = other.communicate("\n", timeout=30)
            assert (other.returncode, out) == (0, "30.0\n"), err
        assert wait_for(lambda: there.workers[1].poll() == -signal.SIGKILL)
