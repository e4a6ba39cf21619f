"""Where a mistake was made: the user's line, and what was called there with which operands.

Owns: ``Located``, the mixin of errors that say it. Costs nothing until an error is made. Must not know: tensors, only that they
have a ``_type``. Next: ``types`` (the errors).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from types import FrameType
from typing import Any

from gt.ir.advice import Advised

SHOWN = 6  # operands named in a note
WRAPPERS = ("gt.arguments", "gt.autocasting")  # what their functions wrap is what was called


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
    while frame is not None and is_ours(frame):
        if frame.f_globals["__name__"] not in WRAPPERS:
            outer = frame
        frame = frame.f_back
    if outer is None or frame is None or outer.f_code.co_name in ("<module>", "<lambda>"):
        return ""
    code = outer.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    given = [outer.f_locals[name] for name in code.co_varnames[:count] if name in outer.f_locals]
    types = ", ".join(map(repr, list(_types(given))[:SHOWN]))
    name = type(outer.f_locals.get("self")).__name__ if code.co_name in ("__call__", "__init__", "__post_init__") else code.co_name
    return f"in {name}({types}) at {frame.f_code.co_filename}:{frame.f_lineno}"


def warn_user(text: str) -> None:
    """Give a UserWarning at the user's line, however deep in gt it is found out."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    if frame is None:
        return
    known = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__"), known)


def users_line() -> str:
    """Give file and line of the nearest frame outside gt, "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def is_ours(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] == "gt"


def _types(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _types(value)
        elif (found := getattr(value, "_type", None)) is not None and not isinstance(value, type):
            yield found


__all__ = ["Located", "called_from", "is_ours", "users_line", "warn_user"]
