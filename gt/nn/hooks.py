"""Hooks of modules: what is called around ``forward``, around a backward, and around state dicts.

Owns: the hooks of all modules, and how a module is called through hooks. Next: ``module``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.function import Function
from gt.handle import Handle
from gt.hooks import RemovableHandle, Table, add

Hook = Callable[..., Any]

everywhere_before: Table = {}  # hooks on every module: (hook, with_kwargs)
everywhere_after: Table = {}


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, args)`` before the forward of every module."""
    return add(everywhere_before, (hook, False))


def register_module_forward_hook(hook: Hook, *, with_kwargs: bool = False, always_call: bool = False) -> RemovableHandle:
    """Call ``hook(module, args, output)`` after the forward of every module."""
    return add(everywhere_after, (hook, with_kwargs, always_call))


def call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``module.forward`` through its hooks."""
    called: set[int] = set()
    try:
        return _call(module, args, kwargs, called)
    except Exception:
        for number, (hook, with_kwargs, always) in [*everywhere_after.items(), *module._forward_hooks.items()]:
            if always and number not in called:
                _after(module, hook, with_kwargs, args, kwargs, None)
        raise


def _call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], called: set[int]) -> Any:
    for hook, with_kwargs in (*everywhere_before.values(), *module._forward_pre_hooks.values()):
        if with_kwargs:
            changed = hook(module, args, kwargs)
            if changed is not None:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise RuntimeError(
                        f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {changed}."
                    )
                args, kwargs = changed
        else:
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    watch = _Backward(module) if module._backward_hooks or module._backward_pre_hooks else None
    if watch is not None:
        args = watch.inputs(args)
    out = module.forward(*args, **kwargs)
    for number, (hook, with_kwargs, _) in [*everywhere_after.items(), *module._forward_hooks.items()]:
        called.add(number)
        changed = _after(module, hook, with_kwargs, args, kwargs, out)
        out = out if changed is None else changed
    return out if watch is None else watch.outputs(out)


def _after(module: Any, hook: Hook, with_kwargs: bool, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
    return hook(module, args, kwargs, out) if with_kwargs else hook(module, args, out)


class _Watched(Function):
    """Hands tensors on, and all their gradients at once to a callback, whose answer replaces them."""

    @staticmethod
    def forward(ctx: Any, seen: Callable[[tuple[Any, ...]], tuple[Any, ...]], *tensors: Any) -> tuple[Any, ...]:
        ctx.seen = seen
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return None, *ctx.seen(grads)


def _watched(values: tuple[Any, ...], seen: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Pass those of ``values`` that want gradients through ``_Watched``; ``seen`` gets and gives one for each value."""
    tracked = [i for i, v in enumerate(values) if isinstance(v, Handle) and v._rg]
    if not tracked:
        return values

    def spread(grads: tuple[Any, ...]) -> tuple[Any, ...]:
        each: list[Any] = [None] * len(values)
        for i, g in zip(tracked, grads, strict=True):
            each[i] = g
        given = seen(tuple(each))
        return tuple(given[i] for i in tracked)

    out = list(values)
    for i, passed in zip(tracked, _Watched.apply(spread, *(values[i] for i in tracked)), strict=True):
        out[i] = passed
    return tuple(out)


class _Backward:
    """Calls a module's backward hooks: gradients reach the call's outputs first, then its inputs."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.grad_output: tuple[Any, ...] | None = None
        self.num_inputs = 0
        self.reaches_inputs = False

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self.num_inputs = len(args)
        self.reaches_inputs = any(isinstance(a, Handle) and a._rg for a in args)
        return _watched(args, self._input_gradients)

    def outputs(self, out: Any) -> Any:
        if isinstance(out, Handle):
            return _watched((out,), self._output_gradients)[0]
        return _watched(out, self._output_gradients) if isinstance(out, tuple) else out

    def _output_gradients(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in list(self.module._backward_pre_hooks.values()):
            grads = _replaced(hook(self.module, grads), grads, "backward pre hook", "grad_output")
        self.grad_output = grads
        if not self.reaches_inputs:
            self._input_gradients((None,) * self.num_inputs)
        return grads

    def _input_gradients(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.grad_output is None:  # they came by no output that is watched, as where the module gives a dict
            return grads
        for hook in list(self.module._backward_hooks.values()):
            grads = _replaced(hook(self.module, grads, self.grad_output), grads, "Backward hook", "grad_input")
        self.grad_output = None
        return grads


def _replaced(given: Any, grads: tuple[Any, ...], what: str, name: str) -> tuple[Any, ...]:
    if given is None:
        return grads
    new = given if isinstance(given, tuple) else (given,)
    if len(new) != len(grads):
        raise RuntimeError(f"{what} returned an invalid number of {name}, got {len(new)}, but expected {len(grads)}")
    return new
