"""What host data is: numbers, nested lists and other libraries' arrays as a NumPy array, and the dtype that torch would infer.

Next: ``create`` (which makes tensors of it).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gt.functions.promote import get_default_dtype, is_number, scalar_dtype
from gt.handle import Handle
from gt.ir.types import CallError, DType, bfloat16, dtype_of, int64, promote_types


def host_array(data: Any) -> tuple[np.ndarray, DType]:
    """Give an array of user data and the dtype that torch would infer."""
    if isinstance(data, np.ndarray | np.generic):
        array = np.asarray(data)
        return array, dtype_of(array.dtype)
    if type(data).__module__.partition(".")[0] == "torch" and hasattr(data, "detach"):
        data, narrow = data.detach().cpu(), str(data.dtype) == "torch.bfloat16"  # which NumPy has not
        array = np.asarray(data.float() if narrow else data.resolve_conj().resolve_neg())
        return array, bfloat16 if narrow else dtype_of(array.dtype)
    if hasattr(data, "__array__") and not isinstance(data, list | tuple):
        array = np.asarray(data)
        return array, dtype_of(array.dtype)
    if is_number(data):
        return np.asarray(float(data) if _too_long(data) else data), scalar_dtype(data)
    if isinstance(data, str | bytes):
        raise TypeError(f"new(): invalid data type '{type(data).__name__}': expected numbers, lists or arrays")
    if not _is_sequence(type(data)):
        raise CallError(f"Could not infer dtype of {type(data).__name__}: expected numbers, lists or arrays")
    given = data = _listed(data)
    tensors = list(_tensors(data))
    if tensors:
        data = _plain(data, all(t._type.numel == 1 for t in tensors))
    try:
        array = np.array(data)
    except ValueError:
        _refuse_ragged(data)
        raise
    if array.dtype.kind in "SU":
        raise ValueError("too many dimensions 'str': expected numbers")
    if array.dtype.kind in "Ouf" and (array.dtype.kind != "f" or np.abs(array).max(initial=0.0) >= 2.0**63):
        long = _any(data, _too_long)
        if long and not _any(data, lambda v: isinstance(v, complex)):
            return np.array(data, np.float64), get_default_dtype() if _any(data, lambda v: isinstance(v, float)) else int64
    if array.dtype == object:
        bad = next((type(v).__name__ for v in np.ravel(array) if not is_number(v)), "int")
        if bad == "int":
            raise ValueError("Overflow when unpacking long long")
        raise CallError(f"Could not infer dtype of {bad}: expected numbers")
    if array.size == 0:
        return array.astype(np.float32), get_default_dtype()
    return array, functools.reduce(promote_types, _dtypes(given, set()))


def _is_sequence(kind: type[Any]) -> bool:
    """Say whether data of a class is a sequence of data, as a deque is."""
    if issubclass(kind, list | tuple | range):
        return True
    single = hasattr(kind, "__array__") or issubclass(kind, str | bytes | dict | Handle)
    return hasattr(kind, "__getitem__") and hasattr(kind, "__len__") and not single


def _listed(data: Any) -> Any:
    """Give sequences of other classes in nested ones, such as deques, as lists."""
    if not any(map(_is_sequence, set(map(type, data)))):
        return data if isinstance(data, list | tuple | range) else list(data)
    return [_listed(v) if _is_sequence(type(v)) else v for v in data]


def _dtypes(data: Any, found: set[DType]) -> set[DType]:
    """Give the dtypes in nested lists: a number of Python's has its own one, anything else the one it says."""
    for kind in set(map(type, data)):
        if issubclass(kind, list | tuple | range):
            for part in data:
                if isinstance(part, kind):
                    _dtypes(part, found)
        elif issubclass(kind, np.generic | np.ndarray | Handle):
            found.update(dtype_of(v.dtype) for v in data if isinstance(v, kind))
        else:
            found.add(scalar_dtype(kind()))
    return found


def _refuse_ragged(data: Any) -> None:
    """Raise what torch raises for the first list that does not fit the first ones of its level."""
    sizes, first = [], data
    while isinstance(first, list | tuple | range) and len(first):
        sizes.append(len(first))
        first = first[0]

    def check(part: Any, dim: int) -> None:
        if dim == len(sizes):
            if isinstance(part, list | tuple):
                raise TypeError(f"must be real number, not {type(part).__name__}")
            return
        if not isinstance(part, list | tuple | range | np.ndarray):
            raise TypeError(f"not a sequence: expected {sizes[dim]} elements at dim {dim}, got {type(part).__name__}")
        if len(part) != sizes[dim]:
            raise ValueError(f"expected sequence of length {sizes[dim]} at dim {dim} (got {len(part)})")
        for each in part:
            check(each, dim + 1)

    check(data, 0)


def _too_long(value: Any) -> bool:
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 63


def _any(data: Any, test: Callable[[Any], bool]) -> bool:
    return any(_any(v, test) for v in data) if isinstance(data, list | tuple | range) else test(data)


def _tensors(data: Any) -> Iterator[Any]:
    for part in data:
        if isinstance(part, Handle):
            yield part
        elif isinstance(part, list | tuple):
            yield from _tensors(part)


def _plain(data: Any, numbers: bool) -> Any:
    """Give nested lists with the values of their tensors. ``numbers``: one of one element counts as a number, whatever its shape."""
    if isinstance(data, Handle):
        return data.item() if numbers else data.tolist()
    return [_plain(x, numbers) for x in data] if isinstance(data, list | tuple) else data


def converted(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Give a copy in another dtype; numbers beyond it become what NumPy makes of them, without a warning."""
    with np.errstate(invalid="ignore", over="ignore"):
        out = array.astype(dtype.numpy, copy=True)
    return np.ascontiguousarray(out).reshape(array.shape)


__all__ = ["converted", "host_array"]
