"""``python tether.py PARENT COMMAND...``: become COMMAND, which ends when process PARENT does, by whatever end.

Runs on its own, before anything is imported, so that no code of another process's state runs between fork and exec.
Must not know: gt. Next: ``script`` (who uses it).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tie() -> None:
    """Ask the system for SIGKILL at the parent's end; where it cannot (not Linux), the command only lacks that."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


if __name__ == "__main__":
    tie()
    if os.getppid() != int(sys.argv[1]):  # it ended before it was watched
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])
