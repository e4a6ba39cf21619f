"""What a worker exchanges with clients: uploads come in, results go out, in frames or through memory of one host.

Owns: ``Intake`` (on the io thread) and ``Outlet`` (on the main thread). Must not know: programs, what is behind a ticket.
Next: ``worker`` (whose sockets these are), ``shared`` (memory), ``remote`` (the other end).
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from gt.runtime import wire, wire_arrays
from gt.runtime.errors import ProtocolError
from gt.runtime.numbering import MessagesLost
from gt.runtime.runner import HostArray
from gt.runtime.shared import SHARED_MIN, Openings, SlotPool, probe
from gt.runtime.transport import PeerUnreachable, Socket, confirm, receive, send
from gt.runtime.wire import UPLOADS, Message

UNSENT_S = 5.0
MAX_EARLY = 256  # uploads that nobody has spoken of yet, and their bytes, of one peer
MAX_EARLY_NBYTES = 1 << 30
EARLY_S = 30.0
MAX_PEERS = 4096  # tokens that peers may say are theirs
TOKEN = 16
MAX_CALLED_OFF = 4096
TIDY_S = 1.0
COPIED = 1 << 19  # bytes between two times that another thread may have the processor, and that a sign of life is given if due


class Outlet:
    """The runner's outputs, on the main thread's sockets. A value for a client not connected yet is tried again.

    ``sharing``: tokens of clients that can open this process's slots; who is in it changes on the io thread.
    """

    def __init__(self, work: Socket, results: Socket, sharing: set[bytes]) -> None:
        self.work, self.results, self.sharing = work, results, sharing
        self.pools: dict[bytes, SlotPool] = {}  # by client: what one has read, no other can see
        self.tidied = time.monotonic()
        self.unsent: list[tuple[float, bytes, wire.Part | wire.PartFailed, memoryview | None]] = []
        self.over: list[tuple[int, float]] = []  # epochs that went well and whose end is not told yet

    def reply(self, message: Message) -> None:
        """Send to the dispatcher; that an epoch went well, with the next message or with ``tell_over``."""
        if isinstance(message, wire.Done):
            if message == wire.Done(message.epoch, message.seconds):
                self.over.append((message.epoch, message.seconds))
                return
            if self.over:
                message = msgspec.structs.replace(message, earlier=tuple(self.over))
                self.over.clear()
        else:
            self.tell_over()
        send(self.work, message)

    def tell_over(self) -> None:
        """Tell the dispatcher of all epochs that are over."""
        if self.over:
            *earlier, (epoch, seconds) = self.over
            self.over.clear()
            send(self.work, wire.Done(epoch, seconds, earlier=tuple(earlier)))

    def room(self, token: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
        if math.prod(shape) * dtype.itemsize < SHARED_MIN or token not in self.sharing:
            return None
        return self.pools.setdefault(token, SlotPool()).take(shape, dtype)

    def ship(self, token: bytes, message: wire.Part | wire.PartFailed, array: np.ndarray | None) -> None:
        pool = self.pools.get(token)
        slot = pool.find(array) if pool is not None and array is not None else None
        if slot is not None and array is not None:
            region = slot.lend(token, array.shape, tuple((0, n) for n in array.shape))
            message = msgspec.structs.replace(message, region=region)
        data = None if array is None or slot is not None else wire_arrays.data_of(array)
        try:
            send(self.results, message, data, token)
        except PeerUnreachable:
            self.unsent.append((time.monotonic() + UNSENT_S, token, message, data))

    def retry(self) -> None:
        """Try again what had no receiver; what has waited too long is told to the dispatcher, which knows whether its client is gone."""
        entries, self.unsent = self.unsent, []
        for deadline, token, message, data in entries:
            try:
                send(self.results, message, data, token)
            except PeerUnreachable:
                if time.monotonic() < deadline:
                    self.unsent.append((deadline, token, message, data))
                else:
                    send(self.work, wire.Unsent(token, message.request))

    def tidy(self) -> None:
        """Let go of slots that nobody needs, and of those for clients that are gone; give signs of life where they are due."""
        now = time.monotonic()
        if now - self.tidied < TIDY_S:
            return
        self.tidied = now
        confirm(self.work, wire.Beat())
        confirm(self.results, wire.Ping())
        for token, pool in list(self.pools.items()):
            if token in self.sharing:
                pool.trim()
            else:
                pool.close()
                del self.pools[token]


class Early:
    """Uploads that came before the dispatcher's word, by ticket. A peer has only so much room, for so long: it may be a stranger."""

    def __init__(self) -> None:
        self.kept: dict[bytes, tuple[float, bytes, wire.Upload, memoryview | None]] = {}

    def __len__(self) -> int:
        return len(self.kept)

    def take(self, ticket: bytes) -> tuple[bytes, wire.Upload, memoryview | None] | None:
        found = self.kept.pop(ticket, None)
        return None if found is None else found[1:]

    def put(self, peer: bytes, upload: wire.Upload, data: memoryview | None, now: float) -> list[wire.Upload]:
        """Keep an upload; give those that have to go for it, or have been here for too long."""
        gone = [ticket for ticket, entry in self.kept.items() if now - entry[0] > EARLY_S]
        if upload.ticket in self.kept:
            gone.append(upload.ticket)
        dropped = [self.kept.pop(ticket)[2] for ticket in dict.fromkeys(gone)]
        self.kept[upload.ticket] = now, peer, upload, data
        own = [ticket for ticket, entry in self.kept.items() if entry[1] == peer]
        nbytes = sum(self._nbytes(ticket) for ticket in own)
        while len(own) > MAX_EARLY or (nbytes > MAX_EARLY_NBYTES and len(own) > 1):
            nbytes -= self._nbytes(own[0])
            dropped.append(self.kept.pop(own.pop(0))[2])
        while len(self.kept) > MAX_PEERS:
            dropped.append(self.kept.pop(next(iter(self.kept)))[2])
        return dropped

    def _nbytes(self, ticket: bytes) -> int:
        data = self.kept[ticket][3]
        return 0 if data is None else data.nbytes


