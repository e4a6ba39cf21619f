"""Where a mistake was made: the user's line, and what was called there with which operands.

Owns: ``users_frame``, which recording asks of every op, and ``Located``, the mixin of errors that say it. Must not know: tensors, only
that they have a ``_type``. Next: ``types`` (the errors).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from types import FrameType
from typing import Any

from gt.ir.advice import Advised

SHOWN = 6  # operands named in a note
WRAPPERS = ("gt.arguments", "gt.autocasting", "gt.versions", "contextlib")  # what their functions wrap is what was called


class _Ours(dict[Any, bool]):
    """Whether a module of this name is gt's own, or one through which gt's functions are called."""

    def __missing__(self, name: Any) -> bool:
        self[name] = ours = f"{name}."[:3] == "gt." or name == "contextlib"
        return ours


ours = _Ours()


def users_frame(frame: FrameType) -> FrameType:
    """Give the nearest frame outside gt; the outermost if there is none."""
    while ours[frame.f_globals.get("__name__")] and frame.f_back is not None:
        frame = frame.f_back
    return frame


class Located(Advised):
    """Adds the note "in matmul(f32[2, 3], f32[2, 2]) at script.py:7": the outermost call of gt's, and its caller."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        note = called_from(sys._getframe(1))
        if note:
            self.__notes__ = [note, *getattr(self, "__notes__", ())]


def called_from(frame: FrameType | None) -> str:
    """Say which function of gt's the user called, on what, and where. "" if no user did."""
    outer: FrameType | None = None
    while frame is not None and ours[name := frame.f_globals.get("__name__")]:
        if name not in WRAPPERS:
            outer = frame
        frame = frame.f_back
    if outer is None or frame is None or outer.f_code.co_name in ("<module>", "<lambda>"):
        return ""
    code = outer.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    given = [outer.f_locals[name] for name in code.co_varnames[:count] if name in outer.f_locals]
    types = ", ".join(map(repr, list(_types(given))[:SHOWN]))
    owner = outer.f_locals.get("self")
    of = owner if isinstance(owner, type) else type(owner)
    name = of.__name__ if code.co_name in ("__call__", "__init__", "__post_init__") else code.co_name
    return f"in {name}({types}) at {frame.f_code.co_filename}:{frame.f_lineno}"


def warn_user(text: str, kind: type[Warning] = UserWarning) -> None:
    """Give a warning at the user's line, however deep in gt it is found out."""
    frame = users_frame(sys._getframe(1))
    known = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, kind, frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__"), known)


def users_place() -> tuple[str, int]:
    """Give file and line of the nearest frame outside gt."""
    frame = users_frame(sys._getframe(1))
    return frame.f_code.co_filename, frame.f_lineno


def users_line() -> str:
    """Give ``users_place`` as FILE:LINE."""
    file, line = users_place()
    return f"{file}:{line}"


def _types(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _types(value)
        elif (found := getattr(value, "_type", None)) is not None and not isinstance(value, type):
            yield found


__all__ = ["SHOWN", "Located", "called_from", "ours", "users_frame", "users_line", "users_place", "warn_user"]
