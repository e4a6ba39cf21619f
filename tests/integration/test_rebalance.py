"""Workers join and leave: what is new is on all there are, and ``gt.rebalance`` brings along what was there before."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import gt
from tests.integration.programs import server, wait_for

pytestmark = pytest.mark.timeout(120)


def parts(t: gt.Tensor) -> dict[int, int]:
    """Give how many rows of a tensor each of its workers has room for."""
    found = gt.explain(t)
    return dict.fromkeys(found.workers, found.local_shape[0])


def test_two_workers_become_three_and_two_again_and_no_value_changes() -> None:
    with server(2) as there:
        gt.connect(there.address, 20)
        try:
            rng = np.random.default_rng(0)
            data = rng.standard_normal((60, 8)).astype(np.float32)
            gt.register_config("mine", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=(1,))))
            gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
            x, whole = gt.signal.tensor(gt.from_numpy(data) * 1.0, name="rows"), gt.from_numpy(data[:7])
            pinned = gt.signal.tensor(gt.from_numpy(data) * 1.0, name="mine")
            model = gt.nn.Linear(8, 6)
            optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)

            def step() -> float:
                optimizer.zero_grad()
                loss = (model(x) ** 2).mean()
                loss.backward()
                optimizer.step()
                return loss.item()

            def values() -> list[np.ndarray]:
                state = optimizer.state_dict()["state"]
                moments = [s[k].numpy() for _, s in sorted(state.items()) for k in ("exp_avg", "exp_avg_sq")]
                return [p.detach().numpy() for p in model.parameters()] + moments + [x.numpy(), whole.numpy(), pinned.numpy()]

            losses = [step() for _ in range(3)]
            assert parts(x) == {0: 30, 1: 30} and parts(pinned) == {1: 60} and set(parts(whole).values()) == {7}
            there.add_workers(1)
            assert wait_for(lambda: gt.num_workers() == 3, 60)
            fresh = gt.signal.tensor(gt.zeros(60, 8) + 1, name="rows")
            assert parts(fresh) == {0: 20, 1: 20, 2: 20}  # from the next plan on
            assert (fresh + x).numpy() == pytest.approx(data + 1)
            losses.append(step())
            before = values()
            assert gt.rebalance() >= 7
            assert all(np.array_equal(a, b) for a, b in zip(before, values(), strict=True))
            assert parts(x) == {0: 20, 1: 20, 2: 20} and parts(pinned) == {1: 60} and parts(whole) == {0: 7, 1: 7, 2: 7}
            weight = next(model.parameters())
            assert len(parts(weight)) == 3
            assert gt.rebalance() == 0
            losses.append(step())
            assert len(parts(weight)) == 3 and parts(model(x)) == {0: 20, 1: 20, 2: 20}  # later runs use all
            before = values()
            with pytest.raises(ValueError, match=r"workers \[7\] are not there.*\[0, 1, 2\]"):
                gt.rebalance([0, 7])
            assert gt.rebalance([0, 1]) >= 7
            assert parts(x) == {0: 30, 1: 30} and set(parts(gt.zeros(60, 8))) == {0, 1} and set(parts(weight)) == {0, 1}
            there.workers[2].send_signal(signal.SIGTERM)
            assert wait_for(lambda: gt.num_workers() == 2)
            assert all(np.array_equal(a, b) for a, b in zip(before, values(), strict=True))
            losses.append(step())
            w, b = (p.detach().numpy() for p in model.parameters())
            assert losses == sorted(losses, reverse=True)
            assert (model(x).detach().numpy()) == pytest.approx(data @ w.T + b, abs=1e-5)
        finally:
            gt.disconnect()
            gt.get_config().clear()


def test_a_loss_after_a_rebalance_is_healed_and_the_next_worker_is_used() -> None:
    with server(2) as there:
        gt.connect(there.address, 20)
        try:
            gt.recover(wait_s=0.5)
            gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
            data = np.arange(480, dtype=np.float32).reshape(60, 8)
            x = gt.signal.tensor(gt.from_numpy(data) * 1.0, name="rows")
            assert parts(x) == {0: 30, 1: 30}
            there.add_workers(1)
            assert wait_for(lambda: gt.num_workers() == 3, 60)
            assert gt.rebalance() >= 1 and parts(x) == {0: 20, 1: 20, 2: 20}
            y = x * 2
            there.workers[2].kill()
            assert np.array_equal(y.numpy(), 2 * data) and parts(x) == parts(y) == {0: 30, 1: 30}
            assert [r.workers for r in gt.recoveries()] == [2]
            there.add_workers(1)
            assert wait_for(lambda: gt.num_workers() == 3, 60)
            assert gt.rebalance() >= 2 and parts(y) == {0: 20, 1: 20, 3: 20}
            assert np.array_equal(x.numpy(), data) and np.array_equal(y.numpy(), 2 * data)
        finally:
            gt.recover(False)
            gt.disconnect()
            gt.get_config().clear()
