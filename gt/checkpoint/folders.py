"""Folders of checkpoints: one for each step, which appears whole or not at all, and stays whole.

Owns: names, what is synced before what, which folders are there and which may go. A checkpoint is written in a hidden folder; its
files and it are synced, then it is renamed. Writers share a lock, which the system takes from a killed one: who finds it free removes
what is left; readers share one of the checkpoint that they read, which stays as long. Must not know: tensors, what is in the files.
Next: ``files`` (what a folder holds), ``saving``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from gt.checkpoint.files import INDEX

NAME = re.compile(r"step-(\d{8,18})")
UNDER_WAY = re.compile(r"\.step-\d{8,18}\.(?:partial|old)-[0-9a-f]{8}")
MAX_STEP = 10**18 - 1
LOCK = ".lock"
LOCK_S = 30.0


def name_of(step: int) -> str:
    """Give the name of the folder of a step."""
    return f"step-{step:08d}"


def whole(folder: Path) -> dict[int, Path]:
    """Give the checkpoints of a folder by their steps, oldest first; none if it is not there."""
    try:
        found = [(NAME.fullmatch(entry.name), entry) for entry in folder.iterdir()]
    except FileNotFoundError:
        return {}
    return dict(sorted((int(match[1]), entry) for match, entry in found if match))


def make(folder: Path) -> None:
    """Make a folder and those above it, each synced into the one that holds it."""
    missing = [folder]
    while not missing[-1].exists() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for path in reversed(missing[:-1]):
        path.mkdir(exist_ok=True)
        sync(path.parent)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")


def sync(path: Path) -> None:
    """Wait until a file or a folder's entries are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextlib.contextmanager
def written(folder: Path, step: int) -> Iterator[Path]:
    """Give a new folder to write files of a checkpoint into: at the end of the block it becomes the checkpoint, on an error it goes.

    The block syncs its files. What killed writers left is removed first. Errors: OSError, also for a step that is there.
    """
    make(folder)
    with _held(folder):
        partial = folder / f".{name_of(step)}.partial-{secrets.token_hex(4)}"
        partial.mkdir()
        try:
            yield partial
            sync(partial)
            try:
                os.rename(partial, folder / name_of(step))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise FileExistsError(f"{folder / name_of(step)} is there: another writer was faster") from None
            sync(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Share the lock of a folder with its other writers; if there are none, sweep it first."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        if _locked(lock, fcntl.LOCK_EX):
            sweep(folder)
        _share(lock, folder / LOCK)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _opened(checkpoint: Path, access: int) -> Iterator[int]:
    """Open what a checkpoint's lock is on; -1 if it is not there."""
    try:
        lock = os.open(checkpoint / INDEX, access | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield -1
        return
    try:
        yield lock
    finally:
        os.close(lock)


@contextlib.contextmanager
def in_use(checkpoint: Path) -> Iterator[None]:
    """Keep a checkpoint from those who ``prune``. One that is not there, or on a system without locks, is not kept."""
    with _opened(checkpoint, os.O_RDONLY) as lock:
        if lock >= 0:
            try:
                _share(lock, checkpoint / INDEX)
            except TimeoutError:
                raise
            except OSError:  # the system has no locks, so nobody prunes here
                pass
        yield


@contextlib.contextmanager
def _unread(checkpoint: Path) -> Iterator[bool]:
    """Tell whether nobody reads a checkpoint; if so, nobody does in the block."""
    with _opened(checkpoint, os.O_RDWR) as lock:
        yield lock < 0 or _locked(lock, fcntl.LOCK_EX)


def _share(lock: int, path: Path) -> None:
    until = time.monotonic() + LOCK_S
    while not _locked(lock, fcntl.LOCK_SH):
        if time.monotonic() > until:
            raise TimeoutError(f"another process holds {path} for {LOCK_S:g} s, as only one that removes something does")
        time.sleep(0.02)


def _locked(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def prune(folder: Path, step: int, keep: int) -> None:
    """Remove checkpoints before ``step`` but for the newest, so that ``keep`` are left with that of ``step``, and those being read."""
    older = [path for number, path in whole(folder).items() if number < step]
    for path in older[: max(0, len(older) + 1 - keep)]:
        with _unread(path) as free:
            if not free:
                continue
            gone = folder / f".{path.name}.old-{secrets.token_hex(4)}"
            with contextlib.suppress(FileNotFoundError):  # another writer was faster
                os.rename(path, gone)  # half of it is never taken for a checkpoint
                shutil.rmtree(gone, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what killed writers left, in a folder that nobody else writes to."""
    for path in folder.iterdir():
        if UNDER_WAY.fullmatch(path.name) and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


__all__ = ["MAX_STEP", "in_use", "make", "name_of", "prune", "sync", "whole", "written"]
