"""Where a signal asks a value to be: the one reading of ``shard``, for results of a graph and for uploads.

A signal never changes a value and may always be ignored, so what cannot be followed (a dim the tensor lacks, workers
that are not there) falls back to whole copies, and says why. Owns: ``signal_mesh``, ``cut``, ``signal_sharding``.
Must not know: graphs. Next: ``propagate_sharding`` (everything else).
"""

from __future__ import annotations

from gt.ir.mesh import Mesh, Sharding
from gt.ir.signals import ShardConfig, SignalConfig
from gt.ir.types import TensorType


def cluster_mesh(workers: tuple[int, ...], everything: tuple[int, ...]) -> Mesh:
    """Give the mesh over some of a cluster's workers, as the planner names it."""
    return Mesh("all", (("w", len(workers)),), workers) if workers == everything else Mesh.line(workers)


def signal_mesh(shard: ShardConfig, everything: Mesh) -> tuple[Mesh | None, str]:
    """Give the mesh of a signal's workers that are present (None: no worker is), and what is wrong, if anything."""
    if shard.workers is None:
        return everything, ""
    present = tuple(w for w in shard.workers if w in everything.workers)
    if not present:
        return None, f"ignored: none of the workers {list(shard.workers)} is present"
    absent = [w for w in shard.workers if w not in present]
    problem = f"workers {absent} are not present, using {list(present)}" if absent else ""
    return everything if present == everything.workers else Mesh.line(present), problem


def cut(shard: ShardConfig, mesh: Mesh, type_: TensorType) -> tuple[Sharding, str]:
    """Give the placement a signal asks for on its mesh; whole, with the reason, where the dim cannot be cut."""
    whole = Sharding.replicated(mesh, type_.ndim)
    if shard.replicated or mesh.size == 1:
        return whole, ""
    if not -type_.ndim <= shard.axis < type_.ndim:
        return whole, f"kept whole: {type_.placed(None)!r} has no dim {shard.axis}"
    dim = shard.axis % type_.ndim
    if type_.shape[dim] < mesh.size:
        return whole, f"kept whole: dim {dim} of {type_.placed(None)!r} is smaller than {mesh.size} workers"
    axes = tuple(axis for axis, _ in mesh.axes)
    return Sharding(mesh, tuple(axes if d == dim else () for d in range(type_.ndim))), ""


def signal_sharding(type_: TensorType, config: SignalConfig | None, workers: tuple[int, ...]) -> Sharding:
    """Give where an upload goes: as its signal asks as far as possible, else whole on all workers."""
    everything = cluster_mesh(workers, workers)
    shard = config.shard if config is not None else None
    mesh = signal_mesh(shard, everything)[0] if shard is not None else None
    if shard is None or mesh is None:
        return Sharding.replicated(everything, type_.ndim)
    return cut(shard, mesh, type_)[0]


__all__ = ["cluster_mesh", "cut", "signal_mesh", "signal_sharding"]
