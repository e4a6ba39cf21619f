"""What a server says of itself to whoever asks: who is there and what is under way, no values and no secrets.

Owns: the structs, as they travel, and ``status_of``. Must not know: sockets, clock. Next: ``dispatcher_state`` (which answers),
``status_request`` (which asks).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from gt.runtime.usage import ProgramState, WorkerUsage

if TYPE_CHECKING:
    from gt.runtime.dispatcher_state import DispatcherState
    from gt.runtime.roster import Worker

MAX_PROGRAMS = 16
MAX_EPOCHS = 64  # of those in flight, the oldest


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker: where it runs, on what, and when it was last heard of. ``joined``: whether it may be given work. ``queued``: epochs in
    flight that it is not through with; ``epoch``: the one it runs, -1 for none. ``tiers``: how many of its programs run how;
    ``programs``: those that took longest, and those of which there is something to note. ``usage`` is what it said ``usage_s`` ago.
    """

    id: int
    host: str
    pid: int
    device: str
    backend: str
    joined: bool
    silent_s: float
    queued: int = 0
    epoch: int = -1
    tiers: dict[str, int] = {}
    programs: tuple[ProgramState, ...] = ()
    usage: WorkerUsage = WorkerUsage()
    usage_s: float = 0.0


class ClientStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A client: runs that are over and calls that wait, values it holds and their bytes (as the client sees them: one copy each).
    ``used_s``: seconds of workers that it had; ``weight``: its priority. ``uploading_nbytes``: of its uploads that are not there yet, of
    ``upload_nbytes`` that it has begun since none was on its way.
    """

    id: int
    runs: int
    waiting: int
    values: int
    nbytes: int
    silent_s: float
    used_s: float = 0.0
    weight: float = 1.0
    uploading_nbytes: int = 0
    upload_nbytes: int = 0


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a job of ``gt launch``: how many workers it starts, and why it could not, if so."""

    node: int
    host: str
    pid: int
    workers: int
    failed: str


class EpochStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch in flight: whose it is (-1: nobody's), and the workers that are not through with it."""

    epoch: int
    client: int
    waiting: tuple[int, ...]


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A server at one moment. ``wall_s``: its clock, in seconds since 1970. ``epoch``: the last one; ``in_flight`` are the first of
    ``num_in_flight``. ``malformed``: messages that were dropped. ``num_nodes``: of the job, 0 if it runs none.
    """

    uptime_s: float
    wall_s: float
    malformed: int
    workers: tuple[WorkerStatus, ...]
    clients: tuple[ClientStatus, ...]
    epoch: int
    num_in_flight: int
    in_flight: tuple[EpochStatus, ...]
    plans_ready: int
    plans_made: int
    plans_failed: int
    num_nodes: int
    nodes: tuple[NodeStatus, ...]


def status_of(state: DispatcherState) -> ServerStatus:
    """Describe a dispatcher. Cost: a step for each value that a client holds."""
    now, flying = state.now, sorted(state.flights.by_epoch.values(), key=lambda f: f.epoch)
    plans, uploading = list(state.plans), Counter[int]()
    for owner, buffer in state.values.uploads.values():
        uploading[owner.id] += buffer.nbytes
    return ServerStatus(
        uptime_s=round(max(0.0, now - state.started), 3),
        wall_s=state.wall_clock(),
        malformed=state.malformed,
        workers=tuple(
            WorkerStatus(
                id=w.id, host=w.hello.host, pid=w.hello.pid, device=w.hello.device, backend=w.hello.backend,
                joined=w.link is not None, silent_s=round(now - w.seen, 3), queued=sum(w.id in f.waiting for f in flying), epoch=w.beat.epoch,
                tiers=dict(Counter(p.tier for p in w.programs.values())), programs=_shown(w), usage=w.usage,
                usage_s=round(now - w.used, 3) if w.used else 0.0,
            )
            for w in state.workers.values()
        ),
        clients=tuple(
            ClientStatus(
                id=c.id, runs=c.runs, waiting=len(c.queue), values=len(c.buffers),
                nbytes=sum(b.type.nbytes for b in set(c.buffers.values()) if b.type is not None), silent_s=round(now - c.seen, 3),
                used_s=state.sharing.shares[c.id].used_s, weight=state.sharing.shares[c.id].weight,
                uploading_nbytes=uploading[c.id], upload_nbytes=c.upload_nbytes,
            )
            for c in state.clients.values()
        ),
        epoch=state.epochs.epoch,
        num_in_flight=len(flying),
        in_flight=tuple(
            EpochStatus(epoch=f.epoch, client=-1 if f.client is None else f.client.id, waiting=tuple(sorted(f.waiting)))
            for f in flying[:MAX_EPOCHS]
        ),
        plans_ready=sum(p.ready for p in plans),
        plans_made=sum(not p.ready and p.fault is None for p in plans),
        plans_failed=sum(p.fault is not None for p in plans),
        num_nodes=state.options.num_nodes,
        nodes=state.nodes.status(),
    )  # fmt: skip


def _shown(worker: Worker) -> tuple[ProgramState, ...]:
    """Give the programs of which more than their number is told."""
    busiest = {p.plan for p in worker.usage.busiest}
    noted = sorted(worker.programs.values(), key=lambda p: (not p.marked, p.plan not in busiest, not p.notes, -p.plan))
    return tuple(noted[:MAX_PROGRAMS])


__all__ = ["ClientStatus", "EpochStatus", "NodeStatus", "ServerStatus", "WorkerStatus", "status_of"]
