"""``Size``: a tensor's shape, a tuple as torch.Size is."""

from __future__ import annotations

import math
from typing import SupportsIndex


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
        if not isinstance(other, tuple):
            raise TypeError(f"can only concatenate tuple (not {type(other).__name__}) to gt.Size")
        return Size(tuple.__add__(self, other))

    def __radd__(self, other: tuple[int, ...]) -> Size:
        return Size(tuple.__add__(other, self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> Size:
        return Size(tuple.__mul__(self, times))

    __rmul__ = __mul__
