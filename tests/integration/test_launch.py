"""``gt launch``: one line on every node, what each launcher's variables make of it, and how a job ends when a part of it does."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gt.runtime.keys import make_keys
from tests.integration.hosts import Host, two_hosts
from tests.integration.programs import ROOT, command, descendants, environment, gone, lived, wait_for

pytestmark = pytest.mark.timeout(120)

LAUNCHERS = ("SLURM", "TORCHELASTIC", "OMPI", "SKYPILOT", "JOB_COMPLETION", "GROUP_", "MASTER_")
SLURM = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "10.77.0.[1-2]", "SLURM_NNODES": "2",
}  # fmt: skip


@contextmanager
def node(
    folder: Path, *words: object, host: Host | None = None, script: str = "script.py", **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """Run the command as one node."""
    clean = {k: v for k, v in environment(TMPDIR=str(folder), **variables).items() if not k.startswith(LAUNCHERS) or k in variables}
    with command(folder, clean, "launch", *words, script, prefix=tuple(host.prefix) if host else ()) as process:
        yield process


def by_flags(i: int, port: int, head: str = "127.0.0.1", num_nodes: int = 2) -> list[object]:
    return ["--nnodes", num_nodes, "--node-rank", i, "--head", head, "--port", port]


TRAIN = """
import sys
import gt
a = gt.ones(64, 64)
print(gt.num_workers(), (a @ a).sum().item(), flush=True)
with open("/proc/net/tcp") as f:  # of this host: what listens there
    rows = [line.split() for line in f][1:]
