"""What commands say of a file that cannot be read or written: one line, with what is missing. Next: ``visualize``, ``trace``, ``gt.cli``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click


def said_of(error: OSError, what: str = "written", file: Path | None = None) -> str:
    """Say which file cannot be ``what``, and why, without the system's number. ``file``: where the error names none, as of a full disk."""
    name = file if error.filename is None else error.filename
    if name is None:
        return error.strerror or str(error)
    folder = Path(name).parent
    why = error.strerror if folder.exists() else f"there is no folder {folder}"
    return f"{name} cannot be {what}: {why}"


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """End the command with ``said_of`` where ``file``, a folder perhaps, cannot be written. Of a file that was begun nothing stays."""
    before = _written(file)
    try:
        yield
    except OSError as e:
        if _written(file) != before:
            with suppress(OSError):
                file.unlink()
        raise click.ClickException(said_of(e, "written", file)) from e


def _written(file: Path) -> int | None:
    """Give when a plain file was written last, None where there is none."""
    return file.stat().st_mtime_ns if file.is_file() else None


__all__ = ["said_of", "writing"]
