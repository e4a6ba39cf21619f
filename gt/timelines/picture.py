"""A timeline as a picture, by matplotlib.

Owns: colours, sizes, what is written on bars. Next: ``lanes``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gt.timelines.lanes import Lane, Timeline

COLOURS = {
    "run": "#4c78a8", "collective": "#e45756", "kernel": "#76b7b2", "load": "#b279a2", "group": "#9d755d", "ship": "#f2a93b", "fetch": "#9ecae9",
    "upload": "#ff9da6", "flush": "#333333", "serve": "#54a24b", "plan": "#d6a5c9", "restart": "#000000",
}  # fmt: skip
ARROWS = {"collective": "#b3202a", "call": "#888888", "epoch": "#888888"}
MAX_HEADS = 400  # arrows beyond are lines
MAX_LABELS = 300


def draw(timeline: Timeline, path: Path, dpi: int = 150, width: float = 16.0, height: float | None = None) -> None:
    """Draw to a .png, .svg or .pdf. ``width`` and ``height`` in inches, ``height`` by default as the lanes need.

    Errors: ImportError without matplotlib; ValueError for another ending; OSError.
    """
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"expected a .png, .svg, .pdf or .html file, got {path.name!r}")
    rcParams["svg.hashsalt"] = "gt"  # the same picture is the same file
    rcParams["text.parse_math"] = False  # a $ in a kernel's name is one
    figure = Figure(figsize=(width, height or height_of(timeline)), dpi=dpi, layout="constrained")
    axes = figure.add_subplot()
    unit, scale = ("s", 1.0) if timeline.seconds >= 2 else ("ms", 1e3)
    middles, starts = _bars(axes, timeline, scale)
    _arrows(axes, timeline, starts, scale)
    axes.set_yticks(list(middles.values()), list(middles))
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} since the first event")
    axes.set_title(title(timeline), loc="left", fontsize=10)
    axes.set_xlim((timeline.since - 0.01 * timeline.seconds) * scale, (timeline.until + 0.01 * timeline.seconds) * scale)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    figure.savefig(path, format=path.suffix.lower()[1:], metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def height_of(timeline: Timeline) -> float:
    """Give the inches that its lanes need."""
    rows = sum(lane.num_tracks for lane in timeline.lanes) + 0.5 * len(timeline.lanes)
    return max(2.5, 1.6 + 0.42 * rows)


def title(timeline: Timeline) -> str:
    """Say how much of the time workers had nothing to do."""
    shares = timeline.shares.values()
    if not shares:
        return "no worker ran anything"
    idle, bubble = (sum(share) / len(shares) for share in ([s.idle for s in shares], [s.bubble for s in shares]))
    return f"{len(shares)} worker{'s' * (len(shares) > 1)}: {idle:.0%} idle, {bubble:.0%} waiting for each other (bubble)"


def _bars(axes: Any, timeline: Timeline, scale: float) -> tuple[dict[str, float], dict[str, float]]:
    """Draw the spans; give the middle and the top of each lane."""
    at, middles, tops, named, labels = 0.0, {}, {}, set(), 0
    for lane in timeline.lanes:
        tops[lane.name], middles[lane.name] = at, at + lane.num_tracks / 2
        for kind, colour in COLOURS.items():
            for track in range(lane.num_tracks):
                spans = [s for s in lane.spans if s.kind == kind and s.track == track]
                if not spans:
                    continue
                inner = 0.18 if kind == "collective" else 0.05
                axes.broken_barh(
                    [(s.start * scale, (s.end - s.start) * scale) for s in spans], (at + track + inner, 1 - 2 * inner),
                    facecolors=colour, edgecolors="white" if kind == "collective" else colour, linewidth=2.0 if kind == "restart" else 0.4,
                    label=None if kind in named else kind, zorder=3 + (kind == "collective"),
                )  # fmt: skip
                named.add(kind)
        labels += _names(axes, lane, at, timeline, scale, MAX_LABELS - labels)
        at += lane.num_tracks + 0.5
    return middles, tops


def _names(axes: Any, lane: Lane, at: float, timeline: Timeline, scale: float, room: int) -> int:
    """Write names on bars that are wide enough for them."""
    least, since, until = timeline.seconds * 0.006, timeline.since, timeline.until
    wide = [s for s in lane.spans if s.kind != "collective" and min(s.end, until) - max(s.start, since) > least * (len(s.name) + 1)]
    for span in wide[: max(0, room)]:
        middle = (max(span.start, since) + min(span.end, until)) / 2
        axes.text(
            middle * scale, at + span.track + 0.5, span.name, ha="center", va="center", fontsize=6, color="white",
            clip_on=True, zorder=6,
        )  # fmt: skip
    return len(wide)


def _arrows(axes: Any, timeline: Timeline, tops: dict[str, float], scale: float) -> None:
    from matplotlib.collections import LineCollection

    for kind, colour in ARROWS.items():
        arrows = [a for a in timeline.arrows if a.kind == kind and a.source[0] in tops and a.target[0] in tops]
        ends = [[(a.source[1] * scale, tops[a.source[0]] + 0.5), (a.target[1] * scale, tops[a.target[0]] + 0.5)] for a in arrows]
        light = 0.8 if kind == "collective" else 0.35
        if len(arrows) > MAX_HEADS:
            axes.add_collection(LineCollection(ends, colors=colour, linewidths=0.5, alpha=light, zorder=5))
            continue
        for source, target in ends:
            drawn = axes.annotate(
                "", xy=target, xytext=source, zorder=5,
                arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 0.7, "alpha": light, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
            drawn.arrow_patch.set_clip_path(axes.patch)


__all__ = ["COLOURS", "draw", "height_of", "title"]
