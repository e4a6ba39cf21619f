"""Views: which ops give a tensor that shares memory with its operand, how a write goes back, and what strides torch has.

Owns: the view rules. Must not know: handles' state. Next: ``handle`` (which uses them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gt.ir.graph import Attrs
from gt.ir.ops import OPS
from gt.ir.types import Shape
from gt.trace import record

Strides = tuple[int, ...]


@dataclass(frozen=True)
class View:
    """``write(base, value, attrs)``: the base's new value; ``strides(shape, strides, attrs, new shape)``: the view's."""

    write: Callable[[Any, Any, dict[str, Any]], Any]
    strides: Callable[[Shape, Strides, dict[str, Any], Shape], Strides]


@lru_cache(maxsize=1 << 14)
def contiguous_strides(shape: Shape) -> Strides:
    """Give the strides of a row-major layout."""
    out, step = [], 1
    for size in reversed(shape):
        out.append(step)
        step *= max(size, 1)
    return tuple(reversed(out))


def view_strides(tensor: Any) -> Strides:
    """Give the strides that torch would have: row-major unless the tensor is a view."""
    if tensor._base is None:
        return contiguous_strides(tensor._type.shape)
    op, attrs = tensor._view
    base = tensor._base
    return _strides_of(op.name, base._type.shape, view_strides(base), attrs, tensor._type.shape)


@lru_cache(maxsize=1 << 14)
def _strides_of(op: str, base: Shape, strides: Strides, attrs: Attrs, shape: Shape) -> Strides:
    return VIEWS[op].strides(base, strides, dict(attrs), shape)


@lru_cache(maxsize=1 << 14)
def reshape_strides(shape: Shape, strides: Strides, target: Shape) -> Strides | None:
    """Give the strides of a reshape that needs no copy, or None if there are none. Source: ATen computeStride."""
    if 0 in shape:
        return contiguous_strides(target)
    out = [0] * len(target)
    at = len(target) - 1
    chunk_step = strides[-1] if strides else 1
    size = numel = 1
    for d in range(len(shape) - 1, -1, -1):
        size *= shape[d]
        if d == 0 or (shape[d - 1] != 1 and strides[d - 1] != size * chunk_step):
            while at >= 0 and (numel < size or target[at] == 1):
                out[at] = numel * chunk_step
                numel *= target[at]
                at -= 1
            if numel != size:
                return None
            if d:
                chunk_step, size, numel = strides[d - 1], 1, 1
    while at >= 0:
        out[at] = chunk_step
        at -= 1
    return tuple(out)


def _refuse(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    raise RuntimeError(
        "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
        "Please clone() the tensor before performing the operation."
    )


def _write_reshape(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    return record(OPS["reshape"], (value,), (("shape", base._type.shape),))


def _write_permute(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    dims = attrs["dims"]
    return record(OPS["permute"], (value,), (("dims", tuple(dims.index(d) for d in range(len(dims)))),))


def _write_slice(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    return record(OPS["slice_scatter"], (base, value), tuple(attrs.items()))


def _reshaped(shape: Shape, strides: Strides, attrs: dict[str, Any], new: Shape) -> Strides:
    found = reshape_strides(shape, strides, new)
    assert found is not None, "a reshape that needs a copy was recorded as a view"
    return found


def _sliced(shape: Shape, strides: Strides, attrs: dict[str, Any], new: Shape) -> Strides:
    return tuple(s * step for s, step in zip(strides, attrs["steps"], strict=True))


def _expanded(shape: Shape, strides: Strides, attrs: dict[str, Any], new: Shape) -> Strides:
    lead = len(new) - len(shape)
    return (0,) * lead + tuple(
        0 if size == 1 and to != 1 else s for size, s, to in zip(shape, strides, new[lead:], strict=True)
    )


def _write_strided(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    return record(OPS["as_strided_scatter"], (base, value), tuple(attrs.items()))


VIEWS: dict[str, View] = {
    "alias": View(lambda base, value, attrs: value, lambda shape, strides, attrs, new: strides),
    "reshape": View(_write_reshape, _reshaped),
    "permute": View(_write_permute, lambda shape, strides, attrs, new: tuple(strides[d] for d in attrs["dims"])),
    "slice": View(_write_slice, _sliced),
    "expand": View(_refuse, _expanded),
    "as_strided": View(_write_strided, lambda shape, strides, attrs, new: attrs["stride"]),
}
