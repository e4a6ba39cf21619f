"""gt beside torch, step for step: gradients too, which the earlier system doubled from the second step on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import gt
import gt.nn.functional as F
from gt.ir.graph import Graph
from gt.passes.plan import Cluster, plan_graph

pytestmark = pytest.mark.timeout(240)
STEPS = 6


@pytest.fixture
def rows_split() -> Iterator[None]:
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    yield
    gt.get_config().clear()


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((24, 12)).astype(np.float32), rng.integers(0, 5, 24)


def pair() -> tuple[gt.nn.Module, torch.nn.Module]:
    torch.manual_seed(1)
    theirs = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))
    mine = gt.nn.Sequential(gt.nn.Linear(12, 16), gt.nn.ReLU(), gt.nn.Linear(16, 5))
    with gt.no_grad():
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            a.copy_(gt.from_numpy(b.detach().numpy()))
    return mine, theirs


def optimizer_step(mine: gt.nn.Module, theirs: torch.nn.Module) -> Callable[[], None]:
    a = gt.nn.SGD(mine.parameters(), lr=0.2, momentum=0.5)
    b = torch.optim.SGD(theirs.parameters(), lr=0.2, momentum=0.5)

    def step() -> None:
        for o in (a, b):
            o.step()
            o.zero_grad()

    return step


def manual_step(mine: gt.nn.Module, theirs: torch.nn.Module) -> Callable[[], None]:
    """The loop that documentation shows, written without an optimizer."""

    def step() -> None:
        with gt.no_grad():
            for p in mine.parameters():
                p -= 0.2 * p.grad
                p.grad = None
        with torch.no_grad():
            for p in theirs.parameters():
                p -= 0.2 * p.grad
                p.grad = None

    return step


@pytest.mark.usefixtures("rows_split")
@pytest.mark.parametrize(
    ("workers", "make_step", "read"),
    [
        (0, optimizer_step, "every value"),
        (0, manual_step, "every value"),
        (0, optimizer_step, "nothing before the end"),
        (0, manual_step, "nothing before the end"),
        (2, manual_step, "every value"),
    ],
)
def test_every_gradient_of_every_step_is_torchs(workers: int, make_step: Callable, read: str) -> None:
    if workers:
        gt.gpu_workers(workers)
    x, y = data()
    mine, theirs = pair()
    step = make_step(mine, theirs)
    losses = []
    for _ in range(STEPS):
        with gt.signal.context("rows"):
            images, labels = gt.from_numpy(x), gt.from_numpy(y)
        loss = F.cross_entropy(mine(images), labels)
        loss.backward()
        want = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(y))
        want.backward()
        if read == "every value":
            assert loss.item() == pytest.approx(want.item(), abs=1e-5)
            for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
                assert p.grad is not None and q.grad is not None
                np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=0, atol=1e-5)
        losses.append((loss, want))
        step()
    for loss, want in losses:
        assert loss.item() == pytest.approx(want.item(), abs=1e-5)
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:signal:gt.SignalWarning")  # one worker runs what four are planned for
def test_gradients_follow_the_backward_signal() -> None:
    """Forward on workers 0 and 1, gradients on 2 and 3: each op runs where it was asked for."""
    graphs: list[Graph] = []
    gt.register_config("up", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    gt.register_config("down", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[2, 3])))
    gt.session.on_define.append(lambda number, graph: graphs.append(graph))
    try:
        x = gt.from_numpy(np.ones((8, 4), np.float32), requires_grad=True)
        w = gt.from_numpy(np.ones((4, 6), np.float32), requires_grad=True)
        with gt.signal.context("up", backward="down"):
            h = (x @ w).exp()
        h.sum().backward()
        assert w.grad is not None
        w.grad.numpy()
    finally:
        gt.session.on_define.pop()
        gt.get_config().clear()
    (graph,) = graphs
    programs = plan_graph(graph, Cluster((0, 1, 2, 3))).programs
    ran = {w: [n.op for s in p.steps for n in getattr(s, "nodes", ())] for w, p in programs.items()}
    assert [ran[w].count("exp") for w in range(4)] == [1, 1, 0, 0]
    gradients = [ran[w].count("matmul") - ran[w].count("exp") for w in range(4)]  # one matmul goes with each exp
    assert gradients == [0, 0, 1, 1] or gradients == [0, 0, 2, 2], ran
