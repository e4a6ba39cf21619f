"""Recompute in the backward instead of keeping activations. Source: torch.utils.checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt import autograd
from gt.handle import Handle
from gt.random import default_generator


class _Checkpoint(autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        ctx.function, ctx.args = function, args
        ctx.rng = default_generator().get_state() if preserve else None
        return function(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        generator = default_generator()
        now = generator.get_state()
        if ctx.rng is not None:
            generator.set_state(ctx.rng)
        try:
            args = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, Handle) else a for a in ctx.args]
            with autograd.enable_grad():
                out = ctx.function(*args)
        finally:
            if ctx.rng is not None:
                generator.set_state(now)
        outputs = out if isinstance(out, tuple) else (out,)
        pairs: list[tuple[Any, Any]] = [(o, g) for o, g in zip(outputs, grads, strict=True) if isinstance(o, Handle) and o.requires_grad]
        for o, g in pairs:
            o.backward(g, retain_graph=True)
        return (None, None, *(a.grad if isinstance(a, Handle) and a.requires_grad else None for a in args))


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True, **kwargs: Any
) -> Any:
    """Run ``function(*args)`` without keeping its activations; the backward runs it again, with the same random values."""
    if kwargs:
        return _Checkpoint.apply(lambda *a: function(*a, **kwargs), preserve_rng_state, *args)
    return _Checkpoint.apply(function, preserve_rng_state, *args)


def checkpoint_sequential(functions: Any, segments: int, input: Any, use_reentrant: bool | None = None) -> Any:
    """Run modules in order in ``segments`` checkpoints."""
    modules = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = -(-len(modules) // segments)
    for at in range(0, len(modules), size):
        part = modules[at : at + size]

        def run(x: Any, part: list[Any] = part) -> Any:
            for module in part:
                x = module(x)
            return x

        input = checkpoint(run, input)
    return input
