"""``gt top`` in a terminal of its own, at a real server, driven by keys."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from gt.commands.server_address import servers_here
from gt.runtime.remote import RemoteSession
from tests.integration.cluster import Desk
from tests.integration.programs import Server, environment, server, wait_for
from tests.integration.terminal import Terminal

pytestmark = pytest.mark.timeout(90)


@contextlib.contextmanager
def at_work(there: Server) -> Iterator[None]:
    """Have a client run something all the time."""
    began, over = threading.Event(), threading.Event()

    def work() -> None:
        with contextlib.closing(RemoteSession(there.address, timeout=60)) as session:
            desk = Desk(session)
            x = desk.put(np.ones((200, 200)))
            while not over.wait(0.002):
                desk.get(desk.run("matmul", (x, (200, 200)), (x, (200, 200))))
                began.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert began.wait(60)
        yield
    finally:
        over.set()
        thread.join(60)


def shown_whole(top: Terminal, found: Callable[[str], object]) -> str:
    """Wait for a screen that is there down to its last line, and give it."""
    return top.shows(lambda text: "keys:" in text and found(text))


def test_the_terminal_is_given_back_where_it_is_stopped_or_ended_from_outside() -> None:
    def mine(top: Terminal) -> bool:
        """Whether keys come unseen."""
        return not termios.tcgetattr(top.master)[3] & (termios.ECHO | termios.ICANON)

    def wait_and_read(top: Terminal, found: Callable[[], object]) -> None:
        def looked() -> object:
            top.read(0.05)
            return found()

        assert wait_for(looked), top.output

    with server(1) as there, contextlib.closing(Terminal("-m", "gt", "top", there.address)) as top:
        process = psutil.Process(top.process.pid)
        shown_whole(top, lambda text: ">0" in text)
        assert "\x1b[?1049h" in top.output and mine(top)
        for _ in range(2):
            top.output = ""
            process.send_signal(signal.SIGTSTP)
            wait_and_read(top, lambda: process.status() == psutil.STATUS_STOPPED and "\x1b[?1049l" in top.output)
            assert "\x1b[?25h" in top.output and not mine(top)  # the screen of before, with its cursor
            top.output = ""
            process.send_signal(signal.SIGCONT)
            shown_whole(top, lambda text: ">0" in text)
            assert "\x1b[?1049h" in top.output and mine(top)
        top.output = ""
        process.terminate()
        wait_and_read(top, lambda: top.process.poll() is not None and "\x1b[?1049l" in top.output)
        assert top.process.returncode == 128 + signal.SIGTERM and "\x1b[?25h" in top.output and not mine(top)


def test_the_screen_follows_the_server_and_the_keys() -> None:
    with (
        server(2) as there,
        at_work(there),
        contextlib.closing(Terminal("-m", "gt.scripts.top", there.address, "--interval", "0.3")) as top,
    ):
        def first_rows(text: str) -> list[list[str]]:
            return [line.split() for line in text.splitlines() if re.match(r"[> ][01] ", line)]

        def worker_is_at_work(text: str) -> bool:
            rows = first_rows(text)
            return [row[0] for row in rows] == [">0", "1"] and "1 eager" in " ".join(rows[0]) and float(rows[0][3]) > 0

        shown = shown_whole(
            top, lambda text: re.search(r">0 +█", text) and re.search(r"\n1 +100% ", text) and worker_is_at_work(text)
        )
        assert f"gt top {there.address}" in shown and "2 workers" not in shown
        top.type("\x1b[B\r")
        shown = shown_whole(top, lambda text: "worker 1:" in text and re.search(r"matmul +\d+ +\d+", text))
        assert any(f"pid {worker.pid}" in shown for worker in there.workers) and "activity" in shown
        shown_whole(top, lambda text: re.search(r"\nmatmul +█[█·]{23} +[1-9][\d.]*% ", text))  # what its op is
        top.type("\x1b")
        shown_whole(top, lambda text: ">1" in text)
        for key, column in zip("bmru", ("busy v", "memory v", "runs/s v", "queue v"), strict=True):
            top.type(key)
            shown_whole(top, lambda text, column=column: column in text)
        top.type("i")
        shown_whole(top, lambda text: " v " not in text and re.search(r"\n 0 .*\n>1 .*\n(.*\n)*keys:", text))
        top.type("q")
        top.shows(lambda _: "\x1b[?1049l" in top.output)  # the terminal's own screen is back
        assert top.process.wait(60) == 0


def test_ctrl_c_ends_it_as_q_does() -> None:
    with server() as there, contextlib.closing(Terminal("-m", "gt.scripts.top", there.address)) as top:
        shown_whole(top, lambda text: "none" in text)
        top.process.send_signal(signal.SIGINT)  # as a terminal does at Ctrl-C
        top.shows(lambda _: "\x1b[?1049l" in top.output)
        assert top.process.wait(60) == 0 and "Aborted" not in top.output


def test_once_and_json_are_for_scripts() -> None:
    with server(1) as there, at_work(there):
        assert f"127.0.0.1:{there.port}" in [found.address for found in servers_here()]
        command = [sys.executable, "-m", "gt", "top", there.address]

        def said(*options: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([*command, *options], env=environment(), capture_output=True, text=True, timeout=60)

        def shows_work() -> bool:  # of the last moments, in which this machine may have been elsewhere
            shown = said("--once")
            assert shown.returncode == 0 and "\x1b" not in shown.stdout
            return re.search(r"\n 0 +[merco]", shown.stdout) is not None and "m matmul  e elementwise" in shown.stdout

        def tells_work() -> bool:
            found = json.loads(said("--json").stdout)
            (worker,) = found["workers"]
            activity = worker["activity"]
            assert worker["usage"]["process_nbytes"] > 10_000_000 and activity["matmul"] <= activity["run"] <= activity["busy"] <= 1
            at_work = activity["runs_per_s"] > 0 and activity["matmul"] > 0 and worker["tiers"] == {"eager": 1}
            return at_work and [c["share"] for c in found["clients"]] == [1.0]

        assert wait_for(shows_work) and wait_for(tells_work)
        refused = said()
        assert refused.returncode == 2 and "this is no terminal: use --once or --json" in refused.stderr


def test_no_server_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gt.scripts.top", "127.0.0.1:1", "--once"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 3 and "no gt server answers at 127.0.0.1:1" in done.stderr


def test_a_terminal_of_another_encoding_has_plain_bars_and_one_without_screens_is_told_what_to_use() -> None:
    with server(1) as there:
        for encoding in ("ascii", "latin-1"):
            with contextlib.closing(Terminal("-m", "gt", "top", there.address, PYTHONIOENCODING=encoding)) as top:
                shown = shown_whole(top, lambda text: re.search(r">0 +[#.\xb7\ufffd]{24} ", text))
                assert "# matmul" in shown
        once = [sys.executable, "-m", "gt", "top", there.address, "--once"]
        done = subprocess.run(once, env={**environment(), "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True)
        assert done.returncode == 0 and re.search(r" 0 +\.{24} ", done.stdout), done
        with contextlib.closing(Terminal("-m", "gt", "top", there.address, TERM="dumb")) as top:
            assert wait_for(lambda: top.read(0.05) or top.process.poll() is not None)
            assert top.process.returncode == 2 and "use --once or --json" in top.output
