"""Shape functions with torch's names and arguments.

Owns: which of them give views. Next: ``gt.views`` (view rules), ``gt.ir.ops.movement`` (meaning).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gt.devices import check_memory_format
from gt.functions.promote import cast
from gt.handle import Handle, take_view
from gt.ir.blame import warn_user
from gt.ir.graph import Attrs
from gt.ir.ops import OPS
from gt.ir.types import CallError, DimError, Shape, ShapeError, check_sizes, is_int, normalize_dim, result_type, scalar_type
from gt.recording import record
from gt.views import reshape_strides, view_strides

if TYPE_CHECKING:
    from gt.tensor import Tensor

RESHAPE, PERMUTE, EXPAND, SLICE = OPS["reshape"], OPS["permute"], OPS["expand"], OPS["slice"]


def ints(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Take ``f(2, 3)`` and ``f((2, 3))`` alike."""
    if len(args) == 1 and (isinstance(args[0], tuple | list) or not hasattr(args[0], "__index__")):
        if not hasattr(args[0], "__iter__"):
            raise TypeError(f"expected sizes and dims to be ints, got {type(args[0]).__name__}")
        args = tuple(args[0])
    for a in args:
        if a.__class__ is not int:
            break
    else:
        return args
    try:
        return tuple([a.__index__() for a in args])
    except AttributeError:
        bad = next(a for a in args if not hasattr(a, "__index__"))
        raise TypeError(f"expected sizes and dims to be ints, got {type(bad).__name__} in {args}") from None


@lru_cache(maxsize=1 << 14)
def infer_shape(shape: Shape, numel: int) -> Shape:
    """Replace a -1 by the size that fits."""
    for at, size in enumerate(shape):
        if size < -1:
            raise CallError(f"invalid shape dimension {size} at index {at} of shape {list(shape)}")
    if -1 not in shape:
        if math.prod(shape) != numel:
            raise ShapeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
        return shape
    known = -math.prod(shape)
    if shape.count(-1) > 1:
        raise CallError("only one dimension can be inferred")
    if known == 0:
        if numel:
            raise ShapeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
        raise CallError(
            f"cannot reshape tensor of 0 elements into shape {list(shape)} because the unspecified dimension size -1 can be any value and is ambiguous"
        )
    if numel % known:
        raise ShapeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
    return tuple(numel // known if s == -1 else s for s in shape)


def reshape(input: Tensor, *args: Any, shape: Any = None) -> Tensor:
    """Give the elements in another shape of the same size; a view where torch gives one."""
    target = infer_shape(ints(args if shape is None else (shape,)), input._type.numel)
    attrs = (("shape", target),)
    if input._base is not None and reshape_strides(input._type.shape, view_strides(input), target) is None:
        out = record(RESHAPE, (input,), attrs)
        out._trace.moved[out._index] = None
        return out
    return take_view(input, RESHAPE, attrs)


def view(input: Tensor, *shape: Any, size: Any = None) -> Tensor:
    """Give the elements in another shape, sharing memory. Errors: RuntimeError if that needs a copy."""
    if size is not None:
        shape = (size,)
    if len(shape) == 1 and not isinstance(shape[0], int | tuple | list) and not hasattr(shape[0], "__index__"):
        raise NotImplementedError("view(dtype) is not supported: it depends on how elements lie in memory")
    target = infer_shape(ints(shape), input.numel())
    if input._base is not None and reshape_strides(input._type.shape, view_strides(input), target) is None:
        raise CallError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous "
            "subspaces). Use .reshape(...) instead."
        )
    return take_view(input, RESHAPE, (("shape", target),))


def view_as(input: Tensor, other: Tensor) -> Tensor:
    return view(input, other._type.shape)


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    return reshape(input, other._type.shape)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merge dims ``start_dim`` to ``end_dim`` into one."""
    if not input.ndim:
        return reshape(input, 1)
    a, b = normalize_dim(start_dim, input.ndim), normalize_dim(end_dim, input.ndim)
    if a > b:
        raise CallError("flatten() has invalid args: start_dim cannot come after end_dim")
    if a == b:
        return input
    s = input._type.shape
    return reshape(input, (*s[:a], math.prod(s[a : b + 1]), *s[b + 1 :]))


def ravel(input: Tensor) -> Tensor:
    """Give all elements in one dim."""
    return reshape(input, -1)


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Split dim ``dim`` into several."""
    d = has_dim(dim, input)
    s = input._type.shape
    try:
        split = infer_shape(ints((tuple(sizes),)), s[d])
    except ShapeError:
        raise ShapeError(
            f"unflatten: Provided sizes {list(sizes)} don't multiply up to the size of dim {d} ({s[d]}) in the input tensor"
        ) from None
    return reshape(input, (*s[:d], *split, *s[d + 1 :]))


