"""Timelines: what clients, dispatcher and workers did when, from the lines of instruction logs. Next: ``lanes``."""

from __future__ import annotations

from gt.timelines.lanes import Arrow, Lane, Share, Span, Timeline, timeline_of

__all__ = ["Arrow", "Lane", "Share", "Span", "Timeline", "timeline_of"]
