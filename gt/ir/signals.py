"""What a signal asks for. A signal never changes a value: it can always be ignored.

Owns: the signal schema, shared by YAML, Python and the wire. Forms that people write (one axis name, a mapping) become
one form with tuples, which is hashable and prints the same everywhere. What they may not write is refused here, whichever way it comes,
as a ``SignalFault`` that knows the keys that lead to it.
Next: ``gt.config`` (loading), ``gt.passes.signal_placement`` (what it means for one tensor).
"""

from __future__ import annotations

import math
import numbers
import operator
import re
import reprlib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Literal, SupportsIndex, TypeAlias

import msgspec

from gt.ir.advice import nearest
from gt.ir.blame import Located

Axes: TypeAlias = str | tuple[str, ...]
DimAxes: TypeAlias = tuple[tuple[int, tuple[str, ...]], ...]  # dim -> mesh axes that split it, outermost first
MeshAxes: TypeAlias = tuple[tuple[str, int], ...]  # axis -> size; -1 for what the other axes leave
ParamRules: TypeAlias = tuple[tuple[str, DimAxes], ...]  # pattern of a parameter's name -> how it is split


class SignalFault(Located):
    """What may not be in a signal, and the keys that lead to it; ``on_key`` if the last of them is itself wrong."""

    def __init__(self, what: str, *keys: object, on_key: bool = False) -> None:
        super().__init__(f"{dotted(keys)}: {what}" if keys else what)
        self.what, self.keys, self.on_key = what, keys, on_key


class WrongType(SignalFault, TypeError):
    """A value or key of a type that does not belong there."""


class WrongValue(SignalFault, ValueError):
    """A value of the right type that is not possible."""


class Fields(msgspec.StructMeta):
    """Makes classes that tell which field an unknown name may have been meant to be. Errors: WrongType."""

    def __call__(self, *values: Any, **named: Any) -> Any:
        for name in named:
            if name not in self.__struct_fields__:
                known = nearest(name, self.__struct_fields__) or f"; there are {', '.join(self.__struct_fields__)}"
                raise WrongType(f"unknown field {name!r}{known}")
        return super().__call__(*values, **named)


class ShardConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, metaclass=Fields):
    """Split dim ``axis`` of a tensor over ``workers`` (all workers if None), or keep it whole on them (``replicated``).

    ``axis`` None: it is computed on these workers, split or whole as follows from what it is made of. ``dims`` says it for a
    mesh of several axes: ``{0: "dp", 1: "tp"}``, or ``{0: ("dp", "tp")}``; ``{}`` splits none. ``workers`` may be given
    as a list. Errors: TypeError; ValueError if workers are none, repeated or negative, if an axis splits two dims, or if ``dims``
    or ``replicated`` stands beside what contradicts it.
    """

    axis: int | None = 0
    workers: tuple[int, ...] | None = None
    replicated: bool = False
    dims: dict[int, Axes] | DimAxes | None = None

    def __post_init__(self) -> None:
        if isinstance(self.axis, SupportsIndex) and not isinstance(self.axis, bool):
            _set(self, "axis", operator.index(self.axis))  # NumPy's ints are ints
        if self.axis is not None and not _is_int(self.axis):
            raise WrongType(f"expected the number of a dim (an int), got {shown(self.axis)}", "axis")
        truth(self.replicated, "replicated")
        if self.dims is not None:
            _set(self, "dims", dim_axes(self.dims, "dims"))
            if self.replicated or self.axis != 0:
                raise contradiction("dims", "replicated" if self.replicated else "axis")
        if self.replicated and self.axis != 0:
            raise contradiction("replicated", "axis")
        if self.workers is not None:
            _set(self, "workers", worker_numbers(self.workers))

    @property
    def only_workers(self) -> bool:
        """Whether it says where to compute and nothing of how values are split."""
        return self.axis is None

    @property
    def axes(self) -> tuple[str, ...]:
        """Give the mesh axes that ``dims`` names."""
        return tuple(axis for _, axes in dim_axes(self.dims or ()) for axis in axes)


class SignalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, metaclass=Fields):
    """One signal: how to shard what it marks, which signal its gradients follow, and whether to compile it at once.

    ``mesh`` names the axes that ``dims`` uses (default: the configuration's mesh), ``params`` places parameters by the
    pattern of their name: the first that matches counts. In YAML and on the wire ``backward_signal`` is called
    ``backward``. ``backward_config`` is filled in when the signal is used: what the backward signal asks for.
    """

    shard: ShardConfig | None = None
    backward_signal: str | None = msgspec.field(default=None, name="backward")
    compile: bool = False
    mesh: dict[str, int] | MeshAxes = ()
    params: dict[str, dict[int, Axes]] | ParamRules = ()
    backward_config: SignalConfig | None = None

    def __post_init__(self) -> None:
        if self.shard is not None and not isinstance(self.shard, ShardConfig):
            raise WrongType(f"expected a gt.ShardConfig, got {shown(self.shard)}", "shard")
        if self.backward_signal is not None and not isinstance(self.backward_signal, str):
            raise WrongType(f"expected the name of a signal, got {shown(self.backward_signal)}", "backward_signal")
        truth(self.compile, "compile")
        _set(self, "mesh", mesh_axes(self.mesh))
        _set(self, "params", param_rules(self.params))

    @property
    def axes(self) -> tuple[str, ...]:
        """Give the mesh axes that this signal names, without repeats."""
        named = [] if self.shard is None else list(self.shard.axes)
        named += [a for _, dims in param_rules(self.params) for _, axes in dims for a in axes]
        return tuple(dict.fromkeys(named))

    @property
    def places(self) -> bool:
        """Whether the signal places anything."""
        return self.shard is not None or bool(self.params)


def work_of(config: SignalConfig) -> SignalConfig:
    """Give what a signal asks for the work under it, without what gradients follow."""
    return msgspec.structs.replace(config, backward_signal=None, backward_config=None)


def backward_of(name: str, config: SignalConfig) -> tuple[str, SignalConfig] | None:
    """Give the signal that gradients follow where ``config`` names none for them; None if they follow none.

    Those of work on workers of its own are computed on these workers.
    """
    shard = config.shard
    if shard is None or shard.only_workers:
        return name, config
    if shard.workers is None:
        return None
    own = ShardConfig(axis=None, workers=shard.workers)
    return f"{name}'", msgspec.structs.replace(work_of(config), shard=own)


Precision = Literal["highest", "high", "medium"]


class PlanOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, metaclass=Fields):
    """What a client asks of the planning of all its work, beside signals.

    ``auto``: what is done with tensors that no signal places: "off" keeps them whole, "rows" splits created tensors of
    two dims or more by rows where the workers divide them, "search" looks for the fastest placement of the whole graph
    within ``memory_limit`` of each worker. ``strict``: a value moved that nobody asked to move is an error.
    ``comm_bytes``: more bytes than these sent by one worker in one run are an error. ``float32_matmul``: how exactly products of
    float32 matrices are computed, in the words of torch.set_float32_matmul_precision.
    """

    auto: Literal["off", "rows", "search"] = "off"
    strict: bool = False
    comm_bytes: int | None = None
    memory_limit: int | None = None
    float32_matmul: Precision = "highest"


def mesh_axes(given: Mapping[str, int] | Iterable[Any]) -> MeshAxes:
    """Give a mesh's axes in one form. Errors: WrongValue for a size below 1 (one -1 is allowed), WrongType."""
    pairs = _pairs(given, "axes with their sizes, as in {dp: 2, tp: 2}", "mesh")
    for name, size in pairs:
        if not isinstance(name, str) or not name.isidentifier():
            raise WrongValue(f"a mesh axis is named by a word, got {shown(name)}", "mesh", name, on_key=True)
        if not _is_int(size) or (size < 1 and size != -1):
            kind = WrongValue if _is_int(size) else WrongType
            raise kind(f"expected a size from 1 up, or -1 for the rest, got {shown(size)}", "mesh", name)
    if len(dict(pairs)) != len(pairs):
        raise WrongValue(f"an axis is named twice in {pairs}", "mesh")
    if sum(size == -1 for _, size in pairs) > 1:
        raise WrongValue("only one mesh axis may have size -1", "mesh")
    return pairs


def dim_axes(given: Mapping[int, Any] | Iterable[Any], *keys: object) -> DimAxes:
    """Give which mesh axes split which dims in one form; ``keys`` lead to it. Errors: WrongValue if an axis splits two dims, WrongType."""
    pairs = []
    for dim, axes in _pairs(given, "dims with the mesh axes that split them, as in {0: dp}", *keys):
        if not _is_int(dim):
            raise WrongType(f"expected the number of a dim (an int), got {shown(dim)}", *keys, dim, on_key=True)
        named = (axes,) if isinstance(axes, str) else _listed(axes)
        if named is None or not all(isinstance(axis, str) for axis in named):
            raise WrongType(f"expected a mesh axis or a list of them, as in dp or [dp, tp], got {shown(axes)}", *keys, dim)
        pairs.append((dim, named))
    seen: dict[str, int] = {}
    for dim, axes in pairs:
        for axis in axes:
            if axis in seen:
                raise WrongValue(f"mesh axis {axis!r} splits dims {seen[axis]} and {dim}: it can split one", *keys)
            seen[axis] = dim
    return tuple(pairs)


