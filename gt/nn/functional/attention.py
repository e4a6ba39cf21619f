"""Scaled dot product attention and torch's multi-head attention. Next: ``gt.ir.ops.attention`` (meaning)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gt.autocasting import low
from gt.functions import create, linalg, reduce
from gt.functions.promote import cast
from gt.functions.shape import cat, expand, reshape
from gt.ir.graph import Attrs
from gt.ir.ops import OPS
from gt.ir.types import CallError, ShapeError, TensorType, bool_, broadcast_shapes
from gt.nn.functional.dropout import dropout
from gt.nn.functional.linear import linear
from gt.nn.functional.padding import pad
from gt.recording import record
from gt.trace import state
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor

SDPA = OPS["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Give softmax(q k^T * scale + mask) v: [..., s, d], [..., t, d], [..., t, e] -> [..., s, e].

    A bool mask keeps where true. ``enable_gqa``: key and value may have fewer heads (dim -3), each serving several of the
    query's. Cost: torch's fused kernels, unless there is dropout.
    """
    if attn_mask is None and (scale is None or scale.__class__ is float) and not (dropout_p or enable_gqa) and state.autocast is None:
        attrs = _plain(query._type, key._type, value._type, is_causal, scale)
        if attrs is not None:
            return record(SDPA, (query, key, value), attrs, first=True)
    if state.autocast is not None:
        query, key, value = low(query, key, value)
        attn_mask = low(attn_mask)[0] if attn_mask is not None else None
    q, k, v = query._type, key._type, value._type
    if not q.dtype is k.dtype is v.dtype:
        raise CallError(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: {q.dtype.name} key.dtype: {k.dtype.name} "
            f"and value.dtype: {v.dtype.name} instead."
        )
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise CallError(
            f"Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: {query.ndim}, key.dim: {key.ndim} "
            f"and value.dim: {value.ndim} instead."
        )
    if is_causal and attn_mask is not None:
        raise CallError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
    if enable_gqa:
        key, value = _shared_heads(query, key), _shared_heads(query, value)
    if not key._type.shape[-2]:  # nothing to attend to
        return linalg.matmul(linalg.matmul(query, key.mT), value)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None and q.shape[-1] else 1.0 if scale is None else float(scale)
    mask = None if attn_mask is None else _additive(attn_mask, q.dtype)
    if dropout_p:
        return _unfused(query, key, value, mask, dropout_p, is_causal, factor)
    return _fused(query, key, value, mask, is_causal, factor)


@lru_cache(maxsize=1 << 12)
def _plain(query: TensorType, key: TensorType, value: TensorType, is_causal: bool, scale: float | None) -> Attrs | None:
    """Give the attributes of attention that the fused op takes as it is; None for all else, faults included."""
    q, k, v = query.shape, key.shape, value.shape
    fits = len(q) == len(k) == len(v) == 4 and q[:2] == k[:2] == v[:2] and q[3] == k[3] and k[2] == v[2] > 0 and q[3] > 0
    if not fits or not query.dtype is key.dtype is value.dtype:
        return None
    return ("is_causal", bool(is_causal)), ("scale", 1 / math.sqrt(q[3]) if scale is None else float(scale))


