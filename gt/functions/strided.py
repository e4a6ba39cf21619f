"""Strided views of the storage in row-major order: diagonals, windows, as_strided; writes over such views; copies of views.

Owns: which of them give views. Next: ``shape`` (the everyday views), ``gt.ir.ops.strided`` (meaning).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.functions import shape as shapes
from gt.functions.arrange import split_with_sizes
from gt.functions.create import arange, zeros
from gt.functions.promote import cast
from gt.functions.shape import clone, ints, narrow, permute, reshape, transpose, unsqueeze
from gt.handle import take_view
from gt.ir.ops import OPS
from gt.ir.types import CallError, DimError, Shape, normalize_dim
from gt.naming import named
from gt.recording import record
from gt.views import COMPLEX, contiguous_strides, offset_of

if TYPE_CHECKING:
    from gt.tensor import Tensor


def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """View the storage by sizes, strides and an offset, as torch does for the same views."""
    if len(size) != len(stride):
        raise CallError("mismatch in length of strides and shape")
    if any(s < 0 for s in stride):
        raise CallError("as_strided: Negative strides are not supported at the moment, got strides: " + str(list(stride)))
    if storage_offset is not None and storage_offset < 0:
        raise CallError(f"Tensor: invalid storage offset {storage_offset}")
    root: Any = input
    while root._base is not None:
        if root._view[0].name in COMPLEX:
            raise CallError(f"as_strided: not of a view that {root._view[0].name} gave: take clone() first")
        root = root._base
    offset = storage_offset if storage_offset is not None else offset_of(input)
    return _strided(root, ints((tuple(size),)), ints((tuple(stride),)), operator.index(offset))


def as_strided_scatter(
    input: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Write ``src`` over the elements that as_strided names; a copy."""
    attrs = (("size", ints((tuple(size),))), ("stride", ints((tuple(stride),))), ("offset", operator.index(storage_offset or 0)))
    return record(OPS["as_strided_scatter"], (input, cast(src, input._type.dtype)), attrs)


def _strided(input: Tensor, size: Shape, stride: tuple[int, ...], offset: int) -> Tensor:
    """View a tensor by strides over its own row-major elements."""
    return take_view(input, OPS["as_strided"], (("size", size), ("stride", stride), ("offset", offset)))


# -- diagonals


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Give a diagonal of two dims, as the last dim. A view."""
    a, b = normalize_dim(dim1, input.ndim), normalize_dim(dim2, input.ndim)
    if a == b:
        raise CallError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    s, steps, offset = input._type.shape, contiguous_strides(input._type.shape), operator.index(offset)
    n = max(min(s[a], s[b] - offset) if offset >= 0 else min(s[a] + offset, s[b]), 0)
    start = (offset * steps[b] if offset >= 0 else -offset * steps[a]) if n else 0
    rest = [d for d in range(input.ndim) if d not in (a, b)]
    return _strided(input, (*(s[d] for d in rest), n), (*(steps[d] for d in rest), steps[a] + steps[b]), start)


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Write ``src`` over a diagonal; a copy."""
    place = diagonal(input.detach(), offset, dim1, dim2)
    if src._type.shape != place._type.shape:
        raise CallError(
            f"expected src to have a size equal to the slice of self. src size = {list(src._type.shape)}, slice size = {list(place._type.shape)}"
        )
    assert place._view is not None
    return record(OPS["as_strided_scatter"], (input, cast(src, input._type.dtype)), place._view[1])


