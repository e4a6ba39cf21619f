"""Recording elementwise ops with torch's type promotion.

Owns: the way from user operands (tensors of any dtype, Python numbers) to the IR's strict operands, and the default dtype.
Next: ``pointwise`` (the functions), ``gt.recording.record``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.handle import Handle
from gt.ir import types as _types
from gt.ir.opdef import OpDef
from gt.ir.ops import OPS
from gt.ir.types import (
    CallError,
    DType,
    Scalar,
    TensorType,
    broadcast_shapes,
    class_name,
    complex64,
    complex_dtype,
    dtype_of,
    float32,
    got,
    real_dtype,
    remedy,
)
from gt.naming import named
from gt.operand import Number
from gt.recording import record, record_pair

if TYPE_CHECKING:
    from gt.tensor import Tensor

CAST, EXPAND = OPS["cast"], OPS["expand"]
COMPLEX = (complex, np.complexfloating)
_pairs: dict[tuple[TensorType, TensorType], DType] = {}
_numbers: dict[tuple[TensorType, type], DType] = {}
DTypeLike = DType | str | type | None


class _Default:
    """The dtype that Python floats get."""

    dtype = float32


def set_default_dtype(d: DType) -> None:
    """Set the dtype of Python floats and of what integers become in real functions. Dtypes: floating point only."""
    if class_name(d) == "torch.dtype":
        d = dtype_of(d)
    if not isinstance(d, DType) or d.kind != "f":
        raise TypeError(f"only floating-point types are supported as the default type, got {d!r}")
    _Default.dtype = d
    _numbers.clear()
    _pairs.clear()


def get_default_dtype() -> DType:
    """Give the dtype of Python floats: float32 unless set."""
    return _Default.dtype


def scalar_dtype(value: Scalar) -> DType:
    """Give the dtype a Python number has by itself."""
    found = _types.scalar_dtype(value)
    return _Default.dtype if found is float32 else default_complex() if found is complex64 else found


def default_complex() -> DType:
    """Give the dtype of Python's complex numbers: the one whose parts have the default dtype."""
    return complex_dtype(_Default.dtype)


def result_dtype(tensors: Iterable[TensorType], numbers: Sequence[Scalar] = ()) -> DType:
    """Give the dtype of an elementwise op, where a number's float is the default dtype."""
    types = list(tensors)
    found = _types.result_type(types, numbers)
    if found is complex64 and all(t.dtype.kind not in "fc" for t in types):
        return default_complex()
    if found is float32 and _Default.dtype is not float32 and all(t.dtype.kind != "f" for t in types):
        return _Default.dtype
    return found


def result_type(tensor1: Tensor | Scalar, tensor2: Tensor | Scalar) -> DType:
    """Give the dtype of an arithmetic op on these two."""
    both = (tensor1, tensor2)
    return result_dtype(
        [t._type for t in both if isinstance(t, Handle)], [t for t in both if not isinstance(t, Handle)]
    )


def can_cast(from_: DType, to: DType) -> bool:
    """Say whether a value of one dtype may be written to a tensor of another: never to a lower kind."""
    rank = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    return rank[dtype_of(from_).kind] <= rank[dtype_of(to).kind]


def cast(t: Any, dtype: DType) -> Any:
    """Convert to ``dtype``; the same tensor if it has it."""
    return t if t._type.dtype is dtype else record(CAST, (t,), (("dtype", dtype),))


def wide(t: Any) -> Any:
    """Give a half in float32, for what is computed in several steps and rounded once; anything else itself."""
    return cast(t, float32) if t._type.dtype.kind == "f" and t._type.dtype.itemsize == 2 else t


def converted(t: Any, dtype: DType) -> Any:
    """Convert an operand as part of an op, which torch lets read the tensor itself: changes of it count as changes of what is read."""
    if t._type.dtype is dtype:
        return t
    out = record(CAST, (t,), (("dtype", dtype),))
    out._trace.moved[out._index] = out._trace.code[-1][1][0]
    return out


def number_dtype(t: Handle, value: Scalar) -> DType:
    """Give the dtype of an op between a tensor and a Python number."""
    key = (t._type, value.__class__)
    dtype = _numbers.get(key)
    if dtype is None:
        dtype = _numbers[key] = result_dtype((t._type,), (value,))
    return dtype


def pair_dtype(a: Handle, b: Handle) -> DType:
    key = (a._type, b._type)
    dtype = _pairs.get(key)
    if dtype is None:
        dtype = _pairs[key] = result_dtype(key)
    return dtype


