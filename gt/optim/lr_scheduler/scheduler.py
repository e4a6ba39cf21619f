"""``LRScheduler``: what schedules share. Source: torch.optim.lr_scheduler.

A schedule says ``get_lr()``, the groups' rates at ``last_epoch``, mostly from the current rates, so that schedules chain; and where it
has one, a closed form for ``step(epoch)``. Next: ``decay``, ``cyclic``, ``composed``, ``plateau``.
"""

from __future__ import annotations

import types
import warnings
from typing import Any

from gt.optim.optimizer import Optimizer
from gt.trace import state


def refuse_in_jit() -> None:
    """A replay runs no Python, so a schedule would stand still."""
    if state.recorder is not None:
        state.recorder.refuse("a learning rate schedule steps", "step it outside: its rates are read at each call")


class LRScheduler:
    """Base of schedules: sets each group's ``lr`` at every ``step()``."""

    _is_initial = False
    _get_lr_called_within_step = False  # what schedules written for torch ask
    _unsaved: tuple[str, ...] = ("optimizer",)

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming scheduler with last_epoch >= 0: load the "
                    "optimizer's state first, or leave last_epoch out"
                )
        self.base_lrs: list[Any] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[Any]:
        """Give each group's rate at ``last_epoch``."""
        raise NotImplementedError

    def get_last_lr(self) -> list[Any]:
        """Give the rates that were set last."""
        return self._last_lr

    def _current(self, factor: float | None = None) -> list[Any]:
        """Give the groups' present rates, times ``factor``."""
        return [g["lr"] if factor is None else g["lr"] * factor for g in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch (or to ``epoch``) and set the rates."""
        refuse_in_jit()
        if self._step_count == 1 and not getattr(self.optimizer, "_opt_called", False):
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. You should call them in the opposite order: "
                "`optimizer.step()` before `lr_scheduler.step()`. Failure to do this will result in skipping the first value of the "
                "learning rate schedule.",
                UserWarning,
                stacklevel=2,
            )
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        self._get_lr_called_within_step = True
        try:
            if epoch is None:
                self.last_epoch += 1
                values = self.get_lr()
            else:
                self.last_epoch = epoch
                closed = getattr(self, "_get_closed_form_lr", None)
                values = closed() if closed is not None else self.get_lr()
        finally:
            self._get_lr_called_within_step = False
        self._set(values)

    def _set(self, values: list[Any]) -> None:
        for group, lr in zip(self.optimizer.param_groups, values, strict=True):
            group["lr"] = lr
        self._last_lr: list[Any] = [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Give everything but the optimizer and plain functions; callable objects as their attributes."""
        return {k: v for k, v in self.__dict__.items() if k not in self._unsaved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        self.__dict__.update(state_dict)


class _LRScheduler(LRScheduler):
    """The base's name before torch 2.0, which schedules of one's own may still have."""


def kept_functions(functions: list[Any]) -> list[Any]:
    """Give what a state dict keeps of functions: the attributes of callable objects, nothing of plain functions."""
    return [None if isinstance(fn, types.FunctionType) else fn.__dict__.copy() for fn in functions]


def each_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """Give one value for each group."""
    if not isinstance(value, list | tuple):
        return [value] * len(optimizer.param_groups)
    if len(value) != len(optimizer.param_groups):
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has {len(value)} values, param_groups has "
            f"{len(optimizer.param_groups)}."
        )
    return list(value)
