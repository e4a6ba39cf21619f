"""``Parameter``: a tensor that a Module lists among its parameters."""

from __future__ import annotations

from typing import Any

from gt.handle import ALIAS, Handle, no_tape
from gt.tensor import Tensor
from gt.trace import record


class Parameter(Tensor):
    """A leaf tensor that needs a gradient (unless told otherwise) and belongs to the Module it is assigned to."""

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        if not isinstance(data, Handle):
            raise TypeError(f"Parameter(): expected a gt.Tensor, got {type(data).__name__}")
        self._type = data._type
        source = data if data._base is None else data.clone()
        self._trace, self._index, self._buffer = source._trace, source._index, source._buffer
        self._tape = None
        if self._trace is not None:
            self._alias(data)
        self.requires_grad_(requires_grad)

    def _alias(self, data: Tensor) -> None:
        """Take a value of its own, so that the tensor it was made from keeps its."""
        with no_tape():
            self._adopt(record(ALIAS, (data,)))

    def _twin(self, values: Tensor) -> Any:
        return Parameter(values, self._rg)
