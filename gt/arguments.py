"""What is said when a call is given arguments it cannot take: torch's text, with the function's and the argument's name.

Functions do not look at their arguments' classes one by one, which would cost every call. A call that fails is looked at
afterwards: an argument that its annotation does not allow is what the error is about, and an error that Python raised on the way
is told by what was given. Next: ``gt.__init__`` (who guards).
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import types
from collections.abc import Callable, Iterable
from typing import Any

from gt.autocasting import autocasting
from gt.handle import Handle
from gt.ir.blame import Located
from gt.ir.types import ShapeError, class_name, got

Allowed = Callable[[object], bool]
ARITHMETIC = frozenset({  # as the operators, these say themselves what they cannot take; a guard would cost a quarter of recording them
    "add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "pow", "lt", "le", "gt", "ge", "less", "less_equal",
    "greater", "greater_equal", "eq", "ne", "matmul", "mm",
})  # fmt: skip
OURS = ("gt.functions.", "gt.nn.functional.", "gt.tensor", "gt.handle")  # where functions are that call nobody else's


def _is_int(value: object) -> bool:
    return hasattr(value, "__index__") and not (isinstance(value, Handle) and value._type.shape)


def _is_number(value: object) -> bool:
    return hasattr(value, "__float__") and not (isinstance(value, Handle) and value._type.shape)


def _are_ints(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | Handle) and all(map(_is_int, value))


ALLOWED: dict[str, tuple[Allowed, str]] = {
    "Tensor": (lambda v: isinstance(v, Handle), "Tensor"),
    "int": (_is_int, "int"),
    "float": (_is_number, "float"),
    "Scalar": (lambda v: _is_number(v) or isinstance(v, complex), "Number"),
    "bool": (_is_int, "bool"),
    "str": (lambda v: isinstance(v, str), "str"),
    "None": (lambda v: v is None, "None"),
    "Sequence[int]": (_are_ints, "tuple of ints"),
    "tuple[int, ...]": (_are_ints, "tuple of ints"),
    "list[int]": (_are_ints, "tuple of ints"),
    "Sequence[Tensor]": (lambda v: isinstance(v, Iterable) and all(isinstance(t, Handle) for t in v), "tuple of Tensors"),
}
ALIASES = {"Dims": "int | tuple[int, ...] | list[int] | None", "Ints": "int | Sequence[int]"}
FIRST = ("input", "x", "a", "x1", "tensor", "self", "ext_tensor")  # what torch, or NumPy, calls the first argument
OTHER_NAMES: dict[str, tuple[str, ...]] = {  # other names that torch takes for an argument, and what gt may call it
    "axis": ("dim",), "axis0": ("dim0",), "axis1": ("dim1",), "b": ("B",), "element": ("elements",), "indices": ("indices_or_sections",),
    "input2": ("L", "tau", "A"), "input3": ("other",), "keepdims": ("keepdim",), "new_state": ("state",), "other": ("B", "tensor2"),
    "scalar": ("tensor1",), "sections": ("indices_or_sections",), "size": ("shape",), "split_size": ("split_size_or_sections",),
    "tensor_indices_or_sections": ("indices_or_sections",), "test_element": ("test_elements",), "train": ("training",), "x2": ("other",),
}  # fmt: skip
# What Python itself says of a dim that is not there, and of a value of another class.
UNKNOWN_NAME = re.compile(r"got an unexpected keyword argument '(\w+)'")
NO_SUCH_DIM = re.compile(r"(tuple|list) index out of range|values to unpack|by zero")
WRONG_CLASS = re.compile(
    r"object has no attribute|not supported between instances|unsupported operand type|bad operand type|object is not (iterable|subscriptable)|"
    r"has no len\(\)|cannot be interpreted as|must be (a )?real number|invalid literal for|could not convert string|broadcast together|"
    r"argument must be a string"
)


def _wanted(annotation: object) -> tuple[list[Allowed], str] | None:
    """Give what an annotation allows and torch's word for it; None if it is not one of the plain ones."""
    parts = " | ".join(ALIASES.get(part.strip(), part) for part in str(annotation).split("|")).split("|")
    found = [ALLOWED.get(part.strip()) for part in parts]
    return ([p[0] for p in found if p], next(p[1] for p in found if p)) if all(found) else None


