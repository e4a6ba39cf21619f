"""What gt says while it runs: the instruction log and the debug levels.

Owns: ``InstructionLog`` (``GT_INSTRUCTION_LOG``: one line per event), ``setup_logging`` (``GT_DEBUG`` through stdlib
logging) and ``open_log``, which sends each event to whichever of the two is asked for. Must not know: states, sockets.
Next: ``env`` (the variables).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque

from gt.runtime import env

LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG, 4: 5}
HEADER = "# gt instruction log"
SIGNS_OF_LIFE = ("Beat", "Ping")  # told at GT_DEBUG=4 only: they would fill the file of an idle server


class InstructionLog:
    """Appends ``elapsed sequence event who operation size details`` lines to a file that several processes share.

    Each line is one O_APPEND write, so lines of different processes never mix and a crash loses none already logged. A process's threads
    write one after another: lines have their sequence numbers, and their times, in order.
    Elapsed seconds count from the file's first line, on the machine's wall clock. With a ``logger``, each event is a
    debug line too; without a ``path``, it is only that.
    """

    def __init__(self, path: str, who: str, logger: logging.Logger | None = None, signs_of_life: bool = False) -> None:
        self.who, self.sequence, self.logger, self.signs_of_life = who, 0, logger, signs_of_life
        self.file, self.start = -1, time.time()
        self.lock, self.waiting = threading.RLock(), deque[str]()
        self.writing = False
        if path:
            self._open(path)

    def _open(self, path: str) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        head = os.pread(self.file, 256, 0).decode(errors="replace").split("\n")[0]
        if head.startswith(HEADER):
            self.start = float(head.rsplit("=", 1)[1])
        else:
            os.write(
                self.file,
                f"{HEADER}: elapsed_s sequence event who operation nbytes details; start={self.start!r}\n".encode(),
            )

    def write(self, event: str, operation: str = "-", nbytes: int = 0, details: str = "") -> None:
        """Append one line."""
        if operation in SIGNS_OF_LIFE and not self.signs_of_life:
            return
        if self.logger is not None:
            self.logger.debug("%s %s %s %d %s", event, self.who, operation, nbytes, details)
        if self.file < 0:
            return
        details = details.replace("\n", "\\n")
        self.waiting.append(f"{event} {self.who} {operation or '-'} {nbytes} {details}".rstrip())
        with self.lock:
            if self.writing:
                return  # a signal handler or finalizer within a write of this thread, which writes this line next
            self.writing = True
            try:
                while self.waiting and self.file >= 0:
                    self.sequence += 1
                    line = f"{time.time() - self.start:.6f} {self.sequence} {self.waiting.popleft()}"
                    os.write(self.file, (line[:4000] + "\n").encode())
            finally:
                self.writing = False

    def close(self) -> None:
        with self.lock:
            if self.file >= 0:
                os.close(self.file)
                self.file = -1


def open_log(who: str) -> InstructionLog | None:
    """Give a log that writes to the file GT_INSTRUCTION_LOG names, and to the logger from GT_DEBUG=3 on; else None."""
    path, level = env.INSTRUCTION_LOG.get(), env.DEBUG.get()
    if not path and level < 3:
        return None
    return InstructionLog(path, who, setup_logging(who) if level >= 3 else None, signs_of_life=level >= 4)


def setup_logging(who: str) -> logging.Logger:
    """Give the logger ``gt.<who>`` with the level that GT_DEBUG asks for; lines go to stderr."""
    root = logging.getLogger("gt")
    level = env.DEBUG.get()
    if not level and root.level == logging.NOTSET:
        root.setLevel(LEVELS[0])
    if level and not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.setLevel(LEVELS[min(level, 4)])
    return logging.getLogger(f"gt.{who}")
