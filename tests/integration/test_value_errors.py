"""A training loop that meets a batch which is refused: the error is told once, and all goes on as if the batch had not been."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt import session as sessions
from gt.flush import counters
from gt.runtime.embedded import EmbeddedSession
from gt.runtime.launch import start_local
from gt.runtime.remote import RemoteSession
from tests.integration.refused_batches import BAD, GOOD, ROWS, Trained, same


def _embedded(backend: str) -> Iterator[Any]:
    session = EmbeddedSession(backend)
    yield session
    session.close()


def _server() -> Iterator[Any]:
    cluster = start_local(1, backend="numpy")
    session = RemoteSession(cluster.address)
    yield session
    session.close()
    cluster.stop()


@pytest.fixture(scope="module", params=["numpy", "torch", "server"])
def place(request: pytest.FixtureRequest) -> Iterator[None]:
    gt.disconnect()
    made = _server() if request.param == "server" else _embedded(request.param)
    with sessions.pinned(next(made)):
        yield
    next(made, None)


@pytest.mark.parametrize("jit", [False, True], ids=["recorded", "jit"])
def test_a_refused_batch_changes_no_weight_and_training_goes_on(place, jit):
    t = Trained(jit, "SGD")
    for targets in GOOD[:4]:
        t.run(targets)
    before, mean = t.weights(), t.norm.running_mean.numpy()
    with pytest.raises(IndexError, match=r"recorded at .*refused_batches"):
        t.run(BAD)
    assert same(t.weights(), before)
    assert not np.array_equal(t.norm.running_mean.numpy(), mean)  # the forward that updates it did not depend on the targets
    with pytest.raises(IndexError):
        t.run(GOOD[0], ROWS + 15)
    assert same(t.weights(), before)
    other = Trained(jit, "SGD")
    for targets in GOOD:
        other.run(targets)
    t.norm.running_mean.copy_(other.norm.running_mean)
    for targets in GOOD[4:]:
        t.run(targets)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(t.weights(), other.weights(), strict=True))


def test_steps_that_nobody_reads_until_later_are_undone_with_it(place):
    t = Trained()
    t.run(GOOD[0])
    before = t.weights()
    losses = [t.step(gt.from_numpy(ROWS), gt.from_numpy(targets)) for targets in (BAD, GOOD[1], GOOD[2])]
    with pytest.raises(IndexError):
        losses[0].item()
    assert np.isfinite(t.run(GOOD[3])) and not same(t.weights(), before)


def test_a_read_of_the_weights_tells_of_it_too(place):
    w = gt.zeros(3)
    w.numpy()
    w.add_(gt.arange(3.0)[gt.tensor([0, 1, 5])])
    with pytest.raises(IndexError, match=r"test_value_errors"):
        w.numpy()
    assert w.tolist() == [0, 0, 0]
    w.add_(1)
    assert w.tolist() == [1, 1, 1]


def test_a_matrix_that_has_no_factor_takes_nothing_with_it(place):
    x, y = gt.eye(3), gt.ones(3)
    y.numpy()
    low = gt.linalg.cholesky(x - 2 * gt.eye(3))
    y.add_(1)
    with pytest.raises(RuntimeError, match="cholesky"):
        (low @ y).tolist()
    assert y.tolist() == [2, 2, 2] and x.tolist() == np.eye(3).tolist()


def test_the_text_says_op_operands_line_and_the_worker_where_there_may_be_others(place: None) -> None:
    table = gt.zeros(3, 2)
    found = table[gt.tensor([0, 7])] * 2.0
    line = sys._getframe().f_lineno - 1
    given = rf"\(given f32\[3, 2\], i64\[2\], recorded at .*{os.path.basename(__file__)}:{line} in \w+\)"
    where = "" if isinstance(sessions.current(), EmbeddedSession) else r" on worker 0"
    with pytest.raises(IndexError, match=rf"^index: .*{given}{where}\n"):
        found.sum().item()


def test_the_same_ops_of_another_line_are_told_by_theirs() -> None:
    x, good, bad = gt.ones(4), gt.tensor([1]), gt.tensor([9])
    x.sum().item()
    assert x[good].tolist() == [1.0]
    refused = x[bad]
    line = sys._getframe().f_lineno - 1
    with pytest.raises(IndexError, match=rf"recorded at .*{os.path.basename(__file__)}:{line} in"):
        refused.tolist()
    for _ in range(3):  # the same lines again make no graph
        before = counters.graphs
        x[good].tolist()
    assert counters.graphs == before
