"""``python -m gt.worker --host HOST -p PORT``: one worker of a server. CUDA_VISIBLE_DEVICES picks its GPU.

Next: ``gt.runtime.worker``.
"""

from __future__ import annotations

import sys

import click

from gt.runtime import env
from gt.runtime.errors import ConnectionFailed, DispatcherLost
from gt.runtime.exit_codes import ExitCode
from gt.runtime.launch import visible_gpus
from gt.runtime.transport import endpoint_of
from gt.runtime.worker import work


@click.command()
@click.option("--host", default="localhost", show_default=True, help="Host of the server.")
@click.option("-p", "--port", type=click.IntRange(1, 65535), required=True, help="Port of the server.")
@click.option("--device", default=None, help="cpu, cuda or cuda:N. Default: cuda:0 if there is a GPU.")
@click.option("--backend", type=click.Choice(["torch", "numpy"]), default=None, help="Default: GT_BACKEND, else torch.")
def main(host: str, port: int, device: str | None, backend: str | None) -> None:
    """Run a gt worker until the server stops."""
    backend = backend or env.BACKEND.get()
    if device is None:
        device = "cuda:0" if backend == "torch" and visible_gpus() else "cpu"
    try:
        work(endpoint_of(f"{host}:{port}"), backend, device)
    except (ConnectionFailed, DispatcherLost, ValueError) as e:
        click.echo(f"gt worker: {e}", err=True)
        sys.exit(ExitCode.SERVER_LOST)


if __name__ == "__main__":
    main()
