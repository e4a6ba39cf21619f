"""Messages that the network loses, repeats or holds up, and connections that end or fall silent, each at a moment by name.

What comes twice is applied once; what comes late is only late; what does not come ends in the right value or in a typed error, in time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from gt.ir.types import float32
from gt.runtime.errors import DispatcherLost, GtError, WorkerLost
from gt.runtime.launch import start_local
from gt.runtime.remote import RemoteSession
from tests.fault.proxy import Fault, Proxied, proxied
from tests.integration.cluster import Desk, rows
from tests.integration.programs import wait_for

pytestmark = pytest.mark.timeout(120)
WITHIN_S = 5.0
N = 200  # 160 KB: large enough to travel by itself
ONES = np.ones((N, N), np.float32)


@contextmanager
def behind_a_proxy(workers: int = 2) -> Iterator[Proxied]:
    with proxied():
        cluster = start_local(workers, backend="numpy")
    assert isinstance(cluster, Proxied)
    cluster.supervise(100)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Proxied]:
    with behind_a_proxy() as started:
        yield started


@contextmanager
def joined(cluster: Proxied) -> Iterator[Desk]:
    """A session, once all workers are there."""
    session = RemoteSession(cluster.address, timeout=20)
    try:
        assert wait_for(lambda: session.num_workers() == 2, 30)
        yield Desk(session)
    finally:
        session.close()


def use(desk: Desk, turns: int = 1) -> None:
    """Send every kind of message that a step causes: uploads of both sizes, runs that meet in a collective, reads; check each value."""
    for _ in range(turns):
        x, w, small = desk.put(ONES, rows()), desk.put(ONES / N), desk.put(np.full((2, 2), 3.0))
        y = desk.run("matmul", (x, (N, N)), (w, (N, N)))
        total = desk.run("sum", (y, (N, N)), attrs=(("dims", (0,)), ("keepdim", False), ("dtype", float32)), frees=(x,))
        counted = desk.run("add", (small, (2, 2)), (small, (2, 2)), frees=(small,))
        assert np.allclose(desk.get(y), ONES) and np.allclose(desk.get(total), N) and np.array_equal(desk.get(counted), np.full((2, 2), 6))
        desk.session.free((w, y, total, counted))


@pytest.mark.parametrize("kind", ["duplicate", "delay"])
def test_all_messages_twice_or_late_change_nothing(cluster: Proxied, kind: str) -> None:
    fault = Fault(kind, count=1 << 30, seconds=0.02 if kind == "delay" else 0.0)
    with joined(cluster) as desk:
        cluster.proxy.inject(fault)
        use(desk, 3)
        cluster.proxy.faults.clear()
        assert desk.session.closed is None and desk.session.num_workers() == 2
    print(set(fault.done))


@pytest.mark.parametrize("message", ["Define", "Run", "Put", "Fetch", "Free", "Upload", "Part", "Placed", "Progress", "Settled", "Expect", "Uploaded", "Load", "Execute", "Store", "Ship", "Done", "MakeGroup", "StoreOp", "StoreReply", "Share", "Beat", "Ping"])
def test_a_lost_message_is_missed(cluster: Proxied, message: str) -> None:
    fault = Fault("drop", message)
    t=time.monotonic()
    with joined(cluster) as desk:
        cluster.proxy.inject(fault)
        began = time.monotonic()
        try:
            use(desk, 1)
            deadline=time.monotonic()+4
            while not fault.done and time.monotonic()<deadline: use(desk)
            outcome = "right"
        except GtError as e:
            outcome = f"{type(e).__name__}: {e}"
        print(message, fault.done, f"{began-t:.2f} {time.monotonic() - began:.2f} s", outcome)
        cluster.proxy.faults.clear()
