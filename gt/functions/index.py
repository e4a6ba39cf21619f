"""Indexing: NumPy's square brackets, and torch's gather family.

Owns: how an index expression becomes views, gathers and scatters. Next: ``gt.ir.ops.index`` (meaning).
"""

from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.functions.create import arange, from_numpy, full, tensor, zeros
from gt.functions.gathering import fit
from gt.functions.promote import C_NAMES, c_name, cast, check_fits, converted, is_number, operand, real_number, refuse
from gt.functions.shape import RESHAPE, SLICE, reshape, same, stack
from gt.handle import Handle, take_view
from gt.ir.ops import OPS
from gt.ir.types import CallError, DimError, ShapeError, bool_, broadcast_shapes, class_name, int32, int64, scalar_type, uint8
from gt.recording import record
from gt.versions import saves
from gt.views import Place, place_in_overlap, view_strides

if TYPE_CHECKING:
    from gt.tensor import Tensor


def getitem(input: Tensor, key: Any) -> Tensor:
    """Give ``input[key]``: ints, slices, None and ``...`` give a view; index tensors and masks (bool or uint8) a copy.

    A list that holds more than numbers stands for a tuple, as in torch.
    """
    viewed, indices = _basic(input, key)
    return viewed if not indices else _gather(viewed, indices)


def setitem(input: Tensor, key: Any, value: Any) -> None:
    """Write ``input[key] = value`` in place; the value broadcasts and takes the tensor's dtype."""
    if value.__class__ is int and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("Overflow when unpacking long long")
    viewed, indices = _basic(input, key)
    if not indices:
        source = fit(value, viewed)
        viewed._assign(source, repeats=is_number(value) and 0 not in view_strides(viewed), given=source is value, anew=True)
        return
    place = place_in_overlap(viewed)
    if place is not None and place.overlaps:
        _write_places(place, indices, value)
        return
    viewed._leave_hooks()
    if len(indices) == 1 and indices[0][1].dtype is bool_ and (is_number(value) or value.numel() == 1):
        _check_masks(key if isinstance(key, tuple | list) else [key])
        viewed._assign(_masked(viewed, *indices[0], value))
        return
    _check_source(viewed, indices, value)
    viewed._assign(_put(viewed, indices, value, False))


@saves(lambda given: [t for _, t in given["indices"]])
def _put(viewed: Tensor, indices: list[tuple[int, Tensor]], value: Any, accumulate: bool) -> Tensor:
    """Give ``viewed`` with a value written, or added, at indices."""
    dims, positions = _positions(viewed, indices)
    source = fit(value, viewed, _gathered_shape(viewed, dims, positions))
    return record(OPS["index_put"], (viewed, *positions, source), (("dims", dims), ("accumulate", accumulate)))


def _check_masks(key: Any) -> None:
    """Refuse masks of uint8, which torch takes for several values but not for one."""
    if any(getattr(k, "ndim", 0) and k.dtype in (uint8, np.uint8) for k in key):
        raise CallError("masked_fill_ only supports boolean masks, but got mask with dtype unsigned char")


def _check_source(input: Tensor, indices: list[tuple[int, Tensor]], value: Any) -> None:
    """Refuse a tensor of another dtype: what is written at indices, other than single numbers, is not converted."""
    if not isinstance(value, Handle) or value._type.dtype is input._type.dtype:
        return
    if any(index.ndim or index.dtype is bool_ for _, index in indices):
        raise CallError(
            f"Index put requires the source and destination dtypes match, got {scalar_type(input.dtype)} for the destination and "
            f"{scalar_type(value._type.dtype)} for the source."
        )


def _write_places(place: Place, indices: list[tuple[int, Tensor]], value: Any) -> None:
    """Write at indices of a view whose elements overlap: no others are written, nor these in turn to where they were."""
    _check_source(place.of, indices, value)
    of = place.of if place.through else place.of.detach()
    at = _gather(record(OPS["as_strided"], (arange(of.numel()),), place.attrs), indices)
    flat = record(RESHAPE, (of,), (("shape", (of.numel(),)),))
    out = record(OPS["index_put"], (flat, at, fit(value, flat, at._type.shape)), (("dims", (0,)), ("accumulate", False)))
    of._assign(record(RESHAPE, (out,), (("shape", of._type.shape),)))


