"""A worker that does not come back from reading a value, as from a device that waits for a lost worker, ends all the same."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gt.runtime.exit_codes import ExitCode
from gt.runtime.remote import RemoteSession
from tests.integration.cluster import Desk
from tests.integration.programs import ROOT, Server, environment, held_port, wait_for

WORKER = """
import sys, time
from gt.runtime.numpy_engine import NumpyEngine

def stuck(*_):
    print("stuck", flush=True)
    time.sleep(600)

NumpyEngine.to_host = stuck
from gt.worker import main
main()
"""


@pytest.mark.timeout(90)
@pytest.mark.parametrize("how", ["stop", "server lost"])
def test_it_ends_in_its_time(how: str) -> None:
    with held_port() as port, contextlib.ExitStack() as stack:
        process = subprocess.Popen([sys.executable, "-m", "gt.server", "-p", str(port)], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
        stack.callback(process.communicate)
        stack.callback(process.kill)
        there = Server(process, port)
        there.await_port()
        words = ["--backend", "numpy", "--host", "localhost", "-p", str(port), "--lease", "3"]
        worker = subprocess.Popen([sys.executable, "-c", WORKER, *words], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
        stack.callback(worker.communicate)
        stack.callback(worker.kill)
        there.await_workers(1)
        session = RemoteSession(there.address, timeout=20)
        stack.callback(session.close)
        desk = Desk(session)
        session.fetch(desk.put(np.ones((400, 400))))
        assert worker.stdout is not None and worker.stdout.readline() == "stuck\n"
        if how == "stop":
            worker.send_signal(signal.SIGTERM)
        else:
            process.kill()
        began = time.monotonic()
        code = worker.wait(20)
        assert time.monotonic() - began < (5 if how == "stop" else 9)
        assert code == (ExitCode.OK if how == "stop" else ExitCode.SERVER_LOST)
        if how == "stop":
            assert wait_for(lambda: session.num_workers() == 0, 5)
