"""Checkpoints of values that worker processes hold: saved beside training, loaded in this process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt import checkpoint
from gt.checkpoint import folders
from gt.runtime.launch import LocalCluster

SIZE = 300  # values that travel through shared memory


def parts() -> dict[str, Any]:
    gt.manual_seed(2)
    model = gt.nn.Linear(SIZE, SIZE)
    return {"model": model, "optimizer": gt.optim.SGD(model.parameters(), 0.1, momentum=0.9)}


def steps(run: dict[str, Any], count: int) -> list[float]:
    losses = []
    for _ in range(count):
        with gt.signal.context("rows"):
            loss = run["model"](gt.randn(8, SIZE)).square().mean()
        loss.backward()
        run["optimizer"].step()
        run["optimizer"].zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.usefixtures("clean")
def test_a_checkpoint_of_two_workers_goes_on_in_this_process(pair: LocalCluster, tmp_path: Path) -> None:
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    gt.register_mesh({"workers": -1})
    gt.register_params({"weight": {0: "workers"}})
    gt.disconnect()
    gt.connect(pair.address)
    try:
        run = parts()
        steps(run, 2)
        saves = [checkpoint.save(tmp_path, run, step=2)]
        rest = steps(run, 1)
        saves.append(checkpoint.save(tmp_path, run, step=3))
        rest += steps(run, 3)
        for save in saves:
            save.wait(30)
    finally:
        gt.disconnect()
    other = parts()
    assert checkpoint.resume(tmp_path, step=2, **other).step == 2
    np.testing.assert_allclose(steps(other, 4), rest, rtol=1e-5)
    gt.disconnect()
    gt.connect(pair.address)
    try:
        other = parts()
        assert checkpoint.resume(tmp_path, **other).step == 3
        assert gt.explain(other["model"].weight).is_split
        assert steps(other, 3) == rest[1:], "on as many workers it is the same run"
    finally:
        gt.disconnect()


def test_a_session_that_ends_first_is_an_error(pair: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, real = threading.Event(), folders.make
    monkeypatch.setattr(folders, "make", lambda folder: begin.wait(20) and real(folder))
    gt.disconnect()
    gt.connect(pair.address)
    try:
        save = checkpoint.save(tmp_path, {"w": gt.ones(SIZE, SIZE)}, step=1)
    finally:
        gt.disconnect()
        begin.set()
    with pytest.raises(checkpoint.SaveError, match="step 1 .* was not written: SessionClosed"):
        save.wait(20)
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]
