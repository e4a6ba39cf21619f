"""Automatic mixed precision: ``gt.autocast``. Source: torch.amp.autocast and its lists of ops.

Owns: the context and the casts. Which ops take the low precision and which need float32 is said in their declarations
(``OpDef.autocast``). Next: ``trace`` (which applies it when recording).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from gt.ir.opdef import OpDef
from gt.ir.ops import OPS
from gt.ir.types import DType, bfloat16, dtype_of, float16, float32, promote_types
from gt.trace import install_autocast, record, state

CAST = OPS["cast"]
LOW = (float16, bfloat16, float32)


class autocast:  # noqa: N801 - torch's name
    """Record matrix products in a low precision and sensitive ops in float32, whatever their operands' float dtype.

    ``dtype``: bfloat16, or float16 for device_type "cuda", unless given. A context manager and a decorator.
    """

    def __init__(
        self, device_type: str = "cuda", dtype: DType | str | None = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        own = dtype_of(dtype) if dtype is not None else (float16 if device_type == "cuda" else bfloat16)
        if own not in (float16, bfloat16):
            warnings.warn(f"autocast takes float16 or bfloat16, not {own!r}: it is disabled here", stacklevel=2)
            enabled = False
        self.dtype = own if enabled else None
        self._before: list[DType | None] = []

    def __enter__(self) -> autocast:
        self._before.append(state.autocast)
        state.autocast = self.dtype
        return self

    def __exit__(self, *_: object) -> None:
        state.autocast = self._before.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapped


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Say whether mixed precision is on in this thread."""
    return state.autocast is not None


def get_autocast_dtype(device_type: str | None = None) -> DType:
    """Give the low precision in use, bfloat16 if mixed precision is off."""
    return state.autocast or bfloat16


def apply(op: OpDef, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast an op's float operands as autocast asks; called for each op recorded while it is on."""
    policy = op.autocast
    if not policy:
        return inputs
    floats = [t._type.dtype for t in inputs if t._type.dtype in LOW]
    if not floats:
        return inputs
    if policy == "low":
        want = state.autocast
    elif policy == "float32":
        want = float32
    else:
        want = functools.reduce(promote_types, floats)
    assert want is not None
    return tuple([_cast(t, want) if t._type.dtype in LOW and t._type.dtype is not want else t for t in inputs])


def _cast(t: Any, dtype: DType) -> Any:
    return record(CAST, (t,), (("dtype", dtype),))


def low(*tensors: Any) -> tuple[Any, ...]:
    """Cast the operands of a matrix product while autocast is on; for functions that check dtypes before recording."""
    want = state.autocast
    if want is None:
        return tensors
    return tuple(_cast(t, want) if t is not None and t._type.dtype in LOW and t._type.dtype is not want else t for t in tensors)


install_autocast(apply)
