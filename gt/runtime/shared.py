"""Memory that two processes of one host share: the sender fills a slot, the receiver reads it where it is.

Owns: ``SlotPool`` (a sender's slots), ``Openings`` (a receiver's view of others' slots), ``Region`` (what says where data is).
A slot is memory without a name (``memfd_create``): it lies in no directory, so nobody has to remove it; it goes with the last
process that holds it, however that ends. A receiver opens it through ``/proc``, which the system allows for processes of one
user on one host, and finds the secret that the message named. Its size is sealed, so that reading cannot fail later.

The first page tells what is over: a byte for each reader (its *lane*), set by the reader once it has read. A slot is used
again when all lanes are set and nobody here holds an array in it. Must not know: sockets, messages, torch.
Next: ``remote`` (uploads) and ``worker`` (results).
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import stat
import time
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from gt.ir.program import WireType
from gt.ir.types import DType
from gt.runtime import env
from gt.runtime.errors import ProtocolError
from gt.runtime.session import CallLock
from gt.runtime.wire_arrays import MAX_DATA, Bounds, check_type, rows, wire_dtype

SHARED_MIN = 64 << 10  # bytes; less travels in a frame as fast
PAGE = 4096
SECRET = 16
RETIRED = SECRET  # the byte that is set once the sender has no more use for a slot
LANES = 64
MAX_LANES = PAGE - LANES
MAX_SLOTS = 32  # of a pool: each takes two of the process's file descriptors
MAX_POOL = 1 << 30  # bytes of a pool; what is beyond travels in frames
IDLE_S = 30.0  # a slot that nobody needed for so long is given back
SEALS = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(fcntl, "F_SEAL_GROW", 4) | getattr(fcntl, "F_SEAL_SEAL", 1)


class Region(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where data is: rows ``bounds`` of an array of ``shape``, behind the first page of the slot that process ``pid`` has as
    ``fd``; its whole size is ``nbytes``. ``lane`` is the reader's.
    """

    pid: int
    fd: int
    secret: bytes
    nbytes: int
    lane: int
    shape: tuple[int, ...]
    bounds: Bounds


def check_region(region: Region, type_: WireType) -> DType:
    """Check that a region lies within its slot and holds what a message says. Errors: ProtocolError."""
    dtype = check_type(type_)
    check_type(WireType(region.shape, type_.dtype))
    inside = len(region.bounds) == len(region.shape) and all(
        0 <= a <= b <= n for (a, b), n in zip(region.bounds, region.shape, strict=True)
    )
    if not inside or type_.shape != tuple(b - a for a, b in region.bounds):
        raise ProtocolError(f"rows {region.bounds} of {list(region.shape)} are not {list(type_.shape)}")
    if not 0 < region.nbytes <= MAX_DATA or PAGE + math.prod(region.shape) * dtype.itemsize > region.nbytes:
        raise ProtocolError(f"{type_.dtype}{list(region.shape)} does not fit a slot of {region.nbytes} bytes")
    if len(region.secret) != SECRET or not 0 <= region.lane < MAX_LANES or region.pid <= 0 or region.fd < 0:
        raise ProtocolError("expected a slot's secret, lane, process and descriptor")
    return dtype


