"""Starts a dispatcher and workers on this machine, and ends them.

Owns: ``start_local`` and ``LocalCluster``. All sockets of ``start_local`` are files in a private directory, so there are no ports to
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from gt.ir.wording import amount
from gt.runtime import env
from gt.runtime.errors import LaunchError
from gt.runtime.exit_codes import name_of
from gt.runtime.interrupt import SHIELD

log = logging.getLogger("gt.launch")
MAX_IPC_PATH = 80  # of 107 that the system allows, the rest is for file names
STDERR_TAIL = 4000
RESTART_S = 1.0  # at least from one start of a worker to the next in its place: what cannot start must not keep the machine busy


class LocalCluster:
    """Processes of this machine that end together: a dispatcher, unless it is elsewhere, and workers. ``stop`` ends them; so does
    the end of this process. ``address``: where the dispatcher listens. ``folder``: of its socket, goes with it. ``keys``: the folder of
    their key files, as ``gt keygen`` makes it.
    """

    def __init__(self, address: str, folder: Path | None = None, keys: Path | None = None) -> None:
        self.pid = os.getpid()
        self.address, self.folder, self.keys = address, folder, keys
        self.dispatcher: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._backend, self._count = "torch", 1  # of all workers
        self._errors: dict[str, IO[bytes]] = {}  # files without a name, so that none stays
        self._keep_read, self._keep = os.pipe()
        self._stopped = threading.Event()
        self._reaper: threading.Thread | None = None
        self.restarts_left = 0
        self.replaced: list[tuple[int, subprocess.Popen[bytes]]] = []  # with the places that they had
        self._told: set[int] = set()  # pids
        self._told_to: dict[str, int] = {}  # how far what a child wrote has been told
        self._polling = threading.Lock()  # of two threads that ask at once about a process, one would hear that it has not ended

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return ([self.dispatcher] if self.dispatcher is not None else []) + self.workers

    def start_dispatcher(self, arguments: Sequence[str], report: int) -> None:
        """Start a dispatcher at ``address`` that writes to the pipe ``report`` where it listens and how many workers there are."""
        module = ["gt.runtime.dispatcher", "--bind", self.address, *arguments]
        pipes = ["--parent-fd", str(self._keep_read), "--report-fd", str(report)]
        with SHIELD:  # an exception between its start and here would leave a process that nobody ends
            self.dispatcher = self._start("dispatcher", [*module, *pipes], key_variables(self.keys, "server"), (self._keep_read, report))

    def start_workers(self, count: int, backend: str) -> None:
        """Start ``count`` workers, one for each GPU while there are any."""
        self._backend, self._count = backend, count
        for i in range(count):
            with SHIELD:
                self.workers.append(self._start_worker(i))

    def _start_worker(self, i: int) -> subprocess.Popen[bytes]:
        gpus = visible_gpus() if self._backend == "torch" else []
        arguments = ["gt.runtime.worker", "--connect", self.address, "--backend", self._backend,
                     "--device", "cuda:0" if gpus else "cpu", "--parent-fd", str(self._keep_read)]  # fmt: skip
        variables = {"OMP_NUM_THREADS": str(max(1, _num_cores() // self._count))}
        variables = {k: v for k, v in variables.items() if k not in os.environ} | key_variables(self.keys, "worker")
        if gpus:
            variables["CUDA_VISIBLE_DEVICES"] = gpus[i % len(gpus)]
        return self._start(f"worker{i}", arguments, variables, (self._keep_read,))

    def _start(self, name: str, module: list[str], variables: dict[str, str], fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
        """Start a child in a session of its own: Ctrl-C reaches this process only, which then ends the child in order."""
        if name not in self._errors:
            self._errors[name] = tempfile.TemporaryFile(prefix="gt-")  # noqa: SIM115  closed by stop
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *module],  # -P: a user's click.py in this folder is none of its modules
            stdin=subprocess.DEVNULL,
            stderr=None if env.DEBUG.get() else self._errors[name],
            env=child_environment(variables),
            pass_fds=fds,
            start_new_session=True,
        )

    def dead(self) -> tuple[str, int] | None:
        """Give the name and code of the first process that has ended, if one has."""
        found = next((p for p in self.processes if p.poll() is not None), None)
        if found is None:
            return None
        name = "dispatcher" if found is self.dispatcher else f"worker{self.workers.index(found)}"
        return name, found.returncode

    def _has_ended(self, process: subprocess.Popen[bytes]) -> bool:
        with self._polling:
            return process.poll() is not None

    def ended(self, where: str = "") -> list[str]:
        """Say which workers have ended since the last call, and how. ``where``: said of each. They are told by process: numbers go by who
        joined first, which only the dispatcher knows.
        """
        said = []
        for i, process in [*self.replaced, *enumerate(self.workers)]:
            if process.pid not in self._told and self._has_ended(process) and process.returncode:  # 0: it was told to stop
                self._told.add(process.pid)
                name = f"worker{i}"
                said.append(f"a worker{where} (pid {process.pid}) ended by {name_of(process.returncode)}.{self.tail(name)}")
                self._told_to[name] = self._written(name)
        return said

    def _written(self, name: str) -> int:
        errors = self._errors.get(name)
        return 0 if errors is None or errors.closed else os.fstat(errors.fileno()).st_size

    def tail(self, name: str) -> str:
        """Give the end of what a child wrote to stderr since ``ended`` last told of it, with an introduction."""
        errors, size = self._errors.get(name), self._written(name)
        if errors is None or errors.closed:
            return ""
        begin = max(self._told_to.get(name, 0), size - STDERR_TAIL)
        text = os.pread(errors.fileno(), size - begin, begin).decode(errors="replace").strip()
        return f" Its stderr ends:\n{text}" if text else ""

    def stop(self, code: int | None = None) -> None:
        """End all processes and remove their files. Idempotent; nothing is left behind. ``code``: of the job that is over, which the
        dispatcher tells its nodes.
        """
        if self._stopped.is_set() or os.getpid() != self.pid:
            return
        self._stopped.set()
        if self._reaper is not None:
            self._reaper.join(5.0)  # it may be starting a worker
        if code is not None:
            os.write(self._keep, b"%d\n" % code)
        os.close(self._keep)  # the children see the pipe end
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
        os.close(self._keep_read)
        for errors in self._errors.values():
            errors.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _reap(self, tell: Callable[[str], None] | None) -> None:
        """Collect workers that die, so that none stays a zombie, and start others in their places as long as that is asked for."""
        started = dict.fromkeys(range(len(self.workers)), 0.0)
        while not self._stopped.wait(0.1):
            for text in self.ended() if tell is not None else ():
                assert tell is not None
                tell(text)
            for i, process in enumerate(self.workers):
                ended = self._has_ended(process) and time.monotonic() - started[i] > RESTART_S
                if ended and self.restarts_left > 0:
                    started[i] = time.monotonic()
                    try:
                        self.workers[i] = self._start_worker(i)
                        self.replaced.append((i, process))
                        log.warning("a worker (pid %d) ended by %s: another is started in its place", process.pid, name_of(process.returncode))
                    except OSError as e:  # no memory or descriptor left
                        log.warning("a worker cannot be started in place of one that died: %s", e)
                    self.restarts_left -= 1  # last: until then another is on its way

    @property
    def replacing(self) -> bool:
        """Whether every worker process that has died is, or will be, replaced by another."""
        return self.restarts_left > 0 or all(p.returncode is None for p in self.workers)

    def supervise(self, restarts: int) -> None:
        """From here on start another worker, with the same device, where one has died; at most so many. Zero: none any more."""
        self.restarts_left = restarts

    def watch(self, tell: Callable[[str], None] | None = None) -> None:
        """Look after the workers. ``tell``: hears of each that ends, from another thread."""
        self._reaper = threading.Thread(target=self._reap, args=(tell,), name="gt-reaper", daemon=True)
        self._reaper.start()


def start_local(num_workers: int, backend: str = "torch", timeout: float = 120.0, job: str = "") -> LocalCluster:
    """Start a dispatcher and ``num_workers`` workers, one for each GPU while there are any; give them when all have
    joined. ``job``: of which this machine is the only node.

    Errors: LaunchError with the end of a child's stderr when one does not come up.
    """
    cluster, report_read, report_write = None, -1, -1
    try:
        with SHIELD:
            folder = _private_folder()
            cluster = LocalCluster(f"ipc://{folder}/d", folder)
            report_read, report_write = os.pipe()
        node = ["--job", job, "--num-nodes", "1"] if job else []
        cluster.start_dispatcher(["--owns-workers", *node], report_write)
        os.close(report_write)
        report_write = -1
        cluster.start_workers(num_workers, backend)
        _await_workers(cluster, report_read, num_workers, timeout)
    except BaseException:
        if cluster is not None:
            cluster.stop()
        raise
    finally:
        for fd in (report_read, report_write):
            if fd >= 0:
                os.close(fd)
    cluster.watch()
    return cluster


def _private_folder() -> Path:
    """Make a directory that only this user can enter, with a path short enough for a socket's name."""
    folder = tempfile.mkdtemp(prefix="gt-")
    if len(folder) > MAX_IPC_PATH:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="gt-", dir="/tmp")
    return Path(folder)


