"""What gt keeps for each thread.

Owns: ``ThreadState``. Next: ``trace``, whose state it is the base of.
"""

from __future__ import annotations

import threading

from gt.runtime.session import CallLock

_beginning = CallLock()


class ThreadState(threading.local):
    """Attributes that each thread has its own of. A thread's are made by ``begin``, when it first asks for one; the collector of cycles waits
    meanwhile, whose finalizers may use gt in that thread and would find some of them missing.
    """

    def __init__(self) -> None:
        _beginning.__enter__()  # ``with`` allocates first, which is when Python collects
        try:
            self.begin()
        finally:
            _beginning.__exit__()

    def begin(self) -> None:
        """Make the attributes of the thread that calls."""
        raise NotImplementedError


__all__ = ["ThreadState"]
