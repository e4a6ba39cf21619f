"""torch's gather family: reading and writing by index tensors along one dim.

Next: ``index`` (square brackets and masks), ``gt.ir.ops.index`` (meaning).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gt.functions.create import zeros
from gt.functions.promote import COMPLEX, cast, check_fits, converted, is_number, operand, refuse
from gt.functions.shape import EXPAND, RESHAPE, has_dim, reshape
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import CallError, DimError, ShapeError, bool_, broadcast_shapes, int32, int64, normalize_dim, scalar_type
from gt.recording import record
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor


def fit(value: Any, like: Tensor, shape: tuple[int, ...] | None = None) -> Any:
    """Broadcast and convert a value to be written over ``like`` (or over ``shape`` of its dtype)."""
    target = like._type.shape if shape is None else shape
    if is_number(value):
        check_fits(value, like._type.dtype)
        source = record(OPS["copy"], (operand(value, like._type.dtype),))
    elif isinstance(value, Handle):
        source = cast(value, like._type.dtype)
    else:
        kind = type(value)
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        raise TypeError(f"can't assign a {name} to a gt.{scalar_type(like._type.dtype)}Tensor: use gt.tensor(...)")
    own = source._type.shape
    if own == target:
        return source
    while len(own) > len(target) and own[0] == 1:
        own = own[1:]
    if len(own) > len(target) or any(n not in (1, m) for n, m in zip(reversed(own), reversed(target), strict=False)):
        raise ShapeError(
            f"shape mismatch: value tensor of shape {list(source._type.shape)} cannot be broadcast to indexing result of shape {list(target)}"
        )
    if own != source._type.shape:
        source = record(RESHAPE, (source,), (("shape", own),))
    return record(EXPAND, (source,), (("shape", target),)) if own != target else source


def fit_copied(value: Any, like: Tensor) -> Any:
    """Broadcast and convert what ``like`` is overwritten with as a whole."""
    if isinstance(value, Handle):
        own, target = value._type.shape, like._type.shape
        if own != target and (found := broadcast_shapes(target, own)) != target and len(own) <= len(target):
            raise ShapeError(f"output with shape {list(target)} doesn't match the broadcast shape {list(found)}")
    return fit(value, like)


def _index(name: str, index: Any) -> Any:
    """Give an index tensor as int64; an empty one of ``gather`` and ``scatter`` may have any dtype, as in torch."""
    if not isinstance(index, Handle):
        raise refuse(name, index, "'index'")
    dtype = index._type.dtype
    if dtype is int64:
        return index
    if name in ("index_copy", "index_fill"):
        text = f"Expected a long tensor for index, but got {scalar_type(dtype)}" if name == "index_copy" else "Expected dtype int64 for index."
        raise (CallError if name == "index_copy" else DimError)(f"{name}_(): {text}")
    if dtype is not int32 and (index.numel() or name not in ("gather", "scatter")):
        text = {"gather": "int32/int64 for index", "scatter": "int32/int64 for index", "index_select": "int32 or int64 for index"}.get(
            name, f"int32/int64 for index but got: {scalar_type(dtype)}"
        )
        raise CallError(f"{name}{'' if name in ('gather', 'scatter', 'index_select') else '_'}(): Expected dtype {text}")
    return converted(index, int64)


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Pick along ``dim``: ``out[i][j] = input[index[i][j]][j]`` for dim 0."""
    d = normalize_dim(dim, input.ndim)
    index = _index("gather", index)
    if index.numel() == 0:
        empty = zeros(index._type.shape, dtype=input.dtype)
        return empty + input.sum() * 0 if input._rg else empty
    if max(input.ndim, 1) != max(index.ndim, 1):
        raise CallError("Index tensor must have the same number of dimensions as input tensor")
    if not input.ndim or not index.ndim:
        shape, wide = index._type.shape, reshape(input, -1)
        return reshape(record(OPS["gather"], (wide, reshape(index, -1)), (("dim", 0),)), shape)
    for i, (a, b) in enumerate(zip(index._type.shape, input._type.shape, strict=True)):
        if i != d and a > b:
            raise CallError(
                f"Size does not match at dimension {i} expected index {list(index._type.shape)} to be no larger than self "
                f"{list(input._type.shape)} apart from dimension {d}"
            )
    return record(OPS["gather"], (input, index), (("dim", d),))


