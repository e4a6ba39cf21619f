"""What ``gt doctor`` looks at, each a finding with a verdict and what to do.

Owns: ``run_checks`` and the checks. Facts are read by one function each and judged by another, which tests hand facts to.
Must not know: how findings are shown. Next: ``gt.commands.doctor``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gt.ir.types import TensorType, float32
from gt.ir.wording import amount
from gt.runtime import env
from gt.runtime.errors import GtError
from gt.runtime.launch import start_local, visible_gpus
from gt.runtime.remote import RemoteSession
from gt.runtime.status import ServerStatus
from gt.runtime.status_request import ask

PYTHON = ((3, 11), (3, 14))
NEEDED = {"torch": "2.11", "pyzmq": "26", "numpy": "2.1", "msgspec": "0.20"}  # as in pyproject.toml
CACHE = Path("~/.cache/gt")
GIB = 1 << 30
DRIFT = 1e-3  # of the wall clock against the monotonic one
SKEW_S = 1.0
LOOK_S = 0.2
WORKER_S = 120.0
ROUND_TRIPS = 20


@dataclass(frozen=True)
class Finding:
    """One check: ``verdict`` is ok, warning or failed; ``fix`` says what to do, if anything."""

    name: str
    verdict: str
    text: str
    fix: str = ""


def run_checks(address: str | None = None, ports: Iterable[int] = (), quick: bool = False) -> Iterator[Finding]:
    """Check this machine, and the server at ``address``; a check that breaks is a finding too."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("python", lambda: judge_python(sys.version_info[:2], platform.python_implementation())),
        *((name, partial(package, name)) for name in NEEDED),
        ("extension", lambda: judge_extension(importlib.util.find_spec("gt._recording") is not None)),
        ("compiler", lambda: judge_compiler(shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++"))),
        ("gpu", partial(gpu, quick)),
        ("loopback", loopback),
        *((f"port {p}", partial(port, p)) for p in ports),
        ("keys", keys),
        ("clock", clock),
        ("temporary files", partial(disk, "temporary files", Path(tempfile.gettempdir()))),
        ("cache", cache),
        ("shared memory", shared_memory),
        ("open files", lambda: judge_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])),
    ]
    if address is not None:
        checks.append(("server", partial(server, address)))
    if not quick:
        checks.append(("worker", worker))
    for name, check in checks:
        try:
            yield check()
        except Exception as e:  # the rest is worth knowing all the more
            yield Finding(name, "failed", f"the check broke: {type(e).__name__}: {e}")


# -- versions


def judge_python(version: tuple[int, ...], implementation: str) -> Finding:
    low, high = PYTHON
    text = f"{implementation} {'.'.join(map(str, version))}"
    if implementation == "CPython" and low <= version < high:
        return Finding("python", "ok", text)
    return Finding("python", "failed", text, f"use CPython {low[0]}.{low[1]} to {high[0]}.{high[1] - 1}")