def param_rules(given: Mapping[str, Any] | Iterable[Any]) -> ParamRules:
    """Give the rules for parameters in one form. Errors: WrongType, WrongValue."""
    rules = []
    for pattern, dims in _pairs(given, "patterns of names with dims to split, as in {'*.weight': {0: dp}}", "params"):
        if not isinstance(pattern, str):
            raise WrongType(f"expected a pattern of names as text, got {shown(pattern)}", "params", pattern, on_key=True)
        rules.append((pattern, dim_axes(dims, "params", pattern)))
    return tuple(rules)


_UNITS = {unit: 1000**i for i, unit in enumerate(("b", "kb", "mb", "gb", "tb"))} | {f"{c}ib": 1024**i for i, c in enumerate("kmgt", 1)}


def byte_limit(given: Any, *keys: object, least: int = 1) -> int:
    """Give a number of bytes, or text such as "4000000", "300 kB" or "20GiB", as a number. Errors: WrongType, WrongValue.

    kB, MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB of 1024, in upper or lower case.
    """
    if isinstance(given, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?b|b)\s*|\s*(\d+)\s*", given, re.IGNORECASE)):
        given = int(match[3]) if match[3] else int(Decimal(match[1]) * _UNITS[match[2].lower()])
    if not _is_int(given) or given < least:
        kind = WrongValue if isinstance(given, int | str) and not isinstance(given, bool) else WrongType
        raise kind(f"expected a number of bytes from {least} up, or text such as '20GiB', got {shown(given)}", *keys)
    return int(given)


def weight(given: Any, *keys: object) -> float:
    """Give a number over 0 as a float. Errors: WrongType, WrongValue."""
    if not isinstance(given, numbers.Real) or isinstance(given, bool):
        raise WrongType(f"expected a number over 0, got {shown(given)}", *keys)
    try:
        value = float(given)
    except OverflowError:  # of a whole number
        value = math.inf
    if not 0 < value < math.inf:
        raise WrongValue(f"expected a number over 0, got {shown(given)}", *keys)
    return value


def truth(given: Any, *keys: object) -> bool:
    """Give a bool that is one. Errors: WrongType."""
    if not isinstance(given, bool):
        raise WrongType(f"expected true or false, got {shown(given)}", *keys)
    return given


def contradiction(one: str, other: str) -> WrongValue:
    """Give the fault of two keys of a shard of which only one may stand, at the second."""
    return WrongValue(f"{one} and {other} contradict each other: remove one of them", other, on_key=True)


def dotted(keys: Iterable[object]) -> str:
    """Give keys as they are written to get at a value: ``shard.workers[1]``."""
    text = ""
    for key in keys:
        named = isinstance(key, str) and key.isidentifier()
        text += (f".{key}" if text else str(key)) if named else f"[{key!r}]"
    return text


def shown(value: object) -> str:
    """Give a value as it is told, which is short."""
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else reprlib.repr(value)


def worker_numbers(given: Any) -> tuple[int, ...]:
    """Give the numbers of workers as a tuple. Errors: WrongValue if they are none, repeated or negative, WrongType."""
    workers = _listed(given)
    if workers is None:
        raise WrongType(f"expected worker numbers in a list, as in [0, 1], got {shown(given)}", "workers")
    for at, worker in enumerate(workers):
        if not _is_int(worker):
            raise WrongType(f"worker numbers are ints, got {shown(worker)}", "workers", at)
    if not workers or min(workers) < 0 or len(set(workers)) != len(workers):
        raise WrongValue(f"expected different numbers from 0 up, at least one, got {shown(list(workers))}", "workers")
    return workers


def _pairs(given: Any, expected: str, *keys: object) -> tuple[tuple[Any, Any], ...]:
    """Give the items of a mapping, or of what it became on the wire."""
    items = tuple(given.items()) if isinstance(given, Mapping) else _listed(given)
    if items is None or not all(isinstance(item, list | tuple) and len(item) == 2 for item in items):
        raise WrongType(f"expected {expected}, got {shown(given)}", *keys)
    return tuple((key, value) for key, value in items)


def _listed(given: Any) -> tuple[Any, ...] | None:
    """Give what is listed; None if it is no list."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping) else None


def _is_int(value: object) -> bool:
    """Whether a value is an int that a message can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64


def _set(config: msgspec.Struct, name: str, value: object) -> None:
    msgspec.structs.force_setattr(config, name, value)


__all__ = [
    "Axes", "DimAxes", "MeshAxes", "ParamRules", "PlanOptions", "ShardConfig", "SignalConfig", "SignalFault", "WrongType", "WrongValue",
    "backward_of", "byte_limit", "contradiction", "dim_axes", "dotted", "mesh_axes", "param_rules", "shown", "truth", "weight",
    "work_of", "worker_numbers",
]  # fmt: skip
