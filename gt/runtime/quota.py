"""What one client may take: bytes of values held on the workers, and runs in flight. Over it is an error, never another's loss.

Owns: how bytes are counted (``held_nbytes``), the texts of ``QuotaExceeded``. Must not know: queues, messages.
Next: ``values`` (which asks before it places or sends anything), ``schedule`` (``Client.held``).
"""

from __future__ import annotations

from functools import lru_cache

from gt.ir.types import TensorType
from gt.ir.wording import amount
from gt.runtime.errors import Fault

MIN_GRAPHS_NBYTES = 64 << 20  # of graphs that the server keeps for a client, however little it may hold on the workers
ROUND = 512  # bytes: what allocators round a value up to, so that many small ones are not free


@lru_cache(maxsize=8192)
def held_nbytes(type_: TensorType) -> int:
    """Give what a placed value holds on all its workers together: a whole copy on each of three workers counts three times."""
    if type_.sharding is None:
        return 0
    return -(-part_nbytes(type_) // ROUND) * ROUND * len(type_.sharding.mesh.workers)


@lru_cache(maxsize=8192)
def part_nbytes(type_: TensorType) -> int:
    """Give what one worker holds of a placed value."""
    return TensorType(type_.sharding.local_shape(type_.shape), type_.dtype).nbytes if type_.sharding is not None else 0


def too_much(held: int, asked: int, freed: int, limit: int, what: str, where: str) -> Fault:
    """Say that a client would hold more than it may."""
    net = f"{size(asked)} ({size(freed)} of what it holds would go)" if freed else size(asked)
    return Fault(
        "quota",
        f"{what} needs {net} on the workers; this client holds {size(held)} of the {size(limit)} that it may. Nothing of what it holds "
        "is lost: delete tensors that are not needed any more, split what is whole on each worker, or ask whoever runs the server for "
        "more (gt server --client-memory)",
        where=where,
    )


def too_many(runs: int, limit: int) -> Fault:
    """Say that a client has more runs in flight than it may."""
    return Fault(
        "quota",
        f"this client has {amount(runs, 'run')} in flight and asks for one more; the server allows {limit} (gt server --client-runs). Wait for "
        "the server's Progress before the next: gt.connect does",
    )


def too_many_graphs(held: int, asked: int, limit: int) -> Fault:
    """Say that the server keeps no more graphs for a client."""
    return Fault(
        "quota",
        f"a new graph takes {size(asked)} at the server, which keeps {size(held)} of graphs for this client, and {size(limit)} at most. "
        "Graphs that are known already run on: have steps that are alike record the same one (gt explain says why graphs are new), connect "
        "again, or ask whoever runs the server for more (gt server --client-memory)",
    )


def refusal(priority: float, most: float) -> str:
    """Say why a client of this priority is not served, "" if it is."""
    if 0 < priority <= most:
        return ""
    return (
        f"priority {priority:g} is not one that this server allows: give one over 0 and up to {most:g}, or ask whoever runs it for more "
        "(gt server --max-priority)"
    )


def size(nbytes: int) -> str:
    """Give a number of bytes for people, exact where it is small."""
    for unit, of in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= of:
            return f"{nbytes} bytes ({nbytes / of:.3g} {unit})"
    return f"{nbytes} bytes"


__all__ = [
    "MIN_GRAPHS_NBYTES", "ROUND", "held_nbytes", "part_nbytes", "refusal", "size", "too_many", "too_many_graphs", "too_much",
]  # fmt: skip
