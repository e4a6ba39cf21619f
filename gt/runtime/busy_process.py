"""Whether a silent process of this host has something to do: it may hold the interpreter's lock for long, as in an import, or get no processor.

Owns: ``is_busy``, ``BUSY_TIMEOUT_S``. Next: ``dispatcher`` and ``remote``, which wait longer for such a one than for one that is stopped.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

BUSY_TIMEOUT_S = 30.0  # for how long such a process may say nothing


def is_busy(host: str, pid: int) -> bool:
    """Say whether a thread of the process runs, waits for a processor, or waits for a disk. False where that cannot be known: of processes
    elsewhere, and of this one, as who asks runs.
    """
    if host != socket.gethostname() or pid == os.getpid():
        return False
    with contextlib.suppress(OSError):
        return any(_state(thread) in ("R", "D") for thread in Path(f"/proc/{pid}/task").iterdir())
    return False


def _state(thread: Path) -> str:
    with contextlib.suppress(OSError):  # it may end meanwhile
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    return ""


__all__ = ["BUSY_TIMEOUT_S", "is_busy"]