def permute(input: Tensor, *args: Any, dims: Any = None) -> Tensor:
    """Reorder the dims. A view."""
    order = ints(args if dims is None else (dims,))
    if len(order) != input.ndim:
        raise CallError(
            f"permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired ordering of "
            f"dimensions i.e. input.dim() = {input.ndim} is not equal to len(dims) = {len(order)}"
        )
    order = tuple(normalize_dim(d, input.ndim) for d in order)
    if len(set(order)) != len(order):
        raise CallError("permute(): duplicate dims are not allowed.")
    return take_view(input, PERMUTE, (("dims", order),))


def same(input: Tensor) -> Tensor:
    """Give a view of all elements as they are, through which gradients pass."""
    return take_view(input, PERMUTE, (("dims", tuple(range(input.ndim))),))


def transpose(input: Tensor, dim0: int | None = None, dim1: int | None = None) -> Tensor:
    """Exchange two dims. A view. Without dims the last two, as in gt before it was rewritten, with a warning."""
    n = input.ndim
    if dim0 is None and dim1 is None and n > 1:
        warn_user("transpose() without dims is x.mT now: use that")
        dim0, dim1 = -2, -1
    if dim0 is None or dim1 is None:
        missing = " and ".join(f"'{name}'" for name, dim in (("dim0", dim0), ("dim1", dim1)) if dim is None)
        raise TypeError(f"transpose() missing required arguments: {missing}")
    if not n:
        normalize_dim(dim0, n), normalize_dim(dim1, n)
        return same(input)
    return take_view(input, PERMUTE, _exchange(n, operator.index(dim0), operator.index(dim1)))


@lru_cache(maxsize=1 << 12)
def _exchange(ndim: int, dim0: int, dim1: int) -> Attrs:
    a, b = normalize_dim(dim0, ndim), normalize_dim(dim1, ndim)
    order = list(range(ndim))
    order[a], order[b] = b, a
    return (("dims", tuple(order)),)


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """Exchange two dims. A view."""
    return transpose(input, axis0, axis1)


swapdims = transpose


def t(input: Tensor) -> Tensor:
    """Transpose a matrix. A view."""
    if input.ndim > 2:
        raise CallError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return transpose(input, 0, 1) if input.ndim == 2 else same(input)


def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Move dims to other places, keeping the order of the rest. A view."""
    given = [[v] if is_int(v) else list(v) for v in (source, destination)]
    if len(given[0]) != len(given[1]):
        raise CallError(
            f"movedim: Invalid source or destination dims: source ({given[0]} dims) should contain the same number of dims as "
            f"destination ({given[1]} dims)"
        )
    src, dst = ([normalize_dim(d, input.ndim) for d in v] for v in given)
    for name, raw, dims in (("source", given[0], src), ("destination", given[1], dst)):
        if len(set(dims)) != len(dims):
            raise CallError(f"movedim: repeated dim in `{name}` ({raw})")
    if not input.ndim:
        return same(input)
    order: list[int] = [-1] * input.ndim
    for s, d in zip(src, dst, strict=True):
        order[d] = s
    rest = iter(d for d in range(input.ndim) if d not in src)
    return permute(input, tuple(d if d >= 0 else next(rest) for d in order))


moveaxis = movedim


def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Drop dims of size 1: all, or those named that have it. A view."""
    s = input._type.shape
    if dim is None:
        chosen = set(range(len(s)))
    else:
        chosen = {normalize_dim(d, len(s)) for d in ([dim] if is_int(dim) else dim)}
    return take_view(input, RESHAPE, (("shape", tuple(n for d, n in enumerate(s) if n != 1 or d not in chosen)),))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """Add a dim of size 1. A view."""
    d = normalize_dim(dim, input.ndim + 1)
    s = input._type.shape
    return take_view(input, RESHAPE, (("shape", (*s[:d], 1, *s[d:])),))


def expand(input: Tensor, *sizes: Any, size: Any = None, implicit: bool = False) -> Tensor:
    """Repeat size-1 dims without copying; -1 keeps a size. A view."""
    target, s = ints(sizes if size is None else (size,)), input._type.shape
    if len(target) < len(s):
        raise CallError(
            f"expand(gt.{scalar_type(input.dtype)}Tensor{{{list(s)}}}, size={list(target)}): the number of sizes provided ({len(target)}) must be "
            f"greater or equal to the number of dimensions in the tensor ({len(s)})"
        )
    lead = len(target) - len(s)
    out = []
    for d, wanted in enumerate(target):
        own = s[d - lead] if d >= lead else None
        if wanted == -1:
            if own is None:
                raise CallError(
                    f"The expanded size of the tensor (-1) isn't allowed in a leading, non-existing dimension {d}"
                )
            wanted = own
        elif own is not None and own not in (1, wanted):
            raise ShapeError(
                f"The expanded size of the tensor ({wanted}) must match the existing size ({own}) at non-singleton dimension {d}.  "
                f"Target sizes: {list(target)}.  Tensor sizes: {list(s)}"
            )
        out.append(wanted)
    if out == [1] * lead + list(s):  # nothing is repeated, so it can be written to
        return take_view(input, RESHAPE, (("shape", tuple(out)),))
    return take_view(input, EXPAND, (("shape", tuple(out)),))


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    return expand(input, other._type.shape)


