"""What a client has sent and its server may not have carried out, so that the next one can be told again. Pure.

Owns: ``InFlight``. Buffers are made once and never change, so a call is needed again if, and only if, what it makes is wanted and not
there. Must not know: connections. Next: ``recovering`` (who fills and sends it), ``run_log`` (the same for losses of workers, from a
snapshot on).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import msgspec

from gt.runtime import wire
from gt.runtime.run_log import Put

MAX_NBYTES = 64 << 20  # of uploads
MAX_UPLOADS = 32  # each may keep memory from being filled again

Call: TypeAlias = Put | wire.Run | wire.Free


class Again(NamedTuple):
    """``calls``: to be sent, in order. ``lost``: buffers that nothing makes again."""

    calls: list[Call]
    lost: list[int]


class InFlight:
    """Calls since the last run that is known to be over, and what is ``alive`` once they all are done.

    Of uploads beyond a limit the oldest are not kept: they are nearly always there.
    """

    def __init__(self, calls: Iterable[Call] = (), over: int = 0) -> None:
        self.calls: deque[Call] = deque()
        self.over = over  # runs that are no more among the calls
        self.nbytes = self.uploads = 0
        for call in calls:
            self.add(call)

    def __repr__(self) -> str:
        return f"<InFlight {len(self.calls)} calls after {self.over} runs>"

    def add(self, call: Call) -> None:
        """A call is sent."""
        self.calls.append(call)
        if isinstance(call, Put):
            self.nbytes += call.kept.nbytes
            self.uploads += 1
            while self.nbytes > MAX_NBYTES or self.uploads > MAX_UPLOADS:
                oldest = next(c for c in self.calls if isinstance(c, Put))
                self.calls.remove(oldest)
                self._gone(oldest)

    def heard(self, over: int) -> None:
        """So many runs are over, in all: they and what came before them need not be sent again."""
        while self.calls and self.over < over:
            call = self.calls.popleft()
            if isinstance(call, wire.Run):
                self.over += 1
            elif isinstance(call, Put):
                self._gone(call)

    def _gone(self, put: Put) -> None:
        self.nbytes -= put.kept.nbytes
        self.uploads -= 1

    def reads(self) -> set[int]:
        """Give all buffers that a run among the calls reads: they may be needed again."""
        return {b for call in self.calls if isinstance(call, wire.Run) for b in call.inputs}

    def again(self, here: Iterable[int], alive: Iterable[int]) -> Again:
        """Give what to send so that all that is ``alive`` is there, where ``here`` is; the rest of that is freed on the way."""
        known, wanted = set(here), set(alive)
        needed = wanted - known
        chosen: set[int] = set()
        for i in range(len(self.calls) - 1, -1, -1):
            call = self.calls[i]
            made = call.outputs if isinstance(call, wire.Run) else (call.buffer,) if isinstance(call, Put) else ()
            if needed.isdisjoint(made):
                continue
            chosen.add(i)
            needed.difference_update(made)
            if isinstance(call, wire.Run):
                needed.update(b for b in call.inputs if b not in known)
        known |= needed  # of what is lost the failure is there
        calls: list[Call] = []
        for i, call in enumerate(self.calls):
            if i in chosen and isinstance(call, Put):
                known.add(call.buffer)
                calls.append(call)
                continue
            frees = () if isinstance(call, Put) else call.frees if isinstance(call, wire.Run) else call.buffers
            if i in chosen and isinstance(call, wire.Run):
                known.update(call.outputs)
                frees = tuple(b for b in frees if b in known)
                calls.append(msgspec.structs.replace(call, frees=frees))
            elif frees := tuple(b for b in frees if b in known):
                calls.append(wire.Free(frees))
            known.difference_update(frees)
        if known - wanted:
            calls.append(wire.Free(tuple(sorted(known - wanted))))
        return Again(calls, sorted(needed))


__all__ = ["Again", "Call", "InFlight"]
