"""A timeline as Chrome's trace events in JSON, as Perfetto (ui.perfetto.dev) and chrome://tracing read them.

Each lane is a process, each of its tracks a thread. All spans are complete events (``X``), which nest on each track; arrows are flows.
Owns: that form. Next: ``lanes``.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import Any

from gt.timelines.lanes import Arrow, Lane, Timeline


def chrome_events(timeline: Timeline) -> list[dict[str, Any]]:
    """Give the events. Times are whole nanoseconds, in microseconds: so spans that nest still do."""
    events: list[dict[str, Any]] = []
    pids = {lane.name: pid for pid, lane in enumerate(timeline.lanes, 1)}
    for lane in timeline.lanes:
        pid = pids[lane.name]
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": lane.name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        for span in lane.spans:
            start, end = _us(span.start), _us(span.end)
            args = {"nbytes": span.nbytes, "details": span.detail}
            events.append({
                "ph": "X", "cat": span.kind, "name": span.name, "pid": pid, "tid": span.track, "ts": start,
                "dur": round(end - start, 3), "args": args,
            })  # fmt: skip
    lanes = {lane.name: lane for lane in timeline.lanes}
    for number, arrow in enumerate(timeline.arrows):
        if all(end[0] in lanes for end in (arrow.source, arrow.target)):
            events += _flow(number, arrow, lanes, pids)
    return events


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _flow(number: int, arrow: Arrow, lanes: dict[str, Lane], pids: dict[str, int]) -> list[dict[str, Any]]:
    """A flow binds to the span that is under way on its track."""
    both = []
    for ph, (name, time) in (("s", arrow.source), ("f", arrow.target)):
        track = _track_at(lanes[name], time)
        event = {"ph": ph, "cat": arrow.kind, "name": arrow.kind, "id": number, "pid": pids[name], "tid": track, "ts": _us(time)}
        both.append({**event, "bp": "e"} if ph == "f" else event)
    return both


def _track_at(lane: Lane, time: float) -> int:
    last = bisect_right(lane.spans, time, key=lambda span: span.start)
    return next((span.track for span in reversed(lane.spans[max(0, last - 50) : last]) if span.end >= time), 0)


def chrome_json(timeline: Timeline) -> str:
    """Give the file's text."""
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": chrome_events(timeline)}, separators=(",", ":"))


__all__ = ["chrome_events", "chrome_json"]
