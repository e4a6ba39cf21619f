"""``save``: the state as it is now, written while training goes on.

Owns: ``save`` and ``Save``. What is saved is copied where it is, by one run, so that later steps may overwrite what they like and stay
the graphs that they were. A thread reads the copies, a bounded number of bytes ahead of what is being written, and lets go of each.
Next: ``folders`` (what makes it whole), ``files`` (what is written), ``loading``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gt.buffers import Buffer
from gt.checkpoint import folders
from gt.checkpoint.files import CODES, FILE_BYTES, INDEX, VERSION, Entry, FileInfo, Index, split, stored, write_index, write_part
from gt.checkpoint.states import NOTHING, random_state, state_of
from gt.functions.numeric import is_conj
from gt.grad_mode import no_grad
from gt.handle import Handle, root_of
from gt.ir.ops import OPS
from gt.nests import Form, describe
from gt.nn.parameter import Parameter
from gt.progress import AFTER_S, percent, shown
from gt.recording import record
from gt.runtime.errors import GtError
from gt.runtime.interrupt import await_done
from gt.trace import settle, state

AHEAD = 64 << 20  # bytes read before they can be written; one value may have more
READ_S = 600.0  # how long one value may take to come, all work submitted before it included
log = logging.getLogger("gt.checkpoint")
T = TypeVar("T")


class SaveError(GtError, RuntimeError):
    """A checkpoint was not written, or older ones not removed; those before are whole. ``__cause__`` is what went wrong."""

    def __init__(self, message: str, step: int = -1) -> None:
        super().__init__(message)
        self.step = step


class Save:
    """A checkpoint under way, or written."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.step = folder, step
        self._over = threading.Event()
        self._error: SaveError | None = None
        self._told = False
        self._pid = os.getpid()
        self._written = self._nbytes = 0  # bytes of values, and of how many

    @property
    def path(self) -> Path:
        """The checkpoint's own folder, which is there once it is written."""
        return self.folder / folders.name_of(self.step)

    def done(self) -> bool:
        """Say whether it is over: written, or failed."""
        return self._over.is_set()

    def wait(self, timeout: float | None = None) -> Path:
        """Wait until the checkpoint is on the disk; give its folder.

        Errors: SaveError if it could not be written, TimeoutError after ``timeout`` seconds, RuntimeError in a forked child.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("a checkpoint is written by the process that began it: wait there, not in a forked child")
        if timeout is None and not self._over.wait(AFTER_S):
            shown(self._over.wait, lambda: f"the checkpoint of step {self.step} in {self.folder}{percent(self._written, self._nbytes)}")
        if not self._over.wait(timeout):
            raise TimeoutError(f"the checkpoint of step {self.step} in {self.folder} was not written within {timeout:g} s")
        self._tell()
        return self.path

    def _wrote(self, nbytes: int) -> None:
        self._written += nbytes

    def _prune(self, keep: int | None) -> None:
        try:
            if keep is not None:
                folders.prune(self.folder, self.step, keep)
        except OSError as error:
            self._fail(f"is written, but older ones could not be removed: {error}", error)

    def _fail(self, how: str, error: Exception) -> None:
        self._error = SaveError(f"the checkpoint of step {self.step} in {self.folder} {how}", self.step)
        self._error.__cause__ = error
        log.error("%s", self._error)

    def _tell(self) -> None:
        """Raise what went wrong."""
        if self._error is not None:
            self._told = True
            raise self._error.with_traceback(None)

    def __repr__(self) -> str:
        how = "under way" if not self.done() else "failed" if self._error is not None else "written"
        return f"<checkpoint of step {self.step} in {self.folder}, {how}>"


@dataclass
class _Item:
    """A value to be written: what it is called in its file, and the buffer or array that has it."""

    entry: Entry
    source: Buffer | np.ndarray


class _Values:
    """Collects what is to be written of a nest: tensors, arrays, and the states of objects in it."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.by_key: dict[Any, str] = {}
        self.names: set[str] = set()
        self.tensors: list[tuple[str, Handle]] = []
        self.arrays: list[tuple[str, np.ndarray]] = []

    def __call__(self, obj: Any, path: str) -> Form | None:
        if isinstance(obj, Handle):
            name = self._enter(_key(obj), path or "tensor", obj)
            form: Form = {"tensor": name, "dtype": obj.dtype.name}
            if isinstance(obj, Parameter) or (obj._rg and obj._leaf):
                form |= {"parameter": isinstance(obj, Parameter), "requires_grad": obj._rg and obj._leaf}
            return form
        if isinstance(obj, np.ndarray):
            if obj.dtype.name not in CODES:
                raise TypeError(f"{self.who}: {path!r} is an array of {obj.dtype}, which has no safetensors form")
            name = self._name(path or "array")
            self.arrays.append((name, np.array(obj, obj.dtype.newbyteorder("<"), order="C")))
            return {"array": name}
        own = state_of(obj)
        if own is NOTHING:
            return None
        return {"object": describe(own, self, self.who, path), "class": type(obj).__name__}

    def _enter(self, key: Any, path: str, tensor: Handle) -> str:
        if key not in self.by_key:
            self.by_key[key] = self._name(path)
            self.tensors.append((self.by_key[key], root_of(tensor) if _is_whole(tensor) else tensor))
        return self.by_key[key]

    def _name(self, path: str) -> str:
        while path in self.names:  # a key may hold a dot
            path += "'"
        self.names.add(path)
        return path


