"""The decoder under every shipped layout, and in stages, on GPU workers with NCCL: the losses of one worker.

Next: ``test_sharding_layouts.py`` and ``test_pipeline.py``, the same on four CPU workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gt
from examples import pipeline
from examples.sharding import decoder
from gt import config as configs
from gt import session as sessions
from gt.runtime.simulated import SimulatedSession
from tests.integration.gpus import COUNTS, needs_gpu, share
from tests.integration.test_pipeline import whole_model

FOLDER = Path(decoder.__file__).parent
STEPS = 20

pytestmark = [pytest.mark.usefixtures("clean"), needs_gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def alone() -> list[float]:
    configs.get_config().clear()
    with sessions.pinned(SimulatedSession(1)), pytest.warns(configs.SignalWarning):
        return decoder.train(STEPS)


@pytest.fixture(scope="module")
def whole() -> list[float]:
    return whole_model()


@pytest.fixture(params=COUNTS)
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    share(request.param, monkeypatch)
    gt.gpu_workers(request.param)
    try:
        yield request.param
    finally:
        gt.disconnect()


@pytest.mark.filterwarnings("ignore:signal 'batch' is ignored")
@pytest.mark.parametrize("layout", [None, *sorted(path.stem for path in FOLDER.glob("*.yaml"))])  # None: rows, by themselves
def test_twenty_steps_equal_one_worker(layout: str | None, alone: list[float], workers: int) -> None:
    if layout is not None:
        configs.load_config(FOLDER / f"{layout}.yaml")
    losses = decoder.train(STEPS)
    print(f"{layout}: {workers} GPU workers, losses of {STEPS} steps within {np.max(np.abs(np.array(losses) / alone - 1)):.1e}")
    np.testing.assert_allclose(losses, alone, rtol=1e-4)


@pytest.mark.parametrize(("workers_of_a_stage", "microbatches"), [(1, 4), (2, 3)])
def test_stages_equal_the_whole_model(workers_of_a_stage: int, microbatches: int, whole: list[float], workers: int) -> None:
    stages = workers // workers_of_a_stage
    losses = pipeline.train(STEPS, stages, microbatches)
    print(f"{stages} stages on {workers} GPU workers: losses of {STEPS} steps within {np.max(np.abs(np.array(losses) / whole - 1)):.1e}")
    np.testing.assert_allclose(losses, whole, rtol=1e-4)


def test_the_largest_of_values_that_are_split_is_nan_if_one_is(workers: int) -> None:
    """NCCL's largest passes over a NaN that not the first worker holds."""
    x = np.arange(8.0 * workers, dtype=np.float32).reshape(workers, 8)
    x[-1, 3] = np.nan
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    t = gt.signal.tensor(gt.tensor(x), name="rows")
    for got, expected in ((t.max(), np.max(x)), (t.amin(0), np.min(x, 0)), (t.argmax(0), np.argmax(x, 0))):
        np.testing.assert_array_equal(got.numpy(), expected)
