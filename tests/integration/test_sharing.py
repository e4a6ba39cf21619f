"""Clients on one server: device time is shared, quotas hold, nothing stays behind, and nobody's mistake is another's.

Short forms of ``benchmarks/sharing.py``. Workers sleep for their device time (``slow_worker``), so that times are certain.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from gt.ir import ops  # noqa: F401  the op table
from gt.ir.graph import Graph, Node, Value
from gt.ir.opdef import OPS
from gt.ir.types import TensorType, float32
from gt.runtime import wire
from gt.runtime.env import SHARED_MEMORY
from gt.runtime.errors import ConnectionRefused, Fault, GtError, QuotaExceeded
from gt.runtime.log_lines import fields_of
from gt.runtime.remote import RemoteSession
from gt.runtime.transport import send
from tests.integration.cluster import Desk
from tests.integration.programs import Server, lived, run, server, wait_for

pytestmark = pytest.mark.timeout(120)
GRAIN_S = 0.02
SMALL = TensorType((2, 2), float32)


@dataclass
class Shared:
    """A server with a slow worker, and the log of what the server does."""

    server: Server
    log: Path

    @property
    def address(self) -> str:
        return self.server.address


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """So many runs may be in flight that no client is short of them because its process has no processor for a moment."""
    log = tmp_path_factory.mktemp("slow") / "log"
    with server(0, "gt.server", "--max-priority", "2", "--client-runs", "64", GT_INSTRUCTION_LOG=str(log)) as started:
        started.add_workers(1, "tests.integration.slow_worker")
        started.await_workers(1)
        yield Shared(started, log)


class Runs:
    """A session whose every run takes so many milliseconds on the worker, warmed up."""

    def __init__(self, there: Shared, length_ms: int, priority: float = 1.0) -> None:
        self.session = RemoteSession(there.address, timeout=60, priority=priority)
        self.name = f"client{self.session._welcome.client}"
        self.length_s = length_ms / 1000
        values = [Value(SMALL)]
        nodes = []
        for _ in range(length_ms):
            nodes.append(Node(OPS["add"], (values[0], values[-1]), (Value(SMALL),), ()))
            values.append(nodes[-1].output)
        self.session.define(1, Graph("runs", (values[0],), (), tuple(nodes), (values[-1],)))
        self.session.put(1, SMALL, np.ones(SMALL.shape, np.float32), None)
        self.count = 1
        for _ in range(2):
            self.read()

    def run(self) -> int:
        self.count += 1
        self.session.run(1, [1], [self.count], [], [self.count - 1] if self.count > 2 else [])
        return self.count

    def read(self) -> None:
        """Run once and read."""
        got = self.session.fetch(self.run()).result(60)
        assert got[0, 0] == round(self.length_s * 1000) + 1

    def run_until(self, over: threading.Event) -> None:
        """Run and never read."""
        while not over.is_set():
            self.run()


@contextmanager
def running(there: Shared, *clients: tuple[int, float]) -> Iterator[list[Runs]]:
    """Clients (length of a run in ms, priority) that run without a pause."""
    over = threading.Event()
    sessions = [Runs(there, length, priority) for length, priority in clients]
    with ThreadPoolExecutor(len(sessions)) as pool:
        futures = [pool.submit(s.run_until, over) for s in sessions]
        try:
            yield sessions
        finally:
            over.set()
            for s, future in zip(sessions, futures, strict=True):
                future.result(60)
                s.session.close()


class Ledger:
    """What the server's log says from here on. Seconds of a busy machine say little: what runs went in which order is the server's doing."""

    def __init__(self, there: Shared) -> None:
        self.log, self.begin = there.log, there.log.stat().st_size

    def lines(self) -> list[tuple[str, dict[str, str]]]:
        """Give for each line "event operation" and its fields."""
        with self.log.open() as file:
            file.seek(self.begin)
            words = [line.strip().split(maxsplit=6) for line in file]
        return [(f"{w[2]} {w[4]}", fields_of(w[6] if len(w) > 6 else "")) for w in words]

    def between(self, runs: Runs) -> list[int]:
        """Give for each run that a client reads how many of others were on the worker when it came, or went there before its result did."""
        lines, found, others, epoch, own = self.lines(), [], set[str](), "", set[str]()
        for what, of in lines:
            if what == "recv Done":
                epoch = of["epoch"]
            elif what == "send Progress" and of["to"] == runs.name:
                own.add(epoch)
        count: int | None = None
        for what, of in lines:
            if what == "recv Run" and of["from"] == runs.name and count is None:
                count = len(others)
            elif what == "send Execute" and of["epoch"] not in own:
                others.add(of["epoch"])
                count = None if count is None else count + 1
            elif what == "recv Done":
                others.discard(of["epoch"])
            elif what == "send Ship" and count is not None:
                found.append(count)
                count = None
        return found

    def is_over(self, runs: Runs) -> bool:
        """Whether the server has told of a client's last run: its result is there before, from the worker."""
        return any(what == "send Progress" and of["to"] == runs.name and int(of["runs"]) == runs.count - 1 for what, of in self.lines())

    def got_s(self, sessions: list[Runs], begin: int) -> list[float]:
        """Give the device seconds of each client's runs that are over since line ``begin``; nothing if one had no run waiting for a while."""
        come, over, before = ({s.name: 0 for s in sessions} for _ in range(3))
        for i, (what, of) in enumerate(self.lines()):
            if what == "recv Run" and of["from"] in come:
                come[of["from"]] += 1
            elif what == "send Progress" and of["to"] in over:
                over[of["to"]] = int(of["runs"])
                if i >= begin and come[of["to"]] - over[of["to"]] < 2:
                    return []
            if i < begin:
                before = dict(over)
        return [(over[s.name] - before[s.name]) * s.length_s for s in sessions]


