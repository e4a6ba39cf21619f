"""What the recording side asks of the running side: one interface, embedded or remote.

Owns: ``Session`` and what passes through it. Buffers are named by integers the client draws from one counter, never
reused. Calls return at once; only ``fetch(...).result()`` waits. Must not know: tensors, traces.
Next: ``embedded`` and ``remote``, the two implementations.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from gt.ir.graph import Graph
from gt.ir.signals import SignalConfig
from gt.ir.types import Scalar, TensorType
from gt.runtime.errors import Fault

if TYPE_CHECKING:
    from gt.runtime.buffer_reasons import BufferReasons


own_threads: set[int] = set()  # of a session's own, by ident


def check_thread() -> None:
    """Refuse to wait on a thread that does a session's work, where the wait would be for itself. Errors: RuntimeError."""
    if threading.get_ident() in own_threads:
        raise RuntimeError(
            "a value was read by a finalizer (__del__) that runs on one of gt's own threads: keep what is to be read in a tensor and "
            "read it later"
        )


class CallLock:
    """Held while a call changes a session. The collector of cycles waits meanwhile: its finalizers may read values, which is a call.

    It is told to before the lock is taken, and that it may go on after: who waits for a value holds none that the io thread needs. There is
    one collector for all threads, which goes on when the last of all these locks is let go of.
    """

    _held: ClassVar[list[None]] = []  # one for each that is held
    _collects: ClassVar[bool] = False  # once none is

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._held.append(None)
        if gc.isenabled():
            self._wait()
        try:
            self._lock.acquire()
        except BaseException:  # a signal's handler raises
            self._go_on()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._go_on()

    @staticmethod
    def _wait() -> None:
        gc.disable()
        CallLock._collects = True

    @staticmethod
    def _go_on() -> None:
        CallLock._held.pop()
        if CallLock._collects and not CallLock._held:
            CallLock._collects = False
            gc.enable()
            if CallLock._held:  # another thread has come in between
                CallLock._wait()

    @staticmethod
    def forked() -> None:
        """In a forked child no other thread holds one."""
        CallLock._held[:] = [None]
        CallLock._go_on()


os.register_at_fork(after_in_child=CallLock.forked)


class Session(Protocol):
    """A place where graphs run."""

    def define(self, key: int, graph: Graph) -> None:
        """Make a captured graph known under a key of this session. Comes before the first ``run`` of that key."""
        ...

    def run(
        self, key: int, inputs: Sequence[int], outputs: Sequence[int], scalars: Sequence[Scalar], frees: Sequence[int],
        replaces: Sequence[int] = (), reads: int = -1,
    ) -> Future[np.ndarray] | None:  # fmt: skip
        """Run a graph on buffers. ``frees`` are buffers no handle names any more; they go after this run.

        An input also in ``frees`` may be overwritten by the run (the graph's ``donated`` says which). ``replaces``: by output, the
        buffer whose value a tensor had that has the output's from now on, -1 for a new tensor; empty if all are new. Where the output
        fails, it is what it replaces once a read has raised the cause. ``reads``: the output that is read next; the future of that, if it has been
        asked for with the run, as ``fetch`` gives it.
        """
        ...

    def await_window(self) -> None:
        """Wait until ``run`` would not wait. Nothing has changed for who is interrupted here by a signal's handler."""
        ...

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Give an array to be filled and handed to ``put``, in the memory from which it travels with no more copies."""
        ...

    def put(self, buffer: int, type: TensorType, data: np.ndarray, signal: SignalConfig | None) -> None:
        """Make a buffer from host data. ``data`` is owned by the session from here on and has the dtype's wire form."""
        ...

    def fetch(self, buffer: int) -> Future[np.ndarray]:
        """Read a buffer back, ordered after every earlier call. The future raises what made the buffer's run fail."""
        ...

    def explain(self, buffer: int) -> Future[BufferReasons]:
        """Say why a buffer is where it is, by the plan that made it; ordered as ``fetch``, and fails as that does."""
        ...

    def free(self, buffers: Sequence[int]) -> None:
        """Drop buffers no handle names any more."""
        ...

    def num_workers(self) -> int:
        """Give the number of workers present."""
        ...

    def workers(self) -> tuple[int, ...]:
        """Give the numbers of the workers present, as signals name them."""
        ...

    @property
    def closed(self) -> Fault | None:
        """Why the session is over and its buffers are gone; None while it is not."""
        ...

    def close(self) -> None:
        """End the session and everything it started. Idempotent."""
        ...
