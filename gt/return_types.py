"""``gt.return_types``: what functions of several results give, tuples whose fields have torch's names.

Owns: their names and how they are printed. A function's file declares its own. Must not know: the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K", bound=type)


def named(name: str) -> Callable[[K], K]:
    """Decorate a ``NamedTuple`` that ``name`` gives: it is ``gt.return_types.name``, and printed so."""

    def decorate(kind: K) -> K:
        kind.__module__, kind.__name__, kind.__qualname__ = __name__, name, name
        kind.__repr__ = _shown  # type: ignore[misc, assignment]
        kind.__getattr__ = _unknown  # type: ignore[attr-defined]
        globals()[name] = kind
        return kind

    return decorate


def another(name: str, kind: K) -> K:
    """Give a class with the fields of another for ``name``."""
    return named(name)(type(name, (kind,), {"__slots__": (), "__doc__": kind.__doc__}))  # type: ignore[return-value, arg-type]


def _unknown(found: Any, name: str) -> Any:
    """Refuse an attribute of a tensor's: these are several."""
    raise AttributeError(f"'gt.return_types.{type(found).__name__}' object has no attribute '{name}': it holds {', '.join(found._fields)}")


def _shown(found: Any) -> str:
    fields = ",\n".join(f"{field}={value!r}" for field, value in zip(found._fields, found, strict=True))
    return f"gt.return_types.{type(found).__name__}(\n{fields})"
