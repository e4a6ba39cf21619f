"""``gt trace``: what all processes of a running server do for some seconds.

Next: ``gt.runtime.tracing`` (how it is taken), ``gt.timelines`` (what is made of it).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gt.commands.files import said_of, writing
from gt.commands.float_range import FloatRange
from gt.commands.server_address import address_options, chosen_address
from gt.ir.wording import amount

if TYPE_CHECKING:
    from gt.runtime.wire import Traced


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@address_options
@click.option("-s", "--seconds", default=5.0, show_default=True, type=FloatRange(0.01, 600), help="How long.")
@click.option("-n", "--max-events", default=100_000, show_default=True, type=click.IntRange(1, 1_000_000),
              help="Of each process, the latest so many.")  # fmt: skip
@click.option("--dir", "folder", default="traces", show_default=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder of the files.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Name of the files in that folder, whatever its "
              "suffix. They may be there. [default: trace-N]")  # fmt: skip
def trace(
    address: str | None, host: str | None, port: int | None, seconds: float, max_events: int, folder: Path, output: Path | None
) -> None:  # fmt: skip
    """Record what clients, dispatcher, workers and GPU kernels do at ADDRESS, on one clock.

    Writes trace-N.json, which ui.perfetto.dev and chrome://tracing show, and trace-N.log in the form of GT_INSTRUCTION_LOG, which
    gt visualize draws. Nothing is slowed down before and after. Ends with code 3 if no server answers.
    """
    from gt.commands.visualize import shares_text
    from gt.runtime.errors import ConnectionFailed
    from gt.runtime.exit_codes import ExitCode
    from gt.runtime.keys import chosen_keys
    from gt.runtime.log_lines import parse_log
    from gt.runtime.status_request import StatusLink
    from gt.timelines import timeline_of
    from gt.timelines.chrome import chrome_json

    where = chosen_address("gt trace", address, host, port)
    try:
        (folder / (output or "")).parent.mkdir(
            parents=True, exist_ok=True
        )  # before it is traced: a trace is not to be lost for that
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise click.ClickException(said_of(e, "made a folder")) from e
    try:
        with closing(StatusLink(where, chosen_keys(None, "client", "worker"))) as link:
            found = link.ask()
            click.echo(f"tracing {where} for {seconds:g} s: {amount(len(found.workers), 'worker')}, {amount(len(found.clients), 'client')}", err=True)
            parts = link.trace(seconds, max_events)
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    except ConnectionFailed as e:
        click.echo(f"gt trace: {e}", err=True)
        sys.exit(ExitCode.SERVER_LOST)
    text = log_text(parts)
    timeline = timeline_of(parse_log(text.splitlines()))
    with writing(folder):
        stem = free_name(folder) if output is None else folder / output
    for suffix, body in ((".log", text), (".json", chrome_json(timeline))):
        with writing(stem.with_suffix(suffix)):
            stem.with_suffix(suffix).write_text(body, encoding="utf-8")
    for note in notes(parts):
        click.echo(note, err=True)
    click.echo(shares_text(timeline))
    click.echo(stem.with_suffix(".json"))
    click.echo(stem.with_suffix(".log"))


def log_text(parts: Iterable[Traced]) -> str:
    """Give all parts as one instruction log, on the dispatcher's clock, in order of time. What is no line of its part is left out."""
    from gt.runtime.log import header
    from gt.runtime.log_lines import parse_line

    parts = [part for part in parts if math.isfinite(part.start)]
    start = min((part.start for part in parts if part.lines), default=0.0)
    lines = []
    for part in parts:
        for line in part.lines:
            with suppress(ValueError):
                if parse_line(line, part.start).who == part.who:
                    elapsed, _, rest = line.partition(" ")
                    lines.append((float(elapsed) + part.start - start, rest))
    first = min((at for at, _ in lines), default=0.0)  # a long-lived process counts from its own beginning
    lines.sort(key=lambda line: line[0])
    owner = next((part.tag for part in parts), "")
    return header(start + first, owner) + "".join(f"{at - first:.6f} {rest}\n" for at, rest in lines)


def notes(parts: Iterable[Traced]) -> list[str]:
    """Say what is not in a trace, and how well the clocks are known."""
    out = []
    for part in parts:
        if part.missing:
            out.append(f"{part.who} is not in the trace: {part.missing}")
        if part.left_out:
            out.append(f"{part.who}: left out, before the latest {len(part.lines)}: {amount(part.left_out, 'event')}, see --max-events")
        if part.within_s > 0:
            out.append(f"{part.who}: its clock is another machine's, known within {part.within_s * 1e3:.2f} ms")
    return out


def free_name(folder: Path) -> Path:
    """Give the first of trace-1, trace-2 and so on that no file of the folder has."""
    number = 1
    while any((folder / f"trace-{number}{suffix}").exists() for suffix in (".json", ".log")):
        number += 1
    return folder / f"trace-{number}"


__all__ = ["log_text", "notes", "trace"]
