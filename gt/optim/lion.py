"""Lion, which torch does not have, with torch's conventions. Source: Chen et al. 2023, "Symbolic discovery of optimization algorithms"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.functions import create
from gt.optim.optimizer import INF, Group, Optimizer, check, check_betas, starting


class Lion(Optimizer):
    """Steps by the sign of a blend of the running mean and the gradient; weight decay apart, as AdamW."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        check(lr)
        check_betas(betas)
        check(0.0, weight_decay=(weight_decay, INF))
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    def _step(self, group: Group, params: list[Any]) -> None:
        attrs = (
            ("beta1", float(group["betas"][0])), ("beta2", float(group["betas"][1])), ("weight_decay", float(group["weight_decay"])),
            ("maximize", bool(group["maximize"])),
        )  # fmt: skip
        new = [p for p in params if not self.state[p]]
        if new:
            with starting():
                self.state.update({p: {"exp_avg": create.zeros_like(p)} for p in new})
        self._record("lion_step", params, ["exp_avg"], [group["lr"]], attrs)
