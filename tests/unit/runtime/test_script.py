"""Signals of the process that runs a script: for the script while there is one, an orderly end before, nothing after."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from gt.runtime import script
from gt.runtime.script import Interrupted, Supervisor

WAITS = """
import signal, sys, time
from pathlib import Path
got = []
for s in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
    signal.signal(s, lambda number, frame: got.append(signal.Signals(number).name))
Path(sys.argv[1]).touch()
while len(got) < 2:
    time.sleep(0.01)
sys.exit(20 + (got == ["SIGUSR1", "SIGTERM"]))
"""


def test_the_first_signal_before_a_script_ends_all_and_no_other_cuts_that_short() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Supervisor():
        os.kill(os.getpid(), signal.SIGUSR1)  # ends nothing
        with pytest.raises(Interrupted) as caught:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
    assert caught.value.code == 143 and signal.getsignal(signal.SIGTERM) is before


def test_where_no_script_runs_signals_that_end_are_told() -> None:
    told: list[int] = []
    with Supervisor() as supervisor:
        supervisor.on_signal = told.append
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            os.kill(os.getpid(), number)
    assert told == [signal.SIGTERM, signal.SIGINT]


def test_a_signal_that_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Supervisor():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as nohup asks for
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_script_gets_what_comes_here(tmp_path) -> None:
    started, to_send = tmp_path / "started", [signal.SIGUSR1, signal.SIGTERM]

    def look() -> None:
        if started.exists() and to_send:
            os.kill(os.getpid(), to_send.pop(0))

    with Supervisor() as supervisor:
        assert supervisor.run(["-c", WAITS, str(started)], {}, look) == 21
        os.kill(os.getpid(), signal.SIGTERM)  # it is over


def test_a_script_has_its_variables_and_its_own_session() -> None:
    code = "import os, sys; sys.exit(int(os.environ['N']) + (os.getsid(0) == os.getpid()))"
    with Supervisor() as supervisor:
        assert supervisor.run(["-c", code], {"N": "40"}, lambda: None) == 41
        assert supervisor.run(["-c", "import os; os.kill(os.getpid(), 9)"], {}, lambda: None) == 137


def test_an_error_here_ends_the_script() -> None:
    def look() -> None:
        raise ValueError("mine")

    began = time.monotonic()
    with pytest.raises(ValueError, match="mine"), Supervisor() as supervisor:
        supervisor.run(["-c", "import time; time.sleep(60)"], {}, look)
    assert time.monotonic() - began < 10 and supervisor.process is None


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_what_comes_while_the_script_starts_is_for_the_script(signals: list[int], tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments, **options) -> subprocess.Popen[bytes]:
        started.append(real(*arguments, **options))
        for number in signals:  # before anybody knows the process
            os.kill(os.getpid(), number)
        return started[0]

    real = subprocess.Popen
    monkeypatch.setattr(script.subprocess, "Popen", start)
    with Supervisor() as supervisor:
        code = supervisor.run(["-c", "import time; time.sleep(60)"], {}, lambda: None)
    assert code == 128 + (signal.SIGKILL if len(signals) == 2 else signals[0]) and started[0].returncode is not None


def test_what_went_wrong_is_looked_at_once_more_when_the_script_has_ended() -> None:
    """A script that a dead worker ends may end before the next regular look, and nothing would say which worker it was."""
    running: list[bool] = []
    with Supervisor() as supervisor:
        supervisor.run(["-c", "pass"], {}, lambda: running.append(supervisor.process is not None))
    assert running[-1:] == [False]
