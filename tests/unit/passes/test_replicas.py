"""Workers that hold the same value: in the same bits, and made only where something reads it."""

from __future__ import annotations

import numpy as np
import pytest

import gt
from gt import session
from gt.config import ShardConfig, SignalConfig
from gt.ir.program import Compute
from gt.runtime.simulated import SimulatedSession


@pytest.fixture(autouse=True)
def _signals(alone: None) -> None:
    gt.register_config("one", SignalConfig(shard=ShardConfig(replicated=True, workers=[0])))
    gt.register_config("two", SignalConfig(shard=ShardConfig(replicated=True, workers=[0, 1])))
    gt.register_config("all", SignalConfig(shard=ShardConfig(replicated=True, workers=[0, 1, 2])))


def test_who_keeps_a_value_has_it_in_the_order_of_who_received_it() -> None:
    """A sum depends on the order in memory, so copies would differ in the last bits."""
    data = np.random.default_rng(0).normal(size=(129, 48, 5))
    with session.pinned(SimulatedSession(3)):
        with gt.signal.context("one"):
            turned = (gt.from_numpy(data) * 1.5).permute(2, 0, 1)
        with gt.signal.context("all"):
            moved = turned * 2.0
            found = [moved, moved.sum(), moved.sum((0, 1)), moved.sum(2)]
        for value in found:
            value.numpy()  # refused where copies differ


def test_a_worker_computes_nothing_that_it_does_not_read_or_send() -> None:
    ran = SimulatedSession(3)
    with session.pinned(ran):
        data = np.arange(6.0).reshape(2, 3)
        gt.register_config("last", SignalConfig(shard=ShardConfig(replicated=True, workers=[2])))
        read = gt.from_numpy(data)
        with gt.signal.context("two"):
            read = read.tanh() * 3.0
        with gt.signal.context("last"):
            read = read.square()
        np.testing.assert_allclose(read.numpy(), np.square(np.tanh(data) * 3.0))
    programs = ran.runs[0].plan.programs
    steps = {w: [s for s in programs[w].steps if isinstance(s, Compute)] for w in (0, 1, 2)}
    assert all(step.outputs for own in steps.values() for step in own)
    tanh = [w for w, own in steps.items() if any(n.op == "tanh" for s in own for n in s.nodes)]
    assert len(tanh) == 1  # one of the two that could
