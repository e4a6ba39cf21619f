"""The ``gt`` command. What ``import gt`` does not load is loaded inside a command, so that ``gt --help`` is quick.

Owns: options and exit codes. Must not know: how anything is done. Next: ``gt.commands`` (clusters), ``gt.server``, ``gt.worker``,
``gt.compiling``.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gt.commands.doctor import doctor
from gt.commands.explain import explain
from gt.commands.files import said_of, writing
from gt.commands.float_range import FloatRange
from gt.commands.interruptible import Group
from gt.commands.launch import launch
from gt.commands.manifest import manifest
from gt.commands.run import run
from gt.commands.status import status
from gt.commands.top import top
from gt.commands.trace import trace
from gt.commands.visualize import visualize
from gt.config import ConfigError, did_you_mean, get_config, load_config
from gt.ir.text import ParseError
from gt.runtime import env
from gt.runtime.exit_codes import ExitCode
from gt.version import __version__

if TYPE_CHECKING:
    from gt.compiling import Lowered
    from gt.passes.pipeline import PassError, Pipeline

STAGES = ("captured", "global", "sharded", "explicit", "local", "programs")
FORMATS = ("text", "json", "dot")
MAX_WORKERS = 2**20  # that a plan may be for: each has a number, and too many would only fill memory
WORKERS = click.IntRange(1, MAX_WORKERS)
CONTEXT = {"help_option_names": ["-h", "--help"]}


@click.group(cls=Group, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="gt")
@click.pass_context
def main(context: click.Context) -> None:
    """Run and inspect gt: scripts on clusters, servers, workers, and what a script compiles to."""
    try:
        env.check()
    except ValueError as e:
        click.echo(f"gt {context.invoked_subcommand}: {e}", err=True)
        context.exit(ExitCode.USAGE)


for command in (run, launch, explain, status, top, trace, visualize, doctor, manifest):
    main.add_command(command)

PASS_ON = {"ignore_unknown_options": True, "help_option_names": []}


@main.command(context_settings=PASS_ON, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def server(arguments: tuple[str, ...]) -> None:
    """Start a dispatcher that workers and scripts connect to. As python -m gt.server."""
    from gt.server import main as run

    run.main(args=list(arguments), prog_name="gt server")


@main.command(context_settings=PASS_ON, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def worker(arguments: tuple[str, ...]) -> None:
    """Start one worker and join it to a server. As python -m gt.worker."""
    from gt.worker import main as run

    run.main(args=list(arguments), prog_name="gt worker")


@main.command()
@click.option("-o", "folder", type=click.Path(file_okay=False, path_type=Path), default="~/.config/gt/keys", show_default=True,
              help="Folder of the server's key, the list of allowed keys and the new key files.")  # fmt: skip
@click.option("--client", "clients", multiple=True, metavar="NAME", help="Make a key for a client. Repeatable. [default: client]")
@click.option("--worker", "workers", multiple=True, metavar="NAME", help="Make a key for workers. Repeatable. [default: worker]")
@click.option("--revoke", metavar="NAME", help="Take a key off the list: a running server refuses it from then on.")
def keygen(folder: Path, clients: tuple[str, ...], workers: tuple[str, ...], revoke: str | None) -> None:
    """Make key files for a server that listens beyond its host, and for its clients and workers.

    The folder stays on the server's machine. Give each client and worker its own file alone, over a safe way. See docs/security.md.
    """
    from gt.runtime.errors import KeyFileError
    from gt.runtime.keys import make_keys, revoke_key

    folder = folder.expanduser()
    fresh = not clients and not workers
    made: list[Path] = []
    try:
        with writing(folder):
            if revoke is None:
                made = make_keys(folder, clients or ("client",) * fresh, workers or ("worker",) * fresh)
            else:
                click.echo(f"{revoke} ({revoke_key(folder, revoke)}) is off the list {folder / 'allowed'}")
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error
    for path in made:
        click.echo(path)


@main.command("compile")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--workers", type=WORKERS, help="Plan for so many workers. [default: 1, or a .gtir file's own]")
@click.option("--mesh", metavar="AXIS=SIZE,...", help="Name the axes of the workers, as in dp=4,tp=2. Sets --workers too; "
              "with it, one size may be -1.")  # fmt: skip
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="YAML file of signals.")
@click.option("--estimate", is_flag=True, help="Show flops, bytes sent by cause, predicted time, memory by line.")
@click.option("--diff", metavar="PASS..PASS|FILE", help="Show what changes between two passes, or under another --config.")
@click.option("--dump-ir", is_flag=True, help="Show the graphs and programs, not only the summary.")
@click.option("--stage", type=click.Choice(STAGES), help="Only the graphs of this stage.")
@click.option("--pass", "passes", multiple=True, metavar="NAME", help="Only the graph after this pass. Repeatable.")
@click.option("--worker", "workers_shown", multiple=True, type=int, help="Only this worker's program. Repeatable.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--draw", "picture", type=click.Choice(("svg", "png")), help="Draw the graphs, and where their inputs and "
              "outputs lie, to files in the folder of -o.")  # fmt: skip
@click.option("-o", "folder", type=click.Path(file_okay=False, path_type=Path), help="Write files to this folder.")
@click.option("--pipeline", metavar="PASSES", help="Passes to run, in place of the usual ones.")
@click.option("--shapes", is_flag=True, help="Compute nothing: every value read is zero. For models too large for here.")
@click.option("--flushes", default=20, show_default=True, type=click.IntRange(1), help="Stop a script after so many "
              "flushes that bring no new graph.")  # fmt: skip
@click.option("--seconds", default=120.0, show_default=True, type=FloatRange(0, min_open=True), help="Stop a script after so long.")
def compile_(
    source: Path,
    arguments: tuple[str, ...],
    workers: int | None,
    mesh: str | None,
    config: Path | None,
    estimate: bool,
    diff: str | None,
    dump_ir: bool,
    stage: str | None,
    passes: tuple[str, ...],
    workers_shown: tuple[int, ...],
    form: str,
    picture: str | None,
    folder: Path | None,
    pipeline: str | None,
    shapes: bool,
    flushes: int,
    seconds: float,
) -> None:
    """Show what SOURCE, a script or a dumped .gtir file, becomes on --workers workers.

    A script runs in this process until it makes no new graph; it needs no server and no GPU. Its own ARGUMENTS follow
    a "--". Output of the script goes to stderr.
    """
    from gt import compiling, estimating
    from gt.passes.pipeline import PassError, PlanRefused

    if source.suffix not in (".py", ".gtir"):
        raise click.BadParameter(f"{source} is neither a Python script (.py) nor a dumped graph (.gtir)", param_hint="SOURCE")
    axes, workers = _parse_mesh(mesh, workers)
    steps = _parse_pipeline(pipeline)
    known = ("captured", *(step.name for step in steps.passes))
    _check_passes(passes, known)
    against, between = _parse_diff(diff, known)
    if form != "text" and folder is None and (estimate or diff):
        raise click.BadParameter(f"--estimate and --diff are text: give the folder for {form} with -o", param_hint="--format")
    if picture and folder is None:
        raise click.BadParameter("give the folder for the drawings with -o", param_hint="--draw")
    if picture and importlib.util.find_spec("matplotlib") is None:
        raise click.BadParameter("drawings need matplotlib: pip install 'gt-tensor[viz]'", param_hint="--draw")
    if workers is not None or source.suffix != ".gtir":
        _check_workers(workers_shown, workers or 1)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.BadParameter(said_of(error, "made a folder"), param_hint="-o") from error
    lower = partial(_lower, source, arguments, workers, axes)
    try:
        lowered, fault = lower(config, steps, shapes, flushes, seconds)
        other = lower(against, steps, shapes, flushes, seconds)[0] if against else []
    except PassError as error:
        raise click.ClickException(_reproducer(error, folder or Path(), workers)) from error
    except PlanRefused as error:
        raise click.ClickException(str(error)) from error
    if lowered:  # a dumped graph has been through some passes
        _check_passes(passes, lowered[0].order)
        _check_workers(workers_shown, lowered[0].num_workers)
    selection = compiling.Selection(stage, passes, workers_shown)
    if picture and folder is not None:
        try:
            with writing(folder):
                drawn = compiling.draw(lowered, selection, picture, folder)
        except (ValueError, ImportError) as error:
            raise click.ClickException(str(error)) from error
        click.echo("\n".join(map(str, drawn)))
    elif folder is not None:
        with writing(folder):
            written = compiling.write(lowered, selection, form, folder)
        for path in written:
            click.echo(path)
    elif dump_ir or stage or passes or workers_shown or form != "text":
        click.echo(compiling.render(lowered, selection, form), nl=False)
    if estimate:
        click.echo(estimating.estimate_text(lowered))
    if between:
        click.echo(_between_text(lowered, between), nl=False)
    if against:
        click.echo(estimating.config_diff(lowered, other, (config.name if config else "no config", against.name)), nl=False)
    if form == "text":
        click.echo(("\n" if dump_ir and folder is None else "") + compiling.summary(lowered), nl=False)
    if fault is not None:
        raise click.ClickException(f"{source} ended early with {type(fault).__name__}: {fault}")


def _parse_mesh(text: str | None, workers: int | None) -> tuple[dict[str, int], int | None]:
    """Read ``dp=4,tp=2``, of which one size may be -1, as in a file; give the workers there are, too."""
    axes: dict[str, int] = {}
    for item in text.split(",") if text is not None else []:
        name, _, size = item.partition("=")
        if name.strip() in axes:
            raise click.BadParameter(f"expected each AXIS=SIZE once, got {name.strip()!r} twice", param_hint="--mesh")
        if not name.strip().isidentifier() or not re.fullmatch(r" *(-1|0*[1-9][0-9]*) *", size, re.ASCII):
            raise click.BadParameter(f"expected AXIS=SIZE, as in dp=4,tp=2, got {item!r}", param_hint="--mesh")
        axes[name.strip()] = int(size)
    open_axes, count = [name for name, size in axes.items() if size == -1], math.prod(abs(size) for size in axes.values())
    if open_axes:
        if workers is None:
            raise click.BadParameter(f"{text} is of so many workers as --workers says: give it", param_hint="--mesh")
        if len(open_axes) > 1 or workers % count:
            raise click.BadParameter(f"{text} does not fill {workers} workers: one size may be -1, what the others leave", param_hint="--mesh")
        axes[open_axes[0]], count = workers // count, workers
    if count > MAX_WORKERS:
        raise click.BadParameter(f"{text} is {count} workers, a plan may be for {MAX_WORKERS} at most", param_hint="--mesh")
    if axes and workers not in (None, count):
        raise click.BadParameter(f"{text} is {count} workers, --workers says {workers}: leave --workers out", param_hint="--mesh")
    return axes, count if axes else workers


def _parse_pipeline(text: str | None) -> Pipeline:
    """Read the passes to run, by default the usual ones."""
    from gt.passes.pipeline import DEFAULT, Pipeline, PipelineError

    try:
        steps = Pipeline.parse(text) if text else DEFAULT
    except PipelineError as error:
        raise click.BadParameter(str(error), param_hint="--pipeline") from error
    if all(step.name != "lower_programs" for step in steps.passes):
        raise click.BadParameter("it makes no programs: end it with lower_programs", param_hint="--pipeline")
    return steps


def _parse_diff(text: str | None, passes: Collection[str]) -> tuple[Path | None, tuple[str, str] | None]:
    """Read ``PASS..PASS`` or the name of a configuration's file, which is read to see that it can be."""
    if text is None:
        return None, None
    before, _, after = text.partition("..")
    if ".." in text and before.isidentifier() and after.isidentifier():
        _check_passes((before, after), passes, "--diff")
        return None, (before, after)
    from gt.config_file import read_config  # loads a YAML parser

    try:
        read_config(text)
    except ConfigError as error:
        raise click.BadParameter(f"expected PASS..PASS or a YAML file: {error}", param_hint="--diff") from error
    return Path(text), None


