"""``Module``: parameters, buffers and submodules under torch's names.

Owns: registration by assignment, traversal, state dicts, train/eval, hooks. Next: ``layers``.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from gt.autograd import no_grad
from gt.functions.create import as_tensor
from gt.handle import Handle
from gt.ir import types
from gt.ir.types import DType
from gt.nn.parameter import Parameter
from gt.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict`` did not find a place or a value for."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class _HookHandle:
    def __init__(self, hooks: dict[int, Any], number: int) -> None:
        self._hooks, self._number = hooks, number

    def remove(self) -> None:
        self._hooks.pop(self._number, None)


class Module:
    """A part of a model. Assigning a Parameter, a Module or a buffer to an attribute registers it."""

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _hook_numbers = itertools.count()

    def __init__(self) -> None:
        self.__dict__.update(
            training=True, _parameters={}, _buffers={}, _modules={}, _non_persistent=set(), _forward_hooks={}, _forward_pre_hooks={}
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for hook in self._forward_pre_hooks.values():
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        out = self.forward(*args, **kwargs)
        for hook in self._forward_hooks.values():
            changed = hook(self, args, out)
            if changed is not None:
                out = changed
        return out

    # -- registration

    def __setattr__(self, name: str, value: Any) -> None:
        tables = self.__dict__
        if "_parameters" not in tables:
            if isinstance(value, Parameter | Module):
                raise AttributeError(f"cannot assign {type(value).__name__.lower()}s before Module.__init__() call")
            object.__setattr__(self, name, value)
            return
        if isinstance(value, Parameter):
            self._forget(name)
            self._parameters[name] = value
            value._name = value._name or name
        elif isinstance(value, Module):
            self._forget(name)
            self._modules[name] = value
        elif name in self._parameters:
            if value is not None:
                raise TypeError(f"cannot assign '{type(value).__name__}' as parameter '{name}' (gt.nn.Parameter or None expected)")
            self._parameters[name] = None
        elif name in self._modules and value is None:
            self._modules[name] = None
        elif name in self._buffers and (value is None or isinstance(value, Handle)):
            self._buffers[name] = value  # type: ignore[assignment]
        else:
            object.__setattr__(self, name, value)

    def _forget(self, name: str) -> None:
        for table in (self.__dict__, self._parameters, self._buffers, self._modules):
            table.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        for table in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(table)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]  # type: ignore[attr-defined]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._parameters, *self._buffers, *self._modules})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but not trained; ``persistent``: part of the state dict."""
        self._buffers[name] = tensor
        (self._non_persistent.discard if persistent else self._non_persistent.add)(name)

    def register_module(self, name: str, module: Module | None) -> None:
        self._modules[name] = module

    add_module = register_module

    def register_forward_hook(self, hook: Callable[..., Any]) -> _HookHandle:
        """Call ``hook(module, args, output)`` after ``forward``; what it returns, if not None, replaces the output."""
        return self._hook(self._forward_hooks, hook)

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> _HookHandle:
        """Call ``hook(module, args)`` before ``forward``; what it returns, if not None, replaces the arguments."""
        return self._hook(self._forward_pre_hooks, hook)

    def _hook(self, table: dict[int, Any], hook: Callable[..., Any]) -> _HookHandle:
        number = next(Module._hook_numbers)
        table[number] = hook
        return _HookHandle(table, number)

    # -- traversal

    def named_modules(self, memo: set[int] | None = None, prefix: str = "") -> Iterator[tuple[str, Module]]:
        memo = set() if memo is None else memo
        if id(self) not in memo:
            memo.add(id(self))
            yield prefix, self
            for name, child in self._modules.items():
                if child is not None:
                    yield from child.named_modules(memo, f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        return ((name, child) for name, child in self._modules.items() if child is not None)

    def children(self) -> Iterator[Module]:
        return (child for _, child in self.named_children())

    def _named(self, table: str, prefix: str, recurse: bool, keep_duplicates: bool = False) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, value in module.__dict__[table].items():
                if value is not None and (keep_duplicates or id(value) not in seen):
                    seen.add(id(value))
                    yield (f"{path}.{name}" if path else name), value

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Parameter]]:
        return self._named("_parameters", prefix, recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        return self._named("_buffers", prefix, recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        found: Any = self
        for part in target.split(".") if target else ():
            found = getattr(found, part)
        return found

    def get_parameter(self, target: str) -> Parameter:
        path, _, name = target.rpartition(".")
        return getattr(self.get_submodule(path), name)

    # -- state

    def state_dict(self, prefix: str = "") -> OrderedDict[str, Tensor]:
        """Give parameters and persistent buffers by dotted name, detached and sharing memory."""
        out: OrderedDict[str, Tensor] = OrderedDict()
        for path, module in self.named_modules(prefix=prefix.rstrip(".")):
            lead = f"{path}." if path else ""
            for name, value in module._parameters.items():
                if value is not None:
                    out[lead + name] = value.detach()
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._non_persistent:
                    out[lead + name] = buffer.detach()
        return out

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Copy values in by dotted name; arrays and torch tensors are taken too.

        Errors: RuntimeError listing missing and unexpected keys (if ``strict``) and size mismatches.
        """
        own = self.state_dict()
        missing = [k for k in own if k not in state_dict]
        unexpected = [k for k in state_dict if k not in own]
        problems = []
        if strict and unexpected:
            problems.append("Unexpected key(s) in state_dict: {}. ".format(", ".join(f'"{k}"' for k in unexpected)))
        if strict and missing:
            problems.append("Missing key(s) in state_dict: {}. ".format(", ".join(f'"{k}"' for k in missing)))
        values = {k: _as_tensor(state_dict[k]) for k in own if k in state_dict}
        for key, value in values.items():
            if value.shape != own[key].shape:
                problems.append(
                    f"size mismatch for {key}: copying a param with shape {_size(value)} from checkpoint, "
                    f"the shape in current model is {_size(own[key])}."
                )
        if problems:
            raise RuntimeError(
                "Error(s) in loading state_dict for {}:\n\t{}".format(type(self).__name__, "\n\t".join(problems))
            )
        with no_grad():
            for key, value in values.items():
                self.get_parameter(key).copy_(value)
        return IncompatibleKeys(missing, unexpected)

    def train(self, mode: bool = True) -> Self:
        """Set training mode, here and below."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Set evaluation mode, here and below."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or zero them."""
        for p in self.parameters():
            if p._grad is not None:
                if set_to_none:
                    p._grad = None
                else:
                    p._grad.zero_()

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call ``fn`` on every module, children first."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def to(self, *args: Any, dtype: DType | None = None, device: Any = None, **_: Any) -> Self:
        """Convert floating-point parameters and buffers to ``dtype``; a device is accepted and ignored."""
        for a in args:
            if isinstance(a, DType):
                dtype = a
        if dtype is not None:
            with no_grad():
                for module in self.modules():
                    for name, p in module._parameters.items():
                        if p is not None and p.is_floating_point():
                            module._parameters[name] = Parameter(p.detach().to(dtype), p.requires_grad)
                    for name, b in module._buffers.items():
                        if b is not None and b.is_floating_point():
                            module._buffers[name] = b.to(dtype)
        return self

    def float(self) -> Self:
        return self.to(dtype=types.float32)

    def double(self) -> Self:
        return self.to(dtype=types.float64)

    def half(self) -> Self:
        return self.to(dtype=types.float16)

    def bfloat16(self) -> Self:
        return self.to(dtype=types.bfloat16)

    def cpu(self) -> Self:
        return self

    def cuda(self, device: Any = None) -> Self:
        return self

    # -- printing

    def extra_repr(self) -> str:
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self._modules.items()]
        head = type(self).__name__ + "("
        if not lines:
            return head + extra + ")"
        return head + "\n  " + "\n  ".join(([extra] if extra else []) + lines) + "\n)"


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Handle):
        return value  # type: ignore[return-value]
    return as_tensor(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _size(t: Tensor) -> str:
    return f"torch.Size({list(t.shape)})"
