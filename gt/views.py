"""Views: which ops give a tensor that shares memory with its operand, how a write goes back, and what strides torch has.

Owns: the view rules. Must not know: handles' state. Next: ``handle`` (which uses them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gt.ir.graph import Attrs
from gt.ir.ops import OPS
from gt.ir.ops.strided import positions
from gt.ir.types import Shape
from gt.recording import record

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


def offset_of(tensor: Any) -> int:
    """Give where the first element of a view stands in its storage."""
    if tensor._base is None or tensor._view is None:
        return 0
    op, attrs = tensor._view
    own = offset_of(tensor._base)
    if op.name == "slice":
        starts: Any = dict(attrs)["starts"]
        return own + sum(a * s for a, s in zip(starts, view_strides(tensor._base), strict=True))
    if op.name in ("real", "imag", "view_as_real"):
        return 2 * own + (op.name == "imag")
    if op.name == "view_as_complex":
        return own // 2
    return int(dict(attrs)["offset"]) if op.name == "as_strided" else own


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


def refuse_overlap() -> RuntimeError:
    """Give torch's error for a write to elements that are one element."""
    return RuntimeError(
        "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
        "Please clone() the tensor before performing the operation."
    )


def _refuse(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    raise refuse_overlap()


def _write_reshape(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    return record(OPS["reshape"], (value,), (("shape", base._type.shape),))


def _write_permute(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    dims = attrs["dims"]
    return record(OPS["permute"], (value,), (("dims", tuple(dims.index(d) for d in range(len(dims)))),))


def _write_alias(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    return record(OPS["alias"], (value,))  # an id of its own: gradients of the two are two tensors' gradients


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


def _write_real(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    return record(OPS["complex"], (value, record(OPS["imag"], (base,))))


def _write_imag(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    return record(OPS["complex"], (record(OPS["real"], (base,)), value))


def _write_conj(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    return record(OPS["conj"], (value,))


def _write_pairs(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    return record(OPS["view_as_complex"], (value,))


def _write_of_pairs(base: Any, value: Any, attrs: dict[str, Any]) -> Any:
    return record(OPS["view_as_real"], (value,))


def _of_parts(shape: Shape, strides: Strides, attrs: dict[str, Any], new: Shape) -> Strides:
    return tuple(2 * s for s in strides)  # real and imaginary parts lie in turn


VIEWS: dict[str, View] = {
    "alias": View(_write_alias, lambda shape, strides, attrs, new: strides),
    "reshape": View(_write_reshape, _reshaped),
    "permute": View(_write_permute, lambda shape, strides, attrs, new: tuple(strides[d] for d in attrs["dims"])),
    "slice": View(_write_slice, _sliced),
    "expand": View(_refuse, _expanded),
    "as_strided": View(_write_strided, lambda shape, strides, attrs, new: attrs["stride"]),
    "real": View(_write_real, _of_parts),
    "imag": View(_write_imag, _of_parts),
    "conj": View(_write_conj, lambda shape, strides, attrs, new: strides),
    "view_as_real": View(_write_pairs, lambda shape, strides, attrs, new: (*(2 * s for s in strides), 1)),
    "view_as_complex": View(_write_of_pairs, lambda shape, strides, attrs, new: tuple(s // 2 for s in strides[:-1])),
}
COMPLEX = ("real", "imag", "conj", "view_as_real", "view_as_complex")  # no strides over the base's elements give their values


# -- views whose elements overlap


@dataclass(frozen=True)
class Place:
    """Where the elements of a view stand among the row-major elements of ``of``: at offset + index * stride."""

    of: Any
    size: Shape
    stride: Strides
    offset: int
    through: bool  # gradients pass from a write there to the view, which is not taken of a detached one

    @property
    def attrs(self) -> Attrs:
        return (("size", self.size), ("stride", self.stride), ("offset", self.offset))

    @property
    def overlaps(self) -> bool:
        """Say whether two elements are one."""
        return _overlap(self.size, self.stride)


def place_in_overlap(tensor: Any) -> Place | None:
    """Give the place of a view in what a view with overlapping elements, itself or above it, was taken of; None if there is none.

    A write to it goes there directly: written back by way of the overlapping view, elements beside it would be written too.
    """
    above, t = None, tensor
    while t._base is not None:
        if _repeats(t):
            above = t
        t = t._base
    if above is None:
        return None
    chain, t = [above], tensor
    while t is not above:
        chain.insert(1, t)
        t = t._base
    base = above._base
    size, stride, offset, through = base._type.shape, contiguous_strides(base._type.shape), 0, True
    for t in chain:
        op, attrs = t._view
        through = through and op.name != "alias"
        found = _step(op.name, size, stride, offset, attrs, t._type.shape)
        if found is None:
            if _overlap(tensor._type.shape, view_strides(tensor)):
                raise refuse_overlap()
            raise RuntimeError(
                f"a write to a view of overlapping elements: a {op.name} of them has no strides of its own. "
                "Please clone() the tensor before performing the operation."
            )
        size, (stride, offset) = t._type.shape, found
    return Place(base, size, stride, offset, through)


def check_separate(tensor: Any) -> None:
    """Refuse to compute in place on a view two of whose elements are one. Errors: RuntimeError, torch's where it refuses too."""
    if tensor._base is not None and (place := place_in_overlap(tensor)) is not None and place.overlaps:
        raise refuse_overlap()


def _repeats(view: Any) -> bool:
    op, attrs = view._view
    if op.name == "as_strided":
        given = dict(attrs)
        return _overlap(given["size"], given["stride"])
    return bool(op.name == "expand")


@lru_cache(maxsize=1 << 12)
def _overlap(size: Shape, stride: Strides) -> bool:
    reach = 0
    if 0 in size:
        return False
    for step, n in sorted((s, n) for n, s in zip(size, stride, strict=True) if n > 1):
        if step <= reach:  # rows may still interleave
            at = positions(size, stride, 0)
            return bool(np.unique(at).size < at.size)
        reach += (n - 1) * step
    return False


@lru_cache(maxsize=1 << 12)
def _step(op: str, size: Shape, stride: Strides, offset: int, attrs: Attrs, new: Shape) -> tuple[Strides, int] | None:
    """Give strides and offset of a view of a place, or None if it has none."""
    given: dict[str, Any] = dict(attrs)
    if op == "slice":
        offset += sum(a * s for a, s in zip(given["starts"], stride, strict=True))
    elif op == "reshape":
        found = reshape_strides(size, stride, new)
        return None if found is None else (found, offset)
    elif op in COMPLEX:
        return None
    elif op == "as_strided":
        return _strides_in(size, stride, offset, given)
    return VIEWS[op].strides(size, stride, given, new), offset


def _strides_in(size: Shape, stride: Strides, offset: int, given: dict[str, Any]) -> tuple[Strides, int] | None:
    """Give strides over row-major elements as strides over what these are a view of: a step of one is a step along some dims."""

    def digits(step: int) -> list[int]:
        out = []
        for s in contiguous_strides(size):
            out.append(step // s)
            step %= s
        return out

    start, steps = digits(given["offset"]), [digits(s) for s in given["stride"]]
    for d, n in enumerate(size):
        if start[d] + sum((m - 1) * step[d] for m, step in zip(given["size"], steps, strict=True)) >= max(n, 1):
            return None

    def along(step: list[int]) -> int:
        return sum(a * s for a, s in zip(step, stride, strict=True))

    return tuple(along(step) for step in steps), offset + along(start)
