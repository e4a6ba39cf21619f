"""Values that move: a client's rebalancing as runs that copy them, each let go where it was once its copy is there.

Owns: ``Moves``. Must not know: which value goes where. Next: ``moving`` (which decides that), ``epochs`` (which sends the runs).
"""

from __future__ import annotations

import msgspec

from gt.ir.signals import SignalFault
from gt.runtime import wire
from gt.runtime.epochs import Epochs
from gt.runtime.errors import Fault
from gt.runtime.moving import Moving
from gt.runtime.schedule import Client


class Moves:
    """Rebalancings: values that are copied to where they should be, some at a time."""

    def __init__(self, epochs: Epochs) -> None:
        self.epochs, self.values, self.roster = epochs, epochs.values, epochs.roster

    def go_on(self, client: Client, moving: Moving) -> bool:
        """Go on with a rebalancing. What is to move is copied, and let go where it was once the copies are there."""
        if moving.flight is not None:
            if moving.flight.epoch in self.epochs.flights.by_epoch:
                return False
            if (fault := self._moved(client, moving)) is not None:
                self.roster.send(client.down, wire.Failed(moving.request, fault))
                return True
        if client.homeless or any(b.waiting for b in client.buffers.values()):
            return False
        present = self.roster.worker_ids
        if absent := sorted(set(moving.workers) - set(present)) if not moving.values else []:
            self.roster.send(client.down, wire.Failed(moving.request, Fault("protocol", f"workers {absent} are not there to move values to")))
            return True
        client.chosen = moving.workers
        if not present:
            client.blocked_since = client.blocked_since or self.roster.now
            return False
        try:
            move = moving.next(client.buffers, present)
        except SignalFault as e:  # workers or axes that are none
            self.roster.send(client.down, wire.Failed(moving.request, Fault("protocol", f"values cannot be moved so: {e}")))
            return True
        if move is None:
            self.roster.send(client.down, wire.Rebalanced(moving.request, moving.values))
            return True
        inputs, names = list(move.buffers), tuple(numbers[0] for numbers in move.numbers)
        free = min(0, *client.buffers) - 1  # numbers that the client does not use
        run = wire.Run(-1, names, tuple(range(free, free - len(names), -1)), (), ())
        plan = self.epochs.plan_of(("move", move.asked), move.graph(), run, inputs, present)
        if plan.fault is None and not plan.ready:
            return False
        fault = plan.fault
        if fault is None and len(plan.outputs) != len(names):
            fault = Fault("plan", f"a move of {len(names)} values was planned as one of {len(plan.outputs)}")
        fault = fault or self.epochs.over_quota(client, msgspec.structs.replace(run, frees=sum(move.numbers, ())), plan)
        seconds = self.epochs.forecast.seconds(plan.id, plan.seconds)
        if fault is None and not self.epochs.sharing.admits(client.id, tuple(plan.programs), seconds, self.roster.now):
            return False
        if fault is None and self.values.memory.workers:
            fault = self.epochs.short_of_memory(client, run, plan, inputs)
        if fault is not None:
            self.roster.send(client.down, wire.Failed(moving.request, fault))
            return True
        moving.move, moving.flight = move, self.epochs.dispatch(client, run, plan, inputs, failed=False)
        moving.flight.own = False
        self.epochs.sharing.begin(self.epochs.epoch, client.id, tuple(plan.programs), seconds)
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
                client.unname((temporary,))
                dropped.append(new)
                continue
            del client.buffers[temporary]
            client.buffers |= dict.fromkeys(numbers, new)
            new.holders, old.holders = len(numbers), 0
            new.where, new.reasons, new.output = old.where, old.reasons, old.output
            client.held -= old.nbytes
            self.values.label_again(client, new)
            moving.done.add(new.uid)
            moving.values += 1
            dropped.append(old)
        self.values.drop(dropped)
        return fault


__all__ = ["Moves"]
