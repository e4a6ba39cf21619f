"""``gt.accelerator`` and ``gt.mps``: there is no device for a script to choose. Next: ``cuda``."""

from __future__ import annotations

from typing import Any


def is_available() -> bool:
    """Give False: a script does not choose devices."""
    return False


def device_count() -> int:
    """Give 0: a script does not choose devices."""
    return 0


def current_accelerator(check_available: bool = False) -> None:
    """Give None: a script does not choose devices."""


def synchronize(device: Any = None) -> None:
    """Do nothing: reading a value waits for it."""


def empty_cache() -> None:
    """Do nothing: workers reuse memory themselves."""


__all__ = ["current_accelerator", "device_count", "empty_cache", "is_available", "synchronize"]
