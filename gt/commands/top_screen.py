"""What ``gt top`` shows: rates between two looks at a server, as tables of rich. Pure: no terminal, no sockets, no clock.

Owns: ``View`` (what keys change), ``activity`` and ``screen``. Next: ``top`` (the terminal), ``gt.runtime.status`` (what is shown).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gt.commands.status import duration
from gt.ir.wording import amount
from gt.runtime.op_kinds import KINDS as OP_KINDS
from gt.runtime.status import ClientStatus, ServerStatus, WorkerStatus
from gt.runtime.usage import WorkerUsage

KINDS = {
    "matmul": "blue", "elementwise": "green", "reduction": "cyan", "copy": "bright_black", "other": "white",
    "collective": "red", "load": "magenta", "ship": "yellow",
}  # fmt: skip
BLOCK = "█"
LETTERS = {  # where there are no colours; capitals are no ops
    "matmul": "m", "elementwise": "e", "reduction": "r", "copy": "c", "other": "o", "collective": "X", "load": "L", "ship": "S",
}  # fmt: skip
SORTS = {"i": "id", "b": "busy", "m": "memory", "r": "runs", "u": "queue"}
BAR, SHORT_BAR, SHORTEST_BAR = 24, 12, 6
LOW = 12  # lines of a terminal with less, workers go before what is said above them
LEAST_LINES = 6  # with less below the heading, clients are not shown
LEFT = ("worker", "client", "activity", "device", "tiers", "program", "kind")  # columns that begin at the left
HELP = "keys: q quit; up/down choose, enter look into, esc back; sort by i id, b busy, m memory, r runs, u queue"


@dataclass(frozen=True)
class Activity:
    """One worker between two looks: shares of the time by kind, runs and bytes sent in collectives per second."""

    shares: dict[str, float]
    runs_s: float
    sent_s: float

    @property
    def run(self) -> float:
        """Give the share of all kinds of op: what running programs took."""
        return min(1.0, sum(self.shares[kind] for kind in (*OP_KINDS, "other")))

    @property
    def busy(self) -> float:
        return min(1.0, sum(self.shares.values()))


@dataclass(frozen=True)
class View:
    """What is shown. ``chosen``: the place of a worker in the table; ``inside``: the worker that is looked into, -1 for none."""

    sort: str = "id"
    chosen: int = 0
    inside: int = -1
    over: bool = False

    def key(self, key: str, order: Sequence[int]) -> View:
        """Give the view after a key. ``order``: the workers as they are shown."""
        last = max(0, len(order) - 1)
        chosen = min(self.chosen, last)
        match key:
            case "q" | "\x03":
                return View(self.sort, chosen, self.inside, True)
            case "up" | "k":
                return View(self.sort, max(0, chosen - 1), self.inside)
            case "down" | "j":
                return View(self.sort, min(last, chosen + 1), self.inside)
            case "enter" if order:
                return View(self.sort, chosen, order[chosen])
            case "esc":
                return View(self.sort, chosen, -1)
            case _:
                return View(SORTS.get(key, self.sort), chosen, self.inside)


def activity(before: ServerStatus, now: ServerStatus) -> dict[int, Activity]:
    """Give what workers did between what they said of themselves last before each of two looks at the same server."""
    earlier = {w.id: w for w in before.workers}
    found = {}
    for worker in now.workers:
        same, new = earlier.get(worker.id), worker.usage
        old, later_s = (same.usage, same.usage_s - worker.usage_s) if same else (None, 0.0)
        passed = max(1e-3, now.uptime_s - before.uptime_s + later_s)
        was = seconds_by_kind(old) if old else {}
        spent = {kind: seconds - was.get(kind, 0.0) for kind, seconds in seconds_by_kind(new).items()}
        shares = {kind: min(1.0, max(0.0, seconds) / passed) for kind, seconds in spent.items()}
        runs, sent = new.runs - (old.runs if old else 0), new.sent_nbytes - (old.sent_nbytes if old else 0)
        found[worker.id] = Activity(shares, max(0.0, runs / passed), max(0.0, sent / passed))
    return found


def seconds_by_kind(usage: WorkerUsage) -> dict[str, float]:
    """Give what a worker's time went to since it began: runs by kind of op, "other" what of them is of no known kind, and the rest."""
    kinds = dict.fromkeys(OP_KINDS, 0.0) | usage.kinds_s
    other = max(0.0, usage.run_s - sum(kinds.values()))
    return {**kinds, "other": other, "collective": usage.collective_s, "load": usage.load_s, "ship": usage.ship_s}


