"""The policy of sharing: who goes next, how much waits on a worker, and what a plan is taken to cost."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.runtime.fair_queue import FairQueue, Forecast, Limits

LIMITS = Limits()


@dataclass
class Run:
    """What a client asks for. ``predicted``: None if the prediction is right."""

    seconds: float
    workers: tuple[int, ...] = (0,)
    predicted: float | None = None


@dataclass
class Cluster:
    """Workers that do one job after the other, and clients whose runs wait in line. Time jumps to the next end of a job.

    ``served``: device seconds by client; ``told``: when each run of each client was asked for and over.
    """

    queue: FairQueue = field(default_factory=FairQueue)
    now: float = 0.0
    lines: dict[int, deque[Run]] = field(default_factory=dict)
    busy: dict[int, deque[tuple[int, int, float]]] = field(default_factory=dict)  # job, client, seconds by worker
    free_at: dict[int, float] = field(default_factory=dict)
    left: dict[int, set[int]] = field(default_factory=dict)
    served: Counter[int] = field(default_factory=Counter)
    ends: dict[int, list[float]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def join(self, client: int, weight: float = 1.0) -> None:
        self.queue.join(client, weight)
        self.lines[client], self.ends[client] = deque(), []

    def ask(self, client: int, *runs: Run) -> None:
        self.lines[client] += runs
        self.serve(client)
        self.drain()

    def serve(self, client: int) -> None:
        while self.lines[client]:
            run = self.lines[client][0]
            guess = run.seconds if run.predicted is None else run.predicted
            if not self.queue.admits(client, run.workers, guess, self.now):
                return
            job = next(self.numbers)
            self.queue.begin(job, client, run.workers, guess)
            self.order.append(client)
            self.left[job] = set(run.workers)
            for w in run.workers:
                line = self.busy.setdefault(w, deque())
                if not line:
                    self.free_at[w] = self.now + run.seconds
                line.append((job, client, run.seconds))
            self.lines[client].popleft()

    def drain(self) -> None:
        while (turn := self.queue.turn(self.now)) is not None:
            self.serve(turn)

    def step(self) -> bool:
        """Go to the next end of a job."""
        busy = [w for w, line in self.busy.items() if line]
        if not busy:
            return False
        w = min(busy, key=lambda w: self.free_at[w])
        self.now = max(self.now, self.free_at[w])
        job, client, seconds = self.busy[w].popleft()
        self.served[client] += seconds  # type: ignore[assignment]
        assert self.queue.end(job, w, seconds, self.now)
        if self.busy[w]:
            self.free_at[w] = self.now + self.busy[w][0][2]
        self.left[job].discard(w)
        if not self.left[job]:
            self.ends[client].append(self.now)
            self.serve(client)
        self.drain()
        return True

    def until(self, seconds: float) -> None:
        while self.now < seconds and self.step():
            pass


def test_clients_alone_are_sent_as_soon_as_they_ask():
    c = Cluster()
    c.join(1)
    c.ask(1, *[Run(0.001)] * 15)
    assert c.order == [1] * 15


def test_of_a_lone_clients_long_runs_two_are_on_the_worker():
    c = Cluster()
    c.join(1)
    c.ask(1, *[Run(3.0)] * 8)
    assert c.order == [1, 1]
    c.step()
    assert c.order == [1, 1, 1]  # one runs, one waits: the worker is never without


def test_equal_clients_get_equal_shares_whatever_the_length_of_their_runs():
    c = Cluster()
    for client, length in enumerate((0.004, 0.008, 0.015, 0.05)):
        c.join(client)
        c.ask(client, *[Run(length)] * int(20 / length))
    c.until(10.0)
    for client in range(4):
        assert c.served[client] == pytest.approx(2.5, rel=0.05), c.served


def test_weights_are_in_proportion():
    c = Cluster()
    for client, weight in enumerate((1.0, 2.0, 0.5)):
        c.join(client, weight)
        c.ask(client, *[Run(0.002)] * 5000)
    c.until(0.5)  # the first was alone for a moment
    before = Counter(c.served)
    c.until(7.5)
    assert [c.served[i] - before[i] for i in range(3)] == pytest.approx([2.0, 4.0, 1.0], rel=0.03)


def test_wrong_predictions_are_made_up_for_by_what_was_measured():
    c = Cluster()
    c.join(0)
    c.join(1)
    c.ask(0, *[Run(0.010, predicted=0.001)] * 2000)
    c.ask(1, *[Run(0.010, predicted=0.015)] * 2000)
    c.until(10.0)
    assert c.served[0] == pytest.approx(5.0, rel=0.05)


def test_a_client_that_was_idle_has_saved_nothing():
    c = Cluster()
    c.join(0)
    c.join(1)
    c.ask(0, *[Run(0.005)] * 2000)
    c.until(5.0)  # client 1 asks for nothing
    c.ask(1, *[Run(0.005)] * 2000)
    c.until(7.0)
    assert c.served[1] == pytest.approx(1.0, abs=0.05)
    assert c.served[0] == pytest.approx(6.0, abs=0.1)


def test_a_client_that_comes_now_and_then_waits_for_one_grain_at_most():
    c = Cluster()
    c.join(0)
    c.join(1)
    c.ask(0, *[Run(0.007)] * 3000)
    c.until(1.0)
    waits = []
    for _ in range(40):
        at = c.now
        c.ask(1, Run(0.001))
        while not c.ends[1] or c.ends[1][-1] < at:
            c.step()
        waits.append(c.now - at)
        c.until(c.now + 0.013)
    assert max(waits[1:]) <= LIMITS.grain_s + 0.001  # the first meets what the other had when it was alone
    assert waits[0] <= max(LIMITS.ahead_s, 2 * 0.007) + 0.007 + 0.001


def test_a_run_longer_than_a_grain_goes_by_itself():
    c = Cluster()
    c.join(0)
    c.join(1)
    c.ask(1, Run(0.001))
    c.ask(0, *[Run(0.5)] * 4)
    c.step()
    assert len(c.busy[0]) == 1


def test_runs_on_other_workers_are_not_waited_for():
    c = Cluster()
    c.join(0)
    c.join(1)
    c.ask(0, *[Run(0.02, (0,))] * 100)
    c.ask(1, *[Run(0.02, (1,))] * 100)
    c.until(1.0)
    assert c.served[0] == pytest.approx(1.0, rel=0.05) and c.served[1] == pytest.approx(1.0, rel=0.05)


def test_a_run_on_all_workers_is_not_kept_waiting_by_small_ones():
    c = Cluster()
    for client in range(3):
        c.join(client)
    c.ask(0, *[Run(0.015, (0,))] * 400)
    c.ask(1, *[Run(0.0149, (1,))] * 400)
    c.ask(2, *[Run(0.015, (0, 1))] * 100)
    c.until(3.0)
    assert c.served[2] == pytest.approx(2.0, rel=0.15)  # device seconds of both workers: a third of 6


def test_who_leaves_is_forgotten_and_others_go_on():
    c = Cluster()
    c.join(0)
    c.join(1)
    c.ask(0, *[Run(0.03)] * 10)
    c.ask(1, *[Run(0.03)] * 3)
    c.queue.leave(0)
    c.lines[0].clear()
    while c.step():
        pass
    assert len(c.ends[1]) == 3 and c.queue.jobs == {} and c.queue.waiting == {} and list(c.queue.shares) == [1]
    assert all(load.jobs == 0 and load.seconds == 0 for load in c.queue.loads.values())


def test_a_lost_worker_holds_nobody_up():
    q = FairQueue()
    q.join(0)
    q.join(1)
    assert q.admits(0, (0, 1), 1.0, 0.0)
    q.begin("a", 0, (0, 1), 1.0)
    assert not q.admits(1, (1,), 1.0, 0.0)
    q.lose_worker(1)
    assert q.turn(0.0) == 1
    assert q.end("a", 0, 1.0, 1.0) and not q.end("a", 1, 1.0, 1.0) and q.jobs == {}


def test_measured_times_replace_the_estimate_and_scale_those_of_other_plans():
    f = Forecast(0.02)
    assert f.seconds(1, 1e-4) == 0.02
    f.learn(1, 1e-4, 0.5)
    assert f.seconds(1, 1e-4) == 0.5 and f.knows(1) and not f.knows(2)
    assert f.seconds(2, 1e-3) == pytest.approx(5.0)
    assert f.seconds(3, 1e-9) == 0.02  # what was never measured is not trusted to be short
    for _ in range(30):
        f.learn(1, 1e-4, 0.1)
    assert f.seconds(1, 1e-4) == pytest.approx(0.1, rel=0.01)  # the first run warmed up
    f.learn(1, 1e-4, float("nan"))
    f.learn(1, 1e-4, -5.0)
    assert f.seconds(1, 1e-4) == pytest.approx(0.1, rel=0.01)
    f.forget([1])
    assert not f.knows(1)


def test_runs_of_next_to_nothing_do_not_make_others_seem_to_take_minutes():
    f = Forecast(0.02)
    f.learn(1, 2.7e-9, 3e-3)  # a million times its estimate
    assert f.guess(2, 1e-5) == pytest.approx(3e-3)
    f.learn(2, 1e-3, 1.0)
    for plan in range(100):
        f.learn(3 + plan, 2.7e-12, 1e-4)
    assert f.guess(2000, 1e-2) == pytest.approx(10.0, rel=0.01)


runs = st.builds(
    Run,
    seconds=st.floats(1e-4, 0.2),
    workers=st.sampled_from([(0,), (1,), (0, 1)]),
    predicted=st.none() | st.floats(1e-5, 1.0),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(runs, max_size=4), st.integers(0, 3)), max_size=30))
def test_whatever_is_asked_is_done_and_nothing_stays_behind(asked: list[tuple[int, list[Run], int]]):
    c = Cluster()
    for client in range(4):
        c.join(client, 1 + client / 2)
    wanted: Counter[int] = Counter()
    for client, some, steps in asked:
        c.ask(client, *some)
        wanted[client] += len(some)
        for _ in range(steps):
            c.step()
    while c.step():
        pass
    assert {i: len(c.ends[i]) for i in range(4)} == {i: wanted[i] for i in range(4)}
    assert c.queue.jobs == {} and c.queue.waiting == {}
    assert all(load.jobs == 0 and load.seconds == 0 for load in c.queue.loads.values())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.25, 4.0), st.floats(2e-3, 0.05)), min_size=2, max_size=6),
    st.floats(0.5, 2.0),
)
def test_shares_of_those_who_always_wait_differ_by_no_more_than_what_is_queued(clients: list[tuple[float, float]], wrong: float):
    """The bound of start-time fair queueing: a longest run of each, over its weight, and what predictions were wrong by."""
    c = Cluster()
    for i, (weight, _) in enumerate(clients):
        c.join(i, weight)
    for i, (_, length) in enumerate(clients):
        c.ask(i, *[Run(length, predicted=length * wrong)] * int(6 / length))
    start = 1.0  # until here the first met nobody
    c.until(start)
    before = Counter(c.served)
    c.until(start + 5.0)
    got = [(c.served[i] - before[i]) / w for i, (w, _) in enumerate(clients)]
    slack = [4 * (length + LIMITS.grain_s) / w for w, length in clients]
    for i, j in itertools.combinations(range(len(clients)), 2):
        assert abs(got[i] - got[j]) <= slack[i] + slack[j], (got, slack)
