"""From the events of a log to spans in lanes: one lane for each client, the dispatcher, each worker and each stream of its device.

Owns: which events are spans and what they are called, which collectives belong together, and what a worker's waiting is. Pure.
Must not know: how it is drawn. Next: ``gt.runtime.log_lines`` (what is read), ``chrome``, ``picture`` and ``page`` (what is made).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from gt.runtime.log_lines import Line, Log, named

KINDS = ("run", "collective", "kernel", "load", "group", "ship", "fetch", "upload", "flush", "serve", "plan", "restart")
APART = 3e-6  # seconds by which spans that follow each other, or nest, may overlap: lines have microseconds
SERVED_S = 5e-3  # what the dispatcher sends later than this after the last is not for the same message
LEAST = 1e-6  # seconds of a span that has no length of its own
Collective: TypeAlias = tuple[str, str, str, str]  # its dispatcher's tag, its epoch, number and group


@dataclass(frozen=True)
class Span:
    """Something that took time, in seconds since the timeline's start. Of one ``track`` of a lane, spans nest or are apart."""

    lane: str
    start: float
    end: float
    kind: str
    name: str
    nbytes: int = 0
    detail: str = ""
    track: int = 0


@dataclass(frozen=True)
class Arrow:
    """From what has caused something to it: (lane, time) each. ``kind``: "collective", "call" or "epoch"."""

    kind: str
    source: tuple[str, float]
    target: tuple[str, float]


@dataclass(frozen=True)
class Lane:
    """Spans in order of their start."""

    name: str
    spans: tuple[Span, ...]
    num_tracks: int


@dataclass(frozen=True)
class Share:
    """What a worker did between the first start and the last end of a run of any worker, as shares of that time.

    ``busy``: it was in a run; ``idle``: it was in none. ``bubble``: of ``busy``, the part in which it waited in a collective for a member
    that had not come to it yet.
    """

    busy: float
    bubble: float
    num_runs: int
    num_collectives: int

    @property
    def idle(self) -> float:
        return 1 - self.busy


@dataclass(frozen=True)
class Timeline:
    """Of a log, what lies from ``since`` to ``until``. ``shares``: by worker. ``began``: the wall clock at 0."""

    began: float
    since: float
    until: float
    lanes: tuple[Lane, ...]
    arrows: tuple[Arrow, ...]
    shares: dict[str, Share]
    skipped: int = 0

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclass
class _Met:
    """One worker's part in a collective: its spans, in order."""

    spans: list[Span]


def timeline_of(log: Log, since: float = 0.0, until: float = math.inf) -> Timeline:
    """Make the timeline of a log's events, or of those that lie between two moments, in seconds after its first, at least in part."""
    began = min((line.time - line.seconds for line in log.lines), default=0.0)
    lines = [replace(line, time=line.time - began) for line in log.lines]
    spans = [*_timed(lines), *_served(lines), *_fetched(lines), *_planned(lines), *_restarts(lines)]
    until = min(until, max([span.end for span in spans] + [line.time for line in lines], default=0.0))
    met = _collectives(lines)
    lane = _Continued(log)
    spans = [replace(span, lane=lane[span.lane]) for span in spans]
    arrows = [a for a in (*_joins(met), *_calls(lines), *_epochs(lines)) if a.target[1] >= since and a.source[1] <= until]
    arrows = [replace(a, source=(lane[a.source[0]], a.source[1]), target=(lane[a.target[0]], a.target[1])) for a in arrows]
    met = {key: {lane[who]: part for who, part in members.items()} for key, members in met.items()}
    spans = [span for span in spans if span.end >= since and span.start <= until]
    return Timeline(began, since, until, _lanes(spans), tuple(arrows), _shares(spans, met, since, until), log.skipped)


class _Continued(dict[str, str]):
    """Gives the lane that a name's events go to: those of a dispatcher that was started in another's place, and of who works with it, go
    on where that one's ended.
    """

    def __init__(self, log: Log) -> None:
        self.owner = log.owner
        self.after = {line.tag: after for line in log.lines if line.event == "restart" and (after := line.fields.get("after", ""))}

    def __missing__(self, name: str) -> str:
        who, space, stream = name.partition(" ")
        kind, _, tag = who.partition("@")
        passed = {tag}
        while (before := self.after.get(tag)) is not None and before not in passed:
            passed.add(before)
            tag = before
        self[name] = lane = named(kind, "" if tag == self.owner else tag) + space + stream
        return lane


