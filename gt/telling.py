"""``gt.stats``: what this process has flushed and why, which lines made new graphs, and what the workers did. And ``GT_DUMP``.

Owns: ``Stats``, ``stats``, ``report``. All of it is read from bounded records that flushing keeps anyway. Must not know: how graphs run.
Next: ``flush`` (the counters), ``graph_history`` (why graphs are new), ``debug`` (what prints it), ``gt.runtime.status``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gt import flush
from gt import session as sessions
from gt.explaining import SHOWN, runs_text, sent_text
from gt.graph_history import Recompiled, graphs
from gt.ir.blame import warn_user
from gt.ir.graph import Graph
from gt.ir.text import print_graph
from gt.ir.types import Scalar
from gt.ir.wording import amount
from gt.runtime.env import DUMP
from gt.runtime.errors import GtError
from gt.runtime.session_wrapper import SessionWrapper
from gt.source import location

if TYPE_CHECKING:
    import numpy as np

    from gt.runtime.buffer_reasons import BufferReasons
    from gt.runtime.session import Session
    from gt.runtime.status import ServerStatus
    from gt.runtime.usage import ProgramState

MAX_ASKED = 256  # graphs of a script that are explained
MAX_LINES = 30  # of each kind in the text


@dataclass(frozen=True)
class FlushLine:
    """A line of the user's that flushed, why, and how often among the latest flushes."""

    where: str
    reason: str
    count: int


@dataclass(frozen=True)
class Stats:
    """``flushes``: runs of graphs that this process asked for; ``graphs``: of these, how many were new and had to be planned.
    ``reasons``: how often for what. ``lines``: of the latest flushes, most first. ``recompiled``: why graphs were new, the latest.
    ``server``: workers, clients, plans and what their time goes to, None without a session, and where it does not answer: ``missing`` says
    why. ``str`` and ``repr`` give it as lines.
    """

    flushes: int
    graphs: int
    reasons: dict[str, int]
    lines: tuple[FlushLine, ...]
    recompiled: tuple[Recompiled, ...]
    server: ServerStatus | None
    missing: str = ""

    def __str__(self) -> str:
        out = [f"{amount(self.flushes, 'flush')}, {amount(self.graphs, 'new graph')}"]
        out += [f"  {count} x {reason}" for reason, count in sorted(self.reasons.items(), key=lambda item: -item[1])]
        known = sum(line.count for line in self.lines)
        if self.lines:
            replays = self.reasons.get("gt.jit", 0)
            aside = f", {amount(replays, 'replay')} aside" if replays else ""
            whole = known + replays == self.flushes
            out.append(f"flushed at{aside}:" if whole else f"flushed at{aside}, the latest {known} of which that is kept:")
            out += limited([f"  {line.where}: {line.count} x {line.reason}" for line in self.lines])
        if self.recompiled:
            out += ["new graphs from known lines:", *limited([f"  {text}" for text in recompiled_text(self.recompiled)])]
        if self.server is not None:
            out += workers_text(self.server)
        if self.missing:
            out.append(f"of the workers nothing is known: {self.missing}")
        return "\n".join(out)

    __repr__ = __str__