def broadcast_to(input: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    """Give a view of ``input`` repeated to a size."""
    return expand(input, ints(sizes if size is None else (size,)))


def repeat(input: Tensor, *sizes: Any, repeats: Any = None) -> Tensor:
    """Tile: repeat the whole tensor along each dim."""
    times = ints(sizes if repeats is None else (repeats,))
    if len(times) < input.ndim:
        raise CallError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    s = (1,) * (len(times) - input.ndim) + input._type.shape
    whole = tuple(n * k for n, k in zip(s, times, strict=True))
    check_sizes(whole)
    apart = reshape(input, tuple(x for n in s for x in (1, n)))
    wide = expand(apart, tuple(x for n, k in zip(s, times, strict=True) for x in (k, n)))
    return record(RESHAPE, (wide,), (("shape", whole),))


def tile(input: Tensor, *args: Any, dims: Any = None) -> Tensor:
    """Repeat as numpy.tile."""
    times = ints(args if dims is None else (dims,))
    return repeat(input, (1,) * (input.ndim - len(times)) + times)


# -- joining and splitting


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Join along ``dim``; dtypes promote. Empty 1-d tensors are skipped, as torch does."""
    if isinstance(tensors, Handle):
        raise TypeError("cat(): argument 'tensors' (position 1) must be tuple of Tensors, not Tensor")
    if not len(tensors):
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    dtype = result_type([t._type for t in tensors])
    kept = [t for t in tensors if t._type.shape != (0,)] or [tensors[0]]
    first = kept[0]
    if not first.ndim:
        raise CallError("zero-dimensional tensor (at position 0) cannot be concatenated")
    d = normalize_dim(dim if axis is None else axis, first.ndim)
    for i, other in enumerate(kept):
        if other.ndim != first.ndim:
            raise CallError(f"Tensors must have same number of dimensions: got {first.ndim} and {other.ndim}")
        for k, (a, b) in enumerate(zip(first._type.shape, other._type.shape, strict=True)):
            if k != d and a != b:
                raise ShapeError(
                    f"Sizes of tensors must match except in dimension {d}. Expected size {a} but got size {b} for tensor number {i} in the list."
                )
    if len(kept) == 1:
        return record(OPS["copy"], (cast(kept[0], dtype),))
    return record(OPS["cat"], tuple([cast(t, dtype) for t in kept]), (("dim", d),))


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join along a new dim."""
    if not len(tensors):
        raise CallError("stack expects a non-empty TensorList")
    first = tensors[0]._type.shape
    for i, other in enumerate(tensors):
        if other._type.shape != first:
            raise ShapeError(
                f"stack expects each tensor to be equal size, but got {list(first)} at entry 0 and {list(other._type.shape)} at entry {i}"
            )
    d = normalize_dim(dim, len(first) + 1)
    return cat([unsqueeze(x, d) for x in tensors], d)


def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Give ``length`` elements of ``dim`` from ``start`` on. A view."""
    if not input.ndim:
        raise CallError("narrow() cannot be applied to a 0-dim tensor.")
    d = normalize_dim(dim, input.ndim)
    size = input._type.shape[d]
    if isinstance(start, Handle) and (start.ndim or start.dtype.kind not in "ui"):
        raise CallError("start must be an 0-dim integral Tensor.")
    if not hasattr(start, "__index__"):
        raise TypeError(f"narrow(): argument 'start' (position 3) must be int, not {type(start).__name__}")
    start = start.__index__()
    if start < 0:
        start += size
    length = operator.index(length)
    if length < 0:
        raise CallError("narrow(): length must be non-negative.")
    if start < 0 or start + length > size:
        raise CallError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return slice_dim(input, d, start, start + length)


def slice_dim(input: Tensor, dim: int, start: int, stop: int, step: int = 1) -> Tensor:
    """Cut one dim; bounds are in range. A view."""
    return take_view(input, SLICE, _slice_attrs(input._type.shape, dim, start, stop, step))


@lru_cache(maxsize=1 << 14)
def _slice_attrs(shape: Shape, dim: int, start: int, stop: int, step: int) -> Attrs:
    starts = tuple(start if d == dim else 0 for d in range(len(shape)))
    stops = tuple(stop if d == dim else n for d, n in enumerate(shape))
    steps = tuple(step if d == dim else 1 for d in range(len(shape)))
    return ("starts", starts), ("stops", stops), ("steps", steps)


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """Give one index of ``dim``, dropping the dim. A view."""
    if not input.ndim:
        raise DimError("select() cannot be applied to a 0-dim tensor.")
    d = normalize_dim(dim, input.ndim)
    size = input._type.shape[d]
    if index.__class__ is not int:  # a 0-d tensor is read, once
        index = operator.index(index)
    if not -size <= index < size:
        raise DimError(
            f"select(): index {index} out of range for tensor of size {list(input._type.shape)} at dimension {d}"
        )
    index %= size
    return squeeze(slice_dim(input, d, index, index + 1), d)


def split(tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Cut into pieces of one size (the last may be smaller) or of the given sizes. Views."""
    input = tensor
    d = normalize_dim(dim, input.ndim)
    if not input.ndim:
        raise CallError("split expects at least a 1-dimensional tensor")
    size = input._type.shape[d]
    if is_int(split_size_or_sections):
        step = operator.index(split_size_or_sections)
        if step < 0 or (step == 0 and size):
            raise CallError(f"split expects split_size be non-negative, but got split_size={step}")
        sizes = tuple([min(step, size - at) for at in range(0, size, step)]) if size else (0,)
    else:
        sizes = tuple([int(n) for n in split_size_or_sections])
        if any([n < 0 for n in sizes]):
            raise CallError(f"split_with_sizes expects split_sizes have only non-negative entries, but got split_sizes={list(sizes)}")
        if sum(sizes) != size:
            raise CallError(
                f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size at dimension {d}), "
                f"but got split_sizes={list(sizes)}"
            )
    return tuple([record(SLICE, (input,), attrs, view=True) for attrs in _split_attrs(input._type.shape, d, sizes)])


