"""ASGD, Rprop, Adafactor and Muon, in tensor operations rather than one op for all parameters. Source: torch.optim.

Next: ``adaptive`` (those with an op of their own), ``optimizer``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gt.finfo import finfo
from gt.functions import create
from gt.handle import Handle
from gt.ir.types import bfloat16, float32
from gt.optim.optimizer import INF, Group, Optimizer, check
from gt.optim.parameter_state import number
from gt.trace import state


class Unfused(Optimizer):
    """An optimizer whose step is many ops. Learning rates given as a tensor are read."""

    _takes_complex = False

    def _step_recorded(self, group: Group, params: list[Any]) -> None:
        if state.recorder is not None:
            raise NotImplementedError(
                f"{type(self).__name__} cannot be replayed by gt.jit: call its step outside, or use an optimizer such as AdamW"
            )
        self._step(group, params)

    def _gradient(self, p: Any, group: Group) -> Any:
        return -p._grad if group.get("maximize") else p._grad


class ASGD(Unfused):
    """Stochastic gradient descent that also keeps the average of the parameters it has been through, in ``ax``."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6, weight_decay: float = 0,
        foreach: bool | None = None, maximize: bool = False, differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        check(lr, weight_decay=(weight_decay, INF))
        defaults = {
            "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _step(self, group: Group, params: list[Any]) -> None:
        lr, lambd = number(group["lr"]), group["lambd"]
        start = lambda p: {"eta": create.tensor(lr), "mu": create.tensor(1.0), "ax": create.zeros_like(p)}  # noqa: E731
        for count, each in self._counted(params, start):
            for p in each:
                own, g = self.state[p], self._gradient(p, group)
                if group["weight_decay"]:
                    g = g + p * group["weight_decay"]
                p.mul_(1 - lambd * own["eta"]).sub_(g * own["eta"])
                own["ax"].add_((p - own["ax"]) * own["mu"])
                own["eta"] = create.tensor(lr / (1 + lambd * lr * count) ** group["alpha"])
                own["mu"] = create.tensor(1 / max(1, count - group["t0"]))


class Rprop(Unfused):
    """Steps by the sign of the gradient, longer while the sign stays and shorter when it turns; for whole batches."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-2, etas: tuple[float, float] = (0.5, 1.2), step_sizes: tuple[float, float] = (1e-6, 50),
        *, capturable: bool = False, foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check(lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")
        defaults = {
            "lr": lr, "etas": etas, "step_sizes": step_sizes, "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
            "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _step(self, group: Group, params: list[Any]) -> None:
        (shorter, longer), (least, most) = group["etas"], group["step_sizes"]
        lr = number(group["lr"])
        self._counted(params, lambda p: {"prev": create.zeros_like(p), "step_size": create.full_like(p, lr)})
        for p in params:
            own, g = self.state[p], self._gradient(p, group)
            turn = (g * own["prev"]).sign()
            factor = create.ones_like(turn).where(turn == 0, create.full_like(turn, longer).where(turn > 0, shorter))
            own["step_size"].mul_(factor).clamp_(least, most)
            g = g.masked_fill(turn < 0, 0.0)
            p.sub_(g.sign() * own["step_size"])
            own["prev"].copy_(g)


class Adafactor(Unfused):
    """Steps scaled by a running mean of squares, kept for matrices as one row and one column."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-2, beta2_decay: float = -0.8, eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0, weight_decay: float = 0.0, *, foreach: bool | None = None, maximize: bool = False,
    ) -> None:  # fmt: skip
        if isinstance(lr, Handle) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        for good, text in (
            (isinstance(lr, Handle) or lr >= 0, f"Learning rate should be >= 0 but is: {lr}"),
            (beta2_decay <= 0, f"beta2_decay should be <= 0 but is: {beta2_decay}"),
            (eps[0] is None or eps[0] >= 0, f"epsilon1 should be >= 0 but is: {eps[0]}"),
            (eps[1] >= 0, f"epsilon2 should be >= 0 but is: {eps[1]}"),
            (d >= 1, f"Clipping threshold d should be >= 1 but is: {d}"),
            (weight_decay >= 0, f"weight_decay should be >= 0 but is: {weight_decay}"),
        ):
            if not good:
                raise ValueError(text)
        defaults = {
            "lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _start(self, p: Any) -> dict[str, Any]:
        if p.ndim < 2:
            return {"variance": create.zeros_like(p)}
        rows, columns = [*p.shape[:-1], 1], [*p.shape[:-2], 1, p.shape[-1]]
        return {"row_var": create.zeros(rows, dtype=p.dtype), "col_var": create.zeros(columns, dtype=p.dtype)}

    def _step(self, group: Group, params: list[Any]) -> None:
        lr, (eps1, eps2) = number(group["lr"]), group["eps"]
        for count, each in self._counted(params, self._start):
            share, rho = count ** group["beta2_decay"], min(lr, 1 / count**0.5)
            for p in each:
                own, g = self.state[p], self._gradient(p, group)
                least = finfo(p.dtype).eps if eps1 is None else eps1
                size = (p.norm(2) / p.numel() ** 0.5).clamp(min=eps2) * rho
                if group["weight_decay"]:
                    p.mul_(1 - lr * group["weight_decay"])
                if p.ndim > 1:
                    row, column = own["row_var"], own["col_var"]
                    row.lerp_(g.norm(dim=-1, keepdim=True).square() / g.size(-1), share)
                    column.lerp_(g.norm(dim=-2, keepdim=True).square() / g.size(-2), share)
                    variance = (row @ column) / row.mean(-2, keepdim=True).clamp(min=least)
                else:
                    variance = own["variance"].lerp_(g * g, share)
                update = variance.clamp(min=least * least).rsqrt() * g
                limit = (update.norm(2) / (update.numel() ** 0.5 * group["d"])).clamp(min=1.0)
                p.sub_(update * (size / limit))


class Muon(Unfused):
    """Momentum whose matrix is made nearly orthogonal by Newton-Schulz iterations in bfloat16; for matrices only."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95, nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315), eps: float = 1e-7, ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:  # fmt: skip
        if isinstance(lr, Handle) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        for name, value in (("Learning rate", lr), ("momentum", momentum), ("weight decay", weight_decay)):
            if not isinstance(value, Handle) and value < 0:
                raise ValueError(f"{name} should be >= 0 but is: {value}")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        defaults = {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov, "ns_coefficients": ns_coefficients,
            "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn,
        }  # fmt: skip
        super().__init__(params, defaults)
        for p in (p for g in self.param_groups for p in g["params"]):
            if p.ndim != 2:
                raise ValueError(f"Muon only supports 2D parameters whereas we found a parameter with size: {p.size()}")

    def _step(self, group: Group, params: list[Any]) -> None:
        lr, momentum = number(group["lr"]), group["momentum"]
        for p in params:
            own, g = self.state[p], p._grad
            if "momentum_buffer" not in own:
                own["momentum_buffer"] = create.zeros_like(p)
            held = own["momentum_buffer"].lerp_(g, 1 - momentum)
            update = g.lerp(held, momentum) if group["nesterov"] else held
            update = orthogonal(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
            rows, columns = p.shape
            ratio = (
                0.2 * math.sqrt(max(rows, columns))
                if group["adjust_lr_fn"] == "match_rms_adamw"
                else math.sqrt(max(1, rows / columns))
            )
            p.mul_(1 - lr * group["weight_decay"])
            p.sub_(update.to(p.dtype) * (lr * ratio))


def orthogonal(g: Any, coefficients: tuple[float, float, float], steps: int, eps: float) -> Any:
    """Give a matrix with nearly the singular vectors of ``g`` and singular values near 1: bfloat16."""
    if steps >= 100:
        raise ValueError("Number of steps must be less than 100 for computational efficiency")
    if len(coefficients) != 3:
        raise ValueError("Coefficients must be a tuple of exactly 3 values")
    a, b, c = coefficients
    tall = g.shape[0] > g.shape[1]
    x = g.to(bfloat16).T if tall else g.to(bfloat16)
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        wide, gram = x.to(float32), gram.to(float32)  # torch's addmm rounds once; products of bfloat16 are exact in float32
        both = (gram * b + (gram @ gram) * c).to(bfloat16)
        x = (wide * a + both.to(float32) @ wide).to(bfloat16)
    return x.T if tall else x
