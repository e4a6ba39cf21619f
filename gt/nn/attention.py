"""``MultiheadAttention`` with torch's parameter names, and torch's choice of attention kernels. Next: ``functional.attention``, ``transformer``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from gt.functions import create
from gt.nn import functional as F  # noqa: N812 - torch's name
from gt.nn import init
from gt.nn.linear import Linear
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.tensor import Tensor


class SDPBackend(IntEnum):
    """torch's attention kernels, by name. Workers choose theirs."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3


@contextmanager
def sdpa_kernel(backends: list[SDPBackend] | SDPBackend, set_priority: bool = False) -> Iterator[None]:
    """Accept a choice of attention kernels without effect: workers choose the one that fits."""
    for backend in [backends] if isinstance(backends, SDPBackend) else backends:
        if not isinstance(backend, SDPBackend):
            raise TypeError(f"sdpa_kernel: expected SDPBackend members, got {type(backend).__name__}")
    yield


class NonDynamicallyQuantizableLinear(Linear):
    """A Linear; torch prints the output projection of attention under this name."""


class MultiheadAttention(Module):
    """Attend with several heads: (query, key, value) -> (output, weights)."""

    in_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.head_dim = embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise AssertionError("embed_dim must be divisible by num_heads")
        make = lambda *shape: Parameter(create.empty(*shape, dtype=dtype))  # noqa: E731
        apart = None if self._qkv_same_embed_dim else (embed_dim, self.kdim, self.vdim)
        if apart is not None:
            for name, width in zip("qkv", apart, strict=True):
                self.register_parameter(f"{name}_proj_weight", make(embed_dim, width))
            self.register_parameter("in_proj_weight", None)
        else:
            self.register_parameter("in_proj_weight", make(3 * embed_dim, embed_dim))
            for name in "qkv":
                self.register_parameter(f"{name}_proj_weight", None)
        self.register_parameter("in_proj_bias", make(3 * embed_dim) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, dtype=dtype)
        if add_bias_kv:
            self.bias_k, self.bias_v = make(1, 1, embed_dim), make(1, 1, embed_dim)
        else:
            self.bias_k = self.bias_v = None
        self.add_zero_attn = add_zero_attn
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.constant_(self.in_proj_bias, 0.0)
            assert self.out_proj.bias is not None
            init.constant_(self.out_proj.bias, 0.0)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
        attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Bool masks leave out where true. Cost: without ``need_weights``, torch's fused attention."""
        swap = self.batch_first and query.ndim == 3
        if swap:
            swapped: dict[int, Tensor] = {id(x): x.transpose(1, 0) for x in (query, key, value)}  # the same tensor stays the same
            query, key, value = swapped[id(query)], swapped[id(key)], swapped[id(value)]
        out, weights = F.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, self.bias_k, self.bias_v,
            self.add_zero_attn, self.dropout, self.out_proj.weight, self.out_proj.bias, training=self.training,
            key_padding_mask=key_padding_mask, need_weights=need_weights, attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim, q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight, v_proj_weight=self.v_proj_weight, average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )  # fmt: skip
        return out.transpose(1, 0) if swap else out, weights
