"""``gt.comm_budget`` and ``gt.memory_limit``: what workers may send each other, and how much memory a run may take.

Owns: from where to where they hold. Next: ``config`` (which keeps them), ``gt.passes.lower_programs`` (which checks what is sent),
``gt.passes.fit_memory`` (which makes runs fit).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ContextDecorator
from types import TracebackType

from gt.config import get_config
from gt.ir.signals import byte_limit
from gt.trace import settle, state


def comm_budget(nbytes: int | str) -> AbstractContextManager[None]:
    """Make it an error, within a ``with`` block, if one worker sends more than ``nbytes`` in one run of a flush.

    What is recorded in the block by this thread is run at its end at the latest, with all else that runs meanwhile in this
    process under the same limit; what is pending before is run first, without it. Of nested blocks the smallest budget counts. Planning fails
    before anything is sent: reading a value of that flush raises RunError, which names the collectives that send most, who
    asked for each and the line. On one worker nothing is sent. Errors: TypeError, ValueError unless ``nbytes`` is a whole
    number from 0 up, or text such as "20MiB" or "300kB".
    """
    return _Budget(byte_limit(nbytes, "comm_budget", least=0))


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


def memory_limit(nbytes: int | str | None) -> AbstractContextManager[None]:
    """Keep runs within ``nbytes`` of memory on each worker, from here on or, as ``with gt.memory_limit("20GiB"):``, within a block.

    What is recorded from here on, in this process, is planned to stay within it: cheap values are computed again in the backward
    instead of kept, those first that take the least time for their bytes, and updates run as soon as their gradients are complete.
    Values stay the same to the last bit, but for sums over large logits, which are added up in chunks. What that costs is said by
    ``gt.explain`` and ``gt plan``, and so is a run that cannot be made to fit: it runs all the same. The limit is on what a run plans
    to hold, its inputs included; other tensors that you hold, and kernels' own scratch, are not counted. None lifts it. What is pending
    is run first, and at the end of a block what was recorded in it. Errors: TypeError, ValueError unless ``nbytes`` is a whole number
    from 1 up, text such as "20GiB" or "80GB", or None.
    """
    return _MemoryLimit(nbytes)


class _MemoryLimit(AbstractContextManager[None]):
    """A limit that holds from when it is made; the end of its block brings back the one before."""

    def __init__(self, nbytes: int | str | None) -> None:
        self.nbytes = None if nbytes is None else byte_limit(nbytes, "memory_limit")
        self.before = get_config().memory_limit
        self.__enter__()

    def __enter__(self) -> None:
        settle(state.trace, "gt.memory_limit")
        get_config().memory_limit = self.nbytes

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if error is None:
                settle(state.trace, "the end of gt.memory_limit")
        finally:
            get_config().memory_limit = self.before


__all__ = ["comm_budget", "memory_limit"]