def shares(there: Shared, seconds: float, *clients: tuple[int, float]) -> list[float]:
    """Give each client's part of the device time, of a while in which all had runs waiting: what is promised is for then."""
    ledger, got = Ledger(there), list[float]()
    with running(there, *clients) as sessions:
        time.sleep(0.5)  # the first of them were alone
        until = time.monotonic() + 60
        while not got and time.monotonic() < until:
            begin = len(ledger.lines())
            time.sleep(seconds)
            got = ledger.got_s(sessions, begin)
    assert got, "some client had nothing waiting, again and again"
    return [g / sum(got) for g in got]


def test_eight_equal_clients_get_an_eighth_each(slow: Shared) -> None:
    got = shares(slow, 2.5, *[(4 + i % 4 * 2, 1.0) for i in range(8)])  # runs of 4 to 10 ms
    assert got == pytest.approx([1 / 8] * 8, rel=0.15)


def test_priorities_are_in_proportion(slow: Shared) -> None:
    assert shares(slow, 2.0, (4, 2.0), (4, 1.0), (4, 0.5)) == pytest.approx([4 / 7, 2 / 7, 1 / 7], rel=0.15)


def test_a_priority_over_the_servers_is_told_at_once(slow: Shared) -> None:
    with (
        lived() as seconds,
        pytest.raises(ConnectionRefused, match=r"(?s)priority 3 is not one that this server allows.*up to 2.*--max-priority.*: Do what the reason"),
    ):
        RemoteSession(slow.address, timeout=10, priority=3.0)
    assert seconds() < 3


def test_a_short_job_beside_a_long_one_is_given_half_until_it_is_done(slow: Shared) -> None:
    """So it takes twice its lone time at most. Runs are counted: how long both take depends on who else uses this machine."""
    runs = Runs(slow, 5)
    with running(slow, (15, 1.0)) as (other,):
        runs.read()
        ledger = Ledger(slow)
        for _ in range(150):
            runs.run()
        runs.session.fetch(runs.count).result(60)
    runs.session.close()
    (others,) = ledger.between(runs)
    assert 0 < others * other.length_s <= 150 * runs.length_s + GRAIN_S + 2 * other.length_s


def test_a_job_of_short_steps_beside_a_single_long_plan_ends_within_twice_its_lone_time(slow: Shared) -> None:
    """The plan takes as long as all of the job. It is cut, so what it delays is a grain at a time."""
    runs = Runs(slow, 5)
    with running(slow, (700, 1.0)):
        for _ in range(3):  # it was alone until here, and is not cut then
            runs.read()
        ledger = Ledger(slow)
        for _ in range(120):
            runs.run()
        runs.session.fetch(runs.count).result(60)
        assert wait_for(lambda: ledger.is_over(runs))
        beside = ledger.between(runs)
        for _ in range(20):
            runs.read()
    runs.session.close()
    others, *waits = ledger.between(runs)
    assert beside == [others] and 0 < others * GRAIN_S <= 120 * runs.length_s + 5 * GRAIN_S
    assert len(waits) == 20 and sorted(waits)[10] <= 2, waits  # of 35 grains


def test_a_flood_adds_no_more_than_a_grain_to_anothers_round_trips(slow: Shared) -> None:
    """The rest of one run, and one that went behind it; each takes about half a grain."""
    quiet = Runs(slow, 1)
    with running(slow, (10, 1.0), (12, 1.0)):
        quiet.read()  # they were alone until here
        ledger = Ledger(slow)
        for _ in range(80):
            quiet.read()
            time.sleep(0.005)
    quiet.session.close()
    waits = ledger.between(quiet)
    assert len(waits) == 80 and sorted(waits)[78] <= 2, waits


# -- quotas


