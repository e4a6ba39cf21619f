"""When each worker would be done, where workers wait for each other or for what travels beside their computing.

Workers of one role are one here. Computing takes its predicted time; a collective begins once all its members have come; what is
sent, and a collective that is waited for later, travels beside the computing, one after the other. Owns: ``Timeline``, ``timeline``. Must not know: any one op.
Next: ``estimate`` (what a region takes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gt.ir.graph import Node
from gt.ir.ops.collective import transfer, transfer_load
from gt.passes.context import Region
from gt.passes.cost import Machine, transfer_s
from gt.passes.transfers import Half

Parts: TypeAlias = Sequence[tuple[Region | Node | Half, list[Node]]]


@dataclass(frozen=True)
class Timeline:
    """A run of a plan. ``busy``: by the first worker of each role, the seconds in which it computes or communicates."""

    seconds: float
    busy: Mapping[int, float]
    roles: Mapping[int, tuple[int, ...]]

    @property
    def busiest(self) -> int:
        return max(self.busy, key=lambda worker: self.busy[worker])

    @property
    def bubble(self) -> float:
        """Give the share of all workers' time that they wait."""
        count = sum(map(len, self.roles.values()))
        worked = sum(self.busy[first] * len(workers) for first, workers in self.roles.items())
        return 1 - worked / (count * self.seconds) if self.seconds else 0.0


@dataclass
class _Role:
    parts: Parts
    at: int = 0
    now: float = 0.0
    busy: float = 0.0
    link: float = 0.0  # when the last message is out

    @property
    def standing(self) -> Node | None:
        """Give the collective that the role stands before."""
        part = self.parts[self.at][0] if self.at < len(self.parts) else None
        return part.node if isinstance(part, Half) else part if isinstance(part, Node) else None

    def work(self, seconds: float, start: float | None = None) -> None:
        self.now = (self.now if start is None else start) + seconds
        self.busy += seconds
        self.at += 1


@dataclass
class _Run:
    """``meets``: the roles that take part in each collective. ``sends``: those that send in each transfer, and when it is there."""

    roles: Mapping[int, _Role]
    region_s: Callable[[list[Node]], float]
    collective_s: Callable[[Node], float]
    machine: Machine
    meets: dict[Node, list[_Role]] = field(default_factory=dict)
    sends: dict[Node, list[_Role]] = field(default_factory=dict)
    there: dict[Node, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for role in self.roles.values():
            for part, _ in role.parts:
                if isinstance(part, Node):
                    self.meets.setdefault(part, []).append(role)
                elif isinstance(part, Half) and not part.receives:
                    (self.sends if part.node.op is transfer else self.meets).setdefault(part.node, []).append(role)

    def go(self, role: _Role) -> bool:
        """Take a role as far as it gets. Whether that is any further."""
        before = role.at
        while role.at < len(role.parts):
            part, nodes = role.parts[role.at]
            if isinstance(part, Region):
                role.work(self.region_s(nodes))
            elif isinstance(part, Half) and part.node.op is not transfer:
                if part.receives:
                    role.work(0.0, max(role.now, *self.there[part.node]))
                elif not self.meet(part.node):
                    break
            elif isinstance(part, Half) and not part.receives:
                messages, nbytes = transfer_load(part.node)
                role.link = max(role.link, role.now) + transfer_s(messages, nbytes, len(part.node.attr["group"]), self.machine)  # type: ignore[arg-type]
                self.there.setdefault(part.node, []).append(role.link)
                role.at += 1
            elif isinstance(part, Half):
                arrived = self.there.get(part.node, [])
                if len(arrived) < len(self.sends.get(part.node, ())):
                    break
                role.work(0.0, max([role.now, *arrived]))
            elif not self.meet(part):
                break
        return role.at > before

    def meet(self, node: Node) -> bool:
        """Start a collective once all members have come; who only begins it goes on meanwhile."""
        members = self.meets[node]
        if any(m.standing is not node for m in members):
            return False
        start, took = max(max(m.now, m.link) for m in members), self.collective_s(node)
        self.there[node] = [start + took]
        for m in members:
            if isinstance(m.parts[m.at][0], Half):
                m.link = start + took
                m.at += 1
            else:
                m.work(took, start)
        return True


def timeline(
    roles: Mapping[int, tuple[int, ...]],
    parts: Callable[[int], Parts],
    region_s: Callable[[list[Node]], float],
    collective_s: Callable[[Node], float],
    machine: Machine,
) -> Timeline:
    """Run through all roles' programs. ``roles``: the workers alike, by the first of them; ``parts``: what one of them does."""
    run = _Run({worker: _Role(parts(worker)) for worker in roles}, region_s, collective_s, machine)
    while any([run.go(role) for role in run.roles.values()]):
        continue
    stuck = [worker for worker, role in run.roles.items() if role.at < len(role.parts)]
    assert not stuck, f"workers {stuck} wait for each other"
    seconds = max((role.now for role in run.roles.values()), default=0.0)
    return Timeline(seconds, {worker: role.busy for worker, role in run.roles.items()}, roles)


__all__ = ["Timeline", "timeline"]
