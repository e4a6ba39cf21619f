"""Activations, on torch kernels of their own.

Next: ``reduce``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Var, op
from gt.ir.ops.broadcast import constant
from gt.ir.ops.compare import ge, gt, le, logical_and, logical_or, lt, where
from gt.ir.ops.elementwise import add, div, exp, logistic, mul, neg, sigmoid, sub, tanh
from gt.ir.ops.families import FLOAT, check_same, unary
from gt.ir.ops.special import by_element, erf, one
from gt.ir.types import ShapeError, TensorType

SIXTH = float(np.float32(1) / np.float32(6))  # torch's hardsigmoid takes it from float32, in every dtype


def _gelu_numpy(x: np.ndarray, approximate: str) -> np.ndarray:
    wide = x.astype(np.float64)
    if approximate == "tanh":
        return 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    return wide * 0.5 * by_element(math.erfc)(-wide / math.sqrt(2))


def _gelu_slope_numpy(x: np.ndarray, approximate: str) -> np.ndarray:
    if approximate == "tanh":
        beta, kappa = math.sqrt(2 / math.pi), 0.044715
        t = np.tanh(beta * (x + kappa * x**3))
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * beta * (1 + 3 * kappa * x * x)
    pdf = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * by_element(math.erfc)(-x / math.sqrt(2)) + x * pdf


def _gelu_backward_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    g, x = inputs
    half = constant(0.5, x)
    if attrs["approximate"] == "tanh":
        beta, kappa = math.sqrt(2 / math.pi), 0.044715
        square_ = mul(x, x)
        t = tanh(mul(constant(beta, x), add(x, mul(constant(kappa, x), mul(square_, x)))))
        slope = mul(constant(beta, x), add(one(x), mul(constant(3 * kappa, x), square_)))
        left = mul(half, add(one(x), t))
        return (mul(g, add(left, mul(mul(half, x), mul(sub(one(x), mul(t, t)), slope)))),)
    cdf = mul(half, add(one(x), erf(mul(x, constant(math.sqrt(0.5), x)))))
    pdf = mul(constant(1 / math.sqrt(2 * math.pi), x), exp(mul(constant(-0.5, x), mul(x, x))))
    return (mul(g, add(cdf, mul(x, pdf))),)


def _alike(g: TensorType, x: TensorType, approximate: str) -> TensorType:
    check_same("gelu_backward", (g, x))
    if g.shape != x.shape:
        raise ShapeError(f"gelu_backward: the gradient is {g!r}, the value {x!r}")
    return x


gelu_backward = op(
    "gelu_backward", "g x",
    doc="Gradient of gelu.",
    infer=_alike, numpy=lambda g, x, approximate: g * _gelu_slope_numpy(x.astype(np.float64), approximate),
    torch="torch.ops.aten.gelu_backward({g}, {x}, approximate={approximate})",
    decompose=_gelu_backward_parts, factors=fx.elementwise, linear=((0,),),
)  # fmt: skip
gelu = unary(
    "gelu", _gelu_numpy, "torch.nn.functional.gelu({x}, approximate={approximate})",
    lambda g, y, x, approximate: gelu_backward(g, x, approximate=approximate), kinds=FLOAT,
    doc="x * P(N <= x); approximate: none or tanh.",
)  # fmt: skip
silu = unary(
    "silu", lambda x: x * logistic(x), "torch.nn.functional.silu({x})",
    lambda g, y, x: _silu_vjp(g, x), kinds=FLOAT, doc="x * sigmoid(x)",
)  # fmt: skip


def _silu_vjp(g: Var, x: Var) -> Any:
    s = sigmoid(x)
    return mul(mul(g, s), add(one(x), mul(x, sub(one(x), s))))


logsigmoid = unary(
    "logsigmoid", lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))), "torch.nn.functional.logsigmoid({x})",
    lambda g, y, x: mul(g, sigmoid(neg(x))), kinds=FLOAT, doc="log(sigmoid(x))",
)  # fmt: skip


def _softplus_numpy(x: np.ndarray, beta: float, threshold: float) -> np.ndarray:
    return np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta).astype(x.dtype)


softplus = unary(
    "softplus", _softplus_numpy, "torch.nn.functional.softplus({x}, {beta}, {threshold})",
    lambda g, y, x, beta, threshold: where(
        gt(mul(x, constant(beta, x)), constant(threshold, x)), g, mul(g, sigmoid(mul(x, constant(beta, x))))
    ),
    kinds=FLOAT, doc="log(1 + exp(beta * x)) / beta, x above the threshold.",
)  # fmt: skip
leaky_relu = unary(
    "leaky_relu",
    lambda x, slope: np.where(x > 0, x, x * x.dtype.type(slope)),
    "torch.nn.functional.leaky_relu({x}, {slope})",
    lambda g, y, x, slope: where(gt(x, constant(0, x)), g, mul(g, constant(slope, g))),
    kinds=FLOAT,
    doc="x, or slope * x where negative.",
)


def _elu_vjp(g: Var, y: Var, x: Var, alpha: float) -> Any:
    return where(le(x, constant(0, x)), mul(mul(g, constant(alpha, g)), exp(x)), g)


elu = unary(
    "elu",
    lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "torch.nn.functional.elu({x}, {alpha})",
    _elu_vjp,
    kinds=FLOAT,
    doc="x, or alpha * (exp(x) - 1) where negative.",
)
selu = unary(
    "selu",
    lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    "torch.selu({x})",
    lambda g, y, x: where(
        le(x, constant(0, x)),
        mul(mul(g, constant(1.0507009873554805 * 1.6732632423543772, g)), exp(x)),
        mul(g, constant(1.0507009873554805, g)),
    ),
    kinds=FLOAT, doc="Self-normalising elu.",
)  # fmt: skip


def inside(x: Var, low: float, high: float) -> Any:
    return logical_and(gt(x, constant(low, x)), lt(x, constant(high, x)))


hardtanh = unary(
    "hardtanh", lambda x, low, high: np.clip(x, low, high), "torch.nn.functional.hardtanh({x}, {low}, {high})",
    lambda g, y, x, low, high: where(
        logical_or(le(x, constant(low, x)), ge(x, constant(high, x))), constant(0, g), g
    ),
    kinds=FLOAT, doc="x between low and high, without gradient at and beyond them (relu6).",
)  # fmt: skip
hardsigmoid = unary(
    "hardsigmoid", lambda x: np.clip(x + 3, 0, 6) / 6, "torch.nn.functional.hardsigmoid({x})",
    lambda g, y, x: where(inside(x, -3, 3), mul(g, constant(SIXTH, g)), constant(0, g)), kinds=FLOAT,
    doc="min(max(x + 3, 0), 6) / 6",
)  # fmt: skip


def _hardswish_vjp(g: Var, y: Var, x: Var) -> Any:
    middle = mul(g, add(div(x, constant(3, x)), constant(0.5, x)))
    return where(le(x, constant(-3, x)), constant(0, g), where(lt(x, constant(3, x)), middle, g))


hardswish = unary(
    "hardswish",
    lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "torch.nn.functional.hardswish({x})",
    _hardswish_vjp,
    kinds=FLOAT,
    doc="x * hardsigmoid(x)",
)
mish = unary(
    "mish", lambda x: x * np.tanh(np.logaddexp(0, x)), "torch.nn.functional.mish({x})",
    lambda g, y, x: _mish_vjp(g, x), kinds=FLOAT, doc="x * tanh(softplus(x))",
)  # fmt: skip


def _mish_vjp(g: Var, x: Var) -> Any:
    t = tanh(softplus(x, beta=1.0, threshold=20.0))
    return mul(g, add(t, mul(mul(x, sigmoid(x)), sub(one(x), mul(t, t)))))