def _is_whole(t: Handle) -> bool:
    """Say whether a tensor is all of what it is a view of, in the same order: then it is saved as that, once."""
    root = root_of(t)
    if t is root:
        return True
    return t.is_contiguous() and t._type is root._type and t.storage_offset() == 0 and not is_conj(t)  # type: ignore[arg-type, attr-defined]


def _key(t: Handle) -> Any:
    return id(root_of(t)) if _is_whole(t) else (id(root_of(t)), id(t))


_lock = threading.Lock()
_open: dict[Path, list[Save]] = {}  # by folder: under way, or failed with nobody told
_turn: threading.Thread | None = None  # the last writer of this process: the next waits for it


def save(
    folder: str | os.PathLike[str], state: Any, *, step: int, keep: int | None = None, host_random: bool = False, block: bool = False,
) -> Save:  # fmt: skip
    """Write a checkpoint of ``state`` to a new folder in ``folder``, without waiting for it.

    ``state``: a nest of dicts, lists and tuples of tensors, arrays, numbers and strings, and of what has ``state_dict`` and
    ``load_state_dict`` (modules, optimizers, schedulers, loaders, scalers) or is a generator of random numbers. gt's random stream of
    this thread is saved with it; with ``host_random`` those of Python, NumPy and torch, too. ``step``: how many steps are done, by
    which it is named. ``keep``: once it is written, older ones are removed until so many are left.

    The values are those of the moment of the call, of which workers make copies; with ``block`` there are none, and the call ends
    when all is written. The folder appears by a rename after all in it is synced; several saves are written one after the other.
    Errors: SaveError of an earlier save to this folder that failed and was not waited for, of this one with ``block``;
    FileExistsError for a step that is there; TypeError for what has no form, as nothing is pickled; ValueError for a bad number.
    """
    global _turn
    where = Path(folder).absolute()
    _check(step, keep)
    _refuse_in_jit()
    own = Save(where, step)
    if own.path.exists() or step in [s.step for s in _under_way(where)]:
        raise FileExistsError(
            f"{own.path} is there: to go back to an earlier step, remove the checkpoints after it or save elsewhere"
        )
    _settle()  # what is pending stays the graph that it is
    values = _Values("gt.checkpoint.save")
    form = describe(state, values, values.who)
    random = describe(random_state(host_random), values, values.who, "random")
    content = partial(Index, VERSION, step, form, random)
    items = _items(values, copies=not block)
    with _lock:
        writer = threading.Thread(target=_write, args=(own, items, content, keep, _turn), name="gt-checkpoint")
        writer.start()  # no daemon: the interpreter waits for it
        _turn = writer
        _open.setdefault(where, []).append(own)
    if block:
        del items
        own.wait()
    return own


def _under_way(folder: Path) -> list[Save]:
    """Give the saves to a folder that are not over. Errors: that of one that failed."""
    with _lock:
        found = [s for s in _open.pop(folder, []) if not s.done() or (s._error is not None and not s._told)]
        if found:
            _open[folder] = found
    for s in found:
        if s.done():
            s._tell()
    return found


def _check(step: int, keep: int | None) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= folders.MAX_STEP:
        raise ValueError(f"gt.checkpoint.save: step is the number of steps done, an int of 0 or more, got {step!r}")
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise ValueError(f"gt.checkpoint.save: keep is how many checkpoints to leave, 1 or more, got {keep!r}")


