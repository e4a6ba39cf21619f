"""Steps of Adadelta, Adamax, NAdam and RAdam over lists of tensors with torch._foreach_*. Conventions as in ``optim_kernels``.

Next: ``gt.ir.ops.optim_adaptive``.
"""

from __future__ import annotations

import torch

from gt.runtime.optim_kernels import Result, Scalar, Tensors, copied, decayed, multiplied, number, stepped


def adadelta_step_(
    params: Tensors,
    grads: Tensors,
    states: list[Tensors],
    lr: Scalar,
    *,
    rho: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> Result:
    grads = decayed(params, grads, weight_decay, maximize)
    squares, deltas = states
    torch._foreach_mul_(squares, rho)
    torch._foreach_addcmul_(squares, grads, grads, 1 - rho)
    change = torch._foreach_add(deltas, eps)
    torch._foreach_sqrt_(change)
    roots = torch._foreach_add(squares, eps)
    torch._foreach_sqrt_(roots)
    torch._foreach_div_(change, roots)
    torch._foreach_mul_(change, grads)
    torch._foreach_mul_(deltas, rho)
    torch._foreach_addcmul_(deltas, change, change, 1 - rho)
    stepped(params, list(change), number(lr))
    return (*params, *squares, *deltas)


def adamax_step_(
    params: Tensors, grads: Tensors, states: list[Tensors], lr: Scalar, step: Scalar, *, beta1: float, beta2: float, eps: float,
    weight_decay: float, maximize: bool,
) -> Result:  # fmt: skip
    lr, step = number(lr), number(step)
    grads = decayed(params, grads, weight_decay, maximize)
    means, largest = states
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(largest, beta2)
    sizes = torch._foreach_abs(grads)
    torch._foreach_add_(sizes, eps)
    torch._foreach_maximum_(largest, sizes)
    stepped(params, means, lr / (1 - beta1**step), largest)
    return (*params, *means, *largest)


def _moments_(
    params: Tensors, grads: Tensors, states: list[Tensors], lr: Scalar, beta1: float, beta2: float, weight_decay: float, maximize: bool,
    decoupled: bool,
) -> Tensors:  # fmt: skip
    """Decay parameters and move both means; gives the gradients to follow."""
    grads = decayed(params, grads, 0.0 if decoupled else weight_decay, maximize)
    if decoupled and weight_decay:
        torch._foreach_copy_(params, multiplied(params, 1 - lr * weight_decay))
    torch._foreach_lerp_(states[0], grads, 1 - beta1)
    torch._foreach_mul_(states[1], beta2)
    torch._foreach_addcmul_(states[1], grads, grads, 1 - beta2)
    return grads


def nadam_step_(
    params: Tensors, grads: Tensors, states: list[Tensors], lr: Scalar, by_gradient: Scalar, by_mean: Scalar, step: Scalar, *,
    beta1: float, beta2: float, eps: float, weight_decay: float, maximize: bool, decoupled: bool,
) -> Result:  # fmt: skip
    lr, by_gradient, by_mean, step = number(lr), number(by_gradient), number(by_mean), number(step)
    grads = _moments_(params, grads, states, lr, beta1, beta2, weight_decay, maximize, decoupled)
    roots = multiplied(states[1], 1 / (1 - beta2**step))
    torch._foreach_sqrt_(roots)
    torch._foreach_add_(roots, eps)
    stepped(params, grads, by_gradient, roots)
    stepped(params, states[0], by_mean, roots)
    return (*params, *states[0], *states[1])


def radam_step_(
    params: Tensors, grads: Tensors, states: list[Tensors], lr: Scalar, plain: Scalar, rectified: Scalar, *, beta1: float, beta2: float,
    eps: float, weight_decay: float, maximize: bool, decoupled: bool,
) -> Result:  # fmt: skip
    lr, plain, rectified = number(lr), number(plain), number(rectified)
    _moments_(params, grads, states, lr, beta1, beta2, weight_decay, maximize, decoupled)
    roots = torch._foreach_sqrt(states[1])
    torch._foreach_add_(roots, eps)
    stepped(params, states[0], plain)
    stepped(params, states[0], rectified, list(roots))
    return (*params, *states[0], *states[1])


adadelta_step, adamax_step, nadam_step, radam_step = (
    copied(adadelta_step_), copied(adamax_step_), copied(nadam_step_), copied(radam_step_),
)  # fmt: skip
