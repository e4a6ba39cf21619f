"""The same training, step for step: plain torch, gt in this process, gt on four workers with the batch split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import gt
import gt.nn.functional as F
from gt import ShardConfig, SignalConfig
from gt.runtime.launch import LocalCluster, start_local
from tests.integration.programs import log_lines

STEPS, BATCH = 50, 64


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(images))
    for step in range(STEPS):
        rows = order[(step * BATCH) % (len(images) - BATCH) :][:BATCH]
        yield (images[rows] / 16).astype(np.float32), labels[rows].astype(np.int64)


def torch_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))


def torch_losses(name: str, **options: float) -> list[float]:
    model = torch_model()
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    out = []
    for x, y in batches():
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


def gt_losses(name: str, **options: float) -> list[float]:
    model = gt.nn.Sequential(gt.nn.Linear(64, 128), gt.nn.ReLU(), gt.nn.Linear(128, 10))
    with gt.no_grad():
        for mine, theirs in zip(model.parameters(), torch_model().parameters(), strict=True):
            mine.copy_(gt.from_numpy(theirs.detach().numpy()))
    optimizer = getattr(gt.optim, name)(model.parameters(), **options)
    out = []
    for x, y in batches():
        with gt.signal.context("rows"):
            images, labels = gt.from_numpy(x), gt.from_numpy(y)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


@pytest.fixture
def rows_split() -> Iterator[None]:
    gt.register_config("rows", SignalConfig(shard=ShardConfig(axis=0)))
    yield
    gt.get_config().clear()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Path]]:
    """Four torch workers, and the log of who did what."""
    log = tmp_path_factory.mktemp("four") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GT_INSTRUCTION_LOG", str(log))
        cluster = start_local(4, backend="torch")
    yield cluster, log
    gt.disconnect()
    cluster.stop()


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("rows_split")
@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize(
    ("name", "options"),
    [("SGD", {"lr": 0.5}), ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4})],
    ids=["sgd", "momentum"],
)
def test_losses_agree_with_torch_at_every_step(
    name: str, options: dict[str, float], workers: int, four: tuple[LocalCluster, Path]
) -> None:
    want = torch_losses(name, **options)
    cluster, log = four
    begun = len(log_lines(log))
    if workers:
        gt.connect(cluster.address)
        assert gt.num_workers() == workers
    got = gt_losses(name, **options)
    assert len(got) == STEPS and got[-1] < 0.5 * got[0]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    if workers:
        check_who_worked(log_lines(log), begun)


def check_who_worked(lines: list[list[str]], begun: int) -> None:
    """Four torch processes, joined by one group, took part in every step: in lines from ``begun`` on."""
    everyone = {f"worker{i}" for i in range(4)}
    assert {line[3] for line in lines if line[2:5:2] == ["recv", "MakeGroup"]} == everyone
    runs = [line[3] for line in lines[begun:] if line[2] == "run" and "fault=-" in line]
    assert set(runs) == everyone and min(map(runs.count, everyone)) >= STEPS
    assert [line for line in lines if line[2:5:2] == ["recv", "WorkerHello"] and "backend=torch" in line]