def _basic(input: Tensor, key: Any) -> tuple[Tensor, list[tuple[int, Tensor]]]:
    """Apply the views of an index expression; give what is left: (dim of the view, index tensor)."""
    items = _items(input, key)
    shape = input._type.shape
    starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
    result: list[int] = []  # the shape after dropping and adding dims
    indices: list[tuple[int, Tensor]] = []
    d = 0
    for item in items:
        if item is None:
            result.append(1)
        elif isinstance(item, Handle) and item.dtype is bool_ and not item.ndim:
            indices.append((len(result), reshape(item, 1)))  # a mask over a new dim of size 1
            result.append(1)
        elif isinstance(item, Handle):
            indices.append((len(result), item))
            width = item.ndim if item.dtype is bool_ else 1
            _check_mask(item, shape, d)
            result.extend(shape[d : d + width])
            d += width
        elif isinstance(item, slice):
            starts[d], stops[d], steps[d] = _slice(item, shape[d])
            result.append(len(range(starts[d], stops[d], steps[d])))
            d += 1
        else:
            index = operator.index(item)
            if not -shape[d] <= index < shape[d]:
                raise DimError(f"index {index} is out of bounds for dimension {d} with size {shape[d]}")
            starts[d] = index % shape[d]
            stops[d] = starts[d] + 1
            d += 1
    out = input
    if stops != list(shape) or any(starts) or any(s != 1 for s in steps):
        out = take_view(out, SLICE, (("starts", tuple(starts)), ("stops", tuple(stops)), ("steps", tuple(steps))))
    if tuple(result) != out._type.shape:
        out = take_view(out, RESHAPE, (("shape", tuple(result)),))
    return (same(out) if out is input and not indices else out), indices


def _items(input: Tensor, key: Any) -> list[Any]:
    """Normalise an index expression to one item for each dim, with ``...`` spelled out."""
    raw = list(key) if isinstance(key, tuple) else [key]
    if _names_dims(key):
        raw = list(key)
        warnings.warn(
            "Using a non-tuple sequence for multidimensional indexing is deprecated; use x[tuple(seq)] instead of x[seq].", stacklevel=4
        )
    items: list[Any] = []
    for item in raw:
        if isinstance(item, bool | np.bool_):
            item = tensor(bool(item))
        elif _foreign(item) is not None:
            raise TypeError(f"indices must be gt.Tensor, not {class_name(_foreign(item))}; use gt.tensor(...) first")
        elif isinstance(item, list | tuple | np.ndarray | range):
            made = tensor(item)
            item = made if made.numel() and made.dtype.kind != "i" else cast(made, int64)
        if isinstance(item, Handle):
            if item.dtype not in (int64, bool_, int32, uint8) and (item.ndim or item.dtype.kind != "i"):
                raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
            if item.dtype is uint8:
                warnings.warn(
                    "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.", stacklevel=4
                )
                item = cast(item, bool_)
            if item.dtype is not bool_ and not item.ndim and not isinstance(key, tuple):
                item = cast(item, int64)
        elif not (item is None or item is Ellipsis or isinstance(item, slice) or hasattr(item, "__index__")):
            raise IndexError(
                "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices "
                f"(got {type(item).__name__})"
            )
        items.append(item)
    used = sum(
        i.ndim if isinstance(i, Handle) and i.dtype is bool_ else 1
        for i in items
        if i is not None and i is not Ellipsis
    )
    if used > input.ndim:
        raise IndexError(f"too many indices for tensor of dimension {input.ndim}")
    rest = [slice(None)] * (input.ndim - used)
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(items)
    return [*items[:at], *rest, *items[at + bool(dots) :]]


def _foreign(item: Any) -> Any:
    """Give the other library's array that an index is, or the list holds that it is; NumPy's are none."""
    if isinstance(item, list | tuple):
        return next((i for i in item if not isinstance(i, list | tuple) and _foreign(i) is not None), None)
    return item if hasattr(item, "__array__") and not isinstance(item, Handle | np.ndarray | np.generic) else None


def _check_tensor(name: str, mask: Any) -> None:
    if not isinstance(mask, Handle):
        raise refuse(name, mask, "'mask'")


def _names_dims(key: Any) -> bool:
    """Say whether a list stands for a tuple, as in torch: if it is short and holds more than plain numbers."""
    if not isinstance(key, list | range) or len(key) >= 32:
        return False
    return any(isinstance(i, Handle | list | tuple | range | np.ndarray | slice) or i is None or i is Ellipsis for i in key)


