"""A worker as a pure state machine: messages in, commands out. It knows which values are here and which are poisoned.

Owns: the ids of loaded programs and present values, poison, broken groups. Holds no tensor and reads no clock.
Everything that came before a message has happened when it is handled: the worker does one thing at a time, in order.
Next: ``runner`` (performs the commands on an engine), ``dispatcher_state`` (the other end).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from gt.ir.program import Program
from gt.runtime import wire
from gt.runtime.errors import Fault
from gt.runtime.wire import Message


class Got(msgspec.Struct, frozen=True):
    """A message came from the dispatcher."""

    message: Message
    data: Any = None


class Arrived(msgspec.Struct, frozen=True):
    """An upload that the dispatcher counts on is here."""

    uid: int


class Unkept(msgspec.Struct, frozen=True):
    """A value that came from outside could not be kept, for want of memory for one: what reads it fails with the cause."""

    uid: int
    fault: Fault


class Ran(msgspec.Struct, frozen=True):
    """A program, or its skipping, is over. ``failed``: which outputs are not there, and why, by uid; all if None. ``tiers``,
    ``ready``: as in ``Done``.

    ``kept``: what was taken for the run, and holds what it held before. ``left``: some collectives were not taken part in.
    """

    epoch: int
    seconds: float
    fault: Fault | None = None
    failed: tuple[tuple[int, Fault], ...] | None = None
    kept: tuple[int, ...] = ()
    graph: wire.GraphStage = ""
    left: bool = False
    tiers: str | None = None
    ready: tuple[int, ...] | None = None


class Grouped(msgspec.Struct, frozen=True):
    """A process group was made, or not."""

    epoch: int
    seconds: float
    members: tuple[int, ...]
    fault: Fault | None = None


class Rejoined(msgspec.Struct, frozen=True):
    """Another dispatcher has taken this worker in, which knows its labelled values and nothing else."""

    worker: int


Event: TypeAlias = Got | Arrived | Unkept | Ran | Grouped | Rejoined


class LoadProgram(msgspec.Struct, frozen=True):
    """Make a program ready. ``together``: as in ``Load``."""

    plan: int
    program: Program
    together: bool = False


class SwapPieces(msgspec.Struct, frozen=True):
    """Run compiled code for these pieces of a program from here on."""

    plan: int
    pieces: tuple[int, ...]


class UnloadPrograms(msgspec.Struct, frozen=True):
    """Forget programs."""

    plans: tuple[int, ...]


class RunProgram(msgspec.Struct, frozen=True):
    """Run a program on values; ``takes`` are inputs that leave the store before the run, so that it may reuse them.

    ``copies``: positions in ``inputs`` that the program overwrites though somebody still holds them. ``poisoned``: positions of inputs
    that are not there, and why: only what does not depend on them runs. ``tiers``: those of a run that is made again.
    """

    epoch: int
    plan: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scalars: tuple[wire.WireScalar, ...]
    takes: tuple[int, ...] = ()
    copies: tuple[int, ...] = ()
    poisoned: tuple[tuple[int, Fault], ...] = ()
    graph: wire.GraphUse = ""
    tiers: str | None = None


class SkipProgram(msgspec.Struct, frozen=True):
    """Take part in a program's collectives only, with junk, so that the other workers get through."""

    epoch: int
    plan: int
    fault: Fault
    graph: wire.GraphUse = ""


class DropGraph(msgspec.Struct, frozen=True):
    """Let go of the graph that a program's workers captured together."""

    plan: int
    refused: str


class TakeParent(msgspec.Struct, frozen=True):
    """What is done from here on is under another span."""

    traceparent: str


class FormGroup(msgspec.Struct, frozen=True):
    """Create a process group."""

    message: wire.MakeGroup


class KeepValue(msgspec.Struct, frozen=True):
    """Put host data among the values: rows ``bounds`` of it, padded to ``local``."""

    uid: int
    message: wire.Store
    data: Any


class DropValues(msgspec.Struct, frozen=True):
    """Let values go."""

    uids: tuple[int, ...]


