"""The values on one worker.

Owns: ``ValueStore``: engine values by uid, with their sizes; ``give_memory_back``, ``share_one_arena``. Must not know: clients, epochs,
engines.
Next: ``runner`` (puts values in and takes them out).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_ARENA_MAX = -8  # of malloc.h
LARGE = 32 << 20  # so much dropped goes back to the system: at once if it goes at once, and when there is nothing to do


@dataclass
class ValueStore:
    """Values by uid. ``nbytes``: what they hold together; ``peak_nbytes``: the most they ever held."""

    values: dict[int, Any] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    nbytes: int = 0
    peak_nbytes: int = 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, uid: int) -> Any:
        return self.values[uid]

    def get(self, uids: Iterable[int]) -> list[Any]:
        """Give values, which stay."""
        return list(map(self.values.__getitem__, uids))

    def put(self, uids: Iterable[int], values: Sequence[Any]) -> None:
        """Keep values under new uids."""
        sizes = [value.nbytes for value in values]
        self.values.update(zip(uids, values, strict=True))
        self.sizes.update(zip(uids, sizes, strict=True))
        self.nbytes += sum(sizes)
        if self.nbytes > self.peak_nbytes:
            self.peak_nbytes = self.nbytes

    def take(self, uids: Collection[int]) -> list[Any]:
        """Give values and let go of them."""
        self.nbytes -= sum(map(self.sizes.pop, uids))
        return list(map(self.values.pop, uids))

    def drop(self, uids: Iterable[int]) -> None:
        """Let values go; those not here are passed over."""
        self.take({uid for uid in uids if uid in self.values})


def give_memory_back() -> None:
    """Hand freed memory to the system: glibc keeps blocks of up to 32 MB for itself once such blocks have been freed."""
    _glibc("malloc_trim", 0)


def share_one_arena() -> None:
    """Have threads that start from here on allocate where the main thread does: of any other arena, glibc keeps the last blocks freed,
    up to 64 MB, whatever it is asked for.
    """
    _glibc("mallopt", _ARENA_MAX, 1)


def _glibc(name: str, *args: int) -> None:
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), name, None)  # musl has none, and keeps nothing
        if function is not None:
            function(*args)