def package(name: str) -> Finding:
    try:
        return judge_package(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return judge_package(name, None)


def judge_package(name: str, version: str | None) -> Finding:
    wanted = NEEDED[name]
    if version is None:
        return Finding(name, "failed", "not installed", f"pip install '{name}>={wanted}'")
    if _numbers(version) < _numbers(wanted):
        return Finding(name, "failed", version, f"pip install '{name}>={wanted}'")
    return Finding(name, "ok", version)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def judge_extension(present: bool) -> Finding:
    if present:
        return Finding("extension", "ok", "the compiled module records ops")
    fix = "install a C compiler and Python's headers, then install gt again"
    return Finding("extension", "warning", "there is no compiled module: recording an op takes half as long again", fix)


def judge_compiler(found: str | None) -> Finding:
    if found is not None:
        return Finding("compiler", "ok", found)
    return Finding("compiler", "warning", "no C++ compiler: programs stay eager on CPU", "install g++, or name another in CXX")


# -- devices


def gpu(quick: bool) -> Finding:
    driver = Path("/proc/driver/nvidia/version")
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", driver.read_text()) if driver.exists() else None
    cuda, usable = None, None
    if not quick:
        torch = importlib.import_module("torch")
        cuda, usable = torch.version.cuda, torch.cuda.device_count()
    return judge_gpu(len(visible_gpus()), match[1] if match else None, cuda, usable)


def judge_gpu(visible: int, driver: str | None, cuda: str | None, usable: int | None) -> Finding:
    """``usable``: how many GPUs torch finds, None if it was not asked."""
    if not visible:
        return Finding("gpu", "ok", "none: workers use the CPU")
    text = f"{visible} visible, driver {driver or 'unknown'}"
    if usable is None:
        return Finding("gpu", "ok", text)
    if cuda is None:
        return Finding("gpu", "failed", f"{text}, but this torch has no CUDA", "install a CUDA build of torch")
    if usable < visible:
        return Finding(
            "gpu",
            "failed",
            f"{text}, but torch (CUDA {cuda}) can use {usable}",
            f"update the driver for CUDA {cuda}: see nvidia-smi",
        )
    return Finding("gpu", "ok", f"{text}, CUDA {cuda}")


# -- the network


def loopback() -> Finding:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname(), 2):
        return Finding("loopback", "ok", "a port can be opened and reached")


def port(number: int) -> Finding:
    name = f"port {number}"
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that waits for old connections to end is free
        try:
            s.bind(("", number))
        except PermissionError:
            return Finding(name, "failed", "not allowed for this user", "choose one from 1024 on")
        except OSError:
            return Finding(name, "failed", "in use", f"choose another, or stop what uses it: ss -ltnp 'sport = :{number}'")
    return Finding(name, "ok", "free")


def keys() -> Finding:
    """Look at the files that variables with KEY in their names name."""
    paths = [
        Path(text).expanduser() for v in env.VARIABLES.values() if "KEY" in v.name and isinstance(text := v.get(), str) and text
    ]
    if not paths:
        return Finding("keys", "ok", "none named: servers listen on this machine only")
    return next((f for f in map(judge_key, paths) if f.verdict != "ok"), Finding("keys", "ok", ", ".join(map(str, paths))))


