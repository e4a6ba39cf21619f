"""``gt.compile`` and ``gt.compiler``: torch's requests to compile, kept for code that makes them.

Every graph is compiled without being asked: what runs often, in the background. ``gt.jit`` goes further and records a function once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compile(
    model: Callable[..., Any] | None = None, *, fullgraph: bool = False, dynamic: bool | None = None, backend: Any = "inductor",
    mode: str | None = None, options: Any = None, disable: bool = False, name: str | None = None, **more: Any,
) -> Any:  # fmt: skip
    """Give the function or module itself: what it records is compiled anyway. As a decorator with options, give a decorator."""
    return (lambda function: function) if model is None else model


def disable(fn: Callable[..., Any] | None = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Give the function itself."""
    return (lambda function: function) if fn is None else fn


def is_compiling() -> bool:
    """Give False: functions run as they are written, and what they record is compiled."""
    return False


is_dynamo_compiling, allow_in_graph = is_compiling, disable


def reset() -> None:
    """Do nothing: there are no guards to forget."""


def cudagraph_mark_step_begin() -> None:
    """Do nothing: workers know when a step begins."""


__all__ = ["allow_in_graph", "compile", "cudagraph_mark_step_begin", "disable", "is_compiling", "is_dynamo_compiling", "reset"]
