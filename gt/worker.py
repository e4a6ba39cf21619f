"""``python -m gt.worker --host HOST -p PORT``: one worker of a server. CUDA_VISIBLE_DEVICES picks its GPU.

Next: ``gt.runtime.worker``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from gt.commands.float_range import FloatRange
from gt.commands.interruptible import Command
from gt.runtime import env
from gt.runtime.errors import ConnectionFailed, DispatcherLost, KeyFileError
from gt.runtime.exit_codes import ExitCode
from gt.runtime.keys import chosen_keys
from gt.runtime.launch import visible_gpus
from gt.runtime.transport import endpoint_of, is_loopback
from gt.runtime.worker import work


@click.command(cls=Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--host", default="localhost", show_default=True, help="Host of the server.")
@click.option("-p", "--port", type=click.IntRange(1, 65535), required=True, help="Port of the server.")
@click.option("--device", default=None, help="cpu, cuda or cuda:N. Default: cuda:0 if there is a GPU.")
@click.option("--key", type=click.Path(path_type=Path), help="This worker's key file, as gt keygen makes it. Default: GT_KEY_FILE.")
@click.option(
    "--insecure", is_flag=True, help="Join a server on another machine without keys: whoever reaches the worker may use it."
)
@click.option(
    "--lease", type=FloatRange(0), help="Seconds to keep values for a server that is lost. Default: GT_WORKER_LEASE, else 60."
)
@click.option("--backend", metavar="[torch|numpy]", default=None, help="Default: GT_BACKEND, else torch.")
@click.option("--id", "name", hidden=True)
def main(
    host: str, port: int, device: str | None, key: Path | None, insecure: bool, lease: float | None, backend: str | None, name: str | None,
) -> None:  # fmt: skip
    """Run a gt worker until the server stops, or is lost and not started again."""
    for text in env.without_effect():
        click.echo(f"gt worker: {text}", err=True)
    if name is not None:
        click.echo("gt worker: --id has no effect: a worker's number is its place among those that have joined.", err=True)
    try:
        backend = env.backend(backend) if backend else env.BACKEND.get()
    except ValueError as e:
        raise click.BadParameter(f"{e}, got {backend!r}", param_hint="--backend") from None
    try:
        env.check()
    except ValueError as e:
        click.echo(f"gt worker: {e}", err=True)
        sys.exit(ExitCode.USAGE)
    try:
        endpoint, keys = endpoint_of(f"{host}:{port}"), chosen_keys(key, "worker")
    except KeyFileError as e:
        click.echo(f"gt worker: {e}", err=True)
        sys.exit(ExitCode.USAGE)
    except ValueError as e:
        click.echo(f"gt worker: {e}", err=True)
        sys.exit(ExitCode.SERVER_LOST)
    if keys is None and not is_loopback(endpoint) and not insecure:
        click.echo(
            f"gt worker: {host} is another machine, so this worker would be reachable from there, and there is no key file: name this "
            "worker's with --key FILE (or GT_KEY_FILE; `gt keygen` makes it), or say --insecure if whoever reaches it may use it.",
            err=True,
        )  # fmt: skip
        sys.exit(ExitCode.USAGE)
    if device is None:
        device = "cuda:0" if backend == "torch" and visible_gpus() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise click.BadParameter(f"expected cpu, cuda or cuda:N, got {device!r}", param_hint="--device")
    try:
        work(endpoint, backend, device, keys=keys, lease_s=env.WORKER_LEASE_S.get() if lease is None else lease)
    except (ConnectionFailed, DispatcherLost, ValueError) as e:
        click.echo(f"gt worker: {e}", err=True)
        sys.exit(ExitCode.SERVER_LOST)
    except OSError as e:
        if e.filename != env.INSTRUCTION_LOG.get():
            raise
        click.echo(f"gt worker: {e.strerror}: {e.filename}", err=True)
        sys.exit(ExitCode.USAGE)


if __name__ == "__main__":
    main()
