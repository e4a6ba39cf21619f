"""What ``__array_namespace_info__()`` tells: capabilities, devices and dtypes.

Next: ``data_types`` (kinds of dtypes).
"""

from __future__ import annotations

from gt.array_api.data_types import KINDS
from gt.devices import device
from gt.functions.promote import default_complex, get_default_dtype
from gt.ir.types import DType, int64

Kind = str | tuple[str, ...] | None


class Info:
    """The inspection API of the array namespace."""

    def capabilities(self) -> dict[str, bool | int | None]:
        """Say what the standard leaves open. Data-dependent shapes are offered: such a function flushes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> device:
        """Give the device of every tensor: where its values really lie is the signals' matter."""
        return device("cpu")

    def devices(self) -> tuple[device, ...]:
        """Give the devices a tensor can name."""
        return (device("cpu"),)

    def default_dtypes(self, *, device: device | None = None) -> dict[str, DType]:
        """Give the dtypes that creation functions use when none is asked for."""
        return {"real floating": get_default_dtype(), "complex floating": default_complex(), "integral": int64, "indexing": int64}

    def dtypes(self, *, device: device | None = None, kind: Kind = None) -> dict[str, DType]:
        """Give the standard's dtypes that gt has, by name, of one kind, several or all."""
        kinds = KINDS if kind is None else (kind,) if isinstance(kind, str) else kind
        return {dtype.name: dtype for k in kinds for dtype in KINDS[k]}


def __array_namespace_info__() -> Info:  # noqa: N807 - the standard's name
    """Give the inspection API."""
    return Info()
