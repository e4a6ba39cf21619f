"""Where an op may refuse its values, compiled code overwrites nothing before it has not."""

from __future__ import annotations

import numpy as np
import pytest

import gt
from gt import session as sessions
from gt.runtime.embedded import EmbeddedSession
from gt.runtime.executor import TorchEngine
from tests.integration.refused_batches import BAD, GOOD, ROWS, Trained, same


def test_compiled_steps_undo_as_eager_ones_do():
    gt.disconnect()
    engine = TorchEngine(compile_after=3, compile_after_s=0.0)
    session = EmbeddedSession("torch", make=lambda: engine)
    with sessions.pinned(session):
        t = Trained(optimizer="SGD")
        batches = [gt.from_numpy(targets) for targets in (GOOD[0], BAD)]
        rows = gt.from_numpy(ROWS)
        loaded = []
        for _ in range(20_000):
            t.step(rows, batches[0]).item()
            loaded = [p for p in engine.programs if p.stats.runs > 3]
            if loaded and all(p.settled for part in loaded for p in part.pieces):
                break
        assert loaded and all(p.stats.compiled_pieces == p.stats.pieces > 1 for p in loaded), [p.stats for p in loaded]
        before = t.weights()
        with pytest.raises(IndexError, match="Target 7 is out of bounds.*refused_batches"):
            t.step(rows, batches[1]).item()
        assert same(t.weights(), before)
        assert np.isfinite(t.step(rows, batches[0]).item())
    session.close()
