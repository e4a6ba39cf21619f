"""Making tensors: from data, constants and ranges.

Next: ``host_data`` (what data is), ``draw`` (random numbers), ``gt.ir.ops.creation`` (meaning).
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gt import session as sessions
from gt.buffers import new_buffer
from gt.devices import check_options
from gt.following import check_tensor
from gt.functions.host_data import converted, host_array
from gt.functions.promote import (
    cast,
    check_fits,
    default_complex,
    get_default_dtype,
    is_number,
    number_of,
    operand,
    real_number,
    scalar_dtype,
)
from gt.functions.shape import ints
from gt.handle import Handle
from gt.ir.blame import warn_user
from gt.ir.evaluate import to_wire
from gt.ir.ops import OPS
from gt.ir.types import CallError, DType, Scalar, TensorType, bfloat16, bool_, dtype_of, float64, int64, scalar_type
from gt.recording import record, tensor_of
from gt.trace import check_fork, state

if TYPE_CHECKING:
    from gt.tensor import Tensor

DTypeLike = DType | str | type | None


def upload(array: np.ndarray, dtype: DType, *, copy: bool = False) -> Tensor:
    """Make a tensor of host data. With ``copy`` it is copied now, to where it travels from: later writes to the array are not seen."""
    check_fork()
    type = TensorType(array.shape, dtype)
    session = sessions.current()
    signal = state.signals[-1] if state.signals else None
    if signal is not None and array.ndim:
        check_tensor(*signal, type)
    if not copy:
        data = to_wire(array, dtype)
    elif dtype is bfloat16:
        data = to_wire(converted(array, dtype), dtype)
    else:
        data = session.room(array.shape, dtype.numpy)
        with np.errstate(invalid="ignore", over="ignore"):  # numbers beyond the dtype become what NumPy makes of them
            np.copyto(data, array, casting="unsafe")
    buffer = new_buffer(type, session)
    session.put(buffer.id, type, data, signal[1] if signal is not None else None)
    return tensor_of(buffer)


COPIED = (
    "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
    "sourceTensor.detach().clone().requires_grad_(True), rather than {}(sourceTensor)."
)


def tensor(
    data: Any, *, dtype: DTypeLike = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """Make a tensor of numbers, nested lists, an array or another tensor. The data is copied.

    Dtypes: Python floats give float32, ints int64, bools bool; arrays keep theirs.
    Errors: ValueError for ragged lists; TypeError for what is not numbers.
    """
    if isinstance(data, Handle):
        warn_user(COPIED.format("gt.tensor"))
        out = copied(data, dtype)
    else:
        check_options("tensor", device)
        array, own = host_array(data)
        wanted = dtype_of(dtype) if dtype is not None else own
        if own is int64 and array.dtype.kind == "f" and wanted.kind in "ui":
            raise ValueError("Overflow when unpacking long long")
        if array.dtype.kind == "c" and wanted.kind in "uif" and isinstance(data, complex | list | tuple):
            real = "must be real number, not complex"
            raise TypeError(real if wanted.kind == "f" else "'complex' object cannot be interpreted as an integer")
        if wanted.kind in "ui" and array.dtype.kind in "uif" and array.size and not isinstance(data, np.ndarray | np.generic):
            check_fits(array.min(), wanted, wanted.name)
            check_fits(array.max(), wanted, wanted.name)
        if array.ndim == 0 and is_number(data):
            number: Any = data if wanted.kind in "ui" else converted(array, wanted).item()  # too large a float is inf
            out = record(OPS["copy"], (operand(number, wanted),))
        else:
            out = upload(array, wanted, copy=True)
    return out.requires_grad_() if requires_grad else out


def copied(data: Tensor, dtype: DTypeLike = None) -> Tensor:
    """Give the values of a tensor, in a dtype, as a leaf of their own."""
    plain = data.detach()
    return record(OPS["copy"], (plain if dtype is None else cast(plain, dtype_of(dtype)),))


def as_tensor(data: Any, dtype: DTypeLike = None, device: Any = None) -> Tensor:
    """Make a tensor of data; a tensor of the right dtype is given back itself."""
    if isinstance(data, Handle):
        return cast(data, dtype_of(dtype)) if dtype is not None else data
    return tensor(data, dtype=dtype)


def asarray(
    obj: Any, *, dtype: DTypeLike = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """Make a tensor of data; a tensor of the right dtype is given back itself unless ``copy``, which keeps its history.

    Errors: ValueError if ``copy=False`` and ``obj`` is not a tensor of that dtype: what comes from outside is always copied.
    """
    if copy is False and not isinstance(obj, Handle):
        raise ValueError("can't alias arbitrary sequence into a tensor." + " Arrays are copied too." * isinstance(obj, np.ndarray))
    if copy is False and dtype is not None and obj.dtype is not dtype_of(dtype):
        into = scalar_type(dtype_of(dtype))
        raise ValueError(f"can't alias tensor with dtype '{scalar_type(obj.dtype)}' into dtype '{into}'.")
    out = as_tensor(obj, dtype, device)
    if copy and out is obj:
        out = record(OPS["copy"], (obj,))
    return out.requires_grad_() if requires_grad else out


def from_numpy(array: np.ndarray, requires_grad: bool = False) -> Tensor:
    """Make a tensor of an array, keeping its dtype. The data is copied at the call: later writes to it are not seen."""
    if not isinstance(array, np.ndarray | np.generic):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    if not array.dtype.isnative:
        raise ValueError(
            "given numpy array has byte order different from the native byte order. Conversion between byte orders is currently not supported."
        )
    return tensor(np.asarray(array), requires_grad=requires_grad)


def frombuffer(
    buffer: Any, *, dtype: DTypeLike, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """Make a 1-d tensor of the bytes of a buffer. They are copied."""
    own = dtype_of(dtype)
    if own.name == "bfloat16":
        words = np.frombuffer(buffer, np.uint16, count, offset).astype(np.uint32)
        return tensor((words << 16).view(np.float32), dtype=own, requires_grad=requires_grad)
    return tensor(np.frombuffer(buffer, own.numpy, count, offset), requires_grad=requires_grad)


def from_dlpack(ext_tensor: Any) -> Tensor:
    """Make a tensor of another library's array, or of a DLPack capsule in the CPU's memory. The data is copied."""
    if type(ext_tensor).__module__.partition(".")[0] == "torch":
        return tensor(ext_tensor)
    if not hasattr(ext_tensor, "__dlpack__"):
        ext_tensor = _Capsule(ext_tensor)
    try:
        return tensor(np.from_dlpack(ext_tensor))
    except (RuntimeError, ValueError):  # a dtype that NumPy has not, as bfloat16; a capsule read before, where torch says so
        return tensor(importlib.import_module("torch").from_dlpack(ext_tensor))


class _Capsule:
    """What gives a capsule as NumPy and torch ask for it."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the CPU's memory


