"""Tables of hooks, and what removes a hook from one.

Owns: ``RemovableHandle``, ``add``. Must not know: whose hooks they are. Next: ``autograd``, ``nn.hooks``, ``optim``.
"""

from __future__ import annotations

import itertools
from typing import Any

Table = dict[int, Any]
_numbers = itertools.count()


class RemovableHandle:
    """Removes a hook, when told or at the end of a ``with`` block."""

    def __init__(self, table: Table, number: int) -> None:
        self._table, self.id = table, number

    def remove(self) -> None:
        self._table.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def add(table: Table, hook: Any, prepend: bool = False) -> RemovableHandle:
    """Enter a hook, last or first."""
    number = next(_numbers)
    rest = dict(table) if prepend else {}
    if prepend:
        table.clear()
    table[number] = hook
    table.update(rest)
    return RemovableHandle(table, number)


__all__ = ["RemovableHandle", "Table", "add"]