def _restarts(lines: Iterable[Line]) -> Iterator[Span]:
    """Mark where a client or worker goes on with another dispatcher, and where that one says its first."""
    began: dict[str, Line] = {}
    told: set[str] = set()
    for line in lines:
        if line.kind == "dispatcher":
            began.setdefault(line.tag, line)
        elif line.event == "restart":
            yield _span(line, line.time, line.time + LEAST, "restart", "restart")
            if line.tag in began and line.tag not in told:
                told.add(line.tag)
                first = began[line.tag]
                yield _span(first, first.time, first.time + LEAST, "restart", "restart")


def _timed(lines: Sequence[Line]) -> Iterator[Span]:
    """Give the spans of events that say how long they took, and of those that are over as soon as they begin. A line may be later than
    what it tells of, by a moment in which another thread ran: a run begins no later than its first collective.
    """
    for run, met in _runs(lines):
        start = min([line.time - line.seconds for line in (run, *met)])
        yield _span(run, start, run.time, "run", run.operation)
    for line in lines:
        if line.event in ("collective", "load", "group", "ship"):
            yield _span(line, line.time - line.seconds, line.time, line.event, line.operation)
        elif line.event == "kernel":
            lane = f"{line.who} stream {line.fields.get('stream', '0')}"
            yield replace(_span(line, line.time - line.seconds, line.time, "kernel", line.operation), lane=lane)
        elif line.event in ("flush", "upload"):
            name = f"flush {line.fields.get('graph', '')}" if line.event == "flush" else line.event
            yield _span(line, line.time, line.time + LEAST, line.event, name)


def _runs(lines: Sequence[Line]) -> Iterator[tuple[Line, list[Line]]]:
    """Give each run with its collectives: those of its worker since the run before. A file that ended within a run has some of no run; in
    the next one lines are numbered anew.
    """
    under_way: dict[str, list[Line]] = defaultdict(list)
    last: dict[str, int] = {}
    for line in lines:
        if line.event in ("collective", "run"):
            if line.sequence <= last.get(line.who, 0):
                under_way.pop(line.who, None)
            last[line.who] = line.sequence
            if line.event == "run":
                yield line, under_way.pop(line.who, [])
            else:
                under_way[line.who].append(line)


def _span(line: Line, start: float, end: float, kind: str, name: str) -> Span:
    return Span(line.who, start, max(end, start + LEAST), kind, name, line.nbytes, line.details)


def _served(lines: Iterable[Line]) -> Iterator[Span]:
    """What the dispatcher does with a message or a plan: from its coming to the last that is sent for it."""
    for each in _by_dispatcher(lines).values():
        yield from _served_by_one(each)


