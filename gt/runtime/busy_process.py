"""Whether a silent process of this host has something to do: it may hold the interpreter's lock for long, as in an import, or get no processor.

Owns: ``is_busy``. Next: ``dispatcher``, which waits longer for such a worker than for one that is stopped.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path


def is_busy(host: str, pid: int) -> bool:
    """Say whether a thread of the process runs, waits for a processor, or waits for a disk. False where that cannot be known."""
    if host != socket.gethostname():
        return False
    with contextlib.suppress(OSError):
        return any(_state(thread) in ("R", "D") for thread in Path(f"/proc/{pid}/task").iterdir())
    return False


def _state(thread: Path) -> str:
    with contextlib.suppress(OSError):  # it may end meanwhile
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    return ""


__all__ = ["is_busy"]
