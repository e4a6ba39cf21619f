"""Values whose dispatcher is gone: what their workers bring along, and what of it is whole. Pure.

Owns: ``Orphans``, by owner, until the client comes or the lease is over; ``owner_of``. A run is there as a whole or not at all: where some
worker had not come so far, or had failed, and what it lacks is nowhere else, all that the same epoch made is given up. A value that is whole on
some of its workers stays on those. Must not know: clients, the order of messages.
Next: ``wire`` (``Past``, ``Label``), ``returning`` (who adopts), ``worker_state`` (who labels).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gt.ir.mesh import Sharding
from gt.ir.types import TensorType
from gt.passes.signal_placement import cluster_mesh
from gt.runtime.errors import ProtocolError
from gt.runtime.seats import moved
from gt.runtime.wire import Past, Place
from gt.runtime.wire_arrays import check_type

UID_BITS = 32  # the bits above them are the generation of the dispatcher that gave the uid out


def owner_of(secret: bytes, user: str) -> bytes:
    """Give the owner's name in labels: it tells neither the secret nor, at a server with keys, is it worth anything with another key."""
    return hashlib.blake2b(secret, key=user.encode()[:64], digest_size=16, person=b"gt owner").digest() if secret else b""


@dataclass(slots=True)
class Found:
    """One value: its label, and the numbers of the workers that hold their part of it."""

    numbers: tuple[int, ...]
    place: Place
    epoch: int
    holders: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Estate:
    """What one owner has, by uid. ``since``: when a worker last brought some of it."""

    since: float
    values: dict[int, Found] = field(default_factory=dict)

    def by_worker(self, kept: Iterable[int] = ()) -> dict[int, list[int]]:
        """Give the uids that each worker holds, but for those to keep."""
        out: dict[int, list[int]] = {}
        for uid in self.values.keys() - set(kept):
            for worker in self.values[uid].holders:
                out.setdefault(worker, []).append(uid)
        return out


class Orphans:
    """Estates by owner."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.estates: dict[bytes, Estate] = {}
        self.edges: dict[int, tuple[int, int]] = {}  # by worker: its last generation, and the last epoch of that which it has done
        self.failed: dict[int, frozenset[int]] = {}  # by worker: what it could not make

    def __repr__(self) -> str:
        return f"orphans {[len(e.values) for e in self.estates.values()]}"

    def bring(self, now: float, worker: int, past: Past, live: Iterable[bytes]) -> list[int]:
        """Take in what a worker brings; give the uids that it may forget: of owners who are ``live`` and have been told what is there,
        and what would be taken for a value of this generation.
        """
        known, unwanted = set(live), []
        self.edges[worker], self.failed[worker] = (past.lives[-1][0], past.edge), frozenset(past.failed)
        for held in past.values:
            if held.owner in known or held.uid >> UID_BITS == self.generation:
                unwanted.append(held.uid)
                continue
            estate = self.estates.setdefault(held.owner, Estate(now))
            estate.since = now
            found = estate.values.setdefault(held.uid, Found(held.numbers, past.places[held.place], held.epoch))
            found.holders.add(worker)
        return unwanted

    def whole(
        self, estate: Estate, present: Mapping[tuple[int, int], int], everything: tuple[int, ...]
    ) -> dict[int, TensorType]:
        """Give the placed types of what is there of an estate, by uid. ``present``: the workers that are here, by each generation that
        they have seen and their number there; ``everything``: all that the owner will use.
        """
        failed = frozenset[int]().union(*self.failed.values())
        types: dict[int, TensorType | None] = {}
        torn = set()
        for uid, found in estate.values.items():
            there = [present.get((found.place.generation, w)) for w in found.place.placed.workers]
            types[uid] = None if uid in failed else _placed(found, there, everything)
            run = uid >> UID_BITS, found.epoch
            undone = [w for w in there if w is not None and w not in found.holders and _before(self.edges.get(w), run)]
            if types[uid] is None and found.epoch >= 0 and (uid in failed or undone):
                torn.add(run)
        return {u: t for u, t in types.items() if t is not None and (u >> UID_BITS, estate.values[u].epoch) not in torn}

    def lose(self, worker: int) -> None:
        """A worker is lost, and what only it held."""
        self.edges.pop(worker, None)
        self.failed.pop(worker, None)
        for estate in self.estates.values():
            for found in estate.values.values():
                found.holders.discard(worker)

    def overdue(self, now: float, lease_s: float) -> list[bytes]:
        """Give the owners that have not come within the lease."""
        return [owner for owner, estate in self.estates.items() if now - estate.since > lease_s]

    def take(self, owner: bytes) -> Estate:
        """Give what an owner has, which is an orphan no more."""
        return self.estates.pop(owner, None) or Estate(0.0)


def past_fault(past: Past) -> str:
    """Say why what a worker brings makes no sense; nothing if it does."""
    for place in past.places:
        try:
            check_type(place.type)
        except ProtocolError as e:
            return f"a value's type is none: {e}"
        if place.placed.checked(len(place.type.shape), place.placed.workers) is None:
            return "a value's placement is none, or does not fit its type"
    if not past.lives:
        return "a worker that brings values must say from where"
    known = range(len(past.places))
    return "" if all(held.place in known for held in past.values) else "a value has a place that is not listed"


def _placed(found: Found, there: Sequence[int | None], everything: tuple[int, ...]) -> TensorType | None:
    """Give a value's type and placement among those who hold it; None if it is not whole. ``there``: its workers, None: not here."""
    holders = tuple(w for w in there if w in found.holders)
    type_, placed = found.place.type.tensor_type, found.place.placed
    if not holders:
        return None
    if len(holders) == len(there):
        return type_.placed(moved(placed, holders).sharding)
    if not placed.sharding.is_replicated:
        return None
    return type_.placed(Sharding.replicated(cluster_mesh(holders, everything), type_.ndim))


def _before(edge: tuple[int, int] | None, run: tuple[int, int]) -> bool:
    """Whether a worker had not come to a run, of an epoch of some generation, when its dispatcher was lost."""
    return edge is not None and edge[0] == run[0] and edge[1] < run[1]


__all__ = ["UID_BITS", "Estate", "Orphans", "owner_of", "past_fault"]
