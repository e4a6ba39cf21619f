"""Whose run goes to the workers next: weighted fair queueing over device time, as a pure state machine.

Owns: ``FairQueue`` (who may go), ``Limits`` (how much may be queued on a worker), ``Forecast`` (how long a plan will take). The policy
is start-time fair queueing (Goyal, Vin, Cheng 1996): each client has a virtual time, the device seconds of its runs over its weight;
of those that wait, the one furthest behind goes next. One that comes back from idle begins where the others are, or
``lag_s`` behind if it is. Predicted seconds
count until a run is over, then what it took. Must not know: messages, plans, what a run is. Next: ``epochs``, which asks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

LEAST_S = 1e-5  # what is estimated to take less takes as long as it takes to begin it, which says little of other estimates
MAX_S = 86400.0  # no run takes longer: what a worker says beyond it is not charged


@dataclass(frozen=True)
class Limits:
    """How much device time may wait on a worker.

    While clients compete, waiting at once or asking within ``linger_s`` of each other, the next run is sent when no more than ``queued_s``
    is left of others, or behind a single one if both take no more than ``grain_s`` together: what a worker needs so as not to wait for
    the next. With more, what is first come would be first served. ``ahead_s``: how much one client that is alone may have there, two runs
    at least. What nobody has measured counts as a grain. ``run_s``: what a run takes beside its program. ``alone_s``: what takes longer is
    cut into parts even where its client is alone, for another may come meanwhile. ``lag_s``: how far behind the
    others one may be that comes back from idle: who reads each result waits each time for what another has on the worker, and is to get
    half of the time all the same.
    """

    grain_s: float = 0.02
    queued_s: float = 0.002
    ahead_s: float = 0.02
    linger_s: float = 1.0
    run_s: float = 1e-4
    alone_s: float = 5.0
    lag_s: float = 0.02


@dataclass(slots=True)
class Share:
    """One client's part. ``time``: its virtual time, at the end of what was sent for it; ``used_s``: of workers, as measured."""

    weight: float
    time: float = 0.0
    used_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A run that waits: on which workers, and for how long on each."""

    workers: tuple[int, ...]
    seconds: float


@dataclass(slots=True)
class Job:
    """Something under way. ``waiting``: the workers that are not through with it."""

    client: int
    seconds: float
    waiting: set[int]


@dataclass(slots=True)
class Load:
    """What waits on a worker or runs there."""

    seconds: float = 0.0
    jobs: int = 0


@dataclass(eq=False)
class FairQueue:
    """Clients by id, workers by number, jobs by any name. Time is given, never read."""

    limits: Limits = field(default_factory=Limits)
    shares: dict[int, Share] = field(default_factory=dict)
    waiting: dict[int, Ask] = field(default_factory=dict)
    jobs: dict[Hashable, Job] = field(default_factory=dict)
    loads: dict[int, Load] = field(default_factory=dict)
    clock: float = 0.0  # the virtual time of the one furthest behind when the last job began
    _last: tuple[int, float] = (-1, -math.inf)  # who asked last, and when
    _other: float = -math.inf  # when another than that one did
    _granted: tuple[int, Ask] | None = None  # whose turn it is, and for what

    def __repr__(self) -> str:
        at = ", ".join(f"{c}: {s.time:.3f}{' waits' if c in self.waiting else ''}" for c, s in self.shares.items())
        return f"shares at {self.clock:.3f} {{{at}}}, {len(self.jobs)} under way"

    def join(self, client: int, weight: float = 1.0) -> None:
        """Take in a client. Its runs get device time in proportion to ``weight`` while others wait too."""
        assert weight > 0
        self.shares[client] = Share(weight, self.clock - self.limits.lag_s / weight)

    def leave(self, client: int) -> None:
        """Forget a client. What is under way for it still counts on the workers."""
        self.shares.pop(client, None)
        self.waiting.pop(client, None)

    def withdraw(self, client: int) -> None:
        """Let a client wait no more: its next run is looked at anew."""
        self.waiting.pop(client, None)

    # -- asking

    def admits(self, client: int, workers: tuple[int, ...], seconds: float, now: float) -> bool:
        """Whether a run may go now. If so, the next call is ``begin``; if not, the client waits until ``turn`` names it."""
        share = self.shares[client]
        granted, self._granted = self._granted, None
        if granted is not None and granted[0] == client and granted[1].workers == workers:
            self._touch(client, now)
            return True
        if client not in self.waiting:
            share.time = max(share.time, self.clock - self.limits.lag_s / share.weight)  # nobody saves up what they did not ask for
        self._touch(client, now)
        ask = self.waiting[client] = Ask(workers, seconds)
        if len(self.waiting) > 1:
            goes = client in self._ready(now, client)
        else:
            goes = self._fits(ask, now)
        if goes:
            del self.waiting[client]
        return goes

    def turn(self, now: float) -> int | None:
        """Give the client whose run may go next, None if no waiting run may. It waits no more: if it asks at once, it may go."""
        if not self.waiting:
            return None
        client = next(iter(self._ready(now)), None)
        if client is not None:
            self._granted = client, self.waiting.pop(client)
        return client

    def _ready(self, now: float, until: int | None = None) -> list[int]:
        """Give the clients that may go, those furthest behind first. The workers that one waits for are kept for it: many small runs on
        single workers must not keep a run on all of them from ever going.
        """
        kept: set[int] = set()
        found: list[int] = []
        for client in sorted(self.waiting, key=lambda c: self.shares[c].time):
            ask = self.waiting[client]
            if kept.isdisjoint(ask.workers) and self._fits(ask, now):
                found.append(client)
                if until is None:
                    break
            kept.update(ask.workers)
            if client == until:
                break
        return found

    def _fits(self, ask: Ask, now: float) -> bool:
        limits = self.limits
        if self.contended(now):
            most = max(limits.queued_s, limits.grain_s - ask.seconds)  # of one run, for a second to wait behind it
            return all([load.seconds <= (most if load.jobs < 2 else limits.queued_s) for load in map(self._load, ask.workers)])
        return all([load.jobs < 2 or load.seconds + ask.seconds <= limits.ahead_s for load in map(self._load, ask.workers)])

    def contended(self, now: float) -> bool:
        """Whether more than one client waits, or has asked lately."""
        return len(self.waiting) > 1 or now - self._other < self.limits.linger_s

    def _touch(self, client: int, now: float) -> None:
        if client != self._last[0]:
            self._other = self._last[1]
        self._last = client, now

    def _load(self, worker: int) -> Load:
        load = self.loads.get(worker)
        if load is None:
            load = self.loads[worker] = Load()
        return load

    # -- what is under way

    def begin(self, job: Hashable, client: int, workers: tuple[int, ...], seconds: float) -> None:
        """Hear that a run was sent."""
        seconds += self.limits.run_s
        share = self.shares[client]
        self.clock = max(self.clock, min([share.time, *[self.shares[c].time for c in self.waiting]]) if self.waiting else share.time)
        share.time += seconds * len(workers) / share.weight
        self.jobs[job] = Job(client, seconds, set(workers))
        for worker in workers:
            load = self._load(worker)
            load.seconds, load.jobs = load.seconds + seconds, load.jobs + 1

    def end(self, job: Hashable, worker: int, seconds: float, now: float) -> bool:
        """Hear that a worker is through with a job and what it took; its client is charged that. False if it is no news."""
        found = self.jobs.get(job)
        if found is None or worker not in found.waiting:
            return False
        self._left(job, found, worker)
        share = self.shares.get(found.client)
        if share is not None:
            if 0 <= seconds <= MAX_S:
                share.time += (seconds + self.limits.run_s - found.seconds) / share.weight
                share.used_s += seconds
            if found.client == self._last[0]:
                self._last = found.client, now
            else:
                self._other = now
        return True

    def _left(self, job: Hashable, found: Job, worker: int) -> None:
        found.waiting.discard(worker)
        if not found.waiting:
            del self.jobs[job]
        load = self._load(worker)
        load.jobs -= 1
        load.seconds = load.seconds - found.seconds if load.jobs else 0.0

    def lose_worker(self, worker: int) -> None:
        """Wait for a worker no more."""
        for job, found in list(self.jobs.items()):
            if worker in found.waiting:
                self._left(job, found, worker)
        self.loads.pop(worker, None)


@dataclass(slots=True, eq=False)
class Forecast:
    """How long plans take: an average of what was measured; before that the planner's estimate, times what estimates lacked so far.

    The planner reckons with one kind of machine, so on another all its estimates are wrong by a like factor. What was never measured
    counts at least ``unknown_s``: nothing is sent behind it on trust. ``weight``: of the runs behind ``factor``.
    """

    unknown_s: float
    measured: dict[int, tuple[int, float]] = field(default_factory=dict)
    factor: float | None = None
    weight: float = 0.0

    def seconds(self, plan: int, estimate_s: float) -> float:
        """Give the seconds that a run of a plan will take on each of its workers."""
        found = self.measured.get(plan)
        if found is not None:
            return found[1]
        return self.unknown_s if self.factor is None else max(self.unknown_s, estimate_s * self.factor)

    def knows(self, plan: int) -> bool:
        """Whether a run of the plan has been measured."""
        return plan in self.measured

    def total(self, plans: Iterable[int]) -> float:
        """Give the measured seconds of plans that run one after the other."""
        return sum(self.measured.get(plan, (0, 0.0))[1] for plan in plans)

    def learn(self, plan: int, estimate_s: float, seconds: float) -> None:
        """Hear what a run took on a worker. Early runs count less and less, as the first ones warm up."""
        if not 0 <= seconds <= MAX_S:
            return
        count, average = self.measured.get(plan, (0, 0.0))
        self.measured[plan] = count + 1, average + (seconds - average) * max(0.2, 1 / (count + 1))
        if estimate_s > 0 and seconds > 0:
            ratio, weight = seconds / max(estimate_s, LEAST_S), min(1.0, estimate_s / LEAST_S)
            self.weight = min(10.0, self.weight + weight)
            by = weight / self.weight  # in a mean of logarithms
            self.factor = ratio if self.factor is None else self.factor * (ratio / self.factor) ** by

    def guess(self, plan: int, estimate_s: float) -> float:
        """As ``seconds``, but what was never measured does not count as long for that."""
        found = self.measured.get(plan)
        return found[1] if found is not None else estimate_s * (self.factor or 1.0)

    def forget(self, plans: Iterable[int]) -> None:
        """Let go of plans that are no more."""
        for plan in plans:
            self.measured.pop(plan, None)


__all__ = ["FairQueue", "Forecast", "Limits"]
