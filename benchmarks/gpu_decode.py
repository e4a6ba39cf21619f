"""Greedy decoding, one prompt, with a static cache of keys and values: gt, ``gt.jit`` and torch.compile (reduce-overhead).

``limit`` is the fastest way known in plain torch: torch.compile, with products of one row and attention written as sums, which fuse with
what is around them.

    python benchmarks/gpu_decode.py
    python benchmarks/gpu_decode.py --device cpu --model small

One model, written once, bfloat16 weights. Each side runs in a process of its own. Logits of the same given tokens are compared
before anything is timed; a figure is the median of rounds of as many tokens as the cache has room for, waiting at a round's end.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpu import card
from gpu_models import Gpt, gpt_block, gpt_model, weights

MODELS = {"gpt2-124m": Gpt(50304, 512, 12, 768, 12, 1), "small": Gpt(101, 64, 2, 64, 2, 1)}
SIDES = ("gt", "gt.jit", "compile", "limit", "eager")
REACH = 1.2
GIVEN = 32  # tokens whose logits are compared
ATOL = 0.06  # of logits about 2 in size, in bfloat16 through twelve layers
Step = Callable[[Any, Any], tuple[Any, Any]]


def decoder(c: Gpt, lib: Any, nn: Any, F: Any) -> Any:  # noqa: N803 - as users import it
    """Give a decoder of one token at a time: (token [1, 1], place [1]) -> logits [1, vocabulary]."""
    shape = (1, c.heads, c.length, c.width // c.heads)

    class Block(gpt_block(c, nn, F)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", lib.zeros(shape))
            self.register_buffer("values", lib.zeros(shape))

        def attend(self, q: Any, k: Any, v: Any, at: Any, mask: Any) -> Any:
            self.keys[:, :, at], self.values[:, :, at] = k, v
            return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)

    class Decoder(gpt_model(c, nn, Block)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", lib.arange(c.length))

        def forward(self, token: Any, at: Any) -> Any:
            x = self.wte(token) + self.wpe(at)
            mask = (self.places <= at).view(1, 1, 1, -1)
            for block in self.blocks:
                x = block(x, at, mask)
            return self.head(self.lnf(x))[:, -1]

    return Decoder()


def gt_model(c: Gpt) -> tuple[Any, Any, Any]:
    import gt

    model = decoder(c, gt, gt.nn, gt.nn.functional)
    with gt.no_grad():
        for (_, p), w in zip(model.named_parameters(), weights(model.named_parameters()).values(), strict=True):
            p.copy_(gt.from_numpy(w))
    return gt, model.bfloat16(), gt.tensor


def torch_model(c: Gpt, device: str) -> tuple[Any, Any, Any]:
    import torch

    model = decoder(c, torch, torch.nn, torch.nn.functional)
    with torch.no_grad():
        for (_, p), w in zip(model.named_parameters(), weights(model.named_parameters()).values(), strict=True):
            p.copy_(torch.from_numpy(w))
    return torch, model.bfloat16().to(device), lambda value: torch.tensor(value, device=device)


def side(name: str, c: Gpt, device: str, warm_s: float) -> dict[str, Any]:
    lib, model, tensor = gt_model(c) if name.startswith("gt") else torch_model(c, device)

    def greedy(token: Any, at: Any) -> tuple[Any, Any]:
        return model(token, at).argmax(-1, keepdim=True), at + 1

    step: Step = greedy
    if name == "gt.jit":
        step = lib.jit(greedy)
    elif name in ("compile", "limit"):
        if name == "limit":
            as_sums(lib)
        compiled = lib.compile(greedy, mode="reduce-overhead", fullgraph=True)

        def step(token: Any, at: Any) -> tuple[Any, Any]:
            lib.compiler.cudagraph_mark_step_begin()
            token, at = compiled(token, at)
            return token.clone(), at.clone()  # a graph's own results are written again by its next run

    with lib.no_grad():
        given = np.random.default_rng(2).integers(0, c.vocab, GIVEN)
        logits = [model(tensor([[int(t)]]), tensor([i])).float().cpu().numpy().tolist() for i, t in enumerate(given)]
        begin = time.perf_counter()
        tokens = generate(step, lib, tensor, 8)
        first = time.perf_counter() - begin
        until = time.perf_counter() + warm_s
        while time.perf_counter() < until:
            generate(step, lib, tensor, c.length - 1)
        times = []
        for _ in range(7):
            begin = time.perf_counter()
            tokens = generate(step, lib, tensor, c.length - 1)
            times.append((time.perf_counter() - begin) / (c.length - 1))
    return {"version": lib.__version__, "logits": logits, "tokens": tokens, "first_s": first, "ms": statistics.median(times) * 1e3}


def as_sums(torch: Any) -> None:
    """Have torch's functions compute products of one row as sums."""

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        x = x.as_strided(x.shape, x.stride())  # written down once, not computed again for each row of the weight
        y = (x.float().unsqueeze(-2) * weight.float()).sum(-1)
        return (y if bias is None else y + bias.float()).to(x.dtype)

    def attention(q: Any, k: Any, v: Any, attn_mask: Any) -> Any:
        scores = (q.float().unsqueeze(3) * k.float().unsqueeze(2)).sum(-1) * q.shape[-1] ** -0.5
        seen = scores.masked_fill(~attn_mask, float("-inf")).softmax(-1)
        return (seen.unsqueeze(-1) * v.float().unsqueeze(2)).sum(3).to(q.dtype)

    torch.nn.functional.linear, torch.nn.functional.scaled_dot_product_attention = linear, attention


