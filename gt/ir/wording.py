"""Words of texts that people read. Owns: ``amount``."""

from __future__ import annotations


def amount(count: int, noun: str) -> str:
    """Give "1 worker", "2 workers", "2 flushes"."""
    ending = "" if count == 1 else "es" if noun.endswith(("sh", "ss")) else "s"
    return f"{count} {noun}{ending}"


__all__ = ["amount"]
