"""Measure how clients share workers: shares of equal clients, a short job beside a long one and beside a long plan, a flood, leaks.

    python benchmarks/sharing.py                    # about two minutes, NumPy workers
    python benchmarks/sharing.py --backend torch    # the same on torch workers, on GPUs if there are any
    python benchmarks/sharing.py leaks --flushes 100000

Each client is a process of its own and uses gt as a script does. Every part prints what it found and what is promised
(docs/sharing.md); the exit code is the number of promises not kept. Short forms of all parts are tests/integration/test_sharing.py.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import gt
from gt.ir.types import TensorType, float32
from gt.runtime.env import SHARED_MEMORY
from gt.runtime.launch import LocalCluster, start_local
from gt.runtime.remote import RemoteSession

ROOT = Path(__file__).resolve().parents[1]
GRAIN_S = 0.02


# -- clients


@dataclass
class Work:
    """What a client does: steps of so many matrix products of ``size``, until ``steps`` are done or time is up.

    ``reads``: it reads every result, and pauses so many seconds before the next; None: it never reads. ``flood``: in place of products, it
    "reads" or "uploads" a value of ``size`` again and again, with so many of these under way at once as ``products`` says.
    """

    size: int = 200
    products: int = 1
    steps: int | None = None
    reads: float | None = None
    priority: float = 1.0
    flood: str = ""


class Client:
    """A process that connects, warms up and waits for the word."""

    def __init__(self, address: str, work: Work) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "client", address, json.dumps(vars(work))],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ready(self) -> Client:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", f"a client ended early: {line!r}"
        return self

    def go(self, start: float, seconds: float) -> None:
        """Work from ``start`` on, by the system's monotonic clock, for at most so many seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{start} {seconds}\n")
        self.process.stdin.flush()

    def done(self, timeout_s: float = 120.0) -> dict[str, Any]:
        """Give what it did: ``steps``, ``seconds``, and ``waits``: the round trips of its reads."""
        try:
            out, _ = self.process.communicate(timeout=timeout_s)
        finally:
            self.process.kill()
        return json.loads(out)


def client(address: str, work: Work) -> None:
    """One client's whole life."""
    gt.connect(address, 20.0, priority=work.priority)
    rng = np.random.default_rng(0)
    x = gt.from_numpy(rng.standard_normal((work.size, work.size), np.float32))
    w = gt.from_numpy(np.linalg.qr(rng.standard_normal((work.size, work.size)))[0].astype(np.float32))

    @gt.jit
    def step(x: gt.Tensor) -> gt.Tensor:
        for _ in range(work.products):
            x = x @ w
        return x

    for _ in range(6):
        x = step(x)
    x[0, 0].item()
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    print("ready", flush=True)
    start, seconds = map(float, sys.stdin.readline().split())
    time.sleep(max(0.0, start - time.monotonic()))
    waits: list[float] = []
    steps = 0
    flood = Flood(x, work) if work.flood else None
    while flood is not None and not told and time.monotonic() < start + seconds:
        flood.step()
        steps += 1
    while flood is None and not told and steps != work.steps and time.monotonic() < start + seconds:
        before = time.monotonic()
        x = step(x)
        steps += 1
        if work.reads is not None:
            x.numpy()
            waits.append(time.monotonic() - before)
            time.sleep(work.reads)
    counted = time.monotonic() - start  # what is still in line is of all clients alike
    if work.steps is not None:
        x[0, 0].item()
        counted = time.monotonic() - start
    gt.disconnect()
    print(json.dumps({"steps": steps, "seconds": counted, "waits": waits}), flush=True)


class Flood:
    """Reads or uploads without a pause. Values are read as ``numpy`` reads them, from many threads of a script, say, so none waits for another."""

    def __init__(self, x: gt.Tensor, work: Work) -> None:
        self.session, self.kind, self.most = gt.session.current(), work.flood, work.products
        self.array = x.numpy()
        self.type = TensorType(self.array.shape, float32)
        self.under_way: deque[Any] = deque()
        self.number = 1 << 40  # no buffer of the script's has it
        self.session.put(self.number, self.type, self.array.copy(), None)

    def step(self) -> None:
        if len(self.under_way) >= self.most:
            self.under_way.popleft().result(60)
        if self.kind == "uploads":
            self.number += 1
            room = self.session.room(self.array.shape, self.array.dtype)
            room[...] = self.array
            self.session.put(self.number, self.type, room, None)
            if self.number % 16:  # it is there once the next one can be read
                self.session.free([self.number - 1])
                return
        self.under_way.append(self.session.fetch(self.number))
        if self.kind == "uploads":
            self.session.free([self.number - 1])


