"""Train a model on several GPUs of one host with gt and with torch, in one run, and print the ratios.

    python benchmarks/gpu_parallel.py --workers 2                          # every side of GPT-2 124M, about eight minutes
    python benchmarks/gpu_parallel.py --workers 2 --sides one,data,ddp     # some
    python benchmarks/gpu_parallel.py --workers 2 --case decoder-d4096     # eight layers of width 4096, each split among the GPUs

GPT-2: each GPU has 16 rows of the batch. ``one``: gt on one GPU; ``data``, ``fsdp``: gt on all, by the YAML files of
``examples/sharding``; ``ddp``: DistributedDataParallel under torch.compile; ``fsdp2``: fully_shard with compiled blocks; both with
fused AdamW. Decoder: ``tensor``: gt by ``tensor.yaml``; ``dtensor``: column- and row-wise DTensors under torch.compile, fused
AdamW; all GPUs have the same four rows. Losses of the first 20 steps are compared with torch's before anything is timed. Memory is what the card's processes
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
CONFIGS = {"data": "data.yaml", "fsdp": "fsdp.yaml", "tensor": "tensor.yaml"}
SIDES = {"gpt2-124m": "one,data,ddp,fsdp,fsdp2", "decoder-d4096": "one,tensor,dtensor", "decoder-tiny": "one,tensor,dtensor"}
ASKED = (("data", "ddp", 1.3), ("fsdp", "fsdp2", 1.5), ("tensor", "dtensor", 1.1))
RTOL = 2e-2  # of a loss after up to 20 steps in bfloat16


def gt_side(case: str, name: str, workers: int, warm_s: float) -> dict[str, Any]:
    import gt

    if name == "one":
        gt.gpu_workers(1)
    else:
        gt.gpu_workers(workers)
        gt.load_config(str(HERE.parent / "examples" / "sharding" / CONFIGS[name]))
    step = gt_step(case, "cuda", False, 1 if name in ("one", "tensor") else workers, "" if name == "one" else "batch")
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


def torch_rank(rank: int, case: str, name: str, workers: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=workers)
    model = torch_model(case).cuda()
    if name == "dtensor":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        columns, rows = ("q_proj", "k_proj", "v_proj", "up_proj"), ("o_proj", "down_proj")
        plan = {**{n: ColwiseParallel() for n in columns}, **{n: RowwiseParallel() for n in rows}}
        for block in model.blocks:
            parallelize_module(block, init_device_mesh("cuda", (workers,)), plan)
        model = torch.compile(model)
    elif name == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
        model = torch.compile(model)
    else:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            block.compile()
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    split = [[p for p in model.parameters() if hasattr(p, "placements") is d] for d in (True, False)]  # one kernel takes one kind
    optimizer = torch.optim.AdamW([{"params": params} for params in split if params], lr=LR, fused=True)
    shares = 1 if name == "dtensor" else workers
    own = [[np.array_split(a, shares)[rank % shares] for a in pair] for pair in batches(case, shares)]
    data = [tuple(torch.from_numpy(a).cuda() for a in pair) for pair in own]
    step = torch_training(model, optimizer, data, "cuda", autocast=name != "fsdp2")
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


def torch_side(case: str, name: str, workers: int) -> None:
    import torch.multiprocessing as mp

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(torch_rank, (case, name, workers, port), nprocs=workers, join=True)


def run(case: str, name: str, workers: int, warm_s: float) -> dict[str, Any]:
    """Run one side in a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])}
    command = [sys.executable, __file__, "--case", case, "--side", name, "--workers", str(workers), "--warm", str(warm_s)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        print(f"{name} failed\n{done.stderr[-3000:]}", flush=True)
        return {}
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def show(out: dict[str, Any]) -> None:
    base = next((name for name in ("ddp", "dtensor", "fsdp2") if out.get(name)), "")
    print(f"\n{out['case']}, {out['workers']} x {out['card']}, torch {out['torch']}")
    for name in SIDES[out["case"]].split(","):
        found = out.get(name)
        if not found:
            continue
        text = f"  {found['ms']:8.2f} ms  {name:<7} first step {found['first_s']:5.1f} s, {found['used_gib']:6.2f} GiB in use"
        if name in ("data", "fsdp") and out.get("one"):
            text += f", scaling {100 * out['one']['ms'] / found['ms']:.1f}%"
        if base and (name != "one" or base == "dtensor"):
            off = float(np.max(np.abs(np.array(found["losses"]) / np.array(out[base]["losses"]) - 1)))
            text += f", losses within {off:.1e} of {base}'s" + ("" if off <= RTOL else " DIFFER")
        print(text)
    for ours, theirs, asked in ASKED:
        if out.get(ours) and out.get(theirs):
            ratio = out[theirs]["ms"] / out[ours]["ms"]
            print(f"  {ours} against {theirs}: {ratio:.2f}x, asked {asked}x: {'reached' if ratio >= asked else 'NOT reached'}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a model on several GPUs with gt and torch.")
    parser.add_argument("--case", choices=SIDES, default="gpt2-124m")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sides", help="comma-separated; by default all of the case's")
    parser.add_argument("--warm", type=float, default=80.0, help="seconds gt may take to full speed")
    parser.add_argument("--json", type=Path, default=Path("gpu_parallel.json"))
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side in ("ddp", "fsdp2", "dtensor"):
        torch_side(args.case, args.side, args.workers)
    elif args.side:
        print("RESULT " + json.dumps(gt_side(args.case, args.side, args.workers, args.warm)), flush=True)
    else:
        import torch

        out: dict[str, Any] = {"case": args.case, "workers": args.workers, "card": torch.cuda.get_device_name(), "torch": torch.__version__}
        for name in (args.sides or SIDES[args.case]).split(","):
            out[name] = run(args.case, name, args.workers, args.warm)
            args.json.write_text(json.dumps(out))
        show(out)


if __name__ == "__main__":
    main()
