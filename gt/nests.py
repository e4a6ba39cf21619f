"""Nests of dicts, lists and tuples as JSON, and back. What stands in them besides plain values is the caller's.

Owns: the form. Must not know: where tensors are kept. Next: ``serialization``, ``checkpoint``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.ir.types import DType, dtype_of

Plain = bool | int | float | str | None
Form = dict[str, Any]


def describe(obj: Any, leaf: Callable[[Any, str], Form | None], who: str, path: str = "") -> Form:
    """Give the JSON form of a nest. ``leaf(obj, path)`` gives that of what is the caller's, None for all else.

    Errors: TypeError, which begins with ``who``, for what has no form.
    """
    own = leaf(obj, path)
    if own is not None:
        return own
    join = f"{path}." if path else ""
    if isinstance(obj, dict):
        kind = "counter" if isinstance(obj, Counter) else "dict"
        return {kind: [[_key(k, who), describe(v, leaf, who, f"{join}{k}")] for k, v in obj.items()]}
    if isinstance(obj, list | tuple):
        kind = "tuple" if isinstance(obj, tuple) else "list"
        return {kind: [describe(v, leaf, who, f"{join}{i}") for i, v in enumerate(obj)]}
    if isinstance(obj, np.generic) and obj.dtype.kind in "biuf":
        obj = obj.item()
    if isinstance(obj, Plain):
        return {"value": obj}
    if isinstance(obj, DType):
        return {"dtype": obj.name}
    raise TypeError(
        f"{who}: cannot save {type(obj).__name__} at {path or 'the top'!r}: only tensors, numbers, strings and nests of them"
    )


def _key(key: Any, who: str) -> Any:
    if isinstance(key, Plain):
        return key
    if isinstance(key, tuple):
        return [_key(k, who) for k in key]
    raise TypeError(f"{who}: expected dict keys that are strings, numbers or tuples of them, got {type(key).__name__}")


def read_key(key: Any) -> Any:
    """Give a dict's key of its JSON form."""
    return tuple(map(read_key, key)) if isinstance(key, list) else key


def rebuild(form: Form, leaf: Callable[[str, Form], Any]) -> Any:
    """Give the nest of a form. ``leaf(kind, form)`` gives what is the caller's."""
    kind = next(iter(form))
    content = form[kind]
    if kind in ("dict", "counter"):
        items = {read_key(k): rebuild(v, leaf) for k, v in content}
        return Counter(items) if kind == "counter" else items
    if kind in ("list", "tuple"):
        values = [rebuild(v, leaf) for v in content]
        return tuple(values) if kind == "tuple" else values
    if kind == "value":
        return content
    return dtype_of(content) if kind == "dtype" else leaf(kind, form)


__all__ = ["Form", "describe", "read_key", "rebuild"]