def _fault(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], own: int = 0) -> str | None:
    """Say which argument is not what its annotation allows, or is torch's. ``own``: how many are not counted: a method's tensor."""
    if kwargs.get("out") is not None:
        return f"{name}(): out= is not offered, values are computed later: assign the result instead"
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return f"{name}() {error}" if UNKNOWN_NAME.search(str(error)) else f"{name}(): {error}"
    for at, parameter in enumerate(bound.signature.parameters.values(), 1):
        wanted = _wanted(parameter.annotation)
        if parameter.name not in bound.arguments or wanted is None:
            continue
        value = bound.arguments[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            given = value[0] if len(value) == 1 and isinstance(value[0], list | tuple) else value
            bad = next((i for i, v in enumerate(given) if not any(allows(v) for allows in wanted[0])), None)
            if bad is not None:
                return f"{name}(): expected {wanted[1]} as element {bad} in argument {at - 1}, but got {got(given[bad])}"
        elif not any(allows(value) for allows in wanted[0]):
            if wanted[1] == "tuple of Tensors" and isinstance(value, list | tuple):
                bad = next((i for i, v in enumerate(value) if not isinstance(v, Handle)), 0)
                return f"expected Tensor as element {bad} in argument {at - 1}, but got {got(value[bad])}"
            place = f" (position {at - own})" if at <= len(args) else ""
            return f"{name}(): argument '{parameter.name}'{place} must be {wanted[1]}, not {got(value)}"
    theirs = next((v for v in _leaves((args, kwargs)) if class_name(v) in ("torch.Tensor", "torch.Parameter")), None)
    return None if theirs is None else f"{name}(): expected gt.Tensor, got {got(theirs)}"


def _leaves(value: object) -> Iterable[object]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return (value,) if inner is None else itertools.chain.from_iterable(map(_leaves, inner))


def renamed(function: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Give keyword arguments by gt's names where torch takes others; None if nothing has another name, or one has none here."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    out: dict[str, Any] = {}
    for name, value in kwargs.items():
        known = name
        if name not in parameters:
            first = (next(iter(parameters)),) if name in FIRST and parameters else ()
            known = next((n for n in (*first, *OTHER_NAMES.get(name, ())) if n in parameters and n not in kwargs and n not in out), "")
        if not known:
            return None
        out[known] = value
    return out if out.keys() != kwargs.keys() else None


def _shown(value: object) -> str:
    return repr(value._type) if isinstance(value, Handle) else repr(value) if isinstance(value, int | float) else class_name(value)


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return ", ".join([*map(_shown, args), *(f"{k}={_shown(v)}" for k, v in kwargs.items())])


def _explained(
    error: Exception, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], own: int
) -> tuple[type[Exception], str] | None:
    """Give class and text of what to raise for an error that a call ended in; None if it says enough."""
    if isinstance(error, Located):
        return None
    fault = _fault(name, function, args, kwargs, own)
    if fault is not None:
        return TypeError, fault
    unknown = UNKNOWN_NAME.search(str(error))
    if unknown and unknown[1] in kwargs:  # an inner function said so, of what it was handed on
        return TypeError, f"{name}() got an unexpected keyword argument '{unknown[1]}'"
    if WRONG_CLASS.search(str(error)):
        return TypeError, f"{name}() received an invalid combination of arguments - got ({_given(args, kwargs)}): {error}"
    if NO_SUCH_DIM.search(str(error)):
        return ShapeError, f"{name}(): these shapes and sizes cannot be taken: got ({_given(args, kwargs)})"
    return None


def guarded(function: Callable[..., Any], module: str, name: str, own: int = 0) -> Callable[..., Any]:
    """Give a function that says what is wrong with its arguments, and refuses ``out=``; pickled by its public name.

    An argument may have any name that torch takes for it: a call that fails is looked at for such names. ``own``: 1 for a method.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
            others = renamed(function, kwargs) if kwargs and isinstance(error, TypeError) else None
            if others is not None:
                return call(*args, **others)
            explained = _explained(error, name, function, args, kwargs, own)
            if explained is None:
                raise
            raise explained[0](explained[1]) from None

    call.__module__, call.__qualname__ = module, name
    return call


def takes_tensors(function: Callable[..., Any]) -> bool:
    """Say whether a method takes tensors besides its own, and calls no user's function, whose errors are its own."""
    own = inspect.unwrap(function).__code__.co_varnames[:1]
    others = " ".join(str(a) for n, a in function.__annotations__.items() if n not in (*own, "return"))
    return function.__module__.startswith(OURS) and "Tensor" in others and "Callable" not in others


def takes_other_names(function: Callable[..., Any]) -> bool:
    """Say whether torch takes ``axis`` or ``keepdims`` where a function has ``dim`` or ``keepdim`` alone."""
    names = inspect.signature(function).parameters
    return ("dim" in names and "axis" not in names) or ("keepdim" in names and "keepdims" not in names)


def guard_methods(kind: type) -> None:
    """Guard the methods of a class that take tensors besides their own, or arguments by more than one name."""
    for name, value in list(vars(kind).items()):
        named = name.startswith("__") or name.removesuffix("_") in ARITHMETIC
        if isinstance(value, types.FunctionType) and not named and (takes_tensors(value) or takes_other_names(value)):
            method = guarded(value, kind.__module__, name, 1)
            method.__qualname__ = f"{kind.__name__}.{name}"
            setattr(kind, name, method)


def guard(namespace: dict[str, Any]) -> None:
    """Guard every function of a public namespace that does something to tensors, and let it follow mixed precision's lists."""
    prefix = {"gt.linalg": "linalg.", "gt.fft": "fft."}.get(namespace["__name__"], "")
    for name, value in namespace.items():
        if isinstance(value, types.FunctionType) and value.__module__.startswith(OURS):
            namespace[name] = guarded(autocasting(value, prefix + name), namespace["__name__"], name)
