"""Llama and Qwen3 decoders on gt.nn, with the parameter names of Hugging Face's `transformers`.

    from safetensors.numpy import load_file
    model = Llama(Config(vocab_size=49152, hidden_size=576, ...))
    model.load_state_dict(load_file("model.safetensors"))
    tokens = model.generate(gt.tensor([[1, 338]]), 20)

Qwen3 is Llama with a norm on queries and keys: `Config(qk_norm=True)`. Source: Touvron et al. 2023; Qwen team 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

import gt
from examples.models.cache import Cache
from gt import nn
from gt.nn import functional as F  # noqa: N812


@dataclass(frozen=True)
class Config:
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    qk_norm: bool = False


def rotary(at: gt.Tensor, width: int, theta: float) -> tuple[gt.Tensor, gt.Tensor]:
    """Cosines and sines of every position: [tokens, width] each."""
    inverse = 1.0 / theta ** (gt.arange(0, width, 2).float() / width)
    angles = at.float().unsqueeze(1) * inverse
    angles = gt.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: gt.Tensor, cos: gt.Tensor, sin: gt.Tensor) -> gt.Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + gt.cat([-right, left], -1) * sin


class Attention(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.layer, self.config = layer, config
        width, heads, shared = config.head_dim, config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(config.hidden_size, heads * width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, shared * width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, shared * width, bias=False)
        self.o_proj = nn.Linear(heads * width, config.hidden_size, bias=False)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(width, config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(width, config.rms_norm_eps)

    def forward(self, x: gt.Tensor, turn: tuple[gt.Tensor, gt.Tensor], cache: Cache | None) -> gt.Tensor:
        b, s, _ = x.shape
        q, k, v = (p(x).reshape(b, s, -1, self.config.head_dim) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = rotate(q, *turn), rotate(k, *turn)
        if cache is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            k, v = cache.update(self.layer, k, v)
            shared = q.reshape(b, k.shape[1], -1, q.shape[-1])  # heads that share a key are its rows: no key is repeated
            mask = cache.mask.repeat(shared.shape[2] // s, 1)
            out = F.scaled_dot_product_attention(shared, k, v, attn_mask=mask).reshape(q.shape)
        return self.o_proj(out.transpose(1, 2).reshape(b, s, -1))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: gt.Tensor, turn: tuple[gt.Tensor, gt.Tensor], cache: Cache | None) -> gt.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Logits of the next token: [batch, tokens] -> [batch, tokens, vocabulary]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(config.vocab_size, config.hidden_size),
            "layers": nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers)),
            "norm": nn.RMSNorm(config.hidden_size, config.rms_norm_eps),
        })  # fmt: skip
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model["embed_tokens"].weight

    def hidden(self, tokens: gt.Tensor, cache: Cache | None = None) -> gt.Tensor:
        at = cache.begin(tokens.shape[1]) if cache is not None else gt.arange(tokens.shape[1])
        turn = rotary(at, self.config.head_dim, self.config.rope_theta)
        x = self.model["embed_tokens"](tokens)
        for block in self.model["layers"]:
            x = block(x, turn, cache)
        return self.model["norm"](x)

    def forward(self, tokens: gt.Tensor, cache: Cache | None = None) -> gt.Tensor:
        return self.lm_head(self.hidden(tokens, cache))

    def cache(self, length: int, batch: int = 1) -> Cache:
        """Make room for the keys and values of `length` tokens."""
        return Cache(self.config.num_hidden_layers, batch, self.config.num_key_value_heads, length, self.config.head_dim)

    @gt.no_grad()
    def generate(self, tokens: gt.Tensor, count: int) -> gt.Tensor:
        """Append the `count` likeliest tokens, one after the other."""
        cache = self.cache(tokens.shape[1] + count, tokens.shape[0])
        new, out = tokens, [tokens]
        for _ in range(count):
            new = self(new, cache)[:, -1:].argmax(-1)
            new.tolist()  # a person would want to see it; the next step is the same graph
            out.append(new)
        return gt.cat(out, 1)
