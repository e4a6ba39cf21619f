"""Parameters computed from others each time they are used. Source: torch.nn.utils.parametrize, with its names in state dicts.

Owns: the property that computes, and putting it on a module and off. Next: ``parametrizations`` (weight and spectral norm).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gt.autograd import no_grad
from gt.handle import Handle
from gt.nn.containers import ModuleDict, ModuleList
from gt.nn.module import Module
from gt.nn.parameter import Parameter


class _Cache:
    """What was computed inside ``cached()``, by module and name."""

    depth = 0
    values: dict[tuple[int, str], Any] = {}


@contextmanager
def cached() -> Iterator[None]:
    """Compute each parametrized tensor once inside."""
    _Cache.depth += 1
    try:
        yield
    finally:
        _Cache.depth -= 1
        if not _Cache.depth:
            _Cache.values = {}


class ParametrizationList(ModuleList):
    """The modules that compute a tensor, one after another, from ``original``, or ``original0``, ``original1`` and so on."""

    def __init__(self, modules: Sequence[Module], original: Any, unsafe: bool = False) -> None:
        super().__init__(modules)
        value = original
        with no_grad():
            for module in reversed(list(modules)):
                if hasattr(module, "right_inverse"):
                    value = module.right_inverse(value)
        self.is_tensor = isinstance(value, Handle)
        parts = [value] if self.is_tensor else list(value)
        self.ntensors = len(parts)
        for i, part in enumerate(parts):
            kept = original if part is original else part.detach().clone()
            if isinstance(original, Parameter):
                kept = kept if isinstance(kept, Parameter) else Parameter(kept, original.requires_grad)
                self.register_parameter("original" if self.is_tensor else f"original{i}", kept)
            else:
                self.register_buffer("original" if self.is_tensor else f"original{i}", kept)
        out = original if unsafe else self()
        if out.shape != original.shape or out.dtype is not original.dtype:
            raise ValueError(
                f"Registering a parametrization may not change the shape or dtype of the tensor, unless `unsafe` flag is enabled: "
                f"{tuple(original.shape)} {original.dtype} became {tuple(out.shape)} {out.dtype}"
            )

    def _originals(self) -> list[Any]:
        return [self.original] if self.is_tensor else [getattr(self, f"original{i}") for i in range(self.ntensors)]

    def right_inverse(self, value: Any) -> None:
        """Change the original tensors so that the computed one is ``value``, as far as the modules can."""
        with no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(f"parametrization {type(module).__name__} does not implement right_inverse.")
                value = module.right_inverse(value)
            for own, new in zip(self._originals(), [value] if self.is_tensor else value, strict=True):
                own.copy_(new)

    def forward(self) -> Any:
        first, *rest = list(self)
        x = first(*self._originals())
        for module in rest:
            x = module(x)
        return x


def _property(name: str) -> property:
    def get(self: Any) -> Any:
        if not _Cache.depth:
            return self.parametrizations[name]()
        key = (id(self), name)
        if key not in _Cache.values:
            _Cache.values[key] = self.parametrizations[name]()
        return _Cache.values[key]

    def put(self: Any, value: Any) -> None:
        self.parametrizations[name].right_inverse(value)

    return property(get, put)


def register_parametrization(module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False) -> Module:
    """Let ``module.tensor_name`` be what ``parametrization`` computes from it. Further ones compute from what earlier ones give.

    Errors: ValueError if the module has no such parameter or buffer, or shape or dtype would change (unless ``unsafe``).
    """
    if is_parametrized(module, tensor_name):
        held: Any = module.parametrizations[tensor_name]
        with no_grad():
            if not unsafe and hasattr(parametrization, "right_inverse"):
                value = parametrization.right_inverse(getattr(module, tensor_name))
                if not isinstance(value, Handle):
                    raise ValueError("Only the first parametrization of a tensor may take several tensors")
                held.right_inverse(value)
        held.append(parametrization)
        return module
    original = module._parameters.get(tensor_name, module._buffers.get(tensor_name))
    if original is None:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name '{tensor_name}'"
        )
    held = ParametrizationList([parametrization], original, unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        kind = type(module)
        module.__class__ = type(f"Parametrized{kind.__name__}", (kind,), {"__module__": kind.__module__})
        module.parametrizations = ModuleDict()
    setattr(type(module), tensor_name, _property(tensor_name))
    module.parametrizations[tensor_name] = held
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Say whether a module, or one tensor of it, is computed by parametrizations."""
    held: Any = module._modules.get("parametrizations")
    if not isinstance(held, ModuleDict):
        return False
    return len(held) > 0 if tensor_name is None else tensor_name in held


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Take parametrizations off: the tensor keeps its computed value, or else gets its original one back."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    held: Any = module.parametrizations[tensor_name]
    if not leave_parametrized and not held.is_tensor:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a sequence of tensors."
        )
    first = held._originals()[0]
    value = getattr(module, tensor_name).detach() if leave_parametrized else first.detach()
    trained = isinstance(first, Parameter)
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    if trained:
        module.register_parameter(tensor_name, Parameter(value.clone(), first.requires_grad))
    else:
        module.register_buffer(tensor_name, value.clone())
    if not is_parametrized(module):
        delattr(module, "parametrizations")
        module.__class__ = type(module).__bases__[0]
    return module


def type_before_parametrizations(module: Module) -> type:
    """Give the class a module had before it was parametrized."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations",
    "type_before_parametrizations",
]  # fmt: skip
