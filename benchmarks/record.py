"""Time recording by itself: what ordinary code costs before anything runs.

    python benchmarks/record.py              # about a minute
    python benchmarks/record.py --profile    # where the time of recording a GPT-2 step goes

GPT-2 124M is recorded at its full size, forward, backward and AdamW; it runs on two tokens between the timings, and its first
loss is compared with torch's cross entropy on the same logits. Figures are medians; the client shares the machine with the worker,
so each step is timed while the worker is idle; on a CPU it hands over to a dispatcher in this process, whose work is in that time too.
Steps are also timed as a loop makes them, one after the other, with dispatcher and worker in processes of their own: in the time the
recording thread itself computes, for it waits when it is too far ahead.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gt
from examples.models.gpt2 import GPT2, Config
from gt import session as sessions
from gt.nn import functional as F  # noqa: N812
from gt.rule import RULES
from gt.trace import state

NONE = float("nan")  # no bound
TOKENS = np.random.default_rng(0).integers(0, 50257, (1, 2))


class Step:
    """A training step of GPT-2 124M."""

    def __init__(self) -> None:
        gt.manual_seed(0)
        self.model = GPT2(Config(dropout=0.0))
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.tokens, self.targets = gt.from_numpy(TOKENS), gt.from_numpy(TOKENS[:, ::-1].copy())

    def __call__(self) -> gt.Tensor:
        logits = self.model(self.tokens)
        loss = F.cross_entropy(logits.reshape(-1, 50257), self.targets.reshape(-1))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def check(self) -> None:
        """Compare a loss with torch's on the same logits."""
        logits, loss = self.model(self.tokens).detach().numpy(), self().item()
        want = torch.nn.functional.cross_entropy(torch.from_numpy(logits[0]), torch.from_numpy(TOKENS[0, ::-1].copy())).item()
        assert abs(loss - want) < 1e-4, f"gt's loss {loss}, torch's {want}"


def median(samples: list[float], scale: float) -> float:
    return statistics.median(samples) * scale


@contextmanager
def timed(samples: list[float]) -> Iterator[None]:
    """Time each call that records, as the model makes it; a call that records several ops counts as as many."""
    places = [(gt.Tensor, n) for n in ("__add__", "__matmul__", "reshape", "transpose", "chunk")]
    places += [(F, n) for n in ("layer_norm", "gelu", "scaled_dot_product_attention", "embedding", "linear")]
    kept = [(place, name, getattr(place, name)) for place, name in places]

    def timing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = len(state.trace.code)
            start = time.perf_counter()
            out = function(*args, **kwargs)
            spent = time.perf_counter() - start
            ops = sum(RULES[id >> 1].op is not None for id, _ in state.trace.code[before:])
            samples.extend([spent / max(ops, 1)] * ops)
            return out

        return call

    for place, name, function in kept:
        setattr(place, name, timing(function))
    try:
        yield
    finally:
        for place, name, function in kept:
            setattr(place, name, function)


def gpt2(rounds: int) -> list[tuple[str, float, str, float]]:
    step = Step()
    step.check()
    forward, whole, single, ops = [], [], [], 0
    for _ in range(rounds):
        idle()
        with timed(single):
            step.model(step.tokens)
    for _ in range(rounds):
        idle()
        start = time.perf_counter()
        step.model(step.tokens)
        forward.append(time.perf_counter() - start)
        ops = sum(RULES[id >> 1].op is not None for id, _ in state.trace.code)
        idle()
        start = time.perf_counter()
        step()
        whole.append(time.perf_counter() - start)
    rows = [
        (f"record one op of GPT-2's forward, p50 of its {len(single) // rounds} ops", median(single, 1e6), "us", 5),
        (f"the same with the layers around it: the forward by its {ops} ops", median(forward, 1e6) / ops, "us", NONE),
        ("record a GPT-2 124M step and hand it over, after a wait", median(whole, 1e3), "ms", 2.5),
    ]
    return rows


def looped() -> list[tuple[str, float, str, float]]:
    """Time a step in a loop of steps: alone, and with its work in a worker process, as on a GPU, in CPU time of the recording thread."""
    rows = []
    for name, call in (("recorded alone: a session that runs nothing", "alone(300)"), ("its work in a worker process (CPU time)", "with_a_worker(20)")):
        code = f"import benchmarks.record as r; print(r.{call})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).resolve().parent.parent)
        rows.append((f"the same in a loop of steps, {name}", float(done.stdout), "ms", 2.5))
    return rows


