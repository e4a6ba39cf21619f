"""Adam and AdamW. Source: torch.optim.Adam, Loshchilov and Hutter 2019."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.functions import create
from gt.optim.optimizer import INF, Group, Optimizer, check, check_betas
from gt.optim.parameter_state import number


class Adam(Optimizer):
    """Steps by the running mean of gradients over the root of the running mean of their squares."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None, maximize: bool = False,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None, decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        check(lr, epsilon=(eps, INF))
        if len({hasattr(b, "item") for b in betas}) > 1:
            raise ValueError("betas must be either both floats or both Tensors")
        betas = (number(betas[0]), number(betas[1]))
        check_betas(betas)
        check(0.0, weight_decay=(weight_decay, INF))
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize,
            "foreach": foreach, "capturable": capturable, "differentiable": differentiable, "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _step(self, group: Group, params: list[Any]) -> None:
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
        op = "adamw_step" if group["decoupled_weight_decay"] else "adam_step"
        attrs = (
            ("beta1", float(group["betas"][0])), ("beta2", float(group["betas"][1])), ("eps", float(group["eps"])),
            ("weight_decay", float(group["weight_decay"])), ("amsgrad", bool(group["amsgrad"])), ("maximize", bool(group["maximize"])),
        )  # fmt: skip
        for count, each in self._counted(params, lambda p: {name: create.zeros_like(p) for name in names}):
            self._record(op, each, names, [group["lr"], count], attrs)


class AdamW(Adam):
    """Adam whose weight decay does not pass through the averages."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False, foreach: bool | None = None,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize, capturable=capturable,
            differentiable=differentiable, fused=fused, decoupled_weight_decay=True,
        )  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As Adam's; weight decay stays decoupled."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True
