"""``gt.finfo`` and ``gt.iinfo``: the limits of dtypes, as torch gives them.

Next: ``gt.ir.types`` (the dtypes).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir.types import DType, dtype_of, float32, real_dtype


class finfo:  # noqa: N801 - torch's name
    """Limits of a floating point dtype: bits, eps, max, min, tiny, smallest_normal, resolution."""

    bits: int
    eps: float
    max: float
    min: float
    tiny: float
    smallest_normal: float
    resolution: float
    dtype: str

    def __init__(self, type: DType | None = None) -> None:
        own = float32 if type is None else dtype_of(type)
        own = real_dtype(own)
        if own.kind != "f":
            raise TypeError(
                f"torch.finfo() requires a floating point input type. Use torch.iinfo to handle '{own.name}'"
            )
        if own.name == "bfloat16":
            values = (16, 2.0**-7, 3.3895313892515355e38, 2.0**-126, 0.01)
        else:
            info: Any = np.finfo(own.numpy)  # type: ignore[type-var]
            values = (info.bits, float(info.eps), float(info.max), float(info.tiny), 10.0**-info.precision)
        self.bits, self.eps, self.max, self.tiny, self.resolution = values
        self.min, self.smallest_normal, self.dtype = -self.max, self.tiny, own.name

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
            f"smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, dtype={self.dtype})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, finfo) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash(("finfo", self.dtype))


class iinfo:  # noqa: N801 - torch's name
    """Limits of an integer dtype: bits, max, min."""

    bits: int
    max: int
    min: int
    dtype: str

    def __init__(self, type: DType) -> None:
        own = dtype_of(type)
        if own.kind == "b":
            raise TypeError("torch.bool is not supported by torch.iinfo")
        if own.kind not in "ui":
            raise TypeError(f"torch.iinfo() requires an integer input type. Use torch.finfo to handle '{own.name}'")
        info: Any = np.iinfo(own.numpy)  # type: ignore[type-var]
        self.bits, self.max, self.min, self.dtype = info.bits, int(info.max), int(info.min), own.name

    def __repr__(self) -> str:
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, iinfo) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash(("iinfo", self.dtype))