class Slot:
    """Memory of this process that others may open. Errors: OSError where there is none to be had."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.secret = nbytes, os.urandom(SECRET)
        self.fd = os.memfd_create("gt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self.fd, 0, nbytes)  # now, where it fails with an error: later it would be a signal
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            self.memory = mmap.mmap(self.fd, nbytes)
        except BaseException:
            os.close(self.fd)
            raise
        self.memory[:SECRET] = self.secret
        self.readers: list[Hashable] = []  # by lane
        self.spoilt = False  # one of them was lost, and may still read
        self.used = time.monotonic()
        self._held: weakref.ref[np.ndarray] | None = None

    def __del__(self) -> None:
        if hasattr(self, "memory"):
            os.close(self.fd)

    def array(self, nbytes: int) -> np.ndarray:
        """Give the slot's memory to be filled. It is not used for anything else while a view of this array is alive."""
        self.readers = []
        self.used = time.monotonic()
        array = np.frombuffer(self.memory, np.uint8, nbytes, PAGE)
        self._held = weakref.ref(array)
        return array

    def holds(self, array: np.ndarray) -> bool:
        """Whether an array is a view of the one this slot gave last."""
        return self._held is not None and array.base is not None and self._held() is array.base

    def lend(self, reader: Hashable, shape: tuple[int, ...], bounds: Bounds) -> Region:
        """Give a reader the use of a part, until it sets its lane. At most ``MAX_LANES`` readers."""
        lane = len(self.readers)
        self.memory[LANES + lane] = 0
        self.readers.append(reader)
        return Region(os.getpid(), self.fd, self.secret, self.nbytes, lane, shape, bounds)

    def offer(self) -> Region:
        """Say where the slot is, for another process to find out whether it can open it."""
        return Region(os.getpid(), self.fd, self.secret, self.nbytes, 0, (0,), ((0, 0),))

    def take_back(self, region: Region, dtype: np.dtype[Any]) -> np.ndarray:
        """Give a copy of what was lent to a reader that could not read it, and end the lending."""
        whole = np.frombuffer(self.memory, dtype, math.prod(region.shape), PAGE).reshape(region.shape)
        part = np.array(whole[rows(region.bounds)], order="C")
        self.memory[LANES + region.lane] = 1
        return part

    def lose(self, reader: Hashable) -> None:
        """Wait no more for a lost reader. Whether it still reads is not known, so the slot is not to be used again."""
        for lane in [i for i, known in enumerate(self.readers) if known == reader]:
            self.memory[LANES + lane] = 1
            self.spoilt = True

    @property
    def lent(self) -> bool:
        """Whether a reader has not read yet."""
        return self.memory.find(b"\0", LANES, LANES + len(self.readers)) >= 0

    @property
    def busy(self) -> bool:
        return self.lent or (self._held is not None and self._held() is not None)

    def retire(self) -> None:
        """Say that the slot is not used any more: readers let go of it, and its memory goes with the last of them."""
        self.memory[RETIRED] = 1


def supported() -> bool:
    """Whether this system has what slots are made of, and GT_SHARED_MEMORY does not say otherwise."""
    return env.SHARED_MEMORY.get() and hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")


def probe() -> Slot | None:
    """Give a slot by which another process can find out whether it can open those of this one."""
    try:
        return Slot(PAGE) if supported() else None
    except OSError:
        return None


class SlotPool:
    """The slots of one sender. Any thread may take one."""

    def __init__(self, max_nbytes: int = MAX_POOL) -> None:
        self.max_nbytes = max_nbytes
        self._lock = CallLock()
        self._slots: list[Slot] = []

    @property
    def nbytes(self) -> int:
        return sum(slot.nbytes for slot in self._slots)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
        """Give an array in a slot, to be filled; None where it would be too much."""
        nbytes = math.prod(shape) * dtype.itemsize
        with self._lock:
            self._drop_spoilt()
            free = [slot for slot in self._slots if not (slot.busy or slot.spoilt)]
            fitting = [slot for slot in free if nbytes + PAGE <= slot.nbytes <= max(4 * nbytes, 16 * SHARED_MIN)]
            slot = min(fitting, key=lambda s: s.nbytes) if fitting else self._make(nbytes, free)
            flat = None if slot is None else slot.array(nbytes)
        return None if flat is None else flat.view(dtype).reshape(shape)

    def _make(self, nbytes: int, free: list[Slot]) -> Slot | None:
        size = PAGE + rounded(nbytes)
        if size > self.max_nbytes:
            return None
        free.sort(key=lambda s: s.used, reverse=True)
        while len(self._slots) >= MAX_SLOTS or self.nbytes + size > self.max_nbytes:
            if not free:
                return None
            self._drop(free.pop())
        try:
            slot = Slot(size)
        except OSError:  # no memory or no descriptor left
            return None
        self._slots.append(slot)
        return slot

    def _drop(self, slot: Slot) -> None:
        self._slots.remove(slot)
        slot.retire()

    def find(self, array: np.ndarray) -> Slot | None:
        """Give the slot that an array was taken from."""
        with self._lock:
            return next((slot for slot in self._slots if slot.holds(array)), None)

    def named(self, secret: bytes) -> Slot | None:
        """Give the slot with a secret."""
        with self._lock:
            return next((slot for slot in self._slots if slot.secret == secret), None)

    def lose(self, reader: Hashable) -> None:
        """Let go of what a lost reader was lent, once others that were lent it too have read: they may have to open it first."""
        with self._lock:
            for slot in self._slots:
                slot.lose(reader)
            self._drop_spoilt()

    def _drop_spoilt(self) -> None:
        for slot in [s for s in self._slots if s.spoilt and not s.lent]:
            self._drop(slot)

    def trim(self, idle_s: float = IDLE_S) -> None:
        """Give back what nobody has needed for ``idle_s``."""
        before = time.monotonic() - idle_s
        with self._lock:
            self._drop_spoilt()
            for slot in [s for s in self._slots if s.used <= before and not s.busy]:
                self._drop(slot)

    def close(self) -> None:
        """Let go of all slots. What readers have not read yet stays theirs."""
        with self._lock:
            for slot in list(self._slots):
                self._drop(slot)


