"""Copies of tensors: by ``copy``, by ``pickle``, and into a subclass such as ``Parameter``.

Owns: what a copy keeps: values, class, and the attributes that its user gave it. Next: ``tensor``, ``nn.parameter``.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.functions import create
from gt.grad_mode import no_grad
from gt.handle import ALIAS, Handle
from gt.in_place import InPlace
from gt.ir.types import DType, got
from gt.operand import Operand
from gt.recording import record
from gt.trace import holding

if TYPE_CHECKING:
    from gt.tensor import Tensor

OWN = frozenset({"_grad", "_retains", "_hooks", "_after", "_history"})  # a Handle's attributes that are not in slots


class Copies(InPlace):
    """The copying part of a tensor."""

    @staticmethod
    def _make_subclass(cls: type, data: Any, require_grad: bool = False) -> Any:
        """Give a tensor of class ``cls`` with the values of ``data``. What is computed from it is a plain tensor."""
        out: Any = object.__new__(cls)
        take_values(out, data)
        return out.requires_grad_(require_grad)

    def _given(self) -> dict[str, Any]:
        """Give the attributes that are not gt's own."""
        return {k: v for k, v in self.__dict__.items() if k not in OWN}

    def __copy__(self) -> Any:
        """Give another tensor of these values, which it shares (a parameter's copy has its own)."""
        own: Any = self
        if not self._leaf:
            return own.detach()
        out = self._twin(own.detach())
        out.__dict__.update(self._given())
        return out

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        if not self._leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
            )
        own: Any = self
        out = memo[id(self)] = self._twin(own.detach().clone())
        if self._grad is not None:
            out._grad = copy.deepcopy(self._grad, memo)
        out.__dict__.update(copy.deepcopy(self._given(), memo))
        return out

    def _twin(self, values: Any) -> Any:
        """Give a tensor of this class and flags on other values."""
        return values.requires_grad_(self._rg)

    def __reduce__(self) -> tuple[Any, ...]:
        array = self._read()
        return _rebuild, (array.tobytes(), array.dtype.str, tuple(self.shape), self.dtype, self._rg), self._given() or None


def take_values(tensor: Any, data: Any) -> None:
    """Let a new tensor begin with the value of ``data`` as a value of its own, so that the tensor it was made from keeps its."""
    if not isinstance(data, Handle):
        raise TypeError(f"{type(tensor).__name__}(): expected a gt.Tensor, got {got(data)}")
    Operand.__init__(tensor, None, -1, data._type)
    source: Any = data if data._base is None else data.clone()  # type: ignore[attr-defined]
    if source._trace is None:
        tensor._buffer = source._buffer
    else:
        with no_grad(), holding():
            tensor._adopt(record(ALIAS, (source,)))


def _rebuild(data: bytes, storage: str, size: tuple[int, ...], dtype: DType, requires_grad: bool) -> Tensor:
    """Make a tensor of pickled values."""
    array = np.frombuffer(data, storage).reshape(size)
    out = create.upload(array, dtype)
    return out.requires_grad_(requires_grad)
