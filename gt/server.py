"""``python -m gt.server -p PORT``: the server that clients and workers connect to.

Next: ``gt.runtime.dispatcher``.
"""

from __future__ import annotations

import sys

import click
import zmq

from gt.runtime import env
from gt.runtime.dispatcher import serve
from gt.runtime.dispatcher_state import Options
from gt.runtime.exit_codes import ExitCode
from gt.runtime.port_owner import port_owner
from gt.runtime.transport import is_loopback


@click.command()
@click.option("-p", "--port", type=click.IntRange(0, 65535), required=True, help="Port to listen on.")
@click.option("-H", "--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--trust-network", is_flag=True, help="Listen beyond this host without keys: whoever reaches the port may use it."
)
def main(port: int, host: str, trust_network: bool) -> None:
    """Run a gt server. Start workers with `python -m gt.worker --host HOST -p PORT`."""
    endpoint = f"tcp://{'127.0.0.1' if host == 'localhost' else host}:{port or '*'}"
    if not is_loopback(endpoint) and not trust_network:
        click.echo(
            f"gt server: {host} is reachable from other machines and this version has no keys: anyone there could run "
            "programs. Use --host 127.0.0.1, or --trust-network if the network is private.", err=True,
        )  # fmt: skip
        sys.exit(ExitCode.USAGE)
    try:
        serve(endpoint, Options(env.WINDOW.get(), epoch_timeout_s=env.EPOCH_TIMEOUT_S.get()), None, 1)
    except zmq.ZMQError as e:
        if e.errno != zmq.EADDRINUSE:
            raise
        click.echo(
            f"gt server: port {port} on {host} is in use{port_owner(port)}: choose another with -p, or stop what uses it.", err=True
        )
        sys.exit(ExitCode.USAGE)


if __name__ == "__main__":
    main()