# -- constants


def full(
    size: Sequence[int], fill_value: Any, *, dtype: DTypeLike = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, out: Any = None, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Make a tensor of one value everywhere."""
    check_options("full", device, layout, memory_format, pin_memory, out)
    if isinstance(fill_value, Handle):
        fill_value = fill_value.item()
    own = dtype_of(dtype) if dtype is not None else scalar_dtype(fill_value)
    if isinstance(size, int):
        raise TypeError("full(): argument 'size' (position 1) must be tuple of ints, not int")
    shape = ints((size,))
    if own.kind == "c":
        check_fits(fill_value, own)
        made = (
            record(OPS["expand"], (operand(fill_value, own),), (("shape", shape),))
            if shape
            else operand(fill_value, own)
        )
        result = record(OPS["copy"], (made,))
        return result.requires_grad_() if requires_grad else result
    fill_value = real_number(fill_value, own)
    check_fits(fill_value, own)
    return _made("full", shape, own, requires_grad, value=_plain_number(fill_value, own))


def _plain_number(value: Scalar, dtype: DType) -> Scalar:
    return bool(value) if dtype is bool_ else operand(value, dtype).value if dtype.kind in "ui" else float(value)  # type: ignore[arg-type]


def _made(op: str, shape: tuple[int, ...], dtype: DType, requires_grad: bool, **attrs: Any) -> Tensor:
    out = record(OPS[op], (), (("shape", shape), *attrs.items(), ("dtype", dtype)))
    return out.requires_grad_() if requires_grad else out


def sized(size: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, ...]:
    return ints(size) if size or "size" not in options else ints((options.pop("size"),))


def zeros(*size: Any, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Make a tensor of zeros."""
    return full(sized(size, options), 0, dtype=dtype or get_default_dtype(), **options)


def ones(*size: Any, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Make a tensor of ones."""
    return full(sized(size, options), 1, dtype=dtype or get_default_dtype(), **options)


def empty(*size: Any, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Make a tensor whose values are not promised: zeros, so that runs repeat."""
    return zeros(*size, dtype=dtype, **options)


def empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Make an empty tensor; strides have no meaning before it is viewed."""
    if len(size) != len(stride):
        raise CallError("mismatch in length of strides and shape")
    return zeros(tuple(size), dtype=dtype, **options)


def empty_permuted(
    size: Sequence[int], physical_layout: Sequence[int], *, dtype: DTypeLike = None, **options: Any
) -> Tensor:
    """Make an empty tensor; the order in memory has no meaning here."""
    n = len(size)
    if len(physical_layout) != n:
        raise CallError(
            f"Number of dimensions in size does not match the length of the physical_layout; i.e. len(size) = {n} is not equal to "
            f"len(physical_layout) = {len(physical_layout)}"
        )
    for d in physical_layout:
        if not 0 <= d < max(n, 1):
            raise CallError(
                f"Dimension out of range (expected to be between 0 and {n - 1}, but got {d} at index "
                f"{list(physical_layout).index(d)}).  NB: negative dims not currently supported; file an issue if you want it."
            )
    if len(set(physical_layout)) != n:
        raise CallError("Duplicate dim not allowed")
    return zeros(tuple(size), dtype=dtype, **options)


def scalar_tensor(s: Scalar, *, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Make a 0-d tensor of a number."""
    return full((), s, dtype=dtype or get_default_dtype(), **options)


def zeros_like(input: Tensor, *, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Make zeros of the shape and dtype of ``input``."""
    return full(input._type.shape, 0, dtype=dtype or input.dtype, **options)


def ones_like(input: Tensor, *, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Make ones of the shape and dtype of ``input``."""
    return full(input._type.shape, 1, dtype=dtype or input.dtype, **options)


def empty_like(input: Tensor, *, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Make a tensor of the shape and dtype of ``input``; its values are zeros."""
    return zeros_like(input, dtype=dtype, **options)


def full_like(input: Tensor, fill_value: Any, *, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Make a tensor of the shape and dtype of ``input`` filled with one value."""
    return full(input._type.shape, fill_value, dtype=dtype or input.dtype, **options)


def fill(input: Tensor, value: Any) -> Tensor:
    """Make a tensor of the shape and dtype of ``input`` filled with one value, whose gradient it sums."""
    if not isinstance(value, Handle):
        return full_like(input, value)
    if value.ndim:
        raise CallError(f"fill only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions.")
    return record(OPS["copy"], (record(OPS["expand"], (cast(value, input.dtype),), (("shape", input._type.shape),)),))


def arange(
    *args: Scalar, dtype: DTypeLike = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    pin_memory: bool = False, out: Any = None, start: Any = 0, end: Any = None, step: Any = 1,
) -> Tensor:  # fmt: skip
    """Count: ``arange(end)``, ``arange(start, end)``, ``arange(start, end, step)``. Dtypes: int64 unless a float is given."""
    check_options("arange", device, layout, None, pin_memory, out)
    if args:
        start, end, step = (
            (start, args[0], step)
            if len(args) == 1 and end is None
            else (args[0], end, step)
            if len(args) == 1
            else (*args, step)
            if len(args) == 2
            else args
        )
    start, end, step = (number_of("arange", n, v) for n, v in (("start", start), ("end", end), ("step", step)))
    if step == 0:
        raise CallError("step must be nonzero")
    if not all(math.isfinite(v) for v in (start, end)):
        raise CallError(f"unsupported range: {start} -> {end}")
    if (end - start) / step < 0:
        raise CallError("upper bound and lower bound inconsistent with step sign")
    floats = any(isinstance(a, float) for a in (start, end, step))
    own = dtype_of(dtype) if dtype is not None else (get_default_dtype() if floats else int64)
    n = -((start - end) // step) if not floats else math.ceil((end - start) / step)
    if own.kind in "ui":
        start, step = int(start), int(step)
        if step == 0:
            raise CallError("step must be nonzero")
    return _made("iota", (int(n),), own, requires_grad, dim=0, start=start, step=step)


def inclusive_range(start: Scalar = 0, end: Scalar = 0, step: Scalar = 1, *, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Count from ``start`` to ``end`` itself: torch's old ``range``."""
    warnings.warn(
        "torch.range is deprecated and will be removed in a future release because its behavior is inconsistent with Python's range builtin. "
        "Instead, use torch.arange, which produces values in [start, end).", UserWarning, stacklevel=2,
    )  # fmt: skip
    if step == 0:
        raise CallError("step must be nonzero")
    if (end - start) * (1 if step > 0 else -1) < 0:  # type: ignore[operator]
        raise CallError("upper bound and lower bound inconsistent with step sign")
    count = math.floor((end - start) / step) + 1  # type: ignore[operator]
    own = dtype_of(dtype) if dtype is not None else get_default_dtype()
    return cast(arange(count, dtype=float64, **options) * step + start, own)


def linspace(
    start: Any, end: Any, steps: int, *, dtype: DTypeLike = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    pin_memory: bool = False, out: Any = None,
) -> Tensor:  # fmt: skip
    """Give ``steps`` values evenly from ``start`` to ``end``, both included."""
    check_options("linspace", device, layout, None, pin_memory, out)
    start, end, own = _ends("linspace", start, end, steps, dtype)
    values = _line(start, end, steps, own)
    made = upload(values.astype(own.numpy), own)
    return made.requires_grad_() if requires_grad else made


def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: DTypeLike = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, out: Any = None,
) -> Tensor:  # fmt: skip
    """Give ``steps`` powers of ``base``, with exponents evenly from ``start`` to ``end``."""
    check_options("logspace", device, layout, None, pin_memory, out)
    start, end, own = _ends("logspace", start, end, steps, dtype)
    wide = np.dtype(np.complex128) if own.kind == "c" else np.dtype(np.float64)
    with np.errstate(all="ignore"):
        values = np.power(np.asarray(base, wide), _line(start, end, steps, own, whole=False).astype(wide))
        made = upload(values.astype(own.numpy), own)
    return made.requires_grad_() if requires_grad else made


def _ends(name: str, start: Any, end: Any, steps: int, dtype: DTypeLike) -> tuple[Any, Any, DType]:
    for argument, v in (("start", start), ("end", end)):
        if isinstance(v, Handle) and v.ndim:
            raise CallError(
                f"{name} only supports 0-dimensional start and end tensors, but got {argument} with {v.ndim} dimension(s)."
            )
    if isinstance(steps, float):
        raise TypeError(
            f"{name}() received an invalid combination of arguments - got (int, int, float, ...): steps must be int"
        )
    start, end = number_of(name, "start", start), number_of(name, "end", end)
    if steps is None or steps < 0:
        raise CallError("number of steps must be non-negative")
    is_complex = isinstance(start, complex) or isinstance(end, complex)
    own = dtype_of(dtype) if dtype is not None else (default_complex() if is_complex else get_default_dtype())
    if is_complex and own.kind != "c":
        raise CallError(
            f"torch.{name}(): inferred dtype ComplexFloat can't be safely cast to passed dtype {scalar_type(own)}"
        )
    return start, end, own


def _line(start: Any, end: Any, steps: int, own: DType, whole: bool = True) -> np.ndarray:
    """Count from both ends, as torch does, so that both are met exactly."""
    if own.kind in "ui" and whole:
        start, end = int(start), int(end)
    wide: Any = np.complex128 if own.kind == "c" else np.float64
    if own.name == "float32" and whole:
        wide = np.float32  # torch computes the step in the result's dtype
    if steps == 1:
        return np.array([start], wide)
    with np.errstate(all="ignore"):
        first, last = wide(start), wide(end)
        step = (
            (last - first) / wide(max(steps - 1, 1))
            if own.kind not in "ui" or not whole
            else np.float32((end - start) / max(steps - 1, 1))
        )
        k = np.arange(steps)
        up, down = first + step * k.astype(wide), last - step * (steps - 1 - k).astype(wide)
    return np.where(k < steps // 2, up, down)


def eye(
    n: int, m: int | None = None, *, dtype: DTypeLike = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    pin_memory: bool = False, out: Any = None,
) -> Tensor:  # fmt: skip
    """Make the identity matrix."""
    check_options("eye", device, layout, None, pin_memory, out)
    n, m = ints((n, n if m is None else m))
    if n < 0 or m < 0:
        raise CallError(f"{'n' if n < 0 else 'm'} must be greater or equal to 0, got {n if n < 0 else m}")
    own = dtype_of(dtype) if dtype is not None else get_default_dtype()
    rows = _made("iota", (n, m), int64, False, dim=0, start=0, step=1)
    columns = _made("iota", (n, m), int64, False, dim=1, start=0, step=1)
    made = cast(record(OPS["eq"], (rows, columns)), own)
    return made.requires_grad_() if requires_grad else made
