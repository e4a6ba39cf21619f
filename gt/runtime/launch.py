"""Starts a dispatcher and workers on this machine, and ends them.

Owns: ``start_local`` and ``LocalCluster``. All sockets are files in a private directory, so there are no ports to
clash. Children end when this process does: each holds the read end of a pipe whose write end is here. Must not know:
sessions. Next: ``dispatcher``, ``worker`` (the children), ``remote`` (who connects).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gt.runtime import env
from gt.runtime.errors import LaunchError

log = logging.getLogger("gt.launch")
MAX_IPC_PATH = 80  # of 107 that the system allows, the rest is for file names
STDERR_TAIL = 4000
RESTART_S = 1.0  # at least from one start of a worker to the next in its place: what cannot start must not keep the machine busy


class LocalCluster:
    """A dispatcher and workers as child processes. ``stop`` ends them; so does the end of this process."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.pid = os.getpid()
        self.folder, self._keep = folder, keep
        self.address = f"ipc://{folder}/d"
        self.dispatcher: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._stopped = threading.Event()
        self._reaper: threading.Thread | None = None
        self._start_worker: Callable[[int], subprocess.Popen[bytes]] | None = None
        self._keep_read = -1
        self.restarts_left = 0

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return ([self.dispatcher] if self.dispatcher is not None else []) + self.workers

    def stop(self) -> None:
        """End all processes and remove their files. Idempotent; nothing is left behind."""
        if self._stopped.is_set() or os.getpid() != self.pid:
            return
        self._stopped.set()
        if self._reaper is not None:
            self._reaper.join(5.0)  # it may be starting a worker
        os.close(self._keep)  # the children see the pipe end
        if self._keep_read >= 0:
            os.close(self._keep_read)
        for send in (None, signal.SIGTERM, signal.SIGKILL):
            patience = 3.0 if send is not None or self._reaper is not None else 0.1  # still importing, they see no pipe
            deadline = time.monotonic() + patience
            for process in self.processes:
                if send is not None and process.poll() is None:
                    process.send_signal(send)
            for process in self.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.01, deadline - time.monotonic()))
            if all(p.returncode is not None for p in self.processes):
                break
        shutil.rmtree(self.folder, ignore_errors=True)

    def _reap(self) -> None:
        """Collect workers that die, so that none stays a zombie, and start others in their places as long as that is asked for."""
        started = dict.fromkeys(range(len(self.workers)), 0.0)
        while not self._stopped.wait(0.1):
            for i, process in enumerate(self.workers):
                ended = process.poll() is not None and time.monotonic() - started[i] > RESTART_S
                if ended and self.restarts_left > 0 and self._start_worker is not None:
                    self.restarts_left -= 1
                    started[i] = time.monotonic()
                    try:
                        self.workers[i] = self._start_worker(i)
                    except OSError as e:  # no memory or descriptor left
                        log.warning("a worker cannot be started in place of one that died: %s", e)

    @property
    def replacing(self) -> bool:
        """Whether every worker process that has died is, or will be, replaced by another."""
        return self.restarts_left > 0 or all(p.returncode is None for p in self.workers)

    def supervise(self, restarts: int) -> None:
        """From here on start another worker, with the same device, where one has died; at most so many. Zero: none any more."""
        self.restarts_left = restarts

    def watch(self, keep_read: int, start_worker: Callable[[int], subprocess.Popen[bytes]]) -> None:
        """Look after the workers. ``keep_read``: the pipe by which those to be started see this process end."""
        self._keep_read, self._start_worker = keep_read, start_worker
        self._reaper = threading.Thread(target=self._reap, name="gt-reaper", daemon=True)
        self._reaper.start()


