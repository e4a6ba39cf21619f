"""What the losses of microbatches come to: the mean of rows, their sum, or the mean of the targets that count.

Owns: ``Whole`` and ``whole_loss``, which reads off one of gt's losses how it is reduced. Next: ``pipelining``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gt import nn
from gt.nn import functional as F  # noqa: N812 - torch's name
from gt.nn.functional.loss import legacy
from gt.tensor import Tensor

Loss = Callable[[Any, Any], Tensor]
BY_CLASS: dict[Any, Any] = {nn.CrossEntropyLoss: F.cross_entropy, nn.NLLLoss: F.nll_loss}
GIVEN = ("weight", "ignore_index", "label_smoothing")


@dataclass(frozen=True)
class Whole:
    """How a microbatch's loss is made and what it counts. ``reduction`` None: not known, taken as a mean over rows.

    ``counted``: a mean over targets that count: ``run`` gives their sum, to be divided by ``count`` of the whole batch.
    """

    run: Loss
    reduction: str | None = None
    counted: bool = False
    weight: Tensor | None = None
    ignore_index: int = -100

    def counts(self, target: Any) -> bool:
        return self.counted and isinstance(target, Tensor) and target.dtype.kind in "iu"

    def count(self, target: Tensor) -> Tensor:
        """Give how many targets count, each by the weight of its class."""
        valid = target != self.ignore_index
        if self.weight is None:
            return valid.sum()
        return self.weight[target.masked_fill(~valid, 0)].masked_fill(~valid, 0).sum()

    def is_sum(self, loss: Tensor) -> bool:
        """Whether a loss whose reduction nobody told ends in a sum."""
        made = loss.grad_fn if self.reduction is None else None
        return made is not None and (made.name() == "SumBackward0" or made._attrs().get("reduction") == "sum")


def whole_loss(loss_fn: Loss, reduction: str | None) -> Whole:
    """Read off a loss, if it is one of gt's or a partial of one, how it is reduced; ``reduction``: as the caller says."""
    function, given = _opened(loss_fn)
    known = function is not None and getattr(function, "__module__", "").startswith("gt.nn.functional")
    if known:
        own = legacy(given.get("size_average"), given.get("reduce"), given.get("reduction", "mean"))
        if reduction not in (None, own):
            raise ValueError(f"pipeline: the loss's own reduction is {own!r}, reduction={reduction!r} was given: make them equal")
        reduction = own
    if function not in BY_CLASS.values() or reduction != "mean" or set(given) - {*GIVEN, "reduction"}:
        return Whole(loss_fn, reduction)

    def sums(made: Any, target: Any) -> Tensor:
        made = made.float() if made.dtype.itemsize == 2 else made  # a sum may be more than a half holds
        return function(made, target, **{**given, "reduction": "sum"})  # type: ignore[misc]

    return Whole(sums, "mean", True, given.get("weight"), given.get("ignore_index", -100))


def _opened(loss_fn: Any) -> tuple[Any, dict[str, Any]]:
    """Give the function behind a loss and its keywords; None if it cannot be told."""
    if isinstance(loss_fn, functools.partial) and not loss_fn.args:
        function, given = _opened(loss_fn.func)
        return function, {**given, **loss_fn.keywords}
    module = getattr(loss_fn, "__self__", loss_fn)
    if not isinstance(module, nn.Module) or (module is not loss_fn and getattr(loss_fn, "__func__", None) is not type(module).forward):
        return loss_fn, {}
    made: Any = next((c for c in type(module).__mro__ if c.__module__ == "gt.nn.loss"), None)
    if made is None or type(module).forward is not made.forward or not hasattr(module, "reduction"):
        return loss_fn, {}
    if made not in BY_CLASS:
        return F.mse_loss, {"reduction": module.reduction}  # any that is no mean over classes
    return BY_CLASS[made], {name: getattr(module, name) for name in (*GIVEN, "reduction") if hasattr(module, name)}


__all__ = ["Whole", "whole_loss"]
