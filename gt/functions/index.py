"""Indexing: NumPy's square brackets, and torch's gather family.

Owns: how an index expression becomes views, gathers and scatters. Next: ``gt.ir.ops.index`` (meaning).
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.functions.create import from_numpy, full, tensor, zeros
from gt.functions.promote import cast, check_fits, is_number, operand, refuse, scalar_dtype
from gt.functions.shape import EXPAND, RESHAPE, SLICE, reshape, stack
from gt.handle import Handle, take_view
from gt.ir.ops import OPS
from gt.ir.types import DimError, ShapeError, bool_, broadcast_shapes, int64, normalize_dim
from gt.trace import record

if TYPE_CHECKING:
    from gt.tensor import Tensor


def getitem(input: Tensor, key: Any) -> Tensor:
    """Give ``input[key]``: ints, slices, None and ``...`` give a view; index tensors and masks a copy."""
    viewed, indices = _basic(input, key)
    return viewed if not indices else _gather(viewed, indices)


def setitem(input: Tensor, key: Any, value: Any) -> None:
    """Write ``input[key] = value`` in place; the value broadcasts and takes the tensor's dtype."""
    viewed, indices = _basic(input, key)
    if not indices:
        viewed._assign(fit(value, viewed))
        return
    if len(indices) == 1 and indices[0][1].dtype is bool_ and (is_number(value) or value.numel() == 1):
        viewed._assign(_masked(viewed, *indices[0], value))
        return
    dims, positions = _positions(viewed, indices)
    shape = _gathered_shape(viewed, dims, positions)
    out = record(
        OPS["index_put"], (viewed, *positions, fit(value, viewed, shape)), (("dims", dims), ("accumulate", False))
    )
    viewed._assign(out)


def fit(value: Any, like: Tensor, shape: tuple[int, ...] | None = None) -> Any:
    """Broadcast and convert a value to be written over ``like`` (or over ``shape`` of its dtype)."""
    target = like._type.shape if shape is None else shape
    if is_number(value):
        check_fits(value, like._type.dtype)
        source = record(OPS["copy"], (operand(value, like._type.dtype),))
    else:
        source = cast(value if isinstance(value, Handle) else tensor(value), like._type.dtype)
    own = source._type.shape
    if own == target:
        return source
    while len(own) > len(target) and own[0] == 1:
        own = own[1:]
    if broadcast_shapes(own, target) != target:
        raise ShapeError(
            f"shape mismatch: value tensor of shape {list(source._type.shape)} cannot be broadcast to indexing result of shape {list(target)}"
        )
    if own != source._type.shape:
        source = record(RESHAPE, (source,), (("shape", own),))
    return record(EXPAND, (source,), (("shape", target),)) if own != target else source


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
    return (take_view(out, OPS["alias"], ()) if out is input and not indices and not input._rg else out), indices


def _items(input: Tensor, key: Any) -> list[Any]:
    """Normalise an index expression to one item for each dim, with ``...`` spelled out."""
    raw = list(key) if isinstance(key, tuple) else [key]
    items: list[Any] = []
    for item in raw:
        if isinstance(item, bool | np.bool_):
            item = tensor(bool(item))
        elif isinstance(item, list | np.ndarray | range):
            item = tensor(np.asarray(item) if len(item) else np.zeros(0, np.int64))
        if isinstance(item, Handle):
            if item.dtype.kind not in "bui":
                raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
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
            out.append(_wrapped(cast(index, int64), input._type.shape[dim]))
    return tuple(dims), out


def nonzero_columns(mask: Tensor) -> list[Tensor]:
    """Give the positions of true elements, one tensor for each dim. Flushes: their number depends on data."""
    return [from_numpy(column.astype(np.int64)) for column in np.nonzero(np.atleast_1d(mask._read()))]


def _gathered_shape(input: Tensor, dims: tuple[int, ...], positions: list[Tensor]) -> tuple[int, ...]:
    picked = broadcast_shapes(*(p._type.shape for p in positions))
    s = input._type.shape
    adjacent = dims == tuple(range(dims[0], dims[0] + len(dims)))
    rest = [n for d, n in enumerate(s) if d not in dims]
    at = dims[0] if adjacent else 0
    return (*rest[:at], *picked, *rest[at:])


