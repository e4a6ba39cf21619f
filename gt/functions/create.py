"""Making tensors: from data, constants, ranges, and random numbers.

Owns: what host data becomes. Random values depend on the seed, the stream number and the element's global index only.
Next: ``gt.random`` (generators), ``gt.ir.ops.creation``, ``gt.ir.ops.random`` (meaning).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gt import session as sessions
from gt import trace as tracing
from gt.functions.promote import cast, is_number, operand
from gt.functions.shape import ints
from gt.handle import Handle
from gt.ir.evaluate import to_wire
from gt.ir.ops import OPS
from gt.ir.types import DType, Scalar, TensorType, bool_, dtype_of, float32, float64, int64, scalar_dtype
from gt.random import Generator, draw
from gt.trace import new_buffer, record, state

if TYPE_CHECKING:
    from gt.tensor import Tensor

DTypeLike = DType | str | type | None


def upload(array: np.ndarray, dtype: DType) -> Tensor:
    """Make a tensor of host data, which is copied now: later writes to the array are not seen."""
    tracing.check_fork()
    type = TensorType(array.shape, dtype)
    session = sessions.current()
    buffer = new_buffer(type, session)
    session.put(buffer.id, type, to_wire(array, dtype), state.signals[-1][1] if state.signals else None)
    out = tracing.new_tensor(None, -1, type)
    out._buffer = buffer
    return out


def tensor(
    data: Any, *, dtype: DTypeLike = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """Make a tensor of numbers, nested lists, an array or another tensor. The data is copied.

    Dtypes: Python floats give float32, ints int64, bools bool; arrays keep theirs.
    Errors: ValueError for ragged lists; TypeError for what is not numbers.
    """
    if isinstance(data, Handle):
        with_dtype = cast(data.detach(), dtype_of(dtype)) if dtype is not None else data.detach()
        out = record(OPS["copy"], (with_dtype,))
    else:
        array, own = host_array(data)
        wanted = dtype_of(dtype) if dtype is not None else own
        if array.ndim == 0 and is_number(data) and not isinstance(data, complex):
            out = record(OPS["copy"], (operand(data, wanted),))
        else:
            out = upload(_convert(array, wanted), wanted)
    return out.requires_grad_() if requires_grad else out


def _convert(array: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(dtype.numpy, copy=True)
    return np.ascontiguousarray(converted).reshape(array.shape)


def host_array(data: Any) -> tuple[np.ndarray, DType]:
    """Give an array of user data and the dtype that torch would infer."""
    if isinstance(data, np.ndarray | np.generic):
        array = np.asarray(data)
        return array, dtype_of(array.dtype)
    if hasattr(data, "__array__") and not isinstance(data, list | tuple):
        array = np.asarray(data)
        return array, dtype_of(array.dtype)
    if is_number(data):
        return np.asarray(data), scalar_dtype(data)
    if not isinstance(data, list | tuple | range):
        raise TypeError(f"tensor(): expected numbers, lists or arrays, got {type(data).__name__}")
    if _holds_tensors(data):
        data = _plain(data)
    try:
        array = np.array(data)
    except ValueError as e:
        raise ValueError(f"tensor(): expected sequences of equal length at every level ({e})") from None
    if array.dtype == object or array.dtype.kind in "SU":
        raise TypeError(f"tensor(): expected numbers, got {type(np.ravel(array)[0]).__name__}" if array.size else "tensor(): expected numbers")
    if array.size == 0:
        return array.astype(np.float32), float32
    if isinstance(_first(data), np.generic | np.ndarray):
        return array, dtype_of(array.dtype)
    return array, {"b": bool_, "i": int64, "u": int64, "f": float32}.get(array.dtype.kind) or scalar_dtype(1j)


def _first(data: Any) -> Any:
    while isinstance(data, list | tuple | range) and len(data):
        data = data[0]
    return data


def _holds_tensors(data: Any) -> bool:
    return any(isinstance(x, Handle) or (isinstance(x, list | tuple) and _holds_tensors(x)) for x in data)


def _plain(data: Any) -> Any:
    if isinstance(data, Handle):
        return data.tolist()
    return [_plain(x) for x in data] if isinstance(data, list | tuple) else data


def as_tensor(data: Any, dtype: DTypeLike = None, device: Any = None) -> Tensor:
    """Make a tensor of data; a tensor of the right dtype is given back itself."""
    if isinstance(data, Handle):
        return cast(data, dtype_of(dtype)) if dtype is not None else data
    return tensor(data, dtype=dtype)


asarray = as_tensor


def from_numpy(array: np.ndarray, requires_grad: bool = False) -> Tensor:
    """Make a tensor of an array, keeping its dtype. The data is copied at the call: later writes to it are not seen."""
    if not isinstance(array, np.ndarray | np.generic):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    return tensor(np.asarray(array), requires_grad=requires_grad)


# -- constants


def full(
    size: int | Sequence[int], fill_value: Scalar, *, dtype: DTypeLike = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Make a tensor of one value everywhere."""
    own = dtype_of(dtype) if dtype is not None else scalar_dtype(fill_value)
    shape = ints((size,)) if not isinstance(size, int) else (size,)
    return _made("full", shape, own, requires_grad, value=_plain_number(fill_value, own))


def _plain_number(value: Scalar, dtype: DType) -> Scalar:
    return bool(value) if dtype is bool_ else int(value) if dtype.kind in "ui" else float(value) if dtype.kind == "f" else value  # type: ignore[arg-type]


