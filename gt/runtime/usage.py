"""What a worker says of itself with its signs of life: what its time and memory go to, and how its programs run.

Owns: the structs, as they travel, and ``Usage``, which makes them on the io thread from counters that the main thread keeps anyway. What
programs say goes out only when it changes. Must not know: sockets. Next: ``runner`` (the counters), ``op_kinds``, ``status`` (who is told).
"""

from __future__ import annotations

import heapq
import logging
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gt.ir.program import Program
from gt.ir.types import DType, TensorType
from gt.runtime.op_kinds import KINDS, shares

if TYPE_CHECKING:
    from gt.runtime.engine import Loaded
    from gt.runtime.runner import Runner

log = logging.getLogger("gt.worker")

MAX_NOTES = 8
MAX_NOTE = 300
MAX_BUSIEST = 8
MAX_CHANGED = 256  # programs told of at once; the others with the next sign of life


class ProgramState(msgspec.Struct, frozen=True, array_like=True):
    """How a program runs on one worker: its ``tier``, how many of its ``pieces`` are compiled, and why the others, or a CUDA graph, are
    not there (``notes``). While a run waits for pieces that a signal has compiled, ``made`` of ``marked`` are; else these are 0.
    ``uncompiled``: what keeps pieces that have not been tried from being compiled, and what would change that; "" if there are none.
    """

    plan: int
    name: str
    tier: str
    pieces: int
    compiled: int
    notes: tuple[str, ...] = ()
    made: int = 0
    marked: int = 0
    uncompiled: str = ""


class PlanTime(msgspec.Struct, frozen=True, array_like=True):
    """What the runs of a plan took on one worker, since it was loaded."""

    plan: int
    name: str
    runs: int
    seconds: float


class SeenRun(NamedTuple):
    """A run that a worker has told the end of. ``client``: whose it was, -1 if nobody's; ``ended``: by the dispatcher's clock."""

    worker: int
    plan: int
    client: int
    ended: float
    seconds: float


class WorkerUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds since the worker began, by what they went to; what collectives take is not part of ``run_s``, of which ``kinds_s`` is
    the part of each kind of op, by estimate. Bytes of values, the most they ever were, of the process, and of its GPU's memory as
    torch's allocator holds it.
    """

    run_s: float = 0.0
    kinds_s: dict[str, float] = {}
    collective_s: float = 0.0
    load_s: float = 0.0
    ship_s: float = 0.0
    runs: int = 0
    sent_nbytes: int = 0
    values: int = 0
    values_nbytes: int = 0
    peak_nbytes: int = 0
    process_nbytes: int = 0
    device_nbytes: int = 0
    busiest: tuple[PlanTime, ...] = ()


@dataclass(eq=False)
class PlanSpent:
    """What the runs of a plan took: ``own_s`` without collectives. ``inputs``: shape and dtype of each, as the first run had them.
    ``groups``: with whom it has collectives.
    """

    program: Program
    inputs: Sequence[tuple[tuple[int, ...], str]]
    runs: int = 0
    seconds: float = 0.0
    own_s: float = 0.0
    last_s: float = 0.0
    groups: frozenset[tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.groups = frozenset(self.program.groups)

    def shares(self) -> dict[str, float]:
        """Give what part of its own time goes to each kind of op."""
        try:
            types = [TensorType(shape, DType.by_name[dtype.removeprefix("torch.")]) for shape, dtype in self.inputs]
            return shares(self.program, types)
        except Exception as e:  # an estimate that fails must not end the thread that tells that the worker lives
            log.error("what kinds of op %s consists of is not known: %s: %s", self.program.name, type(e).__name__, e)
            return {}


class Usage:
    """Looks at one worker's runner. Safe from any thread: what it reads is replaced, never half changed."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._told: dict[int, ProgramState] = {}
        self._lock = threading.Lock()
        self._gone: dict[str, float] = dict.fromkeys(KINDS, 0.0)  # seconds of plans that were forgotten
        self._shares: dict[PlanSpent, dict[str, float]] = {}

    def forget(self, plan: int) -> None:
        """Let go of a plan that is unloaded; what its runs took stays counted."""
        with self._lock:
            self._told.pop(plan, None)
            spent = self.runner.spent.pop(plan, None)
            if spent is not None:
                for kind, share in self._shares_of(spent).items():
                    self._gone[kind] += share * spent.own_s
                del self._shares[spent]

    def _shares_of(self, spent: PlanSpent) -> dict[str, float]:
        if spent not in self._shares:
            self._shares[spent] = spent.shares()
        return self._shares[spent]

    def _kinds_s(self) -> dict[str, float]:
        with self._lock:
            found = dict(self._gone)
            for spent in list(self.runner.spent.values()):
                for kind, share in self._shares_of(spent).items():
                    found[kind] += share * spent.own_s
        return {kind: seconds for kind, seconds in found.items() if seconds}

    def now(self) -> WorkerUsage:
        """Give the counters."""
        runner, groups = self.runner, self.runner.groups
        collective_s = 0.0 if groups is None else groups.seconds
        values, values_nbytes = runner.held if runner.epoch >= 0 else (len(runner.values), runner.values.nbytes)
        took: dict[int, PlanTime] = {}
        for number, spent in list(runner.spent.items()):
            plan = spent.program.part_of if spent.program.part_of >= 0 else number
            runs, seconds = (took[plan].runs, took[plan].seconds) if plan in took else (0, 0.0)
            took[plan] = PlanTime(plan, spent.program.name, runs + spent.runs, seconds + spent.seconds)
        return WorkerUsage(
            run_s=max(0.0, runner.run_s - collective_s), kinds_s=self._kinds_s(), collective_s=collective_s, load_s=runner.load_s,
            ship_s=runner.ship_s, runs=runner.runs, sent_nbytes=0 if groups is None else groups.nbytes, values=values,
            values_nbytes=values_nbytes, peak_nbytes=runner.values.peak_nbytes, process_nbytes=process_nbytes(),
            device_nbytes=device_nbytes(runner.engine),
            busiest=tuple(heapq.nlargest(MAX_BUSIEST, took.values(), key=lambda plan: plan.seconds)),
        )  # fmt: skip

    def loaded(self, plan: int) -> tuple[ProgramState, ...]:
        """Give a program that was loaded just now, if it could be: however many others there are, loading one more costs the same."""
        program = self.runner.loaded.get(plan)
        if program is None:
            return ()
        with self._lock:
            self._told[plan] = state = state_of(plan, program)
        return (state,)

    def changed(self) -> tuple[ProgramState, ...]:
        """Give the programs of which something is new since the last call."""
        with self._lock:
            found: list[ProgramState] = []
            for plan, program in list(self.runner.loaded.items()):
                state = state_of(plan, program)
                if self._told.get(plan) != state and len(found) < MAX_CHANGED:
                    self._told[plan] = state
                    found.append(state)
            return tuple(found)


def state_of(plan: int, loaded: Loaded) -> ProgramState:
    """Describe a program."""
    stats = loaded.stats
    notes = tuple(note[:MAX_NOTE] for note in dict.fromkeys(list(stats.notes)))[-MAX_NOTES:]
    under_way = (stats.made, stats.marked) if stats.waits else (0, 0)
    return ProgramState(plan, loaded.program.name, loaded.tier, stats.pieces, stats.compiled_pieces, notes, *under_way, loaded.uncompiled)


def device_nbytes(engine: object) -> int:
    """Give what torch's allocator holds of an engine's GPU, 0 without one."""
    device, torch = getattr(engine, "device", None), sys.modules.get("torch")
    if torch is None or not str(device).startswith("cuda"):
        return 0
    return int(torch.cuda.memory_reserved(device))


def process_nbytes() -> int:
    """Give the memory of this process that is resident."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


__all__ = ["PlanSpent", "PlanTime", "ProgramState", "SeenRun", "Usage", "WorkerUsage"]
