"""Where an upload goes: the value is there before any graph, so only a signal speaks for it.

Owns: ``signal_sharding``. A signal never changes a value and may always be ignored, so what cannot be followed (an axis the
tensor lacks, workers that are not there) falls back to whole copies. Next: ``propagate_sharding`` (everything else).
"""

from __future__ import annotations

from gt.ir.mesh import Mesh, Sharding
from gt.ir.signals import SignalConfig
from gt.ir.types import TensorType


def cluster_mesh(workers: tuple[int, ...], everything: tuple[int, ...]) -> Mesh:
    """Give the mesh over some of a cluster's workers, as the planner names it."""
    return Mesh("all", (("w", len(workers)),), workers) if workers == everything else Mesh.line(workers)


def signal_sharding(type_: TensorType, config: SignalConfig | None, workers: tuple[int, ...]) -> Sharding:
    """Split dim ``axis`` over the signal's workers as far as they are there, or keep whole copies on them."""
    shard = config.shard if config is not None else None
    wanted = workers if shard is None or shard.workers is None else shard.workers
    present = tuple(w for w in dict.fromkeys(wanted) if w in workers)
    mesh = cluster_mesh(present or workers, workers)
    whole = Sharding.replicated(mesh, type_.ndim)
    if shard is None or shard.replicated or not -type_.ndim <= shard.axis < type_.ndim:
        return whole
    dim = shard.axis % type_.ndim
    if mesh.size == 1 or type_.shape[dim] < mesh.size:
        return whole
    axes = tuple(axis for axis, _ in mesh.axes)
    return Sharding(mesh, tuple(axes if d == dim else () for d in range(type_.ndim)))
