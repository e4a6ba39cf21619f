"""Losses whose gradients torch limits by themselves. Next: ``activation``."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir.opdef import Var, op
from gt.ir.ops.broadcast import constant, unbroadcast
from gt.ir.ops.elementwise import clamp, div, log, mul, neg, sub
from gt.ir.ops.families import FLOAT, together
from gt.ir.ops.special import log1p, one

FLOOR, NARROW = -100.0, 1e-12  # torch's: of the logarithms, and of p (1 - p) under the gradient


def _numpy(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        no, yes = np.maximum(np.log1p(-x), FLOOR), np.maximum(np.log(x), FLOOR)
    return ((target - 1) * no - target * yes).astype(x.dtype)


def _above(x: Var, low: float) -> Any:
    return clamp(x, constant(low, x), constant(float("inf"), x))


def _parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    x, target = inputs
    no, yes = _above(log1p(neg(x)), FLOOR), _above(log(x), FLOOR)
    return (sub(mul(sub(target, one(target)), no), mul(target, yes)),)


def _vjp(g: Var, y: Var, x: Var, target: Var) -> tuple[Var, Var]:
    by_x = div(mul(g, sub(x, target)), _above(mul(sub(one(x), x), x), NARROW))
    return unbroadcast(by_x, x.type), unbroadcast(mul(g, sub(log1p(neg(x)), log(x))), target.type)


binary_cross_entropy = op(
    "binary_cross_entropy", "x target",
    doc="-target * log(x) - (1 - target) * log(1 - x), logarithms being at least -100; its gradient divides by no less than 1e-12.",
    infer=together("binary_cross_entropy", FLOAT), numpy=_numpy, decompose=_parts, vjp=_vjp,
    saves="x target",
)  # fmt: skip

__all__ = ["binary_cross_entropy"]