def _slice(item: slice, size: int) -> tuple[int, int, int]:
    step = 1 if item.step is None else operator.index(item.step)
    if step <= 0:
        raise ValueError("step must be greater than zero")
    start, stop, _ = slice(item.start, item.stop).indices(size)
    return start, max(start, stop), step


def _check_mask(item: Tensor, shape: tuple[int, ...], d: int) -> None:
    if item.dtype is bool_:
        for i, n in enumerate(item._type.shape):
            if n != shape[d + i]:
                raise IndexError(
                    f"The shape of the mask {list(item._type.shape)} at index {i} does not match the shape of the indexed tensor "
                    f"{list(shape)} at index {d + i}"
                )


def _positions(input: Tensor, indices: list[tuple[int, Tensor]]) -> tuple[tuple[int, ...], list[Tensor]]:
    """Give int64 index tensors by dim; a mask is read (a flush) since how many it selects depends on data."""
    dims: list[int] = []
    out: list[Tensor] = []
    for dim, index in indices:
        if index.dtype is bool_:
            for i, column in enumerate(nonzero_columns(index)):
                dims.append(dim + i)
                out.append(column)
        else:
            dims.append(dim)
            out.append(converted(index, int64))
    return tuple(dims), out


def nonzero_columns(mask: Tensor) -> list[Tensor]:
    """Give the positions of true elements, one tensor for each dim. Flushes: their number depends on data."""
    return [from_numpy(column.astype(np.int64)) for column in np.nonzero(np.atleast_1d(mask._read()))]


def _gathered_shape(input: Tensor, dims: tuple[int, ...], positions: list[Tensor]) -> tuple[int, ...]:
    picked = _together(positions)
    s = input._type.shape
    adjacent = dims == tuple(range(dims[0], dims[0] + len(dims)))
    rest = [n for d, n in enumerate(s) if d not in dims]
    at = dims[0] if adjacent else 0
    return (*rest[:at], *picked, *rest[at:])


def _together(positions: list[Tensor]) -> tuple[int, ...]:
    """Give the shape that index tensors have together. Errors: IndexError, as torch's."""
    try:
        return broadcast_shapes(*(p._type.shape for p in positions))
    except ShapeError:
        shapes = ", ".join(str(list(p._type.shape)) for p in positions)
        raise DimError(f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}") from None


def _gather(input: Tensor, indices: list[tuple[int, Tensor]]) -> Tensor:
    return (_gather_where if any(t._type.dtype is bool_ for _, t in indices) else _gather_at)(input, indices)


def _gather_at(input: Tensor, indices: list[tuple[int, Tensor]]) -> Tensor:
    dims, positions = _positions(input, indices)
    if len(positions) > 1:
        _together(positions)
    return record(OPS["index"], (input, *positions), (("dims", dims),))


_gather_where = saves(lambda given: [t for _, t in given["indices"]])(_gather_at)  # masks as they are, not where they hold


def _masked(input: Tensor, dim: int, mask: Tensor, value: Any) -> Tensor:
    tail = input.ndim - dim - mask.ndim
    wide = record(RESHAPE, (mask,), (("shape", (*mask._type.shape, *(1,) * tail)),)) if tail else mask
    if isinstance(value, Handle) and value._type.dtype.kind == "c" and input._type.dtype.kind not in "bc":
        raise CallError(f"value cannot be converted to type {C_NAMES[input.dtype.name]} without overflow")
    number = operand(value, input._type.dtype) if is_number(value) else cast(reshape(value, ()), input._type.dtype)
    return record(OPS["where"], (wide, number, input))


