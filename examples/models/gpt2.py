"""GPT-2 on gt.nn, with the parameter names of Hugging Face's `transformers`, so that its checkpoints load as they are.

    from safetensors.numpy import load_file
    model = GPT2(Config())
    model.load_state_dict(load_file("gpt2/model.safetensors"))
    tokens = model.generate(gt.tensor([[464, 2068]]), 20)

Source: Radford et al. 2019, "Language models are unsupervised multitask learners".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import gt
from examples.models.cache import Cache
from gt import nn
from gt.nn import functional as F  # noqa: N812


@dataclass(frozen=True)
class Config:
    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    dropout: float = 0.1
    layer_norm_epsilon: float = 1e-5


class Conv1D(nn.Module):
    """A linear layer whose weight is stored as [in, out]."""

    def __init__(self, out_features: int, in_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(gt.empty(in_features, out_features))
        self.bias = nn.Parameter(gt.zeros(out_features))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.n_head
        self.c_attn = Conv1D(3 * config.n_embd, config.n_embd)
        self.c_proj = Conv1D(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x: gt.Tensor, cache: Cache | None) -> gt.Tensor:
        b, s, width = x.shape
        q, k, v = (t.reshape(b, s, self.heads, width // self.heads).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        if cache is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            k, v = cache.update(self.layer, k, v)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=cache.mask)
        return self.resid_dropout(self.c_proj(out.transpose(1, 2).reshape(b, s, width)))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.c_fc = Conv1D(4 * config.n_embd, config.n_embd)
        self.c_proj = Conv1D(config.n_embd, 4 * config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))


class Block(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: gt.Tensor, cache: Cache | None) -> gt.Tensor:
        x = x + self.attn(self.ln_1(x), cache)
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """Logits of the next token: [batch, tokens] -> [batch, tokens, vocabulary]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(config.vocab_size, config.n_embd),
            "wpe": nn.Embedding(config.n_positions, config.n_embd),
            "drop": nn.Dropout(config.dropout),
            "h": nn.ModuleList(Block(config, i) for i in range(config.n_layer)),
            "ln_f": nn.LayerNorm(config.n_embd, config.layer_norm_epsilon),
        })  # fmt: skip
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight  # one table reads and writes
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * config.n_layer))
            elif name.endswith(("wte.weight", "wpe.weight")):
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: gt.Tensor, cache: Cache | None = None) -> gt.Tensor:
        parts = self.transformer
        at = cache.begin(tokens.shape[1]) if cache is not None else gt.arange(tokens.shape[1])
        x = parts["drop"](parts["wte"](tokens) + parts["wpe"](at))
        for block in parts["h"]:
            x = block(x, cache)
        return self.lm_head(parts["ln_f"](x))

    @gt.no_grad()
    def generate(self, tokens: gt.Tensor, count: int) -> gt.Tensor:
        """Append the `count` likeliest tokens, one after the other."""
        c, (batch, start) = self.config, tokens.shape
        cache = Cache(c.n_layer, batch, c.n_head, start + count, c.n_embd // c.n_head)
        new, out = tokens, [tokens]
        for _ in range(count):
            new = self(new, cache)[:, -1:].argmax(-1)
            new.tolist()  # a person would want to see it; the next step is the same graph
            out.append(new)
        return gt.cat(out, 1)