class ShipValue(msgspec.Struct, frozen=True):
    """Send a value to a client."""

    message: wire.Ship


class ShipFault(msgspec.Struct, frozen=True):
    """Tell a client that its value is poisoned."""

    token: bytes
    message: wire.PartFailed


class Reply(msgspec.Struct, frozen=True):
    """Send a message to the dispatcher."""

    message: Message


class ReplyWith(msgspec.Struct, frozen=True):
    """Send the word that a run is over to the dispatcher, with a small value if that can be read, which else its client is told."""

    done: wire.Done
    ship: wire.Ship


class Quit(msgspec.Struct, frozen=True):
    """End the worker."""


Command: TypeAlias = (
    LoadProgram | SwapPieces | UnloadPrograms | DropGraph | RunProgram | SkipProgram | FormGroup | KeepValue | DropValues | ShipValue | ShipFault
    | TakeParent | Reply | ReplyWith | Quit
)  # fmt: skip


@dataclass(frozen=True)
class _Uses:
    """What a program picks as its ``inputs`` and ``outputs`` from those that a run names, at least so many; of its own inputs, those that
    it overwrites (``donated``).
    """

    inputs: Callable[[tuple[int, ...]], tuple[int, ...]]
    outputs: Callable[[tuple[int, ...]], tuple[int, ...]]
    num_inputs: int
    num_outputs: int
    donated: tuple[int, ...]


def _uses(program: Program) -> _Uses:
    inputs, outputs = [at for at, _ in program.inputs], [at for at, _ in program.outputs]
    donated = frozenset(program.donated)
    overwritten = tuple([i for i, (_, slot) in enumerate(program.inputs) if slot in donated])
    return _Uses(_picking(inputs), _picking(outputs), max(inputs, default=-1) + 1, max(outputs, default=-1) + 1, overwritten)


def _picking(at: list[int]) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    first = at[0] if at else 0
    row = at == list(range(first, first + len(at)))
    return operator.itemgetter(slice(first, first + len(at))) if row else operator.itemgetter(*at)


