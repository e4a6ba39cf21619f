"""The decoder under every shipped layout, and in stages, on the GPUs of this machine with NCCL: the losses of one worker.

Next: ``test_sharding_layouts.py`` and ``test_pipeline.py``, the same on four CPU workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import gt
from examples import pipeline
from examples.sharding import decoder
from gt import config as configs
from gt import session as sessions
from gt.runtime.simulated import SimulatedSession
from tests.integration.test_pipeline import whole_model

FOLDER = Path(decoder.__file__).parent
GPUS = torch.cuda.device_count()
STEPS = 20

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.skipif(GPUS < 2, reason="needs two GPUs"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def alone() -> list[float]:
    configs.get_config().clear()
    with sessions.pinned(SimulatedSession(1)), pytest.warns(configs.SignalWarning):
        return decoder.train(STEPS)


@pytest.fixture(scope="module")
def whole() -> list[float]:
    return whole_model()


@pytest.fixture
def workers() -> Iterator[int]:
    gt.gpu_workers(GPUS)
    try:
        yield GPUS
    finally:
        gt.disconnect()


@pytest.mark.filterwarnings("ignore:signal 'batch' is ignored")
@pytest.mark.parametrize("layout", [None, *sorted(path.stem for path in FOLDER.glob("*.yaml"))])  # None: rows, by themselves
def test_twenty_steps_equal_one_worker(layout: str | None, alone: list[float], workers: int) -> None:
    if layout is not None:
        configs.load_config(FOLDER / f"{layout}.yaml")
    losses = decoder.train(STEPS)
    print(f"{layout}: {workers} GPUs, losses of {STEPS} steps within {np.max(np.abs(np.array(losses) / alone - 1)):.1e}")
    np.testing.assert_allclose(losses, alone, rtol=1e-4)


@pytest.mark.parametrize(("stages", "microbatches"), [(GPUS, 4), (max(GPUS // 2, 1), 3)])
def test_stages_equal_the_whole_model(stages: int, microbatches: int, whole: list[float], workers: int) -> None:
    losses = pipeline.train(STEPS, stages, microbatches)
    print(f"{stages} stages on {workers} GPUs: losses of {STEPS} steps within {np.max(np.abs(np.array(losses) / whole - 1)):.1e}")
    np.testing.assert_allclose(losses, whole, rtol=1e-4)