def together(address: str, works: list[Work], seconds: float) -> list[dict[str, Any]]:
    """Let clients work at once; give what each did."""
    clients = [Client(address, work) for work in works]
    try:
        for c in clients:
            c.ready()
        start = time.monotonic() + 0.2
        for c in clients:
            c.go(start, seconds)
        return [c.done(seconds + 120.0) for c in clients]
    finally:
        for c in clients:
            c.process.kill()


# -- what is promised


@dataclass
class Found:
    """One measurement beside its promise."""

    name: str
    value: float
    most: float
    unit: str = ""

    @property
    def kept(self) -> bool:
        return self.value <= self.most

    def __str__(self) -> str:
        return f"{'ok  ' if self.kept else 'MISS'} {self.name}: {self.value:.3g}{self.unit}, promised at most {self.most:.3g}{self.unit}"


def equal_shares(address: str, count: int = 8, seconds: float = 10.0) -> list[Found]:
    """``count`` clients of equal priority, whose steps take 2 to 5 products: each gets the same device time, give or take 15%."""
    works = [Work(size=320, products=2 + i % 4) for i in range(count)]
    done = together(address, works, seconds)
    got = [d["steps"] * w.products for d, w in zip(done, works, strict=True)]
    shares = [g / sum(got) for g in got]
    print("     shares: " + " ".join(f"{s:.1%}" for s in shares))
    return [Found(f"farthest of {count} equal shares from 1/{count}", max(abs(s * count - 1) for s in shares) * 100, 15, "%")]


def priorities(address: str, seconds: float = 5.0) -> list[Found]:
    """A client of priority 0.5 beside one of 1 gets half of what that one gets, give or take 15%."""
    low, high = together(address, [Work(products=2, priority=0.5), Work(products=2)], seconds)
    return [Found("share of priority 1/2 beside 1, off by", abs(low["steps"] / high["steps"] * 2 - 1) * 100, 15, "%")]


def short_beside_long(address: str, steps: int = 500, seconds: float = 120.0) -> list[Found]:
    """A short job whose steps follow each other ends beside an endless one within twice its lone time."""
    short = Work(size=320, products=2, steps=steps)
    (alone,) = together(address, [short], seconds)
    beside = beside_endless(address, short, Work(size=320, products=6), seconds)
    print(f"     alone {alone['seconds']:.2f} s, beside {beside['seconds']:.2f} s")
    return [Found("short job beside a long one", beside["seconds"] / alone["seconds"], 2.0, "x")]


def short_beside_a_long_plan(address: str, steps: int = 2000, seconds: float = 300.0) -> list[Found]:
    """The same beside one each of whose plans takes seconds: it is run in parts."""
    short = Work(size=320, products=2, steps=steps)
    (alone,) = together(address, [short], seconds)
    beside = beside_endless(address, short, Work(size=320, products=1500), seconds)
    print(f"     alone {alone['seconds']:.2f} s, beside {beside['seconds']:.2f} s")
    return [Found("short job beside a long plan", beside["seconds"] / alone["seconds"], 2.0, "x")]


def beside_endless(address: str, short: Work, long: Work, seconds: float) -> dict[str, Any]:
    """Give what a client does while another never ends, which is killed then."""
    endless = Client(address, long).ready()
    counted = Client(address, short).ready()
    try:
        start = time.monotonic() + 0.2
        endless.go(start - 0.1, 1e6)
        counted.go(start, seconds)
        done = counted.done(seconds + 60)
        endless.process.terminate()
        other = endless.done()
        print(f"     the other did {other['steps']} steps in {other['seconds']:.1f} s")
        return done
    finally:
        endless.process.kill()
        counted.process.kill()
        endless.process.wait()


def quiet_beside_flood(address: str, seconds: float = 10.0, flood: Work | None = None) -> list[Found]:
    """One that asks now and then, beside one that never stops: its p99 round trip is at most three times what it was, or one grain more."""
    quiet = Work(size=64, reads=0.01)
    (alone,) = together(address, [quiet], seconds)
    beside = beside_endless(address, quiet, flood or Work(size=200, products=4), seconds)
    before, after = p99(alone["waits"]), p99(beside["waits"])
    print(f"     p50 {statistics.median(alone['waits']) * 1e3:.2f} -> {statistics.median(beside['waits']) * 1e3:.2f} ms")
    return [
        Found(
            f"p99 of a quiet client beside a flood of {flood.flood if flood is not None else 'runs'} (alone {before * 1e3:.2f})",
            after * 1e3,
            max(3 * before, before + GRAIN_S) * 1e3,
            " ms",
        )
    ]


