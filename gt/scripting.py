"""The names of torch.jit that ordinary code uses, as attributes of ``gt.jit`` and for ``from gt.jit import ...``.

There is no TorchScript: functions and modules run as they are written, which gives the numbers that their scripts would. So what asks to
script, or to leave something out of it, gives back what it was given. Next: ``replay`` (``gt.jit`` itself).
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

from gt.naming import named
from gt.nn.module import Module


class ScriptModule(Module):
    """A module, as any other."""


class ScriptFunction:
    """The class of scripted functions: nothing is one."""


class TracerWarning(Warning):
    """The class of torch's warnings while tracing: gt gives none."""


def script(
    obj: Any, optimize: Any = None, _frames_up: int = 0, _rcb: Any = None, example_inputs: Any = None, **more: Any
) -> Any:  # fmt: skip
    """Give the function, module or class itself."""
    return obj


def script_method(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Give the method itself."""
    return fn


script_if_tracing = export = unused = interface = _overload_method = script_method


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """Give the function itself. As a decorator with options, give a decorator."""
    return drop if callable(drop) else script_method


def is_scripting() -> bool:
    """Give False: there are no scripts."""
    return False


def is_tracing() -> bool:
    """Give False: nothing is traced."""
    return False


def annotate(the_type: Any, the_value: Any) -> Any:
    """Give the value."""
    return the_value


def optimized_execution(should_optimize: bool) -> nullcontext[None]:
    """Give a context that changes nothing."""
    return nullcontext()


def fuser(name: str) -> nullcontext[None]:
    """Give a context that changes nothing."""
    return nullcontext()


def _assert(condition: Any, message: str) -> None:
    """Raise AssertionError unless the condition holds; reads a tensor."""
    if not condition:
        raise AssertionError(message)


def _refused(name: str, instead: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"gt.jit.{name}: there is no TorchScript here: {instead}")

    return named(call, name, f"Refuse: {instead}.")


AS_IT_IS = "call the function or module itself, what it records is compiled anyway; gt.jit(function) records a step once"
trace, trace_module, freeze, optimize_for_inference = (
    _refused(name, AS_IT_IS) for name in ("trace", "trace_module", "freeze", "optimize_for_inference")
)
load = _refused("load", "make the module and give it a state dict, module.load_state_dict(gt.load(path))")
save = _refused("save", "save the module's state dict, gt.save(module.state_dict(), path)")
isinstance = builtins.isinstance

__all__ = [
    "Final", "ScriptFunction", "ScriptModule", "TracerWarning", "annotate", "export", "freeze", "fuser", "ignore", "interface",
    "is_scripting", "is_tracing", "isinstance", "load", "optimize_for_inference", "optimized_execution", "save", "script",
    "script_if_tracing", "script_method", "trace", "trace_module", "unused",
]  # fmt: skip


def install(jit: Any) -> None:
    """Let ``jit`` have these names, and ``from gt.jit import ...`` find them."""
    for name in (*__all__, "_overload_method"):
        setattr(jit, name, globals()[name])
    sys.modules["gt.jit"] = sys.modules[__name__]