def test_over_quota_names_what_where_and_what_to_do_and_nothing_is_lost() -> None:
    with server(1, "gt.server", "--client-memory", "1MiB") as there:
        one, two = (Desk(RemoteSession(there.address, timeout=20)) for _ in range(2))
        array = np.arange(1 << 17, dtype=np.float32)  # 512 KiB
        held, other = one.put(array), two.put(array)
        total = one.run("add", (held, array.shape), (held, array.shape))
        assert np.array_equal(one.get(total), 2 * array)
        for over in (one.run("add", (held, array.shape), (total, array.shape)), one.put(array), one.put(array[:100])):
            with pytest.raises(QuotaExceeded) as caught:
                one.get(over)
            for word in ("1048576 bytes", "may", "delete", "--client-memory", "train.py:12" if over == 3 else "cluster.py:"):
                assert word in str(caught.value), (word, str(caught.value))
        assert np.array_equal(one.get(held), array) and np.array_equal(one.get(total), 2 * array)
        assert np.array_equal(two.get(two.run("add", (other, array.shape), (other, array.shape))), 2 * array)
        one.session.free([total])
        assert np.array_equal(one.get(one.run("add", (held, array.shape), (held, array.shape))), 2 * array)
        for desk in (one, two):
            desk.session.close()


NUMBERS = """
    import gt
    numbers = [gt.tensor(float(i)) for i in range(10)]
    print(gt.ones(3).sum().item())
"""


def test_over_quota_names_the_line_of_numbers_too(tmp_path: Path) -> None:
    """What is given back as it came is copied by a pass: the copy is of the line that made the value."""
    with server(1, "gt.server", "--client-memory", "4KiB") as there:
        done = run(NUMBERS, tmp_path, GT_ADDR=there.address)
    assert done.code == 1 and "QuotaExceeded: what run 'flush0' makes needs" in done.err and f"(at {tmp_path / 'script.py'}:2)" in done.err


# -- mistakes


@pytest.fixture
def desks(slow: Shared) -> Iterator[tuple[Desk, Desk]]:
    made = Desk(RemoteSession(slow.address, timeout=20)), Desk(RemoteSession(slow.address, timeout=20))
    yield made
    for desk in made:
        desk.session.close()


def test_no_mistake_of_one_client_touches_another(desks: tuple[Desk, Desk]) -> None:
    shape = (4, 4)
    good, bad = desks
    mine = bad.put(np.full(shape, 7.0))
    total = good.put(np.zeros(shape))
    one = good.put(np.ones(shape))

    def mistakes(turn: int) -> None:
        session = bad.session
        assert isinstance(session, RemoteSession)
        with session._lock:
            session._up.send_multipart([b"\x02" + os.urandom(40)])
            session._up.send_multipart([wire.encode(wire.Free((1,)))[:-1]])
            send(session._up, wire.Done(turn, 1e9, Fault("run", "made up")))
            send(session._up, wire.Free((0, 2**40)))
        faults = [
            bad.run("cholesky", (bad.put(np.full(shape, -1.0)), shape)),
            bad.run("add", (99_999, shape), (mine, shape)),
            bad.run("matmul", (mine, shape), (bad.put(np.ones(3)), (4, 5))),
        ]
        session.run(123, [mine], [n := next(bad.count)], [], [])
        for fault in (*faults, n, 1 << 40):
            with pytest.raises(GtError):
                bad.get(fault)

    for turn in range(1, 9):
        for _ in range(5):
            total = good.run("add", (total, shape), (one, shape), frees=(total,))
        mistakes(turn)
        assert np.array_equal(good.get(total), np.full(shape, 5.0 * turn))
    session = bad.session
    assert isinstance(session, RemoteSession)
    # A message of another version is answered in that version: no reason to end a session, whenever it looks there.
    assert wait_for(lambda: session.malformed.count == 8) and session.closed is None
    assert np.array_equal(bad.get(mine), np.full(shape, 7.0))


# -- what stays behind


def held(there: Server) -> tuple[int, int, int]:
    """Give bytes, open files and threads of the server, its planner and its workers."""
    found = [psutil.Process(p.pid) for p in (there.process, *there.workers)]
    return (
        sum(p.memory_info().rss for p in found), sum(p.num_fds() for p in found), sum(p.num_threads() for p in found)
    )  # fmt: skip


def visit(there: Server, number: int, flushes: int) -> None:
    """Connect, work and leave. Those that leave without a word are ``benchmarks/sharing.py leaks``'s, as a lease takes its time."""
    desk = Desk(RemoteSession(there.address, timeout=20))
    array = np.full((128, 160), number, np.float32)  # 80 KiB: travels by itself
    a = desk.put(array)
    for _ in range(flushes):
        last = desk.run("add", (a, array.shape), (a, array.shape))
        desk.session.free([last - 1] if last - 1 != a else [])
    assert desk.get(last)[0, 0] == 2 * number
    desk.session.close()


def test_clients_that_leave_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(1) as there, ThreadPoolExecutor(4) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(SHARED_MEMORY, "_read", [False])
            visit(there, 0, 2)  # what sends large frames without a copy is made once
        list(pool.map(lambda n: visit(there, n, 60), range(6)))
        time.sleep(0.5)
        before = held(there)
        list(pool.map(lambda n: visit(there, n, 30), range(20)))
        assert wait_for(lambda: held(there)[1] <= before[1] and held(there)[0] <= 1.05 * before[0], 30), (before, held(there))
        assert wait_for(lambda: held(there)[2] == before[2]), (before, held(there))
