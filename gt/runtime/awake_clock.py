"""A clock for those who judge others by their silence: it stands still while its own process does.

Owns: how much of a gap between two looks counts. Next: ``dispatcher``, ``remote``, ``worker`` and ``node_link``, which look at it.
"""

from __future__ import annotations

import time

MOST_S = 1.0


class AwakeClock:
    """Seconds in which one thread has run, given at each call. Of what passed since the call before, ``most_s`` count at most, the double of
    what a thread that runs leaves: in the rest the process was stopped, or the machine gave it no time, and it could hear nobody.
    """

    def __init__(self, most_s: float = MOST_S) -> None:
        self._most_s = most_s
        self._awake = self._looked = time.monotonic()

    def __call__(self) -> float:
        before, self._looked = self._looked, time.monotonic()
        passed = self._looked - before
        self._awake += passed if passed < self._most_s else self._most_s
        return self._awake
