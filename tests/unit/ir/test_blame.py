"""Who called: the nearest frame outside gt, also where gt's function is entered by the standard library's ``with``."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator

import pytest

from gt.ir.blame import users_frame, users_line, users_place, warn_user
from gt.ir.types import CallError

GTS = {"__name__": "gt.somewhere", "CallError": CallError, "contextmanager": contextlib.contextmanager}
GTS |= {"users_line": users_line, "users_place": users_place, "warn_user": warn_user}
exec(
    """
@contextmanager
def scope(refuse):
    if refuse:
        raise CallError("no")
    warn_user("odd")
    yield users_line(), users_place()
""",
    GTS,
)


def here() -> int:
    return sys._getframe(1).f_lineno


@contextlib.contextmanager
def own(lines: list[int]) -> Iterator[str]:
    with GTS["scope"](False) as (line, _):  # type: ignore[operator]
        lines.append(here() - 1)
        yield line


def test_a_scope_of_gts_is_entered_at_the_users_line() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # of whatever of another test is collected now
        with GTS["scope"](False) as (line, place):  # type: ignore[operator]
            number = here() - 1
    assert (line, place) == (f"{__file__}:{number}", (__file__, number))
    assert [(w.filename, w.lineno, str(w.message)) for w in told] == [(__file__, number, "odd")]
    with pytest.raises(CallError) as caught, GTS["scope"](True):  # type: ignore[operator]
        pass
    number = here() - 2
    assert caught.value.__notes__[0] == f"in scope() at {__file__}:{number}"


def test_a_scope_of_the_users_own_is_the_user() -> None:
    lines: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with own(lines) as line:
            assert line == f"{__file__}:{lines[0]}"


def test_without_a_frame_outside_it_is_the_outermost() -> None:
    frame = sys._getframe()
    assert users_frame(frame) is frame
