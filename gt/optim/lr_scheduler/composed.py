"""Schedules made of schedules. Source: torch.optim.lr_scheduler."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from gt.optim.lr_scheduler.plateau import ReduceLROnPlateau
from gt.optim.lr_scheduler.scheduler import LRScheduler
from gt.optim.optimizer import Optimizer


class _Composed(LRScheduler):
    """What both share: parts on one optimizer, and their state dicts."""

    _unsaved = ("optimizer", "_schedulers")
    _schedulers: list[Any]

    def _take(self, optimizer: Optimizer | None, schedulers: Sequence[Any], verb: str) -> None:
        name = type(self).__name__
        if not schedulers:
            raise ValueError(f"{name} expects at least one scheduler{verb}, but got no scheduler.")
        optimizer = optimizer or schedulers[0].optimizer
        for i, part in enumerate(schedulers):
            if not hasattr(part, "optimizer"):
                raise TypeError(f"{name} at index {i} should have `optimizer` as its attribute.")
            if isinstance(part, ReduceLROnPlateau):
                raise ValueError(
                    f"{name} does not support `ReduceLROnPlateau` scheduler as it requires additional kwargs to be specified when calling "
                    f"`step`, but got one at index {i} in the given schedulers sequence."
                )
            if part.optimizer is not optimizer:
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer, but got scheduler {type(part).__name__} at index {i} "
                    f"has {part.optimizer}, which is different from {type(optimizer).__name__}."
                )
        self.optimizer, self._schedulers = optimizer, list(schedulers)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"_schedulers": [part.state_dict() for part in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for part, given in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            part.load_state_dict(given)


class SequentialLR(_Composed):
    """One schedule after the other, changing at milestones."""

    def __init__(self, optimizer: Optimizer, schedulers: list[Any], milestones: list[int], last_epoch: int = -1) -> None:
        self._take(optimizer, schedulers, "")
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than the number of milestone points, but got "
                f"number of schedulers {len(schedulers)} and the number of milestones to be equal to {len(milestones)}"
            )
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        _undo(self)
        first = self._schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch += 1
        at = bisect_right(self._milestones, self.last_epoch)
        part = self._schedulers[at]
        if at > 0 and self._milestones[at - 1] == self.last_epoch:
            part._update_lr(0)
        else:
            part.step()
        self._last_lr = part.get_last_lr()


def _undo(schedule: Any) -> None:
    """Take back the step that every schedule takes when made."""
    if hasattr(schedule, "_schedulers"):
        for part in schedule._schedulers:
            _undo(part)
    elif hasattr(schedule, "last_epoch"):
        schedule.last_epoch -= 1


class ChainedScheduler(_Composed):
    """All schedules at every step, one on top of the other."""

    def __init__(self, schedulers: Sequence[Any], optimizer: Optimizer | None = None) -> None:
        self._take(optimizer, schedulers, " to be chained")
        self._last_lr = self._current()

    def step(self, epoch: int | None = None) -> None:
        for part in self._schedulers:
            part.step()
        self._last_lr = self._current()
