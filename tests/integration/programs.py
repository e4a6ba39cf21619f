"""Scripts as a person runs them: each in a process of its own, against this checkout.

Owns: running a script to its end, starting one beside, a server with workers by their commands, and what tests wait for and measure by.
Next: ``test_quickstart``, ``test_clients``, ``test_start_stop``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from gt.runtime.remote import RemoteSession

ROOT = Path(__file__).resolve().parents[2]
OWN = ("GT_CONFIG", "GT_STRICT", "GT_ADDR", "GT_JOB", "GT_DEBUG", "GT_INSTRUCTION_LOG", "GT_BACKEND", "GT_COMPILE_AFTER")


def environment(**variables: str) -> dict[str, str]:
    """Give the environment of a child: this checkout, the NumPy backend unless said otherwise, one thread."""
    clean = {k: v for k, v in os.environ.items() if k not in OWN}
    return {**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GT_BACKEND": "numpy", **variables}


class Lines(io.TextIOWrapper):
    """A pipe read line by line and no further: what comes after is left to ``communicate``, which reads the pipe itself."""

    def readline(self, size: int = -1, /) -> str:
        line = b""
        while not line.endswith(b"\n") and (letter := os.read(self.fileno(), 1)):
            line += letter
        return line.decode(self.encoding)


class Process(subprocess.Popen[str]):
    """A process whose first lines may be read before it ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert isinstance(self.stdout, io.TextIOWrapper) and isinstance(self.stderr, io.TextIOWrapper)
        self.stdout, self.stderr = Lines(self.stdout.detach()), Lines(self.stderr.detach())


@contextlib.contextmanager
def command(folder: Path, variables: dict[str, str], *words: object, prefix: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run ``gt WORDS`` in a session of its own; kill it at the end, if it still runs."""
    process = Process([*prefix, sys.executable, "-m", "gt", *map(str, words)], cwd=folder, env=variables, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def start(code: str, folder: Path, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Start a script, saved to a file so that errors can quote its lines."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code).lstrip("\n"))
    words = [sys.executable, str(script), *map(str, arguments)]
    return Process(words, cwd=folder, env=environment(**variables), stdin=subprocess.PIPE)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def run(code: str, folder: Path, *arguments: object, timeout_s: float = 60, **variables: str) -> Ended:
    """Run a script to its end."""
    with start(code, folder, *arguments, **variables) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
        return Ended(process.returncode, out, err)


def output(code: str, folder: Path, *arguments: object, timeout_s: float = 60, **variables: str) -> str:
    """Give what a script prints. It must end well."""
    done = run(code, folder, *arguments, timeout_s=timeout_s, **variables)
    assert done.code == 0, f"{done.out}\n{done.err}"
    return done.out


@dataclass
class Forks:
    """Scripts run each in a fork of one process, which has loaded torch before: see ``fork_server``."""

    server: subprocess.Popen[str]

    def run(self, code: str, *argv: object, folder: Path, variables: dict[str, str], given: str = "", timeout_s: int = 110) -> Ended:
        """Run code to its end as the script ``argv[0]``, or as ``-c``; killed after ``timeout_s``."""
        assert self.server.stdin is not None and self.server.stdout is not None
        with tempfile.TemporaryDirectory() as place:
            streams = [Path(place) / name for name in ("in", "out", "err")]
            streams[0].write_text(given)
            asked = [code, [str(a) for a in argv], str(folder), variables, [str(s) for s in streams], timeout_s]
            self.server.stdin.write(json.dumps(asked) + "\n")
            self.server.stdin.flush()
            code_ = int(self.server.stdout.readline())
            return Ended(code_, streams[1].read_text(), streams[2].read_text())


@contextlib.contextmanager
def forks() -> Iterator[Forks]:
    """Start the process that scripts are forks of."""
    words, variables = [sys.executable, "-m", "tests.integration.fork_server"], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        yield Forks(started)
        started.communicate(timeout=30)


def wait_for(condition: Callable[[], object], timeout_s: float = 30.0) -> bool:
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def gone(processes: Iterable[psutil.Process]) -> bool:
    """Say whether all have ended, waited for or not; they may do so while this looks."""

    def lives(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    return not any(map(lives, processes))


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Give a port of 127.0.0.1 on which nobody listens, nor is given by the system; who asks for this very one may listen there.

    For a server that ends before its peers do, too: one that another test starts does not come in its place.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@contextlib.contextmanager
def lived(tick_s: float = 0.02) -> Iterator[Callable[[], float]]:
    """Count the seconds that this process lives through: while it gets no processor, or is stopped, hardly any pass."""
    over, ticks = threading.Event(), []

    def count() -> None:
        then = time.monotonic()
        while not over.wait(tick_s):
            now = time.monotonic()
            ticks.append(min(now - then, 3 * tick_s))
            then = now

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield lambda: sum(ticks)
    finally:
        over.set()
        thread.join()


@dataclass
class Server:
    """``python -m gt.server`` and workers, each started by its command."""

    process: subprocess.Popen[str]
    port: int
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def await_port(self) -> None:
        """Read the first line that it prints."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().split()[1].endswith(f":{self.port}")

    def add_workers(self, count: int, *command: str, backend: str = "numpy", **variables: str) -> None:
        words = command or ("gt.worker",)
        for _ in range(count):
            self.workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", *words, "--host", "localhost", "-p", str(self.port)], cwd=ROOT, text=True,
                    env=environment(GT_BACKEND=backend, **variables),
                )  # fmt: skip
            )

    def await_workers(self, count: int) -> None:
        session = RemoteSession(self.address, timeout=60)
        try:
            assert wait_for(lambda: session.num_workers() == count, 60)
        finally:
            session.close()

    def memory(self) -> int:
        """Give what the workers occupy together, in bytes; not what of files is in memory, which comes and goes with the machine's load."""
        return sum(kib for p in self.workers for kib in _occupied(p.pid)) * 1024


def _occupied(pid: int) -> list[int]:
    """Give a process's own, shared and swapped memory in KiB."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return [int(words[1]) for words in lines if words[0] in ("RssAnon:", "RssShmem:", "VmSwap:")]


@contextlib.contextmanager
def server(workers: int = 0, *command: str, **variables: str) -> Iterator[Server]:
    """Run a server on a free port, with NumPy workers; in the end it must stop well, and so must they."""
    words = command or ("gt.server",)
    with held_port() as port:
        process = subprocess.Popen(
            [sys.executable, "-m", *words, "-p", str(port)], cwd=ROOT, env=environment(**variables), stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        started = Server(process, port)
        try:
            started.await_port()
            started.add_workers(workers, **variables)
            if workers:
                started.await_workers(workers)
            yield started
        finally:
            process.terminate()
            everything = [process, *started.workers]
            for p in everything:
                try:
                    p.wait(30)
                except subprocess.TimeoutExpired:
                    p.kill()
                    raise
                finally:
                    if p.stdout is not None:
                        p.stdout.close()
        assert process.returncode == 0


def log_lines(path: Path) -> list[list[str]]:
    """Give the instruction log's lines as words: elapsed, sequence, event, who, operation, nbytes, details..."""
    whole = path.read_text().rpartition("\n")[0]  # not what is being written
    return [line.split() for line in whole.splitlines() if not line.startswith("#")]
