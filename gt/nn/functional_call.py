"""Modules called with other parameters and buffers than their own. Source: torch.func. Next: ``module``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.functions.shape import stack
from gt.nn.module import Module


def functional_call(
    module: Module, parameter_and_buffer_dicts: dict[str, Any] | Sequence[dict[str, Any]], args: Any = None,
    kwargs: dict[str, Any] | None = None, *, tie_weights: bool = True, strict: bool = False,
) -> Any:  # fmt: skip
    """Call a module with tensors in place of those that it has under these names, which it gets back.

    ``tie_weights``: a name stands for all names of the same parameter. Names that the module has not are not looked at. Errors: with
    ``strict`` RuntimeError for those, and for names that are missing.
    """
    dicts = [parameter_and_buffer_dicts] if isinstance(parameter_and_buffer_dicts, dict) else list(parameter_and_buffer_dicts)
    given: dict[str, Any] = {}
    for d in dicts:
        for name in d:
            if name in given:
                raise ValueError(f"{name!r} appears in multiple dictionaries; behavior of functional call is ambiguous")
        given |= d
    own = _places(module)
    unknown = [name for name in given if name not in own]
    missing = [name for name in own if name not in given]
    if strict and (unknown or missing):
        raise RuntimeError(
            f"Error(s) in passing state to {type(module).__name__}: Missing key(s): {missing}. Unexpected key(s): {unknown}."
        )
    given = {name: value for name, value in given.items() if name in own}
    if tie_weights:
        tied = {id(table[key]): given[name] for name, (table, key) in own.items() if name in given}
        given = {name: given.get(name, tied[id(table[key])]) for name, (table, key) in own.items() if id(table[key]) in tied}
    before = {name: own[name][0][own[name][1]] for name in given}
    arguments = () if args is None else args if isinstance(args, tuple) else (args,)
    try:
        for name, value in given.items():
            table, key = own[name]
            table[key] = value
        return module(*arguments, **(kwargs or {}))
    finally:
        for name, value in before.items():
            table, key = own[name]
            table[key] = value


def _places(module: Module) -> dict[str, tuple[dict[str, Any], str]]:
    """Give, for each name, the table and the key that hold the tensor."""
    found: dict[str, tuple[dict[str, Any], str]] = {}
    for prefix, m in module.named_modules(remove_duplicate=False):
        for table in (m._parameters, m._buffers):
            for key, value in table.items():
                if value is not None:
                    found[f"{prefix}.{key}" if prefix else key] = (table, key)
    return found


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the parameters and buffers of equal models, stacked along a new first dim; parameters are leaves of their own."""
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({type(m) for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    if len({m.training for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to have the same training/eval mode.")
    each, buffers = [dict(m.named_parameters()) for m in models], [dict(m.named_buffers()) for m in models]
    params = {}
    for name, p in each[0].items():
        params[name] = stack([e[name].detach() for e in each]).requires_grad_(p.requires_grad)
    return params, {name: stack([b[name] for b in buffers]) for name in buffers[0]}


__all__ = ["functional_call", "stack_module_state"]
