"""Element types and tensor types: what a value is, before and after it is placed.

Owns: ``DType`` and its promotion rules (torch's), ``TensorType``, and the error every shape or dtype rule raises.
Must not know: tensors, graphs, torch. Next: ``mesh`` (placement), ``graph`` (values and nodes).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np

from gt.ir.blame import Located, warn_user
from gt.ir.mesh import Sharding

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Kind: TypeAlias = Literal["b", "u", "i", "f", "c"]
Shape: TypeAlias = tuple[int, ...]
Scalar: TypeAlias = bool | int | float | complex


class TypeMismatch(Located, TypeError):
    """An op was given operands whose shapes or dtypes it cannot take. Raised at the user's line."""


class ShapeError(TypeMismatch, RuntimeError, ValueError):
    """Shapes that do not fit together; also a RuntimeError, which is what torch raises."""


class KindError(TypeMismatch, NotImplementedError):
    """A dtype that an op is not made for; also a NotImplementedError, which is what torch raises."""


class EmptyError(ShapeError, IndexError):
    """A reduction over no elements that has no value; also an IndexError, which is what torch raises."""


class DimError(Located, IndexError):
    """A dim or index outside the tensor's range."""


class CallError(Located, RuntimeError):
    """A call that cannot be for another reason; a RuntimeError, which is what torch raises."""


class DType:
    """An element type. Interned: one object per name, compared by identity."""

    __slots__ = ("name", "itemsize", "kind", "numpy", "index")
    by_name: ClassVar[dict[str, DType]] = {}

    name: str
    itemsize: int
    kind: Kind
    numpy: np.dtype[np.generic]
    index: int

    def __init__(self, name: str, itemsize: int, kind: Kind, storage: str) -> None:
        self.name, self.itemsize, self.kind = name, itemsize, kind
        self.numpy = np.dtype(storage)  # what the NumPy engine computes in; bfloat16 is float32 rounded to 8 bits
        self.index = len(DType.by_name)
        DType.by_name[name] = self

    def __repr__(self) -> str:
        return f"gt.{self.name}"

    def __eq__(self, other: object) -> bool:
        """Compare by identity. The text of a name is equal, with a warning: dtypes once were text."""
        if other.__class__ is str and other in DType.by_name:
            warn_user(f"a dtype is no text now: compare with gt.{other}, not {other!r}")
            return self.name == other
        return self is other

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[type[_Lookup], tuple[str]]:
        return _Lookup, (self.name,)

    @property
    def is_floating_point(self) -> bool:
        return self.kind == "f"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def is_signed(self) -> bool:
        return self.kind in "ifc"

    def to_complex(self) -> DType:
        """Give the complex dtype whose parts have this dtype."""
        return complex_dtype(self)

    def to_real(self) -> DType:
        """Give the dtype of a complex dtype's parts."""
        return real_dtype(self)

    @property
    def is_differentiable(self) -> bool:
        return self.kind in "fc"


class _Lookup:
    """Unpickles to the interned DType."""

    def __new__(cls, name: str) -> DType:  # type: ignore[misc]
        return DType.by_name[name]


bool_ = DType("bool", 1, "b", "bool")
uint8 = DType("uint8", 1, "u", "uint8")
int8 = DType("int8", 1, "i", "int8")
int16 = DType("int16", 2, "i", "int16")
int32 = DType("int32", 4, "i", "int32")
int64 = DType("int64", 8, "i", "int64")
float16 = DType("float16", 2, "f", "float16")
bfloat16 = DType("bfloat16", 2, "f", "float32")
float32 = DType("float32", 4, "f", "float32")
float64 = DType("float64", 8, "f", "float64")
complex64 = DType("complex64", 8, "c", "complex64")
complex128 = DType("complex128", 16, "c", "complex128")