class Openings:
    """Slots of other processes, opened once each. Belongs to one thread, but for what ``view`` gives."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[int, mmap.mmap]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opens(self, region: Region | None) -> bool:
        """Whether a probe can be opened: then so can the other slots of its process."""
        try:
            if region is None or not supported():
                return False
            check_region(region, WireType((0,), "uint8"))
            _mapped(region)
            return True
        except (OSError, ProtocolError):
            return False

    def view(self, region: Region, type_: WireType) -> tuple[np.ndarray, Callable[[], None]]:
        """Give the data, not to be written, and what tells the sender that it has been read.

        Errors: OSError if the slot cannot be opened; ProtocolError if it is not what the region says.
        """
        dtype = check_region(region, type_)
        found = self._open.get(region.secret)
        if found is None:
            self.sweep()
            if len(self._open) >= 64 * MAX_SLOTS:
                raise ProtocolError("too many slots of other processes are open")
            found = self._open[region.secret] = (region.pid, _mapped(region))
        memory = found[1]
        if len(memory) != region.nbytes:
            raise ProtocolError(f"expected a slot of {region.nbytes} bytes, it has {len(memory)}")
        whole = np.frombuffer(memory, wire_dtype(dtype), math.prod(region.shape), PAGE).reshape(region.shape)
        part = whole[rows(region.bounds)]
        part.flags.writeable = False
        return part, partial(memory.__setitem__, LANES + region.lane, 1)

    def sweep(self) -> None:
        """Let go of slots whose senders have no more use for them."""
        for secret in [s for s, (_, memory) in self._open.items() if memory[RETIRED]]:
            del self._open[secret]

    def drop(self, pid: int) -> None:
        """Let go of the slots of a process."""
        for secret in [s for s, (owner, _) in self._open.items() if owner == pid]:
            del self._open[secret]


def _mapped(region: Region) -> mmap.mmap:
    """Open a slot. Errors: OSError; ProtocolError if what is there is not the slot that is meant."""
    path = f"/proc/{region.pid}/fd/{region.fd}"
    if not os.readlink(path).startswith("/memfd:gt"):
        raise ProtocolError("a region names what is no slot")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != region.nbytes or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise ProtocolError("a region names what is no slot of its size")
        memory = mmap.mmap(fd, region.nbytes)
    finally:
        os.close(fd)
    if memory[:SECRET] != region.secret:
        raise ProtocolError("a region names another slot")
    return memory


def rounded(nbytes: int) -> int:
    """Give a size that similar ones share: four for each doubling, in whole pages."""
    step = max(PAGE, 1 << max(0, nbytes.bit_length() - 3))
    return -(-nbytes // step) * step


__all__ = ["MAX_LANES", "SHARED_MIN", "Openings", "Region", "Slot", "SlotPool", "check_region", "probe", "rounded", "supported"]
