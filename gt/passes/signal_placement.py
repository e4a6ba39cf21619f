"""Where a signal asks a value to be: the one reading of ``shard`` and ``mesh``, for results of a graph and for uploads.

A signal never changes a value and may always be ignored, so what cannot be followed (a dim the tensor lacks, workers
that are not there) falls back to whole copies, and says why. Owns: ``signal_mesh``, ``involved``, ``cut``,
``signal_sharding``, ``ParamPlacement`` (parameters by name). Must not know: graphs. Next: ``propagate_sharding``
(everything else).
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gt.ir.advice import nearest
from gt.ir.mesh import Mesh, Sharding
from gt.ir.signals import DimAxes, MeshAxes, ShardConfig, SignalConfig, dim_axes, mesh_axes, param_rules
from gt.ir.types import TensorType


def cluster_mesh(workers: tuple[int, ...], everything: tuple[int, ...]) -> Mesh:
    """Give the mesh over some of a cluster's workers, as the planner names it."""
    return Mesh("all", (("w", len(workers)),), workers) if workers == everything else Mesh.line(workers)


@lru_cache(maxsize=4096)
def signal_mesh(config: SignalConfig, everything: Mesh) -> tuple[Mesh | None, str]:
    """Give the mesh of a signal's workers that are present (None: no worker is), and what is wrong, if anything.

    What names no axes is split over all of its workers, also where the declared mesh is not laid over all of them.
    """
    present = _present(config, everything)
    asked = (config.shard.workers if config.shard is not None else None) or everything.workers
    if not present:
        return None, f"ignored: none of the workers {list(asked)} is present"
    mesh = everything if present == everything.workers else Mesh.line(present)
    grid, fault = _declared(config, everything, present)
    shard = config.shard
    if grid is not None and (shard is None or shard.dims is not None or len(grid.workers) == len(present)):
        mesh = grid
    if absent := sorted(set(asked) - set(present)):
        fault = f"workers {absent} are not present, using {list(mesh.workers)}: start more workers, or name those there are"
    return mesh, fault


@lru_cache(maxsize=4096)
def rules_mesh(config: SignalConfig, everything: Mesh) -> Mesh | None:
    """Give the mesh that a signal's rules for parameters split them over; None if none of its workers is present."""
    present = _present(config, everything)
    return (_declared(config, everything, present)[0] or signal_mesh(config, everything)[0]) if present else None


def _present(config: SignalConfig, everything: Mesh) -> tuple[int, ...]:
    """Give a signal's workers that are present."""
    asked = config.shard.workers if config.shard is not None else None
    there = set(everything.workers)
    return everything.workers if asked is None else tuple(w for w in asked if w in there)


def _declared(config: SignalConfig, everything: Mesh, present: tuple[int, ...]) -> tuple[Mesh | None, str]:
    """Give the declared mesh, laid over the workers that are present, if the signal uses it, and what is wrong."""
    declared, fault = mesh_axes(config.mesh), ""
    unknown = [axis for axis in config.axes if axis not in dict(declared)]
    if unknown:
        meant = nearest(unknown[0], (axis for axis, _ in declared)) or f": add 'mesh: {{{unknown[0]}: SIZE}}'"
        fault = f"mesh axis {unknown[0]!r} is not declared{meant}"
    if not declared or not (config.axes or config.shard is None or config.shard.only_workers):
        return None, fault
    whole = config.shard is None or config.shard.workers is None
    axes, misfit = fitted(declared, len(present), "present" if whole else "named")
    grid = Mesh.grid(axes, present[: math.prod(size for _, size in axes)])
    return (everything if grid == everything else grid), fault or misfit


