"""The exit codes of gt's commands, and of scripts that ``gt run`` and ``gt launch`` start: what a scheduler acts on.

Owns: the one table, from which the docs page is made. Must not know: who exits. Next: ``gt.commands`` (who exits with these),
``gt.starting`` (which lets a script's uncaught errors be codes).
"""

from __future__ import annotations

import signal
import sys
from enum import IntEnum
from types import TracebackType

from gt.runtime.errors import ConnectionFailed, DispatcherLost, LaunchError, NoWorkers, WorkerLost


class ExitCode(IntEnum):
    """What ended a command. Any other code is the script's own, or 128 and the signal that ended it."""

    OK = 0
    ERROR = 1
    USAGE = 2
    SERVER_LOST = 3
    WORKER_LOST = 4
    NO_WORKERS = 5


MEANINGS = (
    (ExitCode.OK, "all went well", "nothing"),
    (ExitCode.ERROR, "the script ended with an error of its own (any code that a script exits with is handed on); "
     "`gt doctor` found a fault", "do not retry"),
    (ExitCode.USAGE, "wrong options, contradicting variables of the launcher, a port in use", "do not retry"),
    (ExitCode.SERVER_LOST, "the dispatcher is lost or cannot be reached", "retry"),
    (ExitCode.WORKER_LOST, "a worker is lost, and with it values that the script needed", "retry"),
    (ExitCode.NO_WORKERS, "workers did not come up in time, or could not start", "retry"),
)  # fmt: skip
INTERRUPTED = 128 + signal.SIGINT
KILLED = ("128 + n", "ended by signal n: 130 Ctrl-C, 137 SIGKILL (out of memory, for one), 143 SIGTERM", "retry but for 130")


def table() -> str:
    """Give the codes as a Markdown table, for the docs."""
    rows = [(str(int(code)), meaning, then) for code, meaning, then in MEANINGS]
    lines = [f"| {code} | {meaning} | {then} |" for code, meaning, then in [*rows, KILLED]]
    return "\n".join(["| code | what ended | a scheduler should |", "|---|---|---|", *lines])


def code_of_error(error: type[BaseException]) -> ExitCode | None:
    """Give the code for an error that ends a script, None where it is the script's own."""
    if issubclass(error, WorkerLost):
        return ExitCode.WORKER_LOST
    if issubclass(error, DispatcherLost | ConnectionFailed):
        return ExitCode.SERVER_LOST
    if issubclass(error, NoWorkers | LaunchError):
        return ExitCode.NO_WORKERS
    return None


def code_of_process(returncode: int) -> int:
    """Give the exit code for what ``subprocess`` says of a process: one that signal n ended is 128 + n."""
    return 128 - returncode if returncode < 0 else returncode


def name_of(returncode: int) -> str:
    """Say how a process ended."""
    if returncode >= 0:
        return f"code {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def let_errors_be_codes() -> None:
    """From here on an uncaught error of gt's running side ends this process with its code, once it has been printed."""
    told = sys.excepthook
    if getattr(told, "gives_codes", False):
        return

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        told(kind, error, traceback)
        code = code_of_error(kind)
        if code is not None:
            raise SystemExit(int(code))

    hook.gives_codes = True  # type: ignore[attr-defined]
    sys.excepthook = hook


__all__ = ["INTERRUPTED", "MEANINGS", "ExitCode", "code_of_error", "code_of_process", "let_errors_be_codes", "name_of", "table"]
