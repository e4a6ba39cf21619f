"""What gt says while it runs: the instruction log and the debug levels.

Owns: ``InstructionLog`` (``GT_INSTRUCTION_LOG``: one line per event) and ``setup_logging`` (``GT_DEBUG`` through stdlib
logging). Must not know: states, sockets. Next: ``env`` (the variables).
"""

from __future__ import annotations

import logging
import os
import sys
import time

from gt.runtime import env

LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG, 4: 5}
HEADER = "# gt instruction log"


class InstructionLog:
    """Appends ``elapsed sequence event who operation size details`` lines to a file that several processes share.

    Each line is one O_APPEND write, so lines of different processes never mix and a crash loses none already logged.
    Elapsed seconds count from the file's first line, on the machine's wall clock.
    """

    def __init__(self, path: str, who: str) -> None:
        self.who, self.sequence = who, 0
        self.file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        head = os.pread(self.file, 256, 0).decode(errors="replace").split("\n")[0]
        self.start = time.time()
        if head.startswith(HEADER):
            self.start = float(head.rsplit("=", 1)[1])
        else:
            os.write(
                self.file,
                f"{HEADER}: elapsed_s sequence event who operation nbytes details; start={self.start!r}\n".encode(),
            )

    def write(self, event: str, operation: str = "-", nbytes: int = 0, details: str = "") -> None:
        """Append one line."""
        self.sequence += 1
        elapsed = time.time() - self.start
        details = details.replace("\n", "\\n")
        line = f"{elapsed:.6f} {self.sequence} {event} {self.who} {operation or '-'} {nbytes} {details}".rstrip()
        os.write(self.file, (line[:4000] + "\n").encode())

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def open_log(who: str) -> InstructionLog | None:
    """Open the file that GT_INSTRUCTION_LOG names, or give None."""
    path = env.INSTRUCTION_LOG.get()
    return InstructionLog(path, who) if path else None


def setup_logging(who: str) -> logging.Logger:
    """Give the logger ``gt.<who>`` with the level that GT_DEBUG asks for; lines go to stderr."""
    root = logging.getLogger("gt")
    level = env.DEBUG.get()
    if level and not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.setLevel(LEVELS[min(level, 4)])
    return logging.getLogger(f"gt.{who}")
