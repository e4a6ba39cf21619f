"""Lines of ``gt launch`` that are wrong, and what it says is missing; what starts processes is in the integration tests."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gt.cli import main
from gt.commands.launch import Failure, Job, missing
from gt.runtime import status_request
from gt.runtime.errors import ConnectionFailed
from gt.runtime.launchers import Place
from gt.runtime.status import NodeStatus, ServerStatus, WorkerStatus


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nnodes", "2"], "needs --node-rank and --head"),
        (["--nnodes", "2", "--node-rank", "5", "--head", "10.0.0.1"], "node 5 of 2"),
        (["--launcher", "slurm"], "none of its variables is set here"),
        (["--launcher", "ray"], "Invalid value for '--launcher'"),
        (["--nnodes", "2", "--node-rank", "0", "--head", "10.0.0.1"], "Say --insecure if whoever reaches them may"),
        (
            ["--nnodes", "2", "--node-rank", "1", "--head", "elsewhere"],
            "elsewhere is 127.0.1.1 here, which other machines cannot reach",
        ),
        (
            ["--nnodes", "2", "--node-rank", "0", "--head", "elsewhere"],
            "listening on 10.0.0.7, as which they must know it",
        ),
    ],
)
def test_a_wrong_line_is_code_2(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE", "SKYPILOT_NODE_RANK", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)

    def look_up(host: str, port: int, *_: Any) -> list[Any]:
        return [(0, 0, 0, "", ("127.0.1.1" if host == "elsewhere" else host, port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr("gt.commands.launch.outer_address", lambda: "10.0.0.7")
    script = tmp_path / "a.py"
    script.touch()
    done = CliRunner().invoke(main, ["launch", *words, str(script)])
    assert done.exit_code == 2 and said in done.output, done.output


def test_a_name_that_nobody_knows_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    script = tmp_path / "a.py"
    script.touch()
    words = ["--launcher", "none", "--nnodes", "2", "--node-rank", "1", "--head", "nowhere", "--wait", "0.1"]
    done = CliRunner().invoke(main, ["launch", *words, str(script)])
    assert done.exit_code == 3 and "nowhere, where node 0 should be, cannot be found by name" in done.output, done.output


def status(num_nodes: int, nodes: dict[int, int], joined: int, joining: int = 0) -> ServerStatus:
    workers = [
        WorkerStatus(id=i, host="h", pid=i, device="cpu", backend="numpy", joined=i < joined, silent_s=0.0)
        for i in range(joined + joining)
    ]
    return ServerStatus(
        uptime_s=0.0, wall_s=0.0, malformed=0, workers=tuple(workers), clients=(), epoch=0, num_in_flight=0, in_flight=(), plans_ready=0,
        plans_made=0, plans_failed=0, num_nodes=num_nodes,
        nodes=tuple(NodeStatus(node=i, host="h", pid=1, workers=n, failed="") for i, n in nodes.items()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (status(2, {0: 1}, 1), "node 1 of 2 missing, 1 worker joined"),
        (status(20, {0: 1, 5: 1}, 2), "nodes 1, 2, 3, 4, 6, 7, 8, 9, ... of 20 missing, 2 workers joined"),
        (status(2, {0: 1, 1: 8}, 5, 4), "5 of 9 workers joined"),
        (status(2, {0: 1, 1: 8}, 9), ""),
    ],
)
def test_what_is_missing(found: ServerStatus, text: str) -> None:
    assert missing(found) == text


@pytest.mark.parametrize(("left_s", "silent"), [(60.0, 3), (-1.0, 1)], ids=["in time", "too late"])
def test_a_dispatcher_that_is_slow_to_answer_is_waited_for_as_long_as_nodes_are(
    left_s: float, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Slow:
        def __init__(self, address: str, keys: Any) -> None:
            asked.append(address)

        def ask(self) -> ServerStatus:
            asked.append("status")
            if len(asked) <= 1 + silent:
                raise ConnectionFailed("no gt server answers within 2 s")
            return status(2, {0: 1, 1: 1}, 2)

        def close(self) -> None:
            asked.append("over")

    class Here:
        address = "tcp://127.0.0.1:1"

        def dead(self) -> None:
            return None

        def step(self, wait_s: float) -> None:
            return None

    monkeypatch.setattr(status_request, "StatusLink", Slow)
    job = Job(Place("none", 2, 0, "127.0.0.1", "j"), ["x.py"], 1, 1, None, False, time.monotonic() + left_s, 1.0)
    if left_s > 0:
        job._gather(Here(), Here())  # type: ignore[arg-type]
    else:
        with pytest.raises(Failure, match="no gt server answers") as caught:
            job._gather(Here(), Here())  # type: ignore[arg-type]
        assert caught.value.code == 3
    assert asked == ["tcp://127.0.0.1:1", *["status"] * (silent + (left_s > 0)), "over"]