class Intake:
    """Uploads, on the io thread: matched with what the dispatcher said to expect, in whichever order the two come.

    ``direct``: what lies in shared memory is handed on as it is, for the engine to copy from: where a GPU is, to pinned memory.
    ``alive``: called now and then while much is copied, as the io thread gives the worker's signs of life.
    """

    def __init__(self, socket: Socket, uploads: dict[int, HostArray], direct: bool = False) -> None:
        self.socket, self.uploads, self.direct = socket, uploads, direct
        self.expected: dict[bytes, wire.Expect] = {}
        self.early = Early()
        self.called_off: dict[bytes, None] = {}
        self.openings, self.probe = Openings(), probe()
        self.opened: dict[bytes, int] = {}  # tokens of clients whose slots this process can open, with their pids
        self.sharing: set[bytes] = set()  # tokens of clients that can open this process's
        self.dropped = 0
        self.tidied = time.monotonic()
        self.alive: Callable[[], None] = lambda: None

    def expect(self, expect: wire.Expect) -> list[int]:
        """Note an upload to come; give the uids that are complete now."""
        early = self.early.take(expect.ticket)
        if early is not None:
            return self._keep(expect, *early)
        self.expected[expect.ticket] = expect
        return []

    def cancel(self, uids: tuple[int, ...]) -> None:
        for ticket in [t for t, e in self.expected.items() if e.uid in uids]:
            del self.expected[ticket]
            self.called_off[ticket] = None
            if len(self.called_off) > MAX_CALLED_OFF:
                del self.called_off[next(iter(self.called_off))]

    def forget(self, token: bytes) -> None:
        """Let go of what is shared with a client that is gone."""
        self.sharing.discard(token)
        pid = self.opened.pop(token, 0)
        if pid not in self.opened.values():
            self.openings.drop(pid)

    def tidy(self, now: float) -> None:
        """Let go of memory that nobody needs; give signs of life where they are due."""
        self.openings.sweep()
        if now - self.tidied >= TIDY_S:
            self.tidied = now
            confirm(self.socket, wire.Ping())

    def part(self) -> None:
        """The dispatcher is lost, and with it all sessions: nothing is expected, nothing shared."""
        self.expected.clear()
        self.called_off.clear()
        self.uploads.clear()  # what came too late for the worker's word of what it has
        for token in self.sharing | self.opened.keys():
            self.forget(token)

    def receive(self) -> list[int]:
        """Take what the socket has; give the uids that are complete now."""
        complete: list[int] = []
        while True:
            try:
                got = receive(self.socket, UPLOADS, routed=True, copy=False)
            except ProtocolError:
                self.dropped += 1
                continue
            except MessagesLost as e:
                with contextlib.suppress(PeerUnreachable):
                    send(self.socket, wire.Broken(str(e)), peer=e.peer)
                continue
            if got is None:
                return complete
            peer, upload, data = got
            if isinstance(upload, wire.Beat):
                continue
            if isinstance(upload, wire.Share):
                self._share(peer, upload)
                continue
            expect = self.expected.pop(upload.ticket, None)
            if expect is not None:
                complete += self._keep(expect, peer, upload, data)
            elif upload.ticket in self.called_off:
                del self.called_off[upload.ticket]
                self._pass_over(upload)
            else:
                for old in self.early.put(peer, upload, data, time.monotonic()):
                    self._pass_over(old)
                    self.dropped += 1

    def _share(self, peer: bytes, message: wire.Share) -> None:
        """Learn which way memory can be shared with a client, and tell it."""
        if len(message.token) != TOKEN or len(self.sharing | self.opened.keys()) >= MAX_PEERS:
            self.dropped += 1
        elif message.opened:
            self.sharing.add(message.token)
        elif message.probe is None:
            self.sharing.discard(message.token)
        else:
            opened = self.openings.opens(message.probe)
            if opened:
                self.opened[message.token] = message.probe.pid
            with contextlib.suppress(PeerUnreachable):
                send(self.socket, wire.Share(b"", self.probe.offer() if self.probe else None, opened), peer=peer)

    def _view(self, upload: wire.Upload, data: memoryview | None) -> tuple[np.ndarray, Callable[[], None]]:
        """Give an upload's rows, and what says that they have been read."""
        if upload.region is None:
            assert data is not None
            return wire_arrays.array_of(upload.type, data), lambda: None
        if upload.region.pid not in self.opened.values():
            raise ProtocolError("an upload in memory that is not shared with this process")
        return self.openings.view(upload.region, upload.type)

    def _pass_over(self, upload: wire.Upload) -> None:
        with contextlib.suppress(OSError, ProtocolError):
            self._view(upload, memoryview(b""))[1]()

    def _keep(self, expect: wire.Expect, peer: bytes, upload: wire.Upload, data: memoryview | None) -> list[int]:
        try:
            if upload.type != expect.type:
                raise ProtocolError(f"expected {expect.type}, got {upload.type}")
            part, done = self._view(upload, data)
        except ProtocolError:
            self.dropped += 1
            self.expected[expect.ticket] = expect
            return []
        except OSError:  # no descriptor left, or the client is gone
            self.expected[expect.ticket] = expect
            with contextlib.suppress(PeerUnreachable):
                send(self.socket, wire.Unread(upload), peer=peer)
            return []
        if self.direct and upload.region is not None and part.shape == expect.local and part.flags.c_contiguous:
            self.uploads[expect.uid] = (part, expect.type.dtype, done)
            return [expect.uid]
        kept: np.ndarray | MemoryError
        try:
            kept = np.zeros(expect.local, part.dtype) if part.shape != expect.local else np.empty(part.shape, part.dtype)
            copy(kept[tuple(slice(0, n) for n in part.shape)], part, self.alive)
        except MemoryError as e:  # told to whoever reads it
            kept = e
        done()
        self.uploads[expect.uid] = (kept, expect.type.dtype, None)
        return [expect.uid]


def copy(out: np.ndarray, part: np.ndarray, between: Callable[[], None]) -> None:
    """Copy all of an array, ``COPIED`` bytes at a time: fresh memory may come slowly. ``between``: called after each.

    The processor is offered to others as often: where all are busy copying, messages that small runs wait for would pass from thread
    to thread at the system's pace, several milliseconds each.
    """
    if part.nbytes <= COPIED or not part.ndim:
        np.copyto(out, part)
        os.sched_yield()
        between()
    elif len(part) == 1:
        copy(out[0], part[0], between)
    else:
        step = max(1, COPIED * len(part) // part.nbytes)
        for i in range(0, len(part), step):
            copy(out[i : i + step], part[i : i + step], between)


__all__ = ["Early", "Intake", "Outlet", "copy"]
