"""Where values live: named axes over workers, and how a tensor's dims are split along them.

Owns: ``Mesh``, ``Sharding`` and the arithmetic of shards. *axis* is a mesh axis, *dim* a tensor dim.
Must not know: ops, graphs. Next: ``factors`` (how an op relates the dims of its operands).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

Reduction: TypeAlias = Literal["sum", "max", "min"]


@dataclass(frozen=True)
class Mesh:
    """Named axes over workers, row-major: worker ``workers[i]`` has the coordinates of ``i`` in the axes' sizes."""

    name: str = field(compare=False)
    axes: tuple[tuple[str, int], ...]
    workers: tuple[int, ...]

    def __post_init__(self) -> None:
        size = math.prod(size for _, size in self.axes)
        assert size == len(self.workers), f"{self.axes} does not hold {self.workers}"

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.axes, self.workers))

    @property
    def size(self) -> int:
        return len(self.workers)

    def axis_size(self, axis: str) -> int:
        return dict(self.axes)[axis]

    @cached_property
    def _coords(self) -> dict[int, dict[str, int]]:
        return {worker: self._unravel(i) for i, worker in enumerate(self.workers)}

    def _unravel(self, index: int) -> dict[str, int]:
        out = {}
        for axis, size in reversed(self.axes):
            index, out[axis] = divmod(index, size)
        return out

    def coords(self, worker: int) -> dict[str, int]:
        """Give the worker's coordinate on each axis."""
        return self._coords[worker]

    def group(self, worker: int, *axes: str) -> tuple[int, ...]:
        """Give the workers that differ from ``worker`` only on ``axes``, the first axis varying slowest."""
        own = self._coords[worker]
        members = [w for w in self.workers if all(c == own[a] for a, c in self._coords[w].items() if a not in axes)]
        return tuple(sorted(members, key=lambda w: [self._coords[w][a] for a in axes]))

    @classmethod
    def grid(cls, axes: tuple[tuple[str, int], ...], workers: tuple[int, ...]) -> Mesh:
        """Give the mesh of named axes over a list of workers, row-major."""
        name = "_".join(f"{axis}{size}" for axis, size in axes)
        start = "" if workers == tuple(range(len(workers))) else f"_{cls.line(workers).name}"
        return cls(name + start, axes, workers)

    @classmethod
    def line(cls, workers: tuple[int, ...]) -> Mesh:
        """Give the one-axis mesh over a list of workers.

        The axis is named by the list: a program's coordinates are keyed by axis, so axes of different meshes differ.
        """
        name = "w" + "_".join(map(str, workers))
        return cls(name, ((name, len(workers)),), workers)


@dataclass(frozen=True)
class Sharding:
    """A tensor's placement: for each dim the mesh axes that split it (outermost first), and the pending reductions.

    An axis named nowhere replicates. A dim of ``n`` rows on an axis of size ``k`` is cut at multiples of
    ``ceil(n / k)``; the last shards may hold padding.
    """

    mesh: Mesh
    dims: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, Reduction], ...] = field(default=())

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.mesh, self.dims, self.partial))

    @classmethod
    def replicated(cls, mesh: Mesh, ndim: int) -> Sharding:
        return cls(mesh, ((),) * ndim)

    @cached_property
    def is_replicated(self) -> bool:
        return not self.partial and not any(self.dims)

    @property
    def used_axes(self) -> frozenset[str]:
        return frozenset(a for d in self.dims for a in d) | {a for a, _ in self.partial}

    @cached_property
    def is_split(self) -> bool:
        """Whether some dim is cut: a worker then holds a part only."""
        return any(self.dims)

    @property
    def partial_axes(self) -> dict[str, Reduction]:
        return dict(self.partial)

    def shards(self, dim: int) -> int:
        """Give into how many parts ``dim`` is cut."""
        return math.prod(self.mesh.axis_size(a) for a in self.dims[dim])

    def local_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Give each worker's shape, padding included."""
        return tuple(-(-size // self.shards(d)) for d, size in enumerate(shape))

    def shard_index(self, dim: int, worker: int) -> int:
        """Give which part of ``dim`` the worker holds."""
        coords, index = self.mesh.coords(worker), 0
        for axis in self.dims[dim]:
            index = index * self.mesh.axis_size(axis) + coords[axis]
        return index

    def bounds(self, shape: tuple[int, ...], worker: int) -> tuple[tuple[int, int], ...]:
        """Give the global ``(start, stop)`` of the worker's true (unpadded) part of each dim."""
        out = []
        for d, (size, part) in enumerate(zip(shape, self.local_shape(shape), strict=True)):
            start = min(size, self.shard_index(d, worker) * part)
            out.append((start, min(size, start + part)))
        return tuple(out)

    def on(self, mesh: Mesh) -> Sharding | None:
        """Give the same placement in the axes of a finer mesh over the same workers; None if there is none.

        An axis of size 8 may have become two of 2 and 4: whatever it split, the two split now.
        """
        if mesh == self.mesh:
            return self
        if mesh.workers != self.mesh.workers:
            return None
        finer = list(mesh.axes)
        now: dict[str, tuple[str, ...]] = {}
        for axis, size in self.mesh.axes:
            parts: list[str] = []
            while size > 1 and finer and size % finer[0][1] == 0:
                name, part = finer.pop(0)
                parts.append(name)
                size //= part
            if size > 1:
                return None
            now[axis] = tuple(parts)
        dims = tuple(tuple(a for axis in axes for a in now[axis]) for axes in self.dims)
        partial = tuple((a, reduce) for axis, reduce in self.partial for a in now[axis])
        return Sharding(mesh, dims, partial)

    def padding(self, shape: tuple[int, ...], dim: int) -> int:
        """Give how many rows of padding the shards of ``dim`` hold together."""
        return self.local_shape(shape)[dim] * self.shards(dim) - shape[dim]