def operand(value: Scalar, dtype: DType) -> Number:
    """Make a Python number a run-time scalar of ``dtype``."""
    check_int(value)
    kind = dtype.kind
    if kind != "c" and isinstance(value, COMPLEX):
        value = real_number(value, dtype)
    if kind in "ui":
        bits = 8 * dtype.itemsize
        value = int(value) & ((1 << bits) - 1)  # type: ignore[arg-type]
        if kind == "i" and value >> (bits - 1):
            value -= 1 << bits
    elif kind == "f":
        value = float(value.real if isinstance(value, complex) else value)  # type: ignore[arg-type]
    elif kind == "b":
        value = bool(value)
    elif kind == "c":
        value = complex(value)
    return Number(value, dtype)


def real_number(value: Any, dtype: DType) -> Any:
    """Give a complex number for a dtype that is not. Errors: RuntimeError for an imaginary part other than 0, unless for a bool."""
    if dtype.kind == "c" or not isinstance(value, COMPLEX):
        return value
    if dtype.kind == "b":
        return bool(value)
    if value.imag:
        raise CallError(f"value cannot be converted to type {C_NAMES[dtype.name]} without overflow")
    return int(value.real) if dtype.kind in "ui" else value.real


C_NAMES = {
    "uint8": "uint8_t", "int8": "int8_t", "int16": "int16_t", "int32": "int", "int64": "int64_t", "float32": "float",
    "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
}  # fmt: skip


def c_name(dtype: DType) -> str:
    """Give the name of the C type that some of torch's messages have for a dtype: long int for int64."""
    named = {"int64": "long int", "int16": "short int", "int8": "signed char", "uint8": "unsigned char"}
    return named.get(dtype.name) or C_NAMES.get(dtype.name, dtype.name)


def check_int(value: Any) -> None:
    """Refuse a Python integer beyond 64 bits, whatever it is combined with. Errors: OverflowError, as torch."""
    if value.__class__ is int and not -(1 << 63) <= value < 1 << 64:
        raise OverflowError("int too big to convert" if value > 0 else "can't convert negative int to unsigned")


def check_fits(value: Any, dtype: DType, name: str = "") -> None:
    """Refuse a finite number that a dtype cannot hold, as torch where a number becomes a tensor's element.

    uint8 takes -255..255, and a float loses its fraction. ``name``: of the dtype in the message, torch's C type if not given.
    """
    check_int(value)
    kind = dtype.kind
    if kind == "b":
        return
    if isinstance(value, complex | np.complexfloating) and kind != "c" and value.imag:
        raise CallError(f"value cannot be converted to type {name or C_NAMES[dtype.name]} without overflow")
    if kind in "ui":
        top = (1 << (8 * dtype.itemsize - (kind == "i"))) - 1
        part = value.real if isinstance(value, complex) else value
        low = -top - (kind == "i")
        fits = math.isfinite(part) and low <= int(part) <= top
    else:
        top_ = largest(real_dtype(dtype))
        parts = (value.real, value.imag) if isinstance(value, complex | np.complexfloating) else (value,)
        fits = all(not math.isfinite(p) or -top_ <= p <= top_ for p in parts)
    if not fits:
        raise CallError(f"value cannot be converted to type {name or C_NAMES[dtype.name]} without overflow")


def largest(dtype: DType) -> float:
    """Give the largest finite number of a floating point dtype."""
    return 3.3895313892515355e38 if dtype.name == "bfloat16" else float(np.finfo(dtype.numpy).max)  # type: ignore[type-var]


def is_number(value: object) -> bool:
    return isinstance(value, int | float | complex | np.number | np.bool_)


def refuse(name: str, value: object, argument: str = "") -> TypeError:
    where = f"argument {argument} must be Tensor, not" if argument else "expected a gt.Tensor or a number, got"
    more = "; use gt.tensor(...) or gt.from_numpy(...) first" if isinstance(value, np.ndarray | list | tuple) else ""
    return TypeError(f"{name}(): {where} {got(value)}{more}")


def is_compared(name: str, value: object) -> bool:
    """Say whether a value is a tensor or a number. Errors: TypeError for another library's array, which is not just another object."""
    if isinstance(value, Handle) or is_number(value):
        return True
    if hasattr(value, "__array__"):
        raise refuse(name, value)
    return False


def need_tensor(name: str, **arguments: Any) -> None:
    """Raise TypeError, with torch's text, unless all are tensors."""
    for at, (argument, value) in enumerate(arguments.items(), 1):
        if not isinstance(value, Handle):
            raise refuse(name, value, f"'{argument}' (position {at})")


def refuse_torch(name: str, *values: object) -> None:
    """Raise TypeError for torch's tensors, where what is no tensor is taken by value."""
    for value in values:
        if remedy(value):
            raise refuse(name, value)


