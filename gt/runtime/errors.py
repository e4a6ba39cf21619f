"""What can go wrong while running, as a person sees it and as it travels.

Owns: the exceptions of the running side and ``Fault``, their form on the wire. Must not know: sockets, states.
Next: ``dispatcher_state`` (who makes faults), ``remote`` (who raises them).
"""

from __future__ import annotations

import msgspec

from gt.ir.advice import Advised


class GtError(Advised):
    """Root of gt's own errors."""


class RunError(GtError, RuntimeError):
    """A run, or the planning of it, failed. Whatever depends on its outputs fails with the same cause."""


class RunIndexError(RunError, IndexError):
    """A run read an index out of range."""


class LinAlgError(RunError):
    """A matrix has no result: it is singular, or not positive-definite, or an algorithm did not converge."""


class WorkerLost(GtError, RuntimeError):
    """A worker died or stopped answering while values or runs needed it."""

    def __init__(self, message: str, worker: int = -1, epoch: int = -1, where: str = "") -> None:
        super().__init__(message)
        self.worker, self.epoch, self.where = worker, epoch, where


class OutOfMemoryError(RunError):
    """A worker has no room for a run or a value. It names the largest values held there and in the run, with their lines."""


class QuotaExceeded(GtError, RuntimeError):
    """A client would hold more on the workers, or have more runs in flight, than the server allows it. What it holds stays."""


class NoWorkers(GtError, RuntimeError):
    """The server has no workers to run on."""


class DispatcherLost(GtError, ConnectionError):
    """The dispatcher died or stopped answering. Unless a gt server is started again at its address in time, the session is over."""


class ConnectionFailed(GtError, ConnectionError):
    """No gt server answered at the address, or one of its workers cannot be reached."""


class ConnectionRefused(ConnectionFailed):
    """A gt server answered and does not take this peer: its key, its version, its priority or how many there are."""


class KeyFileError(GtError, ValueError):
    """A key file, or a server's list of keys, is missing, damaged or open to others."""


class ProtocolError(GtError, ValueError):
    """A message or a request broke the protocol."""


class VersionMismatch(ProtocolError):
    """A message of another version of the protocol, ``theirs``."""

    def __init__(self, message: str, theirs: int) -> None:
        super().__init__(message)
        self.theirs = theirs


class LaunchError(GtError, RuntimeError):
    """A process that gt starts did not come up."""

    code: int | None = None  # what it ended with


class SessionClosed(GtError, RuntimeError):
    """The session was closed before the value was read."""


class Fault(msgspec.Struct, frozen=True):
    """An error as data: what kind, the text, and where it happened (worker, epoch, the user's line)."""

    kind: str
    message: str
    worker: int = -1
    epoch: int = -1
    where: str = ""

    def same_run(self, other: Fault) -> bool:
        """Whether both say why one run failed: several of its ops may."""
        return self == other or self.epoch == other.epoch >= 0

    def exception(self) -> GtError:
        """Give the exception that a reader of a failed value sees."""
        at = f" (at {self.where})" if self.where and self.where not in self.message else ""
        if self.kind == "worker_lost":
            return WorkerLost(self.message + at, self.worker, self.epoch, self.where)
        return KINDS.get(self.kind, RunError)(self.message + at)


KINDS: dict[str, type[GtError]] = {
    "run": RunError,
    "index": RunIndexError,
    "linalg": LinAlgError,
    "plan": RunError,
    "collective": RunError,
    "no_workers": NoWorkers,
    "quota": QuotaExceeded,
    "memory": OutOfMemoryError,
    "protocol": ProtocolError,
    "unreachable": ConnectionFailed,
    "refused": ConnectionRefused,
    "dispatcher_lost": DispatcherLost,
    "closed": SessionClosed,
}


def fault_of(error: BaseException, kind: str = "run", worker: int = -1, epoch: int = -1, where: str = "") -> Fault:
    """Describe an exception as data. An error that knows the user's line (``where``) keeps it."""
    if kind == "run" and isinstance(error.__cause__ or error, IndexError):
        kind = "index"
    if kind == "run" and type(error.__cause__ or error).__name__.endswith("LinAlgError"):  # numpy's and torch's
        kind = "linalg"
    if kind == "run" and _is_memory(error.__cause__ or error):
        kind = "memory"
    own = getattr(error, "where", "")
    text = str(error) or type(error).__name__
    if not isinstance(error, GtError) and type(error).__name__ not in text:
        text = f"{type(error).__name__}: {text}"
    return Fault(kind, text[:8192], worker, epoch, str(own) if own else where)


def _is_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left: Python's, NumPy's or torch's."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


__all__ = [
    "KINDS", "ConnectionFailed", "ConnectionRefused", "DispatcherLost", "Fault", "GtError", "KeyFileError", "LaunchError", "LinAlgError", "NoWorkers",
    "OutOfMemoryError", "ProtocolError", "QuotaExceeded", "RunError", "RunIndexError", "SessionClosed", "VersionMismatch", "WorkerLost", "fault_of",
]  # fmt: skip
