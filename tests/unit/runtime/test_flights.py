"""What settles and what is poisoned, epoch by epoch."""

from __future__ import annotations

from typing import Any

from gt.ir.mesh import Sharding
from gt.ir.types import TensorType, float32
from gt.passes.signal_placement import cluster_mesh
from gt.runtime import wire
from gt.runtime.errors import Fault
from gt.runtime.flights import Flights
from gt.runtime.schedule import Buffer, Client, Flight

CLIENT = Client(0, b"token", b"down")
FAULT = Fault("error", "it broke")


class Sky:
    """Epochs of one worker, 0, each with one output; ``said`` is what the client was told."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.flights = Flights(lambda peer, message: self.said.append(message))

    def start(self, epoch: int, *reads: Flight, workers: tuple[int, ...] = (0,), **more: Any) -> Flight:
        mesh = cluster_mesh(workers, workers)
        flight = Flight(epoch, CLIENT, set(workers), fetches=[epoch], **more)
        type_ = TensorType((4,), float32).placed(Sharding.replicated(mesh, 1))
        flight.outputs = (Buffer(epoch, type_, flight=flight),)
        self.flights.add(flight, reads)
        return flight

    def finish(self, flight: Flight, worker: int = 0, fault: Fault | None = None) -> None:
        assert self.flights.done(flight.epoch, worker, fault) is flight
        self.flights.settle(flight)


def test_an_epoch_is_settled_after_what_it_reads() -> None:
    sky = Sky()
    first = sky.start(1)
    second = sky.start(2, first)
    third = sky.start(3, first, second)
    sky.finish(third)
    sky.finish(second)
    assert sky.said == [] and set(sky.flights.by_epoch) == {1, 2, 3}
    sky.finish(first)
    assert sky.said == [wire.Settled(1), wire.Settled(2), wire.Settled(3)] and sky.flights.by_epoch == {}
    assert all(f.outputs[0].flight is None and f.outputs[0].fault is None for f in (first, second, third))


def test_a_fault_reaches_what_reads_it_and_nothing_else() -> None:
    sky = Sky()
    source = sky.start(1)
    left, right, other = sky.start(2, source), sky.start(3, source), sky.start(4)
    end = sky.start(5, left, right)
    sky.finish(source, fault=FAULT)
    assert {m.request for m in sky.said} == {1, 2, 3, 5} and all(m.fault is FAULT for m in sky.said)
    assert [f.outputs[0].fault for f in (left, right, end, other)] == [FAULT, FAULT, FAULT, None]
    for flight in (end, right, left, other):
        sky.finish(flight)
    assert sky.said[-1] == wire.Settled(4) and len(sky.said) == 5 and sky.flights.by_epoch == {}


def test_what_is_no_news_changes_nothing() -> None:
    sky = Sky()
    flight = sky.start(1, workers=(0, 1))
    assert sky.flights.done(2, 0, FAULT) is None and sky.flights.done(1, 7, FAULT) is None
    sky.finish(flight, 0)
    assert sky.flights.done(1, 0, FAULT) is None and flight.fault is None


def test_a_broken_collective_waits_for_its_cause_and_costs_its_group() -> None:
    sky = Sky()
    sky.flights.groups = {(0, 1), (0, 2)}
    flight = sky.start(1, workers=(0, 1), groups=((0, 1),))
    broken = Fault("collective", "a peer is away")
    sky.finish(flight, 0, broken)
    assert sky.said == []
    sky.finish(flight, 1)
    assert sky.said == [wire.Failed(1, broken)] and sky.flights.groups == {(0, 2)}


def test_a_lost_worker_costs_what_nobody_else_has() -> None:
    sky = Sky()
    sky.flights.groups = {(0, 1)}
    copied, alone, met = sky.start(1, workers=(0, 1)), sky.start(2, workers=(1,)), sky.start(3, workers=(0, 1), groups=((0, 1),))
    away = sky.start(4)
    left, lost = sky.flights.lose_worker(1)
    assert left == [copied, alone, met] and lost == [alone, met]
    assert sky.flights.groups == set() and copied.waiting == away.waiting == {0} and alone.waiting == set()
    sky.flights.lose_client(CLIENT)
    sky.flights.fail(met, FAULT)
    assert sky.said == [] and met.outputs[0].fault is FAULT
