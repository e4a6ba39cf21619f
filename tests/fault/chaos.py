"""``python -m tests.fault.chaos --faults 200``: a training job that must not notice what happens to its workers and its network.

Workers are killed (each is replaced), stopped and delayed; messages between script, dispatcher and workers are lost, repeated and held up,
and connections are cut, all by a proxy that they pass (``proxy``). With ``--server`` the job is a client of a ``gt server``, which is killed
and stopped too; whatever dies is started again, as a supervisor of services does (``tended``).

The job runs twice with the same seeds: quietly, and with a fault every few steps, at a random moment of a step. Loss and parameters in
the end are equal to the last bit, or the command fails and prints how to repeat it. Next: ``test_recovery`` (single moments, by name).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np
from pytest import MonkeyPatch

import gt
from gt import session as sessions
from gt.runtime import env
from tests.fault.proxy import Fault, Proxied, proxied
from tests.fault.tended import Tended
from tests.integration import gpus
from tests.integration.programs import wait_for

ROWS = gt.SignalConfig(shard=gt.ShardConfig(axis=0))
NETWORK = ("drop", "duplicate", "late", "cut")
KINDS = ("kill", "kill two", "kill in recovery", "delay", "stop", *NETWORK, "drop", "duplicate")
SERVER = ("kill server", "kill server and worker", "kill server in recovery", "delay server", "stop server")
STEPS_APART = 6
JOINS_S = 60.0


@dataclass
class Faults:
    """Does harm to what a cluster is made of, at moments that follow from a seed."""

    cluster: Proxied | Tended
    count: int
    seed: int
    kinds: tuple[str, ...] = KINDS
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.left = self.count
        self.timers: list[threading.Timer] = []

    def step(self, number: int) -> None:
        """Do the next fault at some moment of this step, every few steps, once the last has been got over."""
        if self.left and number % STEPS_APART == 0:
            self.left -= 1
            kind = self.random.choice(self.kinds)
            self.done[kind] += 1
            self.later(self.random.uniform(0, 0.05), self.do, kind, self.random.randrange(1 << 16))

    def later(self, seconds: float, what: object, *args: object) -> None:
        timer = threading.Timer(seconds, what, args)  # type: ignore[arg-type]
        timer.daemon = True
        timer.start()
        self.timers.append(timer)

    def do(self, kind: str, which: int) -> None:
        if kind == "cut":
            self.cluster.proxy.cut(data=which % 2 == 1, which=which // 2)
        elif kind in NETWORK:
            fault = Fault("delay" if kind == "late" else kind, skip=which % 60, seconds=which % 12 / 10 if kind == "late" else 0.0)
            self.cluster.proxy.inject(fault)
        else:
            self.harm(kind, which)

    def harm(self, kind: str, which: int) -> None:
        workers = self.cluster.workers
        first, second = workers[which % len(workers)], workers[(which + 1) % len(workers)]
        if kind == "kill server and worker":
            second.kill()
        if kind == "kill server in recovery":
            second.kill()
            self.later(0.5 + which % 40 / 10, self.kill_server, which)
        elif kind.startswith("kill server"):
            self.kill_server(which)
        elif kind.startswith("delay"):  # shorter than the deadline after which it counts as stuck
            self.stop(first if kind == "delay" else self.server.process, 0.2 + which % 10 / 10, signal.SIGCONT)
        elif kind.startswith("stop"):
            self.stop(first if kind == "stop" else self.server.process, 8.0, signal.SIGKILL)  # if nobody has ended it until then
        else:
            first.kill()
        if kind == "kill two":
            second.kill()
        if kind == "kill in recovery":
            self.later(0.5 + which % 20 / 10, second.kill)

    def stop(self, process: subprocess.Popen[Any], seconds: float, then: signal.Signals) -> None:
        process.send_signal(signal.SIGSTOP)
        self.later(seconds, process.send_signal, then)

    def kill_server(self, which: int) -> None:
        self.server.kill_server(told=which % 4 != 0)

    @property
    def server(self) -> Tended:
        assert isinstance(self.cluster, Tended)
        return self.cluster

    def finish(self) -> None:
        for timer in self.timers:
            timer.join()


def train(steps: int, faults: Faults | None = None) -> list[str]:
    """Train a small classifier with dropout and Adam, its batches split over the workers; give loss and parameters, to the last bit."""
    gt.manual_seed(7)
    model = gt.nn.Sequential(gt.nn.Linear(16, 32), gt.nn.Tanh(), gt.nn.Dropout(0.1), gt.nn.Linear(32, 4))
    optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
    data = np.random.default_rng(7)
    for step in range(steps):
        if faults is not None:
            faults.step(step)
        with gt.signal.context("rows"):
            x = gt.from_numpy(data.standard_normal((32, 16)).astype(np.float32))
            y = gt.from_numpy(data.integers(0, 4, 32))
        optimizer.zero_grad()
        loss = gt.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 3 == 0:
            assert np.isfinite(loss.item())
    if faults is not None:
        faults.finish()
    return [loss.item().hex(), *(np.ascontiguousarray(p.detach().numpy()).tobytes().hex() for p in model.parameters())]


def run(workers: int, count: int, seed: int, backend: str, server: bool = False, interval_s: float = 2.0) -> Faults:
    """Train quietly and with faults; give what was done. Errors: AssertionError if the results differ."""
    gt.get_config().clear()
    gt.register_config("rows", ROWS)
    with cluster_of(workers, backend, server) as cluster:
        gt.recover(interval_s=interval_s, restarts=10 * count + 10, wait_s=JOINS_S if server else None)
        steps = STEPS_APART * (count + 1)
        quiet = train(steps)
        assert not gt.recoveries()
        faults = Faults(cluster, count, seed, KINDS + SERVER * 2 if server else KINDS)
        assert train(steps, faults) == quiet, "the results differ"
        return faults


@contextmanager
def cluster_of(workers: int, backend: str, server: bool) -> Iterator[Proxied | Tended]:
    """Start workers of the script's own, or a ``server`` and its, behind a proxy; end them."""
    if not server:
        env.BACKEND.set(backend)
        if backend == "torch" and gpus.GPUS:
            gpus.share(workers, MonkeyPatch())
        with proxied():
            gt.gpu_workers(workers)
        cluster = sessions.cluster()
        assert isinstance(cluster, Proxied)
        try:
            yield cluster
        finally:
            gt.disconnect()
            gt.get_config().clear()
        return
    tended = Tended(workers, backend)
    try:
        gt.connect(tended.address, JOINS_S)
        assert wait_for(lambda: gt.num_workers() == workers, JOINS_S)
        yield tended
    finally:
        gt.disconnect()
        gt.get_config().clear()
        tended.close()


