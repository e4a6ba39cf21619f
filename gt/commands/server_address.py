"""Which server a command is about: named, in GT_ADDR, or the only one that runs here.

Owns: the options, and finding servers among this user's processes. Next: ``gt.commands.top``, ``gt.commands.trace``, ``gt.commands.status``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import click


class Found(NamedTuple):
    """A server of this user on this machine."""

    pid: int
    address: str


def address_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ADDRESS, --host and --port to a command."""
    for add in (
        click.option("-p", "--port", type=click.IntRange(1, 65535), help="The server's port."),
        click.option("-H", "--host", help="The server's host. [default: 127.0.0.1, with --port]"),
        click.argument("address", required=False),
    ):
        command = add(command)
    return command


def chosen_address(name: str, address: str | None, host: str | None, port: int | None) -> str:
    """Give the server's address. Errors: UsageError where it is not clear which is meant."""
    from gt.runtime import env

    if address and (host or port):
        raise click.UsageError("give ADDRESS or --host and --port, not both")
    if host and not port:
        raise click.UsageError("--host needs --port")
    if port:
        return f"{host or '127.0.0.1'}:{port}"
    try:
        address = address or env.ADDRESS.get()
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    if address:
        return address
    servers = servers_here()
    if not servers:
        raise click.UsageError(
            f"no gt server of yours runs on this machine: {name} HOST:PORT, or set GT_ADDR. A script without gpu_workers or gt run "
            "computes in its own process, and has none: there, set GT_INSTRUCTION_LOG"
        )
    if len(servers) > 1:
        shown = "".join(f"\n  {server.address}  (pid {server.pid})" for server in servers)
        raise click.UsageError(f"{len(servers)} gt servers of yours run on this machine, say which: {name} ADDRESS{shown}")
    return servers[0].address


def servers_here() -> list[Found]:
    """Give the servers among this user's processes, by what they were started with and where they listen."""
    import psutil

    found = []
    for process in psutil.process_iter(["pid", "uids", "cmdline"]):
        words, uids = process.info["cmdline"] or [], process.info["uids"]
        if uids is None or uids.real != os.getuid() or not is_server(words):
            continue
        with suppress(psutil.Error):
            found += [Found(process.pid, address) for address in _addresses(process, words)]
    return sorted(found)


def is_server(words: list[str]) -> bool:
    """Say whether a command line is a dispatcher's."""
    modules = [after for word, after in zip(words, words[1:], strict=False) if word == "-m"]
    if "gt.runtime.dispatcher" in modules or "gt.server" in modules:
        return True
    names = [os.path.basename(word) for word in words[:2]]
    script = names[:1] == ["gt"] or (names[1:] == ["gt"] and names[0].startswith("python"))
    if "gt-server" in names:
        return True
    at = names.index("gt") if script else words.index("gt", words.index("-m")) if "gt" in modules else len(words)
    return words[at + 1 : at + 2] == ["server"]


def _addresses(process: Any, words: list[str]) -> list[str]:
    """Give where a dispatcher listens: its ipc path, or its TCP ports."""
    import psutil

    bind = next((after for word, after in zip(words, words[1:], strict=False) if word == "--bind"), "")
    if bind.startswith("ipc://"):
        return [bind]
    listening = [c.laddr for c in process.net_connections(kind="tcp") if c.status == psutil.CONN_LISTEN]
    return sorted(
        f"{'127.0.0.1' if at.ip in ('0.0.0.0', '::') else at.ip}:{at.port}"
        for at in listening if is_servers_port(at.port, words)
    )  # fmt: skip


def is_servers_port(port: int, words: list[str]) -> bool:
    """Say whether a port where a dispatcher listens is where it is talked to, and not its web page's, by its command line."""
    own, page = _port_after(("-p", "--port"), words), _port_after(("--dashboard",), words)
    return port == own if own else port != page


def _port_after(names: tuple[str, ...], words: list[str]) -> int:
    """Give the port that the last such option names, 0 if none does: --port 9000, --port=9000, -p9000, --dashboard HOST:9000."""
    found = ""
    for at, word in enumerate(words):
        for name in names:
            if word == name:
                found = words[at + 1] if at + 1 < len(words) else ""
            elif word.startswith(f"{name}=" if name.startswith("--") else name):
                found = word[len(name) :]
    port = found.lstrip("=").rpartition(":")[2]
    return int(port) if port.isdigit() else 0


__all__ = ["Found", "address_options", "chosen_address", "is_server", "is_servers_port", "servers_here"]
