"""Programs in a terminal of their own, as a person at the keyboard has them.

Next: ``test_top``, ``test_progress``.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable

from tests.integration.programs import ROOT, environment


class Terminal:
    """``python WORDS`` in a terminal of 140 columns, with more variables. ``text``: what its last screen says, without colours."""

    def __init__(self, *words: object, **more: str) -> None:
        self.master, slave = pty.openpty()
        variables = {**environment(), "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "30", **more}
        self.process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            cwd=ROOT,
            env=variables,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.output = ""

    def type(self, keys: str) -> None:
        self.output = ""
        os.write(self.master, keys.encode())

    def read(self, timeout_s: float) -> None:
        if select.select([self.master], [], [], timeout_s)[0]:
            with contextlib.suppress(OSError):  # it has ended
                self.output += os.read(self.master, 1 << 16).decode(errors="replace")

    @property
    def text(self) -> str:
        frames = [f for f in self.output.split("\x1b[H") if f.strip()]
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frames[-1]).replace("\r", "") if frames else ""

    def shows(self, found: Callable[[str], object], timeout_s: float = 20.0) -> str:
        until = time.monotonic() + timeout_s
        while not found(self.text):
            assert time.monotonic() < until, f"the screen is:\n{self.text}"
            self.read(0.2)
        return self.text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self.master)