def _refuse_in_jit() -> None:
    if state.recorder is not None:
        state.recorder.refuse("a checkpoint is saved", "save it outside, between calls")


def _items(values: _Values, copies: bool) -> deque[_Item]:
    """Give what is to be written, tensors as buffers. ``copies``: that nothing else names."""
    buffers = _buffers([t for _, t in values.tensors], copies)
    items = [_Item(_entry(name, t), b) for (name, t), b in zip(values.tensors, buffers, strict=True)]
    return deque([*items, *(_Item(Entry(name, CODES[a.dtype.name], a.shape), a) for name, a in values.arrays)])


def _entry(name: str, t: Handle) -> Entry:
    plain, pair = stored(t.dtype)
    return Entry(name, CODES[plain], (*t._type.shape, 2) if pair else t._type.shape)


def _buffers(tensors: list[Handle], copies: bool) -> list[Buffer]:
    """Give the buffers of tensors, or of copies that one run makes."""
    held = list(tensors)
    state.trace.mark(None)  # a copy stays where the value is, whatever signal is on
    try:
        with no_grad():
            held = [record(OPS["copy"], (t,)) if copies or t._base is not None else t for t in held]
        _settle()
    finally:
        state.trace.mark(state.signals[-1] if state.signals else None)
    for t in held:
        if t._trace is not None:  # of another thread
            settle(t._trace, "gt.checkpoint.save")
    return [t._buffer for t in held if t._buffer is not None]


def _settle() -> None:
    if state.trace.code:
        settle(state.trace, "gt.checkpoint.save")


# -- the thread


def _write(
    save: Save,
    items: deque[_Item],
    content: Callable[[dict[str, FileInfo]], Index],
    keep: int | None,
    before: threading.Thread | None,
) -> None:
    """Write one checkpoint once the one before is over."""
    try:
        if before is not None:
            before.join()
        start = time.monotonic()
        nbytes = save._nbytes = sum(item.entry.nbytes for item in items)
        with folders.written(save.folder, save.step) as unfinished:
            _write_files(unfinished, items, content, save)
        log.info("checkpoint %s: %d bytes in %.3f s", save.path, nbytes, time.monotonic() - start)
    except Exception as error:
        save._fail(f"was not written: {type(error).__name__}: {error}; {_left(save.folder)}", error)
    else:
        save._prune(keep)
    finally:
        items.clear()
        save._over.set()


def _left(folder: Path) -> str:
    try:
        step = max(folders.whole(folder), default=None)
    except OSError:
        step = None
    return f"the one of step {step} is whole" if step is not None else "there is none before it"


def _write_files(folder: Path, items: deque[_Item], content: Callable[[dict[str, FileInfo]], Index], save: Save) -> None:
    files = split([item.entry for item in items], FILE_BYTES)
    values = _read_ahead(items)
    written = {}
    for i, entries in enumerate(files):
        name = f"part-{i:05d}.safetensors"
        written[name] = write_part(folder / name, entries, values, save._wrote)
    write_index(folder / INDEX, content(written))


def _read_ahead(items: deque[_Item]) -> Iterator[np.ndarray]:
    """Give the values in order. At most AHEAD bytes, or one value, are on their way or here besides the one that was given last."""
    coming: deque[tuple[_Item, Future[np.ndarray] | None]] = deque()
    nbytes = 0
    while items or coming:
        while items and (not coming or nbytes + items[0].entry.nbytes <= AHEAD):
            item = items.popleft()
            nbytes += item.entry.nbytes
            source = item.source
            coming.append((item, source.session.fetch(source.id) if isinstance(source, Buffer) else None))
            del source
        item, future = coming.popleft()
        nbytes -= item.entry.nbytes
        value = item.source if future is None else np.asarray(received(item.entry.name, future))
        assert isinstance(value, np.ndarray)
        del item, future  # what is here need not stay there
        yield value
        del value


def received(name: str, future: Future[T]) -> T:
    """Give what is read of a value of that name. Errors: TimeoutError after ``READ_S``; the future's."""
    if not await_done(future, READ_S):
        raise TimeoutError(f"{name!r} was not read within {READ_S:g} s")
    try:
        return future.result()
    finally:
        del future  # an error has this frame: with the future in it, it would keep itself


__all__ = ["Save", "SaveError", "received", "save"]