def order(now: ServerStatus, active: dict[int, Activity], sort: str) -> list[int]:
    """Give the workers in the order asked for, most first but for ids."""
    keys: dict[str, Any] = {
        "id": lambda w: w.id,
        "busy": lambda w: -active[w.id].busy,
        "memory": lambda w: -memory(w),
        "runs": lambda w: -active[w.id].runs_s,
        "queue": lambda w: -w.queued,
    }
    return [w.id for w in sorted(now.workers, key=lambda w: (keys[sort](w), w.id))]


def memory(worker: WorkerStatus) -> int:
    """Give what a worker takes on its device."""
    usage = worker.usage
    return usage.device_nbytes or usage.process_nbytes


def screen(address: str, before: ServerStatus, now: ServerStatus, view: View, keys: bool = True) -> RenderableType:
    """Give all that is to be seen."""
    active = activity(before, now)
    shown = order(now, active, view.sort)
    by_id = {w.id: w for w in now.workers}
    head = Text.assemble(
        ("gt top ", "bold"), address, f"  up {duration(now.uptime_s)}  epoch {now.epoch}, {now.num_in_flight} in flight  plans: "
        f"{now.plans_ready} ready, {now.plans_made} being made, {now.plans_failed} failed",
    )  # fmt: skip
    clients = _clients(before, now)
    chosen = min(view.chosen, len(shown) - 1) if keys else -1
    workers = _workers([by_id[w] for w in shown], active, chosen, view.sort)
    if not keys:
        return Group(head, Legend(), workers, clients)
    if view.inside in by_id:
        return Inside(Heading(head), *_inside(by_id[view.inside], active[view.inside]), clients)
    return InLines(Heading(head), workers, max(0, chosen), clients)


def bar(shares: dict[str, float], width: int = BAR, coloured: bool = True) -> Text:
    """Give one bar of shares by kind, which have letters where there are no colours; what is left is idle. Each kind's end is rounded, so
    nothing adds up to more than the bar.
    """
    text, total, drawn = Text(), 0.0, 0
    for kind, colour in KINDS.items():
        total = min(1.0, total + shares.get(kind, 0.0))
        cells = round(total * width) - drawn
        text.append((BLOCK if coloured else LETTERS[kind]) * cells, style=colour)
        drawn += cells
    return text.append("·" * (width - drawn), style="dim")


def size(nbytes: float) -> str:
    """Give bytes as 12 B, 3.4 MB or 5.6 GB."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} B"


def has_colours(console: Console) -> bool:
    """Say whether kinds can be told apart by their colours, which a pipe, NO_COLOR and a dumb terminal have none of."""
    return console.color_system is not None and not console.no_color


class Legend:
    """What bars are drawn with."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        coloured = has_colours(console)
        yield Text("  ").join(Text(f"{BLOCK if coloured else LETTERS[kind]} {kind}", style=colour) for kind, colour in KINDS.items())


@dataclass
class Heading:
    """What stands above the table; in a low terminal only its first line."""

    head: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if console.height >= LOW:
            yield from (self.head, Legend())
        else:
            yield Text(self.head.plain, no_wrap=True, overflow="ellipsis")


