"""``gt trace`` at a real server, and ``gt visualize`` of what it wrote."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from gt.cli import main
from gt.runtime.errors import ConnectionFailed
from gt.runtime.log_lines import Line, read_log
from gt.runtime.recovering import RecoveringSession
from gt.runtime.remote import RemoteSession
from gt.runtime.status_request import StatusLink
from tests.integration.cluster import Desk, cols, rows
from tests.integration.programs import ROOT, Server, environment, server, wait_for
from tests.unit.timelines.test_timelines import check_nesting

pytestmark = pytest.mark.timeout(90)


def command(*words: object) -> Result:
    done = CliRunner().invoke(main, list(map(str, words)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def work(address: str, began: threading.Event, until: threading.Event) -> None:
    """Multiply what is split by columns and rows, so that the workers meet in a collective, and read a value."""
    with contextlib.closing(RemoteSession(address, timeout=60)) as session:
        desk = Desk(session)
        a, b = desk.put(np.ones((4, 8)), cols()), desk.put(np.ones((8, 4)), rows())
        while not until.wait(0.01):
            made = desk.run("matmul", (a, (4, 8)), (b, (8, 4)))
            assert desk.get(made)[0, 0] == 8
            session.free([made])
            began.set()


def runs(lines: Sequence[Line]) -> list[tuple[float, float]]:
    """Give when each run was sent to a worker and when it began there."""
    sent = {(x.fields["to"], x.fields["epoch"]): x.time for x in lines if x.event == "send" and x.operation == "Execute"}
    begun = {(x.who, x.fields["epoch"]): x.time - x.seconds for x in lines if x.event == "run"}
    return [(sent[key], begun[key]) for key in sent.keys() & begun.keys()]


def taken(enough: Callable[[Sequence[Line]], bool], folder: Path, *words: object) -> tuple[Result, Path]:
    """Take traces until one has enough in it: while others use the machine, little may happen in a second."""
    for _ in range(20):
        before = {*folder.glob("*.log")}
        done = command("trace", *words, "--dir", folder)
        assert done.exit_code == 0, done.output
        (log,) = {*folder.glob("*.log")} - before
        if enough(read_log(log).lines):
            break
    return done, log


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_trace_that_is_broken_off_is_in_no_ones_way(stop: signal.Signals, tmp_path: Path) -> None:
    with server(1) as there:
        words = [sys.executable, "-m", "gt", "trace", there.address, "-s", "600", "--dir", str(tmp_path)]
        begun = []

        def is_taken() -> bool:
            if not begun or begun[-1].poll() is not None:  # it was refused: it asked while this did
                begun.append(subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True))
                assert begun[-1].stderr.readline().startswith("tracing ")
            return command("trace", there.address, "-s", "0.01", "--dir", tmp_path).exit_code != 0

        try:
            assert wait_for(is_taken, 60)
            begun[-1].send_signal(stop)
            begun[-1].wait(30)
        finally:
            for process in begun:
                process.kill()
                process.communicate()
        assert wait_for(lambda: command("trace", there.address, "-s", "0.01", "--dir", tmp_path).exit_code == 0, 10)


def test_a_server_that_ends_meanwhile_is_told_at_once(port: int) -> None:
    words = [sys.executable, "-m", "gt.server", "-p", str(port)]
    with subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        there = Server(process, port)
        there.await_port()
        link = StatusLink(there.address)
        assert not link.ask().workers
        killer = threading.Timer(1.0, process.kill)
        killer.start()
        began = time.monotonic()
        with contextlib.closing(link), pytest.raises(ConnectionFailed, match=f"the gt server at {there.address} has ended"):
            link.trace(60, 1000)
        assert time.monotonic() - began < 15
        killer.join()


def num_lines(lines: Sequence[Line]) -> list[int]:
    return [sum(x.who == who for x in lines) for who in ("client1", "worker1")]


def test_a_trace_has_all_processes_on_one_clock(tmp_path: Path) -> None:
    with server(2) as there:
        began, until = threading.Event(), threading.Event()
        thread = threading.Thread(target=work, args=(there.address, began, until))
        thread.start()
        try:
            assert began.wait(60)  # the workers' group is there
            _, log = taken(
                lambda lines: len(runs(lines)) > 10 and min(num_lines(lines)) > 10, tmp_path / "traces", there.address, "-s", 1
            )
            few, short = taken(
                lambda lines: num_lines(lines) == [7, 7], tmp_path / "traces", "--port", there.port, "-s", 0.3, "-n", 7
            )
        finally:
            until.set()
            thread.join(60)
        made = range(1, int(short.stem.removeprefix("trace-")) + 1)
        assert {p.name for p in (tmp_path / "traces").iterdir()} == {f"trace-{i}.{kind}" for i in made for kind in ("json", "log")}
        lines = read_log(log).lines
        assert {line.who for line in lines} == {"client1", "dispatcher", "worker0", "worker1"}
        for who in ("client1", "dispatcher", "worker0", "worker1"):
            numbers = [line.sequence for line in lines if line.who == who]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))  # none is lost
        # What leads to something comes before it: a run's way from client to worker, for all runs.
        both = runs(lines)
        assert len(both) > 10 and all(sent <= begun + 5e-5 for sent, begun in both)
        events = json.loads(log.with_suffix(".json").read_text())["traceEvents"]
        check_nesting([e for e in events if e["ph"] == "X"])
        assert {"collective", "call", "epoch"} <= {e["cat"] for e in events if e["ph"] == "s"}
        assert "left out, before the latest 7: " in few.stderr
        assert num_lines(read_log(short).lines) == [7, 7]
        drawn = command("visualize", log, "-o", tmp_path / "t.svg")
        assert drawn.exit_code == 0 and "worker1" in drawn.stdout


def test_a_script_that_comes_and_goes_meanwhile_is_in_it(tmp_path: Path) -> None:
    with server(1) as there:
        results: list[Result] = []
        thread = threading.Thread(target=lambda: results.append(command("trace", there.address, "-s", 3, "--dir", tmp_path)))
        thread.start()
        while thread.is_alive():
            with contextlib.closing(RecoveringSession(partial(RemoteSession, there.address, timeout=10))) as session:
                assert session.num_workers() == 1
                desk = Desk(session)
                x = desk.put(np.ones((1, 2)))
                desk.get(desk.run("add", (x, (1, 2)), (x, (1, 2))))
        calls: dict[str, list[str]] = {}
        assert read_log(tmp_path / "trace-1.log").owner  # of which dispatcher it is
        for line in read_log(tmp_path / "trace-1.log").lines:
            if line.event == "call":
                calls.setdefault(line.who, []).append(line.operation)
        leaving = f"client{int(next(iter(calls)).removeprefix('client')) - 1}"  # as the trace began
        missing = [text for text in results[0].stderr.splitlines() if "is not in the trace" in text]
        assert results[0].exit_code == 0 and missing in ([], [f"{leaving} is not in the trace: it ended before it heard of it"])
        assert len(calls) > 3 and list(calls.values())[1:-1] == [["Put", "Define", "Run", "Fetch"]] * (len(calls) - 2)


def test_what_is_off_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = command("trace", "127.0.0.1:1", "--dir", tmp_path / "file" / "traces")
    assert refused.exit_code == 1 and "tracing" not in refused.stderr and str(tmp_path / "file") in refused.stderr
    assert command("trace", "127.0.0.1:1", "-s", 1).exit_code == 3
    assert "give ADDRESS or --host and --port, not both" in command("trace", "h:1", "--port", 3).stderr
    assert "--host needs --port" in command("trace", "--host", "h").stderr
