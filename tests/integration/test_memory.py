"""Workers with too little memory: nobody waits for one, values stay, and the error says what is large and where it was made."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from gt.ir import ops  # noqa: F401  the op table
from gt.ir.graph import Graph, Node, Value
from gt.ir.opdef import OPS
from gt.ir.types import TensorType, float32
from gt.runtime.errors import OutOfMemoryError
from gt.runtime.remote import RemoteSession
from tests.integration.cluster import LINE, Desk, rows
from tests.integration.poor_worker import N
from tests.integration.programs import Server, server

pytestmark = pytest.mark.timeout(120)
WIDE = (N // 2, 4)  # split by rows over two workers, each has N elements


@pytest.fixture
def uneven() -> Iterator[Server]:
    """A server with one worker and a poor one."""
    with server(0) as there:
        there.add_workers(1)
        there.await_workers(1)
        there.add_workers(1, "tests.integration.poor_worker")
        there.await_workers(2)
        yield there


def test_a_run_that_one_of_two_has_no_room_for_is_begun_by_neither() -> None:
    with server(0) as there:
        there.add_workers(1)
        there.add_workers(1, GT_WORKER_MEMORY="100KiB")
        there.await_workers(2)
        one, two = (Desk(RemoteSession(there.address, timeout=20)) for _ in range(2))
        big = np.arange(128 * 128, dtype=np.float32).reshape(128, 128) / 1e4  # 64 KiB, 32 of them on each worker
        held, other = one.put(big, rows()), two.put(big[:8], rows())
        start = time.monotonic()
        with pytest.raises(OutOfMemoryError) as caught:  # the second operand is gathered
            one.get(one.run("matmul", (held, big.shape), (held, big.shape)))
        assert time.monotonic() - start < 5
        for word in (
            "102400 bytes (100 KiB)",
            "cluster.py:",
            "train.py:12",
            "Largest held: 32768 bytes",
            "Largest in the run: 65536 bytes",
        ):
            assert word in str(caught.value), (word, str(caught.value))
        assert np.array_equal(one.get(held), big)
        assert np.array_equal(two.get(two.run("add", (other, (8, 128)), (other, (8, 128)))), 2 * big[:8])
        for desk in (one, two):
            desk.session.close()


def test_who_has_no_memory_for_a_collective_is_not_waited_for_and_the_group_is_made_anew(uneven: Server) -> None:
    """The deadline of a collective is a minute."""
    session, other = (RemoteSession(uneven.address, timeout=20) for _ in range(2))
    desk, neighbour = Desk(session), Desk(other)
    x = np.random.default_rng(0).standard_normal(WIDE).astype(np.float32)
    a = np.ones((WIDE[0], WIDE[0]), np.float32)
    values, beside = (desk.put(a, rows()), desk.put(x, rows())), neighbour.put(x, rows())
    left, right, wide = Value(TensorType(a.shape, float32)), Value(TensorType(WIDE, float32)), Value(TensorType(WIDE, float32))
    flipped = Node(OPS["neg"], (right,), (wide,), (), LINE)
    product = Node(OPS["matmul"], (left, wide), (Value(TensorType(WIDE, float32)),), (), LINE)
    session.define(9, Graph("poor", (left, right), (), (flipped, product), (product.output,)))
    small = neighbour.put(x[:4], rows())
    neighbour.get(neighbour.run("matmul", (small, (4, 4)), (small, (4, 4))))  # the workers have loaded what makes groups
    for out in (901, 902):
        session.run(9, values, [out], [], [])
        start = time.monotonic()
        with pytest.raises(OutOfMemoryError, match=r"neg: MemoryError: there is no room.*train.py:12.*Largest held.*cluster.py"):
            session.fetch(out).result(30)
        assert time.monotonic() - start < 5
    assert np.array_equal(desk.get(values[1]), x) and np.array_equal(neighbour.get(beside), x)
    assert np.allclose(neighbour.get(neighbour.run("matmul", (small, (4, 4)), (small, (4, 4)))), x[:4] @ x[:4], atol=1e-5)
    assert session.workers() == other.workers() == (0, 1)
    session.close()
    other.close()
