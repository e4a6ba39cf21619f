"""Values that exist, by number: freed with the next run once no handle names them any more.

Owns: ``Buffer`` and the list of those that died. Must not know: traces, what values are. Next: ``trace`` (where they come from and go to).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from sys import getrefcount
from typing import TYPE_CHECKING

from gt.ir.types import TensorType

if TYPE_CHECKING:
    from gt.runtime.session import Session

ALONE = 3  # references to a buffer as it dies of the last one: its finalizer's, and those of the call that counts them
MAX_DEAD, LARGE = 256, 1 << 20  # of dropped tensors, and their bytes: their memory is given back before the next run

_dead: deque[tuple[Session, int]] = deque()  # appended by finalizers, so nothing here may lock
_dead_nbytes = [0]  # about: threads may come between each other
_read_yet: dict[int, Session] = {}  # buffers that were garbage, and that finalizers may read yet, or keep


class Mark:
    """Whether the tensor that named a buffer has been changed in place: for tapes that read it, and do not keep it."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written = False


class Last(int):
    """Frees the buffer that holds it, once that is let go of: not being collected itself, it outlives all finalizers of a cycle."""

    __slots__ = ()

    def __del__(self, sessions: dict[int, Session] = _read_yet, append: Callable[[tuple[Session, int]], None] = _dead.append) -> None:
        append((sessions.pop(self), int(self)))


class Buffer:
    """A value that exists, or will once an earlier run has finished. Freed when no handle names it any more."""

    __slots__ = ("id", "type", "session", "mark", "last")

    def __init__(self, id: int, type: TensorType, session: Session) -> None:
        self.id, self.type, self.session = id, type, session
        self.mark: Mark | None = None  # made by the first tape that wants to know

    def replaced(self) -> None:
        """Tell the tapes that want to know that the tensor has another value now."""
        if self.mark is not None:
            self.mark.written = True

    def __del__(
        self, append: Callable[[tuple[Session, int]], None] = _dead.append, references: Callable[[object], int] = getrefcount,
        alone: int = ALONE, read_yet: dict[int, Session] = _read_yet, last: type[Last] = Last, nbytes: list[int] = _dead_nbytes,
    ) -> None:  # fmt: skip
        if self.id < 0:
            return
        if references(self) <= alone:  # the defaults keep what is needed when the interpreter ends
            append((self.session, self.id))
            nbytes[0] += self.type.nbytes
        else:  # in a cycle, whose finalizers come in any order
            read_yet[self.id], self.last = self.session, last(self.id)


ids = itertools.count()


def new_buffer(type: TensorType, session: Session) -> Buffer:
    """Name a value to be. Dead buffers go with the next run; where uploads alone make new ones, they go here."""
    if _dead and (len(_dead) >= MAX_DEAD or type.nbytes + _dead_nbytes[0] >= LARGE):
        session.free(take_dead(session))
    return Buffer(next(ids), type, session)


def named_buffers(types: list[TensorType], session: Session, spare: list[Buffer]) -> list[Buffer]:
    """Name the results of a run, which takes along what has died. ``spare``: what the run frees, and nothing else names, names them first."""
    spare = [b for b in spare if not hasattr(b, "last")]
    for buffer, type in zip(spare, types, strict=False):
        buffer.id, buffer.type, buffer.mark = next(ids), type, None
    for buffer in spare[len(types) :]:
        buffer.id = -1 - buffer.id  # the run frees it, not its finalizer
    return [*spare[: len(types)], *[Buffer(next(ids), type, session) for type in types[len(spare) :]]]


def take_dead(session: Session) -> list[int]:
    """Give the buffers of ``session`` that died since the last call."""
    out, keep = [], []
    _dead_nbytes[0] = 0
    while True:
        try:
            owner, id = _dead.popleft()
        except IndexError:  # asking first whether it is empty would not do: another thread may be here too
            break
        if owner is session:
            out.append(id)
        elif not getattr(owner, "closed", False):
            keep.append((owner, id))
    _dead.extend(keep)
    return out


def put_back(session: Session, dead: list[int]) -> None:
    """Undo a ``take_dead`` whose buffers could not be freed after all."""
    _dead.extend((session, id) for id in dead)


def forget_dead() -> None:
    """Free nothing that has died so far, as in a forked child, to whom no value belongs."""
    _dead.clear()


__all__ = ["Buffer", "Mark", "forget_dead", "ids", "named_buffers", "new_buffer", "put_back", "take_dead"]
