"""``gt explain``: what a script flushes and why, which lines make new graphs, and how these run.

Next: ``gt.telling`` (the counters), ``gt.graph_history`` (new graphs), ``gt.explaining`` (one tensor).
"""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path

import click

from gt.runtime.exit_codes import INTERRUPTED, ExitCode, code_of_error

CONTEXT = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command(context_settings=CONTEXT)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def explain(script: Path, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT with its ARGUMENTS, then say why it flushed and at which lines, why graphs were new, how they are placed and run.

    It runs as by itself: in this process, at the server that GT_ADDR names, or on the workers it starts. For one tensor use gt.explain(x)
    in the script; gt plan shows what a script costs on other workers.
    """
    from gt.telling import report, told_sessions

    code = 0
    file = os.path.abspath(script)  # as Python names it, whatever folder the script goes to
    argv, path, out = sys.argv, list(sys.path), sys.stdout
    sys.argv, sys.path[0:0] = [str(script), *arguments], [str(script.parent.resolve())]
    with told_sessions() as told:
        try:
            runpy.run_path(file, run_name="__main__")
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else int(e.code is not None)
            if e.code is not None and not isinstance(e.code, int):
                click.echo(str(e.code), err=True)
        except BaseException as e:
            _print(e, file)
            code = INTERRUPTED if isinstance(e, KeyboardInterrupt) else code_of_error(type(e)) or ExitCode.ERROR
        finally:
            sys.argv, sys.path[:] = argv, path
        click.echo(report(told[-1] if told else None), file=sys.stderr if out is None or out.closed else out)
    sys.exit(code)


def _print(error: BaseException, file: str) -> None:
    """Print a script's uncaught error as Python does: what runs the script is no part of it."""
    seen = error.__traceback__
    while seen is not None and seen.tb_frame.f_code.co_filename != file:
        seen = seen.tb_next
    if seen is None and not isinstance(error, SyntaxError):  # one in the script itself was found before any line ran
        seen = error.__traceback__
    with suppress(SystemExit):  # of a hook that gives codes
        sys.excepthook(type(error), error.with_traceback(seen), seen)


__all__ = ["explain"]