def _gather(input: Tensor, indices: list[tuple[int, Tensor]]) -> Tensor:
    dims, positions = _positions(input, indices)
    return record(OPS["index"], (input, *positions), (("dims", dims),))


def _masked(input: Tensor, dim: int, mask: Tensor, value: Any) -> Tensor:
    tail = input.ndim - dim - mask.ndim
    wide = record(RESHAPE, (mask,), (("shape", (*mask._type.shape, *(1,) * tail)),)) if tail else mask
    number = operand(value, input._type.dtype) if is_number(value) else cast(reshape(value, ()), input._type.dtype)
    return record(OPS["where"], (wide, number, input))


# -- the gather family


def _index(name: str, index: Any) -> Any:
    if not isinstance(index, Handle):
        raise refuse(name, index, "'index'")
    if index.dtype.kind not in "ui" and index.numel():
        raise RuntimeError(f"{name}(): Expected dtype int64 for index")
    return cast(index, int64)


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Pick along ``dim``: ``out[i][j] = input[index[i][j]][j]`` for dim 0."""
    d = normalize_dim(dim, input.ndim)
    index = _index("gather", index)
    if index.numel() == 0:
        empty = zeros(index._type.shape, dtype=input.dtype)
        return empty + input.sum() * 0 if input._rg else empty
    if max(input.ndim, 1) != max(index.ndim, 1):
        raise RuntimeError("Index tensor must have the same number of dimensions as input tensor")
    if not input.ndim or not index.ndim:
        shape, wide = index._type.shape, reshape(input, -1)
        return reshape(record(OPS["gather"], (wide, reshape(index, -1)), (("dim", 0),)), shape)
    for i, (a, b) in enumerate(zip(index._type.shape, input._type.shape, strict=True)):
        if i != d and a > b:
            raise RuntimeError(
                f"Size does not match at dimension {i} expected index {list(index._type.shape)} to be no larger than self "
                f"{list(input._type.shape)} apart from dimension {d}"
            )
    return record(OPS["gather"], (input, index), (("dim", d),))


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Take the values at ``indices`` along ``dim``; the other dims broadcast."""
    if indices.dtype is not int64:
        raise RuntimeError(
            "torch.take_along_dim(): dtype of indices should be Long but got " + indices.dtype.name.capitalize()
        )
    if dim is None:
        return gather(reshape(input, -1), 0, _wrapped(reshape(indices, -1), input.numel()))
    if input.ndim != indices.ndim:
        raise RuntimeError(
            f"torch.take_along_dim(): input and indices should have the same number of dimensions, but got {input.ndim} dimensions "
            f"for input, and {indices.ndim} dimensions for indices"
        )
    d = normalize_dim(dim, input.ndim)
    shape = list(
        broadcast_shapes(*(tuple(1 if i == d else n for i, n in enumerate(t._type.shape)) for t in (input, indices)))
    )
    a, b = ([*shape[:d], t._type.shape[d], *shape[d + 1 :]] for t in (input, indices))
    return gather(input.expand(a), d, _wrapped(indices.expand(b), input._type.shape[d]))


