"""What ``gpu.py`` runs in a process of its own: one side (gt, torch, jax) of one case, as its users would write it.

Prints one JSON line. Owns: training steps and their timing. Next: ``gpu_models`` (models), ``gpu`` (who asks).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from gpu_models import GPTS, batches, make, weights

CURVE = 20  # steps whose losses are compared
LR = 1e-4
Step = Callable[[int], Any]  # takes the step's number, gives the loss


def curve(step: Step) -> tuple[list[float], float]:
    """Give the losses of the first steps, and the seconds until the first was finished."""
    start = time.perf_counter()
    losses = [float(step(0))]
    first = time.perf_counter() - start
    return [*losses, *(float(step(i)) for i in range(1, CURVE))], first


def speed(step: Step, seconds: float = 4.0, at_least: int = 30, rounds: int = 7) -> float:
    """Give ms per step: the median of rounds of steps in a row, the last of which is waited for."""
    once = time.perf_counter()
    float(step(0))
    count = max(at_least, min(400, int(seconds / rounds / max(time.perf_counter() - once, 1e-5))))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for i in range(count):
            loss = step(i)
        float(loss)
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times) * 1e3


def profile(step: Step, path: str) -> None:
    """Write where the device's time goes in five steps, if a path is given."""
    if not path:
        return
    import torch

    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as found:
        start = time.perf_counter()
        for i in range(5):
            loss = step(i)
        float(loss)
        torch.cuda.synchronize()
        wall = time.perf_counter() - start
    events = found.key_averages()
    busy = sum(e.self_device_time_total for e in events) / 5e3
    with open(path, "w") as file:
        print(f"ms per step: {wall / 5e-3:.3f}, device busy {busy:.3f}", file=file)
        print(events.table(sort_by="self_device_time_total", row_limit=40, max_name_column_width=90), file=file)


def torch_side(case: str, device: str, modes: list[str], profiles: str) -> dict[str, Any]:
    import torch

    torch.set_float32_matmul_precision("high")
    out: dict[str, Any] = {"version": torch.__version__}
    for mode in modes:
        torch._dynamo.reset()
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        step = torch_step(case, device, mode)
        losses, first = curve(step)
        out[mode] = {"losses": losses, "first_s": first, "ms": speed(step), **memory(device == "cuda")}
        profile(step, profiles and f"{profiles}/{case}-{mode}.txt")
        del step
    return out


def torch_step(case: str, device: str, mode: str) -> Step:
    import torch

    model = torch_model(case).to(device)
    data = [tuple(torch.from_numpy(a).to(device) for a in pair) for pair in batches(case)]
    if case == "resnet18":
        model = model.to(memory_format=torch.channels_last)
        data = [(x.to(memory_format=torch.channels_last), y) for x, y in data]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    if mode != "eager":
        model = torch.compile(model, mode=None if mode == "compile" else mode)
    return torch_training(model, optimizer, data, device)


def torch_model(case: str) -> Any:
    """Give a case's model with the weights that all sides start from."""
    import torch

    model = make(case, torch, torch.nn, torch.nn.functional)
    with torch.no_grad():
        for (_, p), w in zip(model.named_parameters(), weights(model.named_parameters()).values(), strict=True):
            p.copy_(torch.from_numpy(w))
    return model


def torch_training(model: Any, optimizer: Any, data: list[tuple[Any, ...]], device: str, autocast: bool = True) -> Step:
    import torch

    def step(i: int) -> Any:
        x, y = data[i % len(data)]
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            logits = model(x)
            loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]).float(), y.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def memory(cuda: bool) -> dict[str, float]:
    """Give GiB: the most that tensors held, and what the process holds now that everything has run."""
    if not cuda:
        return {}
    import torch

    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.empty_cache()
    return {"peak_gib": peak, "reserved_gib": torch.cuda.memory_reserved() / 2**30}


def gt_step(case: str, device: str, jit: bool, times: int = 1, signal: str = "") -> Step:
    """Give a training step. ``times``: how much larger the batch is; ``signal``: what it is made under."""
    import gt
    import gt.nn.functional as F

    model = make(case, gt, gt.nn, F)
    with gt.no_grad():
        for (_, p), w in zip(model.named_parameters(), weights(model.named_parameters()).values(), strict=True):
            p.copy_(gt.from_numpy(w))
    with gt.signal.context(signal) if signal else contextlib.nullcontext():
        data = [tuple(gt.from_numpy(a) for a in pair) for pair in batches(case, times)]
    optimizer = gt.optim.AdamW(model.parameters(), lr=LR)

    def train(x: Any, y: Any) -> Any:
        with gt.autocast(device, dtype=gt.bfloat16):
            logits = model(x)
            loss = F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), y.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    call = gt.jit(train) if jit else train
    return lambda i: call(*data[i % len(data)])


def gt_side(case: str, device: str, warm_s: float) -> dict[str, Any]:
    """Time gt as a script gets it: on a GPU, its work runs in a worker process."""
    import gt

    found: dict[str, Any] = {"version": gt.__version__}
    for name, jit in (("gt", False), ("gt.jit", True)):
        step = gt_step(case, device, jit)
        started = time.perf_counter()
        losses, first = curve(step)
        early = speed(step, seconds=0.5, at_least=10, rounds=3)
        full = settled_after(step, started, warm_s if not jit else warm_s / 2)
        found[name] = {"losses": losses, "first_s": first, "early_ms": early, "full_s": full, "ms": speed(step), **cpu_times(step)}
        late = [float(step(i)) for i in range(3)]
        assert all(np.isfinite(late)), late
    return found