@lru_cache(maxsize=1 << 12)
def _split_attrs(shape: Shape, dim: int, sizes: tuple[int, ...]) -> tuple[Attrs, ...]:
    ends = tuple(itertools.accumulate(sizes))
    return tuple(_slice_attrs(shape, dim, end - size, end, 1) for end, size in zip(ends, sizes, strict=True))


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Cut into at most ``chunks`` pieces of equal size (the last may be smaller). Views."""
    if chunks < 1:
        raise CallError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    if not input.ndim:
        raise CallError("chunk expects at least a 1-dimensional tensor")
    size = input._type.shape[normalize_dim(dim, input.ndim)]
    if not size:
        return tuple(split(input, [0] * chunks, dim))
    return split(input, -(-size // chunks), dim)


def has_dim(dim: int, input: Tensor) -> int:
    """Map a possibly negative dim to its number. Errors: DimError, also for a tensor without dims."""
    d = normalize_dim(dim, input.ndim)
    if not input.ndim:
        raise DimError(f"Dimension specified as {dim} but tensor has no dimensions")
    return d


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Give each index of ``dim`` as a tensor. Views."""
    d = has_dim(dim, input)
    return tuple(select(input, d, i) for i in range(input._type.shape[d]))


def flip(input: Tensor, *args: Any, dims: Any = None) -> Tensor:
    """Reverse the order along dims."""
    given = [normalize_dim(d, input.ndim) for d in ints(args if dims is None else (dims,))]
    for d in given:
        if given.count(d) > 1:
            raise CallError(f"dim {d} appears multiple times in the list of dims")
    if not input.ndim:
        return clone(input)
    return record(OPS["flip"], (input,), (("dims", tuple(sorted(given))),))


def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Shift along dims, wrapping around (over the flattened tensor if ``dims`` is None)."""
    by = (shifts,) if is_int(shifts) else tuple(shifts)
    if dims is None:
        flat = roll(reshape(input, -1), by, (0,))
        return reshape(flat, input._type.shape)
    along = (dims,) if is_int(dims) else tuple(dims)
    if len(by) != len(along):
        raise CallError(f"shifts and dimensions must align. shifts: {len(by)}, dims:{len(along)}")
    return record(OPS["roll"], (input,), (("shifts", by), ("dims", tuple(has_dim(d, input) for d in along))))


def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """Give the same values in memory of their own; gradients pass. ``memory_format``: accepted, without effect."""
    check_memory_format(memory_format, input.ndim)
    return record(OPS["copy"], (input,))


def contiguous(input: Tensor, memory_format: Any = None) -> Tensor:
    """Give the tensor itself if its elements lie in row-major order, else a copy. ``memory_format``: accepted, without effect."""
    check_memory_format(memory_format, input.ndim)
    return input if input.is_contiguous() else clone(input)
