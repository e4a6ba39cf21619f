"""Slots as a GPU copies from and to them: registered with its driver once, and read while the worker goes on.

Owns: ``PinnedCopies``. Must not know: whose slots they are. Next: ``shared`` (slots), ``executor`` (who copies).
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class PinnedCopies:
    """Copies between a GPU and memory shared with other processes. Belongs to the thread that runs programs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._registered: weakref.WeakKeyDictionary[mmap.mmap, bool] = weakref.WeakKeyDictionary()
        self._under_way: deque[tuple[Any, np.ndarray, Callable[[], None]]] = deque()

    def pin(self, array: np.ndarray) -> bool:
        """Whether the driver knows the memory of an array in a slot, which it is told at the slot's first use."""
        memory = _memory_of(array)
        if memory is None:
            return False
        known = self._registered.get(memory)
        if known is None:
            address = np.frombuffer(memory, np.uint8).ctypes.data
            known = int(torch.cuda.cudart().cudaHostRegister(address, len(memory), 0)) == 0
            self._registered[memory] = known
            if known:  # told in time: before the memory is unmapped
                weakref.finalize(memory, _unregister, address).atexit = False
        return known

    def upload(self, host: torch.Tensor, array: np.ndarray, done: Callable[[], None]) -> torch.Tensor:
        """Start copying ``host``, which is the pinned ``array``; ``done`` is called by the first ``poll`` after the copy's end."""
        value = host.to(self.device, non_blocking=True)
        over = torch.cuda.Event()
        over.record()
        self._under_way.append((over, array, done))
        return value

    def poll(self) -> bool:
        """Tell of copies that are over; whether any is still under way."""
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()[2]()
        return bool(self._under_way)


def _memory_of(array: np.ndarray) -> mmap.mmap | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None


def _unregister(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)


__all__ = ["PinnedCopies"]