print(*sorted({".".join(str(int(r[1][i : i + 2], 16)) for i in (6, 4, 2, 0)) for r in rows if r[3] == "0A"}))
sys.exit(9)
"""


def test_two_hosts_of_slurm_run_one_script_and_end_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TRAIN)
    make_keys(tmp_path / "keys", ["client"], ["worker"])
    with two_hosts() as (first, second):
        apart = bool(first.prefix)
        words = ["--port", 29633, "--keys", tmp_path / "keys"]
        nodes = "10.77.0.[1-2]" if apart else "127.0.0.[2-3]"
        variables = {**SLURM, "SLURM_STEP_NODELIST": nodes}
        with (
            node(tmp_path, *words, host=second, **variables, SLURM_NODEID="1") as follower,
            node(tmp_path, *words, host=first, **variables, SLURM_NODEID="0") as leader,
        ):
            out, err = leader.communicate(timeout=60)
            assert (leader.returncode, out.splitlines()[0]) == (9, "2 262144.0"), err
            assert err == f"gt launch: node 0 of 2 (by slurm, node 0 is {first.address})\n"
            listening = out.splitlines()[1].split()
            if apart:
                assert set(listening) == {first.address}, listening
            assert "0.0.0.0" not in listening
            _, err = follower.communicate(timeout=60)
            assert follower.returncode == 9, err
            assert err == f"gt launch: node 1 of 2 (by slurm, node 0 is {first.address})\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["keys", "script.py"]


def test_a_node_with_another_key_is_told_at_once_and_nobody_waits_for_it_longer(port: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    for folder in ("keys", "others"):
        make_keys(tmp_path / folder, ["client"], ["worker"])
    with (
        node(tmp_path, *by_flags(1, port), "--keys", tmp_path / "others") as alien,
        node(tmp_path, *by_flags(1, port)) as keyless,
    ):
        for follower in (alien, keyless):
            assert follower.stderr is not None and "node 1 of 2" in follower.stderr.readline()  # it runs, and waits for node 0
        with node(tmp_path, *by_flags(0, port), "--keys", tmp_path / "keys", "--wait", 8) as leader:
            _, err = alien.communicate(timeout=60)
            assert alien.returncode == 3 and "check key file" in err, err
            _, err = keyless.communicate(timeout=60)
            assert keyless.returncode == 3 and "lets in only those with a key" in err, err
            _, err = leader.communicate(timeout=60)
            assert leader.returncode == 5 and re.search("node 1 of 2 missing, (0 workers|1 worker) joined after 8 s", err), err
    (tmp_path / "keys" / "worker.key").chmod(0o644)
    with node(tmp_path, *by_flags(1, port), "--keys", tmp_path / "keys") as follower:
        _, err = follower.communicate(timeout=60)
    assert follower.returncode == 2 and "key file" in err, err


@pytest.mark.parametrize(
    ("variables", "words", "says"),
    [
        ({"TORCHELASTIC_RUN_ID": "r", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2",
          "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, [], "node 1 of 2 (by torchrun, node 0 is 127.0.0.1)"),
        ({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2"}, ["--head", "127.0.0.1"], "node 2 of 3 (by openmpi, node 0 is 127.0.0.1)"),
        ({"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.3"}, [], "node 1 of 2 (by skypilot, node 0 is 127.0.0.1)"),
        ({"JOB_COMPLETION_INDEX": "3"}, ["--nnodes", 4, "--head", "localhost"], "node 3 of 4 (by kubernetes, node 0 is localhost)"),
    ],
    ids=["torchrun", "openmpi", "skypilot", "kubernetes"],
)  # fmt: skip
def test_a_node_says_who_it_is_and_waits_for_node_0_no_longer_than_told(
    variables: dict[str, str], words: list[object], says: str, port: int, tmp_path: Path
) -> None:
    (tmp_path / "script.py").touch()
    with node(tmp_path, "--port", port, "--wait", 0.2, *words, **variables) as process, lived() as seconds:
        _, err = process.communicate(timeout=60)
        assert seconds() < 10
    first, second = err.splitlines()
    assert first == f"gt launch: {says}" and process.returncode == 3
    assert second.startswith(f"gt launch: node 0 does not answer at tcp://127.0.0.1:{port} within 0.2 s: check"), second


def test_node_0_says_who_is_missing(port: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    with node(tmp_path, *by_flags(0, port, num_nodes=3), "--wait", 1) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 5
    assert re.search(r"nodes 1, 2 of 3 missing, (0 workers|1 worker) joined after 1 s: check those nodes' own output\n$", err), err


WAIT = "import gt, time\nprint(gt.ones(2).tolist(), flush=True)\nwhile True:\n    time.sleep(0.01)"


def test_a_node_asked_to_end_goes_on_for_the_script_and_ends_when_node_0_is_killed(port: int, tmp_path: Path) -> None:
    """A scheduler asks all nodes at once: the script may have its work to save."""
    (tmp_path / "script.py").write_text(WAIT)
    with node(tmp_path, *by_flags(0, port)) as leader, node(tmp_path, *by_flags(1, port)) as follower:
        assert leader.stdout is not None and leader.stdout.readline() == "[1.0, 1.0]\n"
        left = descendants(leader) + descendants(follower)
        assert len(left) == 5  # dispatcher, planner, the script, a worker on each
        follower.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            follower.wait(0.5)
        leader.kill()
        _, err = follower.communicate(timeout=60)
        assert follower.returncode == 3, err
        assert wait_for(lambda: gone(left)), left


NEEDS = """
import os
import gt
gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
with gt.signal.context("rows"):
    a = gt.ones(64, 64)
print(gt.num_workers(), a.sum().item(), flush=True)
while True:
    try:
        (a + 1).sum().item()
    except gt.WorkerLost:
        if not os.path.exists("goes_on"):
            raise
        break
while not os.path.exists("told"):
    gt.ones(3).sum().item()