def p99(samples: list[float]) -> float:
    return sorted(samples)[min(len(samples) - 1, int(0.99 * len(samples)))]


# -- leaks


@dataclass
class Held:
    """What the processes of a cluster hold."""

    memory: int
    files: int
    threads: int

    @classmethod
    def by(cls, cluster: LocalCluster) -> Held:
        processes = [psutil.Process(p.pid) for p in cluster.processes]
        return cls(
            sum(p.memory_info().rss for p in processes),
            sum(p.num_fds() for p in processes),
            sum(p.num_threads() for p in processes),
        )


def visit(address: str, flushes: int, number: int) -> None:
    """One client's visit: uploads, runs, reads; every third leaves without a word."""
    from gt.ir import ops  # noqa: F401  the op table
    from gt.ir.graph import Graph, Node, Value
    from gt.ir.opdef import OPS

    session = RemoteSession(address, timeout=20.0)
    type_ = TensorType((128, 160), float32)  # 80 KiB: travels by itself, in shared memory where there is some
    a = Value(type_)
    node = Node(OPS["add"], (a, a), (Value(type_),), ())
    session.define(1, Graph("visit", (a,), (), (node,), node.outputs))
    session.put(1, type_, np.full(type_.shape, number, np.float32), None)
    for i in range(flushes):
        session.run(1, [1], [2 + i], [], [1 + i] if i else [])
        if i % 100 == 0:
            assert session.fetch(2 + i).result(60)[0, 0] == 2 * number
    assert session.fetch(1 + flushes).result(60)[0, 0] == 2 * number
    if number % 3 == 2:
        session._closed = session._closed or gone()  # as if killed: the server hears nothing more of it
        os.write(session._wake_write, b"x")
    session.close()


def gone() -> Any:
    from gt.runtime.errors import Fault

    return Fault("closed", "vanished")


def leaks(address: str, cluster: LocalCluster, clients: int = 100, flushes: int = 100_000, settle_s: float = 12.0) -> list[Found]:
    """``clients`` connect, work and leave: processes hold what they held before, memory within 5%, files and threads exactly."""
    for number in range(6):  # what is made once is there, what sends large frames without a copy included
        SHARED_MEMORY.set(number > 1)
        visit(address, max(200, flushes // clients), number)
    wait_until_left(address, settle_s)
    before = Held.by(cluster)
    start = time.monotonic()
    for number in range(clients):
        visit(address, flushes // clients, number)
    spent = time.monotonic() - start
    wait_until_left(address, settle_s)
    after = Held.by(cluster)
    print(f"     {flushes} flushes of {clients} clients in {spent:.1f} s; {before} -> {after}")
    return [
        Found("memory of dispatcher and workers, more by", (after.memory / before.memory - 1) * 100, 5, "%"),
        Found("file descriptors more", after.files - before.files, 0),
        Found("threads more", after.threads - before.threads, 0),
    ]


def wait_until_left(address: str, seconds: float) -> None:
    """Let the lease of those who left without a word run out."""
    time.sleep(seconds)


# -- running them


@contextmanager
def cluster(workers: int, backend: str) -> Iterator[LocalCluster]:
    started = start_local(workers, backend=backend)
    try:
        yield started
    finally:
        started.stop()


PARTS: dict[str, Callable[[LocalCluster], list[Found]]] = {
    "shares": lambda c: equal_shares(c.address),
    "priorities": lambda c: priorities(c.address),
    "short": lambda c: short_beside_long(c.address),
    "plan": lambda c: short_beside_a_long_plan(c.address),
    "flood": lambda c: quiet_beside_flood(c.address),
    "reads": lambda c: quiet_beside_flood(c.address, flood=Work(size=1000, products=64, flood="reads")),
    "uploads": lambda c: quiet_beside_flood(c.address, flood=Work(size=1000, products=64, flood="uploads")),
    "leaks": lambda c: leaks(c.address, c),
}


def main() -> None:
    if sys.argv[1:2] == ["client"]:
        client(sys.argv[2], Work(**json.loads(sys.argv[3])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--backend", choices=["numpy", "torch"], default="numpy")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--flushes", type=int, default=20_000, help="of all clients together, in leaks")
    given = parser.parse_args()
    missed = 0
    with cluster(given.workers, given.backend) as started:
        for name in given.parts or PARTS:
            found = leaks(started.address, started, flushes=given.flushes) if name == "leaks" else PARTS[name](started)
            for one in found:
                print(one, flush=True)
                missed += not one.kept
    sys.exit(missed)


if __name__ == "__main__":
    main()
