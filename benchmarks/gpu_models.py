"""The models of ``gpu.py``, written once for torch and gt: a library's ``nn`` and functional namespace come in.

Owns: models, their weights and batches, both made by NumPy so that every side starts from the same numbers.
Next: ``gpu_sides`` (training steps), ``gpu`` (the tables).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Gpt:
    vocab: int
    length: int
    layers: int
    width: int
    heads: int
    batch: int


GPTS = {
    "gpt-tiny": Gpt(65, 128, 4, 256, 4, 8),
    "gpt2-124m": Gpt(50304, 1024, 12, 768, 12, 16),
    "decoder-tiny": Gpt(64, 32, 2, 64, 4, 4),
    "decoder-d4096": Gpt(8192, 1024, 8, 4096, 32, 4),
}
CASES = ("mlp", "gpt-tiny", "gpt2-124m", "resnet18")
BATCHES = 4  # kept on the device, taken in turn


def batches(case: str, times: int = 1) -> list[tuple[Array, Array]]:
    """Give inputs and targets, of a batch ``times`` as large."""
    random = np.random.default_rng(1)
    if case in GPTS:
        c = GPTS[case]
        return [tuple(random.integers(0, c.vocab, (2, times * c.batch, c.length))) for _ in range(BATCHES)]  # type: ignore[misc]
    shape = (times * 128, 784) if case == "mlp" else (times * 128, 3, 32, 32)
    return [(random.standard_normal(shape, np.float32), random.integers(0, 10, shape[0])) for _ in range(BATCHES)]


def weights(named: Iterable[tuple[str, Any]]) -> dict[str, Array]:
    """Give a start value for each parameter by name: norms as they are, the rest small and random."""
    random = np.random.default_rng(0)
    out = {}
    for name, p in named:
        shape = tuple(p.shape)
        if len(shape) == 1:
            out[name] = np.full(shape, 0.0 if name.endswith("bias") else 1.0, np.float32)
        else:
            scale = 0.02 if len(shape) == 2 else (2 / np.prod(shape[1:])) ** 0.5
            out[name] = random.standard_normal(shape, np.float32) * np.float32(scale)
    return out


def make(case: str, lib: Any, nn: Any, F: Any) -> Any:  # noqa: N803 - as users import it
    """Give the model of a case, of a library's modules."""
    if case in GPTS:
        block = split_block if case.startswith("decoder") else gpt_block
        return gpt(GPTS[case], lib, nn, block(GPTS[case], nn, F))
    return mlp(nn) if case == "mlp" else resnet18(nn, F)


def mlp(nn: Any) -> Any:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def gpt_block(c: Gpt, nn: Any, F: Any) -> Any:  # noqa: N803
    """Give the class of a layer. A subclass may attend otherwise, by what follows ``x`` in a call."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            d = c.width
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def attend(self, q: Any, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def forward(self, x: Any, *given: Any) -> Any:
            B, T, D = x.shape
            q, k, v = self.qkv(self.ln1(x)).split(D, dim=2)
            q, k, v = (t.view(B, T, c.heads, D // c.heads).transpose(1, 2) for t in (q, k, v))
            y = self.attend(q, k, v, *given)
            x = x + self.proj(y.transpose(1, 2).reshape(B, T, D))
            return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))

    return Block


def split_block(c: Gpt, nn: Any, F: Any) -> Any:  # noqa: N803
    """Give the class of a layer that can be split among workers, each with some of the heads: by the names that
    ``examples/sharding/tensor.yaml`` splits."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            d = c.width
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, d, bias=False) for _ in range(3))
            self.o_proj = nn.Linear(d, d, bias=False)
            self.up_proj, self.down_proj = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

        def forward(self, x: Any) -> Any:
            B, T, D = x.shape
            a = self.ln1(x)
            q, k, v = (p(a).view(B, T, -1, D // c.heads).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
            x = x + self.o_proj(y.reshape(B, T, -1))
            return x + self.down_proj(F.gelu(self.up_proj(self.ln2(x)), approximate="tanh"))

    return Block


def gpt_model(c: Gpt, nn: Any, block: Any) -> Any:
    """Give the class of a model without its forward pass."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(c.vocab, c.width), nn.Embedding(c.length, c.width)
            self.blocks = nn.ModuleList([block() for _ in range(c.layers)])
            self.lnf, self.head = nn.LayerNorm(c.width), nn.Linear(c.width, c.vocab, bias=False)

    return Model


def gpt(c: Gpt, lib: Any, nn: Any, block: Any) -> Any:
    class Model(gpt_model(c, nn, block)):  # type: ignore[misc]
        def forward(self, index: Any) -> Any:
            x = self.wte(index) + self.wpe(lib.arange(index.shape[1], device=index.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.lnf(x))

    return Model()


def resnet18(nn: Any, F: Any) -> Any:  # noqa: N803
    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outside)
            self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outside)
            self.down = None
            if stride != 1 or inside != outside:
                self.down = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

        def forward(self, x: Any) -> Any:
            y = F.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            return F.relu(y + (x if self.down is None else self.down(x)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
            widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
            widths += [(256, 512, 2), (512, 512, 1)]
            self.blocks = nn.Sequential(*[Block(*w) for w in widths])
            self.fc = nn.Linear(512, 10)

        def forward(self, x: Any) -> Any:
            return self.fc(self.blocks(self.stem(x)).mean((2, 3)))

    return Model()
