"""When a process of gt's own goes through all its objects for garbage: when it has nothing to do, and not as it ends.

Each program that is loaded leaves some thousand objects, which Python's full collections walk again and again, a tenth of a second at a
time, in the middle of somebody's step. Must not be used in a user's process, whose objects these are not.
"""

from __future__ import annotations

import atexit
import gc

IDLE_S = 1.0  # a process that has waited so long for work may spend a moment on itself
DUE = 10  # collections of the middle generation
LATEST = 1000  # a process that is never idle collects after so many


def postpone() -> None:
    """Take what is imported out of collections, and have full ones wait for ``collect_if_due``.

    Nor does the end of the process, in which Python collects too, walk what there is then: of torch alone that is half a second.
    """
    gc.freeze()
    atexit.register(gc.freeze)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, LATEST)


def collect_if_due() -> None:
    """Collect, if enough has been allocated since the last time."""
    if gc.get_count()[2] >= DUE:
        gc.collect()


__all__ = ["IDLE_S", "collect_if_due", "postpone"]