def judge_key(path: Path) -> Finding:
    if not path.exists():
        return Finding("keys", "failed", f"{path} is not there", "make keys, or leave the variable out")
    found, mode = path.stat(), "700" if path.is_dir() else "600"
    if found.st_uid != os.getuid():
        return Finding("keys", "failed", f"{path} belongs to another user", f"chown {os.getuid()} {path}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        return Finding("keys", "failed", f"{path} can be read by others", f"chmod {mode} {path}")
    return Finding("keys", "ok", str(path))


# -- time


def clock() -> Finding:
    wall, steady = time.time(), time.monotonic()
    time.sleep(LOOK_S)
    return judge_clock(time.time(), time.time() - wall, time.monotonic() - steady)


def judge_clock(wall_s: float, wall_passed_s: float, passed_s: float) -> Finding:
    off = abs(wall_passed_s - passed_s)
    if wall_s < 1.7e9:
        return Finding("clock", "failed", "it is before 2024", "set the time: timedatectl set-ntp true")
    if off > max(DRIFT * passed_s, 0.02):
        text = f"the wall clock moved {wall_passed_s:.3f} s in {passed_s:.3f} s"
        return Finding("clock", "warning", text, "something sets it: deadlines do not use it, times in logs do")
    return Finding("clock", "ok", "the wall clock goes evenly")


# -- room


def disk(name: str, folder: Path) -> Finding:
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return Finding(name, "failed", f"{folder} cannot be written", f"chmod u+w {folder}, or set TMPDIR")
    return judge_free(name, folder, shutil.disk_usage(folder).free)


def judge_free(name: str, folder: Path, free: int) -> Finding:
    text = f"{free / GIB:.1f} GiB free in {folder}"
    if free < GIB // 10:
        return Finding(name, "failed", text, "make room")
    return Finding(
        name, "ok" if free >= GIB else "warning", text, "" if free >= GIB else "make room: compiled programs take some 100 MB"
    )


def cache() -> Finding:
    folder = CACHE.expanduser()
    for path in (folder, *(folder.iterdir() if folder.is_dir() else ())):
        if path.exists() and (found := judge_cache(path, path.stat(), os.getuid())) is not None:
            return found
    return disk("cache", folder)


def judge_cache(path: Path, found: os.stat_result, user: int) -> Finding | None:
    """What is compiled is loaded again: nobody else may write there."""
    if found.st_uid != user:
        return Finding("cache", "failed", f"{path} belongs to another user", f"rm -r {path}, or chown it")
    if stat.S_IMODE(found.st_mode) & 0o022:
        return Finding("cache", "failed", f"others may write to {path}, from which programs are loaded", f"chmod 700 {path}")
    return None


def shared_memory() -> Finding:
    folder = Path("/dev/shm")
    return judge_shared_memory(shutil.disk_usage(folder).total if folder.is_dir() else None)


def judge_shared_memory(total: int | None) -> Finding:
    if total is None:
        return Finding(
            "shared memory", "warning", "there is no /dev/shm", "arrays travel through sockets, and data loaders may fail"
        )
    text = f"{total / GIB:.2f} GiB in /dev/shm"
    if total < GIB:
        return Finding(
            "shared memory", "warning", text, "give the container more: docker run --shm-size=8g, or an emptyDir of medium Memory"
        )
    return Finding("shared memory", "ok", text)


def judge_open_files(limit: int) -> Finding:
    name = "open files"
    if limit in (resource.RLIM_INFINITY, -1):
        return Finding(name, "ok", "no limit")
    verdict = "ok" if limit >= 4096 else "warning" if limit >= 512 else "failed"
    return Finding(
        name, verdict, f"at most {limit}", "" if verdict == "ok" else "ulimit -n 65536: a server needs about 4 for each client"
    )


# -- the whole way


def server(address: str) -> Finding:
    before = time.time()
    try:
        found = ask(address)
    except (GtError, ValueError) as e:
        return Finding("server", "failed", str(e), "if it refuses, change what it names; else start it, or check the address")
    return judge_server(address, found, (before + time.time()) / 2)


def judge_server(address: str, found: ServerStatus, wall_s: float) -> Finding:
    off = found.wall_s - wall_s
    joined = sum(w.joined for w in found.workers)
    text = f"{address} has {amount(joined, 'worker')} and {amount(len(found.clients), 'client')}; its clock is {off:+.2f} s off this one's"
    if abs(off) > SKEW_S:
        return Finding(
            "server", "warning", text, "set both by NTP: logs of several machines cannot be compared; deadlines are not affected"
        )
    if not joined:
        return Finding("server", "warning", text, "start workers: gt worker --host HOST -p PORT")
    return Finding("server", "ok", text)


def worker() -> Finding:
    """Start a worker of this machine's and send an array there and back."""
    begin = time.monotonic()
    try:
        cluster = start_local(1, env.BACKEND.get(), WORKER_S)
    except GtError as e:
        return Finding("worker", "failed", str(e), "see what its stderr says; GT_DEBUG=2 shows more")
    try:
        up = time.monotonic() - begin
        session = RemoteSession(cluster.address)
        try:
            best = min(_round_trip(session, number) for number in range(1, ROUND_TRIPS + 1))
        finally:
            session.close()
    finally:
        cluster.stop()
    return Finding("worker", "ok", f"one came up in {up:.1f} s ({env.BACKEND.get()}); there and back in {best * 1e3:.2f} ms")


def _round_trip(session: RemoteSession, number: int) -> float:
    sent = np.arange(16, dtype=np.float32)
    begin = time.perf_counter()
    session.put(number, TensorType(sent.shape, float32), sent, None)
    got = session.fetch(number).result(30.0)
    passed = time.perf_counter() - begin
    if not np.array_equal(got, sent):
        raise RuntimeError("a worker gave back other values than it was sent")
    session.free((number,))
    return passed


__all__ = ["NEEDED", "Finding", "run_checks"]
