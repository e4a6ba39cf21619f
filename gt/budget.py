"""``gt.comm_budget``: a limit on what workers send each other.

Owns: from where to where it holds. Next: ``config`` (which keeps it), ``gt.passes.lower_programs`` (which checks it).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ContextDecorator
from types import TracebackType

from gt.config import get_config
from gt.trace import settle, state


def comm_budget(nbytes: int) -> AbstractContextManager[None]:
    """Make it an error, within a ``with`` block, if one worker sends more than ``nbytes`` in one run of a flush.

    What is recorded in the block by this thread is run at its end at the latest, with all else that runs meanwhile in this
    process under the same limit; what is pending before is run first, without it. Of nested blocks the smallest budget counts. Planning fails
    before anything is sent: reading a value of that flush raises RunError, which names the collectives that send most, who
    asked for each and the line. On one worker nothing is sent. Errors: TypeError, ValueError unless ``nbytes`` is a whole
    number from 0 up.
    """
    if not isinstance(nbytes, int) or isinstance(nbytes, bool):
        raise TypeError(f"gt.comm_budget: expected a number of bytes as an int, got {type(nbytes).__name__}")
    if nbytes < 0:
        raise ValueError(f"gt.comm_budget: expected a number of bytes from 0 up, got {nbytes}")
    return _Budget(nbytes)


class _Budget(ContextDecorator):
    """The block of a budget; it may be entered again, also inside itself."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __enter__(self) -> None:
        settle(state.trace, "the start of gt.comm_budget")
        get_config().begin_budget(self.nbytes)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if error is None:
                settle(state.trace, "the end of gt.comm_budget")
        finally:
            get_config().end_budget(self.nbytes)


__all__ = ["comm_budget"]