def _wrapped(index: Tensor, size: int) -> Tensor:
    """Count negative indices from the end."""
    return record(OPS["where"], (index < 0, index + size, index))


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Pick whole slices of ``dim`` by a 1-d index."""
    d = normalize_dim(dim, input.ndim)
    index = _index("index_select", index)
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if not input.ndim:
        if index.numel() != 1:
            raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {index.numel()} value(s)")
        return reshape(record(OPS["index_select"], (reshape(input, 1), reshape(index, 1)), (("dim", 0),)), ())
    return record(OPS["index_select"], (input, reshape(index, -1) if not index.ndim else index), (("dim", d),))


def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    """Write ``src`` (or one value) at the positions ``index`` names along ``dim``; reduce: "add" or "multiply"."""
    source = value if src is None else src
    d, x, index, source = _scattering("scatter", input, dim, index, source)
    if reduce is None:
        out = record(OPS["scatter"], (x, index, source), (("dim", d),))
    elif reduce == "add":
        out = record(OPS["scatter_add"], (x, index, source), (("dim", d),))
    elif reduce == "multiply":
        out = record(OPS["scatter_reduce"], (x, index, source), (("dim", d), ("reduce", "prod")))
    else:
        raise RuntimeError("reduce argument must be either add or multiply.")
    return out if out._type.shape == input._type.shape else reshape(out, input._type.shape)


def _scattering(name: str, input: Tensor, dim: int, index: Tensor, source: Any) -> tuple[int, Any, Any, Any]:
    """Check operands of a scatter and bring them to one rank; the source is cut to the index's shape."""
    d = normalize_dim(dim, input.ndim)
    index = _index(name, index)
    number = is_number(source)
    if not number and source.dtype is not input.dtype:
        raise RuntimeError(f"{name}(): Expected self.dtype to be equal to src.dtype")
    x = input if input.ndim else reshape(input, 1)
    index = index if index.ndim else reshape(index, 1)
    if not number and not source.ndim:
        source = reshape(source, 1)
    if index.numel() == 0:
        return d, x, zeros((0,) * x.ndim, dtype=int64), zeros((0,) * x.ndim, dtype=x.dtype)
    if index.ndim != x.ndim or (not number and source.ndim != index.ndim):
        what = "self" if index.ndim != x.ndim else "src"
        raise RuntimeError(f"Index tensor must have the same number of dimensions as {what} tensor")
    s = index._type.shape
    bad = any(i != d and n > x._type.shape[i] for i, n in enumerate(s))
    if bad or (not number and any(n > m for n, m in zip(s, source._type.shape, strict=True))):
        extra = "" if number else f" and to be no larger size than src {list(source._type.shape)}"
        raise RuntimeError(
            f"Expected index {list(s)} to be no larger than self {list(x._type.shape)} apart from dimension {d}{extra}"
        )
    if number:
        return d, x, index, fit(source, x, s)
    if source._type.shape != s:
        source = source[tuple(slice(0, n) for n in s)]
    return d, x, index, source


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Add ``src`` at the positions ``index`` names along ``dim``."""
    d, x, index, source = _scattering("scatter", input, dim, index, src)
    out = record(OPS["scatter_add"], (x, index, source), (("dim", d),))
    return out if out._type.shape == input._type.shape else reshape(out, input._type.shape)


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Combine ``src`` at the positions ``index`` names: sum, prod, mean, amax or amin."""
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    d, x, index, source = _scattering("scatter", input, dim, index, src)
    where = (("dim", d),)
    base = x
    if not include_self and index.numel():
        start = {"sum": 0, "mean": 0, "prod": 1, "amax": _lowest(x.dtype), "amin": _highest(x.dtype)}[reduce]
        base = record(OPS["scatter"], (x, index, fit(start, x, index._type.shape)), where)
    if reduce in ("sum", "mean"):
        out = record(OPS["scatter_add"], (base, index, source), where)
        if reduce == "mean":
            ones = fit(1, x, index._type.shape)
            count = fit(1, x, x._type.shape) if include_self else fit(0, x, x._type.shape)
            count = record(OPS["scatter_add"], (count, index, ones), where).clamp(min=1)
            out = out / count if x.dtype.kind in "fc" else out // count
    else:
        out = record(OPS["scatter_reduce"], (base, index, source), (*where, ("reduce", reduce)))
    return out if out._type.shape == input._type.shape else reshape(out, input._type.shape)


def _lowest(dtype: Any) -> Any:
    return False if dtype.kind == "b" else -np.inf if dtype.kind == "f" else int(np.iinfo(dtype.numpy).min)


def _highest(dtype: Any) -> Any:
    return True if dtype.kind == "b" else np.inf if dtype.kind == "f" else int(np.iinfo(dtype.numpy).max)


# -- whole slices by a 1-d index


