"""What a worker needs from whatever runs its programs: one interface, with torch or NumPy behind it.

Owns: ``Engine``, ``Loaded``, ``Comm`` and ``ExecutionError``. Must not know: torch, sockets, epochs.
Next: ``executor`` (torch), ``numpy_engine`` (the reference), ``collective`` (a Comm).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from gt.ir.blame import SHOWN
from gt.ir.graph import Location
from gt.ir.program import Collective, Program, WireNode
from gt.ir.types import DType, Scalar, TensorType
from gt.runtime.device_clock import DeviceEvent
from gt.runtime.errors import Fault, RunError
from gt.runtime.salvage import Salvaged

Tier: TypeAlias = Literal["eager", "compiled", "graph"]
JointStage: TypeAlias = Literal["", "ready", "captured", "refused"]


class ExecutionError(RunError):
    """An op failed while it ran. ``location`` is the user's line that recorded it, if known; ``given`` what it ran on, on its worker."""

    def __init__(self, op: str, location: Location | None, reason: str, given: Sequence[TensorType] = ()) -> None:
        self.op, self.location, self.reason, self.given = op, location, reason, tuple(given)
        self.where = str(location) if location else ""
        more = [f"and {len(given) - SHOWN} more"] if len(given) > SHOWN else []
        facts = [f"given {', '.join([*map(str, given[:SHOWN]), *more])}"] if given else []
        facts += [f"recorded at {location} in {location.function}"] if location else []
        super().__init__(f"{op}: {reason}" + (f" ({', '.join(facts)})" if facts else ""))


def given_types(node: WireNode, known: Mapping[int, TensorType], values: Mapping[int, Any]) -> list[TensorType]:
    """Give the types of a node's operands: those ``known`` by slot, and of the others what their values say."""
    found = {slot: known[slot] if slot in known else type_of(values[slot]) for slot in node.inputs if slot in known or slot in values}
    return [found[slot] for slot in node.inputs if slot in found]


def type_of(value: Any) -> TensorType:
    """Give the type of an engine's value."""
    return TensorType(tuple(value.shape), DType.by_name[str(value.dtype).removeprefix("torch.")])


def reason_of(error: Exception) -> str:
    """Give an error's text, with its class unless that says nothing."""
    text = str(error).strip()
    return text if isinstance(error, RuntimeError) and text else f"{type(error).__name__}: {text}"


class Comm(Protocol):
    """Runs collectives with the other workers, in the order they are asked for."""

    def run(self, step: Collective, tensor: Any) -> Any:
        """Give this worker's result, None where it gets nothing. ``tensor`` is None where it sends nothing."""
        ...

    def finish(self) -> None:
        """Wait for what was sent."""
        ...

    def captures(self, groups: Iterable[tuple[int, ...]]) -> bool:
        """Say whether collectives of these groups can be part of a CUDA graph."""
        ...


@dataclass
class LoadedStats:
    """What happened to one loaded program. ``notes`` say why a piece stays eager, or has no graph."""

    runs: int = 0
    compiled_runs: int = 0
    pieces: int = 0
    compiled_pieces: int = 0
    strided_fallbacks: int = 0  # calls of a compiled piece that ran eagerly because an input's layout differed
    compile_s: float = 0.0  # of the piece that took longest
    marked: int = 0  # pieces that a signal has compiled before they first run
    made: int = 0  # of these, so far
    waits: bool = False  # a run waits for one of them
    together: bool = False  # other pieces run compiled code once that is said, in the same run on all workers
    graph_runs: int = 0  # runs that were the replay of one CUDA graph
    in_graph: bool = False  # the last run was
    notes: list[str] = field(default_factory=list)


