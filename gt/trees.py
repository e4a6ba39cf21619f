"""Dicts, lists and tuples of values: taken apart and put together. Must not know: tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LEAF = object()


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Give the leaves of a tree, in order, and its form."""
    leaves: list[Any] = []
    return leaves, _walk(tree, leaves)


def _walk(tree: Any, leaves: list[Any]) -> Any:
    if isinstance(tree, dict):
        return type(tree), list(tree), [_walk(v, leaves) for v in tree.values()]
    if isinstance(tree, tuple | list):
        return type(tree), None, [_walk(v, leaves) for v in tree]
    leaves.append(tree)
    return LEAF


def unflatten(leaves: list[Any], form: Any) -> Any:
    """Put leaves into a form."""
    rest = iter(leaves)
    return _build(form, rest)


def _build(form: Any, rest: Any) -> Any:
    if form is LEAF:
        return next(rest)
    kind, keys, parts = form
    values = [_build(p, rest) for p in parts]
    if keys is not None:
        return dict(zip(keys, values, strict=True)) if kind is dict else kind(zip(keys, values, strict=True))
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def map_tree(function: Callable[[Any], Any], tree: Any, chosen: Callable[[Any], bool]) -> Any:
    """Give a tree with ``function`` of each chosen leaf."""
    leaves, form = flatten(tree)
    return unflatten([function(v) if chosen(v) else v for v in leaves], form)


def same_structure(a: Any, b: Any) -> bool:
    """Say whether two forms are equal; lists and tuples are."""
    if a is LEAF or b is LEAF:
        return a is b
    return a[1] == b[1] and len(a[2]) == len(b[2]) and all(map(same_structure, a[2], b[2]))


__all__ = ["flatten", "map_tree", "same_structure", "unflatten"]
