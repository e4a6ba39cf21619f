"""Which plans' workers capture a CUDA graph together, and when: all in one epoch, and they replay it in the same epochs.

Owns: ``Capture``, one plan's progress. A plan with collectives runs plainly until each of its workers has said that it is ready; the next
run is the one in which they capture; once all have, every run is a replay, until something changes and the graphs are dropped together.
Must not know: sockets, torch. Next: ``joint_graph`` (a worker's side), ``epochs`` (who asks).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from gt.runtime.wire import GraphStage, GraphUse


@dataclass
class Capture:
    """How far a plan's workers are. ``members``: those that meet in collectives."""

    members: Collection[int] = ()
    asked: int = -1  # the epoch in which they capture
    ready: set[int] = field(default_factory=set)
    captured: set[int] = field(default_factory=set)
    refused: str = ""  # why there will be none

    def __repr__(self) -> str:
        if self.refused:
            return f"no graph: {self.refused}"
        state = "replaying" if self.is_whole else "capturing" if self.asked >= 0 else "plain"
        return f"{state}, ready {sorted(self.ready)}"

    @property
    def is_whole(self) -> bool:
        return bool(self.members) and self.captured.issuperset(self.members)

    def use(self, epoch: int) -> GraphUse:
        """Give what the workers are to do in the plan's next run, which is this epoch."""
        if self.refused or not self.members:
            return ""
        if self.is_whole:
            return "replay"
        if self.asked < 0 and self.ready.issuperset(self.members):
            self.asked = epoch
            return "capture"
        return ""

    def heard(self, worker: int, epoch: int, stage: GraphStage) -> bool:
        """Take what a worker says at an epoch's end. True: it did not capture, and what the others have is to be dropped."""
        if epoch != self.asked:
            if stage == "ready":
                self.ready.add(worker)
            return False
        if stage == "captured":
            self.captured.add(worker)
            return False
        self.drop()
        if stage == "refused":
            self.refused = f"worker {worker} could not capture the program"
        return True

    def drop(self) -> bool:
        """Begin anew. False: there is nothing that a worker could have captured."""
        asked = self.asked >= 0
        self.asked = -1
        self.ready.clear()
        self.captured.clear()
        return asked


__all__ = ["Capture"]
