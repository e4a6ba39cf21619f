"""Averages of a model's parameters over steps, and the schedule that goes with them. Source: torch.optim.swa_utils."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

from gt.autograd import no_grad
from gt.functions import create
from gt.ir.types import int64
from gt.nn.module import Module
from gt.nn.normalization import _BatchNorm
from gt.optim.lr_scheduler.scheduler import LRScheduler, each_group
from gt.optim.optimizer import Optimizer

Average = Callable[[Any, Any, Any], Any]


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """Give the function that moves an average towards a parameter by 1 - decay."""
    _check_decay(decay)

    def ema_update(ema_param: Any, current_param: Any, num_averaged: Any) -> Any:
        with no_grad():
            return decay * ema_param + (1 - decay) * current_param

    return ema_update


def get_swa_avg_fn() -> Average:
    """Give the function that makes an average of n one of n + 1."""

    def swa_update(averaged_param: Any, current_param: Any, num_averaged: Any) -> Any:
        with no_grad():
            return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return swa_update


def _in_place(average: Average) -> Callable[[list[Any], list[Any], Any], None]:
    def update(averaged: list[Any], current: list[Any], num_averaged: Any) -> None:
        with no_grad():
            for a, c in zip(averaged, current, strict=True):
                a.copy_(average(a, c, num_averaged))

    return update


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable[[list[Any], list[Any], Any], None]:
    """Give the function that moves averages towards parameters by 1 - decay, in place."""
    return _in_place(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> Callable[[list[Any], list[Any], Any], None]:
    """Give the function that makes averages of n those of n + 1, in place."""
    return _in_place(get_swa_avg_fn())


class AveragedModel(Module):
    """A copy of a model whose parameters are the averages of those that ``update_parameters`` is given.

    ``avg_fn(average, parameter, n)`` gives a new average, ``multi_avg_fn(averages, parameters, n)`` changes all in place; equal weights
    if neither is given. ``use_buffers``: buffers are averaged too, else copied. Nothing is read.
    """

    n_averaged: Any

    def __init__(
        self, model: Module, device: Any = None, avg_fn: Average | None = None,
        multi_avg_fn: Callable[[list[Any], list[Any], Any], None] | None = None, use_buffers: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        self.register_buffer("n_averaged", create.tensor(0, dtype=int64))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take a model's parameters into the averages; the first call copies them."""
        with no_grad():
            self._update(model)

    def _update(self, model: Module) -> None:
        own, given = (
            [t.detach() for t in (itertools.chain(m.parameters(), m.buffers()) if self.use_buffers else m.parameters())]
            for m in (self.module, model)
        )
        first = self.n_averaged == 0
        if self.multi_avg_fn is not None:
            self.multi_avg_fn(own, given, self.n_averaged)
        else:
            average = self.avg_fn or get_swa_avg_fn()
            for a, c in zip(own, given, strict=True):
                a.copy_(average(a, c, self.n_averaged))
        for a, c in zip(own, given, strict=True):
            a.copy_(c.where(first, a))
        if not self.use_buffers:
            for a, c in zip(self.module.buffers(), model.buffers(), strict=True):
                a.detach().copy_(c.detach())
        self.n_averaged += 1


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Compute the running statistics of a model's batch norms anew, as averages over the batches of a loader."""
    momenta = {m: m.momentum for m in model.modules() if isinstance(m, _BatchNorm)}
    if not momenta:
        return
    for m in momenta:
        m.reset_running_stats()
    was_training = model.training
    model.train()
    for m in momenta:
        m.momentum = None
    with no_grad():
        for batch in loader:
            model(batch[0] if isinstance(batch, list | tuple) else batch)
    for m, momentum in momenta.items():
        m.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """Goes over to the rate ``swa_lr`` in ``anneal_epochs`` epochs, along a cosine or a line, and stays there."""

    _unsaved = ("optimizer", "anneal_func")

    def __init__(
        self, optimizer: Optimizer, swa_lr: Any, anneal_epochs: int = 10, anneal_strategy: str = "cos", last_epoch: int = -1
    ) -> None:
        for rate, group in zip(each_group("swa_lr", optimizer, swa_lr), optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def anneal_func(self, t: float) -> float:
        """Give how much of the way is gone at a share ``t`` of the time."""
        return (1 - math.cos(math.pi * t)) / 2 if self._anneal_strategy == "cos" else t

    def get_lr(self) -> list[Any]:
        """Give each group's rate."""
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = (self.anneal_func(max(0, min(1, s / max(1, self.anneal_epochs)))) for s in (step - 1, step))
        start = [
            g["swa_lr"] if before == 1 else (g["lr"] - before * g["swa_lr"]) / (1 - before) for g in self.optimizer.param_groups
        ]
        return [g["swa_lr"] * now + lr * (1 - now) for g, lr in zip(self.optimizer.param_groups, start, strict=True)]


__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn", "update_bn",
]  # fmt: skip
