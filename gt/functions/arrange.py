"""Arranging: stacking and splitting in NumPy's ways, turning, grids.

Next: ``shape`` (the everyday shape functions), ``strided`` (diagonals, windows).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.functions import shape as shapes
from gt.functions.create import arange, tensor, zeros
from gt.functions.promote import cast, need_tensor, refuse, refuse_torch, result_dtype
from gt.functions.shape import cat, clone, flip, reshape, slice_dim, split, stack, transpose, unsqueeze
from gt.handle import Handle
from gt.ir.blame import warn_user
from gt.ir.ops import OPS
from gt.ir.types import CallError, KindError, class_name, dtype_of, int32, int64, is_int, normalize_dim, scalar_type
from gt.ir.types import broadcast_shapes as fit_shapes
from gt.naming import named
from gt.recording import record
from gt.shape import Size
from gt.versions import saves
from gt.views import contiguous_strides

if TYPE_CHECKING:
    from gt.tensor import Tensor

# -- stacking


def _tensors(tensors: Any) -> list[Any]:
    return list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else list(tensors)


def _at_least(tensors: tuple[Any, ...], make: Any) -> Any:
    given = _tensors(tensors)
    refuse_torch("atleast", *given)
    made = tuple(map(make, given))
    return made[0] if len(tensors) == 1 and isinstance(tensors[0], Handle) else made


def atleast_1d(*tensors: Tensor) -> Any:
    """Give tensors of one dim or more."""
    return _at_least(tensors, lambda t: reshape(t, 1) if not t.ndim else t)


def atleast_2d(*tensors: Tensor) -> Any:
    """Give tensors of two dims or more: a vector is a row."""
    return _at_least(tensors, lambda t: reshape(t, 1, 1) if not t.ndim else unsqueeze(t, 0) if t.ndim == 1 else t)


def atleast_3d(*tensors: Tensor) -> Any:
    """Give tensors of three dims or more: [n] becomes [1, n, 1], [m, n] becomes [m, n, 1]."""

    def make(t: Any) -> Any:
        if not t.ndim:
            return reshape(t, 1, 1, 1)
        return reshape(t, 1, -1, 1) if t.ndim == 1 else unsqueeze(t, -1) if t.ndim == 2 else t

    return _at_least(tensors, make)


def _nonempty(name: str, tensors: Any) -> list[Any]:
    given = list(tensors)
    if not given:
        raise CallError(f"{name} expects a non-empty TensorList")
    return given


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join side by side."""
    parts = list(atleast_1d(_nonempty("hstack", tensors)))
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join one below the other."""
    return cat(list(atleast_2d(_nonempty("vstack", tensors))), 0)


row_stack = vstack


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join along the third dim."""
    return cat(list(atleast_3d(_nonempty("dstack", tensors))), 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Join as columns; a vector is one column."""
    return hstack([reshape(t, (t.numel(), 1)) if t.ndim <= 1 else t for t in _nonempty("column_stack", tensors)])


def block_diag(*tensors: Tensor) -> Tensor:
    """Put matrices along the diagonal of zeros."""
    blocks = [t if t.ndim == 2 else reshape(t, 1, -1) for t in _check_blocks(tensors)]
    dtype = result_dtype([t._type for t in blocks])
    width = sum(t._type.shape[1] for t in blocks)
    rows, column = [], 0
    for t in blocks:
        w = t._type.shape[1]
        low, high = (0, column), (0, width - column - w)
        rows.append(
            record(OPS["pad"], (cast(t, dtype),), (("low", low), ("high", high), ("interior", (0, 0)), ("value", 0.0)))
        )
        column += w
    return cat(rows, 0)


def _check_blocks(tensors: tuple[Any, ...]) -> list[Any]:
    for i, t in enumerate(tensors):
        if t.ndim > 2:
            raise CallError(
                f"torch.block_diag: Input tensors must have 2 or fewer dimensions. Input {i} has {t.ndim} dimensions"
            )
    return list(tensors) or [zeros(1, 0)]


# -- splitting


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Cut into n parts of nearly equal size, or at the given indices. Views."""
    if not input.ndim:
        raise CallError("tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims")
    d = normalize_dim(dim, input.ndim)
    if isinstance(indices_or_sections, Handle):
        if indices_or_sections.dtype is not int64 or indices_or_sections.ndim > 1:
            raise CallError(
                "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or one-dimensional tensor of long"
            )
        indices_or_sections = indices_or_sections.tolist()
    refuse_torch("tensor_split", indices_or_sections)
    size = input._type.shape[d]
    if is_int(indices_or_sections):
        n = operator.index(indices_or_sections)
        if n <= 0:
            raise CallError(f"number of sections must be larger than 0, got {n}")
        base, extra = divmod(size, n)
        return split(input, [base + (i < extra) for i in range(n)], d)
    if not all(hasattr(i, "__index__") for i in indices_or_sections):
        raise TypeError(f"tensor_split() received an invalid combination of arguments. - expected indices, got {indices_or_sections!r}")
    edges = [0, *(min(max(i + size if i < 0 else i, 0), size) for i in map(int, indices_or_sections)), size]
    return tuple(slice_dim(input, d, a, max(a, b)) for a, b in itertools.pairwise(edges))


def _numpy_split(name: str, least: int, dim: int) -> Any:
    def function(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
        if input.ndim < least:
            raise CallError(
                f"torch.{name} requires a tensor with at least {least} dimension, but got a tensor with {input.ndim} dimensions!"
            )
        d = 0 if name == "hsplit" and input.ndim == 1 else dim
        if is_int(indices_or_sections) and (
            indices_or_sections <= 0 or input._type.shape[d] % indices_or_sections
        ):
            raise CallError(
                f"torch.{name} attempted to split along dimension {d}, but the size of the dimension {input._type.shape[d]} is not "
                f"divisible by the split_size {indices_or_sections}!"
            )
        return tensor_split(input, indices_or_sections, d)

    return named(function, name, f"Cut along dim {dim}. Views.")


hsplit, vsplit, dsplit = _numpy_split("hsplit", 1, 1), _numpy_split("vsplit", 2, 0), _numpy_split("dsplit", 3, 2)


def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Cut into pieces of the given sizes. Views."""
    return split(input, list(split_sizes), dim)


def unsafe_split(input: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Cut into pieces that do not share memory."""
    return tuple(clone(t) for t in split(input, split_size, dim))


def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Cut into pieces that do not share memory."""
    return tuple(clone(t) for t in shapes.chunk(input, chunks, dim))


def repeat_interleave(
    input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Repeat each element along ``dim`` (of the flattened tensor if None). A tensor of counts is read: a flush."""
    if repeats is None:
        return repeat_interleave(arange(input.numel(), dtype=int32 if input.dtype is int32 else int64), input)
    if class_name(repeats) == "torch.Tensor":
        raise refuse("repeat_interleave", repeats, "'repeats'")
    if isinstance(repeats, Handle):
        flat, d = (reshape(input, -1), 0) if dim is None else (input, normalize_dim(dim, input.ndim))
        return _repeat_counts(flat, repeats, d)
    if dim is None:
        input, dim = reshape(input, -1), 0
    if repeats < 0:
        raise CallError("Repeats must be non-negative")
    d = normalize_dim(dim, input.ndim)
    s = input._type.shape
    wide = shapes.expand(unsqueeze(input, d + 1), (*s[: d + 1], repeats, *s[d + 1 :]))
    return record(OPS["reshape"], (wide,), (("shape", (*s[:d], s[d] * repeats, *s[d + 1 :])),))


def _repeat_counts(input: Tensor, repeats: Tensor, dim: int) -> Tensor:
    """Repeat the i-th slice of ``dim`` as often as the i-th count says."""
    size = input._type.shape[dim] if input.ndim else 1
    if repeats.dtype not in (int32, int64):
        raise KindError("repeats has to be Long or Int tensor")
    if repeats.ndim > 1:
        raise CallError("repeat_interleave only accept 1D vector as repeat")
    counts = reshape(repeats, -1).tolist()
    if len(counts) not in (1, size):
        raise CallError(
            f"repeats must have the same size as input along dim, but got repeats.size(0) = {len(counts)} and input.size({dim}) = {size}"
        )
    if any(n < 0 for n in counts):
        raise CallError("repeats can not be negative")
    if len(counts) == 1:
        return repeat_interleave(input, counts[0], dim)
    picked = [i for i, n in enumerate(counts) for _ in range(n)]
    index = tensor(picked, dtype=int64)
    return record(OPS["index_select"], (input, index), (("dim", dim),))


# -- turning


def fliplr(input: Tensor) -> Tensor:
    """Reverse the columns."""
    if input.ndim < 2:
        raise CallError("Input must be >= 2-d.")
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """Reverse the rows."""
    if input.ndim < 1:
        raise CallError("Input must be >= 1-d.")
    return flip(input, 0)


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turn by 90 degrees ``k`` times in the plane of two dims."""
    if len(dims) != 2:
        raise CallError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    if input.ndim < 2:
        raise CallError(f"expected total dims >= 2, but got total dims = {input.ndim}")
    if dims[0] == dims[1] or abs(dims[0] - dims[1]) == input.ndim:
        raise CallError(f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}")
    for d in dims:
        if not -input.ndim <= d < input.ndim:
            raise CallError(f"Rotation dim{list(dims).index(d)} out of range, dim{list(dims).index(d)} = {d}")
    a, b = (normalize_dim(d, input.ndim) for d in dims)
    turns = k % 4
    if turns == 1:
        return transpose(flip(input, b), a, b)
    if turns == 2:
        return flip(input, a, b)
    return flip(transpose(input, a, b), b) if turns == 3 else clone(input)


# -- grids and products


def meshgrid(*tensors: Tensor, indexing: str | None = None) -> tuple[Tensor, ...]:
    """Give coordinates of a grid; indexing: "ij" (the default, with a warning) or "xy"."""
    if indexing is None:
        warn_user("gt.meshgrid: in an upcoming release, it will be required to pass the indexing argument.")
    given = _tensors(tensors)
    if not given:
        raise CallError("meshgrid expects a non-empty TensorList")
    if indexing not in (None, "ij", "xy"):
        raise CallError(f'torch.meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    if any(t.ndim > 1 for t in given):
        raise CallError(
            "torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: " + str([t.ndim for t in given])
        )
    if any(t.dtype is not given[0].dtype for t in given):
        raise CallError("meshgrid expects all tensors to have the same dtype")
    swap = indexing == "xy" and len(given) >= 2
    if swap:
        given[0], given[1] = given[1], given[0]
    sizes = tuple(t.numel() for t in given)
    out = [reshape(t, tuple(-1 if i == d else 1 for i in range(len(given)))).expand(sizes) for d, t in enumerate(given)]
    if swap:
        out[0], out[1] = out[1], out[0]
    return tuple(out)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """Give all combinations of elements, one a row."""
    given = _tensors(tensors)
    if any(t.ndim != 1 for t in given):
        raise CallError("Expect a 1D vector, but got shape " + str(list(given[0]._type.shape)))
    if len(given) == 1:
        return given[0]
    return stack([reshape(t, -1) for t in meshgrid(*given, indexing="ij")], 1)


@saves("input")
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Give the combinations of ``r`` elements, one a row."""
    if input.ndim != 1:
        raise CallError("Expect a 1D vector, but got shape " + str(list(input._type.shape)))
    if r < 0:
        raise CallError(f"Expect a non-negative number, but got {r}")
    if r == 0:
        return zeros(0, dtype=input.dtype)
    pick = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(pick(range(input.numel()), r))
    if not rows:
        return zeros((0, r), dtype=input.dtype)
    return reshape(input[tensor(rows).reshape(-1)], (len(rows), r))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Give the Kronecker product."""
    need_tensor("kron", input=input, other=other)
    n = max(input.ndim, other.ndim)
    a, b = ((1,) * (n - t.ndim) + t._type.shape for t in (input, other))
    left = reshape(input, tuple(x for size in a for x in (size, 1)))
    right = reshape(other, tuple(x for size in b for x in (1, size)))
    return reshape(left * right, tuple(x * y for x, y in zip(a, b, strict=True)))


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = int64, device: Any = None, layout: Any = None
) -> Tensor:
    """Give the positions of the lower triangle: [2, n]."""
    return _triangle(row, col, lambda i, j: j - i <= offset, dtype, "tril_indices")


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = int64, device: Any = None, layout: Any = None
) -> Tensor:
    """Give the positions of the upper triangle: [2, n]."""
    return _triangle(row, col, lambda i, j: j - i >= offset, dtype, "triu_indices")


def _triangle(row: int, col: int, inside: Any, dtype: Any, name: str) -> Tensor:
    if dtype_of(dtype) not in (int32, int64):
        raise KindError(f"\"{name}\" not implemented for '{scalar_type(dtype_of(dtype))}': use int32 or int64")
    for which, size in (("row", row), ("col", col)):
        if size < 0:
            raise CallError(f"{which} must be non-negative, got{size}")
    pairs = [(i, j) for i in range(row) for j in range(col) if inside(i, j)]
    return tensor([[i for i, _ in pairs], [j for _, j in pairs]], dtype=dtype) if pairs else zeros((2, 0), dtype=dtype)


def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Turn positions in the flattened tensor into one tensor for each dim."""
    if indices.dtype.kind not in "ui":
        raise TypeError(f"expected 'indices' to be integer dtype, but got {indices.dtype!r}")
    if not isinstance(shape, int | Sequence):
        raise TypeError(f"expected 'shape' to be int or sequence of ints, but got {type(shape)}")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    for size in sizes:
        if not isinstance(size, int):
            raise TypeError(f"expected 'shape' sequence to only contain ints, but got {type(size)}")
    if any(size < 0 for size in sizes):
        raise ValueError(f"'shape' cannot have negative values, but got {sizes}")
    out, rest = [], cast(indices, int64)
    for step, size in zip(contiguous_strides(sizes), sizes, strict=True):
        out.append(rest // step % size)
    return tuple(out)


def broadcast_shapes(*shapes: Any) -> Any:
    """Give the shape that all broadcast to."""
    for s in shapes:
        if not isinstance(s, int | tuple | list):
            raise CallError(f"Input shapes should be of type ints, a tuple of ints, or a list of ints, got {s}")
    from_sizes = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    if any(n < 0 for s in from_sizes for n in s):
        raise ValueError("Attempting to broadcast a dimension with negative length!")
    try:
        return Size(fit_shapes(*from_sizes))
    except RuntimeError:
        raise CallError("Shape mismatch: objects cannot be broadcast to a single shape") from None


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """Add up broadcast dims down to a size."""
    target = shapes.ints(size)
    s = input._type.shape
    lead = len(s) - len(target)
    if lead < 0 or any(t not in (1, n) for t, n in zip(target, s[lead:], strict=True)):
        raise CallError(f"size {{{list(target)}}} is not expandable to size {{{list(s)}}}.")
    dims = tuple(d for d in range(len(s)) if d < lead or (target[d - lead] == 1 and s[d] != 1))
    out = input.sum(dims) if dims or input.dtype.kind == "b" else input
    return reshape(out, target)
