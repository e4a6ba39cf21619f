"""One decoder script under every shipped layout, on four simulated workers: equal losses, and the collectives of each.

Next: ``examples/sharding``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import gt
from examples.sharding import decoder
from gt import config as configs
from gt import session as sessions
from gt.runtime.launch import start_local
from gt.runtime.simulated import SimulatedSession

FOLDER = Path(decoder.__file__).parent
LAYOUTS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
STEPS = 5


pytestmark = pytest.mark.usefixtures("clean")


def train(layout: str | None, workers: int, steps: int = STEPS) -> tuple[list[float], SimulatedSession]:
    if layout is not None:
        configs.load_config(FOLDER / f"{layout}.yaml")
    session = SimulatedSession(workers)
    with sessions.pinned(session):
        return decoder.train(steps), session


@pytest.fixture(scope="module")
def alone() -> list[float]:
    configs.get_config().clear()
    session = SimulatedSession(1)
    with sessions.pinned(session), pytest.warns(configs.SignalWarning):
        return decoder.train(STEPS)


def test_the_files_are_short() -> None:
    assert LAYOUTS == ["data", "fsdp", "grid", "sequence", "tensor"]
    for name in LAYOUTS:
        lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
        assert len([line for line in lines if line and not line.startswith("#")]) <= 10


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_are_equal_and_the_plan_settles(layout: str, alone: list[float]) -> None:
    losses, session = train(layout, 4)
    np.testing.assert_allclose(losses, alone, rtol=1e-4)
    assert session.runs[-1] is session.runs[-2], "later steps are one plan"


def test_automatic_rows_give_the_same_losses(alone: list[float]) -> None:
    with pytest.warns(configs.SignalWarning):
        losses, session = train(None, 4)
    np.testing.assert_allclose(losses, alone, rtol=1e-4)
    assert session.runs[-1].collectives, "parameters are created, so split"


def moved(session: SimulatedSession) -> Counter[str]:
    return sum((Counter({c.kind: c.nbytes}) for c in session.runs[-1].collectives), Counter())


def parameter_bytes() -> int:
    c = decoder.CONFIG
    layer = 4 * c.hidden_size**2 + 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size
    return 4 * (2 * c.vocab_size * c.hidden_size + c.num_hidden_layers * layer + c.hidden_size)


def test_data_parallel_reduces_each_gradient_once() -> None:
    _, session = train("data", 4, 2)
    got = moved(session)
    assert set(got) == {"all_reduce"}
    assert abs(got["all_reduce"] - 2 * 3 / 4 * parameter_bytes()) < 64, "and the loss's two numbers"


def test_rules_for_parameters_know_no_variables() -> None:
    """``*`` is every parameter: not the logits that a script keeps in a variable, nor what a scope creates for one."""
    configs.load_config(FOLDER / "data.yaml")
    session = SimulatedSession(4)
    with sessions.pinned(session):
        model = gt.nn.Linear(32, 10)
        optimizer = gt.optim.AdamW(model.parameters())
        for _ in range(2):
            with gt.signal.context("batch"):
                x = gt.randn(64, 32)
            optimizer.zero_grad()
            logits = model(x)
            loss = (logits**2).mean()
            loss.backward()
            optimizer.step()
            loss.item()
        assert set(moved(session)) == {"all_reduce"}
        assert "dp" in repr(gt.explain(x).type) and "dp" in repr(gt.explain(logits).type)


@pytest.mark.parametrize(("axis", "sent"), [(0, 6), (1, 2 * 384 + 6)])
def test_a_loss_without_gradients_sends_no_logits(axis: int, sent: int) -> None:
    """As in evaluation: one sum, the loss; of classes the largest logit and the sum of exponentials of each row, too."""
    x, target = np.random.default_rng(0).normal(size=(64, 999)).astype(np.float32), np.arange(64) * 3

    def loss(workers: int) -> tuple[float, SimulatedSession]:
        session = SimulatedSession(workers)
        with sessions.pinned(session), gt.no_grad():
            with gt.signal.context("logits"):
                logits = gt.from_numpy(x)
            return gt.nn.functional.cross_entropy(logits, gt.from_numpy(target)).item(), session

    configs.register_config("logits", gt.SignalConfig(shard=gt.ShardConfig(axis=axis)))
    (got, session), (want, _) = loss(4), loss(1)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert moved(session) == {"all_reduce": sent}


def test_zero_3_joins_parameters_twice_and_scatters_gradients() -> None:
    _, session = train("fsdp", 4, 3)
    got = moved(session)
    once = 3 / 4 * parameter_bytes()
    assert got["reduce_scatter"] == once
    assert once < got["all_gather"] <= 2 * once, "what is used last in the forward is kept for the backward"
    assert got["all_reduce"] < 64


def test_tensor_parallel_is_megatrons() -> None:
    """Two sums of the activations for each layer, forward and backward; one each for embedding and head; 3 small ones."""
    _, session = train("tensor", 4, 3)
    c = decoder.CONFIG
    activation = 2 * 3 / 4 * 8 * 16 * c.hidden_size * 4
    large = [x.nbytes for x in session.runs[-1].collectives if x.nbytes >= activation]
    assert len(large) == 2 * 2 * c.num_hidden_layers + 2
    assert sum(large) - len(large) * activation < 64, "one may carry the loss too"
    assert set(moved(session)) == {"all_reduce"}
    small = sum(x.nbytes for x in session.runs[-1].collectives) - sum(large)
    assert small < 2 * 2 * 8 * 16 * 4, "the largest logit, the sum of exponentials, the loss: not the logits"


def test_two_axes_are_both() -> None:
    _, session = train("grid", 4, 3)
    c = decoder.CONFIG
    groups = Counter(x.group for x in session.runs[-1].collectives)
    assert set(groups) == {(0, 1), (0, 2)}
    activation = 2 * 1 / 2 * 4 * 16 * c.hidden_size * 4
    over_tp = [x for x in session.runs[-1].collectives if x.group == (0, 1)]
    assert [x.nbytes for x in over_tp] == [activation] * (4 * c.num_hidden_layers)
    split = 4 * c.num_hidden_layers * (4 * c.hidden_size**2 + 3 * c.hidden_size * c.intermediate_size)
    over_dp = sum(x.nbytes for x in session.runs[-1].collectives if x.group == (0, 2))
    assert abs(over_dp - (parameter_bytes() - split / 2)) < 64, "each worker reduces the part of a layer that it has"


@pytest.mark.timeout(300)
def test_twenty_steps_on_four_worker_processes_equal_one_worker() -> None:
    with sessions.pinned(SimulatedSession(1)), pytest.warns(configs.SignalWarning):
        expected = decoder.train(20)
    cluster = start_local(4, backend="torch")
    try:
        for layout in (None, *LAYOUTS):  # None: rows, by themselves
            configs.get_config().clear()
            if layout is not None:
                configs.load_config(FOLDER / f"{layout}.yaml")
            gt.connect(cluster.address)
            np.testing.assert_allclose(decoder.train(20), expected, rtol=1e-4, err_msg=str(layout))
            gt.disconnect()
    finally:
        gt.disconnect()
        cluster.stop()
