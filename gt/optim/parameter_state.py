"""``ParameterState``: what an optimizer keeps of one parameter.

Owns: counts, which steps reckon with as Python numbers and who looks at the state gets as 0-d tensors, as torch's are. Next: ``optimizer``.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from gt.functions import create
from gt.functions.promote import get_default_dtype
from gt.handle import Handle
from gt.ir.types import DType, float32, float64

COUNTS = ("step", "mu_product")


class ParameterState(dict[str, Any]):
    """A dict whose counts are tensors when looked at. What is written to such a tensor counts from then on."""

    __slots__ = ("_seen",)
    _seen: dict[str, tuple[Handle, int, float]]  # of each count that was looked at: its tensor, that one's version, the number

    def __getitem__(self, key: str) -> Any:
        value = dict.__getitem__(self, key)
        if key in COUNTS and value.__class__ is float:
            number, value = value, create.tensor(value, dtype=count_dtype())
            dict.__setitem__(self, key, value)
            self._seen = {**getattr(self, "_seen", {}), key: (value, value._version, number)}
        return value

    def __iter__(self) -> Iterator[str]:  # with its own, copies of the dict go by __getitem__
        return dict.__iter__(self)

    get, pop, popitem = MutableMapping.get, MutableMapping.pop, MutableMapping.popitem  # type: ignore[assignment]
    items, values, setdefault = MutableMapping.items, MutableMapping.values, MutableMapping.setdefault  # type: ignore[assignment]
    __eq__, __ne__ = MutableMapping.__eq__, MutableMapping.__ne__

    def copy(self) -> ParameterState:
        """Give another with the same values."""
        return ParameterState(self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return ParameterState, (dict(self),)


def count_dtype() -> DType:
    """Give the dtype of counts, which is torch's: that of numbers by default, but no halves, which count to 2,048."""
    return float64 if get_default_dtype() is float64 else float32


def rounded(value: float) -> float:
    """Give a number as a state dict has it, so that who loads one goes on with the same number."""
    return float(count_dtype().numpy.type(value))


def count_of(own: dict[str, Any], key: str = "step") -> float:
    """Give a count as a number; reads a tensor unless it is one that was only looked at."""
    value = dict.__getitem__(own, key)
    if value.__class__ is float:
        return value  # type: ignore[no-any-return]
    seen = getattr(own, "_seen", {}).get(key)
    return seen[2] if seen is not None and seen[0] is value and seen[1] == value._version else number(value)


def number(value: Any) -> float:
    """Give a number that a state dict holds as a number or a tensor."""
    return float(value.item()) if hasattr(value, "item") else float(value)
