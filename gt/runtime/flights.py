"""Epochs on their way: which went well, and what a failure takes with it.

Owns: ``Flights``. An epoch reads what others make, so it is settled after them and poisoned with them. Says what clients must hear
through ``send``. Must not know: queues, plans, who is there. Next: ``schedule`` (``Flight``), ``epochs``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gt.runtime import wire
from gt.runtime.errors import Fault
from gt.runtime.schedule import Client, Flight


class Flights:
    """Unsettled epochs by number, and the process groups that were made by epochs, or are being made by one."""

    def __init__(self, send: Callable[[bytes, wire.Message], None]) -> None:
        self._send = send
        self.by_epoch: dict[int, Flight] = {}
        self.groups: set[tuple[int, ...]] = set()

    def add(self, flight: Flight, upstream: Iterable[Flight] = ()) -> None:
        """Take up an epoch that reads what ``upstream`` makes."""
        for f in upstream:
            flight.deps.add(f.epoch)
            f.dependents.append(flight)
        self.by_epoch[flight.epoch] = flight

    def done(
        self, epoch: int, worker: int, fault: Fault | None, failed: tuple[tuple[int, Fault], ...] | None = None
    ) -> Flight | None:
        """Hear that a worker is through with an epoch; give the epoch, None if that is no news."""
        flight = self.by_epoch.get(epoch)
        if flight is None or worker not in flight.waiting:
            return None
        flight.waiting.discard(worker)
        if fault is not None and fault.kind == "collective":
            flight.suspect = flight.suspect or fault  # maybe a peer's death, which will tell the real cause
        elif fault is not None and failed is not None and flight.local == worker:
            self._fail_part(flight, dict(failed))
        elif fault is not None:
            self.fail(flight, fault)
        return flight

    def _fail_part(self, flight: Flight, failed: dict[int, Fault]) -> None:
        """Poison some outputs of an epoch. Its worker knows, and says itself what of later epochs fails with them."""
        for buffer in flight.outputs:
            if buffer.uid in failed:
                buffer.fault, buffer.flight, buffer.failed_in = failed[buffer.uid], None, flight.epoch
        for dependent in flight.dependents:
            if dependent.local is None:
                self.fail(dependent, next(iter(failed.values())))

    def settle(self, flight: Flight) -> None:
        """When an epoch and all it read from went well, its values are what they should be."""
        if flight.waiting or flight.deps or self.by_epoch.pop(flight.epoch, None) is None:
            return
        if flight.fault is None and flight.suspect is not None:
            self.fail(flight, flight.suspect)
        if flight.suspect is not None:
            self.groups -= set(flight.groups)  # they are made anew by the next run that needs them
        if flight.fault is None:
            for buffer in flight.outputs:
                buffer.flight = None
            if flight.client is not None:
                for request in flight.fetches:
                    told = flight.answer is not None and flight.answer.request == request
                    self._send(flight.client.down, flight.answer if told and flight.answer is not None else wire.Settled(request))
        for dependent in flight.dependents:
            dependent.deps.discard(flight.epoch)
            self.settle(dependent)
        flight.dependents.clear()

    def fail(self, flight: Flight, fault: Fault) -> None:
        """Poison the outputs of an epoch and of all epochs that read from it."""
        reached, stack = [], [flight]
        while stack:
            f = stack.pop()
            if f.fault is not None:
                continue
            f.fault = fault
            f.deps.clear()
            reached.append(f)
            stack += f.dependents
            for buffer in f.outputs:
                buffer.fault, buffer.flight = fault, None
            if f.client is not None:
                for request in f.fetches:
                    self._send(f.client.down, wire.Failed(request, fault))
            f.fetches.clear()
        for f in reached[1:]:
            self.settle(f)

    def lose_client(self, client: Client) -> None:
        """Tell nobody of what a client asked for that is gone."""
        for flight in self.by_epoch.values():
            if flight.client is client:
                flight.client = None
                flight.fetches.clear()

    def lose_worker(self, worker: int) -> tuple[list[Flight], list[Flight]]:
        """Wait for a worker no more. Give the epochs it had a part in, and those of them that cannot do without it."""
        self.groups = {g for g in self.groups if worker not in g}
        left = [f for f in self.by_epoch.values() if worker in f.waiting]
        for flight in left:
            flight.waiting.discard(worker)
        return left, [f for f in left if _needs(f, worker)]


def _needs(flight: Flight, worker: int) -> bool:
    """Whether an epoch cannot do without a worker: others meet it in a collective, or some result is nowhere else."""
    if any(worker in group for group in flight.groups):
        return True
    placed = (b.type.sharding for b in flight.outputs if b.type is not None and b.type.sharding is not None)
    return any(worker in p.mesh.workers and (p.is_split or p.mesh.workers == (worker,)) for p in placed)


__all__ = ["Flights"]