def stats() -> Stats:
    """Say what this process has flushed and why, and what the workers did.

    Runs nothing and reads no value; asks the server, if there is one. Cost: milliseconds; seconds where it does not answer.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for _, reason, code, lasti in tuple(flush.recent):
        counts[str(location(code, lasti)), reason] += 1
    lines = tuple(FlushLine(where, reason, count) for (where, reason), count in counts.most_common())
    recompiled = tuple(told.recompiled for told in graphs() if told.recompiled is not None)
    counted = flush.counters
    return Stats(counted.flushes, counted.graphs, dict(counted.reasons), lines, recompiled, *_asked())


def _asked() -> tuple[ServerStatus | None, str]:
    """Give what the server says, and why it does not."""
    session = sessions.running()
    if session is None:
        return None, ""
    if session.closed is not None:
        return None, session.closed.message
    ask = getattr(session, "status", None)
    try:
        return (None if ask is None else ask()), ""
    except GtError as e:
        return None, str(e)


def recompiled_text(found: Sequence[Recompiled]) -> list[str]:
    """Give why graphs were new, a line for all that differ in the same thing from the same line: the latest, and how many. Most first."""
    alike: dict[tuple[str, str, str], list[Recompiled]] = {}
    for one in found:
        alike.setdefault((one.site, one.field, one.where), []).append(one)
    ordered = sorted(alike.values(), key=lambda ones: -len(ones))
    return [f"{ones[-1]}" + (f" ({len(ones)} such graphs, this is the latest)" if len(ones) > 1 else "") for ones in ordered]


def limited(lines: list[str]) -> list[str]:
    """Give the first ``MAX_LINES``, and how many more there are."""
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], f"  and {len(lines) - MAX_LINES} more"]


def workers_text(server: ServerStatus) -> list[str]:
    """Give what workers did, a line each, and the programs that took longest."""
    out, whose = [], ", for all its clients" if shared(server) else ""
    for worker in server.workers:
        use = worker.usage
        tiers = ", ".join(f"{count} {tier}" for tier, count in sorted(worker.tiers.items())) or "none"
        out.append(
            f"worker {worker.id} ({worker.device}, {worker.backend}){whose}: {amount(use.runs, 'run')} {use.run_s:.3f} s, collectives {use.collective_s:.3f} s, "
            f"loading {use.load_s:.3f} s, sending values {use.ship_s:.3f} s; {amount(use.values, 'value')} of {use.values_nbytes:,} B; programs: {tiers}"
        )
        out += [f"  {plan.name}: {amount(plan.runs, 'run')}, {plan.seconds:.3f} s" for plan in use.busiest]
    return out


def shared(server: ServerStatus) -> bool:
    """Say whether a server has had other clients."""
    return len(server.clients) > 1 or any(client.id for client in server.clients)


def report(told: ToldSession | None) -> str:
    """Give what ``gt explain`` shows of a script: ``stats``, and of each graph what it sends, notes, and how it runs."""
    from gt.runtime import buffer_reasons  # loads the runtime
    from gt.runtime.transport import BEAT_S

    found = stats()
    if found.server is not None and any(worker.pid != os.getpid() for worker in found.server.workers):
        time.sleep(2 * BEAT_S)  # they tell of themselves with every sign of life: what they did last is to be in it
        found = stats()
    out = [str(found)]
    asked = told.reasons() if told is not None else []
    own = {plan for one in asked for plan in one.plans} if found.server is not None and shared(found.server) else None
    states: dict[str, dict[ProgramState, set[int]]] = {}
    for worker in found.server.workers if found.server is not None else ():
        for state in worker.programs:
            if own is None or state.plan in own:
                states.setdefault(state.name, {}).setdefault(msgspec.structs.replace(state, plan=0), set()).add(worker.id)
    kinds = {(w.device.partition(":")[0], w.backend) for w in found.server.workers} if found.server is not None else set()
    alike: dict[str, list[str]] = {}
    for name, found_states in states.items():
        for state, workers in found_states.items():
            device, backend = next(iter(kinds)) if len(kinds) == 1 else ("", "")
            as_run = buffer_reasons.RunsAs(
                tuple(sorted(workers)), device, backend, state.tier, state.pieces, state.compiled, state.notes, state.uncompiled
            )
            alike.setdefault(runs_text(as_run), []).append(name)
    out += [f"{', '.join(names)} {text if len(names) == 1 else text.replace('runs', 'run', 1)}" for text, names in alike.items()]
    known = found.server.workers if found.server is not None else ()
    shown = {state.plan for worker in known for state in worker.programs}
    left_out = max((sum(worker.tiers.values()) - len(worker.programs) for worker in known), default=0)
    left_out = left_out if own is None else sum(shown.isdisjoint(one.plans) for one in asked)
    out += [f"and {left_out} more, of which there is nothing to note"] if left_out > 0 else []
    out += of_graphs((one.graph, f"one worker sends at most {sent_text(sent)}") for one in asked for sent in one.sent)
    out += of_graphs((one.graph, note) for one in asked for note in one.notes)
    held = [known for known in graphs() if known.kept]
    out += of_graphs((one.name, f"{amount(one.num_donated, 'input')} donated, still held: {', '.join(one.kept[:SHOWN])}") for one in held)
    return "\n".join(out)


def of_graphs(said: Iterable[tuple[str, str]]) -> list[str]:
    """Give a line for all graphs of which the same is said."""
    graphs_of: dict[str, list[str]] = {}
    for name, text in said:
        graphs_of.setdefault(text, []).append(name)
    lines = []
    for text, names in graphs_of.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"{', '.join(names[:SHOWN])}{more}: {text}")
    return limited(lines)


class ToldSession(SessionWrapper):
    """Asks a session of each graph's first run, why what it makes is where it is."""

    def __init__(self, inner: Session) -> None:
        super().__init__(inner)
        self._asked: dict[int, Future[BufferReasons]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # what this kind of session has beside the interface

    def run(
        self, key: int, inputs: Sequence[int], outputs: Sequence[int], scalars: Sequence[Scalar], frees: Sequence[int],
        replaces: Sequence[int] = (), reads: int = -1,
    ) -> Future[np.ndarray] | None:  # fmt: skip
        future = self.inner.run(key, inputs, outputs, scalars, frees, replaces, reads)
        if key not in self._asked and outputs and len(self._asked) < MAX_ASKED:
            with suppress(GtError):  # the run itself is what tells of it
                self._asked[key] = self.inner.explain(outputs[0])
        return future

    def reasons(self) -> list[BufferReasons]:
        """Give the answers that there are. What failed has none."""
        found = [future for future in self._asked.values() if future.done() and future.exception() is None]
        return [future.result() for future in found]


@contextmanager
def told_sessions() -> Iterator[list[ToldSession]]:
    """Ask all sessions that are begun meanwhile; the list has them."""
    made: list[ToldSession] = []

    def wrap(session: Session) -> Session:
        made.append(ToldSession(session))
        return made[-1]

    sessions.wrappers.append(wrap)
    try:
        yield made
    finally:
        sessions.wrappers.remove(wrap)


def dumped(number: int, graph: Graph) -> None:
    """Write a new graph to the folder that GT_DUMP names, as PID-NAME.gtir. Once that fails, a warning says so and the script goes on.

    Errors: OSError for a folder that cannot be made for the first graph.
    """
    folder = DUMP.get()
    if not folder:
        return
    path = Path(folder) / f"{os.getpid()}-{graph.name}.gtir"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, print_graph(graph, locations=True) + "\n")
    except OSError as e:
        if number == 0 and not path.parent.is_dir():
            raise OSError(e.errno, f"{DUMP.name}: the folder cannot be made: {e.strerror}", e.filename) from None
        DUMP.set("")
        warn_user(f"{DUMP.name}: no more graphs are written: {e.strerror}: {path}")


def _write(path: Path, text: str) -> None:
    """Write a file, or none of it."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


sessions.on_define.append(dumped)

__all__ = ["FlushLine", "Stats", "report", "stats", "told_sessions", "workers_text"]
