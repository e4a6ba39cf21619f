"""``gt.device``, memory formats and layouts: accepted so that torch code runs, and ignored for placement.

Where values live is the sharding layer's matter. Next: ``signal`` (placement).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gt.handle import Handle
from gt.ir.types import DType, class_name, dtype_of

TYPES = ("cpu", "cuda", "meta", "mps", "xpu")


def _names_device(value: object) -> bool:
    """Say whether a value is a device, torch's own included."""
    return isinstance(value, device) or (value.__class__.__name__ == "device" and isinstance(getattr(value, "type", None), str))


class device:  # noqa: N801 - torch's name
    """A device type and index: ``device("cpu")``, ``device("cuda", 0)``, ``device("cuda:0")``."""

    __slots__ = ("type", "index")
    type: str
    index: int | None

    def __init__(self, type: str | int | device, index: int | None = None) -> None:
        if _names_device(type):
            self.type, self.index = type.type, type.index  # type: ignore[union-attr, assignment]
            return
        if isinstance(type, int):
            self.type, self.index = "cuda", type
            return
        if not isinstance(type, str):
            raise TypeError(f"argument 'device' must be gt.device, a string or a number, not {class_name(type)}")
        name, colon, number = type.partition(":")
        if name not in TYPES or (colon and not number.isdigit()):
            if colon and name in TYPES:
                raise RuntimeError(f"Invalid device string: '{type}'")
            raise RuntimeError(f"Expected one of {', '.join(TYPES)} device type at start of device string: {name}")
        if colon and index is not None:
            raise RuntimeError(f"type (string) must not include an index because index was passed explicitly: {type}")
        self.type, self.index = name, int(number) if colon else index

    def __repr__(self) -> str:
        at = f", index={self.index}" if self.index is not None else ""
        return f"device(type='{self.type}'{at})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            other = device(other)
        return _names_device(other) and (self.type, self.index) == (other.type, other.index)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.type, self.index))


def get_default_device() -> device:
    """Give the CPU: placement is what signals say."""
    return device("cpu")


def set_default_device(device_: Any) -> None:
    """Accept a device and change nothing: placement is what signals say. Errors: RuntimeError for none that torch knows."""
    if device_ is not None:
        device(device_)


class Marker:
    """What memory formats and layouts are: a name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"gt.{self.name}"


class memory_format(Marker):  # noqa: N801 - torch's name
    """The class of memory formats, which change nothing here."""


class layout(Marker):  # noqa: N801 - torch's name
    """The class of layouts: tensors are strided."""


contiguous_format, preserve_format, strided = memory_format("contiguous_format"), memory_format("preserve_format"), layout("strided")
channels_last, channels_last_3d = memory_format("channels_last"), memory_format("channels_last_3d")

FORMAT = memory_format
RANKS = {"channels_last": 4, "channels_last_3d": 5}


def check_memory_format(memory_format: Any, ndim: int) -> None:
    """Refuse what is no memory format, or none for so many dims. Values are the same in any, so it has no effect."""
    if memory_format is None:
        return
    if not isinstance(memory_format, FORMAT):
        raise TypeError(f"argument 'memory_format' must be gt.memory_format, not {type(memory_format).__name__}")
    if ndim != RANKS.get(memory_format.name, ndim):
        raise RuntimeError(f"required rank {RANKS[memory_format.name]} tensor to use {memory_format.name} format")


def check_options(
    name: str,
    device_: Any = None,
    layout: Any = None,
    memory_format: Any = None,
    pin_memory: bool = False,
    out: Any = None,
) -> None:
    """Refuse options that would change the result; the rest is accepted and has no effect."""
    if out is not None:
        raise TypeError(f"{name}(): out= is not offered, values are computed later: assign the result instead")
    if layout is not None and layout is not strided:
        raise RuntimeError(f"{name}(): layout {layout} is not offered: gt has dense tensors only")
    if device_ is not None and not isinstance(device_, device):
        device(device_)


def dtype_among(name: str, args: Iterable[Any]) -> DType | None:
    """Give the dtype that positional arguments name, be it gt's, torch's or NumPy's or a tensor's. The others are devices and flags."""
    found = None
    for a in args:
        if isinstance(a, Handle):
            found = a.dtype
        elif isinstance(a, DType) or (isinstance(a, str) and a in DType.by_name):
            found = dtype_of(a)
        elif a is None or isinstance(a, str | int) or _names_device(a):
            check_options(name, a)
        elif isinstance(a, type | np.dtype) or class_name(a) == "torch.dtype":
            found = dtype_of(a)
        else:
            raise TypeError(f"{name}(): expected a dtype, a device or a gt.Tensor, got {class_name(a)}")
    return found
