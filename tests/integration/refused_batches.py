"""What tests of refused values train, and the batches they train it on."""

from __future__ import annotations

import numpy as np

import gt
from gt.nn import functional as F  # noqa: N812

GOOD = np.random.default_rng(0).integers(0, 3, (6, 8))
BAD = np.where(np.arange(8) == 3, 7, GOOD[0])
ROWS = np.random.default_rng(1).integers(0, 20, (8, 2))


class Trained:
    """A classifier of pairs of words, with batch norm and an optimizer's states."""

    def __init__(self, jit: bool = False, optimizer: str = "AdamW") -> None:
        gt.manual_seed(0)
        self.norm = gt.nn.BatchNorm1d(6)
        self.model = gt.nn.Sequential(gt.nn.Embedding(20, 3), gt.nn.Flatten(), gt.nn.Linear(6, 6), self.norm, gt.nn.Linear(6, 3))
        self.optimizer = getattr(gt.optim, optimizer)(self.model.parameters(), lr=0.1)
        self.step = gt.jit(self._step) if jit else self._step

    def _step(self, rows: gt.Tensor, targets: gt.Tensor) -> gt.Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(rows), targets)
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self, targets: np.ndarray, rows: np.ndarray = ROWS) -> float:
        return self.step(gt.from_numpy(rows), gt.from_numpy(targets)).item()

    def weights(self) -> list[np.ndarray]:
        states = [t for s in self.optimizer.state.values() for t in s.values() if isinstance(t, gt.Tensor) and t.ndim]
        return [t.numpy(force=True) for t in (*self.model.parameters(), *states)]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
