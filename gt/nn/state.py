"""State dicts: parameters and buffers by torch's dotted names, out and in.

Owns: which values a state dict has, and how given ones are checked and copied. Next: ``module``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gt.autograd import no_grad
from gt.functions.create import as_tensor
from gt.functions.gathering import fit_copied
from gt.handle import Handle
from gt.hooks import RemovableHandle, add
from gt.tensor import Tensor

EXTRA = "_extra_state"


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict`` did not find a place or a value for."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


@dataclass
class WithoutModule:
    """A hook that is not told which module it is called for."""

    hook: Callable[..., Any]

    def __call__(self, module: Any, *args: Any) -> Any:
        return self.hook(*args)


class StateMixin:
    """The state-dict part of a Module."""

    _version = 1
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]
    _non_persistent: set[str]

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Give parameters and persistent buffers by dotted name, detached and sharing memory (``keep_vars``: themselves)."""
        out: Any = OrderedDict() if destination is None else destination
        if destination is None:
            out._metadata = OrderedDict()
        if hasattr(out, "_metadata"):
            out._metadata[prefix[:-1]] = {"version": self._version}
        for hook in self.__dict__["_state_dict_pre_hooks"].values():
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(out, prefix, keep_vars)
        for name, child in self._modules.items():
            if child is not None:
                child.state_dict(destination=out, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in self.__dict__["_state_dict_hooks"].values():
            changed = hook(self, out, prefix, {})
            out = out if changed is None else changed
        return out

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Enter this module's own values, without its children's."""
        for name, value in _own(self).items():
            destination[prefix + name] = value if keep_vars else value.detach()
        if type(self).get_extra_state is not StateMixin.get_extra_state:
            destination[prefix + EXTRA] = self.get_extra_state()

    def get_extra_state(self) -> Any:
        """Give what else a state dict should hold. To be overridden together with ``set_extra_state``."""
        raise RuntimeError("Reached a code path in Module.get_extra_state() that should never be called.")

    def set_extra_state(self, state: Any) -> None:
        """Take back what ``get_extra_state`` gave."""
        raise RuntimeError("Reached a code path in Module.set_extra_state() that should never be called.")

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Copy values in by dotted name; NumPy arrays and torch tensors are taken too.

        ``assign``: take the given dtypes as well. Errors: RuntimeError listing missing and unexpected keys (if ``strict``)
        and size mismatches.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        given = OrderedDict(state_dict)
        meta = getattr(state_dict, "_metadata", None) or {}
        missing: list[str] = []
        unexpected: list[str] = []
        problems: list[str] = []
        self._load(given, "", meta, strict, missing, unexpected, problems, assign)
        found = IncompatibleKeys(missing, unexpected)
        if strict and unexpected:
            problems.insert(0, "Unexpected key(s) in state_dict: {}. ".format(", ".join(f'"{k}"' for k in unexpected)))
        if strict and missing:
            problems.insert(0, "Missing key(s) in state_dict: {}. ".format(", ".join(f'"{k}"' for k in missing)))
        if problems:
            raise RuntimeError("Error(s) in loading state_dict for {}:\n\t{}".format(type(self).__name__, "\n\t".join(problems)))
        return found

    def _load(
        self,
        state: Any,
        prefix: str,
        meta: Any,
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        problems: list[str],
        assign: bool,
    ) -> None:
        local = dict(meta.get(prefix[:-1], {})) | ({"assign_to_params_buffers": True} if assign else {})
        self._load_from_state_dict(state, prefix, local, True, missing, unexpected, problems)
        for name, child in self._modules.items():
            if child is not None:
                lead = f"{prefix}{name}."
                part = {k: v for k, v in state.items() if k.startswith(lead)}
                child._load(part, lead, meta, strict, missing, unexpected, problems, assign)
        found = IncompatibleKeys(missing, unexpected)
        for hook in self.__dict__["_load_state_dict_post_hooks"].values():
            hook(self, found)

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Do ``register_state_dict_post_hook``; what the hook returns, if not None, replaces the state dict."""
        return add(self.__dict__["_state_dict_hooks"], hook)

    def _register_load_state_dict_pre_hook(self, hook: Callable[..., Any], with_module: bool = False) -> RemovableHandle:
        """Call ``hook([module,] state_dict, prefix, ...)`` before the module's part is loaded."""
        return add(self.__dict__["_load_state_dict_pre_hooks"], hook if with_module else WithoutModule(hook))

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Take this module's own values, without its children's."""
        for hook in self.__dict__["_load_state_dict_pre_hooks"].values():
            hook(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        own = _own(self)
        for name, value in own.items():
            key = prefix + name
            if key not in state_dict:
                missing_keys.append(key)
                continue
            problem = _copy(key, value, state_dict[key], bool(local_metadata.get("assign_to_params_buffers")))
            if problem:
                error_msgs.append(problem)
        extra = prefix + EXTRA
        if type(self).set_extra_state is not StateMixin.set_extra_state:
            if extra in state_dict:
                self.set_extra_state(state_dict[extra])
            else:
                missing_keys.append(extra)
        known = own.keys() | self._modules.keys() | ({EXTRA} if extra in state_dict and _has_extra(self) else set())
        for key in state_dict:
            name = key[len(prefix) :].split(".", 1)
            if key.startswith(prefix) and (name[0] not in known or (len(name) > 1 and name[0] not in self._modules)):
                unexpected_keys.append(key)


def _has_extra(module: Any) -> bool:
    return type(module).set_extra_state is not StateMixin.set_extra_state


def _own(module: Any) -> dict[str, Tensor]:
    """Give a module's own parameters and persistent buffers."""
    buffers = {k: b for k, b in module._buffers.items() if k not in module._non_persistent}
    return {k: v for k, v in (module._parameters | buffers).items() if v is not None}


def _copy(key: str, own: Tensor, given: Any, assign: bool) -> str:
    """Copy a value in. Gives what is wrong with it, or nothing."""
    if not (isinstance(given, Handle) or hasattr(given, "__array__")):
        return f'While copying the parameter named "{key}", expected torch.Tensor or Tensor-like object from checkpoint but received {type(given)}'
    shape = tuple(given.shape)
    if own._type.shape == () and shape == (1,):
        given, shape = given[0], ()  # old checkpoints keep numbers as vectors
    if own._type.shape != shape:
        return (
            f"size mismatch for {key}: copying a param with shape torch.Size({list(shape)}) from checkpoint, "
            f"the shape in current model is torch.Size({list(own.shape)})."
        )
    with no_grad():
        value = to_tensor(given)
        if assign and value.dtype is not own.dtype:
            own.data = value
        else:
            own._assign(fit_copied(value, own))  # which it may share until either changes
    return ""


def to_tensor(value: Any) -> Tensor:
    """Give a tensor of a gt tensor, an array or a torch tensor."""
    if isinstance(value, Handle):
        return value  # type: ignore[return-value]
    if hasattr(value, "detach"):  # a torch tensor; NumPy has no bfloat16
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            return as_tensor(value.float().numpy()).bfloat16()
        value = value.numpy()
    return as_tensor(value)
