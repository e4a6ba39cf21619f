"""``autograd.function``: what a user's own ops are made of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gt.function import Function, FunctionCtx
from gt.grad_mode import is_grad_enabled, no_grad
from gt.handle import Handle


class _Once(Function):
    """Passes gradients on, and has none of its own."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Any) -> Any:
        out = tuple(t.clone() for t in tensors[:count])
        return out if len(out) > 1 else out[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")


def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the backward of a Function that is not made of differentiable ops: differentiating its result is a RuntimeError."""

    @functools.wraps(function)
    def wrapped(ctx: Any, *args: Any) -> Any:
        with no_grad():
            out = function(ctx, *args)
        following = [a for a in args if isinstance(a, Handle) and a._rg]
        if not is_grad_enabled() or not following:
            return out
        outputs = list(out) if isinstance(out, tuple) else [out]
        at = [i for i, o in enumerate(outputs) if isinstance(o, Handle) and o.dtype.is_differentiable]
        if not at:
            return out
        got = _Once.apply(len(at), *(outputs[i] for i in at), *following)
        for i, t in zip(at, got if isinstance(got, tuple) else (got,), strict=True):
            outputs[i] = t
        return tuple(outputs) if isinstance(out, tuple) else outputs[0]

    return wrapped


__all__ = ["Function", "FunctionCtx", "once_differentiable"]
