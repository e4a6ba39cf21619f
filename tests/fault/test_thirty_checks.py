"""Of the thirty checks that docs/checks.md lists, those that no other file shows. The page names the test of each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt.runtime.errors import GtError, WorkerLost
from gt.runtime.launch import start_local
from gt.runtime.remote import RemoteSession
from tests.fault.fuzz import Cluster
from tests.integration.cluster import Desk, rows
from tests.state.test_sharing_stories import execs, owner, working

pytestmark = pytest.mark.timeout(120)
SHAPE = (64, 64)
ONES = np.ones(SHAPE, np.float32)


@pytest.fixture
def alone() -> Iterator[Cluster]:
    """A dispatcher and a worker of this process."""
    started = Cluster()
    yield started
    started.close()


def test_check_01_a_step_is_applied_on_all_workers_or_on_none() -> None:
    cluster = start_local(2, backend="numpy")
    try:
        session = RemoteSession(cluster.address)
        desk = Desk(session)
        values = [desk.put(ONES * 0, rows()), desk.put(ONES * 0)]  # one in parts, one whole on both
        ones = [desk.put(ONES, rows()), desk.put(ONES)]
        for step in range(1, 400):
            values = [desk.run("add", (v, SHAPE), (o, SHAPE), frees=(v,)) for v, o in zip(values, ones, strict=True)]
            if step == 200:
                cluster.workers[1].kill()
        with pytest.raises(WorkerLost):
            desk.get(values[0])
        try:
            whole = desk.get(values[1])
        except WorkerLost:
            pass
        else:
            assert whole.min() == whole.max() == 399
        session.close()
    finally:
        cluster.stop()


def test_check_19_memory_that_one_client_asks_for_in_vain_costs_another_nothing(alone: Cluster) -> None:
    n = 1 << 22  # n x n float32 values are 64 TiB
    bad, good = Desk(RemoteSession(alone.dispatcher.endpoint)), Desk(RemoteSession(alone.dispatcher.endpoint))
    mine, one, column, row = good.put(ONES), good.put(ONES), bad.put(np.ones((n, 1))), bad.put(np.ones((1, n)))
    for turn in range(1, 4):
        mine = good.run("add", (mine, SHAPE), (one, SHAPE), frees=(mine,))
        with pytest.raises(GtError, match=r"(?s)(memory|allocate).*train\.py:12") as caught:
            bad.get(bad.run("matmul", (column, (n, 1)), (row, (1, n))))
        assert "64" in str(caught.value) and "TiB" in str(caught.value)
        assert np.array_equal(good.get(mine), ONES * (1 + turn))
        small = bad.put(ONES)
        assert bad.get(bad.run("add", (small, SHAPE), (small, SHAPE))).sum() == 2 * ONES.sum()  # the next small job works
    for desk in (bad, good):
        desk.session.close()


def test_check_20_nan_of_one_client_is_named_there_and_nowhere_else(alone: Cluster) -> None:
    good = Desk(RemoteSession(alone.dispatcher.endpoint))
    mine = good.put(ONES)
    gt.connect(alone.dispatcher.endpoint.removeprefix("tcp://"))
    try:
        w = gt.zeros(3, requires_grad=True)
        (w.sqrt() * 0).sum().backward()  # off by default: NaN is a value as any
        assert w.grad is not None and np.isnan(w.grad.numpy()).all()
        with gt.autograd.detect_anomaly(), pytest.raises(RuntimeError, match=r"sqrt is NaN \(recorded at .*test_thirty_checks.py"):
            (w.sqrt() * 0).sum().backward()
        assert np.array_equal(good.get(good.run("add", (mine, SHAPE), (mine, SHAPE))), ONES * 2)
        assert gt.ones(2).sum().item() == 2
    finally:
        gt.disconnect()
        good.session.close()


def test_check_28_a_hundred_clients_are_all_served_and_alike() -> None:
    """As the dispatcher decides it. The same with a hundred real ones, without the time to compare: ``benchmarks/sharing.py leaks``."""
    s = working(clients=100)
    numbers, served = itertools.count(10), Counter[int]()

    def ask(client: int) -> list[Any]:
        return s.run(1, (1,), (next(numbers),), client=client)

    ready = [e for client in range(100) for e in execs([*ask(client), *ask(client)])]
    while ready and served.total() < 3000:
        epoch = ready.pop(0)
        client = owner(s, epoch)
        served[client] += 1
        s.now += 0.01
        ready += execs([*s.done(0, epoch), *ask(client)])
    assert set(served) == set(range(100)) and max(served.values()) < 2 * min(served.values()), served


def test_the_page_of_the_checks_names_tests_that_are_there() -> None:
    root = Path(__file__).resolve().parents[2]
    lines = [line for line in (root / "docs/checks.md").read_text().splitlines() if line.startswith("| ") and line[2].isdigit()]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [int(c[0]) for c in cells] == list(range(1, 31)) and all(len(c) == 4 for c in cells)
    for number, behaviour, limit, tests in cells:
        names = [name.strip(" `") for name in tests.split(",")]
        assert behaviour and limit and names, number
        for name in names:
            path, _, function = name.partition("::")
            assert f"def {function}(" in (root / "tests" / path).read_text(), f"check {number}: there is no {name}"
