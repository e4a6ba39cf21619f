"""Stochastic gradient descent. Source: torch.optim.SGD."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.functions.promote import operand
from gt.ir.ops import OPS
from gt.optim.optimizer import Optimizer
from gt.trace import record


class SGD(Optimizer):
    """``p -= lr * g``, with momentum, Nesterov and weight decay. ``lr`` may change at every step."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0, dampening: float = 0, weight_decay: float = 0,
        nesterov: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        if lr < 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if momentum < 0.0:
            raise ValueError(f"Invalid momentum value: {momentum}")
        if weight_decay < 0.0:
            raise ValueError(f"Invalid weight_decay value: {weight_decay}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        super().__init__(
            params,
            {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize},
        )

    def _step(self, group: dict[str, Any], params: list[Any]) -> None:
        if not group["momentum"]:
            self._update(group, params, [], first=False)
            return
        started = [p for p in params if self.state[p].get("momentum_buffer") is not None]
        fresh = [p for p in params if self.state[p].get("momentum_buffer") is None]
        if started:
            self._update(group, started, [self.state[p]["momentum_buffer"] for p in started], first=False)
        if fresh:
            self._update(group, fresh, [p._grad for p in fresh], first=True)

    def _update(self, group: dict[str, Any], params: list[Any], buffers: list[Any], first: bool) -> None:
        n = len(params)
        attrs = (
            ("num", n), ("momentum", float(group["momentum"])), ("nesterov", group["nesterov"]),
            ("weight_decay", float(group["weight_decay"])), ("dampening", float(group["dampening"])),
            ("maximize", group["maximize"]), ("first", first),
        )  # fmt: skip
        lr = operand(group["lr"], params[0]._type.dtype)
        out = record(OPS["sgd_step"], (*params, *[p._grad for p in params], *buffers, lr), attrs)
        outs = out if isinstance(out, tuple) else (out,)
        for p, value in zip(params, outs, strict=False):
            p._assign(value)
        for p, value in zip(params, outs[n:], strict=True) if buffers else ():
            if first:
                self.state[p]["momentum_buffer"] = value
            else:
                self.state[p]["momentum_buffer"]._assign(value)