def _shared_heads(query: Tensor, x: Tensor) -> Tensor:
    """Give each group of query heads its own copy of a key or value head."""
    heads, own = query._type.shape[-3], x._type.shape[-3]
    if heads == own:
        return x
    if not own or heads % own:
        raise CallError("Number of heads in key and value must divide the number of heads in query for Grouped Query Attention.")
    *lead, _, t, d = x._type.shape
    return reshape(expand(x.unsqueeze(-3), (*lead, own, heads // own, t, d)), (*lead, heads, t, d))


def _additive(mask: Tensor, dtype: Any) -> Tensor:
    """Give a mask to be added to the scores; a bool one keeps where true."""
    if mask.dtype is bool_:
        return create.zeros(mask._type.shape, dtype=dtype).masked_fill(~mask, -math.inf)
    if mask.dtype.kind != "f":
        raise CallError(
            f"Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: {mask.dtype.name}"
        )
    return cast(mask, dtype)


def _by_parts(given: dict[str, Any]) -> str | None:
    """What torch's fused kernel does not take it scales first, so that copies of query and key are multiplied."""
    fused = len(given["query"]._type.shape) == len(given["key"]._type.shape) == len(given["value"]._type.shape) == 4
    return None if fused else "value:query,key"


@saves(_by_parts)
def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """Record the fused op, which takes [b, h, s, d]; other ranks are brought to it."""
    q, k, v = query._type.shape, key._type.shape, value._type.shape
    if len(q) == len(k) == len(v) == 4 and q[:2] == k[:2] == v[:2] and (mask is None or mask.ndim <= 4):
        lead = None
    else:
        lead = broadcast_shapes(q[:-2], k[:-2], v[:-2], *([mask._type.shape[:-2]] if mask is not None else []))
    if q[-1] != k[-1] or k[-2] != v[-2]:
        raise ShapeError(f"scaled_dot_product_attention: sizes do not fit: query {list(q)}, key {list(k)}, value {list(v)}")
    if lead is not None:
        four = (math.prod(lead[:-1]) if len(lead) > 1 else 1, lead[-1] if lead else 1)
        to4 = lambda x: reshape(expand(x, (*lead, *x._type.shape[-2:])), (*four, *x._type.shape[-2:]))  # noqa: E731
        query, key, value = to4(query), to4(key), to4(value)
        if mask is not None:
            while mask.ndim < 2:
                mask = mask.unsqueeze(0)
            mask = to4(mask) if math.prod(mask._type.shape[:-2]) > 1 else reshape(mask, mask._type.shape[-2:])
    operands = (query, key, value) if mask is None else (query, key, value, mask)
    out = record(SDPA, operands, (("is_causal", bool(is_causal)), ("scale", scale)), first=True)
    return out if lead is None else reshape(out, (*lead, *out._type.shape[-2:]))


@saves("value:query,key")
def _unfused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, scale: float
) -> Tensor:
    scores = linalg.matmul(query, key.mT) * scale
    if is_causal:
        s, t = scores._type.shape[-2:]
        scores = scores.masked_fill(~create.ones((s, t), dtype=bool_).tril(), -math.inf)
    scores = scores if mask is None else scores + mask
    return linalg.matmul(dropout(reduce.softmax(scores, -1), dropout_p), value)


# -- multi-head attention


def _projected(
    query: Tensor, key: Tensor, value: Tensor, weights: tuple[Tensor | None, ...], bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Give q, k and v: one weight for all three, or one for each."""
    packed, *apart = weights
    width = query._type.shape[-1]
    if packed is not None:
        if query is key is value:
            q, k, v = linear(query, packed, bias).chunk(3, -1)
            return q, k, v
        apart = list(packed.chunk(3, 0))
    biases = [None] * 3 if bias is None else [bias.narrow(0, i * width, width) for i in range(3)]
    q, k, v = (linear(x, w, b) for x, w, b in zip((query, key, value), apart, biases, strict=True))  # type: ignore[arg-type]
    return q, k, v


def _merged_mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, dtype: Any, batch: int, heads: int, tgt: int, src: int
) -> Tensor | None:
    """Give one additive mask [batch or 1, heads or 1, tgt or 1, src]; bool masks leave out where true."""
    out = None
    if attn_mask is not None:
        out = _left_out(attn_mask, dtype)
        if out.ndim == 2:
            if out._type.shape != (tgt, src):
                raise CallError(
                    f"The shape of the 2D attn_mask is {attn_mask.shape}, but should be {(tgt, src)}.".replace("gt.", "torch.")
                )
            out = out.reshape(1, 1, tgt, src)
        elif out.ndim == 3:
            if out._type.shape != (batch * heads, tgt, src):
                raise CallError(
                    f"The shape of the 3D attn_mask is {attn_mask.shape}, but should be {(batch * heads, tgt, src)}.".replace(
                        "gt.", "torch."
                    )
                )
            out = out.reshape(batch, heads, tgt, src)
        else:
            raise CallError(f"attn_mask's dimension {attn_mask.ndim} is not supported")
    if key_padding_mask is not None:
        for d, (given, want) in enumerate(zip(key_padding_mask._type.shape, (batch, src), strict=True)):
            if given != want:
                raise AssertionError(f"Expected key_padded_mask.shape[{d}] to be {want}, but got {given}")
        padding = _left_out(key_padding_mask, dtype).reshape(batch, 1, 1, src)
        out = padding if out is None else out + padding
    return out


def _left_out(mask: Tensor, dtype: Any) -> Tensor:
    if mask.dtype is bool_:
        return create.zeros(mask._type.shape, dtype=dtype).masked_fill(mask, -math.inf)
    if mask.dtype.kind != "f":
        raise AssertionError("only bool and floating types of attn_mask are supported")
    return cast(mask, dtype)


def _check_heads(query: Tensor, embed_dim: int, num_heads: int, lacks_mask: bool) -> None:
    if query.ndim not in (2, 3):
        raise AssertionError(f"query should be unbatched 2D or batched 3D tensor but received {query.ndim}-D query tensor")
    embed = query._type.shape[-1]
    if embed != embed_dim:
        raise AssertionError(f"was expecting embedding dimension of {embed_dim}, but got {embed}")
    if embed % num_heads:
        raise AssertionError(f"embed_dim {embed} not divisible by num_heads {num_heads}")
    if lacks_mask:
        raise CallError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
            "`generate_square_subsequent_mask` to create this mask."
        )


def _attended(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, need_weights: bool, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Give the attended values, and the weights if needed."""
    if not need_weights:
        return scaled_dot_product_attention(q, k, v, mask, p, is_causal), None
    scores = linalg.matmul(q * math.sqrt(1.0 / q._type.shape[-1]), k.mT)
    weights = dropout(reduce.softmax(scores if mask is None else scores + mask, -1), p, p > 0)
    return linalg.matmul(weights, v), weights


def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True, key_padding_mask: Tensor | None = None,
    need_weights: bool = True, attn_mask: Tensor | None = None, use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None, v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None, static_v: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attend with several heads: [tgt, batch, e], [src, batch, k], [src, batch, v] -> [tgt, batch, e] and the weights."""
    _check_heads(query, embed_dim_to_check, num_heads, is_causal and attn_mask is None)
    if static_k is not None or static_v is not None:
        raise NotImplementedError(
            "multi_head_attention_forward: static_k and static_v are not supported: call scaled_dot_product_attention"
        )
    batched = query.ndim == 3
    if not batched:
        one = query is key is value
        query, key, value = (query.unsqueeze(1),) * 3 if one else (query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    tgt, batch, embed = query._type.shape
    src = key._type.shape[0]
    packed = None if use_separate_proj_weight else in_proj_weight
    q, k, v = _projected(query, key, value, (packed, q_proj_weight, k_proj_weight, v_proj_weight), in_proj_bias)
    causal_hint = is_causal and key_padding_mask is None and not need_weights
    mask = None if causal_hint else _merged_mask(attn_mask, key_padding_mask, q.dtype, batch, num_heads, tgt, src)
    if bias_k is not None and bias_v is not None:
        k, v = cat([k, bias_k.expand(1, batch, embed)]), cat([v, bias_v.expand(1, batch, embed)])
        mask = None if mask is None else pad(mask, (0, 1))
    split = lambda x: x.reshape(x._type.shape[0], batch, num_heads, embed // num_heads).permute(1, 2, 0, 3)  # noqa: E731
    q, k, v = split(q), split(k), split(v)
    if add_zero_attn:
        zeros = create.zeros((batch, num_heads, 1, embed // num_heads), dtype=k.dtype)
        k, v = cat([k, zeros], 2), cat([v, zeros], 2)
        mask = None if mask is None else pad(mask, (0, 1))
    out, weights = _attended(q, k, v, mask, dropout_p if training else 0.0, need_weights, causal_hint)
    out = linear(out.permute(2, 0, 1, 3).reshape(tgt, batch, embed), out_proj_weight, out_proj_bias)
    if weights is not None and average_attn_weights:
        weights = reduce.mean(weights, 1)
    if batched:
        return out, weights
    return out.squeeze(1), None if weights is None else weights.squeeze(0)


__all__ = ["multi_head_attention_forward", "scaled_dot_product_attention"]
