"""What clients hold on the workers: where uploads go, what names a value, when it is let go, what a lost worker takes with it.

Owns: ``Values``: uids, uploads on their way, labels for the next dispatcher, bytes held. Must not know: queues, epochs, whose turn it is.
Next: ``schedule`` (``Buffer``), ``memory`` and ``quota`` (what fits), ``epochs`` (which makes values).
"""

from __future__ import annotations

from itertools import count, repeat
from typing import Any

import msgspec

from gt.ir.mesh import Sharding
from gt.ir.program import WireSharding, WireType
from gt.ir.types import TensorType
from gt.passes.signal_placement import cluster_mesh, signal_sharding
from gt.runtime import wire
from gt.runtime.buffer_reasons import upload_reasons
from gt.runtime.errors import Fault
from gt.runtime.memory import Memory
from gt.runtime.orphans import UID_BITS
from gt.runtime.plan_records import PlanRecord
from gt.runtime.quota import held_nbytes, too_much
from gt.runtime.roster import Roster, Worker
from gt.runtime.schedule import MAX_QUEUED_NBYTES, Buffer, Client, Flight, Upload

UPLOADS = 4  # that a client may have on their way while there are others: workers take them as they come


class Values:
    """All clients' values. ``uploads``: those on their way, by uid."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.memory = Memory()
        self.uploads: dict[int, tuple[Client, Buffer]] = {}
        self._last_uid = roster.options.generation << UID_BITS

    def new_uid(self) -> int:
        """Give a uid that no value had."""
        (uid,) = self.new_uids(1)
        return uid

    def new_uids(self, count: int) -> range:
        """Give so many of them."""
        first = self._last_uid + 1
        self._last_uid += count
        return range(first, first + count)

    def made_by(self, plan: PlanRecord, flight: Flight | None = None) -> tuple[Buffer, ...]:
        """Give buffers for what a run of a plan makes."""
        uids = self.new_uids(len(plan.outputs))
        return tuple(map(Buffer, uids, plan.outputs, repeat(flight), repeat(plan.reasons), count(), plan.sizes, plan.lines))

    def place_of(self, type_: TensorType | None) -> wire.Place:
        """Give a value's type and placement as the next dispatcher is to read it."""
        assert type_ is not None and type_.sharding is not None
        return wire.Place(WireType.of(type_), WireSharding.of(type_.sharding), self.roster.options.generation)

    def places_of(self, plan: PlanRecord) -> wire.Places | None:
        """Give the same of all that a plan makes; nothing if there will be no next dispatcher."""
        if not self.roster.options.generation:
            return None
        placements: dict[WireSharding, int] = {}
        places = map(self.place_of, plan.outputs)
        outputs = tuple((p.type, placements.setdefault(p.placed, len(placements))) for p in places)
        return wire.Places(self.roster.options.generation, tuple(placements), outputs)

    def label(self, client: Client, number: int, buffer: Buffer) -> wire.Label | None:
        """Give what tells the next dispatcher whose value this is; nothing if there will be none."""
        return wire.Label(client.owner, (number,), self.place_of(buffer.type)) if client.owner else None

    def label_again(self, client: Client, buffer: Buffer) -> None:
        """Tell the workers that a value has other numbers now."""
        if not client.owner or buffer.type is None or buffer.type.sharding is None:
            return
        numbers = tuple(n for n, b in client.buffers.items() if b is buffer)
        label = wire.Label(client.owner, numbers, self.place_of(buffer.type))
        for w in buffer.type.sharding.mesh.workers:
            if w in self.roster.workers:
                self.roster.send(self.roster.workers[w].work, wire.Name(buffer.uid, label))

    def place(self, client: Client, message: wire.Put, data: Any) -> None:
        """Give an upload its place and tell its client and its workers; before any worker is there, it waits."""
        if message.buffer in client.buffers:
            return  # a buffer is made once; its owner alone would be confused
        workers = self.roster.workers_of(client)
        if not workers:
            client.homeless.append((message, data))
            client.blocked_since = client.blocked_since or self.roster.now
            return
        type_ = message.type.tensor_type
        asked = message.placed.checked(type_.ndim, workers) if message.placed is not None else None
        sharding = asked or signal_sharding(type_, message.signal, workers)
        placed = type_.placed(sharding)
        fault = self.over_quota(client, held_nbytes(placed), (), f"an upload of {type_!r}", message.where)
        if fault is None and (over := self.memory.over_with(placed)) is not None:
            own = client.buffers.values()
            fault = self.memory.short(*over, f"an upload of {type_!r}", own, None, message.where)
        if fault is not None:
            client.name(message.buffer, Buffer(0, None, fault=fault))
            if not message.inline:
                self.roster.send(client.down, wire.Placed(message.buffer, ()))  # the client holds its rows until it hears where they go
            return
        why = upload_reasons(message.signal, sharding)
        made = Buffer(self.new_uid(), placed, reasons=why, nbytes=held_nbytes(placed), where=message.where)
        buffer = client.name(message.buffer, made)
        self.memory.add((buffer,))
        local, label = sharding.local_shape(type_.shape), self.label(client, message.buffer, buffer)
        tiles, expects = [], []
        for w in sharding.mesh.workers:
            bounds = sharding.bounds(type_.shape, w)
            worker = self.roster.workers[w]
            if message.inline:
                self.roster.send(worker.work, wire.Store(buffer.uid, message.type, bounds, local, label), data)
                continue
            if label is not None:
                self.roster.send(worker.work, wire.Name(buffer.uid, label))
            ticket = self.roster.secret()
            part = WireType(tuple(b - a for a, b in bounds), message.type.dtype)
            expects.append((w, wire.Expect(buffer.uid, ticket, part, local)))
            tiles.append(wire.Tile(w, ticket, bounds))
            buffer.waiting.add(w)
        if not message.inline:
            client.upload_nbytes = buffer.nbytes + (client.upload_nbytes if client.unplaced or client.uploading else 0)
            self.uploads[buffer.uid] = (client, buffer)
            client.unplaced.append((buffer.uid, wire.Placed(message.buffer, tuple(tiles)), expects))
            self.ask_for_uploads(client)

    def ask_for_uploads(self, client: Client) -> None:
        """Tell a client where its next uploads go, as far as it may have them on their way."""
        client.uploading = {uid for uid in client.uploading if uid in self.uploads}
        while client.unplaced and (len(client.uploading) < UPLOADS or len(self.roster.clients) < 2):
            uid, placed, expects = client.unplaced.popleft()
            if uid in self.uploads:  # else it was freed, or is lost with a worker: the client holds its rows until it hears of them
                client.uploading.add(uid)
                for w, expect in expects:
                    if w in self.roster.workers:
                        self.roster.send(self.roster.workers[w].link, expect)
            else:
                placed = wire.Placed(placed.buffer, ())
            self.roster.send(client.down, placed)

    def uploaded(self, worker: Worker, uid: int) -> Client | None:
        """Hear that a worker has its part of an upload; give the client if that was the last one."""
        client, buffer = self.uploads.get(uid, (None, None))
        if client is None or buffer is None:
            return None
        buffer.waiting.discard(worker.id)
        if buffer.waiting:
            return None
        del self.uploads[uid]
        self.ask_for_uploads(client)
        return client

    def place_in_turn(self, client: Client, message: wire.Put, data: Any) -> None:
        """Place an upload at once, or, where there are limits to keep, behind the calls that are waiting: they may make room, or need it."""
        upload = Upload(message, data)
        limited = self.roster.options.client_nbytes is not None or bool(self.memory.workers)
        if limited and client.queue and client.queued_nbytes + upload.nbytes <= MAX_QUEUED_NBYTES:
            client.queue.append(upload)
            client.queued_nbytes += upload.nbytes
        else:
            self.place(client, message, data)

    def over_quota(self, client: Client, asked: int, frees: tuple[int, ...], what: str, where: str) -> Fault | None:
        """Say why a client may not hold so many bytes more once ``frees`` are gone; None if it may."""
        limit = self.roster.options.client_nbytes
        if limit is None or client.held + asked <= limit:
            return None
        freed = sum(b.nbytes for b in client.only_named(frees))
        return too_much(client.held, asked, freed, limit, what, where) if client.held + asked - freed > limit else None

    def drop(self, buffers: list[Buffer]) -> None:
        """Tell the workers that hold the buffers to let them go. Uploads on their way are called off."""
        by_worker: dict[int, list[int]] = {}
        behind = [old for b in buffers for old in only_for(b)]
        for b in (*buffers, *behind):
            self.memory.drop((b.uid,))
            if b.type is not None and b.type.sharding is not None:
                for w in b.type.sharding.mesh.workers:
                    by_worker.setdefault(w, []).append(b.uid)
            if b.waiting:
                self.uploads.pop(b.uid, None)
        for w, uids in by_worker.items():
            if w in self.roster.workers:
                self.roster.send(self.roster.workers[w].work, wire.Free(tuple(uids)))
                late = tuple(b.uid for b in buffers if w in b.waiting)
                if late:
                    self.roster.send(self.roster.workers[w].link, wire.Free(late))

    def drop_beyond(self, buffers: list[Buffer], workers: tuple[int, ...]) -> None:
        """As ``drop``, for those of the buffers that are not on these workers alone."""
        beyond = {t for t in {b.type for b in buffers} if is_beyond(t, workers)}
        if beyond:
            self.drop([b for b in buffers if b.type in beyond])

    def shrink(self, buffer: Buffer, lost: int, workers: tuple[int, ...], fault: Fault) -> None:
        """Take a lost worker out of a buffer's placement; whole copies elsewhere keep it alive."""
        if buffer.type is None or buffer.type.sharding is None or lost not in buffer.type.sharding.mesh.workers:
            return
        buffer.failed_in = -1
        rest = tuple(w for w in buffer.type.sharding.mesh.workers if w != lost)
        buffer.waiting.discard(lost)
        if rest and buffer.type.sharding.is_replicated:
            buffer.type = buffer.type.placed(Sharding.replicated(cluster_mesh(rest, workers), buffer.type.ndim))
            buffer.nbytes = held_nbytes(buffer.type)
        elif buffer.fault is None:
            buffer.fault = msgspec.structs.replace(fault, where=buffer.where or fault.where)  # the line to be run again
            buffer.waiting.clear()
        if not buffer.waiting:
            self.uploads.pop(buffer.uid, None)


def is_beyond(type_: TensorType | None, workers: tuple[int, ...]) -> bool:
    """Whether a value is on other workers too."""
    if type_ is None or type_.sharding is None:
        return False
    held = type_.sharding.mesh.workers
    return held != workers and not set(held) <= set(workers)


def only_for(buffer: Buffer) -> list[Buffer]:
    """Give what is kept only because a buffer, or one before it, failed to replace it; it is kept no longer."""
    found, old = [], buffer.before
    buffer.before = None
    while old is not None:
        if old.kept and not old.holders:
            found.append(old)
        earlier, old.kept, old.before = old.before, False, None
        old = earlier
    return found


__all__ = ["Values", "is_beyond", "only_for"]
