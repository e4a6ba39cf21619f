"""Runs as epochs: sent to the workers of their plan in one order, and what the workers say of them.

Owns: ``Epochs``: plans, process groups, epochs on their way, whose turn it is and what runs took. Must not know: the order of a client's
calls, who comes and goes. Next: ``flights`` (what a failure takes with it), ``plan_records``, ``fair_queue``; ``parts`` and ``moves``,
which are made of epochs; ``dispatcher_state``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from gt.ir.mesh import Sharding
from gt.ir.program import Program, WireType
from gt.runtime import wire
from gt.runtime.dispatcher_events import MakePlan
from gt.runtime.errors import Fault
from gt.runtime.fair_queue import FairQueue, Forecast
from gt.runtime.flights import Flights
from gt.runtime.memory import explained
from gt.runtime.plan_records import PlanRecord, PlanRecords
from gt.runtime.rendezvous import KeyStore
from gt.runtime.roster import Roster, Worker
from gt.runtime.schedule import Buffer, Client, Flight
from gt.runtime.tiers import compiled_pieces
from gt.runtime.usage import SeenRun
from gt.runtime.values import Values, is_beyond, only_for


class Epochs:
    """Epochs by number, the last one is ``epoch``. ``rendezvous``: where the members of a process group meet."""

    def __init__(self, roster: Roster, values: Values) -> None:
        self.roster, self.values = roster, values
        self.plans = PlanRecords(roster.options.max_plans)
        self.flights = Flights(roster.send)
        self.sharing = FairQueue(roster.options.sharing)
        self.forecast = Forecast(roster.options.sharing.grain_s)
        self.rendezvous = KeyStore()
        self.epoch = 0
        self.seen: deque[SeenRun] | None = None  # where runs are noted as workers end them, for who shows them

    def plan_of(self, digest: object, graph: Any, run: wire.Run, inputs: list[Buffer], workers: tuple[int, ...]) -> PlanRecord:
        """Give the plan of a graph for inputs that are where they are; it may have to be made first."""
        key = (digest, tuple([b.type for b in inputs]), workers, len(run.scalars))
        plan = self.plans.find(key)
        if plan is None:
            plan = self.plans.begin(key)
            types = tuple(b.type for b in inputs if b.type is not None)
            self.roster.out.append(MakePlan(plan.id, graph, types, workers, len(run.scalars)))
            evicted = self.plans.evict()
            self.forecast.forget(number for old in evicted for number in old.ids)
            for old in evicted:
                self.unload(old)
        return plan

    def unload(self, plan: PlanRecord) -> None:
        """Tell the workers to forget a plan and its parts."""
        for worker in self.roster.workers.values():
            if loaded := worker.loaded.intersection(plan.ids):
                worker.loaded -= loaded
                for number in loaded:
                    worker.programs.pop(number, None)
                    worker.tiers.pop(number, None)
                    worker.ready.pop(number, None)
                self.roster.send(worker.work, wire.Unload(tuple(sorted(loaded))))

    def make_groups(self, plan: PlanRecord) -> None:
        """Let the workers of a plan make the process groups that are not there."""
        for group in plan.groups:
            if group not in self.flights.groups:
                self._make_group(group)

    def _make_group(self, members: tuple[int, ...]) -> None:
        self.epoch += 1
        self.flights.groups.add(members)
        for plan in self.plans:
            if members in plan.groups:
                plan.capture.drop()  # as its workers do with graphs that have collectives of a group made anew
        hellos = [self.roster.workers[w].hello for w in members]
        devices = {(h.host, h.device) for h in hellos}
        nccl = all(h.device.startswith("cuda") for h in hellos) and len(devices) == len(members)
        self.flights.add(Flight(self.epoch, None, set(members), groups=(members,)))
        name = f"g{self.epoch}"
        self.rendezvous.begin(name)
        message = wire.MakeGroup(self.epoch, name, members, "nccl" if nccl else "gloo")
        for w in members:
            self.roster.send(self.roster.workers[w].work, message)

    def dispatch(
        self, client: Client, run: wire.Run, plan: PlanRecord, inputs: list[Buffer], failed: bool, fetch: wire.Fetch | None = None
    ) -> Flight:
        """Send a run to its workers and give its flight. ``failed``: some input is not there, as its worker knows. ``fetch``: what comes
        next reads this, a small output.
        """
        if self.roster.has_parents:
            self.roster.under(client, plan.programs)
        if plan.groups:
            self.make_groups(plan)
        self.epoch += 1
        workers = tuple(plan.programs)
        upstream = list({id(b.flight): b.flight for b in inputs if b.flight is not None}.values())
        local = workers[0] if len(workers) == 1 and all([f.local == workers[0] for f in upstream]) else None
        flight = Flight(self.epoch, client, set(workers), local=local, groups=plan.groups, where=plan.where, plan=plan)
        self.flights.add(flight, upstream)
        outputs = self.values.made_by(plan, flight)
        client.buffers.update(zip(run.outputs, outputs, strict=True))
        client.held += plan.nbytes
        flight.outputs, flight.replaces = outputs, run.replaces
        flight.key, flight.number = run.key, run.outputs[0] if run.outputs else -1
        freed = flight.freed = client.unname(run.frees)
        flight.refuses = plan.refuses or failed or any([f.refuses for f in upstream])
        if local is not None and flight.refuses and run.replaces:
            read = set(run.inputs)
            replaced = freed.keys() & set(run.replaces)
            flight.late = frozenset(freed[n] for n in replaced if n not in read or is_beyond(freed[n].type, workers))
        going = [b for b in freed.values() if b not in flight.late] if flight.late else list(freed.values())
        message = wire.Execute(
            self.epoch, plan.id, tuple([b.uid for b in inputs]), tuple([b.uid for b in outputs]), run.scalars, tuple([b.uid for b in going]),
            plan.capture.use(self.epoch) if run.tiers is None else "", client.owner, run.outputs if client.owner else (),
            run.tiers,
        )  # fmt: skip
        if run.tiers is not None and len(plan.programs) > 1:  # what comes after it goes on so
            self._swap(plan, {w: pieces for w, tiers in run.tiers if (pieces := compiled_pieces(tiers))})
        if self.values.memory.workers:
            self.values.memory.drop(message.frees)
            self.values.memory.add(outputs)
        if fetch is not None:
            flight.reads = self._reads(client, fetch, flight)
            message = msgspec.structs.replace(message, reads=flight.reads)
        self.execute(plan.programs, message, plan, whole=True)
        self.values.drop_beyond(going, workers)
        return flight

    def _reads(self, client: Client, fetch: wire.Fetch, flight: Flight) -> tuple[int, wire.Ship]:
        """Have a worker tell an output that is whole there with its epoch's end."""
        buffer = client.buffers[fetch.buffer]
        assert buffer.type is not None and buffer.type.sharding is not None
        worker = flight.local if flight.local is not None else reader(client, buffer.type.sharding)
        final = flight.local is not None
        if not final:
            flight.fetches.append(fetch.request)
        bounds = tuple((0, n) for n in buffer.type.shape)
        return worker, wire.Ship(buffer.uid, client.token, fetch.request, WireType.of(buffer.type), bounds, 1, final)

    def execute(
        self, programs: Mapping[int, Program], message: wire.Execute, labelled: PlanRecord | None, whole: bool = False
    ) -> None:
        """Send an epoch to its workers, to those that do not have its program with that; it labels what the plan ``labelled`` makes.
        ``whole``: it is no part of a plan.
        """
        places = None
        for w, program in programs.items():
            worker = self.roster.workers[w]
            if message.plan not in worker.loaded:
                worker.loaded.add(message.plan)
                places = places or (self.values.places_of(labelled) if labelled is not None else None)
                together = whole and len(programs) > 1
                self.roster.send(worker.work, wire.Load(message.plan, program, places, together))
                if together and labelled is not None and w in labelled.swapped:
                    self.roster.send(worker.work, wire.Swap(message.plan, labelled.swapped[w]))
            self.roster.send(worker.work, message)

    def over_quota(self, client: Client, run: wire.Run, plan: PlanRecord) -> Fault | None:
        """Say why a client may not hold what a run makes; None if it may."""
        name = next((p.name for p in plan.programs.values()), "")
        return self.values.over_quota(client, plan.nbytes, run.frees, f"what run {name!r} makes", plan.largest_line())

    def short_of_memory(self, client: Client, run: wire.Run, plan: PlanRecord, inputs: list[Buffer]) -> Fault | None:
        """Say which worker has no room for a run; None if all have: then all of them begin it."""
        over = self.values.memory.over(plan.programs, inputs, client.only_named(run.frees))
        if over is None:
            return None
        program = plan.programs[over[0]]
        return self.values.memory.short(*over, f"run {program.name!r}", client.buffers.values(), program, plan.largest_line())

    def skip(self, client: Client, run: wire.Run, fault: Fault) -> bool:
        """A run that cannot be: its outputs fail with the cause. What is there already stays."""
        freed = client.unname(run.frees)
        for i, number in enumerate(run.outputs):
            if number in client.buffers:
                continue
            failed = client.buffers[number] = Buffer(0, None, fault=fault)
            if i < len(run.replaces):
                failed.replaces(freed.get(run.replaces[i]) or client.buffers.get(run.replaces[i]))
            if failed.before is not None and not failed.before.holders:
                failed.before.kept = client.salvaged = True
        self.values.drop([b for b in freed.values() if not b.kept])
        self.finished(client)
        return True

    def finished(self, client: Client) -> None:
        """Tell a client that one more of its runs is over."""
        client.runs += 1
        self.roster.send(client.down, wire.Progress(client.runs))

    def done(self, worker: Worker, message: wire.Done) -> Client | None:
        """Hear that a worker is through with an epoch; give the client whose next call may have waited for that."""
        epoch, fault, failed = message.epoch, message.fault, message.failed
        self._measured(worker, epoch, message.seconds, fault)
        if fault is not None and fault.kind == "memory":
            fault, failed = self._explained(worker, epoch, fault, failed)
        if message.left:
            self._left(worker, epoch, fault)
        flight = self.flights.done(epoch, worker.id, fault, failed)
        if flight is not None and flight.number >= 0 and flight.plan is not None:
            if message.tiers is not None:
                worker.tiers[flight.plan.id] = message.tiers
            if tiers := worker.tiers.get(flight.plan.id):
                flight.tiers[worker.id] = tiers
            if message.ready is not None:
                worker.ready[flight.plan.id] = message.ready
                self._swap_if_ready(flight.plan)
        if message.value is not None and flight is not None and flight.reads is not None and flight.reads[0] == worker.id:
            flight.answer = wire.Answer(flight.reads[1].request, flight.reads[1].type, message.value)
        if self.seen is not None and flight is not None and flight.plan is not None:
            client = -1 if flight.client is None else flight.client.id
            self.seen.append(SeenRun(worker.id, flight.plan.id, client, self.roster.now, message.seconds))
        if flight is not None and flight.plan is not None and flight.plan.capture.heard(worker.id, epoch, message.graph):
            self._drop_graph(flight.plan)
        if flight is not None and flight.suspect is not None:
            flight.given_up_at = flight.given_up_at or self.roster.now
        if message.kept or (flight is not None and (fault is not None or flight.late or (flight.client and flight.client.salvaged))):
            self._keep(worker, flight, set(message.kept))
        return self.landed(flight) if flight is not None else None

    def _swap_if_ready(self, plan: PlanRecord) -> None:
        """Have workers of a plan that run alike run compiled code from the next run on, the same pieces, once all of them can."""
        alike: dict[int, list[int]] = {}
        for w, program in plan.programs.items():
            alike.setdefault(len(program.steps), []).append(w)
        for workers in alike.values():
            ready = [self.roster.workers[w].ready.get(plan.id) for w in workers if w in self.roster.workers]
            told = [set(pieces) for pieces in ready if pieces is not None]
            if len(told) == len(workers) and any(told) and plan.swapped.keys().isdisjoint(workers):
                both = tuple(sorted(set.intersection(*told)))
                self._swap(plan, dict.fromkeys(workers, both))

    def _swap(self, plan: PlanRecord, pieces: Mapping[int, tuple[int, ...]]) -> None:
        """Have workers run compiled code for these pieces from their next run on."""
        for w, own in pieces.items():
            if plan.swapped.get(w) != own:
                plan.swapped[w] = own
                if w in self.roster.workers and plan.id in (worker := self.roster.workers[w]).loaded:
                    self.roster.send(worker.work, wire.Swap(plan.id, own))

    def graph_idle(self, number: int) -> None:
        """Hear that a worker does without the graph of a plan: the others let theirs go."""
        plan = self.plans.by_id(number)
        if plan is not None and plan.capture.drop():
            self._drop_graph(plan)

    def _measured(self, worker: Worker, epoch: int, seconds: float, fault: Fault | None) -> None:
        """Charge what an epoch took, and remember it for the next run of its plan."""
        if self.sharing.end(epoch, worker.id, seconds, self.roster.now) and fault is None:
            flight = self.flights.by_epoch.get(epoch)
            if flight is not None and flight.part:
                self.forecast.learn(flight.part, 0.0, seconds)
                if flight.own and flight.plan is not None and flight.plan.cut is not None:
                    self.forecast.learn(flight.plan.id, flight.plan.seconds, self.forecast.total(p.id for p in flight.plan.cut.parts))
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
            if w in self.roster.workers:
                self.roster.send(self.roster.workers[w].link, wire.Leave(epoch, groups, why))

    def _keep(self, worker: Worker, flight: Flight | None, here: set[int]) -> None:
        """Keep what failed outputs of an epoch were to replace. What else is there only for what failed goes."""
        wanted: set[Buffer] = set()
        late = frozenset[Buffer]() if flight is None else flight.late
        if flight is not None:
            self.values.memory.add(b for b in flight.freed.values() if b.uid in here)
        if flight is not None and flight.client is not None:
            for buffer, number in zip(flight.outputs, flight.replaces, strict=False):
                old = flight.freed.get(number) or flight.client.buffers.get(number)
                if buffer.alone and old is not None and buffer.replaces(old):
                    old.kept |= old.uid in here or old in late
                    wanted.add(old)
            flight.client.salvaged |= bool(wanted)
            self.values.drop([old for b in flight.freed.values() if b not in wanted for old in only_for(b)])
        self.values.drop(list(late - wanted))
        unwanted = here - {b.uid for b in wanted}
        self.values.memory.drop(unwanted)
        if unwanted:
            self.roster.send(worker.work, wire.Free(tuple(sorted(unwanted))))

    def _drop_graph(self, plan: PlanRecord) -> None:
        for w in plan.capture.members:
            if w in self.roster.workers:
                self.roster.send(self.roster.workers[w].work, wire.DropGraph(plan.id, plan.capture.refused))

    def landed(self, flight: Flight) -> Client | None:
        """When all workers are through with an epoch, its client may send another; give the client whose next call may have waited."""
        if flight.waiting:
            return None
        client = flight.client
        if client is None:
            self._forget_rendezvous(flight)
        elif flight.own:
            self._tell_tiers(client, flight)
            self.finished(client)
            if flight.answer is not None and flight.reads is not None and flight.reads[1].final:
                self.roster.send(client.down, flight.answer)
        self.flights.settle(flight)
        return client if client is not None and client.queue else None

    def _tell_tiers(self, client: Client, flight: Flight) -> None:
        """Tell a client at which tiers a run was, where that is not as in the run of the same graph before, and all its workers have said so."""
        if flight.number < 0 or flight.tiers == client.tiers.get(flight.key, {}):
            return
        if flight.fault is None and flight.plan is not None and flight.plan.programs.keys() <= self.roster.workers.keys():
            client.tiers[flight.key] = flight.tiers
            self.roster.send(client.down, wire.RanAt(flight.number, flight.key, tuple(sorted(flight.tiers.items()))))

    def _forget_rendezvous(self, flight: Flight) -> None:
        for to, reply in self.rendezvous.forget(f"g{flight.epoch}"):
            self.roster.send(to, reply)

    def lose_worker(self, worker: Worker, reason: str) -> tuple[list[Flight], list[Flight]]:
        """A worker is lost: fail what cannot do without it. Give the epochs that it had a part in, and those of them that failed."""
        left, lost = self.flights.lose_worker(worker.id)
        self.values.drop([b for flight in left for b in flight.late])
        for flight in lost:
            self.flights.fail(flight, loss_of(worker, f"{reason} during epoch {flight.epoch}", flight.epoch, flight.where))
            if flight.client is None:
                self._forget_rendezvous(flight)
        return left, lost

    def forget_worker(self, worker: int) -> None:
        """Forget the plans that a lost worker has a part in, and what it was doing."""
        forgotten = self.plans.forget_worker(worker)
        for plan in forgotten:
            self.unload(plan)
        self.forecast.forget([number for plan in forgotten for number in plan.ids])
        self.sharing.lose_worker(worker)

    def recover(self, client: Client, message: wire.Recover) -> bool:
        """Let what failed in the same run as a buffer be what it replaced, once nothing is on its way that may fail too."""
        if any(f.client is client for f in self.flights.by_epoch.values()):
            return False
        known = client.buffers.get(message.buffer)
        if known is None or known.fault is None:
            return True
        for number, buffer in list(client.buffers.items()):
            old = buffer.lasting if buffer.failed_with(known) else None
            if old is not None:
                client.unname((number,))
                client.buffers[number], buffer.before = old, None
                client.held += 0 if old.holders else old.nbytes
                old.holders += 1
                old.kept = False
                self.values.label_again(client, old)
                self.values.drop([buffer])
        return True


def reader(client: Client, sharding: Sharding) -> int:
    """Give which of the workers that have a value whole sends it to a client."""
    return sharding.mesh.workers[client.id % len(sharding.mesh.workers)]


def loss_of(worker: Worker, reason: str, epoch: int, where: str) -> Fault:
    """Say that values are lost with their worker."""
    return Fault("worker_lost", f"{reason}; its values are lost, run again what made them", worker.id, epoch, where)


__all__ = ["Epochs", "loss_of", "reader"]
