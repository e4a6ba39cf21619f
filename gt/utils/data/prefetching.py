"""The next batches, made and uploaded by a thread of its own while the step runs.

Owns: ``prefetch`` and ``Batches``. A thread makes at most ``depth`` batches more than were asked for, in order; what it raises is
raised where the batch is asked for. It ends with its iterable, and soon after nobody holds its iterator. Must not know: torch.
Next: ``loading``.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from gt.functions.create import tensor
from gt.random import default_generator, draw
from gt.trace import check_fork, state

DEPTH = 2
END_S = 5.0  # how long the interpreter's end waits for a batch under way
_lines: weakref.WeakSet[Line] = weakref.WeakSet()


def prefetch(iterable: Iterable[Any], depth: int = DEPTH) -> Prefetched:
    """Go through an iterable ahead of who asks: NumPy's and torch's arrays in its items become tensors, uploaded meanwhile.

    Lists, tuples and dicts of arrays keep their form, all else is handed on. A thread of its own goes through the iterable, at most
    ``depth`` items ahead; 0: none, and nothing is ahead. Errors: ValueError for a negative depth.
    """
    return Prefetched(iterable, depth)


class Prefetched:
    """An iterable whose items come as tensors. It can be gone through as often as the one it is made of."""

    def __init__(self, iterable: Iterable[Any], depth: int = DEPTH) -> None:
        self.iterable, self.depth = iterable, check_depth(depth)

    def __iter__(self) -> Iterator[Any]:
        return batches(iter(self.iterable), self.depth, with_tensors)

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]


def check_depth(depth: int) -> int:
    """Check how many batches are to be made ahead."""
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
        raise ValueError(f"prefetch is the number of batches made ahead, 0 or more, got {depth!r}")
    return depth


def with_tensors(item: Any) -> Any:
    """Give an item with its arrays as tensors."""
    return mapped(item, lambda leaf: tensor(leaf) if _is_array(leaf) else leaf)


def _is_array(leaf: Any) -> bool:
    return is_torch(leaf) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc")


def is_torch(leaf: Any) -> bool:
    """Whether something is a tensor of torch's, without importing it."""
    return any(t.__module__ == "torch" and t.__name__ == "Tensor" for t in type(leaf).__mro__)


def mapped(item: Any, change: Callable[[Any], Any]) -> Any:
    """Give an item of dicts, lists and tuples with its leaves changed."""
    if isinstance(item, dict):
        changed = {key: mapped(value, change) for key, value in item.items()}
        return changed if type(item) is dict else _like(item, changed)
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(mapped(value, change) for value in item))
    if isinstance(item, list | tuple):
        parts = [mapped(value, change) for value in item]
        return parts if type(item) is list else _like(item, parts)
    return change(item)


def _like(item: Any, parts: Any) -> Any:
    try:
        return type(item)(parts)
    except TypeError:  # a class of the user's that is not made so
        return parts


def batches(source: Iterator[Any], depth: int, change: Callable[[Any], Any]) -> Iterator[Any]:
    """Give the items of an iterator, changed; by a thread of its own if ``depth`` > 0."""
    if depth:
        return Batches(source, depth, change)
    return (change(item) for item in source)


class Batches(Iterator[Any]):
    """What a thread makes ahead, in order. The thread ends when this is let go of."""

    def __init__(self, source: Iterator[Any], depth: int, change: Callable[[Any], Any]) -> None:
        check_fork()
        self._pid = os.getpid()
        self.line = Line(depth)
        seed, stream = draw(None)  # what is drawn in the thread follows from what is drawn here
        seed = int(np.random.SeedSequence([seed % 2**64, stream]).generate_state(1, np.uint64)[0])
        thread = threading.Thread(
            target=_work, args=(self.line, source, change, list(state.signals), seed), name="gt-prefetch", daemon=True
        )
        self.line.thread = thread
        weakref.finalize(self, self.line.close).atexit = False
        _lines.add(self.line)
        thread.start()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._pid:
            check_fork()
        return self.line.get()


class Line:
    """Batches between the thread that makes them and the one that asks for them."""

    def __init__(self, depth: int) -> None:
        self.depth, self.pid = depth, os.getpid()
        self.thread: threading.Thread | None = None
        self.closed = False
        self._ready: deque[Any] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def wait_for_room(self) -> bool:
        """Wait until another batch is wanted; False if none will be."""
        with self._changed:
            while len(self._ready) >= self.depth and not self.closed:
                self._changed.wait()
            return not self.closed

    def put(self, batch: Any) -> None:
        with self._changed:
            if not self.closed:
                self._ready.append(batch)
                self._changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def get(self) -> Any:
        with self._changed:
            while not self._ready and not self._ended:
                self._changed.wait()
            if self._ready:
                batch = self._ready.popleft()
                self._changed.notify_all()
                return batch
            error, self._error = self._error, None
        if error is None:
            raise StopIteration
        try:
            raise error
        finally:
            del error  # which holds this frame

    def close(self) -> None:
        """Want no more. In a forked child there is nobody to tell."""
        if os.getpid() == self.pid:
            with self._changed:
                self.closed = True
                self._ready.clear()
                self._changed.notify_all()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread's end."""
        if self.thread is not None and self.thread is not threading.current_thread() and os.getpid() == self.pid:
            self.thread.join(timeout_s)


def _work(
    line: Line, source: Iterator[Any], change: Callable[[Any], Any], signals: list[Any], seed: int
) -> None:
    """The thread: under the signals of who began, one batch after the other."""
    state.signals.extend(signals)
    state.trace.mark(signals[-1] if signals else None)
    default_generator().manual_seed(seed)
    error: BaseException | None = None
    try:
        while line.wait_for_room():
            try:
                item = next(source)
            except StopIteration:
                break
            line.put(change(item))
            del item
    except BaseException as e:
        error = e
    finally:
        del source, change
        line.end(error)
        del error


def _close_all() -> None:
    """At the interpreter's end: let the threads end before the session does."""
    lines = list(_lines)
    for line in lines:
        line.close()
    until = time.monotonic() + END_S
    for line in lines:
        line.join(max(0.0, until - time.monotonic()))


atexit.register(_close_all)

__all__ = ["Batches", "Line", "Prefetched", "batches", "check_depth", "is_torch", "mapped", "prefetch", "with_tensors"]
