"""Optimizer steps: one node over all parameters. Order of operations as torch.optim's foreach implementations.

Operands come in groups of ``num``: parameters, gradients, each kind of state; then 0-d run-time scalars, lr first.
Results are the new parameters, then the new states. Scalars are best float64, which torch.optim
computes in. Next: ``gt.optim``, ``gt.runtime.optim_kernels`` (the same in torch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import OpDef, op
from gt.ir.ops.families import number, rule_of
from gt.ir.ops.matmul import wide
from gt.ir.types import Shape, ShapeError, TensorType, TypeMismatch

Array = np.ndarray[Any, Any]
Update = Callable[..., tuple[Array, ...]]  # (param, gradient, states, scalars, **attrs) -> (new param, *new states)


def optimizer(name: str, states: Callable[..., int], scalars: int, update: Update, doc: str) -> OpDef:
    """Declare an optimizer step. ``states(**attrs)`` gives how many states a parameter has."""

    def split(operands: Sequence[Any], num: int, attrs: dict[str, Any]) -> tuple[list[Sequence[Any]], Sequence[Any]]:
        groups = 2 + states(**attrs)
        return [operands[i * num : (i + 1) * num] for i in range(groups)], operands[groups * num :]

    def infer(*types: TensorType, num: int, **attrs: Any) -> tuple[TensorType, ...]:
        groups = 2 + states(**attrs)
        if len(types) != groups * num + scalars:
            raise TypeMismatch(
                f"{name}: expected {groups} groups of {num} tensors and {scalars} scalars, got {len(types)} operands"
            )
        runs, rest = split(types, num, attrs)
        for parts in zip(*runs, strict=True):
            if any(t.shape != parts[0].shape for t in parts):
                raise ShapeError(
                    f"{name}: parameter, gradient and state differ in shape: {', '.join(map(repr, parts))}"
                )
        if any(t.shape for t in rest):
            raise ShapeError(f"{name}: run-time scalars must be 0-d, got {', '.join(map(repr, rest))}")
        return (*runs[0], *(t for run in runs[2:] for t in run))

    def numpy(*arrays: Array, num: int, **attrs: Any) -> tuple[Array, ...]:
        runs, rest = split(arrays, num, attrs)
        values = [float(r) for r in rest]
        made = [
            update(wide(p), wide(g), [wide(s) for s in own], values, **attrs) for p, g, *own in zip(*runs, strict=True)
        ]
        return tuple(m[i] for i in range(1 + states(**attrs)) for m in made)

    def torch(names: Sequence[str], attrs: dict[str, Any], types: Sequence[TensorType], kernel: str = name) -> str:
        own = {k: v for k, v in attrs.items() if k != "num"}
        runs, rest = split(names, attrs["num"], own)
        listed = [f"[{', '.join(run)}]" for run in runs]
        text = ", ".join(
            (*listed[:2], f"[{', '.join(listed[2:])}]", *rest, *(f"{k}={number(v)}" for k, v in own.items()))
        )
        return f"kernels.{kernel}({text})" + ("[0]" if len(types) == 1 else "")

    def inplace(num_operands: int, attrs: dict[str, Any]) -> tuple[tuple[int, int], ...]:
        num, own = attrs["num"], {k: v for k, v in attrs.items() if k != "num"}
        kept = [*range(num), *range(2 * num, (2 + states(**own)) * num)]  # all but the gradients
        return tuple(enumerate(kept))

    def follows(num_operands: int, attrs: dict[str, Any]) -> range:
        return range(attrs["num"], (1 + states(**{k: v for k, v in attrs.items() if k != "num"})) * attrs["num"])

    def subset(attrs: dict[str, Any], members: Sequence[int]) -> tuple[list[int], list[int], dict[str, Any]]:
        num, runs = attrs["num"], 2 + states(**{k: v for k, v in attrs.items() if k != "num"})
        operands = [run * num + i for run in range(runs) for i in members]
        results = [run * num + i for run in range(runs - 1) for i in members]
        return [*operands, *range(runs * num, runs * num + scalars)], results, {**attrs, "num": len(members)}

    return op(
        name, "*operands", doc=doc, infer=infer, numpy=numpy, torch=torch,
        torch_inplace=lambda names, attrs, types: torch(names, attrs, types, name + "_"),
        numbers=tuple(range(-scalars, 0)),
        inplace=inplace, factors=shared_dims, follows=follows, subset=subset,
    )  # fmt: skip


def shared_dims(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    """A parameter, its gradient and its states share one factor for each dim."""
    names = lambda i, shape: [f"p{i % attrs['num']}d{d}" for d in range(len(shape))]  # noqa: E731
    terms = [[names(i, s) for i, s in enumerate(side)] for side in (operands, results)]
    return rule_of(terms[0], terms[1], (*operands, *results))


# -- updates of one parameter. Numbers are Python floats, so they round once, as torch's scalars do.


def _sgd(
    p: Array, g: Array, states: list[Array], scalars: list[float], momentum: float, nesterov: bool, weight_decay: float,
    dampening: float, maximize: bool, first: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    (lr,) = scalars
    g = -g if maximize else g
    g = g + weight_decay * p if weight_decay else g
    if not momentum:
        return (p - lr * g,)
    buffer = g if first else momentum * states[0] + (1 - dampening) * g
    g = g + momentum * buffer if nesterov else buffer
    return p - lr * g, buffer


def _lerp(a: Array, b: Array, weight: float) -> Array:
    return a + weight * (b - a) if weight < 0.5 else b - (b - a) * (1 - weight)


def _adam(
    p: Array, g: Array, states: list[Array], scalars: list[float], beta1: float, beta2: float, eps: float,
    weight_decay: float, amsgrad: bool, maximize: bool, decoupled: bool,
) -> tuple[Array, ...]:  # fmt: skip
    lr, step = scalars
    g = -g if maximize else g
    if weight_decay and decoupled:
        p = p * (1 - lr * weight_decay)
    elif weight_decay:
        g = g + weight_decay * p
    m = _lerp(states[0], g, 1 - beta1)
    v = states[1] * beta2 + (1 - beta2) * g * g
    new = [m, v]
    if amsgrad:
        new.append(np.maximum(states[2], v))
    denominator = np.sqrt(new[-1]) / (1 - beta2**step) ** 0.5 + eps
    return p - lr / (1 - beta1**step) * m / denominator, *new


def _adamw(*args: Any, **attrs: Any) -> tuple[Array, ...]:
    return _adam(*args, decoupled=True, **attrs)  # type: ignore[misc]


def _adam_coupled(*args: Any, **attrs: Any) -> tuple[Array, ...]:
    return _adam(*args, decoupled=False, **attrs)  # type: ignore[misc]


def _rmsprop(
    p: Array, g: Array, states: list[Array], scalars: list[float], alpha: float, eps: float, weight_decay: float,
    momentum: float, centered: bool, maximize: bool,
) -> tuple[Array, ...]:  # fmt: skip
    (lr,) = scalars
    g = -g if maximize else g
    g = g + weight_decay * p if weight_decay else g
    v = states[0] * alpha + (1 - alpha) * g * g
    new = [v]
    if centered:
        new.append(_lerp(states[1], g, 1 - alpha))
        v = v - new[1] * new[1]
    average = np.sqrt(v) + eps
    if not momentum:
        return p - lr * g / average, *new
    buffer = states[-1] * momentum + g / average
    return p - lr * buffer, *new, buffer


def _adagrad(
    p: Array, g: Array, states: list[Array], scalars: list[float], lr_decay: float, weight_decay: float, eps: float,
    maximize: bool,
) -> tuple[Array, ...]:  # fmt: skip
    lr, step = scalars
    g = -g if maximize else g
    g = g + weight_decay * p if weight_decay else g
    total = states[0] + g * g
    return p - lr / (1 + (step - 1) * lr_decay) * g / (np.sqrt(total) + eps), total


def _lion(
    p: Array, g: Array, states: list[Array], scalars: list[float], beta1: float, beta2: float, weight_decay: float,
    maximize: bool,
) -> tuple[Array, ...]:  # fmt: skip
    (lr,) = scalars
    g = -g if maximize else g
    p = p * (1 - lr * weight_decay) if weight_decay else p
    direction = np.sign(states[0] * beta1 + g * (1 - beta1))
    return p - lr * direction, states[0] * beta2 + g * (1 - beta2)


sgd_step = optimizer(
    "sgd_step", lambda momentum, **_: int(momentum != 0), 1, _sgd,
    "Gradient descent: params, grads[, momentum buffers], lr. first: buffers start from this step's gradients.",
)  # fmt: skip
adam_step = optimizer(
    "adam_step",
    lambda amsgrad, **_: 2 + amsgrad,
    2,
    _adam_coupled,
    "Adam, weight decay in the gradient: params, grads, exp_avgs, exp_avg_sqs[, max_exp_avg_sqs], lr, step from 1.",
)
adamw_step = optimizer(
    "adamw_step", lambda amsgrad, **_: 2 + amsgrad, 2, _adamw,
    "Adam, weight decay apart: params, grads, exp_avgs, exp_avg_sqs[, max_exp_avg_sqs], lr, step from 1.",
)  # fmt: skip
rmsprop_step = optimizer(
    "rmsprop_step", lambda momentum, centered, **_: 1 + centered + (momentum != 0), 1, _rmsprop,
    "RMSprop: params, grads, square_avgs[, grad_avgs if centered][, momentum buffers], lr.",
)  # fmt: skip
adagrad_step = optimizer(
    "adagrad_step", lambda **_: 1, 2, _adagrad, "Adagrad: params, grads, sums of squares, lr, step from 1."
)
lion_step = optimizer(
    "lion_step", lambda **_: 1, 1, _lion, "Lion: params, grads, exp_avgs, lr. Source: Chen et al. 2023."
)
