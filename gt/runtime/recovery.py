"""How much a session does to get over the loss of a worker.

Owns: ``Recovery``. Next: ``run_log`` (what is kept), ``recovering`` (how it is used), ``gt.recovery`` (who asks for it).
"""

from __future__ import annotations

import msgspec

from gt.ir.signals import WrongType, WrongValue

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


__all__ = ["Recovery"]
