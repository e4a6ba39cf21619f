"""``nn.modules.utils``: what layers of one's own make of sizes, by torch's names. Next: ``modules`` (torch's path to the layers)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """Give a function that repeats a number ``n`` times, and gives what is several already as a tuple."""

    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else (x,) * n

    parse.__name__ = name
    return parse


_single, _pair, _triple, _quadruple = (
    _ntuple(n, name) for n, name in enumerate(("_single", "_pair", "_triple", "_quadruple"), 1)
)


def _reverse_repeat_tuple(t: Iterable[Any], n: int) -> tuple[Any, ...]:
    """Give the elements from the last to the first, each ``n`` times: a convolution's padding as ``pad`` takes it."""
    return tuple(x for x in reversed(tuple(t)) for _ in range(n))


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Cut a prefix off the names in a state dict, in place, as ``module.`` of a wrapped model."""
    for key in [key for key in state_dict if key.startswith(prefix)]:
        state_dict[key.removeprefix(prefix)] = state_dict.pop(key)
    metadata = getattr(state_dict, "_metadata", None)
    for key in list(metadata or ()):
        if key == prefix.replace(".", "") or key.startswith(prefix):
            metadata[key.removeprefix(prefix) if key.startswith(prefix) else ""] = metadata.pop(key)  # type: ignore[index, union-attr]


__all__ = ["consume_prefix_in_state_dict_if_present"]
