"""The form of the instruction log, and its one reader: files of ``GT_INSTRUCTION_LOG`` and of ``gt trace`` alike.

A file begins with ``# gt instruction log: ...; start=SECONDS of=TAG`` (since 1970; of which dispatcher). Each further line is one event,
seven fields with one space between: ``elapsed_s sequence event who operation nbytes details``. ``elapsed_s`` counts from ``start``;
``sequence`` counts the events of ``who`` (``client0``, ``dispatcher``, ``worker1``; of another dispatcher than the first
``worker1@TAG``); ``details`` is ``name=value`` words, of which a value may have spaces. ``seconds=`` says that the event ends there and
began so long before.
Owns: ``HEADER``, ``fields_of``, ``named``, ``Line``, ``read_log``. Must not know: who writes. Next: ``log`` (which does), ``gt.timelines`` (what is made of it).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gt.ir.advice import Advised

HEADER = "# gt instruction log"
_FIELD = re.compile(r"(?:^| )(\w+)=")
_WHO = re.compile(r"(dispatcher|client\d*|worker\d+)(@\w+)?\Z")
_START = re.compile(r"start=(\S+)(?: of=(\w+))?\s*\Z")


class LogError(Advised, ValueError):
    """A file is no instruction log."""


def fields_of(details: str) -> dict[str, str]:
    """Give the details of a line by name."""
    parts = _FIELD.split(details)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def named(who: str, tag: str) -> str:
    """Give the name of ``who`` with the tag of its dispatcher, if it has one and none is there yet."""
    return f"{who}@{tag}" if tag and "@" not in who else who


def start_of(head: str) -> tuple[float, str]:
    """Give since when a file's first line says that its seconds count, and of which dispatcher plain names are. Errors: ValueError."""
    found = _START.search(head)
    if found is None:
        raise ValueError(f"no start=SECONDS in {head[:100]!r}")
    return float(found[1]), found[2] or ""


@dataclass(frozen=True)
class Line:
    """One event. ``time``: when it was written, in seconds since 1970."""

    time: float
    sequence: int
    event: str
    who: str
    operation: str
    nbytes: int
    details: str

    @cached_property
    def fields(self) -> dict[str, str]:
        """Give the details by name."""
        return fields_of(self.details)

    @property
    def kind(self) -> str:
        """Give who wrote it without its dispatcher's tag: "dispatcher", "worker1"."""
        return self.who.partition("@")[0]

    @property
    def tag(self) -> str:
        """Give the tag of who wrote it, "" if it has none."""
        return self.who.partition("@")[2]

    @property
    def seconds(self) -> float:
        """Give how long the event took, 0 if it says nothing of that."""
        try:
            seconds = float(self.fields.get("seconds", 0))
        except ValueError:
            return 0.0
        return seconds if 0 <= seconds < math.inf else 0.0


@dataclass(frozen=True)
class Log:
    """The events of files, in order of time. ``skipped``: lines that are none, as the last one of a disk that was full. ``headless``: its
    beginning was cut off, so nobody knows since when its seconds count. ``owner``: the dispatcher whose plain names are.
    """

    lines: tuple[Line, ...]
    skipped: int = 0
    headless: bool = False
    owner: str = ""


def parse_line(text: str, start: float) -> Line:
    """Read one line. Errors: ValueError if it is none."""
    elapsed, sequence, event, who, operation, nbytes, *details = text.split(" ", 6)
    if not _WHO.match(who) or not 0 <= float(elapsed) < math.inf:
        raise ValueError(f"no line of an instruction log: {text[:100]!r}")
    return Line(start + float(elapsed), int(sequence), event, who, operation, int(nbytes), details[0] if details else "")


def parse_log(texts: Iterable[str], name: str = "log") -> Log:
    """Read the lines of one file. Errors: LogError for what is none."""
    start, first, headless, skipped, owner = 0.0, None, False, 0, ""
    lines: list[Line] = []
    for text in texts:
        text = text.rstrip("\n")
        if first is None:
            first, headless = text, not text.startswith(HEADER)
        if text.startswith(HEADER):
            try:
                start, owner = start_of(text)
            except ValueError:
                raise LogError(f"{name}: its first line has no start=SECONDS") from None
            if headless:
                headless, lines, skipped = False, [], skipped + len(lines)
        elif text and not text.startswith("#"):
            try:
                lines.append(parse_line(text, start))
            except ValueError:
                skipped += 1
    if first is None:
        raise LogError(f"{name} is empty")
    if headless and not lines:
        raise LogError(f"{name} is no instruction log: expected a first line {HEADER!r}, got {first[:60]!r}")
    lines.sort(key=lambda line: line.time)
    return Log(tuple(lines), skipped, headless, owner)


def read_log(*files: str | os.PathLike[str]) -> Log:
    """Read files together, each once, with the ``.1`` that it goes on from if there is one. Errors: LogError; OSError.

    Where their plain names are of different dispatchers all have tags.
    """
    logs, paths = [], list({path.resolve(): path for path in map(Path, files)}.values())
    for path in paths:
        older = path.with_name(f"{path.name}.1")
        for each in [path] + ([older] if older.exists() and not any(map(older.samefile, paths)) else []):
            with each.open(encoding="utf-8", errors="replace") as file:
                log = parse_log(file, str(each))
            if log.headless and len(paths) > 1:
                raise LogError(f"{each} has lost its first line, which says since when it counts: read it without other files")
            logs += [log] if each is path or not log.headless else []
            if log.headless:
                break
    owners = {log.owner for log in logs}
    if len(owners) > 1:
        logs = [replace(log, lines=tuple([replace(line, who=named(line.who, log.owner)) for line in log.lines])) for log in logs]
    lines = sorted((line for log in reversed(logs) for line in log.lines), key=lambda line: line.time)
    return Log(tuple(lines), sum(log.skipped for log in logs), owner=owners.pop() if len(owners) == 1 else "")


__all__ = ["HEADER", "Line", "Log", "LogError", "fields_of", "named", "parse_line", "parse_log", "read_log", "start_of"]
