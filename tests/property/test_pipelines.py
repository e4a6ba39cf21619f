"""Random pipelines on simulated workers equal the model on one: any cut, any workers, uneven microbatches, any split inside.

Repeat a failure with ``pytest tests/property/test_pipelines.py --hypothesis-seed=N``.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gt
from gt import ShardConfig, SignalConfig, nn
from gt import session as sessions
from gt.nn import functional as F  # noqa: N812
from gt.runtime.simulated import SimulatedSession
from tests.property.budget import examples

Found = list[np.ndarray]


pytestmark = pytest.mark.usefixtures("alone")


def model(rng: Random, depth: int) -> nn.Sequential:
    kinds: list[Any] = [lambda w: nn.Linear(w, w), lambda w: nn.Tanh(), lambda w: nn.LayerNorm(w), lambda w: nn.GELU()]
    return nn.Sequential(*(rng.choice(kinds)(6) for _ in range(depth - 1)), nn.Linear(6, 6)).double()


def train(step: Any, parameters: list[Any], x: np.ndarray, y: np.ndarray) -> Found:
    """Give losses, parameters and gradients of two steps."""
    optimizer = gt.optim.AdamW(parameters, lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = step(gt.from_numpy(x), gt.from_numpy(y))
        optimizer.step()
        losses.append(loss.detach().numpy())
    return [*losses, *(p.detach().numpy() for p in parameters), *(p.grad.numpy() for p in parameters)]


def sets_of(rng: Random, stages: int, present: int) -> list[list[int]]:
    """Cut the workers, in any order, into sets of any sizes."""
    workers = rng.sample(range(present), present)
    ends = sorted(rng.sample(range(1, present), stages - 1))
    return [workers[a:b] for a, b in zip([0, *ends], [*ends, present], strict=True)]


def signals_of(rng: Random, sets: list[list[int]]) -> list[str]:
    names = []
    for i, workers in enumerate(sets):
        shard = rng.choice([
            ShardConfig(axis=0, workers=workers), ShardConfig(axis=None, workers=workers), ShardConfig(replicated=True, workers=workers),
            ShardConfig(axis=-1, workers=workers),
        ])  # fmt: skip
        gt.register_config(f"s{i}", SignalConfig(shard=shard, backward_signal=rng.choice([None, f"b{i}"])))
        gt.register_config(f"b{i}", SignalConfig(shard=ShardConfig(replicated=True, workers=workers)))
        names.append(f"s{i}")
    return names


@examples(25)
@given(st.integers(0, 2**32))
@pytest.mark.filterwarnings("ignore::gt.SignalWarning")  # a tensor too small for the workers is kept whole
def test_a_pipeline_equals_the_model_on_one_worker(seed: int) -> None:
    rng = Random(seed)
    gt.get_config().clear()
    stages, present = rng.randint(2, 4), rng.randint(4, 6)
    batch, depth = rng.randint(2, 9), rng.randint(stages, 7)
    microbatches = rng.randint(1, min(batch, 5))
    data = np.random.default_rng(seed)
    x, y = (data.normal(size=(batch, 6)) for _ in range(2))
    cut = Random(seed)
    with sessions.pinned(SimulatedSession(1)):
        gt.manual_seed(seed)
        alone = model(cut, depth)
        want = train(lambda x, y: _backward(F.mse_loss(alone(x), y)), list(alone.parameters()), x, y)
    options: dict[str, Any] = {"schedule": rng.choice(["1f1b", "gpipe"])}
    if rng.random() < 0.7:
        sets = sets_of(rng, stages, present)
        options |= {"signals": signals_of(rng, sets)} if rng.random() < 0.6 else {"workers": sets}
    with sessions.pinned(SimulatedSession(present)):
        gt.manual_seed(seed)
        pipe = gt.pipeline(model(Random(seed), depth), microbatches, F.mse_loss, parts=stages, **options)
        got = train(lambda x, y: pipe.step(x, target=y), list(pipe.parameters()), x, y)
        out = pipe(gt.from_numpy(x)).detach().numpy()
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=str(options))
    assert out.shape == (batch, 6) and np.isfinite(out).all()


def _backward(loss: gt.Tensor) -> gt.Tensor:
    loss.backward()
    return loss
