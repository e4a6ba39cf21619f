"""Limiting gradients, in place. Nothing is read, unless errors are asked for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

from gt.autograd import no_grad
from gt.functions import create
from gt.functions.norms import vector_norm
from gt.functions.promote import cast, refuse_torch
from gt.functions.shape import stack
from gt.handle import Handle
from gt.tensor import Tensor

Tensors = Tensor | Iterable[Tensor]


def _each(name: str, parameters: Tensors) -> list[Tensor]:
    refuse_torch(name, parameters)
    values: list[Tensor] = [parameters] if isinstance(parameters, Handle) else list(parameters)  # type: ignore[list-item]
    refuse_torch(name, *values)
    return values


def get_total_norm(
    tensors: Tensors, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Give the norm of all tensors seen as one vector."""
    values = _each("get_total_norm", tensors)
    if not values:
        return create.tensor(0.0)
    with no_grad():
        norm_type = float(norm_type)
        total = vector_norm(stack([vector_norm(t, norm_type) for t in values]), norm_type)
        if error_if_nonfinite and not math.isfinite(total.item()):
            raise RuntimeError(
                f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped. To disable "
                "this error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
            )
        return total


def clip_grads_with_norm_(parameters: Tensors, max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    """Scale gradients by max_norm / total_norm where that is below 1."""
    grads = [p.grad for p in _each("clip_grads_with_norm_", parameters) if p.grad is not None]
    with no_grad():
        share = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(cast(share, g.dtype))  # type: ignore[attr-defined]


def clip_grad_norm_(
    parameters: Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients of all parameters so that their norm is at most ``max_norm``. Gives the norm they had."""
    params = _each("clip_grad_norm_", parameters)
    grads = [p.grad for p in params if p.grad is not None]
    total = get_total_norm(grads, norm_type, error_if_nonfinite)  # type: ignore[arg-type]
    clip_grads_with_norm_(params, max_norm, total)
    return total


def clip_grad_value_(parameters: Tensors, clip_value: float, foreach: bool | None = None) -> None:
    """Limit every element of the gradients to [-clip_value, clip_value]."""
    with no_grad():
        for p in _each("clip_grad_value_", parameters):
            if p.grad is not None:
                p.grad.clamp_(-float(clip_value), float(clip_value))  # type: ignore[attr-defined]


def clip_grad_norm(parameters: Tensors, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
    """Scale gradients in place: the old name of ``clip_grad_norm_``."""
    warnings.warn(
        "torch.nn.utils.clip_grad_norm is now deprecated in favor of torch.nn.utils.clip_grad_norm_.", FutureWarning, stacklevel=2
    )
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)