def index_put(input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """Write (or add) ``values`` at ``input[indices]``; a copy."""
    viewed, found = _basic(input, tuple(slice(None) if i is None else i for i in indices))
    _check_source(viewed, found, values)
    if len(found) == 1 and found[0][1].dtype is bool_ and values.numel() == 1 and not accumulate:
        _check_masks(indices)
    return _put(viewed, found, values, bool(accumulate))


# -- masks


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Write ``value`` where ``mask`` holds; into integers without its fraction."""
    _check_tensor("masked_fill", mask)
    if mask.dtype is not bool_:
        raise CallError("masked_fill_ only supports boolean masks, but got mask with dtype " + c_name(mask.dtype))
    if isinstance(value, Handle) and value.ndim:
        raise CallError(
            f"masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {value.ndim} dimension(s)."
        )
    if isinstance(value, Handle) and value.dtype.kind == "c" and input.dtype.kind != "c":
        raise CallError(f"value cannot be converted to type {C_NAMES.get(input.dtype.name, 'bool')} without overflow")
    if is_number(value):
        value = real_number(value, input._type.dtype)
        check_fits(value, input._type.dtype)
    number = operand(value, input._type.dtype) if is_number(value) else cast(value, input._type.dtype)
    return record(OPS["where"], (mask, number, input))


@saves("input mask")
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """Give the elements where ``mask`` holds, in order. Flushes: their number depends on data."""
    _check_tensor("masked_select", mask)
    if mask.dtype is not bool_:
        raise CallError("masked_select: expected BoolTensor for mask")
    shape = broadcast_shapes(input._type.shape, mask._type.shape)
    if not shape:
        return getitem(reshape(input, 1), reshape(mask, 1))
    return getitem(input.expand(shape), mask.expand(shape))


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write the elements of ``source``, in order, where ``mask`` holds."""
    _check_tensor("masked_scatter", mask)
    if mask.dtype is not bool_:
        raise CallError("masked_scatter_ only supports boolean masks, but got mask with dtype " + c_name(mask.dtype))
    if source.dtype is not input.dtype:
        raise CallError(
            f"masked_scatter: expected self and source to have same dtypes but got {input.dtype.name} and {source.dtype.name}"
        )
    shape = broadcast_shapes(input._type.shape, mask._type.shape)
    x, m = input.expand(shape), mask.expand(shape)
    if not x.numel():
        return x.clone()
    flags = reshape(m, -1)
    place = record(OPS["where"], (flags, cast(flags, int64).cumsum(0), operand(0, int64)))
    spare = record(OPS["cat"], (zeros(1, dtype=source.dtype), reshape(source, -1)), (("dim", 0),))  # read where nothing is written
    picked = record(OPS["index_select"], (spare, place), (("dim", 0),))
    return record(OPS["where"], (m, reshape(picked, shape), x))


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Give the positions of non-zero elements. Flushes: their number depends on data."""
    if not input.ndim and not as_tuple:
        n = int(bool(input))
        return zeros((n, 0), dtype=int64)
    columns = nonzero_columns(input)
    return tuple(columns) if as_tuple else stack(columns, 1)


def argwhere(input: Tensor) -> Tensor:
    """Give the positions of non-zero elements, one row for each. Flushes."""
    return nonzero(input)


def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Give the positions of the first ``size`` non-zero elements, filled up with ``fill_value``."""
    if size < 0:
        raise CallError(f"nonzero_static: 'size' must be an non-negative integer, got {size}")
    found = nonzero(input)
    n = found._type.shape[0]
    if n >= size:
        return found[:size].clone()
    rest = full((size - n, input.ndim), fill_value, dtype=int64)
    return record(OPS["cat"], (found, rest), (("dim", 0),))


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Keep the lower triangle of the last two dims."""
    if input.ndim < 2:
        raise CallError("tril: input tensor must have at least 2 dimensions")
    return record(OPS["tril"], (input,), (("diagonal", operator.index(diagonal)),))


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Keep the upper triangle of the last two dims."""
    if input.ndim < 2:
        raise CallError("triu: input tensor must have at least 2 dimensions")
    return record(OPS["triu"], (input,), (("diagonal", operator.index(diagonal)),))


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Give 1 at the class index, 0 elsewhere. Flushes if ``num_classes`` is not given."""
    if tensor.dtype is not int64:
        raise CallError(f"one_hot is only applicable to index tensor of type LongTensor, got {tensor.dtype.name}")
    if num_classes == -1:
        if not tensor.numel():
            raise CallError("Can not infer total number of classes from empty tensor.")
        read = tensor._read()
        if read.min() < 0:
            raise CallError("Class values must be non-negative.")
        num_classes = int(read.max()) + 1
    if num_classes < 1 and tensor.numel():
        raise CallError("num_classes should be positive")
    shape = (*tensor._type.shape, num_classes)
    if not tensor.numel():
        return zeros(shape, dtype=int64)
    index = reshape(tensor, (*tensor._type.shape, 1))  # a scatter refuses what is no class
    ones = full(index._type.shape, 1, dtype=int64)
    return record(OPS["scatter"], (zeros(shape, dtype=int64), index, ones), (("dim", tensor.ndim),))
