"""Functions that gt makes of others have the name they are called by: in errors, which name the call, in tracebacks and in profiles.

Owns: ``named``. Next: ``gt.ir.blame`` (who reads the name of a frame).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def named(function: F, name: str, doc: str | None = None) -> F:
    """Give a function another name, its code's too, and a docstring."""
    function.__name__ = function.__qualname__ = name
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)  # type: ignore[attr-defined]
    function.__doc__ = doc
    return function


__all__ = ["named"]