def fitted(declared: MeshAxes, count: int, what: str = "present") -> tuple[MeshAxes, str]:
    """Give the axes for so many workers, which are ``what``, and what is wrong. An axis of size -1 takes what the others leave.

    With too few workers the inner axes keep their size as far as it goes: neighbours stay together.
    """
    fixed = math.prod(size for _, size in declared if size != -1)
    axes = tuple((axis, max(count // fixed, 1) if size == -1 else size) for axis, size in declared)
    if math.prod(size for _, size in axes) <= count:
        return axes, ""
    left, kept = count, []
    for axis, size in reversed(axes):
        kept.append((axis, min(size, left)))
        left //= kept[-1][1]
    asked = math.prod(size for _, size in axes)
    text = ", ".join(f"{axis}: {size}" for axis, size in reversed(kept))
    return tuple(reversed(kept)), f"the mesh asks for {asked} workers, {count} are {what}: using {{{text}}}"


def cut(shard: ShardConfig, mesh: Mesh, type_: TensorType) -> tuple[Sharding, str]:
    """Give the placement a signal asks for on its mesh; whole, with the reason, where a dim cannot be cut."""
    if shard.replicated or shard.axis is None or mesh.size == 1:
        return Sharding.replicated(mesh, type_.ndim), ""
    everywhere = ((shard.axis, tuple(axis for axis, _ in mesh.axes)),)
    return cut_dims(everywhere if shard.dims is None else dim_axes(shard.dims), mesh, type_)


def cut_dims(asked: DimAxes, mesh: Mesh, type_: TensorType) -> tuple[Sharding, str]:
    """Split dims over axes, each as far as it can be; give the placement and why some dim is whole."""
    dims: list[tuple[str, ...]] = [() for _ in type_.shape]
    sizes, problem = dict(mesh.axes), ""
    for dim, axes in asked:
        axes = tuple(axis for axis in axes if sizes.get(axis, 1) > 1)
        shards = math.prod(sizes[axis] for axis in axes)
        if shards == 1:
            continue
        at = dim % type_.ndim if type_.ndim else 0
        if not -type_.ndim <= dim < type_.ndim:
            problem = f"kept whole: {type_.placed(None)!r} has no dim {dim}"
        elif dims[at]:
            problem = f"dim {dim} of {type_.placed(None)!r} is split over {', '.join(dims[at])} already"
        elif type_.shape[at] < shards:
            problem = f"kept whole: dim {at} of {type_.placed(None)!r} is smaller than {shards} workers"
        else:
            dims[at] = axes
    return Sharding(mesh, tuple(dims)), problem


def signal_sharding(type_: TensorType, config: SignalConfig | None, workers: tuple[int, ...]) -> Sharding:
    """Give where an upload goes: as its signal asks as far as possible, else whole on all workers."""
    everything = cluster_mesh(workers, workers)
    shard = config.shard if config is not None else None
    mesh = signal_mesh(config, everything)[0] if config is not None and shard is not None else None
    if shard is None or mesh is None:
        return Sharding.replicated(everything, type_.ndim)
    return cut(shard, mesh, type_)[0]


def involved(configs: Iterable[SignalConfig], inputs: Iterable[Sharding], everything: Mesh) -> Mesh:
    """Give the mesh of the workers that a graph needs, where what no signal places is whole: all unless something says.

    Those are the workers that signals name and that hold what is not whole on these. Others have no part in the graph,
    so that losing one of them is nothing to it.
    """
    named: dict[int, None] = {}
    for config in configs:
        mesh = signal_mesh(config, everything)[0] if config.places else None
        named |= dict.fromkeys(mesh.workers if mesh is not None else ())
    whole = []
    for placed in inputs:
        if placed.is_replicated:
            whole.append(placed.mesh.workers)
        else:
            named |= dict.fromkeys(placed.mesh.workers)
    holders = {own: frozenset(own) for own in sorted(set(whole), key=len)}
    apart = lambda own: not named or not (named.keys() <= holders[own] or holders[own] <= named.keys())  # noqa: E731
    while (more := next(filter(apart, holders), None)) is not None:  # what held all that was named before may not hold this
        named |= dict.fromkeys(more)
    there = set(everything.workers)
    workers = tuple(w for w in named if w in there)
    return Mesh.line(workers) if 0 < len(workers) < everything.size else everything


def declared_mesh(configs: Iterable[SignalConfig], everything: Mesh, unused: bool = False) -> Mesh:
    """Give the mesh of named axes over all workers that signals use, or with ``unused`` name; else ``everything``."""
    for config in configs:
        if (config.places or unused) and config.mesh and (config.shard is None or config.shard.workers is None):
            mesh = signal_mesh(config, everything)[0]
            if mesh is not None and mesh.workers == everything.workers:
                return mesh
    return everything


@dataclass(frozen=True)
class ParamPlacement:
    """Where parameters go by their name: for each rule its pattern, the dims it splits, the mesh, and the axes that are declared for it."""

    rules: tuple[tuple[str, DimAxes, Mesh, MeshAxes], ...]

    @classmethod
    def of(cls, configs: Iterable[SignalConfig], everything: Mesh) -> ParamPlacement:
        rules: dict[tuple[str, DimAxes, Mesh, MeshAxes], None] = {}
        for config in configs:
            if config.params and (mesh := rules_mesh(config, everything)) is not None:
                declared = mesh_axes(config.mesh)
                rules |= dict.fromkeys((pattern, dims, mesh, declared) for pattern, dims in param_rules(config.params))
        return cls(tuple(rules))

    def find(self, name: str, type_: TensorType, home: Mesh | None = None) -> tuple[Sharding, str, str] | None:
        """Give the placement of a parameter, the pattern that says so, and what is wrong; None if no rule matches.

        ``home``: where it lives, if not where all work is done: the declared axes are then laid over those workers.
        """
        if not name:
            return None
        for pattern, dims, mesh, declared in self.rules:
            if fnmatch.fnmatchcase(name, pattern):
                if home is not None and set(home.workers) != set(mesh.workers):
                    mesh = _laid_over(declared, home) if declared else home
                placed, problem = cut_dims(dims, mesh, type_)
                return placed, pattern, problem
        return None


def _laid_over(declared: MeshAxes, home: Mesh) -> Mesh:
    axes, _ = fitted(declared, home.size)
    grid = Mesh.grid(axes, home.workers[: math.prod(size for _, size in axes)])
    return home if grid == home else grid


__all__ = ["ParamPlacement", "cluster_mesh", "cut", "declared_mesh", "fitted", "involved", "signal_mesh", "signal_sharding"]
