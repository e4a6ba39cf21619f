"""A timeline as one HTML file that needs nothing else: lanes to zoom and drag, what a span is under the pointer.

Owns: what goes into ``page.html``. Next: ``lanes``; ``picture`` has the colours.
"""

from __future__ import annotations

import html
import json
from pathlib import Path

from gt.timelines.lanes import Timeline
from gt.timelines.picture import COLOURS, title

PAGE = Path(__file__).with_name("page.html")


def page(timeline: Timeline) -> str:
    """Give the page. Whatever stands in the log is data there, never markup or code."""
    lanes = [
        {
            "name": lane.name, "tracks": lane.num_tracks,
            "spans": [(round(s.start, 7), round(s.end, 7), s.track, s.kind, s.name, s.nbytes, s.detail) for s in lane.spans],
        }
        for lane in timeline.lanes
    ]  # fmt: skip
    joins = [(*a.source, *a.target) for a in timeline.arrows if a.kind == "collective"]
    data = {"since": timeline.since, "until": timeline.until, "lanes": lanes, "joins": joins, "colours": COLOURS}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    rows = "".join(
        f"<tr><td>{html.escape(who)}</td><td>{s.busy:.1%}</td><td>{s.idle:.1%}</td><td>{s.bubble:.1%}</td><td>{s.num_runs}</td>"
        f"<td>{s.num_collectives}</td></tr>"
        for who, s in timeline.shares.items()
    )
    head = "".join(f"<th>{name}</th>" for name in ("worker", "busy", "idle", "bubble", "runs", "collectives"))
    kinds = "".join(f'<span class="kind"><i style="background:{colour}"></i>{kind}</span>' for kind, colour in COLOURS.items())
    parts = {
        "TITLE": html.escape(title(timeline)),
        "TABLE": f"<table><tr>{head}</tr>{rows}</table>",
        "KINDS": kinds,
        "HEIGHT": "300",
    }
    before, after = PAGE.read_text(encoding="utf-8").split("DATA", 1)
    for name, value in parts.items():
        before = before.replace(name, value, 1)
    return before + text + after


__all__ = ["page"]