@dataclass
class InLines:
    """All of it in the lines of the terminal: of the workers the page with the chosen one, of the clients the first, and how many more there
    are. Where there is room for hardly any, of the keys the first line is shown, or none, and then no clients.
    """

    heading: RenderableType
    workers: Fitting
    chosen: int
    clients: Fitting

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.heading
        room = console.height - _lines(self.heading, console, options)
        keys = _keys(console)
        has_keys, has_clients = room > LEAST_LINES, room >= LEAST_LINES
        room -= _lines(keys, console, options) * has_keys
        wanted = 1 + len(self.clients.rows) if has_clients else 0
        for_clients = min(wanted, max(3, room // 3, room - 1 - len(self.workers.rows)))
        yield from self.workers.page(room - for_clients, self.chosen)
        if has_clients:
            yield from self.clients.page(for_clients, 0)
        if has_keys:
            yield keys


@dataclass
class Inside:
    """One worker in the lines of the terminal: what is said of it, and of each table the first lines, of those further up more of them."""

    heading: RenderableType
    said: Text
    kinds: Fitting
    programs: Fitting
    clients: Fitting

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        said, keys, room = self.said.copy(), _keys(console), console.height - _lines(self.heading, console, options)
        if _lines(said, console, options) > room // 3:
            said.no_wrap, said.overflow = True, "ellipsis"
        yield self.heading
        yield said
        room -= _lines(said, console, options)
        has_keys = room > LEAST_LINES
        room -= _lines(keys, console, options) * has_keys
        wanted = [1 + len(table.rows) for table in (self.kinds, self.programs, self.clients)]
        for at, table in enumerate((self.kinds, self.programs, self.clients)):
            below = sum(min(3, lines) for lines in wanted[at + 1 :])
            lines = min(wanted[at], room, max(3, room - below))
            if lines > 1:
                yield from table.page(lines, 0)
                room -= lines
        if has_keys:
            yield keys


def _keys(console: Console) -> Text:
    """Give what the keys do; in a low terminal as one line."""
    return Text(HELP, style="dim", no_wrap=console.height < LOW, overflow="ellipsis")


def _lines(part: RenderableType, console: Console, options: ConsoleOptions) -> int:
    return len(console.render_lines(part, options))


@dataclass
class Fitting:
    """A table that is no wider than the terminal: its bars get shorter, then it does without ``spared`` columns, the first ones first, at
    last without ``needed`` ones.

    Cells are text, or the shares of a bar.
    """

    columns: tuple[str, ...]
    spared: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    rows: list[tuple[tuple[str | dict[str, float], ...], str]] = field(default_factory=list)

    def add(self, *cells: str | dict[str, float], style: str = "") -> None:
        self.rows.append((cells, style))

    def none(self) -> None:
        """Say that there is nothing."""
        self.add("none", *[""] * (len(self.columns) - 1))

    def page(self, lines: int, at: int) -> Iterator[RenderableType]:
        """Give the table in so many lines: if it has more, the page with row ``at``, and how many others there are."""
        if 1 + len(self.rows) <= lines:
            yield self
            return
        count = max(1, lines - 2)
        first = min(at // count * count, len(self.rows) - count)
        yield replace(self, rows=self.rows[first : first + count])
        if lines > 2:
            yield Text(f" … {len(self.rows) - count} more", style="dim")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        count, left_out = len(self.spared), self.spared + self.needed
        forms = [(BAR, 0), *((SHORT_BAR, n) for n in range(count + 1)), *((SHORTEST_BAR, n) for n in range(count, len(left_out) + 1))]
        wide = options.update(max_width=10_000)
        coloured = has_colours(console)
        tables = (self._table(width, left_out[:n], coloured) for width, n in forms)
        for table in tables:
            if console.measure(table, options=wide).maximum <= options.max_width:
                break
        yield table

    def _table(self, width: int, without: tuple[str, ...], coloured: bool) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        kept = [at for at, column in enumerate(self.columns) if column.removesuffix(" v") not in without]
        for at in kept:
            column = self.columns[at]
            table.add_column(column, justify="left" if column.removesuffix(" v") in LEFT else "right", no_wrap=True)
        for cells, style in self.rows:
            shown = [cells[at] for at in kept]
            table.add_row(*(bar(cell, width, coloured) if isinstance(cell, dict) else cell for cell in shown), style=style)
        return table


def _workers(workers: list[WorkerStatus], active: dict[int, Activity], chosen: int, sort: str) -> Fitting:
    names = ("worker", "activity", "busy", "runs/s", "sent/s", "memory", "values", "tiers", "queue", "device")
    mark = {"id": "worker", "runs": "runs/s"}.get(sort, sort)
    columns = tuple(f"{name} v" if name == mark and sort != "id" else name for name in names)
    table = Fitting(columns, ("values", "device", "sent/s", "tiers", "queue"), ("runs/s", "memory", "busy"))
    for at, w in enumerate(workers):
        does = active[w.id]
        where = f"{w.device} {w.host}:{w.pid}" if w.joined else "joining"
        table.add(
            f"{'>' if at == chosen else ' '}{w.id}", does.shares, f"{does.busy:.0%}", f"{does.runs_s:.1f}", size(does.sent_s),
            size(memory(w)), size(w.usage.values_nbytes), _tiers(w.tiers), str(w.queued), where, style="reverse" if at == chosen else "",
        )  # fmt: skip
    if not workers:
        table.none()
    return table


def _tiers(tiers: dict[str, int]) -> str:
    return " ".join(f"{count} {tier}" for tier, count in sorted(tiers.items())) or "-"


def _inside(w: WorkerStatus, does: Activity) -> tuple[Text, Fitting, Fitting]:
    usage = w.usage
    gpu = f", GPU {size(usage.device_nbytes)}" if w.device.startswith("cuda") else ""
    head = Text(
        f"worker {w.id}: {w.device} on {w.host}, pid {w.pid}, {w.backend}; epoch {w.epoch if w.epoch >= 0 else '-'}, {w.queued} queued; "
        f"{amount(usage.values, 'value')} of {size(usage.values_nbytes)} (most: {size(usage.peak_nbytes)}), process {size(usage.process_nbytes)}"
        f"{gpu}; programs: {_tiers(w.tiers)}"
    )
    kinds = Fitting(("kind", "activity", "share", "seconds in all"), ("seconds in all",), ("activity",))
    for kind, seconds in seconds_by_kind(usage).items():
        kinds.add(kind, {kind: does.shares[kind]}, f"{does.shares[kind]:.1%}", f"{seconds:.2f}")
    programs = Fitting(("program", "plan", "runs", "seconds in all", "ms a run"), ("plan", "runs"), ("seconds in all",))
    for p in usage.busiest:
        programs.add(p.name, str(p.plan), str(p.runs), f"{p.seconds:.2f}", f"{1e3 * p.seconds / max(1, p.runs):.3f}")
    return head, kinds, programs


def client_shares(before: ServerStatus, now: ServerStatus) -> dict[int, tuple[float, float]]:
    """Give for each client its share of the workers' time that clients had between two looks, and its runs per second."""
    passed = max(1e-3, now.uptime_s - before.uptime_s)
    earlier = {c.id: c for c in before.clients}

    def since(client: ClientStatus, name: str) -> float:
        old = earlier.get(client.id)
        return max(0.0, float(getattr(client, name)) - (float(getattr(old, name)) if old else 0.0))

    used = {c.id: since(c, "used_s") for c in now.clients}
    total = sum(used.values()) or 1.0
    return {c.id: (used[c.id] / total, since(c, "runs") / passed) for c in now.clients}


def _clients(before: ServerStatus, now: ServerStatus) -> Fitting:
    shares = client_shares(before, now)
    table = Fitting(("client", "share", "runs/s", "priority", "waiting", "values", "memory"), ("values", "priority", "waiting"), ("memory", "runs/s"))
    for c in sorted(now.clients, key=lambda c: (-shares[c.id][0], c.id)):
        share, rate = shares[c.id]
        table.add(str(c.id), f"{share:.0%}", f"{rate:.1f}", f"{c.weight:g}", str(c.waiting), str(c.values), size(c.nbytes))
    if not now.clients:
        table.none()
    return table


__all__ = ["Activity", "View", "activity", "bar", "client_shares", "order", "screen"]
