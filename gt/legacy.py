"""torch's old constructors: ``Tensor(2, 3)``, ``Tensor([1, 2])``, ``FloatTensor`` and its kin, ``Tensor.new``.

Owns: what their arguments mean, and the types as classes for ``isinstance``. Next: ``functions.create`` (what they make).
"""

from __future__ import annotations

from typing import Any

from gt.functions import create
from gt.functions.promote import get_default_dtype, set_default_dtype
from gt.handle import Handle
from gt.ir import types
from gt.ir.types import CallError, DType, dtype_of, scalar_type
from gt.shape import Size


def make(args: tuple[Any, ...], options: dict[str, Any], dtype: DType, any_dtype: bool = False) -> Any:
    """Give what an old constructor makes: zeros of sizes, or a tensor of data. ``any_dtype``: a tensor given keeps its own dtype."""
    options.pop("device", None)
    if "data" in options or "size" in options:
        args = (*args, options.pop("data", None) if "data" in options else Size(options.pop("size")))
    if options:
        raise TypeError(f"new() received an invalid combination of arguments: got {', '.join(options)}")
    if not args:
        return create.zeros(0, dtype=dtype)
    first = args[0]
    if len(args) == 1 and isinstance(first, Handle):
        if first._type.dtype is not dtype and not any_dtype:
            raise TypeError(
                f"new(): expected a tensor of dtype {scalar_type(dtype)}, got {scalar_type(first._type.dtype)}: use .to({dtype!r})"
            )
        return first.detach()
    if all(hasattr(a, "__index__") and not getattr(a, "shape", ()) for a in args) or (len(args) == 1 and isinstance(first, Size)):
        sizes = tuple(first) if isinstance(first, Size) else tuple(int(a) for a in args)
        bad = next((n for n in sizes if n < 0), None)
        if bad is not None:
            raise CallError(f"Trying to create tensor with negative dimension {bad}: {list(sizes)}")
        return create.zeros(*sizes, dtype=dtype) if sizes else create.zeros((), dtype=dtype)
    if len(args) > 1:
        raise TypeError(f"new() received an invalid combination of arguments - got ({', '.join(type(a).__name__ for a in args)})")
    if isinstance(first, str):
        raise TypeError("new(): invalid data type 'str'")
    if isinstance(first, float | complex):
        raise TypeError(f"new(): data must be a sequence (got {type(first).__name__})")
    return create.tensor(first, dtype=dtype)


def typename(obj: Any, /) -> str:
    """Give the full name of an object's type, of a class or a function its own; of a tensor torch's name, as ``'torch.FloatTensor'``."""
    if isinstance(obj, Handle):
        return f"torch.{scalar_type(obj._type.dtype)}Tensor"
    named = obj if hasattr(obj, "__qualname__") or hasattr(obj, "__name__") else type(obj)
    module = getattr(named, "__module__", "") or ""
    name = str(getattr(named, "__qualname__", None) or named.__name__)
    return name if module in ("", "builtins") else f"{module}.{name}"


class TensorType(type):
    """The class of FloatTensor and its kin: called, they make tensors; a tensor is an instance if it has their dtype."""

    dtype: DType

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return make(args, options, cls.dtype)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Handle) and instance._type.dtype is cls.dtype


def _type(name: str, dtype: DType) -> TensorType:
    return TensorType(
        name, (), {"dtype": dtype, "__doc__": f"Tensors of {dtype.name}, by torch's old name.", "__module__": "gt.legacy"}
    )


FloatTensor, DoubleTensor = _type("FloatTensor", types.float32), _type("DoubleTensor", types.float64)
HalfTensor, BFloat16Tensor = _type("HalfTensor", types.float16), _type("BFloat16Tensor", types.bfloat16)
LongTensor, IntTensor, ShortTensor = (
    _type("LongTensor", types.int64),
    _type("IntTensor", types.int32),
    _type("ShortTensor", types.int16),
)
CharTensor, ByteTensor, BoolTensor = (
    _type("CharTensor", types.int8),
    _type("ByteTensor", types.uint8),
    _type("BoolTensor", types.bool_),
)


def set_default_tensor_type(t: Any) -> None:
    """Set the dtype of Python floats by a tensor type or its name. Deprecated in torch: use ``set_default_dtype``."""
    if isinstance(t, str):
        known = {f"torch.{k.__name__}": k for k in (FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor)}
        if t.replace("gt.", "torch.").replace(".cuda", "") not in known:
            raise TypeError(f"invalid type object: only floating-point types are supported as the default type, got {t!r}")
        t = known[t.replace("gt.", "torch.").replace(".cuda", "")]
    if not isinstance(t, TensorType):
        raise TypeError(f"invalid type object: {t!r}")
    set_default_dtype(t.dtype)


def tensor_of(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Give what ``Tensor(...)`` makes."""
    return make(args, options, dtype_of(get_default_dtype()), any_dtype=True)


__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor",
    "ShortTensor", "TensorType", "make", "set_default_tensor_type", "tensor_of",
]  # fmt: skip
