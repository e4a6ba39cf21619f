"""Nothing grows: training steps, dropped results and dropped uploads leave no memory behind, in any process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.programs import output

pytestmark = pytest.mark.timeout(240)
MB = 1 << 20

# Prints, per hundred steps, the memory of this process and of each process it started, and the buffers it holds.
TRAIN = """
import json, sys
import numpy as np
import psutil
import gt
import gt.nn.functional as F
from gt.nn import Linear, SGD

workers, steps, every = map(int, sys.argv[1:])
if workers:
    gt.gpu_workers(workers)
gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
fc1, fc2 = Linear(256, 64), Linear(64, 10)
optimizer = SGD([*fc1.parameters(), *fc2.parameters()], lr=0.01, momentum=0.9)
rng = np.random.default_rng(0)
images, labels = rng.standard_normal((32, 256)).astype("float32"), rng.integers(0, 10, 32)
me = psutil.Process()

def buffers():
    session = gt.session.current()
    return None if workers else len(session._state.clients[0].buffers)

rows = []
for step in range(1, steps + 1):
    with gt.signal.context("rows"):
        x, y = gt.from_numpy(images), gt.from_numpy(labels)
    loss = F.cross_entropy(fc2(fc1(x).relu()), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    if step % every == 0:
        processes = [me, *sorted(me.children(recursive=True), key=lambda p: p.pid)]
        rows.append([[p.memory_info().rss for p in processes], buffers()])
print(json.dumps(rows))
"""


@pytest.mark.parametrize(("workers", "backend", "warm_up"), [(0, "numpy", 500), (2, "numpy", 1000), (0, "torch", 500)])
def test_training_steps_leave_every_process_as_it_was(workers: int, backend: str, warm_up: int, tmp_path: Path) -> None:
    """Allocators and Gloo settle within the warm-up; what the 1,000 steps after it add is a leak."""
    out = output(TRAIN, tmp_path, workers, warm_up + 1000, 100, GT_BACKEND=backend, GT_COMPILE_AFTER="0", timeout_s=200)
    rows = json.loads(out)
    memory = [row[0] for row in rows]
    assert {len(m) for m in memory} == {5 if workers else 1}  # this process; dispatcher, planner, two workers
    warm, end = memory[warm_up // 100 - 1], memory[-1]
    grown = [(b - a) / MB for a, b in zip(warm, end, strict=True)]
    assert max(grown) < 1, f"MB grown in 1,000 steps, by process: {grown}"
    assert len({row[1] for row in rows[1:]}) == 1, f"buffers: {[row[1] for row in rows]}"


# Four kinds of result that a program drops: computed and read, computed only, uploaded only, and failed.
DROP = """
import json, sys
import numpy as np
import psutil
import gt

workers, count = map(int, sys.argv[1:])
if workers:
    gt.gpu_workers(workers)
one = np.ones((64, 256), "float32")  # 64 KB
base = gt.from_numpy(one)
me = psutil.Process()

def memory():
    return sum(p.memory_info().rss for p in [me, *me.children(recursive=True)])

def drop(count):
    for i in range(count):
        r = base + i
        if i % 4 == 0:
            assert r[0, 0].item() == 1 + i
        gt.from_numpy(one)
    try:
        base[gt.tensor([9999])].numpy()
    except gt.RunError:
        pass
    assert (base + 1).sum().item() == 2 * one.size

drop(200)
before = memory()
drop(count)
held = None if workers else [len(gt.session.current()._state.clients[0].buffers), len(gt.session.current()._state.flights.by_epoch)]
print(json.dumps([memory() - before, held]))
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_ten_thousand_dropped_results_leave_nothing(workers: int, tmp_path: Path) -> None:
    grown, held = json.loads(output(DROP, tmp_path, workers, 5000, timeout_s=200))  # a result and an upload each
    assert grown < 16 * MB, f"{grown / MB:.0f} MB of {10_000 * 64 / 1024:.0f} MB dropped"
    if held is not None:
        assert held[0] <= 8 and held[1] == 0
