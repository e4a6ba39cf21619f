"""Values that return to a restarted dispatcher: taken in with the workers that kept them, given back to the clients that ask.

Owns: ``Returning``. Must not know: what is whole of what is there. Next: ``orphans`` (which knows), ``values``, ``dispatcher_state``.
"""

from __future__ import annotations

from gt.runtime import wire
from gt.runtime.buffer_reasons import ADOPTED
from gt.runtime.orphans import Orphans
from gt.runtime.quota import held_nbytes
from gt.runtime.roster import Worker
from gt.runtime.schedule import Buffer, Client
from gt.runtime.values import Values


class Returning:
    """Orphans until their owner asks for them. ``orphans``: what workers brought."""

    def __init__(self, values: Values) -> None:
        self.values, self.roster = values, values.roster
        self.orphans = Orphans(self.roster.options.generation)

    def bring(self, worker: Worker, past: wire.Past) -> None:
        """Take in what a worker has kept from before it joined."""
        live = [c.owner for c in self.roster.clients.values() if c.settled]
        self.values.memory.bring(worker.id, past)
        self._forget(worker.id, self.orphans.bring(self.roster.now, worker.id, past, live))

    def tick(self) -> None:
        """Time passes: what nobody has come for within a client's lease is given up."""
        for owner in self.orphans.overdue(self.roster.now, self.roster.options.client_lease_s):
            if not any(c.owner == owner for c in self.roster.clients.values()):
                self.give_up(owner)

    def _forget(self, worker: int, uids: list[int]) -> None:
        if uids and worker in self.roster.workers:
            self.values.memory.drop(uids, worker)
            self.roster.send(self.roster.workers[worker].work, wire.Free(tuple(sorted(uids))))

    def settle(self, client: Client) -> None:
        """Give a client back what is whole of what it asks for, once its workers are here or have been waited for long enough."""
        asked = client.resume
        if asked is None:
            return
        joined = [(w, self.roster.workers[w].hello.past) for w in self.roster.worker_ids]
        present = {life: w for w, past in joined if past is not None for life in past.lives}
        back = {w: present[asked.generation, w] for w in asked.workers if (asked.generation, w) in present}
        waiting = asked.generation != self.roster.options.generation and set(asked.workers) - back.keys()
        if waiting and self.roster.now - client.asked_at <= self.roster.options.return_s:
            return
        client.resume, client.settled = None, True
        everything = self.roster.workers_of(client)
        estate, wanted = self.orphans.take(client.owner), set(asked.buffers)
        kept = set()
        for uid, placed in self.orphans.whole(estate, present, everything).items():
            numbers = [n for n in estate.values[uid].numbers if n in wanted and n not in client.buffers]
            if not numbers:
                continue
            kept.add(uid)
            buffer = Buffer(uid, placed, reasons=ADOPTED, holders=len(numbers), nbytes=held_nbytes(placed))
            client.buffers |= dict.fromkeys(numbers, buffer)
            client.held += buffer.nbytes
            assert placed.sharding is not None
            if placed.sharding.mesh.size < len(estate.values[uid].place.placed.workers):
                self.values.label_again(client, buffer)  # who comes later has no part in it any more
        for worker, uids in estate.by_worker(kept).items():
            self._forget(worker, uids)
        missing = tuple(n for n in asked.buffers if n not in client.buffers)
        self.roster.send(client.down, wire.Returned(missing, tuple(sorted(back.items()))))

    def give_up(self, owner: bytes) -> None:
        """Let the workers forget what an owner had."""
        for worker, uids in self.orphans.take(owner).by_worker().items():
            self._forget(worker, uids)


__all__ = ["Returning"]