def _slices(name: str, input: Tensor, dim: int, index: Tensor, source: Any) -> tuple[int, Any, Any, Any]:
    d = normalize_dim(dim, input.ndim)
    if index.ndim > 1:
        raise IndexError(f"{name}(): Index should have dimension 1 or 0 (got {index.ndim})")
    index = reshape(_index(name, index), -1)
    x = input if input.ndim else reshape(input, 1)
    if isinstance(source, Handle):
        if source.dtype is not input.dtype:
            raise RuntimeError(
                f"{name}(): self ({input.dtype.name}) and source ({source.dtype.name}) must have the same scalar type"
            )
        want = (*x._type.shape[:d], index.numel(), *x._type.shape[d + 1 :])
        if source.ndim == 0 or (input.ndim == 0 and source.numel() == 1):
            source = source.expand(want) if not source.ndim else reshape(source, want)
        if source._type.shape != want:
            if source.ndim == len(want) and source._type.shape[d] != want[d]:
                raise RuntimeError(
                    f"{name}(): Number of indices ({index.numel()}) should be equal to source.size(dim): ({source._type.shape[d]}), for dim: {d}"
                )
            raise RuntimeError(
                f"{name}(): Source/destination tensor must have same slice shapes. Destination slice shape: "
                f"{list(x._type.shape[:d] + x._type.shape[d + 1 :])} at dimension {d} and source slice shape: {list(source._type.shape)} at dimension 0."
            )
    return d, x, _wrapped(index, x._type.shape[d]), source


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """Add the slices of ``source`` to the slices of ``dim`` that a 1-d index names."""
    d, x, index, src = _slices("index_add", input, dim, index, source)
    out = record(OPS["index_add"], (x, index, src if alpha == 1 else cast(src * alpha, x.dtype)), (("dim", d),))
    return out if input.ndim else reshape(out, ())


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Write the slices of ``source`` over the slices of ``dim`` that a 1-d index names."""
    d, x, index, src = _slices("index_copy", input, dim, index, source)
    wide = reshape(index, tuple(-1 if i == d else 1 for i in range(x.ndim))).expand(src._type.shape)
    out = record(OPS["scatter"], (x, wide, src), (("dim", d),))
    return out if input.ndim else reshape(out, ())


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Write one value over the slices of ``dim`` that a 1-d index names."""
    if isinstance(value, Handle) and value.ndim:
        raise RuntimeError(
            f"index_fill_ only supports a 0-dimensional value tensor, but got tensor with {value.ndim} dimension(s)."
        )
    d, x, index, _ = _slices("index_fill", input, dim, index, None)
    rows = zeros(x._type.shape[d], dtype=bool_)
    hit = record(OPS["scatter"], (rows, index, fit(True, rows, index._type.shape)), (("dim", 0),))
    mask = reshape(hit, tuple(-1 if i == d else 1 for i in range(x.ndim)))
    number = operand(value, x.dtype) if is_number(value) else cast(value, x.dtype)
    out = record(OPS["where"], (mask, number, x))
    return out if input.ndim else reshape(out, ())


def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Combine slices of ``source`` into the slices of ``dim`` that a 1-d index names: prod, mean, amax or amin."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    d, x, index, src = _slices("index_reduce", input, dim, index, source)
    wide = reshape(index, tuple(-1 if i == d else 1 for i in range(x.ndim))).expand(src._type.shape)
    out = scatter_reduce(x, d, wide, src, reduce, include_self=include_self)
    return out if input.ndim else reshape(out, ())