def _made(op: str, shape: tuple[int, ...], dtype: DType, requires_grad: bool, **attrs: Any) -> Tensor:
    if any(n < 0 for n in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    out = record(OPS[op], (), (("shape", shape), *attrs.items(), ("dtype", dtype)))
    return out.requires_grad_() if requires_grad else out


def zeros(*size: Any, dtype: DTypeLike = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor of zeros."""
    return full(ints(size), 0.0, dtype=dtype or float32, requires_grad=requires_grad)


def ones(*size: Any, dtype: DTypeLike = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor of ones."""
    return full(ints(size), 1.0, dtype=dtype or float32, requires_grad=requires_grad)


def empty(*size: Any, dtype: DTypeLike = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor whose values are not promised: zeros, so that runs repeat."""
    return zeros(*size, dtype=dtype, requires_grad=requires_grad)


def zeros_like(input: Tensor, *, dtype: DTypeLike = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Make zeros of the shape and dtype of ``input``."""
    return zeros(input._type.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def ones_like(input: Tensor, *, dtype: DTypeLike = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Make ones of the shape and dtype of ``input``."""
    return ones(input._type.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def empty_like(input: Tensor, *, dtype: DTypeLike = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Make a tensor of the shape and dtype of ``input``; its values are zeros."""
    return zeros_like(input, dtype=dtype, requires_grad=requires_grad)


def full_like(input: Tensor, fill_value: Scalar, *, dtype: DTypeLike = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Make a tensor of the shape and dtype of ``input`` filled with one value."""
    return full(input._type.shape, fill_value, dtype=dtype or input.dtype, requires_grad=requires_grad)


def arange(*args: Scalar, dtype: DTypeLike = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Count: ``arange(end)``, ``arange(start, end)``, ``arange(start, end, step)``. Dtypes: int64 unless a float is given."""
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1) if len(args) == 2 else args
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) / step < 0:  # type: ignore[operator]
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    own = dtype_of(dtype) if dtype is not None else (float32 if any(isinstance(a, float) for a in args) else int64)
    n = math.ceil((end - start) / step)  # type: ignore[operator]
    if own.kind in "ui":
        start, step = int(start), int(step)  # type: ignore[arg-type]
    return _made("iota", (n,), own, requires_grad, dim=0, start=start, step=step)


def linspace(start: float, end: float, steps: int, *, dtype: DTypeLike = None, device: Any = None) -> Tensor:
    """Give ``steps`` values evenly from ``start`` to ``end``, both included."""
    own = dtype_of(dtype) if dtype is not None else float32
    return upload(np.linspace(start, end, steps).astype(own.numpy), own)


def eye(n: int, m: int | None = None, *, dtype: DTypeLike = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make the identity matrix."""
    m = n if m is None else m
    own = dtype_of(dtype) if dtype is not None else float32
    rows = _made("iota", (n, m), int64, False, dim=0, start=0, step=1)
    columns = _made("iota", (n, m), int64, False, dim=1, start=0, step=1)
    out = cast(record(OPS["eq"], (rows, columns)), own)
    return out.requires_grad_() if requires_grad else out


# -- random


def _random(op: str, shape: tuple[int, ...], dtype: DType, generator: Generator | None, *more: Any) -> Tensor:
    if any(n < 0 for n in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    seed, stream = draw(generator)
    keys = (operand(seed, int64), operand(stream, int64), *more)
    return record(OPS[op], keys, (("shape", shape), ("dtype", dtype)))


def rand(
    *size: Any, generator: Generator | None = None, dtype: DTypeLike = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Draw uniformly from [0, 1)."""
    out = _random("random_uniform", ints(size), dtype_of(dtype or float32), generator)
    return out.requires_grad_() if requires_grad else out


def randn(
    *size: Any, generator: Generator | None = None, dtype: DTypeLike = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Draw from the standard normal distribution."""
    out = _random("random_normal", ints(size), dtype_of(dtype or float32), generator)
    return out.requires_grad_() if requires_grad else out


def randint(*args: Any, generator: Generator | None = None, dtype: DTypeLike = None, device: Any = None) -> Tensor:
    """Draw integers: ``randint(high, size)`` or ``randint(low, high, size)``. Dtypes: int64 by default."""
    low, high, size = (0, *args) if len(args) == 2 else args
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    out = _random("random_int", tuple(size), int64, generator, operand(low, int64), operand(high, int64))
    return cast(out, dtype_of(dtype or int64))


def rand_like(input: Tensor, *, dtype: DTypeLike = None, device: Any = None) -> Tensor:
    """Draw from the uniform distribution, in the shape and dtype of ``input``."""
    return rand(input._type.shape, dtype=dtype or input.dtype)


def randn_like(input: Tensor, *, dtype: DTypeLike = None, device: Any = None) -> Tensor:
    """Draw from the normal distribution, in the shape and dtype of ``input``."""
    return randn(input._type.shape, dtype=dtype or input.dtype)


def randperm(n: int, *, generator: Generator | None = None, dtype: DTypeLike = None, device: Any = None) -> Tensor:
    """Give 0..n-1 in a random order."""
    keys = _random("random_bits", (n,), int64, generator)
    return cast(record(OPS["sort"], (keys,), (("dim", 0), ("descending", False)))[1], dtype_of(dtype or int64))


def bernoulli(input: Tensor, *, generator: Generator | None = None) -> Tensor:
    """Draw 1 with the probability given for each element, else 0."""
    drawn = _random("random_uniform", input._type.shape, float64, generator)
    return cast(record(OPS["lt"], (drawn, cast(input, float64))), input.dtype)


def normal(mean: Any, std: Any, size: Any = None, *, generator: Generator | None = None) -> Tensor:
    """Draw from normal distributions; ``mean`` and ``std`` are tensors, or numbers with a ``size``."""
    shape = ints((size,)) if size is not None else next(t for t in (mean, std) if isinstance(t, Handle))._type.shape
    return randn(shape, generator=generator) * std + mean

