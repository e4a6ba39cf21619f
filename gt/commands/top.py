"""``gt top``: a server's workers and clients, live in the terminal.

Owns: the terminal: keys, how often it looks. Next: ``top_screen`` (what is shown), ``gt.runtime.status_request`` (where it is from).
"""

from __future__ import annotations

import codecs
import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from io import TextIOWrapper
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from gt.commands.float_range import FloatRange
from gt.commands.server_address import address_options, chosen_address

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from gt.runtime.status import ServerStatus
    from gt.runtime.status_request import StatusLink

ESCAPES = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down", b"\x1b": "esc", b"\r": "enter", b"\n": "enter"}
Modes: TypeAlias = list[Any]  # of a terminal, as termios has them
PLAIN = {"█": "#", "·": ".", "…": "~"}  # for encodings that have not all of these
LEAST_S = 1.0  # between the two looks that are compared: workers tell of themselves twice a second


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@address_options
@click.option("--interval", default=1.0, show_default=True, type=FloatRange(0.2, 60), help="Seconds between two looks.")
@click.option("--once", is_flag=True, help="Print one screen and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and end.")
@click.option("--ema-alpha", type=float, hidden=True)
def top(
    address: str | None, host: str | None, port: int | None, interval: float, once: bool, as_json: bool, ema_alpha: float | None
) -> None:  # fmt: skip
    """Show live what workers and clients do at ADDRESS. [default: the server that runs here]

    Keys: up and down choose a worker, enter looks into it, esc goes back; i, b, m, r, u sort by id, busy, memory, runs, queue; q ends.
    Ends with code 3 if no server answers.
    """
    from gt.runtime.errors import ConnectionFailed
    from gt.runtime.exit_codes import ExitCode
    from gt.runtime.keys import chosen_keys
    from gt.runtime.status_request import StatusLink

    if ema_alpha is not None:
        click.echo("gt top: --ema-alpha has no effect: shares are those of the time between two looks, see --interval.", err=True)
    where = chosen_address("gt top", address, host, port)
    if not (once or as_json) and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("this is no terminal: use --once or --json")
    if not (once or as_json) and _console().is_dumb_terminal:
        raise click.UsageError("this terminal says of itself that no screens can be drawn in it (TERM): use --once or --json")
    try:
        with closing(StatusLink(where, chosen_keys(None, "client", "worker"))) as link:
            if once or as_json:
                before = link.ask()
                time.sleep(LEAST_S)
                _print(where, before, link.ask(), as_json)
            else:
                _watch(where, link, interval)
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    except ConnectionFailed as e:
        click.echo(f"gt top: {e}", err=True)
        sys.exit(ExitCode.SERVER_LOST)


def _console(width: int | None = None) -> Console:
    """Give where to write, in whatever encoding it has."""
    from rich.console import Console

    if isinstance(sys.stdout, TextIOWrapper):
        codecs.register_error("gt-top", _plain)
        sys.stdout.reconfigure(errors="gt-top")
    return Console(file=sys.stdout, width=width)


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _print(address: str, before: ServerStatus, now: ServerStatus, as_json: bool) -> None:
    import msgspec

    from gt.commands.top_screen import View, activity, client_shares, screen

    if not as_json:
        wide = None if sys.stdout.isatty() else 160
        _console(wide).print(screen(address, before, now, View(), keys=False))
        return
    found = msgspec.to_builtins(now)
    does, shares = activity(before, now), client_shares(before, now)
    for worker in found["workers"]:
        active = does[worker["id"]]
        worker["activity"] = {
            **active.shares,
            "run": active.run,
            "busy": active.busy,
            "runs_per_s": active.runs_s,
            "sent_per_s": active.sent_s,
        }
    for client in found["clients"]:
        client["share"], client["runs_per_s"] = shares[client["id"]]
    click.echo(json.dumps({"address": address, **found}, indent=2))


def _watch(address: str, link: StatusLink, interval: float) -> None:
    from rich.live import Live

    from gt.commands.top_screen import View, activity, order, screen

    now = link.ask()
    looks, view, looked = deque([now]), View(), time.monotonic()
    terminal = sys.stdin.fileno()
    with _keys(terminal) as given, Live(console=_console(), screen=True, auto_refresh=False) as live, _signals(terminal, given, live):
        while not view.over:
            live.update(screen(address, looks[0], now, view), refresh=True)
            for key in read_keys(terminal, max(0.0, looked + interval - time.monotonic())):
                view = view.key(key, order(now, activity(looks[0], now), view.sort))
            if time.monotonic() >= looked + interval:
                now, looked = link.ask(), time.monotonic()
                looks.append(now)
                while len(looks) > 2 and now.uptime_s - looks[1].uptime_s >= LEAST_S:
                    looks.popleft()


@contextmanager
def _keys(terminal: int) -> Iterator[Modes]:
    """Have keys come one by one, unseen; put the terminal back as it is now in the end, which Ctrl-C is, too."""
    given = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        with suppress(KeyboardInterrupt):
            yield given
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, given)


@contextmanager
def _signals(terminal: int, given: Modes, live: Live) -> Iterator[None]:
    """Give the terminal back as it was ``given`` where this is stopped, and take it again where it goes on; end in order where it is to end."""
    ours = termios.tcgetattr(terminal)

    def stop(number: int, frame: FrameType | None) -> None:
        live.stop()
        termios.tcsetattr(terminal, termios.TCSADRAIN, given)
        os.kill(os.getpid(), signal.SIGSTOP)
        termios.tcsetattr(terminal, termios.TCSADRAIN, ours)
        live.start(refresh=True)

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, does) for number, does in ((signal.SIGTSTP, stop), (signal.SIGTERM, end))}
    try:
        yield
    finally:
        for number, does in before.items():
            signal.signal(number, does)


def read_keys(terminal: int, timeout_s: float) -> list[str]:
    """Give the keys that come within so long, by name; "q" where the terminal is gone."""
    if not select.select([terminal], [], [], timeout_s)[0]:
        return []
    typed = os.read(terminal, 64)
    if not typed:
        return ["q"]
    found = []
    while typed:
        size = next((n for n in (3, 1) if typed[:n] in ESCAPES), 1)
        found.append(ESCAPES.get(typed[:size], typed[:size].decode(errors="replace")))
        typed = typed[size:]
    return found


__all__ = ["read_keys", "top"]
