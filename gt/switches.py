"""torch's process-wide switches for threads and determinism, kept as set.

Owns: what is asked and told. Workers choose their own threads; results do not depend on how many there are. Next: ``precision``.
"""

from __future__ import annotations

import os
import warnings


class _Kept:
    threads = os.cpu_count() or 1
    interop_threads = os.cpu_count() or 1
    deterministic = False
    warn_only = False


def set_num_threads(num: int) -> None:
    """Keep a number of threads. It changes nothing: each worker has those that its environment gives it (``OMP_NUM_THREADS``)."""
    if not isinstance(num, int):
        raise TypeError(f"set_num_threads expects an int, but got {type(num).__name__}")
    if num <= 0:
        raise RuntimeError("set_num_threads expects a positive integer")
    _Kept.threads = num


def get_num_threads() -> int:
    """Give the number of threads that was set, or that of processors."""
    return _Kept.threads


def set_num_interop_threads(num: int) -> None:
    """Keep a number of threads between ops. It changes nothing."""
    if num <= 0:
        raise RuntimeError("set_num_interop_threads expects a positive integer")
    _Kept.interop_threads = num


def get_num_interop_threads() -> int:
    """Give the number of threads between ops that was set."""
    return _Kept.interop_threads


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Keep whether results must repeat bit by bit. Draws always do; some of a GPU's sums (``index_add``, ``scatter_add``) do not."""
    if mode and not warn_only:
        warnings.warn(
            "use_deterministic_algorithms: gt's workers do not choose kernels by it; on a CPU all of them are deterministic",
            stacklevel=2,
        )
    _Kept.deterministic, _Kept.warn_only = bool(mode), bool(warn_only)


def are_deterministic_algorithms_enabled() -> bool:
    """Say whether results must repeat bit by bit."""
    return _Kept.deterministic


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Say whether a result that may differ only warns."""
    return _Kept.warn_only


def set_flush_denormal(mode: bool) -> bool:
    """Give False: how workers treat denormal numbers is not changed."""
    return False


__all__ = [
    "are_deterministic_algorithms_enabled", "get_num_interop_threads", "get_num_threads", "is_deterministic_algorithms_warn_only_enabled",
    "set_flush_denormal", "set_num_interop_threads", "set_num_threads", "use_deterministic_algorithms",
]  # fmt: skip
