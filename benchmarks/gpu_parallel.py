"""Train GPT-2 124M on several GPUs of one host with gt and with torch, in one run, and print the ratios.

    python benchmarks/gpu_parallel.py --workers 2                          # every side, about eight minutes
    python benchmarks/gpu_parallel.py --workers 2 --sides one,data,ddp     # some

Each GPU has 16 rows of the batch. ``one``: gt on one GPU; ``data``, ``fsdp``: gt on all, by the YAML files of
``examples/sharding``; ``ddp``: DistributedDataParallel under torch.compile; ``fsdp2``: fully_shard with compiled blocks; both with
fused AdamW. Losses of the first 20 steps are compared with DDP's before anything is timed. Memory is what the card's processes
hold after the run, caches included, by the driver.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from gpu_models import batches
from gpu_sides import CURVE, LR, curve, gt_step, speed, torch_model, torch_training

HERE = Path(__file__).resolve().parent
CASE = "gpt2-124m"
CONFIGS = {"data": "data.yaml", "fsdp": "fsdp.yaml"}
RTOL = 2e-2  # of a loss after up to 20 steps in bfloat16


def gt_side(name: str, workers: int, warm_s: float) -> dict[str, Any]:
    import gt

    if name == "one":
        gt.gpu_workers(1)
    else:
        gt.gpu_workers(workers)
        gt.load_config(str(HERE.parent / "examples" / "sharding" / CONFIGS[name]))
    step = gt_step(CASE, "cuda", False, 1 if name == "one" else workers, "" if name == "one" else "batch")
    started = time.perf_counter()
    losses, first = curve(step)
    while time.perf_counter() - started < warm_s:
        for i in range(20):
            loss = step(i)
        float(loss)
    return {"losses": losses, "first_s": first, "ms": speed(step), "used_gib": used()}


def used() -> float:
    """Give GiB of the first card that are in use."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return float(subprocess.run(query, capture_output=True, text=True).stdout) / 1024


def torch_rank(rank: int, name: str, workers: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=workers)
    model = torch_model(CASE).cuda()
    if name == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
        model = torch.compile(model)
    else:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            block.compile()
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    data = [tuple(torch.from_numpy(np.array_split(a, workers)[rank]).cuda() for a in pair) for pair in batches(CASE, workers)]
    step = torch_training(model, optimizer, data, "cuda", autocast=name == "ddp")
    start = time.perf_counter()
    losses = []
    for i in range(CURVE):
        loss = step(i).detach()
        dist.all_reduce(loss)
        losses.append(float(loss) / workers)
        if i == 0:
            first = time.perf_counter() - start
    rounds = []
    for _ in range(7):
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(30):
            step(i)
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - start) / 30 * 1e3)
    if rank == 0:
        found = {"losses": losses, "first_s": first, "ms": float(np.median(rounds)), "used_gib": used()}
        print("RESULT " + json.dumps(found), flush=True)
    os._exit(0)


def torch_side(name: str, workers: int) -> None:
    import torch.multiprocessing as mp

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(torch_rank, (name, workers, port), nprocs=workers, join=True)


def run(name: str, workers: int, warm_s: float) -> dict[str, Any]:
    """Run one side in a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])}
    command = [sys.executable, __file__, "--side", name, "--workers", str(workers), "--warm", str(warm_s)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        print(f"{name} failed\n{done.stderr[-3000:]}", flush=True)
        return {}
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def show(out: dict[str, Any]) -> None:
    one, base = out.get("one", {}).get("ms"), out.get("ddp", {})
    print(f"\n{CASE}, {out['workers']} x {out['card']}, torch {out['torch']}, 16 rows each")
    for name in ("one", "data", "ddp", "fsdp", "fsdp2"):
        found = out.get(name)
        if not found:
            continue
        text = f"  {found['ms']:8.2f} ms  {name:<6} first step {found['first_s']:5.1f} s, {found['used_gib']:6.2f} GiB in use"
        if name in CONFIGS and one:
            text += f", scaling {100 * one / found['ms']:.1f}%"
        if name != "one" and base:
            off = float(np.max(np.abs(np.array(found["losses"]) / np.array(base["losses"]) - 1)))
            text += f", losses within {off:.1e} of ddp's" + ("" if off <= RTOL else " DIFFER")
        print(text)
    for ours, theirs, asked in (("data", "ddp", 1.3), ("fsdp", "fsdp2", 1.5)):
        if out.get(ours) and out.get(theirs):
            ratio = out[theirs]["ms"] / out[ours]["ms"]
            print(f"  {ours} against {theirs}: {ratio:.2f}x, asked {asked}x: {'reached' if ratio >= asked else 'NOT reached'}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train GPT-2 on several GPUs with gt and torch.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sides", default="one,data,ddp,fsdp,fsdp2", help="comma-separated")
    parser.add_argument("--warm", type=float, default=80.0, help="seconds gt may take to full speed")
    parser.add_argument("--json", type=Path, default=Path("gpu_parallel.json"))
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side in ("ddp", "fsdp2"):
        torch_side(args.side, args.workers)
    elif args.side:
        print("RESULT " + json.dumps(gt_side(args.side, args.workers, args.warm)), flush=True)
    else:
        import torch

        out: dict[str, Any] = {"workers": args.workers, "card": torch.cuda.get_device_name(), "torch": torch.__version__}
        for name in args.sides.split(","):
            out[name] = run(name, args.workers, args.warm)
            args.json.write_text(json.dumps(out))
        show(out)


if __name__ == "__main__":
    main()