def index_put(input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """Write (or add) ``values`` at ``input[indices]``; a copy."""
    viewed, found = _basic(input, tuple(slice(None) if i is None else i for i in indices))
    dims, positions = _positions(viewed, found)
    source = fit(values, viewed, _gathered_shape(viewed, dims, positions))
    return record(OPS["index_put"], (viewed, *positions, source), (("dims", dims), ("accumulate", bool(accumulate))))


def take(input: Tensor, index: Tensor) -> Tensor:
    """Pick elements by position in the flattened tensor."""
    if index.dtype is not int64:
        raise RuntimeError(f"take(): Expected a long tensor for index, but got {index.dtype.name.capitalize()}")
    if not input.numel() and index.numel():
        raise IndexError("take(): tried to take from an empty tensor")
    flat = reshape(input, -1)
    picked = record(OPS["index_select"], (flat, _wrapped(reshape(index, -1), input.numel())), (("dim", 0),))
    return reshape(picked, index._type.shape)


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write (or add) elements by position in the flattened tensor."""
    if index.dtype is not int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {index.dtype.name.capitalize()}")
    if source.numel() != index.numel():
        raise RuntimeError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.numel()}, index.numel() = {index.numel()}"
        )
    flat, at = reshape(input, -1), _wrapped(reshape(index, -1), input.numel())
    out = record(OPS["scatter_add" if accumulate else "scatter"], (flat, at, reshape(source, -1)), (("dim", 0),))
    return reshape(out, input._type.shape)


# -- masks


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Write ``value`` where ``mask`` holds."""
    if mask.dtype is not bool_:
        raise RuntimeError("masked_fill_ only supports boolean masks, but got mask with dtype " + mask.dtype.name)
    if isinstance(value, Handle) and value.ndim:
        raise RuntimeError(
            f"masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {value.ndim} dimension(s)."
        )
    own = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    given = value.dtype if isinstance(value, Handle) else scalar_dtype(value)
    if own[given.kind] > max(own[input.dtype.kind], 1) and not (
        given.kind == "f" and is_number(value) and float(value).is_integer()
    ):
        raise RuntimeError(f"value cannot be converted to type {_c_name(input.dtype)} without overflow")
    number = operand(value, input._type.dtype) if is_number(value) else cast(value, input._type.dtype)
    return record(OPS["where"], (mask, number, input))


def _c_name(dtype: Any) -> str:
    names = {
        "int64": "int64_t",
        "int32": "int",
        "int16": "short",
        "int8": "int8_t",
        "uint8": "uint8_t",
        "float32": "float",
        "float64": "double",
    }
    return names.get(dtype.name, dtype.name)


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """Give the elements where ``mask`` holds, in order. Flushes: their number depends on data."""
    if mask.dtype is not bool_:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    shape = broadcast_shapes(input._type.shape, mask._type.shape)
    if not shape:
        return getitem(reshape(input, 1), reshape(mask, 1))
    return getitem(input.expand(shape), mask.expand(shape))


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write the elements of ``source``, in order, where ``mask`` holds."""
    if mask.dtype is not bool_:
        raise RuntimeError("masked_scatter_ only supports boolean masks, but got mask with dtype " + mask.dtype.name)
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"masked_scatter: expected self and source to have same dtypes but got {input.dtype.name} and {source.dtype.name}"
        )
    shape = broadcast_shapes(input._type.shape, mask._type.shape)
    x, m = input.expand(shape), mask.expand(shape)
    if not x.numel():
        return x.clone()
    place = reshape(cast(reshape(m, -1), int64).cumsum(0), shape) - 1
    flat = reshape(source, -1)
    picked = record(OPS["index_select"], (flat, reshape(place.clamp(0, max(flat.numel() - 1, 0)), -1)), (("dim", 0),))
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
    found = nonzero(input)
    n = found._type.shape[0]
    if n >= size:
        return found[:size].clone()
    rest = full((size - n, input.ndim), fill_value, dtype=int64)
    return record(OPS["cat"], (found, rest), (("dim", 0),))


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Keep the lower triangle of the last two dims."""
    if input.ndim < 2:
        raise RuntimeError("tril: input tensor must have at least 2 dimensions")
    return record(OPS["tril"], (input,), (("diagonal", diagonal),))


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Keep the upper triangle of the last two dims."""
    if input.ndim < 2:
        raise RuntimeError("triu: input tensor must have at least 2 dimensions")
    return record(OPS["triu"], (input,), (("diagonal", diagonal),))


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Give 1 at the class index, 0 elsewhere. Flushes if ``num_classes`` is not given."""
    if tensor.dtype is not int64:
        raise RuntimeError(f"one_hot is only applicable to index tensor of type LongTensor, got {tensor.dtype.name}")
    if num_classes == -1:
        if not tensor.numel():
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        num_classes = int(tensor._read().max()) + 1
    if num_classes < 1 and tensor.numel():
        raise RuntimeError("num_classes should be positive")
    return record(OPS["one_hot"], (tensor,), (("classes", num_classes), ("dtype", int64)))