def number_of(name: str, argument: str, value: Any) -> Any:
    """Give a number, read from a tensor of no dims. Errors: TypeError, with torch's text, for all else."""
    if isinstance(value, Handle) and not value._type.shape:
        return value.item()
    if not is_number(value):
        raise TypeError(f"{name}(): argument '{argument}' must be Number, not {got(value)}")
    return value.item() if isinstance(value, np.generic) else value


def binary(op: OpDef, a: Any, b: Any, floating: bool = False) -> Any:
    """Record an elementwise op of two operands; ``floating``: integers become the default float first."""
    if isinstance(a, Handle):
        if isinstance(b, Handle):
            if a._type.dtype is b._type.dtype:
                dtype = a._type.dtype
                if not floating or dtype.kind in "fc":
                    return record(op, (a, b), (), 3)
            else:
                dtype = pair_dtype(a, b)
            if floating and dtype.kind not in "fc":
                dtype = _Default.dtype
            return record(op, (converted(a, dtype), converted(b, dtype)))
        if b.__class__ is float and a._type.dtype.kind == "f":
            return record(op, (a, Number(b, a._type.dtype)), (), 3)
        if not is_number(b):
            raise refuse(op.name, b)
        dtype = number_dtype(a, b)
        if floating and dtype.kind not in "fc":
            dtype = _Default.dtype
        return record(op, (converted(a, dtype), operand(b, dtype)))
    if not isinstance(b, Handle) or not is_number(a):
        raise refuse(op.name, b if isinstance(a, Handle) or is_number(a) else a)
    dtype = number_dtype(b, a)
    if floating and dtype.kind not in "fc":
        dtype = _Default.dtype
    return record(op, (operand(a, dtype), converted(b, dtype)))


def operator(op: OpDef, function: Callable[[Any, Any], Any], kinds: str = "buifc") -> Callable[[Any, Any], Any]:
    """Give ``function``, which records ``op``, as an operator's method; ``kinds``: of the dtypes that it records as they are."""

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, Handle):
            dtype = self._type.dtype
            if other._type.dtype is dtype and dtype.kind in kinds:
                return record_pair(op, self, other)
        return function(self, other)

    return named(method, op.name, function.__doc__)


def promoted(*values: Any, floating: bool = False) -> list[Any]:
    """Give operands of one dtype for an op of several: tensors cast, numbers made run-time scalars."""
    tensors = [v._type for v in values if isinstance(v, Handle)]
    dtype = result_dtype(tensors, [v for v in values if not isinstance(v, Handle)])
    if floating and dtype.kind not in "fc":
        dtype = _Default.dtype
    return [converted(v, dtype) if isinstance(v, Handle) else operand(v, dtype) for v in values]


def broadcast(*tensors: Any) -> list[Any]:
    """Expand to the shape all broadcast to."""
    shape = broadcast_shapes(*(t._type.shape for t in tensors))
    return [t if t._type.shape == shape else record(EXPAND, (t,), (("shape", shape),)) for t in tensors]


def floated(t: Any) -> Any:
    """Give a tensor of real or complex numbers; integers become the default float."""
    return t if t._type.dtype.kind in "fc" else cast(t, _Default.dtype)


def float_unary(op: OpDef, t: Tensor) -> Tensor:
    """Record a function of real numbers; integers become the default float first."""
    if not isinstance(t, Handle):
        raise refuse(op.name, t)
    return record(op, (t if t._type.dtype.kind in "fc" else cast(t, _Default.dtype),))


def unary(op: OpDef, t: Tensor) -> Tensor:
    if not isinstance(t, Handle):
        raise refuse(op.name, t)
    return record(op, (t,))


def without_gradient(text: str, *values: Any, error: type[RuntimeError] = NotImplementedError) -> list[Any]:
    """Give the values, of which a backward that reaches them raises: those with ``requires_grad`` under another name."""

    def refuse_backward(g: Any) -> Any:
        raise error(text)

    given = []
    for value in values:
        if isinstance(value, Handle) and value._rg:
            named = record(OPS["copy"], (value,))
            if named._rg:
                named.register_hook(refuse_backward)  # type: ignore[attr-defined]
                value = named
        given.append(value)
    return given


def linked(text: str, value: Any, source: Any, error: type[RuntimeError] = NotImplementedError) -> Any:
    """Give a value that does not lead back to its ``source``: it requires a gradient if that does, and has none, as torch's."""
    (named,) = without_gradient(text, source, error=error)
    if named is source or value._type.dtype.kind not in "fc":
        return value
    nothing = record(OPS["sum"], (named,), (("dims", tuple(range(source.ndim))), ("keepdim", False), ("dtype", value._type.dtype)))
    always = record(OPS["full"], (), (("shape", ()), ("value", True), ("dtype", _types.bool_)))
    return record(OPS["where"], (always, value, nothing))