@click.command()
@click.option("--faults", default=200, show_default=True, type=click.IntRange(1))
@click.option("--workers", default=4, show_default=True, type=click.IntRange(1))
@click.option("--seed", type=int, help="Default: drawn, and printed.")
@click.option("--server", is_flag=True, help="Be a client of a server, and do harm to that too.")
@click.option("--backend", type=click.Choice(["numpy", "torch"]), default="numpy", show_default=True)
def main(faults: int, workers: int, seed: int | None, server: bool, backend: str) -> None:
    """Train under faults and compare with a quiet run."""
    os.environ.setdefault("GT_COMPILE_AFTER", "0")  # replays are equal to the last bit at equal tiers
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    repeat = (
        f"python -m tests.fault.chaos --faults {faults} --workers {workers} --seed {seed} --backend {backend}{' --server' * server}"
    )
    print(repeat, flush=True)
    gt.session.on_end.append(_tell)
    start = time.monotonic()
    try:
        done = run(workers, faults, seed, backend, server)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}\nrepeat with: {repeat}")
    print(f"{faults} faults ({dict(done.done)}) in {time.monotonic() - start:.0f} s: the results are equal to the last bit")


def _tell(session: object) -> None:
    found = getattr(session, "recoveries", [])
    seconds = sorted(r.seconds for r in found) or [0.0]
    print(f"{len(found)} recoveries, {seconds[len(seconds) // 2]:.2f} s in the middle, {seconds[-1]:.2f} s at most")
    print(f"{getattr(session, 'snapshots', '')}", flush=True)


if __name__ == "__main__":
    main()
