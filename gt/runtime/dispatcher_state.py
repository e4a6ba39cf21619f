"""The dispatcher as a pure state machine: events in, commands out. No sockets, no clock, no planning of its own.

Owns: who is there (peers), the order of calls and epochs, placement of uploads, and what a loss means. Must not know: ZMQ, torch, how
plans are made. Next: ``dispatcher_events`` (what comes in and goes out), ``schedule`` (what a client holds), ``plan_records`` (which
plans there are), ``flights`` (epochs on their way, poisoning), ``fair_queue`` (whose run is next), ``quota`` (what a client may take),
``dispatcher`` (the process around this), ``worker_state`` (the other end).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gt.ir.mesh import Sharding
from gt.ir.program import WireSharding, WireType
from gt.ir.signals import SignalFault
from gt.ir.types import TensorType
from gt.passes.signal_placement import cluster_mesh, signal_sharding
from gt.runtime import wire
from gt.runtime.buffer_reasons import ADOPTED, buffer_reasons, runs_as, upload_reasons
from gt.runtime.cutting import Going
from gt.runtime.dispatcher_events import (
    Command,
    Event,
    Expelled,
    Kill,
    LinkBroken,
    MakePlan,
    PeerGone,
    Planned,
    Received,
    Send,
    Tick,
)
from gt.runtime.errors import Fault
from gt.runtime.fair_queue import FairQueue, Forecast, Limits
from gt.runtime.flights import Flights
from gt.runtime.hello import UNKNOWN, WAS_LOST, hello_fault
from gt.runtime.memory import Memory, explained
from gt.runtime.moving import Moving
from gt.runtime.nodes import Nodes
from gt.runtime.orphans import UID_BITS, Orphans, owner_of, past_fault
from gt.runtime.plan_records import PlanRecord, PlanRecords
from gt.runtime.quota import held_nbytes, refusal, too_many, too_much
from gt.runtime.rendezvous import KeyStore
from gt.runtime.schedule import MAX_QUEUE, Buffer, Client, Flight, OverQuota
from gt.runtime.status import ServerStatus, status_of
from gt.runtime.tracing import Tracing
from gt.runtime.usage import ProgramState, SeenRun, WorkerUsage
from gt.runtime.wire import Message

MAX_WHY = 1000
READ_S = 1e-3  # what a read counts for until one as large has been measured
SIZES = 64
UPLOADS = 4  # that a client may have on their way while there are others: workers take them as they come
MAX_NUMBER = 1 << 20  # of a worker that brings its own
STATUS_S = 0.1  # in which whoever asks gets the same answer: it costs a step for each value


@dataclass
class Options:
    """Deadlines and limits. ``owns_workers``: worker processes are local and may be killed when they stop answering.

    ``epoch_timeout_s``: how long a worker may be in one epoch; ``late_s``: how long once the others have given up waiting for it.
    ``generation``: which dispatcher this is, if its workers are to keep values for the next one should it be lost: for ``lease_s``
    seconds at least; 0: they need not. ``return_s``: how long a client that comes back waits for workers that have not.
    ``window``: runs a client may have in flight; ``client_nbytes``: bytes it may hold on all workers together, None for no limit;
    ``max_priority``: the most it may ask for. ``sharing``: how much may be queued on a worker.
    """

    window: int = 8
    client_nbytes: int | None = None
    max_priority: float = 1.0
    sharing: Limits = field(default_factory=Limits)
    client_lease_s: float = 10.0
    worker_timeout_s: float = 4.0
    no_workers_s: float = 30.0
    epoch_timeout_s: float = 1800.0
    late_s: float = 30.0
    max_plans: int = 2048
    owns_workers: bool = False
    generation: int = 0
    lease_s: float = 60.0
    return_s: float = 15.0
    job: str = ""  # of gt launch, with num_nodes nodes; 0: none
    num_nodes: int = 0


@dataclass(slots=True, eq=False)
class Worker:
    id: int
    token: bytes
    work: bytes
    hello: wire.WorkerHello
    link: bytes | None = None
    seen: float = 0.0
    beat: wire.Beat = field(default_factory=wire.Beat)  # the latest
    since: float = 0.0  # when it first said that it is in that epoch
    loaded: set[int] = field(default_factory=set)
    usage: WorkerUsage = field(default_factory=WorkerUsage)  # as it said last, as are
    programs: dict[int, ProgramState] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"worker {self.id} {'joined' if self.link else 'joining'}"


class DispatcherState:
    """Handles one event at a time and says what to do. ``secret()`` draws 16 random bytes (tokens and tickets)."""

    def __init__(self, secret: Callable[[], bytes], options: Options | None = None) -> None:
        self.secret, self.options = secret, options or Options()
        self.now = 0.0
        self.clients: dict[int, Client] = {}
        self.workers: dict[int, Worker] = {}
        self.peers: dict[bytes, Client | Worker] = {}
        self.plans = PlanRecords(self.options.max_plans)
        self.flights = Flights(self._send)
        self.sharing = FairQueue(self.options.sharing)
        self.memory = Memory()
        self.forecast = Forecast(self.options.sharing.grain_s)
        self.reads = Forecast(READ_S)  # by how large they are, in powers of two
        self.next_read = 0
        self.rendezvous = KeyStore()
        self.epoch = self.next_client = 0
        self.next_uid = self.options.generation << UID_BITS
        self.numbers: set[int] = set()  # that workers have had here
        self.orphans = Orphans(self.options.generation)
        self.uploads: dict[int, tuple[Client, Buffer]] = {}
        self.last_ping = 0.0
        self.nodes = Nodes(self._send, self.options.job, self.options.num_nodes)
        self.tracing = Tracing(self._send)
        self.seen: deque[SeenRun] | None = None  # where runs are noted as workers end them, for who shows them
        self.started, self.malformed = 0.0, 0  # told by the process around this, as is the clock on the wall
        self.wall_clock: Callable[[], float] = float
        self.status: tuple[float, ServerStatus] | None = None
        self.out: list[Command] = []

    def __repr__(self) -> str:
        lines = [f"dispatcher epoch {self.epoch}, flying {sorted(self.flights.by_epoch)}, groups {sorted(self.flights.groups)}"]
        lines += map(repr, (self.sharing, *([self.orphans] if self.orphans.estates else []), *self.workers.values(), *self.clients.values(), *self.plans))
        return "\n  ".join(lines)

    def handle(self, event: Event) -> list[Command]:
        """Take one event; give the commands it causes, in order."""
        self.now = event.now
        match event:
            case Received(_, peer, message, data, user):
                self._received(peer, message, data, user)
            case Planned():
                self._planned(event)
            case PeerGone(_, peer):
                self._peer_gone(peer)
            case LinkBroken(_, peer, reason):
                self._link_broken(peer, reason)
            case Expelled(_, peer, reason):
                self._expel(peer, reason)
            case Tick():
                self._tick()
        out, self.out = self.out, []
        return out

    @property
    def worker_ids(self) -> tuple[int, ...]:
        return tuple(sorted(w.id for w in self.workers.values() if w.link is not None))

    def _send(self, peer: bytes | None, message: Message, data: Any = None) -> None:
        if peer is not None:
            self.out.append(Send(peer, message, data))

    # -- peers

    def _received(self, peer: bytes, message: Message, data: Any, user: str) -> None:
        owner = self.peers.get(peer)
        match message:
            case _ if owner is None and peer in self.nodes:
                self.nodes.said(self.now, peer, message)
            case wire.ClientHello() | wire.WorkerHello() if owner is None and (fault := hello_fault(message, self._torch)):
                self._send(peer, wire.Refused(fault))
            case wire.ClientHello() if owner is None:
                self._client_hello(peer, message, user)
            case wire.WorkerHello() if owner is None:
                self._worker_hello(peer, message)
            case wire.Attach() if owner is None:
                self._attach(peer, message)
            case wire.Beat() if owner is None:
                self._send(peer, wire.Refused(UNKNOWN))
            case wire.Captured() if owner is not None:
                owner.seen = self.now
                self.tracing.heard(self.now, f"{'client' if isinstance(owner, Client) else 'worker'}{owner.id}", message)
            case _ if isinstance(owner, Client):
                if peer == owner.up:
                    owner.up_seen = self.now
                else:
                    owner.seen = self.now
                self._from_client(owner, message, data)
            case _ if isinstance(owner, Worker):
                owner.seen = self.now
                self._from_worker(owner, peer, message)
            case wire.NodeHello():
                self.nodes.hello(self.now, peer, message)
            case wire.AskStatus():
                self._tell_status(peer)
            case wire.AskTrace():
                peers = [(f"client{c.id}", c.down) for c in self.clients.values()]
                self.tracing.ask(self.now, peer, message, [*peers, *((f"worker{w.id}", w.link) for w in self.workers.values())])
            case _:
                self._send(peer, wire.Refused(f"expected a hello first, got {type(message).__name__}"))

    def _tell_status(self, peer: bytes) -> None:
        if self.status is None or not 0 <= self.now - self.status[0] < STATUS_S:
            self.status = self.now, status_of(self)
        self._send(peer, wire.Status(self.status[1]))

    def _client_hello(self, peer: bytes, hello: wire.ClientHello, user: str) -> None:
        if refused := refusal(hello.priority, self.options.max_priority):
            self._send(peer, wire.Refused(refused))
            return
        client = Client(self.next_client, self.secret(), peer, seen=self.now)
        if self.options.generation:
            client.owner = owner_of(hello.secret, user)
            for old in [c for c in self.clients.values() if c.owner and c.owner == client.owner]:
                self._expel(old.down, "this client has come again by another connection")
        self.next_client += 1
        self.clients[client.id] = self.peers[peer] = client
        self.sharing.join(client.id, hello.priority)
        self._send(peer, self._welcome(client))
        self.tracing.joined(f"client{client.id}", peer)  # first: it makes no call before it has heard of the workers
        self._send(peer, self._workers_message())

    def _welcome(self, client: Client) -> wire.ClientWelcome:
        options, lease_s = self.options, self.options.lease_s if client.owner else 0.0
        return wire.ClientWelcome(client.id, client.token, options.window, options.generation, lease_s)

    def _worker_hello(self, peer: bytes, hello: wire.WorkerHello) -> None:
        past, generation = hello.past, self.options.generation
        if past is not None and (fault := WAS_LOST if generation in dict(past.lives) else past_fault(past)):
            self._send(peer, wire.Refused(fault))
            return
        number = max(self.numbers, default=-1) + 1
        if past is not None:
            before = past.lives[-1][1]
            number = before if 0 <= before <= MAX_NUMBER and before not in self.numbers else number
            hello = msgspec.structs.replace(hello, past=wire.Past(past.lives))  # its values are the orphans' business
        worker = Worker(number, self.secret(), peer, hello, seen=self.now)
        self.numbers.add(number)
        self.workers[worker.id] = self.peers[peer] = worker
        self.memory.join(worker.id, hello.memory)
        self._send(peer, wire.WorkerWelcome(worker.id, worker.token, generation))
        if past is not None:
            live = [c.owner for c in self.clients.values() if c.settled]
            self.memory.bring(worker.id, past)
            self._forget(worker.id, self.orphans.bring(self.now, worker.id, past, live))

    def _forget(self, worker: int, uids: list[int]) -> None:
        if uids and worker in self.workers:
            self.memory.drop(uids, worker)
            self._send(self.workers[worker].work, wire.Free(tuple(sorted(uids))))

    @property
    def _torch(self) -> str:
        """Give the version of torch that the workers have."""
        return next((w.hello.torch for w in self.workers.values()), "")

    def owner_of(self, token: bytes) -> Client | Worker | None:
        """Give whose secret a token is."""
        owners: list[Client | Worker] = [*self.clients.values(), *self.workers.values()]
        return next((owner for owner in owners if owner.token == token), None)

    def _attach(self, peer: bytes, message: wire.Attach) -> None:
        owner = self.owner_of(message.token)
        if owner is None:
            self._send(peer, wire.Refused("the token is not known here"))
            return
        self.peers[peer] = owner
        owner.seen = self.now
        self._send(peer, wire.Attached())
        if isinstance(owner, Client):
            owner.up, owner.up_seen = peer, self.now
        elif message.role == "link":
            owner.link = peer
            self._workers_changed()
            self.tracing.joined(f"worker{owner.id}", peer)

    def _workers_message(self, why: str = "") -> wire.Workers:
        present = (self.workers[w] for w in self.worker_ids)
        return wire.Workers(tuple((w.id, w.hello.upload, w.hello.results, w.hello.key) for w in present), why)

    def _workers_changed(self, why: str = "") -> None:
        for client in self.clients.values():
            self._send(client.down, self._workers_message(why))
            homeless, client.homeless = client.homeless, []
            for message, data in homeless:  # all of them before any call that may read them
                self._place(client, message, data)
            self._serve(client)
            self._settle(client)

    def _peer_gone(self, peer: bytes) -> None:
        self.nodes.gone(peer)
        self.tracing.gone(peer)
        owner = self.peers.get(peer)
        if isinstance(owner, Worker):
            if peer in (owner.work, owner.link):
                self._worker_lost(owner, f"worker {owner.id} (pid {owner.hello.pid} on {owner.hello.host}) died")
            else:
                self.peers.pop(peer, None)
                self.rendezvous.drop_peer(peer)

    def _link_broken(self, peer: bytes, reason: str) -> None:
        """What was lost cannot be made up for: the session is over. Who is not known here has lost a connection, and has another now."""
        owner = self.peers.get(peer)
        if isinstance(owner, Worker):
            self._worker_lost(owner, f"worker {owner.id} (pid {owner.hello.pid} on {owner.hello.host}) is cut off: {reason}")
            return
        self._send(owner.down if owner is not None else peer, wire.Broken(reason))
        if owner is not None:
            self._client_gone(owner)
        self.nodes.gone(peer)

    def _expel(self, peer: bytes, reason: str) -> None:
        owner = self.peers.get(peer)
        self._send(owner.down if isinstance(owner, Client) else peer, wire.Refused(reason))
        if isinstance(owner, Client):
            self._client_gone(owner)
        elif isinstance(owner, Worker):
            self._worker_lost(owner, f"worker {owner.id} sent what this server cannot handle")

    def _tick(self) -> None:
        for worker in list(self.workers.values()):
            if stuck := self._stuck(worker):
                if self.options.owns_workers:
                    self.out.append(Kill(worker.hello.pid))
                self._worker_lost(worker, f"worker {worker.id} (pid {worker.hello.pid} on {worker.hello.host}) {stuck}")
        for client in list(self.clients.values()):
            if self.now - client.seen > self.options.client_lease_s:
                self._client_gone(client)
            elif client.up is not None and self.now - client.up_seen > self.options.client_lease_s:
                self._link_broken(client.up, f"no calls and no signs of life came with them for {self.options.client_lease_s:g} s")
            elif client.resume is not None and self.now - client.asked_at > self.options.return_s:
                self._settle(client)
            elif client.blocked_since is not None and self.now - client.blocked_since > self.options.no_workers_s:
                self._no_workers(client)
            if client.unplaced:  # what was on its way may have gone with a worker
                self._ask_for_uploads(client)
        for owner in self.orphans.overdue(self.now, self.options.client_lease_s):
            if not any(c.owner == owner for c in self.clients.values()):
                self._give_up(owner)
        self.nodes.tick(self.now)
        self.tracing.tick(self.now)
        if self.now - self.last_ping >= 0.5:
            self.last_ping = self.now
            calls = {c.up for c in self.clients.values()}  # where they hear nothing
            for peer in [*self.nodes.peers, *(p for p in self.peers if p not in calls)]:
                self._send(peer, wire.Ping())

    def _stuck(self, worker: Worker) -> str:
        """Say why a worker is not waited for any more; nothing if it is."""
        if self.now - worker.seen > self.options.worker_timeout_s:
            return "stopped answering"
        epoch, busy_s = worker.beat.epoch, self.now - worker.since
        flight = self.flights.by_epoch.get(epoch)
        if flight is None or worker.id not in flight.waiting:
            return ""
        at = f"at collective {worker.beat.collectives}" if flight.groups else "at its only part"
        if busy_s > self.options.epoch_timeout_s:
            return f"is stuck: for {busy_s:.0f} s in epoch {epoch}, {at}"
        if flight.given_up_at is not None and self.now - flight.given_up_at > self.options.late_s:
            return f"is stuck in epoch {epoch}, {at}: the others have given up waiting for it"
        return ""

    def _client_gone(self, client: Client) -> None:
        del self.clients[client.id]
        self.tracing.gone(client.down)
        for peer in (client.down, client.up):
            if peer is not None:
                self.peers.pop(peer, None)
        for worker in self.workers.values():
            self._send(worker.link, wire.Gone(client.token))
        for entry in client.queue:
            if isinstance(entry, Going):
                self._call_off(entry)
        client.queue.clear()
        self._drop(list(dict.fromkeys(client.buffers.values())))
        client.buffers.clear()
        if client.resume is not None:
            self._give_up(client.owner)
        self.flights.lose_client(client)
        self.sharing.leave(client.id)
        self._share()

    def _no_workers(self, client: Client) -> None:
        client.blocked_since = None
        waited = f"no worker joined the server within {self.options.no_workers_s:g} s"
        fault = Fault("no_workers", f"{waited}: start one with `python -m gt.worker --host HOST -p PORT`")
        for message, _ in client.homeless:
            client.buffers[message.buffer] = Buffer(0, None, fault=fault)
        client.homeless.clear()
        for entry in client.queue:
            if isinstance(entry, wire.Run | OverQuota):
                run = entry.run if isinstance(entry, OverQuota) else entry
                client.buffers |= {o: Buffer(0, None, fault=fault) for o in run.outputs if o not in client.buffers}
                self._finished(client)
            elif isinstance(entry, wire.Fetch | wire.Explain | Moving):
                self._send(client.down, wire.Failed(entry.request, fault))
        client.queue.clear()
        self.sharing.withdraw(client.id)

    # -- values of a dispatcher that is gone

    def _settle(self, client: Client) -> None:
        """Give a client back what is whole of what it asks for, once its workers are here or have been waited for long enough."""
        asked = client.resume
        if asked is None:
            return
        joined = [(w, self.workers[w].hello.past) for w in self.worker_ids]
        present = {life: w for w, past in joined if past is not None for life in past.lives}
        back = {w: present[asked.generation, w] for w in asked.workers if (asked.generation, w) in present}
        waiting = asked.generation != self.options.generation and set(asked.workers) - back.keys()
        if waiting and self.now - client.asked_at <= self.options.return_s:
            return
        client.resume, client.settled = None, True
        everything = self._workers_of(client)
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
                self._label_again(client, buffer)  # who comes later has no part in it any more
        for worker, uids in estate.by_worker(kept).items():
            self._forget(worker, uids)
        missing = tuple(n for n in asked.buffers if n not in client.buffers)
        self._send(client.down, wire.Returned(missing, tuple(sorted(back.items()))))

    def _give_up(self, owner: bytes) -> None:
        for worker, uids in self.orphans.take(owner).by_worker().items():
            self._forget(worker, uids)

    def _place_of(self, type_: TensorType | None) -> wire.Place:
        assert type_ is not None and type_.sharding is not None
        return wire.Place(WireType.of(type_), WireSharding.of(type_.sharding), self.options.generation)

    def _places_of(self, plan: PlanRecord) -> wire.Places | None:
        if not self.options.generation:
            return None
        placements: dict[WireSharding, int] = {}
        places = map(self._place_of, plan.outputs)
        outputs = tuple((p.type, placements.setdefault(p.placed, len(placements))) for p in places)
        return wire.Places(self.options.generation, tuple(placements), outputs)

    def _label(self, client: Client, number: int, buffer: Buffer) -> wire.Label | None:
        """Give what tells the next dispatcher whose value this is; nothing if there will be none."""
        return wire.Label(client.owner, (number,), self._place_of(buffer.type)) if client.owner else None

    # -- clients

    def _from_client(self, client: Client, message: Message, data: Any) -> None:
        match message:
            case wire.Define(key):
                digest = (
                    hashlib.blake2b(data, digest_size=16).digest() if isinstance(data, bytes | memoryview) else (client.id, key)
                )
                client.graphs[key] = (digest, bytes(data) if isinstance(data, memoryview) else data)
            case wire.Run() | wire.Fetch() | wire.Explain() | wire.Free() | wire.Recover() | wire.Rebalance():
                if len(client.queue) >= MAX_QUEUE:
                    self._send(client.down, wire.Refused(f"more than {MAX_QUEUE} calls are waiting"))
                    self._client_gone(client)
                    return
                if isinstance(message, wire.Rebalance):
                    client.queue.append(Moving(message.request, message.workers, message.named, message.meshes))
                else:
                    client.queue.append(self._within_window(client, message) if isinstance(message, wire.Run) else message)
                self._serve(client)
            case wire.Put():
                self._place(client, message, data)
                self._serve(client)
            case wire.Fail(buffer, fault):
                client.buffers.setdefault(buffer, Buffer(0, None, fault=fault))
            case wire.Supervise(restarts):
                self.nodes.supervise(restarts)
            case wire.Resume():
                if client.owner and client.resume is None and not client.settled:
                    client.resume, client.asked_at = message, self.now
                    self._settle(client)
            case wire.Bye():
                self._client_gone(client)
            case _:
                pass  # Beat: being seen is all

    def _within_window(self, client: Client, run: wire.Run) -> wire.Run | OverQuota:
        flying, client.asked = client.asked - client.runs, client.asked + 1
        return run if flying < self.options.window else OverQuota(run, too_many(flying, self.options.window))

    def _workers_of(self, client: Client) -> tuple[int, ...]:
        """Give the workers that a client's next value or plan may use: all there are by now, or those that it chose."""
        present = self.worker_ids
        client.workers = tuple([w for w in present if w in client.chosen]) or present
        return client.workers

    def _place(self, client: Client, message: wire.Put, data: Any) -> None:
        if message.buffer in client.buffers:
            return  # a buffer is made once; its owner alone would be confused
        workers = self._workers_of(client)
        if not workers:
            client.homeless.append((message, data))
            client.blocked_since = client.blocked_since or self.now
            return
        type_ = message.type.tensor_type
        asked = message.placed.checked(type_.ndim, workers) if message.placed is not None else None
        sharding = asked or signal_sharding(type_, message.signal, workers)
        placed = type_.placed(sharding)
        fault = self._over_memory(client, held_nbytes(placed), (), f"an upload of {type_!r}", message.where)
        if fault is None and (over := self.memory.over_with(placed)) is not None:
            own = client.buffers.values()
            fault = self.memory.short(*over, f"an upload of {type_!r}", own, None, message.where)
        if fault is not None:
            client.name(message.buffer, Buffer(0, None, fault=fault))
            if not message.inline:
                self._send(client.down, wire.Placed(message.buffer, ()))  # the client holds its rows until it hears where they go
            return
        self.next_uid += 1
        why = upload_reasons(message.signal, sharding)
        made = Buffer(self.next_uid, placed, reasons=why, nbytes=held_nbytes(placed), where=message.where)
        buffer = client.name(message.buffer, made)
        self.memory.add((buffer,))
        local, label = sharding.local_shape(type_.shape), self._label(client, message.buffer, buffer)
        tiles, expects = [], []
        for w in sharding.mesh.workers:
            bounds = sharding.bounds(type_.shape, w)
            worker = self.workers[w]
            if message.inline:
                self._send(worker.work, wire.Store(buffer.uid, message.type, bounds, local, label), data)
                continue
            if label is not None:
                self._send(worker.work, wire.Name(buffer.uid, label))
            ticket = self.secret()
            part = WireType(tuple(b - a for a, b in bounds), message.type.dtype)
            expects.append((w, wire.Expect(buffer.uid, ticket, part, local)))
            tiles.append(wire.Tile(w, ticket, bounds))
            buffer.waiting.add(w)
        if not message.inline:
            self.uploads[buffer.uid] = (client, buffer)
            client.unplaced.append((buffer.uid, wire.Placed(message.buffer, tuple(tiles)), expects))
            self._ask_for_uploads(client)

    def _ask_for_uploads(self, client: Client) -> None:
        """Tell a client where its next uploads go, as far as it may have them on their way."""
        client.uploading = {uid for uid in client.uploading if uid in self.uploads}
        while client.unplaced and (len(client.uploading) < UPLOADS or len(self.clients) < 2):
            uid, placed, expects = client.unplaced.popleft()
            if uid in self.uploads:  # else it was freed, or is lost with a worker: the client holds its rows until it hears of them
                client.uploading.add(uid)
                for w, expect in expects:
                    if w in self.workers:
                        self._send(self.workers[w].link, expect)
            else:
                placed = wire.Placed(placed.buffer, ())
            self._send(client.down, placed)

    def _over_memory(self, client: Client, asked: int, frees: tuple[int, ...], what: str, where: str) -> Fault | None:
        """Say why a client may not hold so many bytes more once ``frees`` are gone; None if it may."""
        limit = self.options.client_nbytes
        if limit is None or client.held + asked <= limit:
            return None
        going = Counter(id(b) for n in set(frees) if (b := client.buffers.get(n)) is not None)
        freed = sum(b.nbytes for n in set(frees) if (b := client.buffers.get(n)) is not None and going[id(b)] == b.holders)
        return too_much(client.held, asked, freed, limit, what, where) if client.held + asked - freed > limit else None

    def _share(self) -> None:
        """Serve those whose turn it is, as far as the workers have room."""
        while (turn := self.sharing.turn(self.now)) is not None:
            self._serve(self.clients[turn])

    def _serve(self, client: Client) -> None:
        """Serve the client's calls in order until one has to wait."""
        while client.queue:
            entry = client.queue[0]
            match entry:
                case wire.Run():
                    done = self._run(client, entry)
                    if isinstance(client.queue[0], Going):  # it is to run in parts
                        continue
                case OverQuota(run, fault):
                    done = self._skip(client, run, fault)
                case wire.Fetch():
                    done = self._fetch(client, entry)
                case wire.Explain():
                    done = self._explain(client, entry)
                case wire.Recover():
                    done = self._recover(client, entry)
                case Moving():
                    done = self._move(client, entry)
                case Going():
                    done = self._go_on(client, entry)
                case _:
                    done = self._free(client, entry)
            if not done:
                return
            client.queue.popleft()
        if not client.homeless:
            client.blocked_since = None

    def _fetch(self, client: Client, fetch: wire.Fetch) -> bool:
        buffer = client.buffers.get(fetch.buffer)
        if buffer is None:
            self._send(client.down, wire.Failed(fetch.request, Fault("protocol", f"buffer {fetch.buffer} is not there")))
            return True
        if buffer.fault is not None:
            self._send(client.down, wire.Failed(fetch.request, buffer.fault))
            return True
        if buffer.waiting or client.homeless:
            return False
        assert buffer.type is not None and buffer.type.sharding is not None
        sharding, flight = buffer.type.sharding, buffer.flight
        workers = sharding.mesh.workers
        if sharding.is_replicated:
            workers = (workers[client.id % len(workers)] if flight is None or flight.local is None else flight.local,)
        tiles = [(w, sharding.bounds(buffer.type.shape, w)) for w in workers]
        tiles = list({bounds: (w, bounds) for w, bounds in reversed(tiles) if all(a < b for a, b in bounds)}.values()) or tiles[:1]
        job = self._begin_read(client, tuple(w for w, _ in tiles), buffer.nbytes)
        if job is None:
            return False
        final = flight is None or (flight.local is not None and workers == (flight.local,))
        if flight is not None and not final:
            flight.fetches.append(fetch.request)
        if fetch.placed:
            self._send(client.down, wire.Located(fetch.request, WireSharding.of(sharding)))
        for w, bounds in tiles:
            ship = wire.Ship(buffer.uid, client.token, fetch.request, WireType.of(buffer.type), bounds, len(tiles), final, job)
            self._send(self.workers[w].work, ship)
        return True

    def _begin_read(self, client: Client, workers: tuple[int, ...], nbytes: int) -> int | None:
        """Give the job that a read is on its workers, -1 while nobody else is there who could have a turn; None if others' come first."""
        if len(self.clients) < 2:
            return -1
        size = min(nbytes.bit_length(), SIZES - 1)
        seconds = self.reads.seconds(size, 0.0)
        if not self.sharing.admits(client.id, workers, seconds, self.now):
            return None
        self.next_read += 1
        job = self.next_read * SIZES + size
        self.sharing.begin(("read", job), client.id, workers, seconds)
        return job

    def _explain(self, client: Client, explain: wire.Explain) -> bool:
        buffer = client.buffers.get(explain.buffer)
        if buffer is None and client.homeless:
            return False
        if buffer is None or buffer.type is None or buffer.fault is not None:
            fault = buffer.fault if buffer is not None else None
            fault = fault or Fault("protocol", f"buffer {explain.buffer} is not there")
            self._send(client.down, wire.Failed(explain.request, fault))
            return True
        plan = next((p for p in self.plans if p.reasons is buffer.reasons and p.ready), None)
        of = [w for w in self.workers.values() if plan is not None and plan.id in w.programs]
        runs = runs_as((w.id, w.hello.device, w.hello.backend, w.programs[plan.id]) for w in of) if plan is not None else ()
        if buffer.flight is not None and buffer.flight.waiting:
            return False  # how it runs is known once it has
        found = buffer_reasons(buffer.type, buffer.reasons, buffer.output, len(client.workers), runs)
        self._send(client.down, wire.Explained(explain.request, found))
        return True

    def _free(self, client: Client, free: wire.Free) -> bool:
        self._drop(list(self._released(client, free.buffers).values()))
        return True

    def _released(self, client: Client, numbers: tuple[int, ...]) -> dict[int, Buffer]:
        """Take numbers from a client; give the buffers that no number names any more."""
        return {number: buffer for number in numbers if (buffer := client.unname(number)) is not None}

    def _drop(self, buffers: list[Buffer]) -> None:
        """Tell the workers that hold the buffers to let them go. Uploads on their way are called off."""
        by_worker: dict[int, list[int]] = {}
        behind = [old for b in buffers for old in _only_for(b)]
        for b in (*buffers, *behind):
            self.memory.drop((b.uid,))
            if b.type is not None and b.type.sharding is not None:
                for w in b.type.sharding.mesh.workers:
                    by_worker.setdefault(w, []).append(b.uid)
            if b.waiting:
                self.uploads.pop(b.uid, None)
        for w, uids in by_worker.items():
            if w in self.workers:
                self._send(self.workers[w].work, wire.Free(tuple(uids)))
                late = tuple(b.uid for b in buffers if w in b.waiting)
                if late:
                    self._send(self.workers[w].link, wire.Free(late))

    def _recover(self, client: Client, message: wire.Recover) -> bool:
        """Let what failed in the same run as a buffer be what it replaced, once nothing is on its way that may fail too."""
        if any(f.client is client for f in self.flights.by_epoch.values()):
            return False
        known = client.buffers.get(message.buffer)
        if known is None or known.fault is None:
            return True
        for number, buffer in list(client.buffers.items()):
            old = buffer.lasting if buffer.failed_with(known) else None
            if old is not None:
                client.unname(number)
                client.buffers[number], buffer.before = old, None
                client.held += 0 if old.holders else old.nbytes
                old.holders += 1
                old.kept = False
                self._label_again(client, old)
                self._drop([buffer])
        return True

    def _label_again(self, client: Client, buffer: Buffer) -> None:
        """Tell the workers that a value has other numbers now."""
        if not client.owner or buffer.type is None or buffer.type.sharding is None:
            return
        numbers = tuple(n for n, b in client.buffers.items() if b is buffer)
        label = wire.Label(client.owner, numbers, self._place_of(buffer.type))
        for w in buffer.type.sharding.mesh.workers:
            if w in self.workers:
                self._send(self.workers[w].work, wire.Name(buffer.uid, label))

    # -- moving

    def _move(self, client: Client, moving: Moving) -> bool:
        """Go on with a rebalancing. What is to move is copied, and let go where it was once the copies are there."""
        if moving.flight is not None:
            if moving.flight.epoch in self.flights.by_epoch:
                return False
            if (fault := self._moved(client, moving)) is not None:
                self._send(client.down, wire.Failed(moving.request, fault))
                return True
        if client.homeless or any(b.waiting for b in client.buffers.values()):
            return False
        present = self.worker_ids
        if absent := sorted(set(moving.workers) - set(present)) if not moving.values else []:
            self._send(client.down, wire.Failed(moving.request, Fault("protocol", f"workers {absent} are not there to move values to")))
            return True
        client.chosen = moving.workers
        if not present:
            client.blocked_since = client.blocked_since or self.now
            return False
        try:
            move = moving.next(client.buffers, present)
        except SignalFault as e:  # workers or axes that are none
            self._send(client.down, wire.Failed(moving.request, Fault("protocol", f"values cannot be moved so: {e}")))
            return True
        if move is None:
            self._send(client.down, wire.Rebalanced(moving.request, moving.values))
            return True
        inputs, names = list(move.buffers), tuple(numbers[0] for numbers in move.numbers)
        free = min(0, *client.buffers) - 1  # numbers that the client does not use
        run = wire.Run(-1, names, tuple(range(free, free - len(names), -1)), (), ())
        plan = self._plan_of(("move", move.asked), move.graph(), run, inputs, present)
        if plan.fault is None and not plan.ready:
            return False
        fault = plan.fault
        if fault is None and len(plan.outputs) != len(names):
            fault = Fault("plan", f"a move of {len(names)} values was planned as one of {len(plan.outputs)}")
        fault = fault or self._run_over_memory(client, msgspec.structs.replace(run, frees=sum(move.numbers, ())), plan)
        seconds = self.forecast.seconds(plan.id, plan.seconds)
        if fault is None and not self.sharing.admits(client.id, tuple(plan.programs), seconds, self.now):
            return False
        if fault is None and self.memory.workers:
            fault = self._short_of_memory(client, run, plan, inputs)
        if fault is not None:
            self._send(client.down, wire.Failed(moving.request, fault))
            return True
        moving.move, moving.flight = move, self._dispatch(client, run, plan, inputs, failed=False)
        moving.flight.own = False
        self.sharing.begin(self.epoch, client.id, tuple(plan.programs), seconds)
        return False

    def _moved(self, client: Client, moving: Moving) -> Fault | None:
        """Let the client's numbers name the copies that a run has made, or drop these where it failed; give why."""
        move, flight, moving.flight = moving.move, moving.flight, None
        assert move is not None and flight is not None
        fault = flight.fault
        dropped = []
        for old, numbers, new in zip(move.buffers, move.numbers, flight.outputs, strict=True):
            temporary = next(n for n, b in client.buffers.items() if b is new)
            if fault is not None or new.fault is not None:
                client.unname(temporary)
                dropped.append(new)
                continue
            del client.buffers[temporary]
            client.buffers |= dict.fromkeys(numbers, new)
            new.holders, old.holders = len(numbers), 0
            new.where, new.reasons, new.output = old.where, old.reasons, old.output
            client.held -= old.nbytes
            self._label_again(client, new)
            moving.done.add(new.uid)
            moving.values += 1
            dropped.append(old)
        self._drop(dropped)
        return fault

    # -- runs

    def _run(self, client: Client, run: wire.Run) -> bool:
        inputs = [client.buffers.get(i) for i in run.inputs]
        missing = [i for i, b in zip(run.inputs, inputs, strict=True) if b is None]
        if missing and client.homeless:
            return False
        known = [b for b in inputs if b is not None]
        failed = [b for b in known if b.fault is not None]
        fault = next((b.fault for b in failed if not b.alone), None)
        if not client.buffers.keys().isdisjoint(run.outputs) or len(set(run.outputs)) < len(run.outputs):
            return self._skip(client, run, Fault("protocol", "a run makes a buffer that is there already, or one twice"))
        if missing:
            fault = Fault("protocol", f"run reads buffers {missing[:8]} that are not there")
        elif run.key not in client.graphs:
            fault = Fault("protocol", f"run names graph {run.key}, which was never defined")
        if fault is not None:
            return self._skip(client, run, fault)
        if any(b.waiting for b in known):
            return False
        workers = self._workers_of(client)
        if not workers:
            client.blocked_since = client.blocked_since or self.now
            return False
        plan = self._plan_for(client, run, known, workers)
        if plan.fault is not None:
            self._skip(client, run, plan.fault)
        elif not plan.ready:
            return False
        elif len(plan.outputs) != len(run.outputs):
            self._skip(
                client,
                run,
                Fault("protocol", f"the graph has {len(plan.outputs)} outputs, the run names {len(run.outputs)}"),
            )
        elif failed and failed[0].fault is not None and len(plan.programs) > 1:  # else its worker runs what does not read it
            self._skip(client, run, failed[0].fault)
        elif self.options.client_nbytes is not None and (over := self._run_over_memory(client, run, plan)) is not None:
            self._skip(client, run, over)
        else:
            seconds = self.forecast.seconds(plan.id, plan.seconds)
            if not self.sharing.admits(client.id, tuple(plan.programs), seconds, self.now):
                return False
            if self.memory.workers and (short := self._short_of_memory(client, run, plan, known)) is not None:
                return self._skip(client, run, short)
            if not failed and (going := self._in_parts(client, run, plan, known)) is not None:
                client.queue[0] = going
                return False
            self._dispatch(client, run, plan, known, bool(failed))
            self.sharing.begin(self.epoch, client.id, tuple(plan.programs), seconds)
        return True

    def _run_over_memory(self, client: Client, run: wire.Run, plan: PlanRecord) -> Fault | None:
        name = next((p.name for p in plan.programs.values()), "")
        return self._over_memory(client, plan.nbytes, run.frees, f"what run {name!r} makes", plan.largest_line())

    def _short_of_memory(self, client: Client, run: wire.Run, plan: PlanRecord, inputs: list[Buffer]) -> Fault | None:
        """Say which worker has no room for a run; None if all have: then all of them begin it."""
        going = Counter(id(b) for n in set(run.frees) if (b := client.buffers.get(n)) is not None)
        freed = [b for n in set(run.frees) if (b := client.buffers.get(n)) is not None and going[id(b)] == b.holders]
        over = self.memory.over(plan.programs, inputs, freed)
        if over is None:
            return None
        program = plan.programs[over[0]]
        return self.memory.short(*over, f"run {program.name!r}", client.buffers.values(), program, plan.largest_line())

    def _plan_for(self, client: Client, run: wire.Run, inputs: list[Buffer], workers: tuple[int, ...]) -> PlanRecord:
        return self._plan_of(*client.graphs[run.key], run, inputs, workers)

    def _plan_of(self, digest: object, graph: Any, run: wire.Run, inputs: list[Buffer], workers: tuple[int, ...]) -> PlanRecord:
        key = (digest, tuple([b.type for b in inputs]), workers, len(run.scalars))
        plan = self.plans.find(key)
        if plan is None:
            plan = self.plans.begin(key)
            types = tuple(b.type for b in inputs if b.type is not None)
            self.out.append(MakePlan(plan.id, graph, types, workers, len(run.scalars)))
            evicted = self.plans.evict()
            self.forecast.forget(number for old in evicted for number in old.ids)
            for old in evicted:
                self._unload(old)
        return plan

    def _unload(self, plan: PlanRecord) -> None:
        for worker in self.workers.values():
            if loaded := worker.loaded.intersection(plan.ids):
                worker.loaded -= loaded
                for number in loaded:
                    worker.programs.pop(number, None)
                self._send(worker.work, wire.Unload(tuple(sorted(loaded))))

    def _planned(self, event: Planned) -> None:
        plan = self.plans.made(event)
        if plan is None:
            return
        for client in list(self.clients.values()):
            self._serve(client)
        if plan.fault is not None:  # asked again, it is planned again: the fault may have been the planner's death
            self.plans.forget(plan)

    def _dispatch(self, client: Client, run: wire.Run, plan: PlanRecord, inputs: list[Buffer], failed: bool) -> Flight:
        """Send a run to its workers and give its flight. ``failed``: some input is not there, as its worker knows."""
        for group in plan.groups:
            if group not in self.flights.groups:
                self._make_group(group)
        self.epoch += 1
        workers = tuple(plan.programs)
        upstream = list({id(b.flight): b.flight for b in inputs if b.flight is not None}.values())
        local = workers[0] if len(workers) == 1 and all(f.local == workers[0] for f in upstream) else None
        flight = Flight(self.epoch, client, set(workers), local=local, groups=plan.groups, where=plan.where, plan=plan)
        self.flights.add(flight, upstream)
        outputs = []
        for i, (number, type_) in enumerate(zip(run.outputs, plan.outputs, strict=True)):
            self.next_uid += 1
            where = plan.lines[i]
            buffer = Buffer(self.next_uid, type_, flight=flight, reasons=plan.reasons, output=i, nbytes=held_nbytes(type_), where=where)
            outputs.append(client.name(number, buffer))
        flight.outputs, flight.replaces = tuple(outputs), run.replaces
        freed = flight.freed = self._released(client, run.frees)
        flight.refuses = plan.refuses or failed or any(f.refuses for f in upstream)
        if local is not None and flight.refuses and run.replaces:
            flight.late = frozenset(freed[n] for n in (freed.keys() & set(run.replaces)).difference(run.inputs))
        message = wire.Execute(
            self.epoch, plan.id, tuple([b.uid for b in inputs]), tuple([b.uid for b in outputs]), run.scalars,
            tuple([b.uid for b in freed.values() if b not in flight.late] if flight.late else [b.uid for b in freed.values()]),
            plan.capture.use(self.epoch), client.owner, run.outputs if client.owner else (),
        )  # fmt: skip
        if self.memory.workers:
            self.memory.drop(message.frees)
            self.memory.add(outputs)
        places = None
        for w in workers:
            worker = self.workers[w]
            if plan.id not in worker.loaded:
                worker.loaded.add(plan.id)
                places = places or self._places_of(plan)
                self._send(worker.work, wire.Load(plan.id, plan.programs[w], places))
            self._send(worker.work, message)
        elsewhere = {t for t in {b.type for b in freed.values()} if t and t.sharding and set(t.sharding.mesh.workers) - set(workers)}
        if elsewhere:
            self._drop([b for b in freed.values() if b.type in elsewhere])
        return flight

    # -- runs in parts

    def _in_parts(self, client: Client, run: wire.Run, plan: PlanRecord, inputs: list[Buffer]) -> Going | None:
        """Begin to run a long plan in parts, where others wait for its workers or it takes very long; None: it runs as a whole."""
        limits = self.options.sharing
        than = limits.grain_s if self.sharing.contended(self.now) else limits.alone_s
        seconds = self.forecast.guess(plan.id, plan.seconds)
        if seconds <= max(than, limits.grain_s) or (client.owner and not self.memory.fits_beside(plan.programs)):
            return None
        if len(plan.programs) > 1 and not all(any(w in group for group in plan.groups) for w in plan.programs):
            return None  # as a whole it goes on without a worker that computes the same as others
        cut = self.plans.in_parts(plan, len(run.inputs), math.ceil(seconds / limits.grain_s))
        if cut is None:
            return None
        outputs = []
        for i, type_ in enumerate(plan.outputs):
            self.next_uid += 1
            made = Buffer(self.next_uid, type_, reasons=plan.reasons, output=i, nbytes=held_nbytes(type_), where=plan.lines[i])
            outputs.append(made)
        kept = tuple(range(self.next_uid + 1, self.next_uid + 1 + cut.kept))
        self.next_uid += cut.kept
        refuses = plan.refuses or any(b.flight.refuses for b in inputs if b.flight is not None)
        going = Going(run, plan, cut, inputs, tuple(outputs), kept, seconds, refuses)
        self.memory.reserve(going.kept, plan.programs, [] if client.owner else inputs)
        return going

    def _go_on(self, client: Client, going: Going) -> bool:
        """Send the next parts of a run as far as it is its client's turn. After the last one the client's next calls are served."""
        plan, cut = going.plan, going.cut
        while going.fault is None:
            part = cut.parts[going.next]
            seconds = self.forecast.seconds(part.id, 0.0) if self.forecast.knows(part.id) else going.seconds * part.share
            if not self.sharing.admits(client.id, tuple(part.programs), seconds, self.now):
                return False
            for group in plan.groups:
                if group not in self.flights.groups:
                    self._make_group(group)
            self._send_part(client, going)
            self.sharing.begin(self.epoch, client.id, tuple(part.programs), seconds)
            if going.next == len(cut.parts):
                return True
        self._call_off(going)
        return self._skip(client, going.run, going.fault)

    def _send_part(self, client: Client, going: Going) -> None:
        """Send a part. What the run frees goes with the part that reads it last; what a run replaces that may refuse its values, once it
        has gone well.
        """
        run, plan, part = going.run, going.plan, going.cut.parts[going.next]
        last = going.next == len(going.cut.parts) - 1
        going.next += 1
        self.epoch += 1
        workers = tuple(part.programs)
        before = going.flights[-1:]
        upstream = [f for f in {id(b.flight): b.flight for b in going.inputs if b.flight is not None}.values() if f not in before]
        lone = next(iter(plan.programs)) if len(plan.programs) == 1 else None
        local = lone if all(f.local == lone for f in upstream + before) else None
        flight = Flight(self.epoch, client, set(workers), local=local, groups=plan.groups, where=plan.where, own=last, part=part.id)
        flight.plan, flight.refuses = plan, going.refuses
        self.flights.add(flight, [f for f in upstream + before if f.epoch in self.flights.by_epoch])
        if before and before[0].fault is not None:
            self.flights.fail(flight, before[0].fault)
        going.flights.append(flight)
        made = {position for p in part.programs.values() for position, _ in p.outputs}
        if local is not None or last:
            flight.outputs = going.outputs if last else tuple(b for i, b in enumerate(going.outputs) if i in made)
        for buffer in flight.outputs:
            if buffer.fault is None:
                buffer.flight, buffer.fault = (flight, None) if flight.fault is None else (None, flight.fault)
        frees = [going.kept[k] for k in part.last_kept]
        freed = self._freed_by(client, going, part.last_inputs, last)
        if last:
            for number, buffer in zip(run.outputs, going.outputs, strict=True):
                client.name(number, buffer)
            self.memory.add(going.outputs)
            flight.replaces, flight.freed = run.replaces, self._released(client, run.frees)
            if local is not None and going.refuses and run.replaces:
                flight.late = frozenset(b for n, b in flight.freed.items() if n in set(run.replaces))
            freed = [b for b in flight.freed.values() if b not in flight.late]
            self.memory.drop((*(b.uid for b in freed), *going.kept))
            elsewhere = [b for b in freed if b.type and b.type.sharding and set(b.type.sharding.mesh.workers) - set(workers)]
            self._drop(elsewhere)
            frees = list(going.kept)  # also what other workers have of them
            for w in plan.programs.keys() - part.programs.keys():
                self._send(self.workers[w].work, wire.Free(going.kept))
        message = wire.Execute(
            self.epoch, part.id, (*(b.uid for b in going.inputs), *(b.uid for b in going.outputs), *going.kept),
            (*(b.uid for b in going.outputs), *going.kept), run.scalars, (*(b.uid for b in freed), *frees),
            owner=client.owner if last else b"", numbers=run.outputs if last and client.owner else (),
        )  # fmt: skip
        for w in workers:
            worker = self.workers[w]
            if part.id not in worker.loaded:
                worker.loaded.add(part.id)
                self._send(worker.work, wire.Load(part.id, part.programs[w], self._places_of(plan) if last else None))
            self._send(worker.work, message)
        if last and client.owner:
            self._label_elsewhere(client, going, workers)

    def _label_elsewhere(self, client: Client, going: Going, workers: tuple[int, ...]) -> None:
        """Label what a run has made on workers that have no share of its last part: it is there as a whole, or not at all."""
        for number, buffer in zip(going.run.outputs, going.outputs, strict=True):
            assert buffer.type is not None and buffer.type.sharding is not None
            label = wire.Label(client.owner, (number,), self._place_of(buffer.type), self.epoch)
            for w in buffer.type.sharding.mesh.workers:
                if w not in workers and w in self.workers:
                    self._send(self.workers[w].work, wire.Name(buffer.uid, label))

    def _freed_by(self, client: Client, going: Going, positions: frozenset[int], last: bool) -> list[Buffer]:
        """Give what goes with a part before the last: what no later part reads, nobody else names, and the run need not keep. With a
        client that has its values back from the next dispatcher nothing does, as the run may have to be made again.
        """
        if last or client.owner or (going.refuses and len(going.plan.programs) == 1):
            return []
        numbers = {going.run.inputs[i] for i in positions}
        later = {b.uid for i, b in enumerate(going.inputs) if i not in positions and going.run.inputs[i] not in numbers}
        naming = Counter(id(b) for n in going.run.frees if (b := client.buffers.get(n)) is not None)
        found = {n: b for n in numbers & set(going.run.frees) if (b := client.buffers.get(n)) is not None}
        return [b for b in found.values() if b.uid not in later and naming[id(b)] == b.holders]

    def _call_off(self, going: Going) -> None:
        """Let go of what a run has made of which no more parts are sent."""
        uids = (*(b.uid for b in going.outputs), *going.kept)
        self.memory.drop(uids)
        for w in going.plan.programs:
            if w in self.workers:
                self._send(self.workers[w].work, wire.Free(uids))

    def _skip(self, client: Client, run: wire.Run, fault: Fault) -> bool:
        """A run that cannot be: its outputs fail with the cause. What is there already stays."""
        freed = self._released(client, run.frees)
        for i, number in enumerate(run.outputs):
            if number in client.buffers:
                continue
            failed = client.buffers[number] = Buffer(0, None, fault=fault)
            if i < len(run.replaces):
                failed.replaces(freed.get(run.replaces[i]) or client.buffers.get(run.replaces[i]))
            if failed.before is not None and not failed.before.holders:
                failed.before.kept = client.salvaged = True
        self._drop([b for b in freed.values() if not b.kept])
        self._finished(client)
        return True

    def _finished(self, client: Client) -> None:
        client.runs += 1
        self._send(client.down, wire.Progress(client.runs))

    def _make_group(self, members: tuple[int, ...]) -> None:
        self.epoch += 1
        self.flights.groups.add(members)
        for plan in self.plans:
            if members in plan.groups:
                plan.capture.drop()  # as its workers do with graphs that have collectives of a group made anew
        hellos = [self.workers[w].hello for w in members]
        devices = {(h.host, h.device) for h in hellos}
        nccl = all(h.device.startswith("cuda") for h in hellos) and len(devices) == len(members)
        self.flights.add(Flight(self.epoch, None, set(members), groups=(members,)))
        message = wire.MakeGroup(self.epoch, f"g{self.epoch}", members, "nccl" if nccl else "gloo")
        for w in members:
            self._send(self.workers[w].work, message)

    # -- workers

    def _from_worker(self, worker: Worker, peer: bytes, message: Message) -> None:
        match message:
            case wire.Beat() if peer == worker.link:
                if message.epoch != worker.beat.epoch:
                    worker.since = self.now
                worker.beat = message
            case wire.Done(epoch, seconds, fault, failed, kept, graph, left):
                self._measured(worker, epoch, seconds, fault)
                if fault is not None and fault.kind == "memory":
                    fault, failed = self._explained(worker, epoch, fault, failed)
                if left:
                    self._left(worker, epoch, fault)
                flight = self.flights.done(epoch, worker.id, fault, failed)
                if self.seen is not None and flight is not None and flight.plan is not None:
                    self.seen.append(SeenRun(worker.id, flight.plan.id, -1 if flight.client is None else flight.client.id, self.now, seconds))
                if flight is not None and flight.plan is not None and flight.plan.capture.heard(worker.id, epoch, graph):
                    self._drop_graph(flight.plan)
                if flight is not None and flight.suspect is not None:
                    flight.given_up_at = flight.given_up_at or self.now
                if kept or (flight is not None and (fault is not None or flight.late or (flight.client and flight.client.salvaged))):
                    self._keep(worker, flight, set(kept))
                if flight is not None:
                    self._landed(flight)
                self._share()
            case wire.GraphIdle(number):
                plan = self.plans.by_id(number)
                if plan is not None and plan.capture.drop():
                    self._drop_graph(plan)
            case wire.Unshipped():
                self._unshipped(worker, message)
            case wire.Used(usage, programs):
                worker.usage = usage
                worker.programs |= {state.plan: state for state in programs if state.plan in worker.loaded}
            case wire.Uploaded(uid):
                self._uploaded(worker, uid)
            case wire.Shipped(job, seconds):
                if self.sharing.end(("read", job), worker.id, seconds, self.now):
                    self.reads.learn(job % SIZES, 0.0, seconds)
                self._share()
            case wire.Unsent(token, request):
                client = self.owner_of(token)
                if isinstance(client, Client):
                    at = f"worker {worker.id} on {worker.hello.host} cannot reach this client, which connects to {worker.hello.results}"
                    fault = Fault("unreachable", f"{at}: is a firewall between?", worker.id)
                    self._send(client.down, wire.Failed(request, fault))
            case wire.StoreOp():
                for to, reply in self.rendezvous.apply(peer, message):
                    self._send(to, reply)
            case wire.Bye(why):
                self._worker_lost(worker, f"worker {worker.id} {why[:MAX_WHY]}")
            case _:
                pass

    def _drop_graph(self, plan: PlanRecord) -> None:
        for w in plan.capture.members:
            if w in self.workers:
                self._send(self.workers[w].work, wire.DropGraph(plan.id, plan.capture.refused))

    def _measured(self, worker: Worker, epoch: int, seconds: float, fault: Fault | None) -> None:
        """Charge what an epoch took, and remember it for the next run of its plan."""
        if self.sharing.end(epoch, worker.id, seconds, self.now) and fault is None:
            flight = self.flights.by_epoch.get(epoch)
            if flight is not None and flight.part:
                self.forecast.learn(flight.part, 0.0, seconds)
            elif flight is not None and flight.plan is not None:
                self.forecast.learn(flight.plan.id, flight.plan.seconds, seconds)

    def _explained(
        self, worker: Worker, epoch: int, fault: Fault, failed: tuple[tuple[int, Fault], ...] | None
    ) -> tuple[Fault, tuple[tuple[int, Fault], ...] | None]:
        """Give what a worker says of a run for which it had no memory, with what is large there."""
        flight = self.flights.by_epoch.get(epoch)
        if flight is None or flight.client is None or flight.plan is None:
            return fault, failed
        own = [b for b in flight.client.buffers.values() if b not in flight.outputs]
        full = explained(fault, worker.id, own, flight.plan.programs.get(worker.id))
        return full, failed and tuple((uid, full if f.same_run(fault) else f) for uid, f in failed)

    def _left(self, worker: Worker, epoch: int, fault: Fault | None) -> None:
        """Tell the others not to wait for a worker that takes no part in an epoch's collectives any more."""
        flight = self.flights.by_epoch.get(epoch)
        if flight is None:
            return
        why = f"worker {worker.id} could not go on" + (f": {fault.message.partition('. ')[0]}" if fault is not None else "")
        groups = tuple(g for g in flight.groups if worker.id in g)
        self.flights.groups -= set(groups)
        for w in sorted({w for g in groups for w in g} - {worker.id}):
            if w in self.workers:
                self._send(self.workers[w].link, wire.Leave(epoch, groups, why))

    def _unshipped(self, worker: Worker, message: wire.Unshipped) -> None:
        client = self.owner_of(message.token)
        if isinstance(client, Client):
            buffer = next((b for b in client.buffers.values() if b.uid == message.uid), None)
            fault = buffer.fault if buffer is not None and buffer.fault is not None else None
            fault = fault or explained(message.fault, worker.id, client.buffers.values(), None)
            self._send(client.down, wire.Failed(message.request, fault))

    def _keep(self, worker: Worker, flight: Flight | None, here: set[int]) -> None:
        """Keep what failed outputs of an epoch were to replace. What else is there only for what failed goes."""
        wanted = set()
        if flight is not None:
            self.memory.add(b for b in flight.freed.values() if b.uid in here)
            here |= {b.uid for b in flight.late}
        if flight is not None and flight.client is not None:
            for buffer, number in zip(flight.outputs, flight.replaces, strict=False):
                old = flight.freed.get(number) or flight.client.buffers.get(number)
                if buffer.alone and old is not None and buffer.replaces(old):
                    old.kept |= old.uid in here
                    wanted.add(old)
            flight.client.salvaged |= bool(wanted)
            self._drop([old for b in flight.freed.values() if b not in wanted for old in _only_for(b)])
        unwanted = here - {b.uid for b in wanted}
        self.memory.drop(unwanted)
        if unwanted:
            self._send(worker.work, wire.Free(tuple(sorted(unwanted))))

    def _uploaded(self, worker: Worker, uid: int) -> None:
        client, buffer = self.uploads.get(uid, (None, None))
        if client is None or buffer is None:
            return
        buffer.waiting.discard(worker.id)
        if not buffer.waiting:
            del self.uploads[uid]
            self._ask_for_uploads(client)
            self._serve(client)

    def _landed(self, flight: Flight) -> None:
        """When all workers are through with an epoch, its client may send another."""
        if flight.waiting:
            return
        client = flight.client
        if client is None:
            self._forget_rendezvous(flight)
        elif flight.own:
            self._finished(client)
        self.flights.settle(flight)
        if client is not None and client.queue:  # its next call may have waited for this
            self._serve(client)

    def _forget_rendezvous(self, flight: Flight) -> None:
        for to, reply in self.rendezvous.forget(f"g{flight.epoch}"):
            self._send(to, reply)

    # -- loss

    def _worker_lost(self, worker: Worker, reason: str) -> None:
        """Fence the worker, poison what only it held or was making, end what waits for it, and go on with the rest."""
        del self.workers[worker.id]
        self.memory.leave(worker.id)
        self.tracing.gone(worker.link or worker.work)
        self.orphans.lose(worker.id)
        for peer in [p for p, owner in self.peers.items() if owner is worker]:
            del self.peers[peer]
            self.rendezvous.drop_peer(peer)
        self._send(worker.link or worker.work, wire.Stop())
        for other in self.workers.values():
            self._send(other.link, wire.Abort(worker.id))
        left, lost = self.flights.lose_worker(worker.id)
        for flight in lost:
            text = f"{reason} during epoch {flight.epoch}; its values are lost, run again what made them"
            self.flights.fail(flight, Fault("worker_lost", text, worker.id, flight.epoch, flight.where))
            if flight.client is None:
                self._forget_rendezvous(flight)
        text = f"{reason}; its values are lost, run again what made them"
        for client in self.clients.values():
            own = next((f for f in lost if f.client is client), None)  # no client hears of another's lines
            epoch, where = (own.epoch, own.where) if own is not None else (self.epoch, "")
            fault = Fault("worker_lost", text, worker.id, epoch, where)
            client.workers = tuple(w for w in client.workers if w != worker.id)
            going = client.queue[0] if client.queue else None
            if isinstance(going, Going) and worker.id in going.plan.programs:
                at = going.flights[-1].epoch if going.flights else epoch
                during = f"{reason} during epoch {at}; its values are lost, run again what made them"
                going.fault = Fault("worker_lost", during, worker.id, at, going.plan.where)
            for buffer in list(client.buffers.values()):
                self._drop(_only_for(buffer))
                self._shrink(buffer, worker.id, client.workers, fault)
            client.held = sum(b.nbytes for b in dict.fromkeys(client.buffers.values()))
        forgotten = self.plans.forget_worker(worker.id)
        for plan in forgotten:
            self._unload(plan)
        self.forecast.forget([number for plan in forgotten for number in plan.ids])
        self.sharing.lose_worker(worker.id)
        for flight in left:
            self._landed(flight)
        self._workers_changed(reason)
        self._share()

    def _shrink(self, buffer: Buffer, lost: int, workers: tuple[int, ...], fault: Fault) -> None:
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
            buffer.fault = fault
            buffer.waiting.clear()
        if not buffer.waiting:
            self.uploads.pop(buffer.uid, None)


def _only_for(buffer: Buffer) -> list[Buffer]:
    """Give what is kept only because a buffer, or one before it, failed to replace it; it is kept no longer."""
    found, old = [], buffer.before
    buffer.before = None
    while old is not None:
        if old.kept and not old.holders:
            found.append(old)
        earlier, old.kept, old.before = old.before, False, None
        old = earlier
    return found


__all__ = ["DispatcherState", "Options"]
