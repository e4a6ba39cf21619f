"""How much a session does to get over the loss of a worker, and what it has done.

Owns: ``Recovery``; ``Recovered`` and ``Snapshots``, which say what it has come to.
Next: ``run_log`` (what is kept), ``recovering`` (how it is used), ``gt.recovery`` (who asks for it).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gt.ir.signals import WrongType, WrongValue
from gt.ir.wording import amount

WHOLE = ("max_bytes", "max_calls", "tries", "restarts")
MAY_BE_ZERO = ("wait_s", "restarts")


class Recovery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``interval_s``: between snapshots, which come sooner once uploads of ``max_bytes`` or ``max_calls`` calls are kept.

    ``wait_s``: for replacements, before going on with fewer workers (None: 60 where this process starts them, 10 at a server).
    ``tries``: in one recovery. ``restarts``: of workers that this process starts. Errors: TypeError; ValueError for numbers that are not
    above zero.
    """

    interval_s: float = 60.0
    wait_s: float | None = None
    max_bytes: int = 1 << 30
    max_calls: int = 50_000
    tries: int = 5
    restarts: int = 100

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None and name == "wait_s":
                continue
            kind = "a whole number" if name in WHOLE else "a number"
            if isinstance(value, bool) or not isinstance(value, int if name in WHOLE else int | float):
                raise WrongType(f"expected {kind}, got {value!r}", name)
            if not (value > 0 or (value == 0 and name in MAY_BE_ZERO)) or value == float("inf"):
                raise WrongValue(f"expected {kind} {'from 0 up' if name in MAY_BE_ZERO else 'above 0'}, got {value!r}", name)


class Recovered(NamedTuple):
    """One recovery: what was lost, how old the snapshot was, how many runs were replayed, on how many workers, how long it took."""

    lost: str
    snapshot_age_s: float
    runs: int
    workers: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"recovered from a loss ({self.lost}): a snapshot {self.snapshot_age_s:.1f} s old and {amount(self.runs, 'run')} replayed on "
            f"{amount(self.workers, 'worker')} in {self.seconds:.2f} s"
        )


class Snapshots(NamedTuple):
    """What snapshots have cost so far: how many, bytes read for them, and seconds from their begin to their end."""

    taken: int = 0
    nbytes: int = 0
    seconds: float = 0.0


__all__ = ["Recovered", "Recovery", "Snapshots"]
