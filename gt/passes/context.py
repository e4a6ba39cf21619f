"""What a pass may read besides the graph, and what passes hand on to later ones.

Owns: ``Context`` and the annotations it carries. Must not know: any one pass. Next: ``pipeline`` (the runner).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gt.ir.advice import Advised
from gt.ir.graph import Graph, Location, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.program import Program
from gt.passes.cost import H100, Machine

MAX_STEPS_BACK = 12  # of an explanation


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

    @property
    def most(self) -> int:
        """Give the peak of the fullest worker."""
        return max(self.peak_nbytes.values(), default=0)


class PlanRefused(Advised, ValueError):
    """The client asked, by its options, not to run what this plan would do."""


@dataclass(frozen=True)
class Origin:
    """Why a value is where it is: a reason, and the value that it follows, if it follows one."""

    reason: str
    follows: Value | None = None


@dataclass
class Context:
    """The mesh of all workers, and what passes hand on.

    ``origins``: why each value is where it is, by the values of the SHARDED graph; ``output_reasons`` the same for each
    output, from the value back to what the user said. ``notes``: one (value or node, reason) for each decision a user may ask
    about; ``placement_notes``: those that say what of a placement was not done as asked, or was done for memory, with their lines. ``regions``: the
    schedule, collectives excluded; set by ``fuse_hot_path``. ``output_shardings``: where each output lands. ``output_locs``: the user's line
    that made each, in the graph that was captured.
    ``machine``: what an automatic search reckons with. ``within``: whether it is held to the limit on memory: not where the plan it
    finds without keeps it all the same (``plan.run_pipeline``).
    """

    mesh: Mesh
    notes: list[tuple[Value | Node, str]] = field(default_factory=list)
    regions: tuple[Region, ...] | None = None
    memory: MemoryPlan | None = None
    programs: Mapping[int, Program] | None = None
    output_shardings: list[Sharding] = field(default_factory=list)
    output_locs: tuple[Location | None, ...] = ()
    origins: dict[Value, Origin] = field(default_factory=dict)
    output_reasons: list[tuple[str, ...]] = field(default_factory=list)
    placement_notes: list[str] = field(default_factory=list)
    machine: Machine = H100
    within: bool = True

    def explain(self, value: Value, names: Mapping[Value, str]) -> tuple[str, ...]:
        """Give why a value is where it is: one line for each step back to what was said or given. ``names``: as ``readable_names`` gives."""
        lines: list[str] = []
        seen: set[Value] = set()
        at: Value | None = value
        while at is not None and at not in seen and len(lines) < MAX_STEPS_BACK:
            seen.add(at)
            origin = self.origins.get(at)
            lines.append(f"{names.get(at, 'a value')}: {at.type!r}: {origin.reason if origin is not None else 'whole on all workers'}")
            at = origin.follows if origin is not None else None
        return tuple(lines)

    def note(self, about: Value | Node, reason: str) -> None:
        self.notes.append((about, reason))


class Pass(Protocol):
    """One step of lowering: a frozen dataclass whose fields are its options.

    Valid graph in, valid graph out; the same object back when nothing changed; no globals, environment, I/O or clock.
    """

    @property
    def name(self) -> str: ...

    def run(self, graph: Graph, context: Context) -> Graph: ...


__all__ = ["Context", "MemoryPlan", "Origin", "Pass", "PlanRefused", "Region"]
