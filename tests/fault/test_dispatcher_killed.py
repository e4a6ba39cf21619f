"""A server killed under its clients: the error they see, and what they find when it is started again."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.programs import ROOT, Server, environment, server, start, wait_for

pytestmark = pytest.mark.timeout(120)

TRAIN = """
import sys, time
import numpy as np
import gt
gt.connect(sys.argv[1])
gt.manual_seed(3)
model = gt.nn.Sequential(gt.nn.Linear(8, 16), gt.nn.ReLU(), gt.nn.Linear(16, 1))
optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
rng, steps, lost, told = np.random.default_rng(5), 0, 0, 0.0
while steps < 400 or (lost == 0 and sys.argv[2] == "killed"):
    x = gt.from_numpy(rng.normal(size=(32, 8)).astype(np.float32))
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
    if steps % 5:
        continue
    while True:
        try:
            loss.item()
            break
        except gt.DispatcherLost as e:
            if not lost:
                print("lost", repr(time.time()), e, flush=True)
            lost += 1
    if steps == 20:
        print("ready", flush=True)
    if steps % 400 == 0:
        print("at", steps, [p.sum().item() for p in model.parameters()], flush=True)
"""


@contextlib.contextmanager
def restarted(there: Server, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Kill the server, and start another at its port."""
    there.process.kill()
    there.process.wait()
    process = subprocess.Popen(
        [sys.executable, "-m", "gt.server", "-p", str(there.port)], cwd=ROOT, env=environment(**variables), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
