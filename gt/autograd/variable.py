"""``autograd.Variable``: torch's old name for a tensor that gradients may be asked of."""

from __future__ import annotations

from typing import Any

from gt.handle import Handle


class _Variable(type):
    def __call__(cls, data: Any, requires_grad: bool = False, volatile: bool = False) -> Any:
        out = data.detach()
        return out.requires_grad_() if requires_grad else out

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Handle)


class Variable(metaclass=_Variable):
    """Every tensor is one; called, it gives the values of a tensor, as a leaf."""


__all__ = ["Variable"]
