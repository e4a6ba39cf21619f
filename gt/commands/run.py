"""``gt run script.py -n 4``: a cluster of this machine's own for one script.

Owns: the command and ``run_here``. Next: ``gt.runtime.launch`` (the cluster), ``gt.runtime.script`` (the script).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from gt.commands.script_arguments import ScriptCommand, script_of

START_S = 120.0


@click.command(cls=ScriptCommand)
@click.argument("source", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("-n", "--workers", type=click.IntRange(1), help="Worker processes. [default: one for each GPU, else 1]")
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does, in place of a script.")
def run(source: str | None, arguments: tuple[str, ...], workers: int | None, module: str | None) -> None:
    """Run SOURCE, a script, on local workers that are its alone, and end with its exit code.

    Options may follow the script; the first word that is none of them begins the script's own ARGUMENTS. The script itself needs neither
    gt.connect nor gt.gpu_workers.
    """
    sys.exit(run_here("gt run", script_of(source, module, arguments), workers))


def run_here(name: str, command: Sequence[str], workers: int | None) -> int:
    """Run ``python command`` on ``workers`` local workers. Give the exit code."""
    from gt.runtime import env, wire
    from gt.runtime.errors import GtError, LaunchError
    from gt.runtime.exit_codes import ExitCode
    from gt.runtime.launch import LocalCluster, start_local
    from gt.runtime.node_link import NodeLink
    from gt.runtime.script import Interrupted, Supervisor

    count = workers or default_workers()

    def look(cluster: LocalCluster, link: NodeLink) -> None:
        with suppress(GtError):  # the script hears of it too, and decides
            link.step(0)
            link.supervise(cluster)
        for text in cluster.ended():
            click.echo(f"{name}: {text}", err=True)

    with Supervisor() as supervisor:
        try:
            cluster = start_local(count, env.BACKEND.get(), START_S, name)
        except LaunchError as e:
            click.echo(f"{name}: {e}", err=True)
            return ExitCode.USAGE if e.code == ExitCode.USAGE else ExitCode.NO_WORKERS
        except Interrupted as e:
            return e.code
        code = None
        try:
            link = NodeLink(cluster.address, wire.NodeHello(name, 1, 0, socket.gethostname(), os.getpid(), count))
            try:
                code = supervisor.run(command, job_variables(cluster.address), lambda: look(cluster, link))
            finally:
                link.close()
        except Interrupted as e:
            code = e.code
        finally:
            supervisor.over = True
            cluster.stop(code)
    return code


def job_variables(address: str, keys: Path | None = None) -> dict[str, str]:
    """Give the variables by which a script finds the cluster that is its own. ``keys``: the folder of its key files."""
    from gt.runtime.launch import key_variables

    return {"GT_ADDR": address, "GT_JOB": "1", **key_variables(keys, "client")}


def default_workers() -> int:
    """Give how many workers this machine is good for: one for each GPU, else one."""
    from gt.runtime import env
    from gt.runtime.launch import visible_gpus

    return max(1, len(visible_gpus()) if env.BACKEND.get() == "torch" else 1)


__all__ = ["default_workers", "job_variables", "run", "run_here"]
