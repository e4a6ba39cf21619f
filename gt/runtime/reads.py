"""Values on their way to clients: which worker sends which tile, and when.

Owns: ``Reads``. Must not know: how values are made. Next: ``fair_queue`` (whose turn it is), ``dispatcher_state``.
"""

from __future__ import annotations

from gt.ir.program import WireSharding, WireType
from gt.runtime import wire
from gt.runtime.epochs import reader
from gt.runtime.errors import Fault
from gt.runtime.fair_queue import FairQueue, Forecast
from gt.runtime.memory import explained
from gt.runtime.plan_records import PlanRecord
from gt.runtime.roster import Roster, Worker
from gt.runtime.schedule import Client

READ_S = 1e-3  # what a read counts for until one as large has been measured
SIZES = 64


class Reads:
    """Reads take turns with the runs of others."""

    def __init__(self, roster: Roster, sharing: FairQueue) -> None:
        self.roster, self.sharing = roster, sharing
        self.forecast = Forecast(READ_S)  # by how large they are, in powers of two
        self._last = 0

    def fetch(self, client: Client, fetch: wire.Fetch) -> bool:
        """Let the workers that hold a value send it to its client. False if that has to wait."""
        buffer = client.buffers.get(fetch.buffer)
        if buffer is None and client.homeless:
            return False
        if buffer is None:
            self.roster.send(client.down, wire.Failed(fetch.request, Fault("protocol", f"buffer {fetch.buffer} is not there")))
            return True
        if buffer.fault is not None:
            self.roster.send(client.down, wire.Failed(fetch.request, buffer.fault))
            return True
        if buffer.waiting or client.homeless:
            return False
        assert buffer.type is not None and buffer.type.sharding is not None
        sharding, flight = buffer.type.sharding, buffer.flight
        workers = sharding.mesh.workers
        if sharding.is_replicated:
            workers = (reader(client, sharding) if flight is None or flight.local is None else flight.local,)
        tiles = [(w, sharding.bounds(buffer.type.shape, w)) for w in workers]
        tiles = list({bounds: (w, bounds) for w, bounds in reversed(tiles) if all(a < b for a, b in bounds)}.values()) or tiles[:1]
        job = self._begin(client, tuple(w for w, _ in tiles), buffer.nbytes)
        if job is None:
            return False
        final = flight is None or (flight.local is not None and workers == (flight.local,))
        if flight is not None and not final:
            flight.fetches.append(fetch.request)
        if fetch.placed:
            self.roster.send(client.down, wire.Located(fetch.request, WireSharding.of(sharding)))
        self.roster.under(client, [w for w, _ in tiles])
        for w, bounds in tiles:
            ship = wire.Ship(buffer.uid, client.token, fetch.request, WireType.of(buffer.type), bounds, len(tiles), final, job)
            self.roster.send(self.roster.workers[w].work, ship)
        return True

    def small(self, client: Client, run: wire.Run, plan: PlanRecord) -> wire.Fetch | None:
        """Give the read that comes with a run, if one of the run's workers can send it with the word that it is through."""
        output, request = run.reads or (-1, -1)
        after = client.queue[1] if len(client.queue) > 1 else None
        if not 0 <= output < len(plan.outputs) or not isinstance(after, wire.Fetch) or after.request != request:
            return None
        type_ = plan.outputs[output]
        whole = type_.sharding is not None and type_.sharding.is_replicated and reader(client, type_.sharding) in plan.programs
        return after if whole and type_.nbytes <= wire.SMALL else None

    def _begin(self, client: Client, workers: tuple[int, ...], nbytes: int) -> int | None:
        """Give the job that a read is on its workers, -1 while nobody else is there who could have a turn; None if others' come first."""
        if len(self.roster.clients) < 2:
            return -1
        size = min(nbytes.bit_length(), SIZES - 1)
        seconds = self.forecast.seconds(size, 0.0)
        if not self.sharing.admits(client.id, workers, seconds, self.roster.now):
            return None
        self._last += 1
        job = self._last * SIZES + size
        self.sharing.begin(("read", job), client.id, workers, seconds)
        return job

    def unshipped(self, worker: Worker, message: wire.Unshipped) -> None:
        """Hear that a worker could not send a value for want of memory; its client is told why."""
        client = self.roster.owner_of(message.token)
        if isinstance(client, Client):
            buffer = next((b for b in client.buffers.values() if b.uid == message.uid), None)
            fault = buffer.fault if buffer is not None and buffer.fault is not None else None
            fault = fault or explained(message.fault, worker.id, client.buffers.values(), None)
            self.roster.send(client.down, wire.Failed(message.request, fault))

    def shipped(self, worker: Worker, job: int, seconds: float) -> None:
        """Hear that a worker has sent its part of a value."""
        if self.sharing.end(("read", job), worker.id, seconds, self.roster.now):
            self.forecast.learn(job % SIZES, 0.0, seconds)

    def unsent(self, worker: Worker, token: bytes, request: int) -> None:
        """Hear that a worker cannot reach a client, which is told so."""
        client = self.roster.owner_of(token)
        if isinstance(client, Client):
            at = f"worker {worker.id} on {worker.hello.host} cannot reach this client, which connects to {worker.hello.results}"
            fault = Fault("unreachable", f"{at}: is a firewall between?", worker.id)
            self.roster.send(client.down, wire.Failed(request, fault))


__all__ = ["Reads"]
