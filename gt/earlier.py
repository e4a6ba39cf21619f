"""Names that gt had before it was rewritten: each works, or warns and says what to use instead.

Owns: ``moved``, the ``__getattr__`` of a module whose names are elsewhere now. Next: ``gt.client``, ``gt.signals``, ``gt.debug`` (such
modules), ``gt.runtime.env`` (variables), docs/earlier.md (all of it as a table).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from importlib import import_module
from typing import Any

from gt.ir.blame import warn_user


def moved(module: str, **now: str) -> Callable[[str], Any]:
    """Give the ``__getattr__`` of a module whose names are those ``now``: they warn at the user's line, and are found there."""

    def __getattr__(name: str) -> Any:  # noqa: N807 - a module's
        if name not in now:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_user(f"{module}.{name} is {now[name]} now: use that")
        return reduce(getattr, now[name].split(".")[1:], import_module("gt"))

    return __getattr__


__all__ = ["moved"]
