"""The dispatcher as a pure state machine: events in, commands out. No sockets, no clock, no planning of its own.

Owns: who comes and goes, the order in which each client's calls are served, and what a loss means. Must not know: ZMQ, torch, how
plans are made. Next: ``dispatcher_events`` (what comes in and goes out), ``roster`` (who is there), ``schedule`` (what a client holds),
``values`` (where it is), ``epochs`` (runs), ``parts``, ``moves``, ``reads`` and ``returning`` (what else clients ask for), ``dispatcher``
(the process around this), ``worker_state`` (the other end).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gt.runtime import wire
from gt.runtime.buffer_reasons import buffer_reasons, runs_as
from gt.runtime.cutting import Going
from gt.runtime.dispatcher_events import (
    Command,
    Event,
    Expelled,
    Kill,
    LinkBroken,
    PeerGone,
    Planned,
    Received,
    Tick,
)
from gt.runtime.epochs import Epochs, loss_of
from gt.runtime.errors import Fault
from gt.runtime.hello import UNKNOWN, WAS_LOST, hello_fault
from gt.runtime.moves import Moves
from gt.runtime.moving import Moving
from gt.runtime.nodes import Nodes
from gt.runtime.orphans import owner_of, past_fault
from gt.runtime.parts import Parts
from gt.runtime.quota import MIN_GRAPHS_NBYTES, refusal, too_many, too_many_graphs
from gt.runtime.reads import Reads
from gt.runtime.returning import Returning
from gt.runtime.roster import Options, Roster, Worker
from gt.runtime.schedule import MAX_QUEUE, Buffer, Client, OverQuota, Upload
from gt.runtime.status import ServerStatus, status_of
from gt.runtime.tracing import Tracing
from gt.runtime.values import Values, only_for
from gt.runtime.wire import Message

MAX_WHY = 1000
MAX_CAUSE = 10_000  # letters of why a client says that a value failed
MAX_NUMBER = 1 << 20  # of a worker that brings its own
STATUS_S = 0.1  # in which whoever asks gets the same answer: it costs a step for each value


class DispatcherState:
    """Handles one event at a time and says what to do. ``secret()`` draws 16 random bytes (tokens and tickets)."""

    def __init__(self, secret: Callable[[], bytes], options: Options | None = None) -> None:
        self.options = options or Options()
        self.roster = Roster(secret, self.options)
        self.clients, self.workers, self.peers = self.roster.clients, self.roster.workers, self.roster.peers
        self.values = Values(self.roster)
        self.epochs = Epochs(self.roster, self.values)
        self.flights, self.plans, self.sharing = self.epochs.flights, self.epochs.plans, self.epochs.sharing
        self.parts, self.moves = Parts(self.epochs), Moves(self.epochs)
        self.reads = Reads(self.roster, self.sharing)
        self.returning = Returning(self.values)
        self.nodes = Nodes(self._send, self.options.job, self.options.num_nodes)
        self.tracing = Tracing(self._send, self.options.tag)
        self.next_client = 0
        self.numbers: set[int] = set()  # that workers have had here
        self.last_ping = 0.0
        self.started, self.malformed = 0.0, 0  # told by the process around this, as is the clock on the wall
        self.wall_clock: Callable[[], float] = float
        self.status: tuple[float, ServerStatus] | None = None

    def __repr__(self) -> str:
        lines = [f"dispatcher epoch {self.epochs.epoch}, flying {sorted(self.flights.by_epoch)}, groups {sorted(self.flights.groups)}"]
        orphans = [self.returning.orphans] if self.returning.orphans.estates else []
        lines += map(repr, (self.sharing, *orphans, *self.workers.values(), *self.clients.values(), *self.plans))
        return "\n  ".join(lines)

    def handle(self, event: Event) -> list[Command]:
        """Take one event; give the commands it causes, in order."""
        self.roster.now = event.now
        match event:
            case Received():
                self._received(event.peer, event.message, event.data, event.user)
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
        out, self.roster.out = self.roster.out, []
        return out

    @property
    def now(self) -> float:
        """Give the time of the latest event."""
        return self.roster.now

    def _send(self, peer: bytes | None, message: Message, data: Any = None) -> None:
        self.roster.send(peer, message, data)

    # -- peers

    def _received(self, peer: bytes, message: Message, data: Any, user: str) -> None:
        owner = self.peers.get(peer)
        if owner is not None:
            self._heard(owner, peer, message, data)
            return
        match message:
            case _ if peer in self.nodes:
                self.nodes.said(self.now, peer, message)
            case wire.ClientHello() | wire.WorkerHello() if (fault := hello_fault(message, self.roster.torch)):
                self._send(peer, wire.Refused(fault))
            case wire.ClientHello():
                self._client_hello(peer, message, user)
            case wire.WorkerHello():
                self._worker_hello(peer, message)
            case wire.Attach():
                self._attach(peer, message)
            case wire.Beat():
                self._send(peer, wire.Refused(UNKNOWN))
            case wire.NodeHello():
                self.nodes.hello(self.now, peer, message)
            case wire.AskStatus():
                self._tell_status(peer)
            case wire.AskTrace():
                peers = [(f"client{c.id}", c.down) for c in self.clients.values()]
                self.tracing.ask(self.now, peer, message, [*peers, *((f"worker{w.id}", w.link) for w in self.workers.values())])
            case _:
                self._send(peer, wire.Refused(f"expected a hello first, got {type(message).__name__}"))

    def _heard(self, owner: Client | Worker, peer: bytes, message: Message, data: Any) -> None:
        """Take a message of one who is known."""
        if isinstance(message, wire.TraceReply):
            owner.seen = self.now
            self.tracing.heard(self.now, f"{'client' if isinstance(owner, Client) else 'worker'}{owner.id}", message)
        elif isinstance(owner, Worker):
            owner.seen = self.now
            self._from_worker(owner, peer, message)
        else:
            if peer == owner.up:
                owner.up_seen = self.now
            else:
                owner.seen = self.now
            self._from_client(owner, message, data)

    def _tell_status(self, peer: bytes) -> None:
        if self.status is None or not 0 <= self.now - self.status[0] < STATUS_S:
            self.status = self.now, status_of(self)
        self._send(peer, wire.Status(self.status[1]))

    def _client_hello(self, peer: bytes, hello: wire.ClientHello, user: str) -> None:
        if refused := refusal(hello.priority, self.options.max_priority):
            self._send(peer, wire.Refused(refused))
            return
        client = Client(self.next_client, self.roster.secret(), peer, seen=self.now)
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
        return wire.ClientWelcome(
            client.id, client.token, options.window, options.generation, lease_s, options.tag, options.host, options.pid
        )

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
        worker = Worker(number, self.roster.secret(), peer, hello, seen=self.now)
        self.numbers.add(number)
        self._ping([p for w in self.workers.values() if w.hello.host == hello.host for p in (w.work, w.link)])
        self.workers[worker.id] = self.peers[peer] = worker
        self.values.memory.join(worker.id, hello.memory)
        self._send(peer, wire.WorkerWelcome(worker.id, worker.token, generation, self.options.tag))
        if past is not None:
            self.returning.bring(worker, past)

    def _attach(self, peer: bytes, message: wire.Attach) -> None:
        owner = self.roster.owner_of(message.token)
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
        present = (self.workers[w] for w in self.roster.worker_ids)
        return wire.Workers(tuple((w.id, w.hello.upload, w.hello.results, w.hello.key) for w in present), why)

    def _workers_changed(self, why: str = "") -> None:
        for client in self.clients.values():
            self._send(client.down, self._workers_message(why))
            homeless, client.homeless = client.homeless, []
            for message, data in homeless:  # all of them before any call that may read them
                self.values.place(client, message, data)
            self._serve(client)
            self.returning.settle(client)

    def _peer_gone(self, peer: bytes) -> None:
        self.nodes.gone(peer)
        owner = self.peers.get(peer)
        if not isinstance(owner, Client):  # what it has handed over as it left may be on its way by its other connection
            self.tracing.gone(peer)
        if isinstance(owner, Worker):
            if peer in (owner.work, owner.link):
                self._worker_lost(owner, f"{owner.process} died")
            else:
                self.peers.pop(peer, None)
                self.epochs.rendezvous.drop_peer(peer)

    def _link_broken(self, peer: bytes, reason: str) -> None:
        """What was lost cannot be made up for: the session is over. Who is not known here has lost a connection, and has another now."""
        owner = self.peers.get(peer)
        if isinstance(owner, Worker):
            self._worker_lost(owner, f"{owner.process} is cut off: {reason}")
            return
        self._send(owner.down if owner is not None else peer, wire.Broken(reason))
        if owner is not None:
            self._client_gone(owner)
        self.nodes.gone(peer, f"is cut off: {reason}")

    def _expel(self, peer: bytes, reason: str) -> None:
        owner = self.peers.get(peer)
        self._send(owner.down if isinstance(owner, Client) else peer, wire.Refused(reason))
        if isinstance(owner, Client):
            self._client_gone(owner)
        elif isinstance(owner, Worker):
            self._worker_lost(owner, f"worker {owner.id} was sent away: {reason}")
        self.nodes.gone(peer, f"was sent away: {reason}")

    def _tick(self) -> None:
        for worker in list(self.workers.values()):
            if stuck := self._stuck(worker):
                if self.options.owns_workers:
                    self.roster.out.append(Kill(worker.hello.pid))
                self._worker_lost(worker, f"{worker.process} {stuck}")
        for client in list(self.clients.values()):
            if self.now - client.seen > self.options.client_lease_s:
                self._client_gone(client)
            elif client.up is not None and self.now - client.up_seen > self.options.client_lease_s:
                self._link_broken(client.up, f"no calls and no signs of life came with them for {self.options.client_lease_s:g} s")
            elif client.resume is not None and self.now - client.asked_at > self.options.return_s:
                self.returning.settle(client)
            elif client.blocked_since is not None and self.now - client.blocked_since > self.options.no_workers_s:
                self._no_workers(client)
            if client.unplaced:  # what was on its way may have gone with a worker
                self.values.ask_for_uploads(client)
        self.returning.tick()
        self.nodes.tick(self.now)
        self.tracing.tick(self.now)
        if self.now - self.last_ping >= 0.5:
            self.last_ping = self.now
            calls = {c.up for c in self.clients.values()}  # where they hear nothing
            self._ping([*self.nodes.peers, *(p for p in self.peers if p not in calls)])

    def _ping(self, peers: Sequence[bytes | None]) -> None:
        """Find out who has died: who may come in the place of one comes after its end is known."""
        for peer in peers:
            self._send(peer, wire.Ping())

    def _stuck(self, worker: Worker) -> str:
        """Say why a worker is not waited for any more; nothing if it is."""
        options, silent_s = self.options, self.now - worker.seen
        if silent_s > options.worker_timeout_s and (
            silent_s > options.busy_timeout_s or not options.busy(worker.hello.host, worker.hello.pid)
        ):
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
                self.parts.call_off(entry)
        client.queue.clear()
        self.values.drop(list(dict.fromkeys(client.buffers.values())))
        client.buffers.clear()
        if client.resume is not None:
            self.returning.give_up(client.owner)
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
        client.queued_nbytes = 0
        freed: list[int] = []
        for entry in client.queue:
            if isinstance(entry, wire.Free):
                freed += entry.buffers
            elif isinstance(entry, wire.Run | OverQuota):
                run = entry.run if isinstance(entry, OverQuota) else entry
                freed += run.frees
                client.buffers |= {o: Buffer(0, None, fault=fault) for o in run.outputs if o not in client.buffers}
                self.epochs.finished(client)
            elif isinstance(entry, Upload):
                client.buffers.setdefault(entry.put.buffer, Buffer(0, None, fault=fault))
            elif isinstance(entry, wire.Fetch | wire.Explain | Moving):
                self._send(client.down, wire.Failed(entry.request, fault))
        client.queue.clear()
        self.values.drop(list(client.unname(freed).values()))
        self.sharing.withdraw(client.id)

    # -- clients

    def _from_client(self, client: Client, message: Message, data: Any) -> None:
        match message:
            case wire.Define(key):
                self._define(client, key, data)
            case (
                wire.Run() | wire.Fetch() | wire.Explain() | wire.Free() | wire.Recover() | wire.Rebalance() | wire.Parent() | wire.Put()
            ):
                if len(client.queue) >= MAX_QUEUE:
                    self._send(client.down, wire.Refused(f"more than {MAX_QUEUE} calls are waiting"))
                    self._client_gone(client)
                    return
                if isinstance(message, wire.Put):
                    self.values.place_in_turn(client, message, data)
                elif isinstance(message, wire.Rebalance):
                    client.queue.append(Moving(message.request, message.workers, message.named, message.meshes))
                else:
                    client.queue.append(self._within_window(client, message) if isinstance(message, wire.Run) else message)
                    if isinstance(message, wire.Run) and message.reads is not None:
                        output, request = message.reads
                        client.queue.append(wire.Fetch(message.outputs[output] if 0 <= output < len(message.outputs) else -1, request))
                self._serve(client)
            case wire.Fail(buffer, fault):
                fault = msgspec.structs.replace(fault, message=fault.message[:MAX_CAUSE], where=fault.where[:MAX_WHY])
                client.buffers.setdefault(buffer, Buffer(0, None, fault=fault))
            case wire.Supervise(restarts):
                self.nodes.supervise(restarts)
            case wire.Resume():
                if client.owner and client.resume is None and not client.settled:
                    client.resume, client.asked_at = message, self.now
                    self.returning.settle(client)
            case wire.Bye():
                self._client_gone(client)
            case _:
                pass  # Beat: being seen is all

    def _define(self, client: Client, key: int, data: Any) -> None:
        """Keep a graph; in its place, with a quota to keep and no room for it, why it cannot be run."""
        if not isinstance(data, bytes | memoryview):
            client.graphs[key] = ((client.id, key), data)
            return
        before, limit = client.graphs.pop(key, ("", b""))[1], self.options.client_nbytes
        client.graph_nbytes -= len(before) if isinstance(before, bytes) else 0
        if limit is not None and client.graph_nbytes + len(data) > max(limit, MIN_GRAPHS_NBYTES):
            fault = too_many_graphs(client.graph_nbytes, len(data), max(limit, MIN_GRAPHS_NBYTES))
            client.graphs[key] = ("", fault)
            return
        client.graph_nbytes += len(data)
        client.graphs[key] = (hashlib.blake2b(data, digest_size=16).digest(), bytes(data))

    def _within_window(self, client: Client, run: wire.Run) -> wire.Run | OverQuota:
        flying, client.asked = client.asked - client.runs, client.asked + 1
        return run if flying < self.options.window else OverQuota(run, too_many(flying, self.options.window))

    def _serve_waiting(self, client: Client | None) -> None:
        if client is not None:
            self._serve(client)

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
                    done = self.epochs.skip(client, run, fault)
                case wire.Fetch():
                    done = self.reads.fetch(client, entry)
                case wire.Explain():
                    done = self._explain(client, entry)
                case wire.Parent(parent):
                    client.parent, self.roster.has_parents, done = parent, True, True
                case wire.Recover():
                    done = self.epochs.recover(client, entry)
                case Moving():
                    done = self.moves.go_on(client, entry)
                case Going():
                    done = self.parts.go_on(client, entry)
                case Upload(message, data):
                    client.queued_nbytes -= entry.nbytes
                    self.values.place(client, message, data)
                    done = True
                case _:
                    done = self._free(client, entry)
            if not done:
                return
            client.queue.popleft()
        if not client.homeless:
            client.blocked_since = None

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
        found = buffer_reasons(buffer.type, buffer.reasons, buffer.output, len(client.workers), runs, plan.ids if plan else ())
        self._send(client.down, wire.Explained(explain.request, found))
        return True

    def _free(self, client: Client, free: wire.Free) -> bool:
        if client.homeless:
            return False
        self.values.drop(list(client.unname(free.buffers).values()))
        return True

    # -- runs

    def _run(self, client: Client, run: wire.Run) -> bool:
        buffers = client.buffers
        missing = [] if buffers.keys() >= set(run.inputs) else [i for i in run.inputs if i not in buffers]
        known = [buffers[i] for i in run.inputs if i in buffers] if missing else list(map(buffers.__getitem__, run.inputs))
        if missing and client.homeless:
            return False
        failed = [b for b in known if b.fault is not None]
        fault = next((b.fault for b in failed if not b.alone), None) if failed else None
        if not buffers.keys().isdisjoint(run.outputs) or len(set(run.outputs)) < len(run.outputs):
            return self.epochs.skip(client, run, Fault("protocol", "a run makes a buffer that is there already, or one twice"))
        if missing:
            fault = Fault("protocol", f"run reads buffers {missing[:8]} that are not there")
        elif run.key not in client.graphs:
            fault = Fault("protocol", f"run names graph {run.key}, which was never defined")
        elif isinstance(graph := client.graphs[run.key][1], Fault):
            fault = graph
        if fault is not None:
            return self.epochs.skip(client, run, fault)
        if any([b.waiting for b in known]):
            return False
        workers = self.roster.workers_of(client)
        if not workers:
            client.blocked_since = client.blocked_since or self.now
            return False
        plan = self.epochs.plan_of(*client.graphs[run.key], run, known, workers)
        if plan.fault is not None:
            self.epochs.skip(client, run, plan.fault)
        elif not plan.ready:
            return False
        elif len(plan.outputs) != len(run.outputs):
            self.epochs.skip(
                client,
                run,
                Fault("protocol", f"the graph has {len(plan.outputs)} outputs, the run names {len(run.outputs)}"),
            )
        elif failed and failed[0].fault is not None and len(plan.programs) > 1:  # else its worker runs what does not read it
            self.epochs.skip(client, run, failed[0].fault)
        elif self.options.client_nbytes is not None and (over := self.epochs.over_quota(client, run, plan)) is not None:
            self.epochs.skip(client, run, over)
        else:
            seconds = self.epochs.forecast.seconds(plan.id, plan.seconds)
            on = tuple(plan.programs)
            if not self.sharing.admits(client.id, on, seconds, self.now):
                return False
            if self.values.memory.workers and (short := self.epochs.short_of_memory(client, run, plan, known)) is not None:
                return self.epochs.skip(client, run, short)
            if not failed and (going := self.parts.begin(client, run, plan, known)) is not None:
                client.queue[0] = going
                return False
            fetch = self.reads.small(client, run, plan) if run.reads is not None else None
            self.epochs.dispatch(client, run, plan, known, bool(failed), fetch)
            if fetch is not None:
                del client.queue[1]
            self.sharing.begin(self.epochs.epoch, client.id, on, seconds)
        return True

    def _planned(self, event: Planned) -> None:
        plan = self.plans.made(event)
        if plan is None:
            return
        for client in list(self.clients.values()):
            self._serve(client)
        if plan.fault is not None:  # asked again, it is planned again: the fault may have been the planner's death
            self.plans.forget(plan)

    # -- workers

    def _from_worker(self, worker: Worker, peer: bytes, message: Message) -> None:
        match message:
            case wire.Beat() if peer == worker.link:
                if message.epoch != worker.beat.epoch:
                    worker.since = self.now
                worker.beat = message
            case wire.Done():
                for epoch, seconds in message.earlier:
                    self._serve_waiting(self.epochs.done(worker, wire.Done(epoch, seconds)))
                self._serve_waiting(self.epochs.done(worker, message))
                if self.sharing.waiting:
                    self._share()
            case wire.GraphIdle(number):
                self.epochs.graph_idle(number)
            case wire.Unshipped():
                self.reads.unshipped(worker, message)
            case wire.Used(usage, programs):
                if usage is not None:
                    worker.usage, worker.used = usage, self.now
                worker.programs |= {state.plan: state for state in programs if state.plan in worker.loaded}
            case wire.Uploaded(uid):
                self._serve_waiting(self.values.uploaded(worker, uid))
            case wire.Shipped(job, seconds):
                self.reads.shipped(worker, job, seconds)
                self._share()
            case wire.Unsent(token, request):
                self.reads.unsent(worker, token, request)
            case wire.StoreOp():
                for to, reply in self.epochs.rendezvous.apply(peer, message):
                    self._send(to, reply)
            case wire.Bye(why):
                self._worker_lost(worker, f"worker {worker.id} {why[:MAX_WHY]}")
            case _:
                pass

    # -- loss

    def _worker_lost(self, worker: Worker, reason: str) -> None:
        """Fence the worker, poison what only it held or was making, end what waits for it, and go on with the rest."""
        del self.workers[worker.id]
        self.values.memory.leave(worker.id)
        self.tracing.gone(worker.link or worker.work)
        self.returning.orphans.lose(worker.id)
        for peer in [p for p, owner in self.peers.items() if owner is worker]:
            del self.peers[peer]
            self.epochs.rendezvous.drop_peer(peer)
        for peer in filter(None, (worker.link, worker.work)):  # on each it is heard before what is answered to what comes there later
            self._send(peer, wire.Refused(f"it counts as lost: {reason}"))
        for other in self.workers.values():
            self._send(other.link, wire.Abort(worker.id))
        left, lost = self.epochs.lose_worker(worker, reason)
        for client in self.clients.values():
            own = next((f for f in lost if f.client is client), None)  # no client hears of another's lines
            epoch, where = (own.epoch, own.where) if own is not None else (self.epochs.epoch, "")
            fault = loss_of(worker, reason, epoch, where)
            client.workers = tuple(w for w in client.workers if w != worker.id)
            going = client.queue[0] if client.queue else None
            if isinstance(going, Going) and worker.id in going.plan.programs:
                at = going.flights[-1].epoch if going.flights else epoch
                going.fault = loss_of(worker, f"{reason} during epoch {at}", at, going.plan.where)
            late = [b for f in self.flights.by_epoch.values() if f.client is client for b in f.late]
            for buffer in (*client.buffers.values(), *late):
                self.values.drop(only_for(buffer))
                self.values.shrink(buffer, worker.id, client.workers, fault)
            client.held = sum(b.nbytes for b in dict.fromkeys(client.buffers.values()))
        self.epochs.forget_worker(worker.id)
        for flight in left:
            self._serve_waiting(self.epochs.landed(flight))
        self._workers_changed(reason)
        self._share()


__all__ = ["DispatcherState", "Options"]