def generate(step: Step, lib: Any, tensor: Any, count: int) -> list[int]:
    """Give the tokens that follow token 1, one after the other; they are read at the end, at once."""
    token, at = tensor([[1]]), tensor([0])
    out = []
    for _ in range(count):
        token, at = step(token, at)
        out.append(token)
    tokens: list[int] = lib.cat(out).flatten().tolist()
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode greedily with gt and torch.")
    parser.add_argument("--model", choices=MODELS, default="gpt2-124m")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--warm", type=float, default=25.0, help="seconds to full speed")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print("RESULT", json.dumps(side(args.one, MODELS[args.model], args.device, args.warm)))
        return
    found: dict[str, Any] = {}
    here = Path(__file__).resolve()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])}
    for name in args.sides.split(","):
        command = [sys.executable, str(here), "--one", name, "--model", args.model, "--device", args.device, "--warm", str(args.warm)]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if lines:
            found[name] = json.loads(lines[-1].removeprefix("RESULT "))
        else:
            print(f"{name} failed\n{done.stderr[-3000:]}", flush=True)
    reference = next((np.array(found[n]["logits"]) for n in ("eager", "compile") if n in found), None)
    print(f"greedy decoding, {args.model}, one prompt, bfloat16   {card(args.device)}, {datetime.date.today().isoformat()}")
    against = found.get("compile", {}).get("ms")
    for name, r in found.items():
        off = float("nan") if reference is None else float(np.abs(np.array(r["logits"]) - reference).max())
        ratio = f"{against / r['ms']:5.2f}x" if against else ""
        verdict = "" if not off > ATOL else " DIFFER"
        print(f"  {ratio}  {r['ms']:7.3f} ms per token, {1e3 / r['ms']:6.0f} tokens/s  {name:<8} {r['version']}  logits within {off:.1e}{verdict}")
    if against and "gt" in found:
        best = max(against / found[n]["ms"] for n in ("gt", "gt.jit") if n in found)
        print(f"  against torch.compile {best:.2f}x, asked {REACH}x: {'reached' if best >= REACH else 'NOT reached'}")
    if args.json:
        args.json.write_text(json.dumps({k: {**v, "logits": None} for k, v in found.items()}))


if __name__ == "__main__":
    main()
