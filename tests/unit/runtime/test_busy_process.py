"""Who has something to do is told apart from who is stopped, sleeps or has gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import psutil

from gt.runtime.busy_process import is_busy
from tests.integration.programs import wait_for

SLEEPS_THEN_COMPUTES = "import time\nprint(flush=True)\ninput()\nprint(flush=True)\nwhile True:\n    pass"


def test_a_process_that_computes_is_busy_and_one_that_sleeps_is_stopped_or_gone_is_not() -> None:
    here = socket.gethostname()
    words = [sys.executable, "-c", SLEEPS_THEN_COMPUTES]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None and process.stdout is not None and process.stdout.readline()
            assert wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
            assert not is_busy(here, process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline()
            assert all(is_busy(here, process.pid) for _ in range(100))
            assert not is_busy(here + "-other", process.pid) and not is_busy(here, os.getpid())
            process.send_signal(signal.SIGSTOP)
            assert wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
            assert not is_busy(here, process.pid)
        finally:
            process.kill()
    assert not is_busy(here, process.pid)