def alone(count: int) -> float:
    step = Step()
    step.check()
    session: Any = sessions.current()
    session.run = session.free = lambda *given: None  # from here on no value is ever there
    return loop(step, count, time.perf_counter)


def with_a_worker(count: int) -> float:
    gt.gpu_workers(1)
    step = Step()
    step.check()
    return loop(step, count, time.thread_time)


def loop(step: Step, count: int, clock: Callable[[], float]) -> float:
    """Give the median ms of steps one after the other, without the first quarter."""
    times = []
    for _ in range(count):
        start = clock()
        step()
        times.append(clock() - start)
    return median(times[count // 4 :], 1e3)


def idle() -> None:
    """Wait until everything has run: runs of a session are in order."""
    gt.ones(1).sum().item()


def chain(rounds: int, count: int = 10_000) -> tuple[str, float, str, float]:
    x = np.ones((64, 64), dtype=np.float32)
    ga, ta = gt.from_numpy(x), torch.from_numpy(x)

    def ours() -> np.ndarray:
        h = ga
        for _ in range(count):
            h = h + ga
        return h.numpy()

    def theirs() -> np.ndarray:
        h = ta
        for _ in range(count):
            h = h + ta
        return h.numpy()

    np.testing.assert_array_equal(ours(), theirs())
    pairs = []
    for _ in range(rounds):
        start = time.perf_counter()
        ours()
        middle = time.perf_counter()
        theirs()
        pairs.append((middle - start, time.perf_counter() - middle))
    mine, other = (median([p[i] for p in pairs], 1e3) for i in (0, 1))
    return (f"{count} adds of 64x64, one read ({mine:.0f} ms; torch {other:.0f} ms)", mine / other, "x torch", 3)


def first(count: int = 10_000) -> list[tuple[str, float, str, float]]:
    """Time loops that have not been met before: they are recorded, planned, loaded and run."""
    x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)

    def mixed(t: Any, x: Any) -> Any:
        for _ in range(count // 4):
            x = t.relu(((x + 1) * 0.5).sin())
        return x

    def recurrent(t: Any, x: Any) -> Any:
        h = w = x * 0.1
        for _ in range(count // 8):
            h = t.tanh(x @ w + h @ w)
            z = t.sigmoid(h)
            h = h * z + (1 - z) * x
        return h

    rows = []
    for name, loop in (("four ops in turn", mixed), ("a recurrent cell", recurrent)):
        theirs, ours = [], []
        for size in (8, 7, 6):
            for t, of, times in ((torch, torch.from_numpy, theirs), (gt, gt.from_numpy, ours)):
                start = time.process_time()
                loop(t, of(x[:size, :size].copy())).numpy()
                times.append(time.process_time() - start)
        mine, other = median(ours, 1e3), median(theirs, 1e3)
        rows.append((f"a loop of {count} ops met first, {name} ({mine:.0f} ms; torch {other:.0f} ms; CPU time)", mine / other, "x torch", NONE))
    return rows


def importing(rounds: int = 7) -> tuple[str, float, str, float]:
    code = "import time; t = time.perf_counter(); import gt; print(time.perf_counter() - t); import sys; assert 'torch' not in sys.modules"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # as it is once installed
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env) for _ in range(rounds)]
    times = [float(run.stdout) for run in runs]
    return ("import gt, without torch", median(times, 1), "s", 0.3)


def profile() -> None:
    step = Step()
    step().item()
    profiler = cProfile.Profile()
    for _ in range(20):
        profiler.enable()
        loss = step()
        profiler.disable()
        loss.item()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time recording.")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    if args.profile:
        profile()
        return
    rows = [importing(), *gpt2(args.rounds), *looped(), chain(args.rounds), *first()]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, gt {gt.__version__}, Python {sys.version.split()[0]}")
    for name, value, unit, bound in rows:
        met = "" if bound != bound else f"  <= {bound:g}  {'yes' if value <= bound else 'NO'}"
        print(f"{value:8.2f} {unit:<8} {name}{met}")


if __name__ == "__main__":
    main()
