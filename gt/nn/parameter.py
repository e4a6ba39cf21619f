"""``Parameter`` and ``Buffer``: tensors that a Module lists as trained and as kept state."""

from __future__ import annotations

from typing import Any, Self

from gt.copying import take_values
from gt.functions import create
from gt.printing import format_tensor
from gt.tensor import Tensor


class Parameter(Tensor):
    """A leaf tensor that needs a gradient (unless told otherwise) and belongs to the Module it is assigned to."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Self:
        return Tensor._make_subclass(cls, create.empty(0) if data is None else data, requires_grad)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Do nothing: a subclass may take arguments of its own in either method, as in torch."""

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        """Give a parameter of the same class, which is called with values and ``requires_grad``; it has no gradient."""
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.detach().clone(), self._rg)
        return memo[id(self)]

    def __repr__(self) -> str:
        text = super().__repr__()
        return "Parameter containing:\n" + (text if type(self) is Parameter else f"Parameter({text})")

    def _twin(self, values: Tensor) -> Any:
        return Parameter(values, self._rg)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, args, given = super().__reduce__()
        return _again, (rebuild, args, self._rg), given


class Buffer(Tensor):
    """A tensor that a Module keeps as state when assigned to it; ``persistent``: part of its state dict."""

    persistent: bool = True

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Self:
        out = object.__new__(cls)
        take_values(out, create.empty(0) if data is None else data)
        out.persistent = persistent
        return out

    def __init__(self, *args: Any, **options: Any) -> None:
        """Do nothing: see ``Parameter``."""

    def __repr__(self) -> str:
        return format_tensor(self)

    def _twin(self, values: Tensor) -> Any:
        return Buffer(values, persistent=self.persistent)


def _again(rebuild: Any, args: tuple[Any, ...], requires_grad: bool) -> Parameter:
    return Parameter(rebuild(*args).detach(), requires_grad)
