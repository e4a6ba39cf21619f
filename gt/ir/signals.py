"""What a signal asks for. A signal never changes a value: it can always be ignored.

Owns: the signal schema, shared by YAML, Python and the wire. Forms that people write (one axis name, a mapping) become
one form with tuples, which is hashable and prints the same everywhere.
Next: ``gt.config`` (loading), ``gt.passes.signal_placement`` (what it means for one tensor).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

Axes: TypeAlias = str | tuple[str, ...]
DimAxes: TypeAlias = tuple[tuple[int, tuple[str, ...]], ...]  # dim -> mesh axes that split it, outermost first
MeshAxes: TypeAlias = tuple[tuple[str, int], ...]  # axis -> size; -1 for what the other axes leave
ParamRules: TypeAlias = tuple[tuple[str, DimAxes], ...]  # pattern of a parameter's name -> how it is split


class ShardConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Split dim ``axis`` of a tensor over ``workers`` (all workers if None), or keep it whole on them (``replicated``).

    ``axis`` None: it is computed on these workers, split or whole as follows from what it is made of. ``dims`` says it for a
    mesh of several axes: ``{0: "dp", 1: "tp"}``, or ``{0: ("dp", "tp")}``. ``workers`` may be given
    as a list. Errors: ValueError if workers are none, repeated or negative, if an axis splits two dims, or if ``dims``
    stands beside what contradicts it.
    """

    axis: int | None = 0
    workers: tuple[int, ...] | None = None
    replicated: bool = False
    dims: dict[int, Axes] | DimAxes = ()

    def __post_init__(self) -> None:
        if self.axis is not None and (not isinstance(self.axis, int) or isinstance(self.axis, bool)):
            raise TypeError(f"axis must be the number of a dim, or None for workers alone, got {self.axis!r}")
        _set(self, "dims", dim_axes(self.dims))
        if self.dims and (self.replicated or self.axis != 0):
            other = "replicated" if self.replicated else "axis"
            raise ValueError(f"dims and {other} contradict each other: keep one of them")
        if self.replicated and self.axis is None:
            raise ValueError("axis None and replicated contradict each other: keep one of them")
        if self.workers is None:
            return
        workers = tuple(self.workers)
        if not all(isinstance(w, int) and not isinstance(w, bool) for w in workers):
            raise TypeError(f"workers must be worker numbers, got {list(workers)}")
        if not workers or min(workers) < 0 or len(set(workers)) != len(workers):
            raise ValueError(f"workers must be different numbers from 0 up, at least one, got {list(workers)}")
        _set(self, "workers", workers)

    @property
    def only_workers(self) -> bool:
        """Whether it says where to compute and nothing of how values are split."""
        return self.axis is None

    @property
    def axes(self) -> tuple[str, ...]:
        """Give the mesh axes that ``dims`` names."""
        return tuple(axis for _, axes in dim_axes(self.dims) for axis in axes)


class SignalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    return f"{name}'", msgspec.structs.replace(config, shard=own, backward_signal=None, backward_config=None)


Precision = Literal["highest", "high", "medium"]


class PlanOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client asks of the planning of all its work, beside signals.

    ``auto``: what is done with tensors that no signal places: "off" keeps them whole, "rows" splits created tensors of
    two dims or more by rows where the workers divide them, "search" looks for the fastest placement of the whole graph
    within ``memory_bytes`` of each worker. ``strict``: a value moved that nobody asked to move is an error.
    ``comm_bytes``: more bytes than these sent by one worker in one run are an error. ``float32_matmul``: how exactly products of
    float32 matrices are computed, in the words of torch.set_float32_matmul_precision.
    """

    auto: Literal["off", "rows", "search"] = "off"
    strict: bool = False
    comm_bytes: int | None = None
    memory_bytes: int | None = None
    float32_matmul: Precision = "highest"


def mesh_axes(given: Mapping[str, int] | Iterable[Any]) -> MeshAxes:
    """Give a mesh's axes in one form. Errors: ValueError for a size below 1 (one -1 is allowed), TypeError."""
    pairs = tuple((name, size) for name, size in _items(given))
    for name, size in pairs:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"a mesh axis is named by a word, got {name!r}")
        if not isinstance(size, int) or isinstance(size, bool) or (size < 1 and size != -1):
            raise ValueError(f"mesh axis {name!r}: expected a size from 1 up, or -1 for the rest, got {size!r}")
    if len(dict(pairs)) != len(pairs):
        raise ValueError(f"a mesh axis is named twice in {pairs}")
    if sum(size == -1 for _, size in pairs) > 1:
        raise ValueError("only one mesh axis may have size -1")
    return pairs


def dim_axes(given: Mapping[int, Any] | Iterable[Any]) -> DimAxes:
    """Give which mesh axes split which dims in one form. Errors: ValueError if an axis splits two dims."""
    pairs = tuple((dim, (axes,) if isinstance(axes, str) else tuple(axes)) for dim, axes in _items(given))
    seen: dict[str, int] = {}
    for dim, axes in pairs:
        for axis in axes:
            if axis in seen:
                raise ValueError(f"mesh axis {axis!r} splits dims {seen[axis]} and {dim}: it can split one")
            seen[axis] = dim
    return pairs


def param_rules(given: Mapping[str, Any] | Iterable[Any]) -> ParamRules:
    """Give the rules for parameters in one form."""
    rules = []
    for pattern, dims in _items(given):
        try:
            rules.append((pattern, dim_axes(dims)))
        except ValueError as error:
            raise ValueError(f"{pattern}: {error}") from None
    return tuple(rules)


def _items(given: Any) -> Iterable[tuple[Any, Any]]:
    return given.items() if isinstance(given, Mapping) else given


def _set(config: msgspec.Struct, name: str, value: object) -> None:
    msgspec.structs.force_setattr(config, name, value)


__all__ = [
    "Axes", "DimAxes", "MeshAxes", "ParamRules", "PlanOptions", "ShardConfig", "SignalConfig", "backward_of", "dim_axes", "mesh_axes",
    "param_rules",
]  # fmt: skip
