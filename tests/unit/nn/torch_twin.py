"""Torch objects as gt objects, and their results compared. For tests that run the same thing through both.

Next: ``test_module_db``, ``../optim/test_optim_db``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import gt

DTYPES = {
    getattr(torch, n): getattr(gt, n)
    for n in ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "complex64")
}
DTYPES[torch.bool] = gt.bool
NAMED = {getattr(torch.nn.functional, n): getattr(gt.nn.functional, n) for n in ("relu", "gelu", "pairwise_distance")}


def to_gt(value: Any) -> Any:
    """Give the gt form of torch values, modules' arguments and nests of them. The same tensor gives the same tensor."""
    return _to_gt(value, {})


def _to_gt(value: Any, seen: dict[int, Any]) -> Any:
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, torch.Tensor):
        out: Any = (
            gt.tensor(value.detach().float().numpy()).bfloat16()
            if value.dtype is torch.bfloat16
            else gt.tensor(value.detach().numpy())
        )
        if isinstance(value, torch.nn.Parameter):
            out = gt.nn.Parameter(out, value.requires_grad)
        elif value.requires_grad:
            out.requires_grad_()
    elif isinstance(value, torch.nn.Module):
        out = twin(value, (), _arguments(value))
    elif isinstance(value, dict):
        return {k: _to_gt(v, seen) for k, v in value.items()}
    elif isinstance(value, list | tuple):
        return type(value)(_to_gt(v, seen) for v in value)
    elif isinstance(value, torch.dtype):
        return DTYPES[value]
    elif isinstance(value, torch.device):
        return None
    else:
        return NAMED.get(value, value) if callable(value) else value
    seen[id(value)] = out
    return out


def _arguments(layer: Any) -> dict[str, Any]:
    """Give the arguments that make an encoder layer, the one module that others take as an argument."""
    return {
        "d_model": layer.self_attn.embed_dim, "nhead": layer.self_attn.num_heads, "dim_feedforward": layer.linear1.out_features,
        "dropout": layer.dropout.p, "activation": layer.activation, "batch_first": layer.self_attn.batch_first,
        "norm_first": layer.norm_first, "bias": layer.linear1.bias is not None,
    }  # fmt: skip


def fresh(value: Any) -> Any:
    """Give copies of the tensors of a nest, as leaves; other values stay."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {k: fresh(v) for k, v in value.items()}
    return type(value)(fresh(v) for v in value) if isinstance(value, list | tuple) else value


def twin(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make gt's module of the same class and arguments, with the same values and mode."""
    made = getattr(gt.nn, type(module).__name__)(*to_gt(args), **to_gt(kwargs))
    made.load_state_dict(module.state_dict())
    for (_, p), (_, q) in zip(made.named_parameters(), module.named_parameters(), strict=True):
        p.requires_grad_(q.requires_grad)
    return made.train(module.training)


def leaves(value: Any) -> list[Any]:
    """Give the tensors of a nest, in order."""
    if isinstance(value, torch.Tensor | gt.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in leaves(v)]
    return [t for v in value for t in leaves(v)] if isinstance(value, list | tuple) else []


def close(got: Any, want: torch.Tensor, what: str, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Check value, shape and dtype. ``atol`` is for values up to 1, and grows with the largest."""
    assert tuple(got.shape) == tuple(want.shape), f"{what}: shape {tuple(got.shape)}, torch {tuple(want.shape)}"
    assert got.dtype is DTYPES[want.dtype], f"{what}: dtype {got.dtype}, torch {want.dtype}"
    atol = atol * max(1.0, float(want.detach().abs().max()) if want.numel() and want.dtype.is_floating_point else 1.0)
    np.testing.assert_allclose(got.numpy(force=True), want.detach().numpy(), rtol=rtol, atol=atol, err_msg=what)


def backward_both(got: list[Any], want: list[torch.Tensor]) -> None:
    """Run backward through both from the same random gradients of the results."""
    rng = np.random.default_rng(0)
    ours, theirs = [], []
    for g, w in zip(got, want, strict=True):
        if w.requires_grad and w.is_floating_point():
            seed = rng.standard_normal(tuple(w.shape)).astype(np.float32)
            ours.append((g * gt.tensor(seed)).sum())
            theirs.append((w * torch.tensor(seed)).sum())
    if theirs:
        sum(theirs[1:], theirs[0]).backward()
        sum(ours[1:], ours[0]).backward()
