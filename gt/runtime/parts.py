"""Long plans that run in parts, so that others' runs go in between.

Owns: ``Parts``: when a run is cut, which part goes next, and what goes with each. Must not know: how a plan is cut, whose turn it is.
Next: ``cutting`` (the parts of a plan, ``Going``), ``epochs`` (which sends them).
"""

from __future__ import annotations

import math

from gt.runtime import wire
from gt.runtime.cutting import Going
from gt.runtime.epochs import Epochs
from gt.runtime.plan_records import PlanRecord
from gt.runtime.schedule import Buffer, Client, Flight


class Parts:
    """Runs of long plans, each part an epoch of its own."""

    def __init__(self, epochs: Epochs) -> None:
        self.epochs, self.values, self.roster = epochs, epochs.values, epochs.roster

    def begin(self, client: Client, run: wire.Run, plan: PlanRecord, inputs: list[Buffer]) -> Going | None:
        """Begin to run a long plan in parts, where others wait for its workers or it takes very long; None: it runs as a whole."""
        limits = self.roster.options.sharing
        than = limits.grain_s if self.epochs.sharing.contended(self.roster.now) else limits.alone_s
        seconds = self.epochs.forecast.guess(plan.id, plan.seconds)
        if seconds <= max(than, limits.grain_s) or (client.owner and not self.values.memory.fits_beside(plan.programs)):
            return None
        if len(plan.programs) > 1 and not all(any(w in group for group in plan.groups) for w in plan.programs):
            return None  # as a whole it goes on without a worker that computes the same as others
        cut = self.epochs.plans.in_parts(plan, len(run.inputs), math.ceil(seconds / limits.grain_s))
        if cut is None:
            return None
        outputs, kept = self.values.made_by(plan), tuple(self.values.new_uids(cut.kept))
        refuses = plan.refuses or any(b.flight.refuses for b in inputs if b.flight is not None)
        going = Going(run, plan, cut, inputs, outputs, kept, seconds, refuses)
        self.values.memory.reserve(going.kept, plan.programs, [] if client.owner else inputs)
        return going

    def go_on(self, client: Client, going: Going) -> bool:
        """Send the next parts of a run as far as it is its client's turn. After the last one the client's next calls are served."""
        plan, cut = going.plan, going.cut
        while going.fault is None:
            part = cut.parts[going.next]
            seconds = self.epochs.forecast.seconds(part.id, 0.0) if self.epochs.forecast.knows(part.id) else going.seconds * part.share
            if not self.epochs.sharing.admits(client.id, tuple(part.programs), seconds, self.roster.now):
                return False
            self.epochs.make_groups(plan)
            self._send(client, going)
            self.epochs.sharing.begin(self.epochs.epoch, client.id, tuple(part.programs), seconds)
            if going.next == len(cut.parts):
                return True
        self.call_off(going)
        return self.epochs.skip(client, going.run, going.fault)

    def _send(self, client: Client, going: Going) -> None:
        """Send a part. What the run frees goes with the part that reads it last; what a run replaces that may refuse its values, once it
        has gone well.
        """
        run, plan, part = going.run, going.plan, going.cut.parts[going.next]
        last = going.next == len(going.cut.parts) - 1
        going.next += 1
        self.epochs.epoch += 1
        workers = tuple(part.programs)
        before = going.flights[-1:]
        upstream = [f for f in {id(b.flight): b.flight for b in going.inputs if b.flight is not None}.values() if f not in before]
        lone = next(iter(plan.programs)) if len(plan.programs) == 1 else None
        local = lone if all(f.local == lone for f in upstream + before) else None
        flight = Flight(self.epochs.epoch, client, set(workers), local=local, groups=plan.groups, where=plan.where, own=last, part=part.id)
        flight.plan, flight.refuses = plan, going.refuses
        self.epochs.flights.add(flight, [f for f in upstream + before if f.epoch in self.epochs.flights.by_epoch])
        if before and before[0].fault is not None:
            self.epochs.flights.fail(flight, before[0].fault)
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
            self.values.memory.add(going.outputs)
            flight.replaces, flight.freed = run.replaces, client.unname(run.frees)
            if local is not None and going.refuses and run.replaces:
                flight.late = frozenset(b for n, b in flight.freed.items() if n in set(run.replaces))
            freed = [b for b in flight.freed.values() if b not in flight.late]
            self.values.memory.drop((*(b.uid for b in freed), *going.kept))
            self.values.drop_beyond(freed, workers)
            frees = list(going.kept)  # also what other workers have of them
            for w in plan.programs.keys() - part.programs.keys():
                self.roster.send(self.roster.workers[w].work, wire.Free(going.kept))
        message = wire.Execute(
            self.epochs.epoch, part.id, (*(b.uid for b in going.inputs), *(b.uid for b in going.outputs), *going.kept),
            (*(b.uid for b in going.outputs), *going.kept), run.scalars, (*(b.uid for b in freed), *frees),
            owner=client.owner if last else b"", numbers=run.outputs if last and client.owner else (),
        )  # fmt: skip
        self.roster.under(client, part.programs)
        self.epochs.execute(part.programs, message, plan if last else None)
        if last and client.owner:
            self._label_elsewhere(client, going, workers)

    def _label_elsewhere(self, client: Client, going: Going, workers: tuple[int, ...]) -> None:
        """Label what a run has made on workers that have no share of its last part: it is there as a whole, or not at all."""
        for number, buffer in zip(going.run.outputs, going.outputs, strict=True):
            assert buffer.type is not None and buffer.type.sharding is not None
            label = wire.Label(client.owner, (number,), self.values.place_of(buffer.type), self.epochs.epoch)
            for w in buffer.type.sharding.mesh.workers:
                if w not in workers and w in self.roster.workers:
                    self.roster.send(self.roster.workers[w].work, wire.Name(buffer.uid, label))

    def _freed_by(self, client: Client, going: Going, positions: frozenset[int], last: bool) -> list[Buffer]:
        """Give what goes with a part before the last: what no later part reads, nobody else names, and the run need not keep. With a
        client that has its values back from the next dispatcher nothing does, as the run may have to be made again.
        """
        if last or client.owner or (going.refuses and len(going.plan.programs) == 1):
            return []
        read = {going.inputs[i] for i in positions} - {b for i, b in enumerate(going.inputs) if i not in positions}
        return [b for b in client.only_named(going.run.frees) if b in read]

    def call_off(self, going: Going) -> None:
        """Let go of what a run has made of which no more parts are sent."""
        uids = (*(b.uid for b in going.outputs), *going.kept)
        self.values.memory.drop(uids)
        for w in going.plan.programs:
            if w in self.roster.workers:
                self.roster.send(self.roster.workers[w].work, wire.Free(uids))


__all__ = ["Parts"]
