"""Hooks of modules: what is called around ``forward``, around a backward, and around state dicts.

Owns: the tables of hooks and how a module is called through them. Next: ``module``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from gt.handle import COPY, Handle
from gt.trace import record

Hook = Callable[..., Any]
Table = dict[int, Any]
_numbers = itertools.count()


class HookHandle:
    """Removes a hook, when told or at the end of a ``with`` block."""

    def __init__(self, table: Table, number: int) -> None:
        self._table, self._number = table, number

    def remove(self) -> None:
        self._table.pop(self._number, None)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def add(table: Table, hook: Any, prepend: bool = False) -> HookHandle:
    """Enter a hook, last or first."""
    number = next(_numbers)
    rest = dict(table) if prepend else {}
    if prepend:
        table.clear()
    table[number] = hook
    table.update(rest)
    return HookHandle(table, number)


everywhere_before: Table = {}  # hooks on every module: (hook, with_kwargs)
everywhere_after: Table = {}


def register_module_forward_pre_hook(hook: Hook) -> HookHandle:
    """Call ``hook(module, args)`` before the forward of every module."""
    return add(everywhere_before, (hook, False))


def register_module_forward_hook(hook: Hook, *, with_kwargs: bool = False, always_call: bool = False) -> HookHandle:
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


class _Backward:
    """Collects the gradients of a call's outputs and inputs for a module's backward hooks.

    Gradients reach outputs first. One differentiable input is served: its gradient comes last, and may be replaced.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.grad_output: list[Any] = []
        self.input: int | None = None
        self.count = 0

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self.count = len(args)
        tracked = [i for i, a in enumerate(args) if isinstance(a, Handle) and a._rg]
        if len(tracked) > 1:
            raise NotImplementedError(
                "full backward hooks are supported on modules with one differentiable input: use tensor.register_hook on each of several"
            )
        if not tracked:
            return args
        self.input = tracked[0]
        passed = record(COPY, (args[self.input],))
        passed.register_hook(self._input_gradient)
        return (*args[: self.input], passed, *args[self.input + 1 :])

    def outputs(self, out: Any) -> Any:
        each = [out] if isinstance(out, Handle) else list(out) if isinstance(out, tuple) else None
        if each is None:
            raise NotImplementedError(f"full backward hooks need a tensor or a tuple as output, got {type(out).__name__}")
        self.grad_output = [None] * len(each)
        for i, value in enumerate(each):
            if isinstance(value, Handle) and value._rg:
                each[i] = record(COPY, (value,))
                each[i].register_hook(lambda g, i=i: self._output_gradient(i, g))
        return each[0] if isinstance(out, Handle) else tuple(each)

    def _output_gradient(self, i: int, g: Any) -> Any:
        self.grad_output[i] = g
        for hook in list(self.module._backward_pre_hooks.values()):
            changed = hook(self.module, tuple(self.grad_output))
            if changed is not None:
                self.grad_output = list(changed) if isinstance(changed, tuple) else [changed]
        if self.input is None:
            for hook in list(self.module._backward_hooks.values()):
                hook(self.module, (None,) * self.count, tuple(self.grad_output))
        return self.grad_output[i]

    def _input_gradient(self, g: Any) -> Any:
        assert self.input is not None
        grads: tuple[Any, ...] = tuple(g if i == self.input else None for i in range(self.count))
        for hook in list(self.module._backward_hooks.values()):
            changed = hook(self.module, grads, tuple(self.grad_output))
            if changed is not None:
                grads = changed if isinstance(changed, tuple) else (changed,)
        return grads[self.input]