_main_diagonal = diagonal


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """Give the diagonal of a matrix, or a matrix of a diagonal."""
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim != 2:
        raise CallError(f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D")
    return clone(_main_diagonal(input, diagonal))


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Put the last dim on a diagonal of two new dims."""
    n = input.ndim + 1
    a, b = normalize_dim(dim1, n), normalize_dim(dim2, n)
    if a == b:
        raise CallError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    k, offset = input._type.shape[-1], operator.index(offset)
    m = k + abs(offset)
    rows = arange(m)
    on = unsqueeze(rows, 1) + offset == unsqueeze(rows, 0)
    lead = input._type.shape[:-1]
    low = -offset if offset < 0 else 0
    padded = record(
        OPS["pad"], (input,),
        (("low", (*(0,) * len(lead), low)), ("high", (*(0,) * len(lead), m - k - low)), ("interior", (0,) * input.ndim), ("value", 0.0)),
    )  # fmt: skip
    wide = unsqueeze(padded, -1)
    out = record(OPS["where"], (on, wide.expand(*lead, m, m), zeros((), dtype=input.dtype)))
    order = [d for d in range(n) if d not in (a, b)]
    place = {a: n - 2, b: n - 1} | {d: i for i, d in enumerate(order)}
    return permute(out, tuple(place[d] for d in range(n)))


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """Put all elements on a diagonal."""
    return diag_embed(reshape(input, -1), offset)


def trace(input: Tensor) -> Tensor:
    """Add up the diagonal of a matrix."""
    if input.ndim != 2:
        raise CallError("trace: expected a matrix, but got tensor with dim " + str(input.ndim))
    return diagonal(input).sum()


# -- windows and slices


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Give windows of ``size``, ``step`` apart, as a new last dim. A view."""
    size, step = operator.index(size), operator.index(step)
    if step <= 0:
        raise CallError(f"step is {step} but must be > 0")
    if size < 0:
        raise CallError(f"size is {size} but must be >= 0")
    if not input.ndim:
        normalize_dim(dimension, 0)
        if size > 1:
            raise CallError(f"maximum size for tensor at dimension 0 is 1 but size is {size}")
        return _strided(input, (size,), (1,), 0)
    d = normalize_dim(dimension, input.ndim)
    s, steps = input._type.shape, contiguous_strides(input._type.shape)
    if size > s[d]:
        raise CallError(f"maximum size for tensor at dimension {d} is {s[d]} but size is {size}")
    n = (s[d] - size) // step + 1
    return _strided(input, (*s[:d], n, *s[d + 1 :], size), (*steps[:d], steps[d] * step, *steps[d + 1 :], steps[d]), 0)


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """Write ``src`` over one index of ``dim``; a copy."""
    if not input.ndim:
        raise DimError("select() cannot be applied to a 0-dim tensor.")
    d = normalize_dim(dim, input.ndim)
    size = input._type.shape[d]
    if not -size <= index < size:
        raise DimError(f"select(): index {index} out of range for tensor of size {list(input._type.shape)} at dimension {d}")
    at = index % size
    return slice_scatter(input, unsqueeze(src, d), d, at, at + 1)


def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Write ``src`` over a slice of ``dim``; a copy."""
    if not input.ndim:
        raise DimError("slice() cannot be applied to a 0-dim tensor.")
    d = normalize_dim(dim, input.ndim)
    lo, hi, _ = slice(start, end).indices(input._type.shape[d])
    s = input._type.shape
    attrs = (
        ("starts", tuple(lo if i == d else 0 for i in range(len(s)))),
        ("stops", tuple(max(lo, hi) if i == d else n for i, n in enumerate(s))),
        ("steps", tuple(step if i == d else 1 for i in range(len(s)))),
    )
    return record(OPS["slice_scatter"], (input, cast(src, input._type.dtype)), attrs)


# -- copies of views


def _copied(name: str, function: Any) -> Any:
    def copied(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        return tuple(clone(t) for t in out) if isinstance(out, tuple) else clone(out)

    return named(copied, name, f"Do ``{name.removesuffix('_copy')}`` into memory of its own.")


def alias(input: Tensor) -> Tensor:
    """Give a view of the whole tensor."""
    return reshape(input, input._type.shape)


alias_copy, expand_copy = _copied("alias_copy", alias), _copied("expand_copy", shapes.expand)


diagonal_copy, as_strided_copy = _copied("diagonal_copy", diagonal), _copied("as_strided_copy", as_strided)


permute_copy, transpose_copy, t_copy = (
    _copied("permute_copy", permute),
    _copied("transpose_copy", transpose),
    _copied("t_copy", shapes.t),
)


squeeze_copy, unsqueeze_copy = _copied("squeeze_copy", shapes.squeeze), _copied("unsqueeze_copy", unsqueeze)


view_copy, unfold_copy, unbind_copy = (
    _copied("view_copy", shapes.view),
    _copied("unfold_copy", unfold),
    _copied("unbind_copy", shapes.unbind),
)


split_with_sizes_copy, narrow_copy = _copied("split_with_sizes_copy", split_with_sizes), _copied("narrow_copy", narrow)
