"""A worker killed under a script: the error a person sees, in time, and the scripts that go on."""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.programs import lived, log_lines, server, start, wait_for

pytestmark = pytest.mark.timeout(120)

BUSY = """
import sys
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
    print(e.worker, e.epoch, e.where, flush=True)
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

STEADY = """
import contextlib, sys
import numpy as np
import gt
gt.connect(sys.argv[1])
gt.register_config("pair", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
scope = contextlib.nullcontext() if sys.argv[2] == "plain" else gt.signal.context("pair")
turn = gt.from_numpy(np.roll(np.eye(300, dtype=np.float32), 1, 0))  # no signal: whole on all workers
with scope:
    x = gt.from_numpy(np.arange(90000, dtype=np.float32).reshape(300, 300) % 7)
    expected, rounds, after = x.sum().item(), 0, 0
    while after < 3:
        after += gt.num_workers() == 2
        for _ in range(10):
            x = x @ turn
            turn = turn * 1.0
        assert x.sum().item() == expected
        rounds += 1
        if rounds == 2:
            print("ready", flush=True)
print(gt.num_workers(), turn.sum().item(), x[0, :3].tolist() == [float((k + 10 * rounds) % 300 % 7) for k in range(3)])
"""


def test_a_killed_worker_is_told_within_five_seconds_and_others_go_on(tmp_path: Path) -> None:
    folders = [tmp_path / "busy", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    log = tmp_path / "log"
    with server(2, GT_INSTRUCTION_LOG=str(log)) as there:
        with start(OTHER, folders[1], there.address) as other, start(BUSY, folders[0], there.address) as busy:
            assert other.stdout is not None and other.stdout.readline() == "21.0\n"
            assert busy.stdout is not None and busy.stdout.readline() == "ready\n"
            assert wait_for(lambda: in_the_middle(log, "flush1"))
            with lived() as seconds:
                there.workers[1].send_signal(signal.SIGKILL)
                told = busy.stdout.readline()
                assert seconds() < 5
            out, err = busy.communicate(timeout=30)
            assert busy.returncode == 0, err
            worker, epoch, where = told.split(" ", 2)
            assert worker in "01" and int(epoch) > 1
            line = next(i for i, text in enumerate((folders[0] / "script.py").read_text().splitlines(), 1) if "user's line" in text)
            assert re.search(rf"script\.py:{line}\b", where), where
            message = out.splitlines()[0]
            assert f"worker {worker} (pid {there.workers[1].pid}" in message and f"epoch {epoch}" in message
            assert f"script.py:{line}" in message
            assert out.splitlines()[1] == "1 64.0"
            out, err = other.communicate("\n", timeout=30)
            assert (other.returncode, out) == (0, "30.0\n"), err
            there.workers[0].send_signal(signal.SIGINT)
            assert there.workers[0].wait(15) == 0
        assert wait_for(lambda: there.workers[1].poll() == -signal.SIGKILL)


def in_the_middle(log: Path, graph: str) -> bool:
    """Whether both workers have run a graph, and are running again."""
    lines = log_lines(log)
    for worker in ("worker0", "worker1"):
        begun = sum(words[2:5] == ["recv", worker, "Execute"] for words in lines)
        over = [words[4] for words in lines if words[2:4] == ["run", worker]]
        if graph not in over or begun == len(over):
            return False
    return True


def test_work_that_does_without_the_killed_worker_goes_on(tmp_path: Path) -> None:
    """Under a signal that names other workers; and without one, as every worker then does the same on its own copies."""
    with server() as there, ExitStack() as stack:
        for count in (1, 2, 3):  # one after the other, so that each has the number it started with
            there.add_workers(1)
            there.await_workers(count)
        running = []
        for how in ("marked", "plain"):
            (tmp_path / how).mkdir()
            running.append(stack.enter_context(start(STEADY, tmp_path / how, there.address, how)))
        for each in running:
            assert each.stdout is not None and each.stdout.readline() == "ready\n"
        there.workers[2].send_signal(signal.SIGKILL)
        for each in running:
            out, err = each.communicate(timeout=60)
            assert (each.returncode, out) == (0, "2 300.0 True\n"), err
        assert there.workers[2].wait(10) == -signal.SIGKILL
        for worker in there.workers[:2]:
            worker.send_signal(signal.SIGINT)
        assert [worker.wait(15) for worker in there.workers[:2]] == [0, 0]


MESH = """
import sys
import gt
gt.connect(sys.argv[1])
gt.register_mesh({"dp": 2, "tp": 2})
for name, dims in {"x": {0: "dp"}, "w": {1: "tp"}, "v": {0: "tp"}}.items():
    gt.register_config(name, gt.SignalConfig(shard=gt.ShardConfig(dims=dims)))
x, w, v = (gt.signal.tensor(gt.randn(64, 64) * 0.1, name=name) for name in "xwv")
rounds = 0
try:
    while True:
        for _ in range(20):
            h = (x @ w).relu() @ v
            x = x * 0.9 + h * 0.01 + h.sum(0) * 0.001
        x.sum().item()
        rounds += 1
        if rounds == 20:
            print("ready", flush=True)
except gt.WorkerLost as e:
    print(e.worker, flush=True)
"""

PAIR = """
import sys
import gt
gt.connect(sys.argv[1])
gt.register_config("pair", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
x = gt.signal.tensor(gt.ones(64, 64), name="pair")
rounds, after = 0, 0
while after < 20:
    after += gt.num_workers() == 3
    assert (x * 2 + rounds).sum().item() == 4096 * (2 + rounds)
    rounds += 1
    if rounds == 20:
        print("ready", flush=True)
print(gt.num_workers(), x.sum().item())
"""


def test_a_worker_killed_in_a_mesh_holds_up_none_that_meet_without_it(tmp_path: Path) -> None:
    """Of the mesh's groups (0, 1), (2, 3), (0, 2) and (1, 3) two are without it: who meets there finds a member that has failed elsewhere."""
    with server() as there, ExitStack() as stack:
        for count in (1, 2, 3, 4):
            there.add_workers(1)
            there.await_workers(count)
        running = []
        for name, code in (("mesh", MESH), ("pair", PAIR)):
            (tmp_path / name).mkdir()
            running.append(stack.enter_context(start(code, tmp_path / name, there.address)))
        for each in running:
            assert each.stdout is not None and each.stdout.readline() == "ready\n"
        with lived() as seconds:
            there.workers[3].send_signal(signal.SIGKILL)
            out, err = running[1].communicate(timeout=60)
            assert (running[1].returncode, out) == (0, "3 4096.0\n"), err
            assert seconds() < 15  # a member that is not told of it counts as lost itself after 30 s
        out, err = running[0].communicate(timeout=60)
        assert (running[0].returncode, out) == (0, "3\n"), err
        for worker in there.workers[:3]:
            worker.send_signal(signal.SIGINT)
        assert [worker.wait(15) for worker in there.workers[:3]] == [0, 0, 0]
