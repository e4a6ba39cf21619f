"""Training whose every plan runs in parts makes the same bits as training whose plans run whole, and errors are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.programs import output, server

pytestmark = pytest.mark.timeout(180)
TRAIN = """
import sys
import numpy as np
import gt

if len(sys.argv) > 1:
    gt.connect(sys.argv[1], 20)
gt.manual_seed(0)
gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
rng = np.random.default_rng(0)
tokens = gt.from_numpy(rng.integers(0, 20, (8, 6)))
wanted = gt.from_numpy(rng.integers(0, 20, (8,)))
model = gt.nn.Sequential(gt.nn.Embedding(20, 8), gt.nn.Flatten(), gt.nn.Linear(48, 32), gt.nn.GELU(), gt.nn.Linear(32, 20))
optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)


def step(x):
    optimizer.zero_grad()
    with gt.signal.context("rows"):
        loss = gt.nn.functional.cross_entropy(model(x), wanted)
    loss.backward()
    optimizer.step()
    return loss.item()


print([step(tokens).hex() for _ in range(3)])
try:
    print(step(tokens + 15))
except IndexError as e:
    print(type(e).__name__)
if gt.num_workers() == 1:
    print([step(tokens).hex() for _ in range(2)])
    print([float(p.detach().sum().item()).hex() for p in model.parameters()])
gt.disconnect()
"""


@pytest.mark.parametrize(("backend", "workers"), [("numpy", 2), ("torch", 1)])
def test_parts_are_the_whole_to_the_bit_and_an_error_costs_as_much(tmp_path: Path, backend: str, workers: int) -> None:
    found, executed = [], []
    variables = {"GT_COMPILE_AFTER": "0", "GT_BACKEND": backend}
    for module in ("gt.server", "tests.integration.cutting_server"):
        log = tmp_path / f"{module}.log"
        if module == "gt.server" and workers == 1:  # in the script's own process
            found.append(output(TRAIN, tmp_path, timeout_s=90, GT_INSTRUCTION_LOG=str(log), **variables))
        else:
            with server(0, module, GT_INSTRUCTION_LOG=str(log)) as there:
                there.add_workers(workers, backend=backend, GT_COMPILE_AFTER="0")
                there.await_workers(workers)
                found.append(output(TRAIN, tmp_path, there.address, timeout_s=90))
        executed.append(len(re.findall("Execute", log.read_text())))
    assert found[0] == found[1] and "IndexError" in found[0]
    assert executed[1] >= executed[0] + 2 * 4, "each of the four steps in three parts at least"