def key_variables(keys: Path | None, name: str) -> dict[str, str]:
    """Give the variable that tells a child its key file, of those in a folder: ``server``, ``worker`` or ``client``."""
    return {"GT_KEY_FILE": "" if keys is None else str(keys / f"{name}.key")}


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Give this process's environment with ``variables``, in which a child finds the same gt."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(dict.fromkeys([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))
    return {**os.environ, **variables, "PYTHONPATH": path}


def _await_workers(cluster: LocalCluster, report: int, num_workers: int, timeout: float) -> None:
    """Wait for the dispatcher's word that all workers have joined, or for the first child to die."""
    deadline = time.monotonic() + timeout
    text = b""
    while b"workers %d\n" % num_workers not in text:
        dead = cluster.dead()
        if dead is not None:
            error = LaunchError(f"the {dead[0]} process ended with code {dead[1]} at start.{cluster.tail(dead[0])}")
            error.code = dead[1]
            raise error
        if time.monotonic() > deadline:
            joined = text.count(b"workers")
            raise LaunchError(
                f"{joined} of {amount(num_workers, 'worker')} joined within {timeout:g} s.{cluster.tail('worker0')}"
            )
        ready, _, _ = select.select([report], [], [], 0.05)
        if ready:
            text += os.read(report, 65536)


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
