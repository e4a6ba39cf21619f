"""Traces of a running server, as the dispatcher takes them: who is asked for events, by whose clock, and who gets them. Pure.

One trace at a time. Whoever is there, or comes while it is taken, keeps its latest lines in memory (``tracer``); at the end each hands
them over, a client that leaves before that as it goes. It begins when the last one sees what it is to see: a GPU's profiler takes
seconds to start, what was before that is left out. How far a clock is from the dispatcher's is measured as it begins its part: half of
what there and back took is how well that is known. On the dispatcher's own machine there is one clock.
Owns: ``Tracing``, ``Traced``. Must not know: sockets, what lines say. Next: ``tracer`` (the other end), ``status_request`` (who asks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gt.runtime import wire
from gt.runtime.log import TracedLines
from gt.runtime.wire import Message

MAX_SECONDS = 600.0
MAX_LINES = 1_000_000
PATIENCE_S = 10.0  # for who is to hand over what it has
PREPARING_S = 10.0  # for who is to begin
PING_S = 0.5  # between two words to who asked, which show whether it is still there


class Recorder(Protocol):
    """What keeps the dispatcher's own lines."""

    def trace(self, num_lines: int) -> None: ...

    def traced(self) -> TracedLines: ...


@dataclass(eq=False)
class Source:
    """One process. ``asked_at``: by the dispatcher's wall clock, when it was asked to take part. ``preparing``: it does not see all yet.
    ``lines`` None: not here yet.
    """

    who: str
    peer: bytes
    asked_at: float
    preparing: bool = False
    clock: tuple[float, float] | None = None  # how far its clock is ahead, and within what
    lines: TracedLines | None = None
    missing: str = ""

    @property
    def is_over(self) -> bool:
        return self.lines is not None or bool(self.missing)


@dataclass
class Trace:
    """The one under way. ``begun``: by the dispatcher's wall clock, since when all see all; 0 if nobody had to prepare."""

    asker: bytes
    number: int
    num_lines: int
    asked: float
    until: float
    seconds: float
    pinged: float
    sources: dict[bytes, Source] = field(default_factory=dict)  # by peer
    begun: float = 0.0
    ended: bool = False  # the time is over: what comes now is handed over


class Tracing:
    """Takes traces of the dispatcher ``tag``. ``own``, ``boot`` and ``wall_clock`` are told by the process around this."""

    def __init__(self, send: Callable[[bytes | None, Message], None], tag: str = "") -> None:
        self.send, self.tag = send, tag
        self.own: Recorder | None = None
        self.boot = ""
        self.wall_clock: Callable[[], float] = float
        self.trace: Trace | None = None
        self.numbers = 0

    def ask(self, now: float, asker: bytes, message: wire.AskTrace, peers: Iterable[tuple[str, bytes | None]]) -> None:
        """Begin a trace, unless one is under way."""
        if not 0 < message.seconds <= MAX_SECONDS or not 0 < message.num_lines <= MAX_LINES:
            self.send(asker, wire.Refused(f"a trace takes up to {MAX_SECONDS:g} s and {MAX_LINES} lines of each process"))
            return
        if self.trace is not None:
            left = max(0.0, self.trace.until - now)
            self.send(asker, wire.Refused(f"another trace is being taken, for {math.ceil(left)} s more: ask again then"))
            return
        self.numbers += 1
        self.trace = Trace(asker, self.numbers, message.num_lines, now, now + message.seconds, message.seconds, now)
        if self.own is not None:
            self.own.trace(message.num_lines)
        for who, peer in peers:
            self.joined(who, peer)

    def joined(self, who: str, peer: bytes | None) -> None:
        """Hear of somebody who is there: it takes part in the trace under way."""
        trace = self.trace
        if trace is None or trace.ended or peer is None or peer in trace.sources:
            return
        trace.sources[peer] = Source(who, peer, self.wall_clock())
        self.send(peer, wire.SetTrace(trace.number, trace.num_lines))

    def heard(self, now: float, who: str, message: wire.TraceReply) -> None:
        """Hear from a process that it takes part, or get what it has."""
        trace = self.trace
        if trace is None or message.number != trace.number:
            return
        source = next((s for s in trace.sources.values() if s.who == who), None)
        if source is None or source.is_over:
            return
        if source.clock is None:
            source.clock = self._clock(source, message)
        if message.over:
            source.lines = TracedLines(message.start, message.lines, message.left_out)
        elif source.preparing and not message.preparing:
            trace.until, trace.begun = max(trace.until, now + trace.seconds), self.wall_clock()
        source.preparing = message.preparing
        self._finish(now)

    def _clock(self, source: Source, message: wire.TraceReply) -> tuple[float, float]:
        if message.boot and message.boot == self.boot:
            return 0.0, 0.0
        there_and_back = max(0.0, self.wall_clock() - source.asked_at)
        return message.now - (source.asked_at + there_and_back / 2), there_and_back / 2

    def tick(self, now: float) -> None:
        """Time passes: ask for what was traced; give up waiting for it."""
        trace = self.trace
        if trace is None:
            return
        if now >= trace.pinged + PING_S:
            trace.pinged = now
            self.send(trace.asker, wire.Ping())
        waits = now < trace.asked + PREPARING_S and any(s.preparing and not s.is_over for s in trace.sources.values())
        if not trace.ended and now >= trace.until and not waits:
            trace.ended, trace.until = True, now
            for source in trace.sources.values():
                if not source.is_over:
                    self.send(source.peer, wire.SetTrace(trace.number, 0))
        elif trace.ended and now >= trace.until + PATIENCE_S:
            for source in trace.sources.values():
                if source.lines is None:
                    source.missing = source.missing or f"it did not answer within {PATIENCE_S:g} s"
        self._finish(now)

    def gone(self, peer: bytes) -> None:
        """Hear that somebody is gone: nobody waits for its lines. Without its asker a trace ends."""
        trace = self.trace
        if trace is None:
            return
        if peer == trace.asker:
            for source in trace.sources.values():
                if not source.is_over:
                    self.send(source.peer, wire.SetTrace(trace.number, 0))
            self._stop()
            return
        ended = trace.sources.get(peer)
        if ended is not None and ended.lines is None:
            ended.missing = ended.missing or f"it ended before it {'heard of it' if ended.clock is None else 'handed over what it had'}"

    def _finish(self, now: float) -> None:
        trace = self.trace
        if trace is None or not trace.ended or not all(s.is_over for s in trace.sources.values()):
            return
        own = self._stop()
        found = [] if own is None else [("dispatcher", (0.0, 0.0), own, "")]
        found += [(s.who, s.clock or (0.0, 0.0), s.lines or TracedLines(0.0, (), 0), s.missing) for s in trace.sources.values()]
        for at, (who, (ahead, within), lines, missing) in enumerate(found, 1):
            left, start = len(found) - at, lines.start - ahead
            told = tuple([line for line in lines.lines if _elapsed(line) >= trace.begun - start]) if trace.begun else lines.lines
            self.send(trace.asker, wire.Traced(who, start, within, told, lines.left_out, missing, left, self.tag))

    def _stop(self) -> TracedLines | None:
        self.trace = None
        return None if self.own is None else self.own.traced()


def _elapsed(line: str) -> float:
    """Give when a line says it was written, in seconds; infinite for what is no line, which whoever asked judges."""
    try:
        return float(line.partition(" ")[0])
    except ValueError:
        return math.inf


__all__ = ["MAX_LINES", "MAX_SECONDS", "Tracing"]
