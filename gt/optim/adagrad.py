"""Adagrad. Source: torch.optim.Adagrad."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.functions import create
from gt.optim.optimizer import INF, Group, Optimizer, check, starting


class Adagrad(Optimizer):
    """Steps by gradients over the root of the sum of their squares."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
        initial_accumulator_value: float = 0, eps: float = 1e-10, foreach: bool | None = None, *, maximize: bool = False,
        differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        check(
            lr, lr_decay=(lr_decay, INF), weight_decay=(weight_decay, INF),
            initial_accumulator_value=(initial_accumulator_value, INF), epsilon=(eps, INF),
        )  # fmt: skip
        defaults = {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)
        with starting():
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p] = self._own_state(step=0.0, **self._fresh(group, p))

    def _fresh(self, group: Group, p: Any) -> dict[str, Any]:
        start = float(group["initial_accumulator_value"])
        return {"sum": create.full_like(p, complex(start, start) if p.is_complex() else start)}

    def _step(self, group: Group, params: list[Any]) -> None:
        attrs = (
            ("lr_decay", float(group["lr_decay"])), ("weight_decay", float(group["weight_decay"])), ("eps", float(group["eps"])),
            ("maximize", bool(group["maximize"])),
        )  # fmt: skip
        for count, each in self._counted(params, lambda p: self._fresh(group, p)):
            self._record("adagrad_step", each, ["sum"], [group["lr"], count], attrs)
