"""Adadelta, Adamax, NAdam and RAdam. Source: torch.optim.

What depends on the step count alone is computed here, in numbers. Next: ``gt.ir.ops.optim_adaptive`` (meaning).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.functions import create
from gt.optim.optimizer import INF, Group, Optimizer, check, check_betas
from gt.optim.parameter_state import count_of, rounded


def _betas(group: Group) -> tuple[tuple[str, Any], ...]:
    return (("beta1", float(group["betas"][0])), ("beta2", float(group["betas"][1])))


def _common(group: Group) -> tuple[tuple[str, Any], ...]:
    return (
        ("eps", float(group["eps"])), ("weight_decay", float(group["weight_decay"])), ("maximize", bool(group["maximize"])),
    )  # fmt: skip


class Adadelta(Optimizer):
    """Steps scaled by the running sizes of past steps and gradients."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0,
        foreach: bool | None = None, *, capturable: bool = False, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check(lr, rho=(rho, 1.0), epsilon=(eps, INF), weight_decay=(weight_decay, INF))
        defaults = {
            "lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize, "capturable": capturable,
            "foreach": foreach, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _step(self, group: Group, params: list[Any]) -> None:
        names = ["square_avg", "acc_delta"]
        self._counted(params, lambda p: {name: create.zeros_like(p) for name in names})
        self._record("adadelta_step", params, names, [group["lr"]], (("rho", float(group["rho"])), *_common(group)))


class Adamax(Optimizer):
    """Adam with the largest gradient seen, slowly forgotten, in place of the root of squares."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, foreach: bool | None = None, *, maximize: bool = False, differentiable: bool = False,
        capturable: bool = False,
    ) -> None:  # fmt: skip
        check(lr, epsilon=(eps, INF))
        check_betas(betas)
        check(0.0, weight_decay=(weight_decay, INF))
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _step(self, group: Group, params: list[Any]) -> None:
        names = ["exp_avg", "exp_inf"]
        for count, each in self._counted(params, lambda p: {name: create.zeros_like(p) for name in names}):
            self._record("adamax_step", each, names, [group["lr"], count], (*_betas(group), *_common(group)))


class NAdam(Optimizer):
    """Adam with Nesterov momentum, whose strength grows over time."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False, *, foreach: bool | None = None,
        maximize: bool = False, capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check(lr, epsilon=(eps, INF))
        check_betas(betas)
        check(0.0, weight_decay=(weight_decay, INF), momentum_decay=(momentum_decay, INF))
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _step(self, group: Group, params: list[Any]) -> None:
        names, lr, beta1, decay = (
            ["exp_avg", "exp_avg_sq"],
            group["lr"],
            float(group["betas"][0]),
            group["momentum_decay"],
        )
        attrs = (*_betas(group), *_common(group), ("decoupled", bool(group["decoupled_weight_decay"])))
        start = lambda p: {"mu_product": 1.0, **{name: create.zeros_like(p) for name in names}}  # noqa: E731
        for count, each in self._counted(params, start):
            now, later = (beta1 * (1.0 - 0.5 * 0.96 ** (t * decay)) for t in (count, count + 1))
            product = rounded(count_of(self.state[each[0]], "mu_product") * rounded(now))  # in torch's precision
            for p in each:
                self.state[p]["mu_product"] = product
            sizes = [lr * ((1.0 - now) / (1.0 - product)), lr * (later / (1.0 - product * later))]
            self._record("nadam_step", each, names, [lr, *sizes, count], attrs)


class RAdam(Optimizer):
    """Adam that steps plainly while the mean of squares rests on too few gradients."""

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, decoupled_weight_decay: bool = False, *, foreach: bool | None = None, maximize: bool = False,
        capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check(lr, epsilon=(eps, INF))
        check_betas(betas)
        check(0.0, weight_decay=(weight_decay, INF))
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize, "foreach": foreach,
            "capturable": capturable, "decoupled_weight_decay": decoupled_weight_decay, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _step(self, group: Group, params: list[Any]) -> None:
        names, lr, (beta1, beta2) = ["exp_avg", "exp_avg_sq"], group["lr"], map(float, group["betas"])
        attrs = (*_betas(group), *_common(group), ("decoupled", bool(group["decoupled_weight_decay"])))
        for count, each in self._counted(params, lambda p: {name: create.zeros_like(p) for name in names}):
            size, bias2 = lr / (1 - beta1**count), 1 - beta2**count
            longest = 2 / (1 - beta2) - 1
            length = longest - 2 * count * beta2**count / bias2
            if length > 5.0:
                ratio = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
                scalars = [lr, 0.0, size * (ratio * bias2) ** 0.5]
            else:
                scalars = [lr, size, 0.0]
            self._record("radam_step", each, names, scalars, attrs)
