"""``gt.comm_budget``: a limit on what workers send each other.

Owns: from where to where it holds. Next: ``config`` (which keeps it), ``gt.passes.lower_programs`` (which checks it).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from gt.config import get_config
from gt.trace import settle, state


def comm_budget(nbytes: int) -> AbstractContextManager[None]:
    """Make it an error, within a ``with`` block, if one worker sends more than ``nbytes`` in one run of a flush.

    What is recorded in the block by this thread is run at its end at the latest, with all else that runs meanwhile in this
    process under the same limit; what is pending before is run first, without it. The innermost block counts. Planning fails
    before anything is sent: reading a value of that flush raises RunError, which names the collectives that send most, who
    asked for each and the line. On one worker nothing is sent. Errors: TypeError, ValueError unless ``nbytes`` is a whole
    number from 0 up.
    """
    if not isinstance(nbytes, int) or isinstance(nbytes, bool):
        raise TypeError(f"gt.comm_budget: expected a number of bytes as an int, got {type(nbytes).__name__}")
    if nbytes < 0:
        raise ValueError(f"gt.comm_budget: expected a number of bytes from 0 up, got {nbytes}")
    return _within(nbytes)


@contextmanager
def _within(nbytes: int) -> Iterator[None]:
    settle(state.trace, "the start of gt.comm_budget")
    with get_config().comm_budget(nbytes):
        yield
        settle(state.trace, "the end of gt.comm_budget")


__all__ = ["comm_budget"]
