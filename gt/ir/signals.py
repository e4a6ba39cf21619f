"""What a signal asks for. A signal never changes a value: it can always be ignored.

Owns: the signal schema, shared by YAML, Python and the wire.
Next: ``gt.config`` (loading), ``gt.passes.propagate_sharding`` (what follows from it).
"""

from __future__ import annotations

import msgspec


class ShardConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Split dim ``axis`` of a tensor over ``workers`` (all workers if None), or keep it whole on them (``replicated``).

    ``workers`` may be given as a list. Errors: ValueError if it is empty, repeats a worker or holds a negative number.
    """

    axis: int = 0
    workers: tuple[int, ...] | None = None
    replicated: bool = False

    def __post_init__(self) -> None:
        if self.workers is None:
            return
        workers = tuple(self.workers)
        if not all(isinstance(w, int) and not isinstance(w, bool) for w in workers):
            raise TypeError(f"workers must be worker numbers, got {list(workers)}")
        if not workers or min(workers) < 0 or len(set(workers)) != len(workers):
            raise ValueError(f"workers must be different numbers from 0 up, at least one, got {list(workers)}")
        msgspec.structs.force_setattr(self, "workers", workers)


class SignalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One signal: how to shard what it marks, which signal its gradients follow, and whether to compile it at once.

    In YAML and on the wire ``backward_signal`` is called ``backward``.
    """

    shard: ShardConfig | None = None
    backward_signal: str | None = msgspec.field(default=None, name="backward")
    compile: bool = False
