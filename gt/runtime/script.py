"""A user's script as a child process: started, sent the signals that this process gets, waited for.

Owns: ``Supervisor``. The script has a session of its own, so that Ctrl-C at a terminal reaches it once, from here, and only it: workers
go on until it has ended. Must not know: dispatchers, workers. Next: ``tether`` (why it ends with this process), ``gt.commands.running``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType

from gt.runtime.exit_codes import code_of_process
from gt.runtime.launch import child_environment

LOOK_S = 0.5
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupted(BaseException):
    """A signal came that ends this process, while there was no script to hand it to."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class Supervisor:
    """``with Supervisor() as s: code = s.run(...)``: signals go to the script while it runs; the first one before that is ``Interrupted``.

    A second Ctrl-C kills the script. Once all is ``over``, the rest is ending what was started, which has its deadline and is not cut off.
    ``on_signal``: called in place of ``Interrupted``, where no script will run here.
    """

    def __init__(self) -> None:
        self.on_signal: Callable[[int], None] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.interrupts = 0
        self.over = self.starting = False
        self._early: list[int] = []  # signals for a script that is being started
        self._before: dict[int, object] = {}

    def __enter__(self) -> Supervisor:
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
                self._before[number] = signal.signal(number, self._got)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _got(self, number: int, frame: FrameType | None) -> None:
        if self.process is None and not self.starting:
            if number not in ENDING or self.over:
                return
            if self.on_signal is not None:
                self.on_signal(number)
                return
            self.over = True
            raise Interrupted(number)
        if number == signal.SIGINT:
            self.interrupts += 1
        if self.process is None:
            self._early.append(number)
        else:
            self._hand_on(self.process.pid, number)

    def _hand_on(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if self.interrupts > 1 else number)

    def run(self, command: Sequence[str], variables: Mapping[str, str], look: Callable[[], None]) -> int:
        """Run ``python command`` to its end and give its exit code. ``look``: called twice a second meanwhile, and once after."""
        tether = str(Path(__file__).with_name("tether.py"))
        self.starting = True  # an exception now would leave a process that nobody knows
        try:
            started = self.process = subprocess.Popen(
                [sys.executable, "-S", "-E", tether, str(os.getpid()), sys.executable, *command],
                env=child_environment(variables),
                start_new_session=True,
            )
        finally:
            self.starting = False
        try:
            for number in self._early:
                self._hand_on(started.pid, number)
            while True:
                try:
                    code = started.wait(LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    look()
        except BaseException:
            started.kill()
            started.wait()
            raise
        finally:
            if started.returncode is not None and started.returncode < 0:  # what it started itself is told by nobody else
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(started.pid, signal.SIGKILL)
            self.process, self.over = None, True
        look()  # what went wrong may have ended the script before the next look
        return code_of_process(code)


__all__ = ["Interrupted", "Supervisor"]
