"""A ``gt server`` and workers behind a proxy, each of which is started again when it has died. Next: ``chaos``."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time

from tests.fault.proxy import Proxy
from tests.integration.programs import ROOT, environment, held_port

APART_S = 1.0  # from one start to the next in its place


class Tended:
    """Processes at ``address``, the proxy's. Ends with ``close``."""

    def __init__(self, workers: int, backend: str) -> None:
        self.variables = environment(GT_BACKEND=backend, GT_COMPILE_AFTER="0")
        self.held = contextlib.ExitStack()
        self.port = self.held.enter_context(held_port())
        self.process = self._serve(subprocess.PIPE)
        assert self.process.stdout is not None and self.process.stdout.readline()
        self.process.stdout.close()
        self.proxy = Proxy(f"tcp://127.0.0.1:{self.port}", f"tcp://127.0.0.1:{self.held.enter_context(held_port())}")
        self.address = self.proxy.endpoint.removeprefix("tcp://")
        self.workers = [self._work() for _ in range(workers)]
        self.closing = threading.Event()
        self.keeper = threading.Thread(target=self._tend, name="keeper", daemon=True)
        self.keeper.start()

    def kill_server(self, told: bool = True) -> None:
        """Kill it. ``told``: connections end, as where a process dies; else nothing more comes by them, as where a host does."""
        self.process.kill()
        if told:
            self.proxy.hang_up()

    def close(self) -> None:
        self.closing.set()
        self.keeper.join(10)
        for process in (self.process, *self.workers):
            process.kill()
            process.wait(10)
        self.proxy.close()
        self.held.close()

    def _serve(self, out: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "gt.server", "-p", str(self.port)], cwd=ROOT, env=self.variables, stdout=out)

    def _work(self) -> subprocess.Popen[bytes]:
        host, _, port = self.address.rpartition(":")
        command = [sys.executable, "-m", "gt.worker", "--host", host, "-p", port]
        return subprocess.Popen(command, cwd=ROOT, env=self.variables, stderr=subprocess.DEVNULL)

    def _tend(self) -> None:
        started = [0.0] * (1 + len(self.workers))
        while not self.closing.wait(0.1):
            for i, process in enumerate((self.process, *self.workers)):
                if process.poll() is None or time.monotonic() - started[i] < APART_S:
                    continue
                started[i] = time.monotonic()
                with contextlib.suppress(OSError):
                    if i == 0:
                        self.process = self._serve(subprocess.DEVNULL)
                    else:
                        self.workers[i - 1] = self._work()
