"""``gt.types``: names for annotations. Source: torch.types."""

from __future__ import annotations

import os
from builtins import bool as _bool
from builtins import float as _float
from builtins import int as _int
from typing import IO, TypeAlias

from gt.devices import device as _device
from gt.devices import layout as _layout
from gt.ir.types import DType as _dtype
from gt.shape import Size
from gt.tensor import Tensor

_size: TypeAlias = Size | list[int] | tuple[int, ...]  # noqa: PYI042, PYI047
Number: TypeAlias = int | float | bool
Device: TypeAlias = _device | str | int | None
FileLike: TypeAlias = str | os.PathLike[str] | IO[bytes]

__all__ = ["Device", "FileLike", "Number", "Size", "Tensor", "_bool", "_device", "_dtype", "_float", "_int", "_layout", "_size"]
