"""A decoder in stages on four worker processes: the losses of the whole model on one worker; a lost worker is named.

Next: ``examples/pipeline.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

import gt
from examples import pipeline
from gt import config as configs
from gt import session as sessions
from gt.runtime.errors import WorkerLost
from gt.runtime.launch import LocalCluster, start_local
from gt.runtime.simulated import SimulatedSession
from tests.integration.programs import lived

STEPS = 20
WITHIN_S = 10.0


pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture(params=["torch"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    started = start_local(4, backend=request.param)
    try:
        yield started
    finally:
        gt.disconnect()
        started.stop()


def whole_model() -> list[float]:
    """Give the losses of the decoder in one piece, without gt.pipeline, on one worker."""
    with sessions.pinned(SimulatedSession(1)):
        gt.manual_seed(0)
        stages = pipeline.stages_of(pipeline.CONFIG, 1)
        optimizer = gt.optim.AdamW(stages[0].parameters(), lr=1e-2)
        losses = []
        for tokens, following in pipeline.batches(STEPS):
            optimizer.zero_grad()
            loss = pipeline.next_token_loss(stages[0](tokens), following)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.timeout(300)
def test_twenty_steps_on_four_worker_processes_equal_one_worker(cluster: LocalCluster) -> None:
    expected = whole_model()
    assert expected[-1] < expected[0] - 1
    for stages, microbatches in ((4, 4), (2, 3)):  # one worker for each stage; two that split 3, 3 and 2 rows
        gt.connect(cluster.address)
        np.testing.assert_allclose(pipeline.train(STEPS, stages, microbatches), expected, rtol=1e-4)
        gt.disconnect()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("cluster", ["numpy"], indirect=True)
def test_a_worker_lost_in_a_step_is_named_and_the_others_go_on(cluster: LocalCluster) -> None:
    gt.connect(cluster.address)
    gt.manual_seed(0)
    pipe = gt.pipeline(pipeline.stages_of(pipeline.CONFIG, 4), microbatches=4, loss_fn=pipeline.next_token_loss)
    (tokens, following), *_ = pipeline.batches(1, batch=64, length=64)
    assert pipe.step(tokens, target=following).item() > 0
    losses = [pipe.step(tokens, target=following) for _ in range(4)]
    cluster.workers[2].kill()
    with lived() as seconds:
        with pytest.raises(WorkerLost, match=r"worker \d+ "):
            for loss in losses:
                loss.item()
            pipe.step(tokens, target=following).item()
        assert seconds() < WITHIN_S
    for loss in losses:  # whatever of them was pending still is lost with what it reads
        with contextlib.suppress(WorkerLost):
            loss.item()
    with pytest.warns(configs.SignalWarning, match="4 stages, 3 workers"):
        again = gt.pipeline(pipeline.stages_of(pipeline.CONFIG, 4), microbatches=4, loss_fn=pipeline.next_token_loss)
    fresh, target = next(pipeline.batches(1))
    assert again.step(fresh, target=target).item() > 0
