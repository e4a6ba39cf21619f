"""Optimizer steps over lists of tensors with torch._foreach_*.

``name_`` overwrites parameters and states, ``name`` copies them first. Order of operations as torch.optim's foreach
implementations. Next: ``gt.ir.ops.optim``.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Scalar: TypeAlias = Tensor | float
Tensors: TypeAlias = list[Tensor]
Result: TypeAlias = tuple[Tensor, ...]


def number(value: Scalar) -> Scalar:
    """Give a number where that costs no wait: foreach kernels are fastest with numbers. A tensor's powers are those of a double."""
    if isinstance(value, Tensor) and value.device.type == "cpu" and not torch.compiler.is_compiling():
        return value.item()
    return value.to(torch.float64) if isinstance(value, Tensor) else value


def once(scalar: Scalar) -> Scalar:
    """Keep a compiler from computing a scalar anew for each element: what has strides of its own is written down first."""
    return scalar.as_strided((), ()) if isinstance(scalar, Tensor) else scalar


def multiplied(tensors: Tensors, scalar: Scalar) -> Tensors:
    scalar = once(scalar)
    return [t * scalar for t in tensors] if isinstance(scalar, Tensor) else list(torch._foreach_mul(tensors, scalar))


def stepped(params: Tensors, directions: Tensors, size: Scalar, denominators: Tensors | None = None) -> None:
    """params -= size * directions / denominators"""
    if denominators is not None and not isinstance(size, Tensor):
        torch._foreach_addcdiv_(params, directions, denominators, -size)
        return
    change = multiplied(directions, size)
    torch._foreach_sub_(params, change if denominators is None else torch._foreach_div(change, denominators))


def decayed(params: Tensors, grads: Tensors, weight_decay: float, maximize: bool) -> Tensors:
    """Give the gradients to follow, weight decay added."""
    if maximize:
        grads = list(torch._foreach_neg(grads))
    return list(torch._foreach_add(grads, params, alpha=weight_decay)) if weight_decay else grads


def sgd_step_(
    params: Tensors, grads: Tensors, states: list[Tensors], lr: Scalar, *, momentum: float, nesterov: bool,
    weight_decay: float, dampening: float, maximize: bool, first: bool = False,
) -> Result:  # fmt: skip
    lr = number(lr)
    grads = decayed(params, grads, weight_decay, maximize)
    if momentum:
        (buffers,) = states
        if first:
            torch._foreach_copy_(buffers, grads)
        else:
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, grads, alpha=1 - dampening)
        grads = list(torch._foreach_add(grads, buffers, alpha=momentum)) if nesterov else buffers
    if isinstance(lr, Tensor):
        stepped(params, grads, lr)
    else:
        torch._foreach_add_(params, grads, alpha=-lr)
    return (*params, *(s for run in states for s in run))


def _adam_(
    params: Tensors, grads: Tensors, states: list[Tensors], lr: Scalar, step: Scalar, *, beta1: float, beta2: float,
    eps: float, weight_decay: float, amsgrad: bool, maximize: bool, decoupled: bool,
) -> Result:  # fmt: skip
    lr, step = number(lr), number(step)
    grads = decayed(params, grads, 0.0 if decoupled else weight_decay, maximize)
    if weight_decay and decoupled:
        shrink = 1 - lr * weight_decay
        if isinstance(shrink, Tensor):
            torch._foreach_copy_(params, multiplied(params, shrink))
        else:
            torch._foreach_mul_(params, shrink)
    averages, squares = states[:2]
    torch._foreach_lerp_(averages, grads, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
    if amsgrad:
        torch._foreach_maximum_(states[2], squares)
    roots = list(torch._foreach_sqrt(states[2] if amsgrad else squares))
    correction = once((1 - beta2**step) ** 0.5)
    roots = [r / correction for r in roots] if isinstance(correction, Tensor) else list(torch._foreach_div(roots, correction))
    torch._foreach_add_(roots, eps)
    stepped(params, averages, lr / (1 - beta1**step), roots)
    return (*params, *(s for run in states for s in run))


def adam_step_(*args: Any, **attrs: Any) -> Result:
    return _adam_(*args, **attrs, decoupled=False)


def adamw_step_(*args: Any, **attrs: Any) -> Result:
    return _adam_(*args, **attrs, decoupled=True)


def rmsprop_step_(
    params: Tensors,
    grads: Tensors,
    states: list[Tensors],
    lr: Scalar,
    *,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
    maximize: bool,
) -> Result:
    lr = number(lr)
    grads = decayed(params, grads, weight_decay, maximize)
    squares = states[0]
    torch._foreach_mul_(squares, alpha)
    torch._foreach_addcmul_(squares, grads, grads, 1 - alpha)
    variance = squares
    if centered:
        torch._foreach_lerp_(states[1], grads, 1 - alpha)
        variance = list(torch._foreach_addcmul(squares, states[1], states[1], -1))
    averages = list(torch._foreach_sqrt(variance))
    torch._foreach_add_(averages, eps)
    if momentum:
        torch._foreach_mul_(states[-1], momentum)
        torch._foreach_addcdiv_(states[-1], grads, averages)
        stepped(params, states[-1], lr)
    else:
        stepped(params, grads, lr, averages)
    return (*params, *(s for run in states for s in run))


def adagrad_step_(
    params: Tensors, grads: Tensors, states: list[Tensors], lr: Scalar, step: Scalar, *, lr_decay: float,
    weight_decay: float, eps: float, maximize: bool,
) -> Result:  # fmt: skip
    lr, step = number(lr), number(step)
    grads = decayed(params, grads, weight_decay, maximize)
    torch._foreach_addcmul_(states[0], grads, grads, 1.0)
    roots = list(torch._foreach_sqrt(states[0]))
    torch._foreach_add_(roots, eps)
    stepped(params, grads, lr / (1 + (step - 1) * lr_decay), roots)
    return (*params, *states[0])


def lion_step_(
    params: Tensors, grads: Tensors, states: list[Tensors], lr: Scalar, *, beta1: float, beta2: float,
    weight_decay: float, maximize: bool,
) -> Result:  # fmt: skip
    lr = number(lr)
    grads = decayed(params, grads, 0.0, maximize)
    if weight_decay:
        torch._foreach_copy_(params, multiplied(params, 1 - lr * weight_decay))
    blended = torch._foreach_add(torch._foreach_mul(states[0], beta1), grads, alpha=1 - beta1)
    stepped(params, list(torch._foreach_sign(blended)), lr)
    torch._foreach_mul_(states[0], beta2)
    torch._foreach_add_(states[0], grads, alpha=1 - beta2)
    return (*params, *states[0])


def copied(step: Callable[..., Result]) -> Callable[..., Result]:
    """Make the out-of-place form of a step: copy what it overwrites first."""

    def fresh_step(params: Tensors, grads: Tensors, states: list[Tensors], *scalars: Scalar, **attrs: Any) -> Result:
        fresh = [[s.clone() for s in run] for run in states]
        return step([p.clone() for p in params], grads, fresh, *scalars, **attrs)

    return fresh_step


sgd_step = copied(sgd_step_)
adam_step = copied(adam_step_)
adamw_step = copied(adamw_step_)
rmsprop_step = copied(rmsprop_step_)
adagrad_step = copied(adagrad_step_)
lion_step = copied(lion_step_)
