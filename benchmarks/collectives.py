"""Time collectives on the GPUs of this machine beside what the planner predicts for them.

    python benchmarks/collectives.py --workers 2

Each is timed as a step of gt's at full speed runs it, in a CUDA graph, by events of the device; sizes are of the whole value. The last lines
fit ``launch + bytes sent / bandwidth`` to the measured times, for ``gt.passes.cost.Machine``.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from gt.ir.ops.collective import sent_bytes
from gt.passes.cost import step_s, transfer_s

MIB, CALLS = 1 << 20, 20
SIZES = [1, 2, 4, 8, 16, 64, 256]  # MiB
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "transfer")


def call_of(kind: str, rank: int, workers: int, nbytes: int) -> Callable[[], Any]:
    """Give one call of a collective on a value of so many bytes."""
    whole = torch.ones(nbytes // 4, device=f"cuda:{rank}")
    part = torch.ones(nbytes // 4 // workers, device=f"cuda:{rank}")
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole)
    if kind == "all_to_all":
        out = torch.empty_like(part)
        return lambda: dist.all_to_all_single(out, part)
    out, after, before = torch.empty_like(part), (rank + 1) % workers, (rank - 1) % workers

    def transfer() -> None:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, part, after), dist.P2POp(dist.irecv, out, before)]):
            work.wait()

    return transfer


def predicted_s(kind: str, workers: int, nbytes: int) -> float:
    return transfer_s(1, nbytes // workers, workers) if kind == "transfer" else step_s(kind, workers, nbytes)


def sent(kind: str, workers: int, nbytes: int) -> int:
    return nbytes // workers if kind == "transfer" else sent_bytes(kind, workers, nbytes)


def measured_s(call: Callable[[], Any]) -> float:
    """Give the seconds of a call: 20 of them in one CUDA graph, as gt's steps run them; the median of 20 replays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(5):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    times = []
    for i in range(25):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        dist.barrier()
        torch.cuda.synchronize()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 5:
            times.append(begin.elapsed_time(end) / 1e3 / CALLS)
    return statistics.median(times)


def worker(rank: int, workers: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE=os.environ.get("NCCL_NVLS_ENABLE", "0"))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=workers, device_id=torch.device("cuda", rank))
    if rank == 0:
        print(f"{torch.cuda.get_device_name()} x {workers}, torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
        print(f"{'collective':<16}{'MiB':>6}{'measured us':>13}{'predicted us':>14}{'predicted/measured':>20}")
    for kind in KINDS:
        points = []
        for size in SIZES:
            took, expected = measured_s(call_of(kind, rank, workers, size * MIB)), predicted_s(kind, workers, size * MIB)
            points.append((sent(kind, workers, size * MIB), took))
            if rank == 0:
                print(f"{kind:<16}{size:>6}{took * 1e6:>13.1f}{expected * 1e6:>14.1f}{expected / took:>20.2f}")
        if rank == 0:
            sizes, times = np.array(points).T
            fit = np.linalg.lstsq(np.stack([1 / times, sizes / times], 1), np.ones(len(times)), rcond=None)[0]  # relative errors
            print(f"{kind:<16} launch {fit[0] * 1e6:.1f} us, {1e-9 / fit[1]:.0f} GB/s sent")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time collectives.")
    parser.add_argument("--workers", type=int, default=torch.cuda.device_count())
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, (args.workers, port), nprocs=args.workers)


if __name__ == "__main__":
    main()
