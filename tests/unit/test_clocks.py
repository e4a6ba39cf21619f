"""No deadline and no interval hangs on the wall clock, which people and NTP set: only what shows a time reads it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "gt").rglob("*.py"))
SHOWN = {
    "gt/runtime/log.py": "the times of the instruction log's lines, which processes share",
    "gt/runtime/dispatcher.py": "the server's clock in its status, for comparison",
    "gt/runtime/spans.py": "the times of spans, which OpenTelemetry has since 1970",
    "gt/runtime/tracer.py": "how far a process's clock is from the dispatcher's",
    "gt/runtime/checks.py": "gt doctor looks at the clock itself",
}
WALL = {("time", "time"), ("time", "time_ns"), ("time", "localtime"), ("time", "gmtime"), ("time", "ctime"), ("time", "CLOCK_REALTIME"),
        ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}  # fmt: skip


def readings(tree: ast.AST) -> Iterator[int]:
    """Give the lines that read the wall clock, or import what does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if (owner, node.attr) in WALL:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and any((node.module, alias.name) in WALL for alias in node.names):
            yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_only_what_shows_a_time_reads_the_wall_clock(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    lines = list(readings(ast.parse(path.read_text())))
    assert (not lines) or name in SHOWN, f"{name}:{lines}: use time.monotonic()"


def test_the_list_of_those_that_show_it_is_no_longer_than_it_must_be() -> None:
    assert {name for name in SHOWN if not list(readings(ast.parse((ROOT / name).read_text())))} == set()


@pytest.mark.parametrize("source", ["time.time()", "from time import time", "datetime.datetime.now()", "t = time.time_ns"])
def test_the_rule_finds_what_it_forbids(source: str) -> None:
    assert list(readings(ast.parse(source)))
