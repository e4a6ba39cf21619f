"""Steps of Adadelta, Adamax, NAdam and RAdam. Conventions as in ``optim``.

What depends on the step count alone is computed by the caller and given as run-time scalars.
Next: ``gt.optim``, ``gt.runtime.optim_adaptive_kernels`` (the same in torch).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir.ops.optim import optimizer

Array = np.ndarray[Any, Any]


def _gradient(p: Array, g: Array, weight_decay: float, maximize: bool) -> Array:
    g = -g if maximize else g
    return g + weight_decay * p if weight_decay else g


def _adadelta(
    p: Array,
    g: Array,
    states: list[Array],
    scalars: list[float],
    rho: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> tuple[Array, ...]:
    (lr,) = scalars
    g = _gradient(p, g, weight_decay, maximize)
    squares = states[0] * rho + (1 - rho) * g * g
    delta = np.sqrt(states[1] + eps) / np.sqrt(squares + eps) * g
    return p - lr * delta, squares, states[1] * rho + (1 - rho) * delta * delta


def _adamax(
    p: Array, g: Array, states: list[Array], scalars: list[float], beta1: float, beta2: float, eps: float, weight_decay: float,
    maximize: bool,
) -> tuple[Array, ...]:  # fmt: skip
    lr, step = scalars
    g = _gradient(p, g, weight_decay, maximize)
    mean = states[0] + (1 - beta1) * (g - states[0])
    largest = np.maximum(states[1] * beta2, np.abs(g) + eps)
    return p - lr / (1 - beta1**step) * mean / largest, mean, largest


def _moments(
    p: Array,
    g: Array,
    states: list[Array],
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    maximize: bool,
    decoupled: bool,
) -> tuple[Array, Array, Array, Array]:
    """Give the decayed parameter, the gradient, and the new means of gradients and of their squares."""
    g = _gradient(p, g, 0.0 if decoupled else weight_decay, maximize)
    p = p * (1 - lr * weight_decay) if decoupled and weight_decay else p
    return p, g, states[0] + (1 - beta1) * (g - states[0]), states[1] * beta2 + (1 - beta2) * g * g


def _nadam(
    p: Array, g: Array, states: list[Array], scalars: list[float], beta1: float, beta2: float, eps: float, weight_decay: float,
    maximize: bool, decoupled: bool,
) -> tuple[Array, ...]:  # fmt: skip
    lr, by_gradient, by_mean, step = scalars
    p, g, mean, squares = _moments(p, g, states, lr, beta1, beta2, weight_decay, maximize, decoupled)
    root = np.sqrt(squares / (1 - beta2**step)) + eps
    return p - by_gradient * g / root - by_mean * mean / root, mean, squares


def _radam(
    p: Array, g: Array, states: list[Array], scalars: list[float], beta1: float, beta2: float, eps: float, weight_decay: float,
    maximize: bool, decoupled: bool,
) -> tuple[Array, ...]:  # fmt: skip
    lr, plain, rectified = scalars
    p, g, mean, squares = _moments(p, g, states, lr, beta1, beta2, weight_decay, maximize, decoupled)
    return p - mean * (plain + rectified / (np.sqrt(squares) + eps)), mean, squares


adadelta_step = optimizer(
    "adadelta_step",
    lambda **_: 2,
    1,
    _adadelta,
    "Adadelta: params, grads, square_avgs, acc_deltas, lr. Source: Zeiler 2012.",
)
adamax_step = optimizer(
    "adamax_step",
    lambda **_: 2,
    2,
    _adamax,
    "Adamax: params, grads, exp_avgs, exp_infs, lr, step from 1. Source: Kingma and Ba 2015.",
)
nadam_step = optimizer(
    "nadam_step", lambda **_: 2, 4, _nadam,
    "Adam with Nesterov momentum: params, grads, exp_avgs, exp_avg_sqs, lr, size along the gradient, along the mean, step. Source: Dozat 2016.",
)  # fmt: skip
radam_step = optimizer(
    "radam_step", lambda **_: 2, 3, _radam,
    "Rectified Adam: params, grads, exp_avgs, exp_avg_sqs, lr, size of plain steps, of rectified steps; one is 0. Source: Liu et al. 2020.",
)  # fmt: skip
