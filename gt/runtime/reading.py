"""A value on its way to a client, in parts that come from workers.

Owns: ``Reading``. Must not know: sockets. Next: ``remote`` (which asks), ``recovering`` (which answers what is asked elsewhere).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gt.ir.program import WireSharding, WireType
from gt.ir.types import DType
from gt.runtime import wire, wire_arrays
from gt.runtime.errors import Fault


@dataclass(frozen=True)
class Copy:
    """A value as it was, and where."""

    array: np.ndarray
    type: WireType
    placed: WireSharding


class Answerable(Protocol):
    """What hears how a read ends."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


@dataclass(eq=False)
class Reading:
    """A fetch under way: parts come from workers, and unless they are final the dispatcher confirms them.

    ``copies``: it is one of a snapshot's, which the script does not hear of: it wants a ``Copy``, or the fault.
    """

    buffer: int
    future: Answerable
    copies: bool = False
    type: WireType | None = None
    placed: WireSharding | None = None
    array: np.ndarray | None = None
    parts: set[wire_arrays.Bounds] = field(default_factory=set)
    num_parts: int = 0  # of the whole, once one has come
    complete: bool = False
    settled: bool = False
    retried: Fault | None = None  # the loss that made the session ask again

    def add(self, part: wire.Part, rows: np.ndarray) -> None:
        if self.array is None:
            self.type = part.type
            self.array = np.empty(part.type.shape, wire_arrays.wire_dtype(DType.by_name[part.type.dtype]))
        self.array[wire_arrays.rows(part.bounds)] = rows
        self.parts.add(part.bounds)
        self.num_parts = part.tiles
        self.complete = len(self.parts) >= part.tiles
        self.settled = self.settled or part.final

    def fill(self, type: WireType, value: bytes) -> None:
        """Take all of it, as it came in one message. Errors: ProtocolError if it is no such value."""
        self.array = wire_arrays.array_of(type, bytearray(value))
        self.type, self.complete, self.settled = type, True, True

    @property
    def over(self) -> bool:
        """Whether nothing more is to come."""
        return self.complete and self.settled and not (self.copies and self.placed is None)

    def resolve(self) -> None:
        """Give whoever waits what has come."""
        assert self.array is not None
        if self.copies:
            assert self.type is not None and self.placed is not None
            self.future.set_result(Copy(self.array, self.type, self.placed))
        else:
            self.future.set_result(self.array)

    def again(self, retried: Fault | None = None) -> Reading:
        """Give one that begins anew, for whoever waits."""
        return Reading(self.buffer, self.future, self.copies, retried=retried)


__all__ = ["Answerable", "Copy", "Reading"]
