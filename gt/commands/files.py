"""What commands say of a file that cannot be read or written: one line, with what is missing. Next: ``visualize``, ``trace``, ``gt.cli``."""

from __future__ import annotations

from pathlib import Path


def said_of(error: OSError, what: str = "written") -> str:
    """Say which file cannot be ``what``, and why, without the system's number."""
    if error.filename is None:
        return error.strerror or str(error)
    folder = Path(error.filename).parent
    why = error.strerror if folder.exists() else f"there is no folder {folder}"
    return f"{error.filename} cannot be {what}: {why}"


__all__ = ["said_of"]