def _between_text(lowered: list[Lowered], between: tuple[str, str]) -> str:
    from gt.estimating import step_diff

    try:
        return step_diff(lowered, *between)
    except ValueError as error:  # left out by --pipeline
        raise click.BadParameter(str(error), param_hint="--diff") from error


def _check_passes(passes: Sequence[str], known: Collection[str], option: str = "--pass") -> None:
    """Refuse a pass that is not there, or that is left out here."""
    for name in passes:
        if name not in known:
            raise click.BadParameter(f"no pass {name!r}{did_you_mean(name, known)}", param_hint=option)


def _check_workers(shown: Sequence[int], count: int) -> None:
    for number in shown:
        if not 0 <= number < count:
            there = f"0 to {count - 1}" if count > 1 else "0 alone, more with --workers"
            raise click.BadParameter(f"no worker {number}: the workers are {there}", param_hint="--worker")


def _lower(
    source: Path,
    arguments: tuple[str, ...],
    workers: int | None,
    mesh: dict[str, int],
    config: Path | None,
    steps: Pipeline,
    shapes: bool,
    flushes: int,
    seconds: float,
) -> tuple[list[Lowered], BaseException | None]:
    """Give every distinct graph of the source, lowered, and the error the script ended with, if it did."""
    from gt.compiling import lower, read_gtir
    from gt.ir.verify import VerifyError
    from gt.passes.plan import Cluster
    from gt.scripted import Limits, record_script

    try:
        if config is not None:
            get_config().clear()
            load_config(config)
        if mesh:
            get_config().register_mesh(mesh)
        if source.suffix == ".gtir":
            if arguments:
                raise click.UsageError("a .gtir file takes no arguments")
            if config is not None or mesh:
                raise click.UsageError("a .gtir file holds its signals and meshes: --config and --mesh would change nothing")
            graph, noted = read_gtir(source)
            return [lower(graph, Cluster(tuple(range(workers or noted))), steps)], None
    except OSError as error:
        raise click.ClickException(said_of(error, "read")) from error
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    except (ParseError, VerifyError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{source}: {error}") from error

    cluster = Cluster(tuple(range(workers or 1)))
    made = record_script(str(source), arguments, cluster, Limits(flushes, seconds), shapes)
    if not made.graphs and made.error is None:
        raise click.ClickException(f"{source} ran no gt op whose value was needed")
    return [lower(c.graph, cluster, steps, c.runs) for c in made.graphs], made.error


@main.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--workers", type=WORKERS, help="Plan for so many workers. [default: 1]")
@click.option("--mesh", metavar="AXIS=SIZE,...", help="Name the axes of the workers, as in dp=4,tp=2. Sets --workers too; "
              "with it, one size may be -1.")  # fmt: skip
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="YAML file of signals.")
@click.option("--why", is_flag=True, help="Show where each output is and why.")
@click.option("--shapes", is_flag=True, help="Compute nothing: every value read is zero. For models too large for here.")
@click.option("--flushes", default=20, show_default=True, type=click.IntRange(1), help="Stop a script after so many "
              "flushes that bring no new graph.")  # fmt: skip
