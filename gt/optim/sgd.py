"""Stochastic gradient descent. Source: torch.optim.SGD."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.ir.ops import OPS
from gt.optim.optimizer import INF, Group, Optimizer, check, in_pairs, scalar


class SGD(Optimizer):
    """``p -= lr * g``, with momentum, Nesterov and weight decay. ``lr`` may change at every step."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-3, momentum: float = 0, dampening: float = 0, weight_decay: float = 0,
        nesterov: bool = False, *, maximize: bool = False, foreach: bool | None = None, differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:  # fmt: skip
        check(lr, momentum=(momentum, INF), weight_decay=(weight_decay, INF))
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
            "maximize": maximize, "foreach": foreach, "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _step(self, group: Group, params: list[Any]) -> None:
        attrs = (
            ("momentum", float(group["momentum"])), ("nesterov", bool(group["nesterov"])),
            ("weight_decay", float(group["weight_decay"])), ("dampening", float(group["dampening"])),
            ("maximize", bool(group["maximize"])),
        )  # fmt: skip
        if not group["momentum"]:
            self._record("sgd_step", params, [], [group["lr"]], (*attrs, ("first", False)))
            return
        fresh = [p for p in params if self.state[p].get("momentum_buffer") is None]
        started = [p for p in params if self.state[p].get("momentum_buffer") is not None]
        if started:
            self._record("sgd_step", started, ["momentum_buffer"], [group["lr"]], (*attrs, ("first", False)))
        if fresh:
            self._start(group, fresh, attrs)

    def _start(self, group: Group, params: list[Any], attrs: tuple[tuple[str, Any], ...]) -> None:
        """Take the first step of parameters with momentum: their buffers start as this step's gradients."""
        n, grads = len(params), [p._grad for p in params]
        inputs = (*params, *grads, *grads, scalar(group["lr"]))
        out = in_pairs(OPS["sgd_step"], inputs, (("num", n), *attrs, ("first", True)), [*params, *params])
        for p, value, buffer in zip(params, out[:n], out[n:], strict=True):
            p._assign(value)
            self.state[p]["momentum_buffer"] = buffer
