"""Which plans there are: by structure, so that equal calls share one, and by number, as workers know them.

Owns: ``PlanRecord``, ``PlanRecords``. Must not know: how plans are made, who holds them. Next: ``epochs``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gt.ir.program import Collective, Compute, Program
from gt.ir.types import TensorType
from gt.passes.reasons import PlanReasons
from gt.runtime.cutting import MAX_PARTS, Cut, cut_plan
from gt.runtime.dispatcher_events import Planned
from gt.runtime.errors import Fault
from gt.runtime.joint_captures import Capture
from gt.runtime.quota import held_nbytes
from gt.runtime.schedule import NO_REASONS


@dataclass(slots=True, eq=False)
class PlanRecord:
    """A plan: being made (no programs, no fault), ready or failed. ``refuses``: some op may refuse its values. ``seconds``: of a run,
    by the planner's estimate; ``sizes``: what each output holds on all workers together, ``nbytes`` all; ``lines``: by output, the user's line;
    ``capture``: how far its workers are with a graph that they capture together.
    """

    id: int
    key: object
    ready: bool = False
    programs: dict[int, Program] = field(default_factory=dict)
    outputs: tuple[TensorType, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    where: str = ""
    refuses: bool = False
    fault: Fault | None = None
    reasons: PlanReasons = NO_REASONS
    seconds: float = 0.0
    sizes: tuple[int, ...] = ()
    nbytes: int = 0
    capture: Capture = field(default_factory=Capture)
    lines: tuple[str, ...] = ()
    cut: Cut | None = None
    whole: bool = False  # it was tried in vain to cut it
    swapped: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by worker, which pieces run compiled code as others do

    @property
    def ids(self) -> tuple[int, ...]:
        """Give the numbers under which workers may have it: its own and those of its parts."""
        return (self.id, *(part.id for part in self.cut.parts)) if self.cut is not None else (self.id,)

    def largest_line(self) -> str:
        """Give the line that made the largest output, as far as the programs know."""
        line = self.lines[self.sizes.index(max(self.sizes))] if self.sizes else ""
        return line or self.where

    def __repr__(self) -> str:
        return f"plan {self.id} {'failed' if self.fault else 'ready' if self.ready else 'planning'}"


def _lines(event: Planned) -> tuple[str, ...]:
    """Give for each output the user's line that made it, "" where no program knows."""
    lines = [""] * len(event.outputs)
    for program in event.programs.values():
        wanted = {slot: position for position, slot in program.outputs if position < len(lines) and not lines[position]}
        for step in program.steps if wanted else ():
            nodes = step.nodes if isinstance(step, Compute) else ()
            made = [(slot, node.loc) for node in nodes for slot in node.outputs]
            made += [(step.output, step.loc)] if isinstance(step, Collective) else []
            for slot, loc in made:
                if slot in wanted and loc >= 0:
                    lines[wanted[slot]] = program.line(loc)
    return tuple(lines)


class PlanRecords:
    """The plans, oldest first; at most ``most``, those being made aside."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._by_key: dict[object, PlanRecord] = {}
        self._by_id: dict[int, PlanRecord] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[PlanRecord]:
        return iter(self._by_key.values())

    def find(self, key: object) -> PlanRecord | None:
        """Give the plan of a structure, if one is known or being made."""
        return self._by_key.get(key)

    def begin(self, key: object) -> PlanRecord:
        """Number a plan that is to be made."""
        self._last += 1
        plan = self._by_key[key] = self._by_id[self._last] = PlanRecord(self._last, key)
        return plan

    def reserve(self, count: int) -> int:
        """Give the first of so many numbers that name no plan."""
        self._last += count
        return self._last - count + 1

    def made(self, event: Planned) -> PlanRecord | None:
        """Fill in what was made, or why it was not; None for a plan that was forgotten meanwhile."""
        plan = self._by_id.get(event.plan)
        if plan is None:
            return None
        plan.ready, plan.fault = event.fault is None, event.fault
        plan.programs, plan.outputs, plan.reasons = event.programs, event.outputs, event.reasons or NO_REASONS
        plan.seconds, plan.sizes = event.seconds, tuple(map(held_nbytes, event.outputs))
        plan.nbytes = sum(plan.sizes)
        plan.capture = Capture(frozenset(w for w, p in event.programs.items() if p.collectives))
        plan.groups = tuple(dict.fromkeys(c.group for p in event.programs.values() for c in p.collectives))
        plan.refuses = any(p.refuses for p in event.programs.values())
        plan.lines = _lines(event)
        plan.where = next((p.line(0) for p in event.programs.values() if p.locations), "")
        return plan

    def by_id(self, plan: int) -> PlanRecord | None:
        """Give a plan that is not forgotten."""
        return self._by_id.get(plan)

    def in_parts(self, plan: PlanRecord, num_inputs: int, parts: int) -> Cut | None:
        """Give the parts of a plan, as many as asked for when it is cut first; None where it cannot be cut."""
        if plan.cut is None and not plan.whole:
            plan.cut = cut_plan(plan.programs, num_inputs, len(plan.outputs), parts, self.reserve(MAX_PARTS), plan.id)
            plan.whole = plan.cut is None
        return plan.cut

    def forget(self, plan: PlanRecord) -> None:
        """Let a plan be made again by the next call that needs it."""
        self._by_key.pop(plan.key, None)
        self._by_id.pop(plan.id, None)

    def evict(self) -> list[PlanRecord]:
        """Forget the oldest plans beyond the limit and give them; none from the first on that is being made."""
        evicted: list[PlanRecord] = []
        while len(self._by_key) > self.most:
            oldest = next(iter(self))
            if not oldest.ready and oldest.fault is None:
                break
            self.forget(oldest)
            evicted.append(oldest)
        return evicted

    def forget_worker(self, worker: int) -> list[PlanRecord]:
        """Forget the plans that a lost worker has a part in, and give them."""
        forgotten = [plan for plan in self if worker in plan.programs]
        for plan in forgotten:
            self.forget(plan)
        return forgotten


__all__ = ["PlanRecord", "PlanRecords"]
