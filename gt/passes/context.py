"""What a pass may read besides the graph, and what passes hand on to later ones.

Owns: ``Context`` and the annotations it carries. Must not know: any one pass. Next: ``pipeline`` (the runner).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from gt.ir.graph import Graph, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.program import Program


@dataclass(frozen=True)
class Region:
    """Neighbouring compute nodes that run as one piece; ``compile``: at once, not only when hot."""

    nodes: tuple[Node, ...]
    compile: bool = False


@dataclass(frozen=True)
class MemoryPlan:
    """Which operands are overwritten, when storage dies, and how much is alive at most.

    ``inplace``: for each node that overwrites, its (result, operand) pairs. ``overwritten``: the inputs among them, by
    index. ``peak_nbytes``: by worker. ``peak``: the values alive at the peak of the fullest worker, largest first.
    """

    inplace: dict[Node, tuple[tuple[int, int], ...]]
    overwritten: frozenset[int]
    peak_nbytes: dict[int, int]
    peak_at: Node | None
    peak: tuple[Value, ...]


@dataclass
class Context:
    """The mesh of all workers, and what passes hand on.

    ``notes``: one (value or node, reason) for each decision a user may ask about. ``regions``: the schedule,
    collectives excluded; set by ``fuse_hot_path``. ``output_shardings``: where each output lands.
    """

    mesh: Mesh
    notes: list[tuple[Value | Node, str]] = field(default_factory=list)
    regions: tuple[Region, ...] | None = None
    memory: MemoryPlan | None = None
    programs: dict[int, Program] | None = None
    output_shardings: list[Sharding] = field(default_factory=list)

    def note(self, about: Value | Node, reason: str) -> None:
        self.notes.append((about, reason))


class Pass(Protocol):
    """One step of lowering: a frozen dataclass whose fields are its options.

    Valid graph in, valid graph out; the same object back when nothing changed; no globals, environment, I/O or clock.
    """

    @property
    def name(self) -> str: ...

    def run(self, graph: Graph, context: Context) -> Graph: ...


__all__ = ["Context", "MemoryPlan", "Pass", "Region"]