def _by_dispatcher(lines: Iterable[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line.kind == "dispatcher":
            found[line.tag].append(line)
    return found


def _served_by_one(lines: Iterable[Line]) -> Iterator[Span]:
    first = last = None
    for line in lines:
        if line.event == "send" and last is not None and line.time - last.time <= SERVED_S:
            last = line
            continue
        if first is not None and last is not None:
            yield _span(first, first.time, last.time, "serve", first.operation)
        first = last = line if line.event in ("recv", "plan") else None
    if first is not None and last is not None:
        yield _span(first, first.time, last.time, "serve", first.operation)


def _fetched(lines: Iterable[Line]) -> Iterator[Span]:
    """What a client waits for: from the call to the last part of the value."""
    asked: dict[tuple[str, str], Line] = {}
    ended: dict[tuple[str, str], Line] = {}
    for line in lines:
        key = line.who, line.fields.get("request", "")
        if line.event == "call" and line.operation in ("Fetch", "Run"):
            asked[key] = line
        elif line.event == "part" and key in asked:
            ended[key] = line
    for key, part in ended.items():
        yield replace(_span(asked[key], asked[key].time, part.time, "fetch", "fetch"), nbytes=part.nbytes)


def _planned(lines: Iterable[Line]) -> Iterator[Span]:
    asked: dict[tuple[str, str], Line] = {}
    for line in lines:
        plan = line.tag, line.fields.get("plan", "").split(" ")[0]
        if line.kind != "dispatcher":
            continue
        if line.event == "ask":
            asked[plan] = line
        elif line.event == "plan":
            start = asked.pop(plan).time if plan in asked else line.time - line.seconds
            yield _span(line, start, line.time, "plan", f"plan {line.operation}")


# -- what workers do together


def _collectives(lines: Sequence[Line]) -> dict[Collective, dict[str, _Met]]:
    """Give each collective's spans by worker, of the epoch of their run."""
    found: dict[Collective, dict[str, _Met]] = defaultdict(dict)
    for run, met in _runs(lines):
        epoch = run.fields.get("epoch", "")
        for each in met:
            key = each.tag, epoch, each.fields.get("number", ""), each.fields.get("group", "")
            span = _span(each, each.time - each.seconds, each.time, "collective", each.operation)
            found[key].setdefault(run.who, _Met([])).spans.append(span)
    return found


def _joins(met: dict[Collective, dict[str, _Met]]) -> Iterator[Arrow]:
    """From who came last to each of the others; a message from its sender to its receiver."""
    for members in met.values():
        if len(members) < 2:
            continue
        sender = next((who for who, part in members.items() if part.spans[0].name == "send"), None)
        last = sender or max(members, key=lambda who: members[who].spans[0].start)
        source = members[last].spans[0].start
        for who, part in members.items():
            if who != last:
                yield Arrow("collective", (last, source), (who, max(source, part.spans[-1].end)))


def _waited(met: dict[Collective, dict[str, _Met]], since: float, until: float) -> dict[str, float]:
    """Give the seconds that each worker was in a collective before the last of its members had come."""
    waited: dict[str, float] = defaultdict(float)
    for members in met.values():
        complete = min(until, max(part.spans[0].start for part in members.values()))
        for who, part in members.items():
            waited[who] += sum(max(0.0, min(span.end, complete) - max(span.start, since)) for span in part.spans)
    return waited


def _shares(
    spans: Sequence[Span], met: dict[Collective, dict[str, _Met]], since: float, until: float
) -> dict[str, Share]:
    runs: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.kind == "run":
            runs[span.lane].append(replace(span, start=max(span.start, since), end=min(span.end, until)))
    if not runs:
        return {}
    first = min(span.start for each in runs.values() for span in each)
    last = max(span.end for each in runs.values() for span in each)
    whole = max(last - first, LEAST)
    waited = _waited(met, first, last)
    counts = Counter(who for members in met.values() for who, part in members.items() if first <= part.spans[-1].end <= last)
    return {
        who: Share(covered(runs[who]) / whole, waited.get(who, 0.0) / whole, len(runs[who]), counts[who])
        for who in sorted(runs, key=_order)
    }


def covered(spans: Iterable[Span]) -> float:
    """Give the seconds in which at least one of the spans is under way."""
    total, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda s: s.start):
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total


# -- what leads to what


def _calls(lines: Iterable[Line]) -> Iterator[Arrow]:
    """From a client's call of a run to the dispatcher. The first buffer that it makes is its name."""
    called: dict[tuple[str, str], Line] = {}
    for line in lines:
        made = line.fields.get("made")
        if line.operation != "Run" or made is None:
            continue
        if line.event == "call":
            called[line.who, made] = line
        elif line.event == "recv" and (call := called.pop((named(line.fields.get("from", ""), line.tag), made), None)) is not None:
            yield Arrow("call", (call.who, call.time), (line.who, max(call.time, line.time)))


def _epochs(lines: Iterable[Line]) -> Iterator[Arrow]:
    """From the dispatcher to the worker that runs an epoch."""
    sent: dict[tuple[str, str], Line] = {}
    for line in lines:
        if line.event == "send" and line.operation == "Execute":
            sent[named(line.fields.get("to", ""), line.tag), line.fields.get("epoch", "")] = line
        elif line.event == "run" and (send := sent.pop((line.who, line.fields.get("epoch", "")), None)) is not None:
            yield Arrow("epoch", (send.who, send.time), (line.who, max(send.time, line.time - line.seconds)))


# -- lanes


def _order(name: str) -> tuple[str, int, list[int | str]]:
    first = next(i for i, kind in enumerate(("client", "dispatcher", "worker", "")) if name.startswith(kind))
    return name.partition("@")[2].partition(" ")[0], first, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _lanes(spans: Iterable[Span]) -> tuple[Lane, ...]:
    by_lane: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_lane[span.lane].append(span)
    return tuple(_lane(name, by_lane[name]) for name in sorted(by_lane, key=_order))


def _lane(name: str, spans: list[Span]) -> Lane:
    """Put each span on the first track on which it nests in what is under way, or follows it."""
    tracks: list[list[Span]] = []  # of each, what is under way, outermost first
    over: list[float] = []  # of each, the end of what is over
    placed = []
    for span in sorted(spans, key=lambda s: (s.start, -s.end)):
        for at, open_ in enumerate([*tracks, []]):
            while open_ and open_[-1].end <= span.start + APART:
                over[at] = max(over[at], open_.pop().end)
            if not open_ or span.end <= open_[-1].end + APART:
                break
        if at == len(tracks):
            tracks.append([])
            over.append(float("-inf"))
        start = max(span.start, over[at])
        end = min(span.end, tracks[at][-1].end) if tracks[at] else span.end
        tracks[at].append(replace(span, start=min(start, end), end=end, track=at))
        placed.append(tracks[at][-1])
    return Lane(name, tuple(placed), len(tracks))


__all__ = ["KINDS", "Arrow", "Lane", "Share", "Span", "Timeline", "covered", "timeline_of"]