@dataclass
class WorkerState:
    """``values``: uids present. ``poison``: uids that are not, and why. ``running``: outputs of the epoch under way. ``labels``: by uid,
    for the next dispatcher. ``edge``: the last epoch that is over here.
    """

    worker: int
    programs: dict[int, Program] = field(default_factory=dict)
    uses: dict[int, _Uses] = field(default_factory=dict)  # by program
    places: dict[int, wire.Places] = field(default_factory=dict)  # by program, of its outputs
    labels: dict[int, wire.Label] = field(default_factory=dict)
    edge: int = -1
    values: set[int] = field(default_factory=set)
    poison: dict[int, Fault] = field(default_factory=dict)
    broken: dict[tuple[int, ...], Fault] = field(default_factory=dict)
    running: RunProgram | SkipProgram | None = None
    outputs: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()
    reads: wire.Ship | None = None  # what of them is sent with the epoch's end

    def __repr__(self) -> str:
        now = f"running {self.running.epoch}" if self.running else "idle"
        return (
            f"worker {self.worker} {now}, programs {sorted(self.programs)}, values {sorted(self.values)}, "
            f"poisoned {sorted(self.poison)}, broken {sorted(self.broken)}"
        )

    def handle(self, event: Event) -> list[Command]:
        """Take one event; give the commands it causes, in order."""
        match event:
            case Got(message, data):
                return self._got(message, data)
            case Arrived(uid):
                self.values.add(uid)
                return []
            case Unkept(uid, fault):
                self.values.discard(uid)
                self.poison[uid] = fault
                return []
            case Ran():
                return self._ran(event)
            case Grouped(epoch, seconds, members, fault):
                if fault is None:
                    self.broken.pop(members, None)
                else:
                    self.broken[members] = fault
                return [Reply(wire.Done(epoch, seconds, fault))]
            case Rejoined(worker):
                return self._rejoined(worker)

    def past(self, lives: tuple[tuple[int, int], ...]) -> wire.Past:
        """Say what is here for the next dispatcher: by generation, its number at those that are gone."""
        places: dict[wire.Place, int] = {}
        values = tuple(
            wire.Held(uid, label.owner, label.numbers, places.setdefault(label.place, len(places)), label.epoch)
            for uid, label in sorted(self.labels.items())
            if uid in self.values
        )
        failed = tuple(sorted(self.poison.keys() & self.labels.keys()))
        return wire.Past(lives, tuple(places), values, self.edge, failed)

    def _rejoined(self, worker: int) -> list[Command]:
        plans, unknown = tuple(self.programs), tuple(sorted(self.values - self.labels.keys()))
        self.worker, self.edge = worker, -1
        for known in (self.programs, self.uses, self.places, self.poison, self.broken):
            known.clear()
        self.labels = {uid: label for uid, label in self.labels.items() if uid in self.values}
        return [UnloadPrograms(plans), *self._drop(unknown)]

    def _got(self, message: Message, data: Any) -> list[Command]:
        match message:
            case wire.Execute():
                return self._execute(message)
            case wire.Ship():
                if message.uid in self.values:
                    return [ShipValue(message)]
                if not message.final:
                    return []  # the dispatcher hears of it by Done, and knows the cause when another worker is at fault
                fault = self.poison.get(message.uid) or Fault(
                    "protocol", f"value {message.uid} is not on this worker", self.worker
                )
                if fault.kind == "memory":
                    return [Reply(wire.Unshipped(message.uid, message.token, message.request, fault))]
                return [ShipFault(message.token, wire.PartFailed(message.request, fault))]
            case wire.Free(uids):
                return self._drop(uids)
            case wire.Store(uid):
                self.values.add(uid)
                if message.label is not None:
                    self.labels[uid] = message.label
                return [KeepValue(uid, message, data)]
            case wire.Name(uid, label):
                self.labels[uid] = label
                return []
            case wire.Load(plan, program, places, together):
                self.programs[plan], self.uses[plan] = program, _uses(program)
                if places is not None:
                    self.places[plan] = places
                return [LoadProgram(plan, program, together)]
            case wire.Swap(plan, pieces):
                return [SwapPieces(plan, pieces)] if plan in self.programs else []
            case wire.Unload(plans):
                for plan in plans:
                    self.programs.pop(plan, None)
                    self.uses.pop(plan, None)
                    self.places.pop(plan, None)
                return [UnloadPrograms(plans)]
            case wire.DropGraph(plan, refused):
                return [DropGraph(plan, refused)] if plan in self.programs else []
            case wire.Parent(traceparent):
                return [TakeParent(traceparent)]
            case wire.MakeGroup():
                return [FormGroup(message)]
            case wire.Stop() | wire.Refused() | wire.Broken():
                return [Quit()]
            case _:
                return []

    def _execute(self, message: wire.Execute) -> list[Command]:
        program = self.programs.get(message.plan)
        uses = self.uses.get(message.plan)
        if program is None or uses is None or uses.num_inputs > len(message.inputs) or uses.num_outputs > len(message.outputs):
            why = f"takes {uses.num_inputs} values and makes {uses.num_outputs}, others are named" if uses else "is not loaded"
            fault = Fault("protocol", f"plan {message.plan} {why}", self.worker, message.epoch)
            self.poison |= dict.fromkeys(message.outputs, fault)
            self.edge = message.epoch
            told = self._got(message.reads[1], None) if message.reads is not None and message.reads[0] == self.worker else []
            return [*self._drop(message.frees), Reply(wire.Done(message.epoch, 0.0, fault)), *told]
        mine = uses.inputs(message.inputs)
        self.outputs = uses.outputs(message.outputs)
        self.frees = message.frees
        self.reads = message.reads[1] if message.reads is not None and message.reads[0] == self.worker else None
        if message.owner:
            self._label(message, program)
        obstacle = self._why_not(mine, program)
        poisoned = self._poisoned(mine) if obstacle is not None and not program.collectives else ()
        if obstacle is not None and not poisoned:
            self.running = SkipProgram(message.epoch, message.plan, obstacle, message.graph)
            return [self.running]
        freed = set(message.frees)
        unique = set(mine)
        read = tuple([uid for uid in dict.fromkeys(mine) if uid in freed])
        takes = tuple([uid for uid in read if uid in self.values]) if poisoned else read
        copies: tuple[int, ...] = ()
        twice = len(unique) < len(mine)
        if not poisoned and (twice or not freed.issuperset(map(mine.__getitem__, uses.donated))):
            copies = tuple([i for i in uses.donated if mine[i] not in freed or (twice and mine.count(mine[i]) > 1)])
        self.values.difference_update(takes)
        # What is freed and not read goes first: nothing is kept for it, and its memory serves the run.
        dropped = self._drop(tuple(freed - unique)) if len(freed) > len(read) else []
        self.frees = read
        self.running = RunProgram(
            message.epoch, message.plan, mine, self.outputs, message.scalars, takes, copies, poisoned, message.graph,
            None if message.tiers is None else dict(message.tiers).get(self.worker, ""),
        )  # fmt: skip
        return [*dropped, self.running]

    def _label(self, message: wire.Execute, program: Program) -> None:
        places, made = self.places.get(message.plan), {position for position, _ in program.outputs}
        if places is None:
            return
        for position, (number, uid, _) in enumerate(zip(message.numbers, message.outputs, places.outputs, strict=False)):
            if position in made or uid in self.values or uid in self.poison:
                self.labels[uid] = wire.Label(message.owner, (number,), places[position], message.epoch)

    def _why_not(self, inputs: tuple[int, ...], program: Program) -> Fault | None:
        if not self.values.issuperset(inputs):
            uid = next(uid for uid in inputs if uid not in self.values)
            return self.poison.get(uid) or Fault("protocol", f"value {uid} is not on worker {self.worker}", self.worker)
        if self.broken:
            for step in program.collectives:
                if step.group in self.broken:
                    return self.broken[step.group]
        return None

    def _poisoned(self, inputs: tuple[int, ...]) -> tuple[tuple[int, Fault], ...]:
        """Give which inputs are poisoned, by position; nothing if others are missing for no known reason."""
        missing = [(i, uid) for i, uid in enumerate(inputs) if uid not in self.values]
        known = all(uid in self.poison for _, uid in missing)
        return tuple((i, self.poison[uid]) for i, uid in missing) if known else ()

    def _ran(self, event: Ran) -> list[Command]:
        assert self.running is not None and self.running.epoch == event.epoch
        fault, self.edge = event.fault, event.epoch
        if fault is None and isinstance(self.running, SkipProgram):
            fault = self.running.fault
        if event.fault is not None and event.left:
            program = self.programs[self.running.plan]
            broke = Fault("collective", event.fault.message, self.worker, event.epoch, event.fault.where)
            self.broken |= {step.group: broke for step in program.collectives}
        if fault is None:
            self.values.update(self.outputs)
        else:
            failed = dict.fromkeys(self.outputs, fault) if event.failed is None else dict(event.failed)
            self.poison |= failed
            self.values.update(uid for uid in self.outputs if uid not in failed)
        frees, self.running, self.outputs, self.frees = self.frees, None, (), ()
        told = wire.Done(event.epoch, event.seconds, fault, event.failed, event.kept, event.graph, event.left, (), event.tiers, event.ready)
        reads, self.reads = self.reads, None
        if reads is None:
            done = [*self._drop(frees), Reply(told)]
        elif fault is None and reads.uid in self.values:
            done = [*self._drop(frees), ReplyWith(told, reads)]
        else:
            done = [*self._drop(frees), Reply(told), *self._got(reads, None)]
        self.values.update(event.kept)
        return done

    def _drop(self, uids: tuple[int, ...]) -> list[Command]:
        here = () if self.values.isdisjoint(uids) else tuple([uid for uid in uids if uid in self.values])
        self.values.difference_update(here)
        for known in (self.poison, self.labels):
            if known:
                for uid in uids:
                    known.pop(uid, None)
        return [DropValues(here)] if here else []
