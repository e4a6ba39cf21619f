"""Whether ops are recorded for gradients, in this thread.

Owns: ``no_grad`` and its kin. Next: ``autograd``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gt.trace import state


class _GradMode:
    """Turns recording for gradients on or off in this thread; a context manager and a decorator."""

    on: bool

    def __enter__(self) -> None:
        self._before, state.grad = state.grad, self.on

    def __exit__(self, *_: object) -> None:
        state.grad = self._before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with type(self)():
                return function(*args, **kwargs)

        return wrapped


class no_grad(_GradMode):  # noqa: N801 - torch's name
    """Do not record for gradients."""

    on = False


class inference_mode(no_grad):  # noqa: N801 - torch's name
    """Do not record for gradients; gt keeps no version counters to drop, so this is ``no_grad``."""


class enable_grad(_GradMode):  # noqa: N801 - torch's name
    """Record for gradients."""

    on = True


class set_grad_enabled(_GradMode):  # noqa: N801 - torch's name
    """Set grad mode at once, and put it back on leaving when used as a context manager."""

    def __init__(self, mode: bool) -> None:
        self._before, state.grad = state.grad, bool(mode)
        self.on = bool(mode)

    def __enter__(self) -> None:
        state.grad = self.on


def is_grad_enabled() -> bool:
    """Say whether gradients are recorded in this thread."""
    return state.grad
