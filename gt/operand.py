"""Operands of ops as recording sees them: tensors, Python numbers, values of a trace that no tensor names.

Owns: ``Operand`` and its slots, ``Number``, ``ValueRef``, ``Storage``. Must not know: what changes a tensor.
Next: ``handle`` (the tensors), ``recording`` (which reads the slots, as gt/_recording.c does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.ir.types import DType, Scalar, TensorType
from gt.rule import zero_d

if TYPE_CHECKING:
    from gt.buffers import Buffer
    from gt.ir.graph import Attrs
    from gt.ir.opdef import OpDef
    from gt.trace import Trace


class Operand:
    """What recording looks at of each operand. In slots, which are read in a fifth of the time that a default of a class takes."""

    __slots__ = (
        "_trace", "_index", "_type", "_buffer", "_base", "_rg", "_leaf",
        "_root", "_view", "_storage", "_seen", "_version", "_tape", "_name", "_before",
    )  # fmt: skip
    _trace: Trace | None
    _index: int
    _type: TensorType
    _buffer: Buffer | None
    _base: Any
    _rg: bool
    _leaf: bool
    _root: Any
    _view: tuple[OpDef, Attrs] | None
    _storage: Storage | None  # made with the first view
    _seen: int
    _version: int
    _tape: tuple[Trace, int] | None
    _name: str
    _before: Buffer | int  # while a new value is pending: the buffer that was the last one, its id if the trace reads it; else not set

    def __init__(self, trace: Trace | None, index: int, type: TensorType, flows: bool = False) -> None:
        self._trace, self._index, self._type, self._buffer, self._base, self._rg, self._leaf = trace, index, type, None, None, flows, not flows
        self._root = self._view = self._storage = self._tape = None
        self._seen, self._version, self._name = 0, 0, ""


class Storage:
    """What a tensor and its views share. ``moved``: the tensor that has the values now, once the first took others by .data."""

    __slots__ = ("moved",)

    def __init__(self) -> None:
        self.moved: Any = None


class Number(Operand):
    """A Python number as an operand: a run-time scalar, given anew at each run and not part of the key."""

    __slots__ = ("value",)

    def __init__(self, value: Scalar, dtype: DType) -> None:
        self.value, self._type, self._trace, self._buffer, self._base, self._rg = value, zero_d[dtype], None, None, None, False

    @property
    def type(self) -> TensorType:
        return self._type


class ValueRef(Operand):
    """A value of a trace as an operand, without a tensor that names it."""

    __slots__ = ()

    def __init__(self, trace: Trace, index: int, type: TensorType) -> None:
        self._trace, self._index, self._type, self._buffer, self._base, self._rg = trace, index, type, None, None, False

    @property
    def type(self) -> TensorType:
        return self._type