def embedded_side(case: str, device: str, warm_s: float, profiles: str) -> dict[str, Any]:
    """Run gt in this process, where what its programs have become and the memory they hold can be seen."""
    import gt

    started = time.perf_counter()
    step = gt_step(case, device, jit=False)
    losses, first = curve(step)
    until = time.perf_counter() + warm_s
    while time.perf_counter() < until and not hot(program := hottest()):
        settled_after(step, started, 1.0)
    stats = program.stats
    out = {
        "losses": losses, "first_s": first, "ms": speed(step), "tier": program.tier, "pieces": stats.pieces,
        "compiled_pieces": stats.compiled_pieces, "notes": stats.notes, "compile_s": stats.compile_s,
        **cpu_times(step), **memory(device == "cuda"),
    }  # fmt: skip
    profile(step, profiles and f"{profiles}/{case}-gt.txt")
    return {"version": gt.__version__, "embedded": out}


def cpu_times(step: Step, count: int = 100) -> dict[str, float]:
    """Give the CPU ms a step costs: in this thread, which records, and in the whole process."""
    mine, all_ = time.thread_time(), time.process_time()
    for i in range(count):
        loss = step(i)
    mine = time.thread_time() - mine
    float(loss)
    return {"recording_ms": mine / count * 1e3, "process_ms": (time.process_time() - all_) / count * 1e3}


def hottest() -> Any:
    """Give the loaded program that ran most; its stats say which tier it has reached."""
    from gt.runtime.executor import engines

    return max((p for engine in engines for p in engine.programs), key=lambda p: p.stats.runs)


def hot(program: Any) -> bool:
    """Say whether a program has been compiled and captured, or will not be."""
    return all(p.settled for p in program.pieces) and (program.tier == "graph" or program.unit is None or program.unit.given_up)


def settled_after(step: Step, started: float, seconds: float) -> float:
    """Run for so long; give the seconds from ``started`` to the first step as fast as the last ones, within 5%."""
    until, windows = time.perf_counter() + seconds, []
    while time.perf_counter() < until:
        begin = time.perf_counter()
        for i in range(10):
            loss = step(i)
        float(loss)
        windows.append((begin, time.perf_counter() - begin))
    last = statistics.median(took for _, took in windows[-10:])
    slow = [i for i in range(len(windows) - 2) if min(took for _, took in windows[i : i + 3]) > 1.05 * last]
    return windows[slow[-1] + 1 if slow else 0][0] - started


def jax_side(case: str) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import torch

    c, bf = GPTS[case], jnp.bfloat16
    shapes = make(case, torch, torch.nn, torch.nn.functional)
    p = {name: jnp.asarray(w) for name, w in weights(shapes.named_parameters()).items()}
    m, v = (jax.tree.map(jnp.zeros_like, p) for _ in range(2))
    data = [tuple(jnp.asarray(a.astype(np.int32)) for a in pair) for pair in batches(case)]

    def linear(p: Any, name: str, x: Any) -> Any:
        return x @ p[f"{name}.weight"].T.astype(bf) + p[f"{name}.bias"].astype(bf)

    def norm(p: Any, name: str, x: Any) -> Any:
        x = x.astype(jnp.float32)
        centered = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
        return (centered * scale * p[f"{name}.weight"] + p[f"{name}.bias"]).astype(bf)

    def loss_of(p: Any, x: Any, y: Any) -> Any:
        B, T = x.shape
        h = p["wte.weight"][x] + p["wpe.weight"][:T]
        for i in range(c.layers):
            n = f"blocks.{i}."
            parts = jnp.split(linear(p, n + "qkv", norm(p, n + "ln1", h)), 3, -1)
            q, k, w = (t.reshape(B, T, c.heads, c.width // c.heads) for t in parts)
            a = jax.nn.dot_product_attention(q, k, w, is_causal=True, implementation="cudnn")
            h = h + linear(p, n + "proj", a.reshape(B, T, c.width))
            h = h + linear(p, n + "out", jax.nn.gelu(linear(p, n + "fc", norm(p, n + "ln2", h))))
        logits = (norm(p, "lnf", h) @ p["head.weight"].T.astype(bf)).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def train(p: Any, m: Any, v: Any, x: Any, y: Any, t: Any) -> Any:
        loss, g = jax.value_and_grad(loss_of)(p, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        c1, c2 = 1 - 0.9**t, 1 - 0.999**t
        new = lambda p, m, v: p * (1 - LR * 0.01) - LR * (m / c1) / (jnp.sqrt(v / c2) + 1e-8)  # noqa: E731
        return jax.tree.map(new, p, m, v), m, v, loss

    count = 0

    def step(i: int) -> Any:
        nonlocal p, m, v, count
        count += 1
        p, m, v, loss = train(p, m, v, *data[i % len(data)], float(count))
        return loss

    losses, first = curve(step)
    return {"jax": {"losses": losses, "first_s": first, "ms": speed(step)}, "version": jax.__version__}


def main() -> None:
    side, case, device, warm_s, profiles = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5]
    if side == "gt":
        out = gt_side(case, device, warm_s)
    elif side == "embedded":
        out = embedded_side(case, device, warm_s, profiles)
    elif side == "jax":
        out = jax_side(case)
    else:
        out = torch_side(case, device, side.split("+"), profiles)
    print("RESULT " + json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
