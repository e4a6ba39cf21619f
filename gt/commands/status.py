"""``gt status``: who is at a server and what is under way.

Next: ``server_address`` (whom), ``gt.runtime.status_request`` (how it asks), ``gt.runtime.status`` (what it hears).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gt.commands.server_address import address_options, chosen_address
from gt.ir.wording import amount

if TYPE_CHECKING:
    from gt.runtime.status import ServerStatus


@click.command()
@address_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object in place of text.")
def status(address: str | None, host: str | None, port: int | None, as_json: bool) -> None:
    """Show the workers, clients and epochs in flight at ADDRESS, a server's host:port. [default: the server that runs here]

    Ends with code 3 if no server answers within 2 seconds.
    """
    import msgspec

    from gt.runtime.errors import ConnectionFailed
    from gt.runtime.exit_codes import ExitCode
    from gt.runtime.status_request import ask

    where = chosen_address("gt status", address, host, port)
    try:
        found = ask(where)
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    except ConnectionFailed as e:
        click.echo(f"gt status: {e}", err=True)
        sys.exit(ExitCode.SERVER_LOST)
    click.echo(json.dumps(msgspec.to_builtins(found), indent=2) if as_json else text_of(where, found))


def text_of(address: str, found: ServerStatus) -> str:
    """Give a server's status as a person reads it."""
    joined = sum(w.joined for w in found.workers)
    lines = [
        f"server {address}, up {duration(found.uptime_s)}: {amount(joined, 'worker')}, {amount(len(found.clients), 'client')}, epoch {found.epoch}, "
        f"{found.num_in_flight} in flight, plans: {found.plans_ready} ready, {found.plans_made} being made, "
        f"{found.plans_failed} failed; {amount(found.malformed, 'malformed message')} dropped"
    ]
    lines += _table(
        ("worker", "host", "pid", "device", "backend", "heard of"),
        [(w.id, w.host, w.pid, w.device, w.backend, f"{w.silent_s:.1f} s ago" if w.joined else "joining") for w in found.workers],
    )
    lines += _table(
        ("client", "runs", "waiting", "values", "bytes", "heard of"),
        [(c.id, c.runs, c.waiting, c.values, c.nbytes, f"{c.silent_s:.1f} s ago") for c in found.clients],
    )
    lines += _table(
        ("epoch", "client", "waits for workers"),
        [(e.epoch, e.client if e.client >= 0 else "-", " ".join(map(str, e.waiting)) or "-") for e in found.in_flight],
    )
    if found.num_nodes:
        lines += _table(
            (f"node of {found.num_nodes}", "host", "pid", "workers", "state"),
            [(n.node, n.host, n.pid, n.workers, n.failed.partition("\n")[0] or "here") for n in found.nodes],
        )
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    if not rows:
        return []
    cells = [list(head), *([str(c) for c in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return ["", *("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)]


def duration(seconds: float) -> str:
    """Give a time as 3 s, 5 min, 2.5 h or 4.0 d."""
    for size, name in ((86400, "d"), (3600, "h")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


__all__ = ["duration", "status", "text_of"]