@saves(lambda given: "input" if given.get("dim") is not None else "input indices")
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Take the values at ``indices`` along ``dim``; the other dims broadcast."""
    if not isinstance(indices, Handle):
        raise refuse("take_along_dim", indices, "'indices'")
    if indices.dtype is not int64:
        raise CallError("torch.take_along_dim(): dtype of indices should be Long but got " + scalar_type(indices.dtype))
    if dim is None:
        return gather(reshape(input, -1), 0, wrapped(reshape(indices, -1), input.numel()))
    if input.ndim != indices.ndim:
        raise CallError(
            f"torch.take_along_dim(): input and indices should have the same number of dimensions, but got {input.ndim} dimensions "
            f"for input, and {indices.ndim} dimensions for indices"
        )
    d = has_dim(dim, input)
    shape = list(broadcast_shapes(*(tuple(1 if i == d else n for i, n in enumerate(t._type.shape)) for t in (input, indices))))
    a, b = ([*shape[:d], t._type.shape[d], *shape[d + 1 :]] for t in (input, indices))
    return gather(input.expand(a), d, wrapped(indices.expand(b), input._type.shape[d]))


def wrapped(index: Tensor, size: int) -> Tensor:
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
            raise CallError(f"index_select(): Index to scalar can have only 1 value, got {index.numel()} value(s)")
        return reshape(record(OPS["index_select"], (reshape(input, 1), reshape(index, 1)), (("dim", 0),)), ())
    return record(OPS["index_select"], (input, reshape(index, -1) if not index.ndim else index), (("dim", d),))


# -- scatters


def scatter(input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None) -> Tensor:
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
        raise CallError("reduce argument must be either add or multiply.")
    return out if out._type.shape == input._type.shape else reshape(out, input._type.shape)


def _scattering(name: str, input: Tensor, dim: int, index: Tensor, source: Any) -> tuple[int, Any, Any, Any]:
    """Check operands of a scatter and bring them to one rank; the source is cut to the index's shape."""
    d = normalize_dim(dim, input.ndim)
    index = _index(name, index)
    number = is_number(source)
    if not number and source.dtype is not input.dtype:
        raise CallError(f"{name}(): Expected self.dtype to be equal to src.dtype")
    x = input if input.ndim else reshape(input, 1)
    index = index if index.ndim else reshape(index, 1)
    if not number and not source.ndim:
        source = reshape(source, 1)
    if index.numel() == 0:
        return d, x, zeros((0,) * x.ndim, dtype=int64), zeros((0,) * x.ndim, dtype=x.dtype)
    if index.ndim != x.ndim or (not number and source.ndim != index.ndim):
        what = "self" if index.ndim != x.ndim else "src"
        raise CallError(f"Index tensor must have the same number of dimensions as {what} tensor")
    s = index._type.shape
    bad = any(i != d and n > x._type.shape[i] for i, n in enumerate(s))
    if bad or (not number and any(n > m for n, m in zip(s, source._type.shape, strict=True))):
        extra = "" if number else f" and to be no larger size than src {list(source._type.shape)}"
        raise CallError(
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


@saves("input index src result")
def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """Combine ``src`` at the positions ``index`` names: sum, prod, mean, amax or amin."""
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise CallError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
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
        if name in ("index_add", "index_reduce"):
            kind, size = scalar_type(index.dtype), list(index._type.shape)
            raise IndexError(f"{name}_(): Index is supposed to be a vector, but got dim: {index.ndim} with type: {kind} and size: {size}")
        raise IndexError(f"{name}_(): Index should have dimension 1 or 0 (got {index.ndim})")
    index = reshape(_index(name, index), -1)
    x = input if input.ndim else reshape(input, 1)
    if isinstance(source, Handle):
        if source.dtype is not input.dtype:
            mine, other = scalar_type(input.dtype), scalar_type(source.dtype)
            raise CallError(
                f"index_copy_(): self and source expected to have the same dtype, but got (self) {mine} and (source) {other}"
                if name == "index_copy"
                else f"{name}_(): self ({mine}) and source ({other}) must have the same scalar type"
            )
        want = (*x._type.shape[:d], index.numel(), *x._type.shape[d + 1 :])
        if source.ndim == 0 or (input.ndim == 0 and source.numel() == 1):
            source = source.expand(want) if not source.ndim else reshape(source, want)
        if source._type.shape != want:
            given, n = list(source._type.shape), index.numel()
            if source.ndim == len(want) and given[d] != n:
                if name == "index_copy":
                    raise IndexError(f"index_copy_(): Number of indices ({n}) should be equal to source.size(dim) ({given[d]})")
                raise CallError(f"{name}_(): Number of indices ({n}) should be equal to source.size(dim): ({given[d]}), for dim: {d}")
            if name != "index_copy":
                raise CallError(
                    "source tensor shape must match self tensor shape, excluding the specified dimension. "
                    f"Got self.shape = {list(input._type.shape)} source.shape = {given}"
                )
            rows, parts = ([s for at, s in enumerate(shape) if at != d] for shape in (x._type.shape, given))
            raise CallError(
                "index_copy_(): Source/destination tensor must have same slice shapes. Destination slice shape: "
                f"{' '.join(map(str, rows))} at dimension {d} and source slice shape: {' '.join(map(str, parts))} at dimension 0."
            )
    return d, x, index, source


@saves("index:source source:source")
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """Add the slices of ``source`` to the slices of ``dim`` that a 1-d index names."""
    d, x, index, src = _slices("index_add", input, dim, index, source)
    out = record(OPS["index_add"], (x, index, src if alpha == 1 else cast(src * alpha, x.dtype)), (("dim", d),))
    return out if input.ndim else reshape(out, ())


@saves("index source:source")
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Write the slices of ``source`` over the slices of ``dim`` that a 1-d index names."""
    d, x, index, src = _slices("index_copy", input, dim, index, source)
    index = record(OPS["in_range"], (index,), (("size", x._type.shape[d]), ("ignore", None)))
    wide = reshape(index, tuple(-1 if i == d else 1 for i in range(x.ndim))).expand(src._type.shape)
    out = record(OPS["scatter"], (x, wide, src), (("dim", d),))
    return out if input.ndim else reshape(out, ())


@saves("index")
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Write one value over the slices of ``dim`` that a 1-d index names."""
    if isinstance(value, Handle) and value.ndim:
        raise CallError(
            f"index_fill_ only supports a 0-dimensional value tensor, but got tensor with {value.ndim} dimension(s)."
        )
    if isinstance(value, COMPLEX) and input.dtype.kind != "c":
        raise CallError("index_fill_(): Converting complex Scalar to non-complex type is not supported")
    d, x, index, _ = _slices("index_fill", input, dim, index, None)
    rows = zeros(x._type.shape[d], dtype=bool_)
    hit = record(OPS["index_put"], (rows, index, fit(True, rows, index._type.shape)), (("dims", (0,)), ("accumulate", False)))
    mask = reshape(hit, tuple(-1 if i == d else 1 for i in range(x.ndim)))
    if (isinstance(value, complex) or (isinstance(value, Handle) and value._type.dtype.kind == "c")) and x.dtype.kind != "c":
        raise CallError("index_fill_(): Converting complex Scalar to non-complex type is not supported")
    if is_number(value):
        check_fits(value, x.dtype)
    number = operand(value, x.dtype) if is_number(value) else cast(value, x.dtype)
    out = record(OPS["where"], (mask, number, x))
    return out if input.ndim else reshape(out, ())


@saves("input index source result")
def index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """Combine slices of ``source`` into the slices of ``dim`` that a 1-d index names: prod, mean, amax or amin."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise CallError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    d, x, index, src = _slices("index_reduce", input, dim, index, source)
    wide = reshape(index, tuple(-1 if i == d else 1 for i in range(x.ndim))).expand(src._type.shape)
    out = scatter_reduce(x, d, wide, src, reduce, include_self=include_self)
    return out if input.ndim else reshape(out, ())


# -- the flattened tensor


@saves("input index")
def take(input: Tensor, index: Tensor) -> Tensor:
    """Pick elements by position in the flattened tensor."""
    if index.dtype is not int64:
        raise CallError(f"take(): Expected a long tensor for index, but got {scalar_type(index.dtype)}")
    if not input.numel() and index.numel():
        raise IndexError("take(): tried to take from an empty tensor")
    flat = reshape(input, -1)
    picked = record(OPS["index_select"], (flat, wrapped(reshape(index, -1), input.numel())), (("dim", 0),))
    return reshape(picked, index._type.shape)


@saves("index source:source")
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write (or add) elements by position in the flattened tensor."""
    if index.dtype is not int64:
        raise CallError(f"put_(): Expected a long tensor for index, but got {scalar_type(index.dtype)}")
    if source.numel() != index.numel():
        raise CallError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.numel()}, index.numel() = {index.numel()}"
        )
    if source.dtype is not input.dtype:
        raise CallError(
            f"put_(): self and source expected to have the same dtype, but got self.dtype = {scalar_type(input.dtype)} and "
            f"source.dtype = {scalar_type(source.dtype)}"
        )
    flat, at = reshape(input, -1), wrapped(reshape(index, -1), input.numel())
    out = record(OPS["scatter_add" if accumulate else "scatter"], (flat, at, reshape(source, -1)), (("dim", 0),))
    return reshape(out, input._type.shape)
