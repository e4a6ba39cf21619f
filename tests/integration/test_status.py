"""``gt status`` and ``gt doctor`` at a real server."""

from __future__ import annotations

import contextlib
import json
import socket

import numpy as np
import pytest
import zmq
from click.testing import CliRunner, Result

from gt.cli import main
from gt.commands.server_address import Found
from gt.runtime import checks
from gt.runtime.remote import RemoteSession
from tests.integration.cluster import Desk
from tests.integration.programs import Server, lived, server, wait_for

pytestmark = pytest.mark.timeout(60)


def command(*words: object) -> Result:
    done = CliRunner().invoke(main, list(map(str, words)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def seen(there: Server) -> dict:
    done = command("status", there.address, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_server_says_who_is_there_and_what_they_hold() -> None:
    with server(1) as there, contextlib.closing(RemoteSession(there.address, timeout=60)) as session:
        desk = Desk(session)
        x = desk.put(np.ones((1, 2)))
        desk.get(desk.run("add", (x, (1, 2)), (x, (1, 2))))
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.connect(f"tcp://127.0.0.1:{there.port}")
            for _ in range(3):
                stranger.send(b"\x02nonsense")
            assert wait_for(lambda: seen(there)["malformed"] == 3)
        found = seen(there)
        (worker,), (client,) = found["workers"], found["clients"]
        assert (worker["id"], worker["pid"], worker["device"], worker["joined"]) == (0, there.workers[0].pid, "cpu", True)
        assert (client["runs"], client["waiting"], client["values"], client["nbytes"]) == (1, 0, 2, 16)
        assert found["plans_ready"] == 1 and 0 < found["uptime_s"] < 60 and found["num_in_flight"] == 0
        text = command("status", there.address)
        assert "1 worker, 1 client" in text.stdout and "3 malformed messages dropped" in text.stdout
        session.close()
        assert wait_for(lambda: seen(there)["clients"] == [])
        (checked,) = [
            c for c in json.loads(command("doctor", there.address, "--quick", "--json").stdout)["checks"] if c["name"] == "server"
        ]
        assert checked["verdict"] == "ok" and "has 1 worker and 0 clients; its clock is" in checked["text"]


def test_no_answer_is_told_within_three_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:  # not gt
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with lived() as seconds:
            done = command("status", address)
            assert seconds() < 3
    assert done.exit_code == 3 and f"no gt server answers at {address} within 2 s: check host and port" in done.stderr


def test_a_wrong_address_is_code_2() -> None:
    assert command("status", "nowhere").exit_code == 2
    assert command("status", "localhost:1", "--port", "2").exit_code == 2


def test_without_an_address_it_is_the_server_that_runs_here_as_of_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.runtime.env.ADDRESS._read", [""])
    monkeypatch.setattr("gt.commands.server_address.servers_here", list)
    done = command("status")
    assert done.exit_code == 2 and "no gt server of yours runs on this machine: gt status HOST:PORT, or set GT_ADDR" in done.output
    with server() as there:
        monkeypatch.setattr("gt.commands.server_address.servers_here", lambda: [Found(there.process.pid, there.address)])
        for words in ((), ("--port", str(there.port)), ("--host", "localhost", "-p", str(there.port))):
            done = command("status", *words)
            assert done.exit_code == 0 and "0 workers, 0 clients" in done.stdout, done.output


def test_the_doctor_starts_a_worker_and_finds_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.runtime.env.BACKEND._read", ["numpy"])
    monkeypatch.setattr(checks, "gpu", lambda quick: checks.judge_gpu(0, None, None, 0))  # which takes torch's start
    done = command("doctor", "127.0.0.1:1", "--json")
    report = json.loads(done.stdout)
    found = {c["name"]: c for c in report["checks"]}
    assert found["worker"]["verdict"] == "ok" and "(numpy); there and back in" in found["worker"]["text"]
    assert found["server"]["verdict"] == "failed" and found["server"]["fix"]
    assert done.exit_code == 1 and report["ok"] is False
