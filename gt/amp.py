"""Automatic mixed precision: ``gt.autocast``. Source: torch.amp.autocast and its lists of ops.

Owns: the context. Next: ``autocasting`` (what becomes of each function), ``recording`` (which casts).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from gt.autocasting import CPU, CUDA, Policy, lists
from gt.devices import device
from gt.grad_scaler import GradScaler
from gt.handle import Handle
from gt.ir.types import DType, bfloat16, dtype_of, float16, float64
from gt.trace import state
from gt.trees import map_tree


class autocast:  # noqa: N801 - torch's name
    """Record matrix products in a low precision and sensitive ops in float32, whatever their operands' float dtype.

    ``device_type``: whose lists of ops are followed: "cpu" has torch's for the CPU, all others those for CUDA. ``dtype``: bfloat16, or
    float16 for "cuda", unless given or set by ``set_autocast_dtype``. A context manager and a decorator.
    """

    def __init__(
        self, device_type: str = "cuda", dtype: DType | str | None = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        own = dtype_of(dtype) if dtype is not None else lists.dtypes.get(device_type, bfloat16)
        if own not in (float16, bfloat16):
            warnings.warn(f"autocast takes float16 or bfloat16, not {own!r}: it is disabled here", stacklevel=2)
            enabled = False
        self.dtype = own if enabled else None
        self.device_type, self._policies = device_type, _policies(device_type)
        self._before: list[tuple[DType | None, dict[str, Policy]]] = []

    def __enter__(self) -> autocast:
        self._before.append((state.autocast, lists.policies))
        state.autocast, lists.policies = self.dtype, self._policies
        return self

    def __exit__(self, *_: object) -> None:
        state.autocast, lists.policies = self._before.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapped


def _policies(device_type: str) -> dict[str, Policy]:
    return CPU if device_type == "cpu" else CUDA


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Say whether mixed precision is on in this thread: by the lists of a device type, or by any."""
    return state.autocast is not None and (device_type is None or lists.policies is _policies(_checked(device_type)))


def set_autocast_enabled(*args: Any) -> None:
    """Switch mixed precision on or off in this thread: ``(enabled)``, or ``(device_type, enabled)``, whose lists are followed."""
    device_type, enabled = args if len(args) == 2 else ("cuda", *args)
    if enabled or is_autocast_enabled(device_type):
        state.autocast = get_autocast_dtype(device_type) if enabled else None
        lists.policies = _policies(device_type) if enabled else CUDA


def get_autocast_dtype(device_type: str | None = None) -> DType:
    """Give the low precision of a device type; without one, that in use, bfloat16 if mixed precision is off."""
    if state.autocast is not None and is_autocast_enabled(device_type):
        return state.autocast
    return bfloat16 if device_type is None else lists.dtypes.get(_checked(device_type), bfloat16)


def set_autocast_dtype(device_type: str, dtype: DType) -> None:
    """Set the low precision of a device type, in this thread."""
    lists.dtypes[_checked(device_type)] = own = dtype_of(dtype)
    if is_autocast_enabled(device_type):
        state.autocast = own


def _checked(device_type: str) -> str:
    return device(device_type).type


def custom_fwd(fwd: Any = None, *, device_type: str = "cuda", cast_inputs: DType | None = None) -> Any:
    """Decorate the forward of an ``autograd.Function``: with ``cast_inputs`` its tensors get that dtype, and it runs without autocast."""
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        ctx = args[0]
        ctx._dtype, ctx._policies = state.autocast, lists.policies
        if cast_inputs is None or state.autocast is None:
            ctx._fwd_used_autocast = state.autocast is not None
            return fwd(*args, **kwargs)
        ctx._fwd_used_autocast = False
        narrow = lambda v: isinstance(v, Handle) and v._type.dtype.kind == "f" and v._type.dtype is not float64  # noqa: E731
        args, kwargs = map_tree(lambda v: v.to(cast_inputs), (args[1:], kwargs), narrow)
        with autocast(device_type, enabled=False):
            return fwd(ctx, *args, **kwargs)

    return decorated


def custom_bwd(bwd: Any = None, *, device_type: str = "cuda") -> Any:
    """Decorate the backward of an ``autograd.Function``: it runs with the mixed precision that its forward had."""
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def decorated(ctx: Any, *args: Any) -> Any:
        before = state.autocast, lists.policies
        state.autocast, lists.policies = ctx._dtype if ctx._fwd_used_autocast else None, ctx._policies
        try:
            return bwd(ctx, *args)
        finally:
            state.autocast, lists.policies = before

    return decorated


__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "get_autocast_dtype", "is_autocast_enabled", "set_autocast_dtype", "set_autocast_enabled"]
