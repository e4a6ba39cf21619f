"""Files and folders that only their owner may use: keys, and compiled code, which is run as it is read.

Owns: the checks. Must not know: what is in them. Next: ``keys``, ``compiler``.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gt.ir.advice import Advised


class NotPrivate(Advised, OSError):
    """Somebody else owns it, or may use it too. Says which, and what to do."""


def private_folder(folder: Path) -> Path:
    """Make a folder that only this user can enter. Errors: NotPrivate if it is there and others can; OSError."""
    folder = folder.expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return check_folder(folder)


def check_folder(folder: Path, others: int = 0o077) -> Path:
    """Check that a folder is this user's and gives nobody else one of the rights ``others``. Errors: NotPrivate; OSError if it is
    not there.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & others:
        raise NotPrivate(f"{folder} must be a folder that only its owner can enter: run `chmod 700 {folder}`{_owner(status)}")
    return folder


def check_file(path: Path, others: int = 0o077) -> None:
    """Check that a file is this user's and gives nobody else one of the rights ``others``. Errors: NotPrivate; OSError."""
    _check_status(path, path.lstat(), others)


def read_private(path: Path, limit: int) -> bytes:
    """Read a file that is this user's alone, in a folder of the same kind. Errors: NotPrivate; OSError; ValueError if it is longer."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        check_folder(path.absolute().parent)
        _check_status(path, os.fstat(fd), 0o077)
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} has more than {limit} bytes")
    return data


def write_private(path: Path, data: bytes, replace: bool = False) -> None:
    """Write a file with mode 0600, whole or not at all. Errors: FileExistsError unless it may be replaced."""
    beside = path.with_name(f".{path.name}.{os.getpid()}") if replace else path
    opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(opened, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _check_status(path: Path, status: os.stat_result, others: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotPrivate(f"{path} must be a plain file, not a link or a folder")
    if status.st_uid != os.getuid() or status.st_mode & others:
        mode = stat.S_IMODE(status.st_mode)
        raise NotPrivate(f"{path} must be its owner's alone, its mode is {mode:04o}: run `chmod 600 {path}`{_owner(status)}")


def _owner(status: os.stat_result) -> str:
    return "" if status.st_uid == os.getuid() else f" as its owner, user {status.st_uid}: this process is user {os.getuid()}"


__all__ = ["NotPrivate", "check_file", "check_folder", "private_folder", "read_private", "write_private"]
