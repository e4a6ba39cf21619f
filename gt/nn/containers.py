"""Containers of modules and parameters, with Python's list and dict protocols. Next: ``module``."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Self

from gt.handle import Handle
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.tensor import Tensor


def _place(index: Any, size: int) -> int:
    """Give a place in 0..size. Errors: IndexError."""
    i = operator.index(index)
    if not -size <= i < size:
        raise IndexError(f"index {i} is out of range")
    return i % size if size else 0


class _Row(Module):
    """Modules in a row, named by their number. What Sequential and ModuleList share."""

    def _fill(self, modules: Iterable[Any]) -> None:
        self._modules.clear()
        for i, module in enumerate(modules):
            self.add_module(str(i), module)

    def _same(self, modules: Iterable[Any]) -> Self:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        items = list(self._modules.values())
        if isinstance(index, slice):
            return self._same(items[index])
        return items[_place(index, len(items))]

    def __setitem__(self, index: int, module: Module) -> None:
        key = list(self._modules)[_place(index, len(self))]
        setattr(self, key, module)

    def __delitem__(self, index: Any) -> None:
        keys = list(self._modules)
        for key in keys[index] if isinstance(index, slice) else [keys[_place(index, len(keys))]]:
            del self._modules[key]
        self._fill(list(self._modules.values()))

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __iadd__(self, modules: Iterable[Any]) -> Self:
        return self.extend(modules)

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Any]) -> Self:
        """Add modules at the end."""
        if not isinstance(modules, Iterable):
            raise TypeError(f"{type(self).__name__}.extend should be called with an iterable, but got {type(modules).__name__}")
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Put a module before place ``index``."""
        if not isinstance(module, Module):
            raise AssertionError(f"module should be of type: {Module}")
        n = len(self)
        if not -n <= index <= n:
            raise IndexError(f"Index out of range: {index}")
        items = list(self._modules.values())
        items.insert(index + n if index < 0 else index, module)
        self._fill(items)
        return self

    def pop(self, key: int | slice) -> Any:
        """Take out a module and give it."""
        found = self[key]
        del self[key]
        return found


