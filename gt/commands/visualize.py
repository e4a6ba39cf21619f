"""``gt visualize``: instruction logs as a timeline.

Next: ``gt.timelines`` (what is drawn).
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gt.commands.files import said_of, writing
from gt.commands.float_range import FloatRange
from gt.ir.wording import amount

if TYPE_CHECKING:
    from gt.timelines import Timeline

PICTURES = (".png", ".svg", ".pdf")
OTHERS = (".html", ".json")
MAX_PIXELS = 200_000_000  # 0.8 GB while it is drawn


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", default="timeline.png", show_default=True, type=click.Path(dir_okay=False, path_type=Path),
              help="Picture (.png, .svg, .pdf), page (.html) or Perfetto's trace (.json) to write.")  # fmt: skip
@click.option("--dpi", default=150, show_default=True, type=click.IntRange(20, 1200), help="Dots per inch of a picture.")
@click.option("--width", default=16.0, show_default=True, type=FloatRange(1, 200), help="Of a picture, in inches.")
@click.option("--height", type=FloatRange(1, 200), help="Of a picture, in inches. [default: as the lanes need]")
@click.option("--since", default=0.0, type=FloatRange(0), help="Leave out what ends before so many seconds.")
@click.option("--until", default=math.inf, type=FloatRange(0), help="Leave out what begins after so many seconds.")
def visualize(
    files: tuple[Path, ...], output: Path, dpi: int, width: float, height: float | None, since: float, until: float
) -> None:
    """Draw what clients, dispatcher and workers did when, from FILES that GT_INSTRUCTION_LOG or gt trace wrote.

    Prints for each worker how much of the time it was busy, idle, and waiting for others in collectives (bubble).
    """
    from gt.runtime.log_lines import LogError, read_log
    from gt.timelines import timeline_of

    suffix = output.suffix.lower()
    if suffix not in PICTURES + OTHERS:
        raise click.BadParameter(
            f"expected a name that ends with {', '.join(PICTURES + OTHERS)}, got {output.name}", param_hint="--output"
        )
    if suffix in PICTURES and importlib.util.find_spec("matplotlib") is None:
        raise click.BadParameter(
            "pictures need matplotlib: pip install 'gt-tensor[viz]'; .html needs nothing", param_hint="--output"
        )
    if since >= until:
        raise click.BadParameter(f"expected less than --until {until:g}, got {since:g}", param_hint="--since")
    try:
        log = read_log(*files)
    except LogError as e:
        raise click.ClickException(str(e)) from e
    except OSError as e:
        raise click.ClickException(said_of(e, "read")) from e
    timeline = timeline_of(log, since, until)
    if not timeline.lanes:
        whole = f" in these seconds, of {timeline_of(log).seconds:.3f} in all" if since or until < math.inf else ""
        raise click.ClickException(f"{', '.join(map(str, files))}: no event that takes time{whole}")
    with writing(output):
        write(timeline, output, dpi, width, height)
    click.echo(shares_text(timeline))
    click.echo(output)


def write(timeline: Timeline, output: Path, dpi: int = 150, width: float = 16.0, height: float | None = None) -> None:
    """Write a timeline in the form that the file's name asks for. Errors: OSError; ClickException for a picture that is too large."""
    suffix = output.suffix.lower()
    if suffix == ".json":
        from gt.timelines.chrome import chrome_json

        output.write_text(chrome_json(timeline), encoding="utf-8")
    elif suffix == ".html":
        from gt.timelines.page import page

        output.write_text(page(timeline), encoding="utf-8")
    else:
        from gt.timelines.picture import draw, height_of

        high = height or height_of(timeline)
        if suffix == ".png" and width * high * dpi**2 > MAX_PIXELS:
            raise click.ClickException(
                f"{output.name} would have {width * dpi:.0f} x {high * dpi:.0f} pixels, expected {MAX_PIXELS / 1e6:.0f} million at most: "
                "give smaller --dpi, --width or --height, or write .svg or .html"
            )
        draw(timeline, output, dpi, width, height)


def shares_text(timeline: Timeline) -> str:
    """Give the shares of busy, idle and waiting time by worker, and the length of it all."""
    lines = [f"{timeline.seconds:.3f} s, {amount(len(timeline.lanes), 'lane')}, {amount(sum(len(lane.spans) for lane in timeline.lanes), 'span')}"]
    if timeline.skipped:
        lines.append(f"left out: {amount(timeline.skipped, 'line')} that could not be read")
    width = max([10, *map(len, timeline.shares)])
    if timeline.shares:
        lines.append(f"{'':<{width}} {'busy':>6} {'idle':>6} {'bubble':>6} {'runs':>7} {'collectives':>11}")
    lines += [
        f"{who:<{width}} {s.busy:>6.1%} {s.idle:>6.1%} {s.bubble:>6.1%} {s.num_runs:>7} {s.num_collectives:>11}"
        for who, s in timeline.shares.items()
    ]
    return "\n".join(lines)


__all__ = ["shares_text", "visualize", "write"]
