"""RMSprop. Source: torch.optim.RMSprop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.functions import create
from gt.optim.optimizer import INF, Group, Optimizer, check


class RMSprop(Optimizer):
    """Steps by gradients over the root of the running mean of their squares."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0,
        momentum: float = 0, centered: bool = False, capturable: bool = False, foreach: bool | None = None, maximize: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        check(lr, epsilon=(eps, INF), momentum=(momentum, INF), weight_decay=(weight_decay, INF), alpha=(alpha, INF))
        defaults = {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered, "weight_decay": weight_decay,
            "capturable": capturable, "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _step(self, group: Group, params: list[Any]) -> None:
        names = ["square_avg"]
        names += ["grad_avg"] if group["centered"] else []
        names += ["momentum_buffer"] if group["momentum"] > 0 else []
        attrs = (
            ("alpha", float(group["alpha"])), ("eps", float(group["eps"])), ("weight_decay", float(group["weight_decay"])),
            ("momentum", float(group["momentum"])), ("centered", bool(group["centered"])), ("maximize", bool(group["maximize"])),
        )  # fmt: skip
        self._counted(params, lambda p: {name: create.zeros_like(p) for name in names})
        self._record("rmsprop_step", params, names, [group["lr"]], attrs)
