"""Where the models are run: whole in this process, and data parallel over four workers.

Four simulated workers run in this process on NumPy. One model runs on four real ones over Gloo, and all of them with
``pytest tests/models --processes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import gt
from gt import session as sessions
from gt.runtime.simulated import SimulatedSession

DATA_PARALLEL = Path(__file__).resolve().parents[2] / "examples" / "sharding" / "data.yaml"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", action="store_true", help="run the models on four worker processes too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--processes", default=False):
        return
    skip = pytest.mark.skip(reason="more than a minute on two cores: pytest tests/models --processes")
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if params.get("place") == "processes" and params.get("models") != "qwen3":
            item.add_marker(skip)


@pytest.fixture(scope="module", params=["whole", "simulated", "processes"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """Choose where gt runs; the signal ``batch`` splits rows there."""
    gt.disconnect()
    gt.load_config(DATA_PARALLEL)
    try:
        if request.param == "simulated":
            with sessions.pinned(SimulatedSession(4)):
                yield request.param
        else:
            if request.param == "processes":
                gt.gpu_workers(4)
            yield request.param
            gt.disconnect()
    finally:
        gt.get_config().clear()