class Loaded(Protocol):
    """A program ready to run on this worker."""

    program: Program
    stats: LoadedStats
    undoes: bool  # it may refuse values, and then needs the inputs it was given
    joint: Joint | None  # where it meets others in collectives and graphs can be captured

    @property
    def tier(self) -> Tier: ...

    def run(
        self, inputs: list[Any], scalars: Sequence[Scalar], comm: Comm | None = None, tiers: str | None = None
    ) -> list[Any]:
        """Run once. ``inputs``, ``scalars`` and the outputs are in the program's order. ``tiers``: those of a run that is made again, as
        ``tiers`` gave them; nothing climbs meanwhile.

        The list of inputs is emptied, so that what nobody else holds is freed as soon as it is dead.

        Errors: ExecutionError naming op and location; ``salvage`` gives what does not depend on that op.
        """
        ...

    @property
    def tiers(self) -> str:
        """Give how the last run was, a letter for each piece (``tiers``); "" for all eager."""
        ...

    @property
    def uncompiled(self) -> str:
        """Say why pieces that have not been tried are not compiled, and what would change that; "" if there are none. Safe from any thread."""
        ...

    @property
    def swappable(self) -> tuple[int, ...] | None:
        """Give the pieces that may run compiled code once all workers are as far, None while some are on their way there."""
        ...

    def swap(self, compiled: Collection[int]) -> None:
        """Run compiled code for these pieces from the next run on; what others are waiting with stays eager for good."""
        ...

    def salvage(
        self, error: Exception | None, inputs: Sequence[Any], scalars: Sequence[Scalar], causes: Mapping[int, Fault]
    ) -> Salvaged | None:
        """Give what can still be had of a run that raised ``error``, or, without one, of inputs some of which are not there.

        ``inputs``: what the run was given, as far as somebody still holds it. ``causes``: why inputs are missing, by position. The program has no collectives.
        None: not to be had, because it is not known how far the run came.
        """
        ...


class Joint(Protocol):
    """The graph of a program with collectives, which all its workers capture in one epoch and replay in the same epochs."""

    @property
    def stage(self) -> JointStage:
        """Say whether the program is ready to be captured."""
        ...

    @property
    def idle_nbytes(self) -> int:
        """Memory that is kept for values that are gone."""
        ...

    def capture(self, inputs: Sequence[Any], scalars: Sequence[Scalar], comm: Comm) -> JointStage:
        """Make the graph of a run with these inputs. Nothing runs."""
        ...

    def replay(self, inputs: list[Any], scalars: Sequence[Scalar]) -> list[Any]:
        """Run as the program does, by the graph."""
        ...

    def replay_junk(self) -> None:
        """Take part in the collectives by the graph, on whatever its memory holds; no value is touched."""
        ...

    def drop(self, refused: str = "") -> None:
        """Let the graph go. ``refused``: why there will be no other, if so."""
        ...

    def forget_group(self, members: tuple[int, ...]) -> None:
        """Let go of a graph that has collectives of a group which is made anew."""
        ...


class Clock(Protocol):
    """Times runs on a device that works by itself, and keeps what is launched from running far ahead of it. ``event``: a new one."""

    event: Callable[[], DeviceEvent]

    def begin(self, plan: int) -> None:
        """Hear that a run is about to be launched; wait while too much is ahead of it."""
        ...

    def end(self, plan: int) -> None:
        """Hear that it has been launched."""
        ...

    def seconds(self, plan: int) -> float | None:
        """Give what a run of the plan takes on the device, by those that are over; None if none is."""
        ...

    def forget(self, plan: int) -> None:
        """Let go of a plan."""
        ...


class Engine(Protocol):
    """Turns programs into something that runs, and values into host arrays and back. Used by one thread at a time.

    ``clock``: None where a run is over when it returns.
    """

    clock: Clock | None

    def start_thread(self) -> None:
        """Prepare the calling thread to run programs. Call it once in the thread that does."""
        ...

    def load(self, program: Program) -> Loaded: ...

    def from_host(self, array: np.ndarray, dtype: DType) -> Any:
        """Give the engine's value of an array in wire form. A writable array is the engine's from here on."""
        ...

    def from_shared(self, array: np.ndarray, dtype: DType) -> Any:
        """Give the engine's value of a C-contiguous array whose owner may write it again when this has returned."""
        ...

    def to_host(self, value: Any, dtype: DType, out: np.ndarray | None = None) -> np.ndarray:
        """Give a C-contiguous array in the dtype's wire form, in ``out`` or memory of its own, once the value is computed."""
        ...

    def synchronize(self) -> None:
        """Wait until everything submitted has run."""
        ...

    def close(self) -> None:
        """End whatever the engine started. Idempotent."""
        ...


def wire_dtype(dtype: DType) -> np.dtype[Any]:
    """Give the NumPy dtype of the wire form: the dtype's own, and uint16 for bfloat16."""
    return np.dtype("uint16") if dtype.name == "bfloat16" else dtype.numpy


__all__ = [
    "Clock", "Comm", "Engine", "ExecutionError", "Joint", "JointStage", "Loaded", "LoadedStats", "Tier", "given_types", "reason_of", "wire_dtype",
]  # fmt: skip
