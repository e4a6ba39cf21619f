"""What a flush costs the dispatcher, by the number of workers: real sockets and a real dispatcher, workers that compute nothing.

    python benchmarks/dispatcher.py                      # 1, 8, 72 and 256 workers
    python benchmarks/dispatcher.py --workers 8 --flushes 2000

A step ``w = w * w + w`` is flushed again and again by one client, on a value whose rows are split over all workers. The workers are sockets
in one process, which acknowledge at once. Printed are microseconds of the dispatcher's CPU time for each flush, and for each flush and
worker: one small message in and one out for each worker is all that a flush that has been seen should cost.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import psutil
import zmq

WINDOW = 8  # runs in flight that the dispatcher allows
WARM = 64  # flushes before anything is timed
ROUNDS = 5


def light_workers(address: str, count: int, ready: Any) -> None:
    """Be ``count`` workers that acknowledge what they are told, until the dispatcher stops."""
    from gt.runtime import wire
    from gt.runtime.transport import BEAT_S, make_socket, receive, send
    from gt.runtime.wire import TO_WORKER

    context: Any = zmq.Context(4)
    context.set(zmq.MAX_SOCKETS, 4 * count + 64)
    poller = zmq.Poller()
    owner, links = {}, []
    for i in range(count):
        work = make_socket(context, zmq.DEALER)
        work.connect(address)
        send(work, wire.WorkerHello(upload=f"{address}u{i}", results=f"{address}r{i}", host="light", pid=os.getpid(), device=f"light:{i}", backend="numpy"))
        assert work.poll(20_000), "no welcome"
        (_, welcome, _) = receive(work, TO_WORKER)  # type: ignore[misc]
        link = make_socket(context, zmq.DEALER)
        link.connect(address)
        send(link, wire.Attach(welcome.token, "link"))
        links.append(link)
        owner[work] = owner[link] = (i, link)
        poller.register(work, zmq.POLLIN)
        poller.register(link, zmq.POLLIN)
    ready.set()
    beat = 0.0
    while True:
        now = time.monotonic()
        if now - beat > BEAT_S:
            beat = now
            for link in links:
                send(link, wire.Beat(0))
        for socket, _ in poller.poll(100):
            while (got := receive(socket, TO_WORKER)) is not None:
                message = got[1]
                if isinstance(message, wire.Execute | wire.MakeGroup):
                    send(socket, wire.Done(message.epoch, 0.0))
                elif isinstance(message, wire.Stop):
                    return


def step_graph(rows: int) -> Any:
    """Give the graph of ``w * w + w`` for [rows, 4], split by rows by its operand's placement."""
    from gt.ir.graph import Graph, Location, Node, Value
    from gt.ir.ops import OPS
    from gt.ir.types import TensorType, float32

    type = TensorType((rows, 4), float32)
    line = Location("step.py", 1, "step", "w = w * w + w")
    w, square, out = Value(type), Value(type), Value(type)
    nodes = (Node(OPS["mul"], (w, w), (square,), (), line), Node(OPS["add"], (square, w), (out,), (), line))
    return Graph("step", (w,), (), nodes, (out,))


def measure(workers: int, flushes: int) -> tuple[float, float, float]:
    """Give for each flush us of the dispatcher's CPU and of wall time, medians of rounds; and seconds until the first was over."""
    from gt.ir.signals import ShardConfig, SignalConfig
    from gt.ir.types import TensorType, float32
    from gt.starting import remote

    folder = tempfile.mkdtemp(prefix="gt-light-")
    address = f"ipc://{folder}/d"
    dispatcher = subprocess.Popen([sys.executable, "-m", "gt.runtime.dispatcher", "--bind", address])
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    light = spawn.Process(target=light_workers, args=(address, workers, ready), daemon=True)
    light.start()
    try:
        assert ready.wait(120), "the workers did not join"
        session = remote(address, 30.0)
        numbers = itertools.count(1)
        w = next(numbers)
        session.put(w, TensorType((workers, 4), float32), np.ones((workers, 4), np.float32), SignalConfig(shard=ShardConfig(axis=0)))
        session.define(1, step_graph(workers))

        def flush(count: int) -> None:
            nonlocal w
            for _ in range(count):
                new = next(numbers)
                session.run(1, [w], [new], [], [w])
                w = new

        start = time.perf_counter()
        flush(WINDOW + 1)  # the last waits for the first to be over
        first = time.perf_counter() - start
        flush(WARM)
        process = psutil.Process(dispatcher.pid)
        cpu, wall = [], []
        for _ in range(ROUNDS):
            start, used = time.perf_counter(), sum(process.cpu_times()[:2])
            flush(flushes)
            wall.append((time.perf_counter() - start) / flushes * 1e6)
            cpu.append((sum(process.cpu_times()[:2]) - used) / flushes * 1e6)
        session.close()
    finally:
        light.terminate()
        dispatcher.terminate()
        dispatcher.wait(10)
        shutil.rmtree(folder, ignore_errors=True)
    return statistics.median(cpu), statistics.median(wall), first


def main() -> None:
    parser = argparse.ArgumentParser(description="Time flushes through a dispatcher by the number of workers.")
    parser.add_argument("--workers", type=int, action="append", help="default: 1, 8, 72, 256")
    parser.add_argument("--flushes", type=int, help="for each round; default: 4,000 over the workers, 100 at least")
    args = parser.parse_args()
    print("workers   us of CPU/flush   us of CPU/flush/worker   us/flush, all in all   s to plan and load at first")
    for workers in args.workers or (1, 8, 72, 256):
        cpu, wall, first = measure(workers, args.flushes or max(100, 4000 // workers))
        print(f"{workers:7d} {cpu:17.0f} {cpu / workers:24.1f} {wall:22.0f} {first:20.2f}", flush=True)


if __name__ == "__main__":
    main()
