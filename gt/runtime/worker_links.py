"""A client's connections to its workers: what it uploads goes to them, what it reads comes from them. On one machine that is by shared memory,
else in frames.

Owns: ``WorkerLinks``. Must not know: the dispatcher, who reads and why. Next: ``remote`` (whose io thread uses it), ``shared`` (the memory).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from gt.ir.program import WireType
from gt.ir.types import DType
from gt.runtime import wire, wire_arrays
from gt.runtime.errors import Fault, ProtocolError
from gt.runtime.gate import Handshake, explained
from gt.runtime.keys import Keys
from gt.runtime.log import InstructionLog
from gt.runtime.shared import MAX_LANES, Openings, Region, Slot, SlotPool, probe
from gt.runtime.transport import Context, Socket, confirm, make_socket, send

REACH_S = 10.0  # in which a worker's socket for uploads must be connected


class WorkerLinks:
    """By worker: a socket for uploads; one for all results. Of one thread, but for ``waiting``, ``room`` and what ``pool`` finds.

    ``token``: the client's, by which workers know it. ``poller``: hears of the sockets for uploads.
    """

    def __init__(self, context: Context, keys: Keys | None, token: bytes, poller: zmq.Poller, log: InstructionLog) -> None:
        self._context, self._keys, self._token, self._poller, self._log = context, keys, token, poller, log
        self.results = make_socket(context, zmq.DEALER, data=True, identity=token)
        self.present: dict[int, tuple[str, str, str]] = {}  # where uploads go, where results come from, and the key
        self.sockets: dict[int, Socket] = {}
        self.waiting: dict[int, tuple[np.ndarray, WireType]] = {}  # uploads, by buffer, until it is known where to
        self.pool, self.openings, self._probe = SlotPool(), Openings(), probe()
        self.sharing: set[int] = set()  # workers that can open this process's slots
        self.opened: dict[int, int] = {}  # workers whose slots this process can open, with their pids
        self._watched: dict[int, tuple[float, Handshake]] = {}  # of the socket for uploads: the one for results fares alike

    def set(self, workers: tuple[tuple[int, str, str, str], ...]) -> list[int]:
        """Connect to these workers and to no others; give those that are lost. Errors: ProtocolError for addresses or a key that are none."""
        present = {w: (upload, results, key) for w, upload, results, key in workers}
        for w, (upload, results, key) in present.items():
            if w not in self.present:
                socket = self._connect(w, upload, results, key)
                self._poller.register(socket, zmq.POLLIN)
                if self._probe is not None:
                    send(socket, wire.Share(self._token, self._probe.offer(), False))
        lost = [w for w in self.present if w not in present]
        for w in lost:
            with contextlib.suppress(zmq.ZMQError):  # it never was
                self.results.disconnect(self.present[w][1])
            socket = self.sockets.pop(w)
            self._poller.unregister(socket)
            if w in self._watched:
                self._watched.pop(w)[1].close()
            socket.close(0)
            self.sharing.discard(w)
            self.pool.lose(w)
            self.openings.drop(self.opened.pop(w, 0))
        self.present = present
        return lost

    def _connect(self, worker: int, upload: str, results: str, key: str) -> Socket:
        """Connect to a worker's data sockets; give the one for uploads. Errors: ProtocolError for addresses or a key that are none."""
        socket = make_socket(self._context, zmq.DEALER, data=True)
        try:
            if self._keys is not None:
                self._keys.join(socket, key)
                self._keys.join(self.results, key)
            self._watched[worker] = time.monotonic(), Handshake(socket)
            socket.connect(upload)
            self.results.connect(results)
        except (zmq.ZMQError, ValueError) as e:
            if worker in self._watched:
                self._watched.pop(worker)[1].close()
            socket.close(0)
            raise ProtocolError(f"worker {worker} cannot be reached at {upload[:100]!r} and {results[:100]!r}: {e}") from None
        self.sockets[worker] = socket
        return socket

    def unreachable(self, now: float) -> Fault | None:
        """Say why a worker cannot be reached, if that is so of one."""
        for worker, (since, handshake) in list(self._watched.items()):
            at = f"worker {worker} ({self.present[worker][0]})"
            if failed := handshake.look():
                return Fault("refused", explained(failed, at, self._keys))
            if handshake.done:
                handshake.close()
                del self._watched[worker]
            elif now - since > REACH_S:
                return Fault("unreachable", f"{at} cannot be reached within {REACH_S:g} s: is a firewall between?")
        return None

    def beat(self) -> None:
        for socket in self.sockets.values():
            confirm(socket, wire.Beat())

    def tidy(self) -> None:
        """Give back memory that has not been shared for some time."""
        self.pool.trim()
        self.openings.sweep()

    def close(self) -> None:
        for _, handshake in self._watched.values():
            handshake.close()
        for socket in (self.results, *self.sockets.values()):
            socket.close(500)
        self.pool.close()
        self._probe = None

    # -- from workers

    def rows(self, part: wire.Part, data: Any) -> tuple[np.ndarray, Callable[[], None] | None]:
        """Give what has come of a value, and what to call once it has been read. Errors: OSError if the memory that it is in cannot be opened,
        ProtocolError if it does not fit.
        """
        local = WireType(tuple(b - a for a, b in part.bounds), part.type.dtype)
        if part.region is None:
            return wire_arrays.array_of(local, data), None
        if part.region.pid in self.opened.values():
            return self.openings.view(part.region, local)
        raise OSError("it is not shared with this process any more")

    # -- to workers

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
        """Give an array in memory shared with workers, if there is any."""
        return self.pool.take(shape, dtype) if self.sharing else None

    def upload(self, buffer: int, tiles: tuple[wire.Tile, ...]) -> None:
        """Send what waits to the workers that are to have it."""
        if buffer not in self.waiting:
            raise ProtocolError(f"no upload of buffer {buffer} is waiting")
        array, type_ = self.waiting.pop(buffer)
        slot: Slot | None = None  # taken again as soon as nobody holds an array in it: ``array`` does until all parts are lent
        for tile in tiles:
            socket = self.sockets.get(tile.worker)
            if socket is None:
                continue  # lost meanwhile: the dispatcher knows
            part = array[wire_arrays.rows(tile.bounds)]
            upload = wire.Upload(tile.ticket, WireType(part.shape, type_.dtype))
            if tile.worker in self.sharing and slot is None:
                slot, array = self._in_slot(array)
            if slot is not None and tile.worker in self.sharing and len(slot.readers) < MAX_LANES:
                region = slot.lend(tile.worker, array.shape, tile.bounds)
                send(socket, wire.Upload(upload.ticket, upload.type, region))
            else:
                send(socket, upload, wire_arrays.data_of(part))
            if self._log.on:
                self._log.write("upload", "put", part.nbytes, f"buffer={buffer} worker={tile.worker}")

    def _in_slot(self, array: np.ndarray) -> tuple[Slot | None, np.ndarray]:
        """Give the slot that an array lies in, or is copied to, and the array there; no slot if there is no room."""
        slot = self.pool.find(array)
        if slot is None and (room := self.pool.take(array.shape, array.dtype)) is not None:
            np.copyto(room, array)
            slot, array = self.pool.find(room), room
        return slot, array

    def share(self, worker: int, message: wire.Share) -> None:
        """Hear whether a worker can open this process's slots, and tell it whether its own can be opened here."""
        if message.opened:
            self.sharing.add(worker)
        if message.probe is not None and self.openings.opens(message.probe):
            self.opened[worker] = message.probe.pid
            send(self.sockets[worker], wire.Share(self._token, None, True))

    def share_no_more(self, region: Region | None) -> None:
        """Have who offers a region of its memory send frames."""
        for worker in [w for w, pid in self.opened.items() if region is not None and pid == region.pid]:
            del self.opened[worker]
            send(self.sockets[worker], wire.Share(self._token, None, False))

    def resend(self, worker: int, upload: wire.Upload) -> None:
        """Send in a frame what the worker could not open."""
        self.sharing.discard(worker)
        slot = None if upload.region is None else self.pool.named(upload.region.secret)
        if slot is not None and upload.region is not None:
            part = slot.take_back(upload.region, wire_arrays.wire_dtype(DType.by_name[upload.type.dtype]))
            send(self.sockets[worker], wire.Upload(upload.ticket, upload.type), wire_arrays.data_of(part))


__all__ = ["WorkerLinks"]
