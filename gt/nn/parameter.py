"""``Parameter`` and ``Buffer``: tensors that a Module lists as trained and as kept state."""

from __future__ import annotations

from typing import Any

from gt.functions import create
from gt.handle import ALIAS, Handle, no_tape
from gt.tensor import Tensor
from gt.trace import Operand, holding, record


class Parameter(Tensor):
    """A leaf tensor that needs a gradient (unless told otherwise) and belongs to the Module it is assigned to."""

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        _adopt(self, create.empty(0) if data is None else data)
        self.requires_grad_(requires_grad)

    def _twin(self, values: Tensor) -> Any:
        return Parameter(values, self._rg)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, args = super().__reduce__()[:2]
        return _again, (rebuild, args, self._rg)


class Buffer(Tensor):
    """A tensor that a Module keeps as state when assigned to it; ``persistent``: part of its state dict."""

    persistent: bool = True

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True) -> None:
        _adopt(self, create.empty(0) if data is None else data)
        self.persistent = persistent

    def _twin(self, values: Tensor) -> Any:
        return Buffer(values, persistent=self.persistent)


def _adopt(self: Tensor, data: Tensor) -> None:
    """Take the value of ``data`` as a value of its own, so that the tensor it was made from keeps its."""
    if not isinstance(data, Handle):
        raise TypeError(f"{type(self).__name__}(): expected a gt.Tensor, got {type(data).__name__}")
    Operand.__init__(self, None, -1, data._type)
    source = data if data._base is None else data.clone()
    if source._trace is None:
        self._buffer = source._buffer
    else:
        with no_tape(), holding():
            self._adopt(record(ALIAS, (source,)))


def _again(rebuild: Any, args: tuple[Any, ...], requires_grad: bool) -> Parameter:
    return Parameter(rebuild(*args).detach(), requires_grad)
