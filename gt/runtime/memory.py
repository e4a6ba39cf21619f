"""How much memory workers have, what is on them, and whether a run will fit before any of its workers begins it.

Owns: ``Memory`` (bytes of values on workers that have a limit), ``explained`` (the texts of ``OutOfMemoryError``). What is
counted is what has been sent: a worker does one thing after the other, so when a run's turn comes, just that is there. Must not know:
messages, queues. Next: ``epochs`` (which asks before it sends), ``quota`` (what a client may take of it).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from gt.ir.program import Collective, Compute, Program, WireType
from gt.ir.types import TensorType
from gt.runtime.errors import Fault
from gt.runtime.quota import part_nbytes, size
from gt.runtime.schedule import Buffer
from gt.runtime.wire import Past

LISTED = 5  # values that an error names, of each kind


class Large(NamedTuple):
    """A value on one worker: what it takes there, its type there, and the user's line that made it."""

    nbytes: int
    type: TensorType
    where: str

    def __str__(self) -> str:
        return f"{size(self.nbytes)} {self.type.placed(None)!r} at {self.where or 'a line that is not known'}"


@dataclass
class Held:
    """One worker's memory: what it may hold, and what it holds, by uid."""

    limit: int
    values: dict[int, int] = field(default_factory=dict)
    nbytes: int = 0

    def drop(self, uid: int) -> None:
        self.nbytes -= self.values.pop(uid, 0)


class Memory:
    """Bytes of values by worker. Workers without a limit are not counted."""

    def __init__(self) -> None:
        self.workers: dict[int, Held] = {}

    def __repr__(self) -> str:
        return "memory {" + ", ".join(f"{w}: {h.nbytes} of {h.limit}" for w, h in self.workers.items()) + "}"

    def join(self, worker: int, limit: int) -> None:
        """Take in a worker; ``limit`` 0: it has none."""
        if limit > 0:
            self.workers[worker] = Held(limit)

    def leave(self, worker: int) -> None:
        self.workers.pop(worker, None)

    def add(self, buffers: Iterable[Buffer]) -> None:
        """Count values on the workers that they are placed on."""
        if not self.workers:
            return
        for buffer in buffers:
            if buffer.type is None or buffer.type.sharding is None:
                continue
            for w in buffer.type.sharding.mesh.workers:
                held = self.workers.get(w)
                if held is not None and buffer.uid not in held.values:
                    held.values[buffer.uid] = nbytes = part_nbytes(buffer.type)
                    held.nbytes += nbytes

    def fits_beside(self, programs: dict[int, Program]) -> bool:
        """Whether a run fits where all that it reads stays until its end."""
        return all(h.nbytes + programs[w].peak_nbytes <= h.limit for w, h in self.workers.items() if w in programs)

    def reserve(self, uids: tuple[int, ...], programs: dict[int, Program], inputs: list[Buffer]) -> None:
        """Count what a run that goes in parts has beside those inputs that go with it, at its peak, under uids of its own."""
        for w, program in programs.items():
            held = self.workers.get(w)
            if held is not None and uids:
                own = {inputs[position].uid for position, _ in program.inputs} if inputs else ()
                known = sum([held.values.get(uid, 0) for uid in own])
                held.values[uids[0]] = nbytes = max(0, program.peak_nbytes - known)
                held.nbytes += nbytes

    def bring(self, worker: int, past: Past) -> None:
        """Count what a worker has kept from before it joined."""
        held = self.workers.get(worker)
        if held is not None:
            sizes = [part_nbytes(p.type.tensor_type.placed(p.placed.sharding)) for p in past.places]
            for value in past.values:
                held.drop(value.uid)
                held.values[value.uid] = sizes[value.place]
                held.nbytes += sizes[value.place]

    def drop(self, uids: Iterable[int], worker: int | None = None) -> None:
        """Count values no more, on one worker or on any."""
        if self.workers:
            members = [h for w, h in self.workers.items() if worker in (None, w)]
            for uid in uids:
                for held in members:
                    held.drop(uid)

    def over(self, programs: dict[int, Program], inputs: list[Buffer], freed: Iterable[Buffer]) -> tuple[int, int] | None:
        """Give the first worker that a run would be too large for, and the bytes that it would need there in all.

        ``inputs``: the run's, in order; ``freed``: what goes with it, and, unless the run reads it, before it begins.
        """
        read = {b.uid for b in inputs}
        first = [b.uid for b in freed if b.uid not in read]
        for w, program in programs.items():
            held = self.workers.get(w)
            if held is None:
                continue
            own = {inputs[position].uid for position, _ in program.inputs}
            known = sum([held.values.get(uid, 0) for uid in own])
            need = held.nbytes - known + max(known, program.peak_nbytes) - sum([held.values.get(uid, 0) for uid in first])
            if need > held.limit:
                return w, need
        return None

    def over_with(self, type_: TensorType) -> tuple[int, int] | None:
        """Give the first worker that a placed value does not fit on, and the bytes that it would hold with it."""
        for w in type_.sharding.mesh.workers if type_.sharding is not None else ():
            held = self.workers.get(w)
            if held is not None and (need := held.nbytes + part_nbytes(type_)) > held.limit:
                return w, need
        return None

    def short(self, worker: int, need: int, what: str, own: Iterable[Buffer], program: Program | None, where: str) -> Fault:
        """Say that a worker lacks room for something; ``own`` is what the client holds, ``program`` what was to run."""
        held = self.workers[worker]
        mine = {b.uid: held.values.get(b.uid, 0) for b in own}
        others = held.nbytes - sum(mine.values())
        also = f", of other clients {size(others)}" if others > 0 else ""
        text = (
            f"{what} needs {size(need)} on worker {worker} with what is there already, and it may use {size(held.limit)}. It holds "
            f"{size(sum(mine.values()))} of this client{also}. Nothing was run on any worker, and what there was stays as it was"
        )
        return explained(Fault("memory", text, worker, where=where), worker, own, program)


def explained(fault: Fault, worker: int, own: Iterable[Buffer], program: Program | None) -> Fault:
    """Give a fault for want of memory that lists the largest of a client's values on a worker and of what was to run, and what to do."""
    held = _largest(_held(worker, own))
    made = _largest(() if program is None else _made(program))
    lists = [
        f"{what}: {'; '.join(map(str, found))}" for what, found in (("Largest held", held), ("Largest in the run", made)) if found
    ]
    advice = "Delete tensors that are not needed any more, split what is whole on each worker, or see gt.memory_limit"
    return msgspec.structs.replace(fault, message=". ".join([fault.message, *lists, advice]))


def _largest(values: Iterable[Large]) -> list[Large]:
    return heapq.nlargest(LISTED, dict.fromkeys(values), key=lambda large: large.nbytes)


def _held(worker: int, buffers: Iterable[Buffer]) -> Iterator[Large]:
    for b in buffers:
        if b.fault is None and b.type is not None and b.type.sharding is not None and worker in b.type.sharding.mesh.workers:
            local = TensorType(b.type.sharding.local_shape(b.type.shape), b.type.dtype)
            yield Large(local.nbytes, local, b.where)


def _made(program: Program) -> Iterator[Large]:
    for step in program.steps:
        if isinstance(step, Compute):
            for node in step.nodes:
                for type_ in node.types:
                    yield _large(type_, program, node.loc)
        elif isinstance(step, Collective) and step.output >= 0:
            yield _large(step.type, program, step.loc)


def _large(type_: WireType, program: Program, loc: int) -> Large:
    local = type_.tensor_type
    return Large(local.nbytes, local, program.line(loc))


__all__ = ["Held", "Large", "Memory", "explained"]
