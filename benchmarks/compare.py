"""Time gt beside plain torch on this machine, in one run, and print the ratios.

    python benchmarks/compare.py            # about ten minutes, most of them waiting for compilers
    python benchmarks/compare.py --quick    # half a minute: nothing is compiled by then, and figures are rough

Each row compares outputs before it times anything. Ratios are what counts: absolute times depend on the machine and on
what else it does. Rounds of gt and torch alternate, and each figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import gt
from gt.flush import flush
from gt.runtime.executor import engines
from gt.trace import state


@dataclass
class Row:
    name: str
    unit: str
    gt: float
    torch: float
    bound: str
    met: bool

    @property
    def ratio(self) -> float:
        return self.gt / self.torch


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(first: Callable[[], float], second: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Give the medians of two measurements taken in turn."""
    pairs = [(first(), second()) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def warm(work: Callable[[], object], seconds: float) -> None:
    """Repeat ``work`` until its program is compiled, at most for ``seconds``; compiling goes on beside running."""
    until = time.perf_counter() + seconds
    before = {p: p.stats.runs for engine in engines for p in engine.programs}
    while time.perf_counter() < until:
        for _ in range(10):
            work()
            time.sleep(0.001)
        programs = [p for engine in engines for p in engine.programs]
        program = max(programs, key=lambda p: p.stats.runs - before.get(p, 0))
        if program.pieces and all(piece.settled for piece in program.pieces):
            return


def same(got: np.ndarray, want: np.ndarray, what: str, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5, err_msg=f"{what}: gt and torch differ")


# -- recording


def mixed_ops(a: gt.Tensor, b: gt.Tensor, count: int) -> gt.Tensor:
    """Apply ``count`` ops of the kinds a model uses. Serves both libraries: they share these names."""
    for _ in range(count // 5):
        a = (a @ b).relu()
        a = a * 0.5 + b
        a = a - a.mean(dim=1, keepdim=True)  # two ops
    return a


def record(rounds: int, warm_s: float) -> Row:
    count = 500
    x, y = np.random.default_rng(0).standard_normal((2, 16, 16), dtype=np.float32)
    ga, gb, ta, tb = gt.from_numpy(x), gt.from_numpy(y), torch.from_numpy(x), torch.from_numpy(y)
    same(mixed_ops(ga, gb, 25).numpy(), mixed_ops(ta, tb, 25).numpy(), "mixed ops", rtol=1e-3)

    def once() -> float:
        out = None

        def work() -> None:
            nonlocal out
            out = mixed_ops(ga, gb, count)

        seconds = timed(work)
        assert out is not None
        out.numpy()  # runs what was recorded, outside the timing
        return seconds

    warm(once, warm_s)
    ours, theirs = alternate(once, lambda: timed(lambda: mixed_ops(ta, tb, count)), rounds)
    per_op = ours / (count // 5 * 6) * 1e6
    return Row("record one op", "us", per_op, theirs / (count // 5 * 6) * 1e6, "<= 5 us", per_op <= 5)


# -- a chain and a round trip


def chain(rounds: int, size: int, warm_s: float) -> Row:
    x = np.ones((size, size), dtype=np.float32)
    ga, ta = gt.from_numpy(x), torch.from_numpy(x)

    def adds(a: gt.Tensor) -> np.ndarray:
        h = a
        for _ in range(1000):
            h = h + a
        return h.numpy()

    same(adds(ga), adds(ta), "chain of adds")
    warm(lambda: adds(ga), warm_s)
    ours, theirs = alternate(lambda: timed(lambda: adds(ga)), lambda: timed(lambda: adds(ta)), rounds)
    return Row(f"1000 adds of {size}x{size}, one read", "ms", ours * 1e3, theirs * 1e3, "<= 1x torch", ours <= theirs)


def round_trip(rounds: int, warm_s: float) -> Row:
    x, y = np.random.default_rng(0).standard_normal((2, 32, 32), dtype=np.float32)
    ga, gb, ta, tb = gt.from_numpy(x), gt.from_numpy(y), torch.from_numpy(x), torch.from_numpy(y)
    same((ga + gb).numpy(), (ta + tb).numpy(), "a + b")
    warm(lambda: (ga + gb).numpy(), warm_s)
    ours, theirs = alternate(
        lambda: timed(lambda: (ga + gb).numpy()), lambda: timed(lambda: (ta + tb).numpy()), rounds * 50
    )
    return Row("a + b, read (p50)", "us", ours * 1e6, theirs * 1e6, "<= 250 us", ours * 1e6 <= 250)


# -- through a dispatcher


def dispatched(rounds: int) -> list[Row]:
    """Flush an add of two split values to two workers again and again, as steps do; and read a sum of two small ones, one at a time."""
    x, y = gt.from_numpy(np.zeros((64, 64), np.float32)), gt.ones(64, 64)
    tx, ty = torch.zeros(64, 64), torch.ones(64, 64)
    small, tsmall = gt.from_numpy(np.ones((4, 4), np.float32)), torch.ones(4, 4)

    def adds(h: Any, a: Any, submit: bool) -> None:
        for _ in range(1000):
            h = h + a
            if submit:
                flush(state.trace, "benchmark")
        np.testing.assert_array_equal(h.numpy(), np.full((64, 64), 1000.0))

    adds(x, y, True)
    ours, theirs = alternate(lambda: timed(lambda: adds(x, y, True)), lambda: timed(lambda: adds(tx, ty, False)), rounds)
    once, torchs = alternate(
        lambda: timed(lambda: (small + small).numpy()), lambda: timed(lambda: (tsmall + tsmall).numpy()), rounds * 50
    )
    return [
        Row("flush to 2 workers through a dispatcher", "us", ours * 1e3, theirs * 1e3, "<= 250 us", ours * 1e3 <= 250),
        Row("a + a there, read (p50)", "us", once * 1e6, torchs * 1e6, "<= 400 us", once * 1e6 <= 400),
    ]


# -- up and down


def transfer(rounds: int, where: str) -> Row:
    """Upload 64 MiB and read them back, beside torch's copying them twice."""
    x = np.random.default_rng(0).standard_normal(16 << 20, dtype=np.float32)
    there = torch.from_numpy(x)
    for _ in range(3):  # until memory that is used again is there
        same(gt.from_numpy(x).numpy(), x, "64 MiB up and down")
    ours, theirs = alternate(
        lambda: timed(lambda: gt.from_numpy(x).numpy()), lambda: timed(lambda: there.clone().clone().numpy()), rounds
    )
    return Row(f"64 MiB up and down, {where}", "ms", ours * 1e3, theirs * 1e3, "<= 2x torch", ours <= 2 * theirs)


# -- a training step


def mlp(lib: Any) -> Any:
    nn = lib.nn
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def digits_cnn(lib: Any) -> Any:
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


def char_gpt(lib: Any) -> Any:
    nn, F = lib.nn, lib.nn.functional

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            heads = self.qkv(self.ln1(x)).view(batch, length, 3, 4, WIDTH // 4)
            q, k, v = (heads[:, :, i].transpose(1, 2) for i in range(3))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
            return x + self.down(F.gelu(self.up(self.ln2(x))))

    class CharGpt(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(CHARS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.Sequential(Block(), Block())
            self.head = nn.Linear(WIDTH, CHARS)

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(self.tokens(x) + self.places.weight)).view(-1, CHARS)

    return CharGpt()


CHARS, LENGTH, WIDTH = 65, 64, 64


def images(random: np.random.Generator, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    return random.standard_normal(shape, dtype=np.float32), random.integers(0, 10, shape[0])


STEPS: dict[str, tuple[Callable[[Any], Any], Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]]] = {
    "MLP 784-256-10 step, B128": (mlp, lambda random: images(random, 128, 784)),
    "digits CNN step, 28x28, B64": (digits_cnn, lambda random: images(random, 64, 1, 28, 28)),
    "char-GPT step, 2 x 64, T64, B16": (
        char_gpt, lambda random: (random.integers(0, CHARS, (16, LENGTH)), random.integers(0, CHARS, 16 * LENGTH)),
    ),
}  # fmt: skip


def step(name: str, rounds: int, warm_s: float) -> Row:
    """A training step beside a compiled one of torch's, fused AdamW; losses of eight steps are compared first."""
    make, batch = STEPS[name]
    random = np.random.default_rng(0)
    data = [batch(random) for _ in range(8)]
    torch.manual_seed(0)
    theirs, ours = make(torch), make(gt)
    with gt.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.copy_(gt.from_numpy(other.detach().numpy()))
    compiled = torch.compile(theirs)

    def steps(lib: Any, model: Any, optimizer: Any, count: int) -> list[Any]:
        losses = []
        for i in range(count):
            x, y = data[i % len(data)]
            loss = lib.nn.functional.cross_entropy(model(lib.from_numpy(x)), lib.from_numpy(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        losses[-1].item()
        return losses

    mine, other = gt.optim.AdamW(ours.parameters(), lr=1e-3), torch.optim.AdamW(theirs.parameters(), lr=1e-3, fused=True)
    gt_steps, torch_steps = (lambda n: steps(gt, ours, mine, n)), (lambda n: steps(torch, compiled, other, n))
    same(np.array([loss.item() for loss in gt_steps(8)]), np.array([loss.item() for loss in torch_steps(8)]), f"losses: {name}", rtol=1e-3)
    warm(lambda: gt_steps(20), warm_s)
    gt_s, torch_s = alternate(lambda: timed(lambda: gt_steps(20)), lambda: timed(lambda: torch_steps(20)), rounds)
    return Row(name, "ms", gt_s / 20 * 1e3, torch_s / 20 * 1e3, "<= 1x compiled", gt_s <= torch_s)


def show(rows: list[Row]) -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, gt {gt.__version__}; embedded unless said otherwise")
    print(f"{'gt/torch':>9}  {'gt':>10}  {'torch':>10}      {'bound':<14} {'met':<4} what")
    for row in rows:
        print(
            f"{row.ratio:>8.2f}x  {row.gt:>10.3f}  {row.torch:>10.3f} {row.unit:<3}  "
            f"{row.bound:<14} {'yes' if row.met else 'NO':<4} {row.name}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time gt beside plain torch.")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--threads", type=int, help="torch's threads, for both sides")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rounds = 3 if args.quick else 21
    warm_s = 2.0 if args.quick else 180.0
    short_s = min(warm_s, 10.0)
    rows = [record(rounds, short_s), round_trip(rounds, short_s), chain(rounds, 64, warm_s), chain(rounds, 512, warm_s)]
    rows += [*(step(name, rounds, warm_s) for name in STEPS), transfer(rounds, "embedded")]
    gt.disconnect()
    gt.gpu_workers(1)
    rows.append(transfer(rounds, "through a worker process"))
    gt.disconnect()
    gt.gpu_workers(2)
    show([*rows, *dispatched(rounds)])


if __name__ == "__main__":
    main()
