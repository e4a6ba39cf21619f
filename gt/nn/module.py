"""``Module``: parameters, buffers and submodules under torch's names.

Owns: registration by assignment, traversal, conversion, train/eval. Next: ``hooks`` (calling), ``state`` (state dicts),
``containers``, then one file for each kind of layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from gt.autograd import no_grad
from gt.devices import dtype_among
from gt.functions import create
from gt.handle import Handle
from gt.hooks import RemovableHandle, add
from gt.ir import types
from gt.ir.types import class_name, dtype_of, remedy
from gt.nn import hooks
from gt.nn.parameter import Buffer, Parameter
from gt.nn.state import StateMixin
from gt.recording import native
from gt.tensor import Tensor
from gt.trace import replaced

TABLES = ("_parameters", "_buffers", "_modules")
WANTED = {"parameter": "torch.nn.Parameter", "child module": "torch.nn.Module", "buffer": "torch.nn.Buffer, torch.Tensor"}
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


class Module(StateMixin):
    """A part of a model. Assigning a Parameter, a Module or a Buffer to an attribute registers it."""

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _path: str  # of the attributes that lead here from the root, each followed by a dot

    def __init__(self) -> None:
        tables: dict[str, Any] = {name: {} for name in (*TABLES, *HOOKS)}
        self.__dict__.update({"training": True, "_non_persistent": set(), "_path": "", **tables})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__
        if (
            own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
            or hooks.everywhere_before or hooks.everywhere_after
        ):  # fmt: skip
            return hooks.call(self, args, kwargs)
        return self.forward(*args, **kwargs)

    # -- registration

    def __setattr__(self, name: str, value: Any) -> None:
        tables = self.__dict__
        if "_parameters" not in tables:
            if isinstance(value, Parameter | Module):
                raise AttributeError(
                    f"cannot assign {'parameters' if isinstance(value, Parameter) else 'module'} before Module.__init__() call"
                )
            object.__setattr__(self, name, value)
        elif isinstance(value, Parameter):
            self._forget(name, "_parameters")
            self.register_parameter(name, value)
        elif isinstance(value, Module) and name not in tables["_parameters"]:
            self._forget(name, "_modules")
            self._hold(name, value)
        elif isinstance(value, Buffer) and name not in tables["_parameters"] and name not in tables["_modules"]:
            self.register_buffer(name, value, value.persistent)
        else:
            self._set_plain(name, value)

    def _set_plain(self, name: str, value: Any) -> None:
        for table, kind in (("_parameters", "parameter"), ("_modules", "child module"), ("_buffers", "buffer")):
            if name in self.__dict__[table]:
                if value is not None and not (kind == "buffer" and isinstance(value, Handle)):
                    raise TypeError(f"cannot assign '{class_name(value)}' as {kind} '{name}' ({WANTED[kind]} or None expected){remedy(value)}")
                if self.__dict__[table][name] is not value:
                    replaced()
                self.__dict__[table][name] = value
                return
        object.__setattr__(self, name, value)

    def _forget(self, name: str, keep: str) -> None:
        self.__dict__.pop(name, None)
        for table in TABLES:
            if table != keep:
                self.__dict__[table].pop(name, None)
        self._non_persistent.discard(name)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if "_modules" in own and (  # else __init__ has not been called; spelled out, for layers ask at every call
            name in (table := own["_parameters"]) or name in (table := own["_modules"]) or name in (table := own["_buffers"])
        ):
            return table[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    if native is not None:
        __getattr__ = native.registered_or(__getattr__)

    def __delattr__(self, name: str) -> None:
        for table in TABLES:
            if name in self.__dict__[table]:
                del self.__dict__[table][name]
                replaced()
                self._non_persistent.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._parameters, *self._buffers, *self._modules})

    def _check_name(self, kind: str, name: Any, table: str) -> None:
        if table not in self.__dict__:
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain "."' + (f", got: {name}" if kind == "module" else ""))
        if not name:
            raise KeyError(f'{kind} name can\'t be empty string ""')
        if hasattr(self, name) and name not in self.__dict__[table]:
            raise KeyError(f"attribute '{name}' already exists")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter by name; None keeps the name without a value."""
        self._check_name("parameter", name, "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"cannot assign '{class_name(param)}' object to parameter '{name}' (torch.nn.Parameter or None required){remedy(param)}")
        if param is not None:
            if not param._leaf:
                raise ValueError(
                    f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly. To express '{name}' "
                    "as a function of another Tensor, compute the value in the forward() method."
                )
            param._name = param._name or self._path + name
        self._parameters[name] = param
        replaced()

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but not trained; ``persistent``: part of the state dict."""
        self._check_name("buffer", name, "_buffers")
        if tensor is not None and not isinstance(tensor, Handle):
            raise TypeError(f"cannot assign '{class_name(tensor)}' object to buffer '{name}' (torch Tensor or None required){remedy(tensor)}")
        if tensor is not None:
            tensor._name = tensor._name or self._path + name
        self._buffers[name] = tensor
        replaced()
        (self._non_persistent.discard if persistent else self._non_persistent.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule by name; None keeps the name without a value."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._check_name("module", name, "_modules")
        self._hold(name, module)

    def _hold(self, name: str, module: Module | None) -> None:
        self._modules[name] = module
        replaced()
        if module is not None and not module.__dict__.get("_path"):  # one that is shared keeps its first name
            module._take_path(f"{self._path}{name}.")

    def _take_path(self, path: str) -> None:
        """Say what leads here from the root: rules for parameters know them by the dotted names of ``named_parameters``."""
        before = self.__dict__.get("_path", "")
        self.__dict__["_path"] = path
        for name, t in (*self._parameters.items(), *self._buffers.items()):
            if t is not None and t._name == before + name:
                t._name = path + name
        for name, module in self._modules.items():
            if module is not None and module.__dict__.get("_path") == f"{before}{name}.":
                module._take_path(f"{path}{name}.")

    def register_module(self, name: str, module: Module | None) -> None:
        """Do ``add_module``."""
        self.add_module(name, module)

    # -- hooks

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args[, kwargs], output)`` after ``forward``; what it returns, if not None, replaces the output."""
        return add(self._forward_hooks, (hook, with_kwargs, always_call), prepend)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args[, kwargs])`` before ``forward``; what it returns, if not None, replaces the arguments."""
        return add(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` in a backward; what it returns replaces the input's gradient."""
        return add(self._backward_hooks, hook, prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` in a backward before the module's; what it returns replaces it."""
        return add(self._backward_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, local_metadata)`` when the module's part is in the state dict."""
        return add(self._state_dict_hooks, hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, prefix, keep_vars)`` before the module's part is taken."""
        return add(self._state_dict_pre_hooks, hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, ...)`` before the module's part is loaded."""
        return add(self._load_state_dict_pre_hooks, hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, incompatible_keys)`` when the module's part is loaded."""
        return add(self._load_state_dict_post_hooks, hook)

    # -- traversal

    def named_modules(
        self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Give this module and all below, by dotted name."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            for name, child in self._modules.items():
                if child is not None:
                    yield from child.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """Give this module and all below."""
        return (module for _, module in self.named_modules(remove_duplicate=remove_duplicate))

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Give the modules directly below, by name."""
        memo: set[int] = set()
        for name, child in self._modules.items():
            if child is not None and id(child) not in memo:
                memo.add(id(child))
                yield name, child

    def children(self) -> Iterator[Module]:
        """Give the modules directly below."""
        return (child for _, child in self.named_children())

    def _named(self, table: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, value in module.__dict__[table].items():
                if value is not None and id(value) not in seen:
                    if remove_duplicate:
                        seen.add(id(value))
                    yield (f"{path}.{name}" if path else name), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Give parameters by dotted name; one shared by several modules comes once."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Give the parameters, here and (``recurse``) below."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Give buffers by dotted name."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Give the buffers, here and (``recurse``) below."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """Give the module of a dotted name. Errors: AttributeError."""
        found: Any = self
        for part in target.split(".") if target else ():
            if not hasattr(found, part):
                raise AttributeError(f"{type(found).__name__} has no attribute `{part}`")
            found = getattr(found, part)
            if not isinstance(found, Module):
                raise AttributeError(f"`{part}` is not an nn.Module")
        return found

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put a module at a dotted name; ``strict``: only where one is. Errors: ValueError for no name or no module; AttributeError."""
        if not target:
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{parent._get_name()} has no attribute `{name}`")
        if not isinstance(getattr(parent, name, module), Module):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """Give the parameter of a dotted name. Errors: AttributeError."""
        return self._get(target, "_parameters", "an nn.Parameter")

    def get_buffer(self, target: str) -> Tensor:
        """Give the buffer of a dotted name. Errors: AttributeError."""
        return self._get(target, "_buffers", "a buffer")

    def _get(self, target: str, table: str, kind: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
        if name not in module.__dict__[table]:
            raise AttributeError(f"`{name}` is not {kind}")
        return module.__dict__[table][name]

    # -- modes and conversion

    def train(self, mode: bool = True) -> Self:
        """Set training mode, here and below."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        if self.training != mode:
            replaced()
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode, here and below."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Say whether the parameters are trained."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or zero them."""
        for p in self.parameters():
            if p.grad is not None:
                if set_to_none:
                    p.grad = None
                else:
                    with no_grad():
                        p.grad.zero_()

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call ``fn`` on every module, children first."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Self:
        """Replace every parameter's, gradient's and buffer's values by ``fn`` of them; parameters stay the same objects."""
        for child in self.children() if recurse else ():
            child._apply(fn)
        with no_grad():
            for p in self._parameters.values():
                if p is not None:
                    values = fn(p.detach())
                    if p._rg and not values.dtype.is_differentiable:
                        raise RuntimeError("data set to a tensor that requires gradients must be floating point or complex dtype")
                    p.data = values
                    if p._grad is not None:
                        p._grad = fn(p._grad)
            for name, b in self._buffers.items():
                if b is not None:
                    self._buffers[name] = fn(b)
        return self

    def to(self, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Self:
        """Convert floating-point parameters and buffers to ``dtype``; a device is accepted and ignored."""
        dtype = dtype_among("to", args) or dtype
        if dtype is None:
            return self
        wanted = dtype_of(dtype)
        if wanted.kind not in "fc":
            raise TypeError(f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={wanted!r}")
        return self._apply(lambda t: t.to(wanted) if t.is_floating_point() or t.is_complex() else t)

    def type(self, dst_type: Any) -> Self:
        """Convert all parameters and buffers to a dtype. Errors: RuntimeError for one that what requires a gradient cannot have."""
        return self._apply(lambda t: t.type(dst_type))

    def _convert_floats(self, dtype: types.DType) -> Self:
        return self._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)

    def float(self) -> Self:
        return self._convert_floats(types.float32)

    def double(self) -> Self:
        return self._convert_floats(types.float64)

    def half(self) -> Self:
        return self._convert_floats(types.float16)

    def bfloat16(self) -> Self:
        return self._convert_floats(types.bfloat16)

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Forget the values of parameters and buffers: they are zeros, as those of ``gt.empty``."""
        return self._apply(create.empty_like, recurse)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: what a module records is compiled anyway."""

    def cpu(self) -> Self:
        """Give the module: where values lie is the signals' matter."""
        return self

    def cuda(self, device: Any = None) -> Self:
        """Give the module: where values lie is the signals' matter."""
        return self

    def share_memory(self) -> Self:
        """Give the module: values live on the workers, which all clients' threads share."""
        return self

    # -- printing

    def extra_repr(self) -> str:
        """Give what ``repr`` shows in the parentheses. To be overridden."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        extra_lines = extra.split("\n") if extra else []
        lines = [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self._modules.items()]
        head = self._get_name() + "("
        if len(extra_lines) == 1 and not lines:
            return head + extra + ")"
        every = [line for line in extra_lines] + lines
        return head + ("\n  " + "\n  ".join(every) + "\n" if every else "") + ")"
