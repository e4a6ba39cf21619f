"""Whether ops are recorded for gradients, in this thread.

Owns: ``no_grad`` and its kin. Next: ``autograd``.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any

from gt.trace import state


class _GradMode:
    """Turns recording for gradients on or off in this thread; a context manager, and a decorator with or without brackets."""

    on: bool

    def __new__(cls, *args: Any, **_: Any) -> Any:
        if args and callable(args[0]):
            return cls()(args[0])
        return super().__new__(cls)

    def __enter__(self) -> None:
        self._before, state.grad = state.grad, self.on

    def __exit__(self, *_: object) -> None:
        state.grad = self._before

    def again(self) -> _GradMode:
        """Give a mode for one more use: calls may be nested."""
        return type(self)()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function):
            return _each_step(self, function)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.again():
                return function(*args, **kwargs)

        return wrapped


def _each_step(mode: _GradMode, function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
    """Run each step of a generator in the mode, and what happens between steps outside it."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        steps = function(*args, **kwargs)
        resume: Callable[[], Any] = functools.partial(next, steps)
        while True:
            try:
                with mode.again():
                    given = resume()
            except StopIteration as end:
                return end.value
            try:
                sent = yield given
            except BaseException as error:  # handed on: the generator may deal with it
                resume = functools.partial(steps.throw, error)
            else:
                resume = functools.partial(steps.send, sent)

    return wrapped


class no_grad(_GradMode):  # noqa: N801 - torch's name
    """Do not record for gradients."""

    on = False


class enable_grad(_GradMode):  # noqa: N801 - torch's name
    """Record for gradients."""

    on = True


_inference = threading.local()


class inference_mode(_GradMode):  # noqa: N801 - torch's name
    """Do not record for gradients. gt keeps no version counters to drop: tensors made here are like any others."""

    on = False

    def __init__(self, mode: bool = True) -> None:
        self.mode = bool(mode)

    def __enter__(self) -> None:
        self._was, _inference.on = is_inference_mode_enabled(), self.mode
        self._before, state.grad = state.grad, not self.mode

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        _inference.on = self._was

    def again(self) -> inference_mode:
        again: inference_mode = inference_mode(self.mode)
        return again


class set_grad_enabled(_GradMode):  # noqa: N801 - torch's name
    """Set grad mode at once, and put it back on leaving when used as a context manager or a decorator."""

    def __init__(self, mode: bool) -> None:
        self._before, state.grad = state.grad, bool(mode)
        self.on = bool(mode)

    def __enter__(self) -> None:
        state.grad = self.on

    def again(self) -> _GradMode:
        again: _GradMode = (enable_grad if self.on else no_grad)()
        return again

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        state.grad = self._before  # as a decorator it sets nothing before the function is called
        return super().__call__(function)


def is_grad_enabled() -> bool:
    """Say whether gradients are recorded in this thread."""
    return state.grad


def is_inference_mode_enabled() -> bool:
    """Say whether this thread is in ``inference_mode``."""
    return getattr(_inference, "on", False)