@click.option("--seconds", default=120.0, show_default=True, type=FloatRange(0, min_open=True), help="Stop a script after so long.")
def plan(
    source: Path, arguments: tuple[str, ...], workers: int | None, mesh: str | None, config: Path | None, why: bool,
    shapes: bool, flushes: int, seconds: float,
) -> None:  # fmt: skip
    """Show what a whole script costs on --workers workers, graph by graph, without running it there.

    It needs no server and no GPU: the script runs in this process, its placements are followed beside it.
    """
    from gt.estimating import estimate_text, placement_text
    from gt.passes.pipeline import PassError, PlanRefused

    axes, workers = _parse_mesh(mesh, workers)
    try:
        lowered, fault = _lower(source, arguments, workers, axes, config, _parse_pipeline(None), shapes, flushes, seconds)
    except PassError as error:
        raise click.ClickException(_reproducer(error, Path(), workers)) from error
    except PlanRefused as error:
        raise click.ClickException(str(error)) from error
    click.echo(estimate_text(lowered), nl=False)
    if why:
        click.echo("\n" + placement_text(lowered), nl=False)
    if fault is not None:
        raise click.ClickException(f"{source} ended early with {type(fault).__name__}: {fault}")


def _reproducer(error: PassError, folder: Path, workers: int | None) -> str:
    """Write what repeats a pass's fault, and say so."""
    path = folder / f"fault-{error.pass_name}.gtir"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(error.gtir, encoding="utf-8")
    except OSError as e:
        return f"{error}\nThis is a fault in gt. What repeats it is lost: {said_of(e, 'written', path)}"
    count = f" --workers {workers}" if workers else ""
    return f"{error}\nThis is a fault in gt. It is repeated by: gt compile {path}{count} --pipeline '{error.rest}'"


if __name__ == "__main__":
    main()