print(gt.ones(3).sum().item())
"""


@pytest.mark.parametrize(("goes_on", "code"), [(False, 4), (True, 0)])
def test_node_0_says_which_node_is_lost_and_the_script_decides_what_follows(goes_on: bool, code: int, port: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(NEEDS)
    if goes_on:
        (tmp_path / "goes_on").touch()
    with node(tmp_path, *by_flags(1, port)) as follower, node(tmp_path, *by_flags(0, port)) as leader:
        assert leader.stdout is not None and leader.stdout.readline() == "2 4096.0\n"
        left = descendants(follower)
        assert len(left) == 1
        follower.kill()
        assert leader.stderr is not None and leader.stderr.readline().startswith("gt launch: node 0 of 2")
        there = f"gt launch: node 1 ({socket.gethostname()}) is lost: gt launch there (pid {follower.pid}) has ended"
        lines = iter(leader.stderr.readline, "")
        assert any(line.startswith(there) for line in lines)
        (tmp_path / "told").touch()
        out, err = leader.communicate(timeout=60)
        assert wait_for(lambda: gone(left)), left
    assert (leader.returncode, out) == (code, "3.0\n" if goes_on else "") and there not in err, err


def test_a_node_that_was_stopped_for_long_goes_on(port: int, tmp_path: Path) -> None:
    """As where its machine slept; its worker's process was not stopped. Its connection ends meanwhile."""
    (tmp_path / "script.py").write_text(WAIT.replace("while True", "import os\nwhile not os.path.exists('go')"))
    with node(tmp_path, *by_flags(1, port)) as follower, node(tmp_path, *by_flags(0, port)) as leader:
        assert leader.stdout is not None and leader.stdout.readline() == "[1.0, 1.0]\n"
        assert leader.stderr is not None and leader.stderr.readline()
        follower.send_signal(signal.SIGSTOP)
        assert f"is lost: gt launch there (pid {follower.pid}) has not been heard of for 10 s" in leader.stderr.readline()
        time.sleep(3)
        follower.send_signal(signal.SIGCONT)
        assert f"is here again (pid {follower.pid})" in leader.stderr.readline()
        (tmp_path / "go").touch()
        assert leader.wait(60) == 0 and follower.wait(60) == 0, follower.communicate()


RECOVERS = """
import os, time
import gt
gt.recover()
a = gt.ones(64, 64)
b = a @ a
print(b.sum().item(), flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
until = time.monotonic() + 60
while not gt.recoveries() and time.monotonic() < until:  # the loss is noticed while it works
    (b @ a).sum().item()
    time.sleep(0.02)
print((b @ a).sum().item() / 64, gt.num_workers(), [r.workers for r in gt.recoveries()], flush=True)
"""


def test_another_node_s_worker_that_dies_under_a_script_that_recovers_is_replaced(port: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(RECOVERS)
    with node(tmp_path, *by_flags(1, port)) as follower, node(tmp_path, *by_flags(0, port)) as leader:
        assert leader.stdout is not None and leader.stdout.readline() == "262144.0\n"
        (worker,) = descendants(follower)
        worker.kill()
        (tmp_path / "go").touch()
        out, err = leader.communicate(timeout=90)
        assert out == "262144.0 2 [2]\n" and leader.returncode == 0, (out, err)
        _, err = follower.communicate(timeout=60)
        assert follower.returncode == 0 and "ended by SIGKILL" in err, err


def test_a_node_asked_to_end_while_it_waits_for_node_0_ends(port: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    with node(tmp_path, *by_flags(1, port)) as process:
        assert process.stderr is not None and process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143


def test_a_node_that_cannot_start_its_worker_ends_the_job_at_once(port: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WAIT)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\nif 'gt.runtime.worker' in sys.orig_argv:\n    raise SystemExit('the cause')\n"
    )
    with (
        node(tmp_path, *by_flags(0, port)) as leader,
        node(tmp_path, *by_flags(1, port), PYTHONPATH=f"{ROOT}:{site}") as follower,
    ):
        _, err = leader.communicate(timeout=60)
        assert leader.returncode == 5 and "gt launch: node 1 (" in err and "the cause" in err, err
        _, err = follower.communicate(timeout=60)
        assert follower.returncode == 5 and "the cause" in err, err


def test_a_port_in_use_and_an_address_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with node(tmp_path, *by_flags(0, port)) as process:
            _, err = process.communicate(timeout=60)
        assert process.returncode == 2
        assert (
            f"tcp://127.0.0.1:{port}: the port is in use by {psutil.Process().name()}, pid {os.getpid()}: choose another" in err
        ), err
    with node(tmp_path, *by_flags(0, port, head="192.0.2.1"), "--insecure") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and "not an address of this machine: node 0 must run where --head says" in err, err