class Sequential(_Row):
    """Apply modules one after the other. Takes modules, or one OrderedDict of them."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = (
            args[0].items() if len(args) == 1 and isinstance(args[0], OrderedDict) else ((str(i), m) for i, m in enumerate(args))
        )
        for name, module in named:
            self.add_module(name, module)

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input

    def _same(self, modules: Iterable[Any]) -> Self:
        kept = set(map(id, modules))
        return type(self)(OrderedDict((k, m) for k, m in self._modules.items() if id(m) in kept))

    def __add__(self, other: Iterable[Any]) -> Sequential:
        if not isinstance(other, Sequential):
            raise ValueError(f"add operator supports only objects of Sequential class, but {type(other)} is given.")
        return Sequential(*self, *other)

    def __mul__(self, times: int) -> Sequential:
        if not isinstance(times, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(self)} and {type(times)}")
        if times <= 0:
            raise ValueError(f"Non-positive multiplication factor {times} for {type(self)}")
        return Sequential(*chain.from_iterable([list(self)] * times))

    __rmul__ = __mul__


class ModuleList(_Row):
    """A list of modules."""

    def __init__(self, modules: Iterable[Any] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def _same(self, modules: Iterable[Any]) -> Self:
        return type(self)(modules)

    def __add__(self, other: Iterable[Any]) -> ModuleList:
        return ModuleList(chain(self, other))

    def __repr__(self) -> str:
        """Runs of equal modules are shown once, as torch does."""
        texts = [repr(m) for m in self]
        if not texts:
            return self._get_name() + "()"
        runs: list[tuple[int, int, str]] = []
        for i, text in enumerate(texts):
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], i, text)
            else:
                runs.append((i, i, text))
        lines = [f"({a}): {t}" if a == b else f"({a}-{b}): {b - a + 1} x {t}" for a, b, t in runs]
        body = "\n".join("  " + line.replace("\n", "\n  ") for line in lines)
        return f"{self._get_name()}(\n{body}\n)"


def _pairs(kind: str, values: Any) -> list[tuple[Any, Any]]:
    """Give the pairs of a mapping, a container of the same kind, or an iterable of pairs."""
    if not isinstance(values, Iterable):
        raise TypeError(f"{kind}.update should be called with an iterable of key/value pairs, but got {type(values).__name__}")
    if isinstance(values, Mapping | ModuleDict | ParameterDict):
        return list(values.items())
    out = []
    for i, pair in enumerate(values):
        if not isinstance(pair, Iterable):
            raise TypeError(f"{kind} update sequence element #{i} should be Iterable; is {type(pair).__name__}")
        pair = list(pair)
        if len(pair) != 2:
            raise ValueError(f"{kind} update sequence element #{i} has length {len(pair)}; 2 is required")
        out.append((pair[0], pair[1]))
    return out


class ModuleDict(Module):
    """A dict of modules."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def clear(self) -> None:
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Take out a module and give it."""
        return self._modules.pop(key)

    def keys(self) -> Iterable[str]:
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._modules.items()

    def update(self, modules: Any) -> None:
        """Enter modules of a mapping or of pairs."""
        for key, module in _pairs("ModuleDict", modules):
            self[key] = module


def _as_parameter(value: Any) -> Any:
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


class ParameterList(Module):
    """A list of parameters; tensors become parameters, other values are kept as they are."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self += values

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(getattr(self, str(i)) for i in range(*index.indices(self._size)))
        return getattr(self, str(_place(index, self._size)))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, str(_place(index, self._size)), _as_parameter(value))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._size))

    def __iadd__(self, values: Iterable[Any]) -> Self:
        return self.extend(values)

    def append(self, value: Any) -> Self:
        """Add a value at the end."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add values at the end."""
        if not isinstance(values, Iterable) or isinstance(values, Handle):
            raise TypeError(f"ParameterList.extend should be called with an iterable, but got {type(values).__name__}")
        for value in values:
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return "\n".join(f"  ({i}): {_described(p)}" for i, p in enumerate(self))


class ParameterDict(Module):
    """A dict of parameters; tensors become parameters, other values are kept as they are."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, str(key))

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(
                f"Index given to ParameterDict cannot be used as a key as it is not a string (type is '{type(key).__name__}')."
            )
        self._keys[key] = None
        setattr(self, key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._keys))

    def __or__(self, other: ParameterDict) -> ParameterDict:
        out = self.copy()
        out.update(other)
        return out

    def __ior__(self, other: ParameterDict) -> Self:
        self.update(other)
        return self

    def copy(self) -> ParameterDict:
        return ParameterDict(OrderedDict(self.items()))

    def clear(self) -> None:
        for key in list(self._keys):
            del self[key]

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Give a value, entering ``default`` first if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str) -> Any:
        """Take out a value and give it."""
        found = self[key]
        del self[key]
        return found

    def popitem(self) -> tuple[str, Any]:
        """Take out the last value and give it with its key."""
        key = list(self._keys)[-1]
        return key, self.pop(key)

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key) if key in self._keys else default

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """Make a dict of the same value for each key."""
        return ParameterDict((key, default) for key in keys)

    def keys(self) -> Container[str] | Iterable[str]:
        return self._keys.keys()

    def values(self) -> Iterable[Any]:
        return (self[k] for k in self._keys)

    def items(self) -> Iterable[tuple[str, Any]]:
        return [(k, self[k]) for k in self._keys]

    def update(self, parameters: Any) -> None:
        """Enter values of a mapping or of pairs."""
        pairs = _pairs("ParameterDict", parameters)
        in_order = not isinstance(parameters, Mapping) or isinstance(parameters, OrderedDict | ParameterDict)
        for key, value in pairs if in_order else sorted(pairs):
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join(f"  ({k}): {_described(p, by_type=True)}" for k, p in self.items())


def _described(value: Any, by_type: bool = False) -> str:
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"{kind} containing: [{value.type() if by_type else value.dtype} of size {'x'.join(map(str, value.shape))}]"
