"""What the dispatcher's state machine is told and what it says: events in, commands out.

Time comes in events; peers are opaque bytes. Next: ``dispatcher_state`` (which handles the one and gives the other), ``dispatcher``
and ``embedded`` (which make events of the world and carry out the commands).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from gt.ir.program import Program
from gt.ir.types import TensorType
from gt.passes.reasons import PlanReasons
from gt.runtime.errors import Fault
from gt.runtime.wire import Message

# -- events


class Received(msgspec.Struct, frozen=True):
    """A peer sent a message. ``data``: its data frame, or the object itself when embedded. ``user``: the key that it came with."""

    now: float
    peer: bytes
    message: Message
    data: Any = None
    user: str = ""


class PeerGone(msgspec.Struct, frozen=True):
    """A peer's connection is closed or its process is known to be dead."""

    now: float
    peer: bytes


class LinkBroken(msgspec.Struct, frozen=True):
    """Messages of a peer were lost on their way here."""

    now: float
    peer: bytes
    reason: str


class Expelled(msgspec.Struct, frozen=True):
    """A peer's message made this program fail, or its key is none any more: what it wants is not served, and nobody else should notice."""

    now: float
    peer: bytes
    reason: str


class Planned(msgspec.Struct, frozen=True):
    """A plan was made: programs by worker, the placed types of the outputs, what it says of itself, and the predicted seconds of a
    run; or why not.
    """

    now: float
    plan: int
    programs: dict[int, Program] = msgspec.field(default_factory=dict)
    outputs: tuple[TensorType, ...] = ()
    fault: Fault | None = None
    reasons: PlanReasons | None = None
    seconds: float = 0.0


class Tick(msgspec.Struct, frozen=True):
    """Time passes."""

    now: float


Event: TypeAlias = Received | PeerGone | LinkBroken | Expelled | Planned | Tick

# -- commands


class Send(msgspec.Struct, frozen=True):
    """Send a message to a peer, with a data frame or an embedded object."""

    peer: bytes
    message: Message
    data: Any = None


class MakePlan(msgspec.Struct, frozen=True):
    """Plan a graph whose inputs have these placed types for these workers, and come back with ``Planned``."""

    plan: int
    graph: Any
    inputs: tuple[TensorType, ...]
    workers: tuple[int, ...]
    num_scalars: int


class Kill(msgspec.Struct, frozen=True):
    """End a process of this host that stopped answering, so that what waits for it ends too."""

    pid: int


Command: TypeAlias = Send | MakePlan | Kill

__all__ = ["Command", "Event", "Expelled", "Kill", "LinkBroken", "MakePlan", "PeerGone", "Planned", "Received", "Send", "Tick"]