def start_local(num_workers: int, backend: str = "torch", timeout: float = 120.0) -> LocalCluster:
    """Start a dispatcher and ``num_workers`` workers, one for each GPU while there are any; give them when all have
    joined.

    Errors: LaunchError with the end of a child's stderr when one does not come up.
    """
    folder = _private_folder()
    keep_read, keep_write = os.pipe()
    report_read, report_write = os.pipe()
    cluster = LocalCluster(folder, keep_write)
    gpus = visible_gpus() if backend == "torch" else []
    try:
        cluster.dispatcher = _start(
            folder, "dispatcher", ["gt.runtime.dispatcher", "--bind", cluster.address, "--owns-workers",
                                   "--parent-fd", str(keep_read), "--report-fd", str(report_write)],
            {}, (keep_read, report_write),
        )  # fmt: skip
        os.close(report_write)
        report_write = -1

        def start_worker(i: int) -> subprocess.Popen[bytes]:
            arguments = ["gt.runtime.worker", "--connect", cluster.address, "--backend", backend,
                         "--device", "cuda:0" if gpus else "cpu", "--parent-fd", str(keep_read)]  # fmt: skip
            variables = {"OMP_NUM_THREADS": str(max(1, _num_cores() // num_workers))}
            variables = {k: v for k, v in variables.items() if k not in os.environ}
            if gpus:
                variables["CUDA_VISIBLE_DEVICES"] = gpus[i % len(gpus)]
            return _start(folder, f"worker{i}", arguments, variables, (keep_read,))

        cluster.workers += map(start_worker, range(num_workers))
        _await_workers(cluster, report_read, num_workers, timeout)
    except BaseException:
        cluster.stop()
        os.close(keep_read)
        raise
    finally:
        for fd in (report_read, report_write):
            if fd >= 0:
                os.close(fd)
    cluster.watch(keep_read, start_worker)
    return cluster


def _private_folder() -> Path:
    """Make a directory that only this user can enter, with a path short enough for a socket's name."""
    folder = tempfile.mkdtemp(prefix="gt-")
    if len(folder) > MAX_IPC_PATH:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="gt-", dir="/tmp")
    return Path(folder)


def _start(
    folder: Path, name: str, module: list[str], variables: dict[str, str], fds: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own: Ctrl-C reaches this process only, which then ends the child in order."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(dict.fromkeys([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))
    with open(folder / f"{name}.err", "ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", *module],
            stdin=subprocess.DEVNULL,
            stderr=None if env.DEBUG.get() else errors,
            env={**os.environ, **variables, "PYTHONPATH": path},
            pass_fds=fds,
            start_new_session=True,
        )


def _await_workers(cluster: LocalCluster, report: int, num_workers: int, timeout: float) -> None:
    """Wait for the dispatcher's word that all workers have joined, or for the first child to die."""
    deadline = time.monotonic() + timeout
    text = b""
    while b"workers %d\n" % num_workers not in text:
        dead = next((p for p in cluster.processes if p.poll() is not None), None)
        if dead is not None:
            name = "dispatcher" if dead is cluster.dispatcher else f"worker{cluster.workers.index(dead)}"
            raise LaunchError(f"the {name} process ended with code {dead.returncode} at start.{_tail(cluster, name)}")
        if time.monotonic() > deadline:
            joined = text.count(b"workers")
            raise LaunchError(
                f"{joined} of {num_workers} workers joined within {timeout:g} s{_tail(cluster, 'worker0')}"
            )
        ready, _, _ = select.select([report], [], [], 0.05)
        if ready:
            text += os.read(report, 65536)


def _tail(cluster: LocalCluster, name: str) -> str:
    errors = cluster.folder / f"{name}.err"
    text = errors.read_text(errors="replace")[-STDERR_TAIL:].strip() if errors.exists() else ""
    return f" Its stderr ends:\n{text}" if text else ""


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Give the GPUs this process may use, as CUDA_VISIBLE_DEVICES names them. Loads no CUDA."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [v.strip() for v in listed.split(",") if v.strip() not in ("", "-1")]
    folder = Path("/proc/driver/nvidia/gpus")
    found = list(folder.iterdir()) if folder.is_dir() else list(Path("/dev").glob("nvidia[0-9]*"))
    return [str(i) for i in range(len(found))]
