"""A checkpoint of four workers, loaded on other numbers of workers and other meshes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt import checkpoint
from gt import session as sessions
from gt.ir.mesh import Sharding
from gt.ir.types import TensorType
from gt.runtime.simulated import SimulatedSession

STEPS, SAVED = 6, 3


@pytest.fixture(autouse=True)
def clear(clean: None) -> Iterator[None]:
    yield


class Seen(SimulatedSession):
    """Remembers where uploads went."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.puts: list[tuple[tuple[int, ...], Sharding]] = []

    def put(self, buffer: int, type: TensorType, data: np.ndarray, signal: Any) -> None:
        super().put(buffer, type, data, signal)
        self.puts.append((type.shape, self.sharding(buffer)))


def trained(
    folder: Path, workers: int, mesh: dict[str, int], split: dict[int, str], save: bool = False
) -> tuple[list[float], list[str]]:
    """Train, from the checkpoint if there is one; give the losses and where the weight and its state are in the end."""
    gt.get_config().clear()
    gt.register_mesh(mesh)
    gt.register_config("batch", gt.SignalConfig(shard=gt.ShardConfig(dims={0: "dp"})))
    gt.register_params({"*weight": split})
    gt.disconnect()
    session = Seen(workers)
    with sessions.pinned(session):
        gt.manual_seed(1)
        model = gt.nn.Sequential(gt.nn.Linear(12, 24), gt.nn.GELU(), gt.nn.Dropout(0.1), gt.nn.Linear(24, 12))
        optimizer = gt.optim.AdamW(model.parameters(), 1e-2)
        parts = {"model": model, "optimizer": optimizer}
        session.puts.clear()
        done = checkpoint.resume(folder, **parts).step
        for shape, placed in session.puts:
            if shape == (24, 12):  # the weight and both means: no worker gets more than what it keeps
                assert placed.is_split == bool(split), placed
        assert not done or len([shape for shape, _ in session.puts if shape == (24, 12)]) == 3
        losses, saving = [], None
        for step in range(done, STEPS):
            with gt.signal.context("batch"):
                loss = model(gt.randn(24, 12)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if save and step + 1 == SAVED:
                saving = checkpoint.save(folder, parts, step=SAVED)
        if saving is not None:
            saving.wait()
        weight = model[0].weight
        where = [gt.explain(t).type for t in (weight, optimizer.state[weight]["exp_avg"])]
    return losses, where


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A checkpoint of four workers, and the losses that followed there."""
    folder = tmp_path_factory.mktemp("four")
    losses, where = trained(folder, 4, {"dp": 2, "tp": 2}, {0: "tp"}, save=True)
    assert where == ["f32[24@tp, 12]"] * 2
    return folder, losses[SAVED:]


OTHERS: list[tuple[int, dict[str, int], Any, str]] = [
    (4, {"dp": 2, "tp": 2}, {0: "tp"}, "f32[24@tp, 12]"),
    (4, {"dp": 4}, {0: "dp"}, "f32[24@dp, 12]"),
    (4, {"dp": 1, "tp": 4}, {1: "tp"}, "f32[24, 12@tp]"),
    (1, {"dp": 1}, {}, "f32[24, 12]"),
    (2, {"dp": 2}, {}, "f32[24, 12]"),
    (3, {"dp": 3}, {0: "dp"}, "f32[24@dp, 12]"),
]


@pytest.mark.parametrize(("workers", "mesh", "split", "where"), OTHERS)
def test_it_goes_on_elsewhere(four: tuple[Path, list[float]], workers: int, mesh: Any, split: Any, where: str) -> None:
    folder, losses = four
    found, there = trained(folder, workers, mesh, split)
    assert found == pytest.approx(losses, rel=1e-5)
    assert there == [where] * 2
    if workers == 4 and mesh == {"dp": 2, "tp": 2}:
        assert found == losses, "on the same workers it is the same run"