HALVES = (float16, bfloat16)
DTYPES: tuple[DType, ...] = tuple(DType.by_name.values())
SHORT: dict[DType, str] = {
    bool_: "b8", uint8: "u8", int8: "i8", int16: "i16", int32: "i32", int64: "i64",
    float16: "f16", bfloat16: "bf16", float32: "f32", float64: "f64", complex64: "c64",
    complex128: "c128",
}  # fmt: skip
SCALAR_TYPES = {
    "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long", "float16": "Half",
    "bfloat16": "BFloat16", "float32": "Float", "float64": "Double", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip
LONG: dict[str, DType] = {short: dtype for dtype, short in SHORT.items()}
_FROM_NUMPY = {d.numpy: d for d in reversed(DTYPES) if d is not bfloat16}


def scalar_type(dtype: DType) -> str:
    """Give the name that torch's messages have for a dtype: Long for int64."""
    return SCALAR_TYPES[dtype.name]


def dtype_of(value: DType | str | type | np.dtype[np.generic]) -> DType:
    """Give the DType for a DType, its name (``"float32"``), a NumPy dtype, or Python's bool/int/float/complex."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in DType.by_name:
        return DType.by_name[value]
    if isinstance(value, type) and value in (bool, int, float, complex):
        return {bool: bool_, int: int64, float: float64, complex: complex128}[value]
    name = str(value)
    if name.startswith("torch.") and name[6:] in DType.by_name:
        return DType.by_name[name[6:]]
    try:
        return _FROM_NUMPY[np.dtype(value)]
    except (TypeError, ValueError, KeyError):
        raise TypeError(f"dtype {value!r} is not supported: use one of {', '.join(DType.by_name)}") from None


def real_dtype(dtype: DType) -> DType:
    """Give the dtype of a complex dtype's parts and absolute values; a real dtype itself."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def complex_dtype(dtype: DType) -> DType:
    """Give the complex dtype whose parts are of a real dtype, complex64 for all but float64; a complex dtype itself."""
    return dtype if dtype.kind == "c" else complex128 if dtype is float64 else complex64


# -- promotion: torch.promote_types, by category and then by width
_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def promote_types(type1: DType, type2: DType) -> DType:
    """Give the smallest dtype that both convert to. Source: torch.promote_types."""
    if type1 is type2:
        return type1
    if not (isinstance(type1, DType) and isinstance(type2, DType)):
        type1, type2 = dtype_of(type1), dtype_of(type2)  # torch's
    ca, cb = _CATEGORY[type1.kind], _CATEGORY[type2.kind]
    if ca != cb:
        low, high = (type1, type2) if ca < cb else (type2, type1)
        return complex128 if high is complex64 and low is float64 else high
    if ca == 2:
        if {type1, type2} == {float16, bfloat16}:
            return float32
        return type1 if type1.itemsize > type2.itemsize else type2
    if uint8 in (type1, type2):
        other = type2 if type1 is uint8 else type1
        return int16 if other is int8 else other
    return type1 if type1.itemsize > type2.itemsize else type2


def result_type(tensors: Iterable[TensorType], scalars: Iterable[Scalar] = ()) -> DType:
    """Give the dtype of an elementwise op over tensors and Python scalars. Source: torch.result_type.

    Tensors with dims outrank 0-d tensors, which outrank Python scalars; a lower rank only counts when its category is
    higher.
    """
    dims: DType | None = None
    zero: DType | None = None
    for t in tensors:
        if t.shape:
            dims = t.dtype if dims is None else promote_types(dims, t.dtype)
        else:
            zero = t.dtype if zero is None else promote_types(zero, t.dtype)
    wrapped: DType | None = None
    for s in scalars:
        d = scalar_dtype(s)
        wrapped = d if wrapped is None else promote_types(wrapped, d)
    result = dims
    for lower in (zero, wrapped):
        if lower is None:
            continue
        if result is None:
            result = lower
        elif _CATEGORY[lower.kind] > _CATEGORY[result.kind]:
            result = complex_dtype(result) if lower.kind == "c" and result.kind == "f" else promote_types(result, lower)
    assert result is not None, "result_type of nothing"
    return result


def scalar_dtype(value: Scalar) -> DType:
    """Give the default dtype of a Python scalar: bool, int64, float32 or complex64."""
    if isinstance(value, bool | np.bool_):
        return bool_
    if isinstance(value, int | np.integer):
        return int64
    if isinstance(value, float | np.floating):
        return float32
    if isinstance(value, complex | np.complexfloating):
        return complex64
    raise TypeError(f"expected a number, got {class_name(value)}")


def class_name(value: object) -> str:
    """Give the name of a value's class for a text; of torch's classes, whose names gt's have too, with where they are from."""
    name = type(value).__name__
    return f"torch.{name}" if type(value).__module__.partition(".")[0] == "torch" else name


def got(value: object) -> str:
    """Give what ends a text that says what stands where a tensor is wanted: its class, and what to do with torch's tensors."""
    return class_name(value) + remedy(value)


def remedy(value: object) -> str:
    """Give what a text says besides of a tensor of torch's, nothing of all else."""
    return "; use gt.tensor(...) first" if class_name(value) in ("torch.Tensor", "torch.Parameter") else ""


class TensorType:
    """Shape, dtype and, once placed, sharding. Interned: equal types are one object, so memo keys hash fast.

    ``shape`` is the global shape until the ``localize`` pass, and each worker's own shape after it.
    """

    __slots__ = ("shape", "dtype", "sharding", "numel", "nbytes", "ndim", "differentiable", "__weakref__")
    _interned: ClassVar[dict[tuple[Shape, DType, Sharding | None], TensorType]] = {}

    shape: Shape
    dtype: DType
    sharding: Sharding | None
    numel: int
    nbytes: int
    ndim: int
    differentiable: bool

    def __new__(cls, shape: Shape, dtype: DType, sharding: Sharding | None = None) -> TensorType:
        key = (shape, dtype, sharding)
        found = cls._interned.get(key)
        if found is None:
            shape = tuple(map(operator.index, shape))  # else a later shape that is equal to one of floats would be those
            key = (shape, dtype, sharding)
            found = object.__new__(cls)
            found.shape, found.dtype, found.sharding = shape, dtype, sharding
            found.numel = math.prod(shape)
            found.nbytes = found.numel * dtype.itemsize
            found.ndim, found.differentiable = len(shape), dtype.kind in "fc"
            cls._interned[key] = found
        return found

    def placed(self, sharding: Sharding | None) -> TensorType:
        return TensorType(self.shape, self.dtype, sharding)

    def __repr__(self) -> str:
        dims = []
        for i, size in enumerate(self.shape):
            axes = self.sharding.dims[i] if self.sharding else ()
            dims.append(f"{size}" + "".join(f"@{a}" for a in axes))
        text = f"{SHORT[self.dtype]}[{', '.join(dims)}]"
        if self.sharding:
            for axis, op in self.sharding.partial:
                text += f" +{axis}" if op == "sum" else f" +{axis}:{op}"
            text += f" on {self.sharding.mesh.name}"
        return text


# -- shape rules shared by many ops


def is_int(value: object) -> TypeIs[int]:
    """Say whether a size or a dim is one int, be it NumPy's or a tensor of no dims, rather than several."""
    return isinstance(value, int) or (hasattr(value, "__index__") and not getattr(value, "ndim", 0))


def check_sizes(shape: Shape) -> None:
    """Refuse a shape with a negative size. Errors: CallError with torch's text."""
    for size in shape:
        if size < 0:
            raise CallError(f"Trying to create tensor with negative dimension {size}: {list(shape)}")


def normalize_dim(dim: int, ndim: int) -> int:
    """Map a possibly negative dim to ``0..ndim-1``. Errors: DimError with torch's text; TypeError for a bool."""
    if dim.__class__ is not int:
        if isinstance(dim, bool):
            raise TypeError("argument 'dim' must be int, not bool")
        dim = operator.index(dim)
    low, high = -max(ndim, 1), max(ndim, 1) - 1
    if not low <= dim <= high:
        raise DimError(f"Dimension out of range (expected to be in range of [{low}, {high}], but got {dim})")
    return dim + max(ndim, 1) if dim < 0 else dim


def normalize_dims(dims: int | Iterable[int] | None, ndim: int) -> tuple[int, ...]:
    """Map a dim, several dims or None (all) to a sorted tuple without repeats."""
    if dims is None:
        return tuple(range(ndim))
    one = hasattr(dims, "__index__") and not getattr(dims, "ndim", 0)
    given: tuple[Any, ...] = (dims,) if one else tuple(dims)  # type: ignore[arg-type]
    if not given:
        return tuple(range(ndim))
    out = tuple(normalize_dim(d, ndim) for d in given)
    if len(set(out)) != len(out):
        raise RuntimeError(f"dim {next(d for d in out if out.count(d) > 1)} appears multiple times in the list of dims")
    return tuple(sorted(out)) if ndim else ()


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Give the shape all broadcast to. Errors: ShapeError with torch's text."""
    ndim = max(map(len, shapes), default=0)
    out = [1] * ndim
    for shape in shapes:
        for i in range(ndim - 1, ndim - 1 - len(shape), -1):
            size = shape[i - ndim]
            if size != 1:
                if out[i] not in (1, size):
                    raise ShapeError(
                        f"The size of tensor a ({out[i]}) must match the size of tensor b ({size}) "
                        f"at non-singleton dimension {i}"
                    )
                out[i] = size
    return tuple(out)
