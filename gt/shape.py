"""``Size``: a tensor's shape, a tuple as torch.Size is."""

from __future__ import annotations

import math


class Size(tuple[int, ...]):
    """A shape."""

    __slots__ = ()

    def numel(self) -> int:
        """Give the number of elements."""
        return math.prod(self)

    def __repr__(self) -> str:
        return f"gt.Size([{', '.join(map(str, self))}])"

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        got = tuple.__getitem__(self, key)
        return Size(got) if isinstance(key, slice) else got

    def __add__(self, other: tuple[int, ...]) -> Size:  # type: ignore[override]
        return Size(tuple(self) + tuple(other))
