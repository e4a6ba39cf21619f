"""``python -m gt.server -p PORT``: the server that clients and workers connect to.

Next: ``gt.runtime.dispatcher``.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import zmq

from gt.runtime import env
from gt.runtime.dispatcher import serve
from gt.runtime.dispatcher_state import Options
from gt.runtime.errors import KeyFileError
from gt.runtime.exit_codes import ExitCode
from gt.runtime.keys import chosen_keys
from gt.runtime.launch import LocalCluster
from gt.runtime.port_owner import port_owner
from gt.runtime.transport import LOOPBACK, is_loopback

if TYPE_CHECKING:
    from gt.runtime.web import Web

LIMITS: dict[env.Variable[Any], str] = {
    env.CLIENT_MEMORY: "--client-memory", env.WINDOW: "--client-runs", env.MAX_PRIORITY: "--max-priority",
}  # fmt: skip
RESTARTS = 20  # of each worker that it starts: one that cannot start is not tried for ever


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-p", "--port", type=click.IntRange(0, 65535), required=True, help="Port to listen on.")
@click.option(
    "-H", "--host", default="127.0.0.1", show_default=True, help="Address to listen on. One of other machines needs keys."
)
@click.option("--key", type=click.Path(path_type=Path), help="The server's key file, as gt keygen makes it. Default: GT_KEY_FILE.")
@click.option("--insecure", is_flag=True, help="Listen beyond this host without keys: whoever reaches the port may use it.")
@click.option("--trust-network", is_flag=True, hidden=True)
@click.option(
    "--client-memory", metavar="SIZE", help='Bytes each client may hold on all workers together, as "40GiB". [default: no limit]'
)
@click.option("--client-runs", type=click.IntRange(1), help="Runs each client may have in flight. [default: 32]")
@click.option("--max-priority", type=float, help="The most a client may ask for as its priority. [default: 1]")
@click.option(
    "--dashboard", metavar="[HOST:]PORT", help="Serve a read-only web page, and metrics for Prometheus at /metrics. [default: off]"
)
@click.option(
    "--spawn_gpu_workers", "--spawn-gpu-workers", "spawned", type=click.IntRange(0), default=0, metavar="N",
    help="Start N workers here too, one for each GPU while there are any; others take the places of those that die; they end with the server.",
)  # fmt: skip
@click.option("--log-file", help="File of one line per event. Default: GT_INSTRUCTION_LOG.")
@click.option("--no-console-log", is_flag=True, hidden=True)
def main(
    port: int, host: str, key: Path | None, insecure: bool, trust_network: bool, client_memory: str | None, client_runs: int | None,
    max_priority: float | None, dashboard: str | None, spawned: int, log_file: str | None, no_console_log: bool,
) -> None:  # fmt: skip
    """Run a gt server. Start workers with `python -m gt.worker --host HOST -p PORT`."""
    if trust_network:
        click.echo("gt server: --trust-network is called --insecure now.", err=True)
        insecure = True
    if no_console_log:
        click.echo("gt server: --no-console-log is not needed: nothing is told without GT_DEBUG=3.", err=True)
    for text in env.without_effect():
        click.echo(f"gt server: {text}", err=True)
    if log_file:
        os.environ[env.INSTRUCTION_LOG.name] = log_file  # of the workers that it starts, too
    given: dict[env.Variable[Any], object] = {
        env.CLIENT_MEMORY: client_memory, env.WINDOW: client_runs, env.MAX_PRIORITY: max_priority,
    }  # fmt: skip
    try:
        env.check()
        options = server_options({variable: str(value) for variable, value in given.items() if value is not None})
    except ValueError as e:
        click.echo(f"gt server: {e}", err=True)
        sys.exit(ExitCode.USAGE)
    endpoint = f"tcp://{'127.0.0.1' if host == 'localhost' else host}:{port or '*'}"
    try:
        keys = chosen_keys(key, "server")
        folder = Path(key or env.KEY_FILE.get()).parent
        if keys is None and not is_loopback(endpoint):
            _tell_insecure(host, insecure)
        if keys is not None and spawned and not (folder / "worker.key").exists():
            raise KeyFileError(
                f"{folder / 'worker.key'}, the key of spawned workers, is not there: make it with gt keygen -o {folder}"
            )

        if dashboard is not None and port and dashboard.rpartition(":")[2] == str(port):
            raise click.BadParameter(f"{port} is the server's own port: choose another for the page", param_hint="--dashboard")
        web = None if dashboard is None else web_page(dashboard, keys is not None)
        with ExitStack() as started:
            spawn = partial(_start_workers, started, spawned, folder if keys is not None else None)
            serve(endpoint, options, None, 1, keys, spawn, web)
    except KeyFileError as e:
        click.echo(f"gt server: {e}", err=True)
        sys.exit(ExitCode.USAGE)
    except OSError as e:
        if e.filename != env.INSTRUCTION_LOG.get():
            raise
        said = f"{e.strerror}: {e.filename}"
        click.echo(f"gt server: {said.replace(env.INSTRUCTION_LOG.name, '--log-file', 1) if log_file else said}", err=True)
        sys.exit(ExitCode.USAGE)
    except zmq.ZMQError as e:
        if e.errno in (zmq.EADDRNOTAVAIL, errno.ENODEV):
            click.echo(f"gt server: {host} is not an address of this machine: name one that is with --host", err=True)
            sys.exit(ExitCode.USAGE)
        if e.errno != zmq.EADDRINUSE:
            raise
        click.echo(
            f"gt server: port {port} on {host} is in use{port_owner(port)}: choose another with -p, or stop what uses it.", err=True
        )
        sys.exit(ExitCode.USAGE)


def _start_workers(started: ExitStack, count: int, keys: Path | None, endpoint: str) -> None:
    """Start workers that end with ``started``. Another comes in place of one that dies."""
    if count:
        cluster = LocalCluster(endpoint.replace("//0.0.0.0:", "//127.0.0.1:"), keys=keys)
        started.callback(cluster.stop)
        cluster.start_workers(count, env.BACKEND.get())
        cluster.supervise(RESTARTS * count)
        cluster.watch(partial(_tell_end, cluster))


def _tell_end(cluster: LocalCluster, text: str) -> None:
    """Say that a worker has ended, and what comes of it: where nobody looks at the log, the server would only have fewer of them."""
    after = "Another is started in its place." if cluster.restarts_left else "None is started in its place any more."
    click.echo(f"gt server: {text}\n{after}", err=True)


def web_page(where: str, keyed: bool) -> Web:
    """Begin to serve the web page at [HOST:]PORT, and say where. Beyond this host, and where the server has keys (``keyed``), it asks for
    a token, which the address has.
    """
    from gt.runtime.web import Web  # a server without a page needs no HTTP

    host, _, port = where.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"expected [HOST:]PORT, got {where!r}", param_hint="--dashboard")
    local = host in LOOPBACK
    token = env.DASHBOARD_TOKEN.get() or ("" if local and not keyed else secrets.token_urlsafe(24))
    try:
        web = Web(host, int(port), token)
    except OSError as e:
        click.echo(f"gt server: the web page cannot be served at {where}: {e.strerror or e}", err=True)
        sys.exit(ExitCode.USAGE)
    plain = "" if local else " (what travels is not encrypted: whoever sees it sees the token)"
    click.echo(f"gt server: web page at {web.address}{plain}", err=True)
    return web


def _tell_insecure(host: str, insecure: bool) -> None:
    """Say loudly what it means to listen beyond this host without keys; end if that was not asked for."""
    if not insecure:
        click.echo(
            f"gt server: {host} is reachable from other machines, and there is no key file: anyone there could run programs. Make keys "
            "with `gt keygen` and name the server's with --key FILE (or GT_KEY_FILE); or use --host 127.0.0.1; or say --insecure if "
            "whoever reaches the port may use it.", err=True,
        )  # fmt: skip
        sys.exit(ExitCode.USAGE)
    click.echo(
        f"gt server: WARNING: INSECURE: listening on {host} without keys. Whoever reaches this port can run programs here, and nothing "
        "that travels is encrypted.", err=True,
    )  # fmt: skip


def server_options(given: dict[env.Variable[Any], str]) -> Options:
    """Give a server's limits: as given, else by the environment. Errors: ValueError naming the option."""
    for variable, text in given.items():
        try:
            variable.set(variable.parse(text))
        except ValueError as e:
            raise ValueError(f"{LIMITS[variable]} {text}: {e}. {variable.doc}") from None
    return Options(
        window=env.WINDOW.get(), epoch_timeout_s=env.EPOCH_TIMEOUT_S.get(), client_nbytes=env.CLIENT_MEMORY.get(),
        max_priority=env.MAX_PRIORITY.get(), generation=new_generation(), lease_s=env.WORKER_LEASE_S.get(),
    )  # fmt: skip


def new_generation() -> int:
    """Draw what tells this server from the one before it at the same address: never 0, so that workers keep values for the next."""
    return 1 + secrets.randbelow((1 << 31) - 1)


if __name__ == "__main__":
    main()
