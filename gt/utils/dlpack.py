"""``gt.utils.dlpack``: tensors from other libraries and for them. The data is copied both ways."""

from typing import Any

from gt.functions.create import from_dlpack
from gt.tensor import Tensor


def to_dlpack(tensor: Tensor) -> Any:
    """Give a DLPack capsule of a tensor's values."""
    return tensor.__dlpack__()


__all__ = ["from_dlpack", "to_dlpack"]
