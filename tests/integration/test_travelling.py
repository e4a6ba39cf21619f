"""Real workers: collectives that travel while others compute, and rows that neighbours send each other, give one worker's values.

Next: ``tests/unit/passes/test_overlap.py`` (the order), ``tests/property/test_split_windows.py`` (any geometry).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import gt
from gt import ShardConfig, SignalConfig, nn
from gt import config as configs
from gt import session as sessions
from gt.runtime.launch import LocalCluster, start_local
from gt.runtime.simulated import SimulatedSession

WIDTH = 1500  # 9 MB of each weight: gradients travel apart


pytestmark = pytest.mark.usefixtures("clean")


def layers(split: str) -> list[np.ndarray]:
    """Three steps of wide layers; ``split``: whether the batch is, by rows."""
    if split:
        gt.register_config("batch", SignalConfig(shard=ShardConfig(axis=0)))
    gt.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
    optimizer = gt.optim.SGD(net.parameters(), lr=0.05)
    found = []
    for _ in range(3):
        with gt.signal.context("batch") if split else gt.enable_grad():
            x = gt.randn(32, WIDTH)
            loss = (net(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(np.asarray(loss.item()))
    return [*found, *(p.detach().numpy()[:50] for p in net.parameters())]


def images(split: str) -> list[np.ndarray]:
    """Convolutions with strides and pooling over the height, which is split; two steps."""
    if split:
        gt.register_config("rows", SignalConfig(shard=ShardConfig(axis=2)))
    gt.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 5, stride=2, padding=2), nn.MaxPool2d(3, 1, 1), nn.Conv2d(6, 4, 3),
    )  # fmt: skip
    optimizer = gt.optim.SGD(net.parameters(), lr=0.05)
    x = gt.randn(2, 3, 26, 7)
    if split:
        x = gt.signal.tensor(x, name="rows")
    found = []
    for _ in range(2):
        y = net(x)
        y = y.roll(1, 2) + y[:, :, 1:].mean()
        loss = (y**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found += [np.asarray(loss.item()), y.detach().numpy()]
    return [*found, *(p.detach().numpy() for p in net.parameters())]


SCRIPTS: dict[str, tuple[Callable[[str], list[np.ndarray]], str]] = {
    "data parallel": (layers, "batch"), "rows of images": (images, "rows"),
}  # fmt: skip


@pytest.fixture(scope="module")
def alone() -> dict[str, list[np.ndarray]]:
    configs.get_config().clear()
    found = {}
    for name, (script, _) in SCRIPTS.items():
        with sessions.pinned(SimulatedSession(1)):
            found[name] = script("")
    return found


@pytest.fixture(scope="module")
def three() -> Iterator[LocalCluster]:
    """Three workers with torch, for all tests here: what one leaves on them is freed when its client goes."""
    started = start_local(3, backend="torch")
    yield started
    started.stop()


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_real_workers_equal_one(
    name: str, backend: str, three: LocalCluster, pair: LocalCluster, alone: dict[str, list[np.ndarray]]
) -> None:
    script, split = SCRIPTS[name]
    gt.connect((three if backend == "torch" else pair).address)
    got = script(split)
    for a, b in zip(got, alone[name], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)


def test_what_was_meant_happens() -> None:
    for name, (script, split) in SCRIPTS.items():
        configs.get_config().clear()
        session = SimulatedSession(2)
        with sessions.pinned(session):
            script(split)
        steps = [c for run in session.runs for c in run.collectives]
        if name == "data parallel":
            assert sum(c.begins for c in steps) >= 3
        else:
            assert any(c.kind == "send" for c in steps), "rows are sent"
            assert not any(c.kind == "all_gather" and len(c.type.shape) == 4 for c in steps), "and never joined"


@pytest.mark.parametrize("rows", [slice(None, None, 2), slice(1, None)])
def test_a_copy_on_workers_in_another_order_has_memory_of_its_own(rows: slice, three: LocalCluster) -> None:
    """One worker keeps its part where it is, two exchange theirs; what is written to the copy is not the value's."""
    gt.connect(three.address)
    gt.register_config("one", SignalConfig(shard=ShardConfig(axis=1, workers=[0, 1, 2])))
    gt.register_config("other", SignalConfig(shard=ShardConfig(axis=1, workers=[0, 2, 1])))
    with gt.signal.context("one"):
        x = gt.ones(6, 6) * 2
    copied = gt.signal.tensor(x, name="other")
    with gt.signal.context("other"):
        copied[rows] = 0.0
    want = np.full((6, 6), 2.0)
    np.testing.assert_array_equal(x.numpy(), want)
    want[rows] = 0.0
    np.testing.assert_array_equal(copied.numpy(), want)


def test_a_run_that_fails_while_sums_travel_leaves_nothing_behind(three: LocalCluster) -> None:
    """The last worker fails between the beginning of a sum and the wait for it; the next run's sums are right."""
    gt.connect(three.address)
    gt.register_config("batch", SignalConfig(shard=ShardConfig(axis=0)))
    table = gt.arange(10.0)
    for places in ([1] * 8, [1] * 7 + [99], [2] * 8):
        with gt.signal.context("batch"):
            x, at = gt.ones(8, WIDTH), gt.tensor(places)
        products = x.T @ x
        rows = table[at]
        total = products.sum() + rows.sum()
        if 99 in places:
            with pytest.raises((IndexError, gt.RunError)):
                total.item()
        else:
            assert total.item() == 8 * WIDTH**2 + sum(places)
            assert float(products[3, 5]) == 8
