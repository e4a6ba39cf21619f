"""The graph that makes parameters and trains them at once: what a rule for parameters splits is never whole in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.sharding import decoder
from gt import config as configs
from gt.passes.context import Context
from gt.passes.pipeline import DEFAULT
from gt.passes.plan import Cluster
from gt.scripted import Limits, record_script

FSDP = Path(decoder.__file__).parent / "fsdp.yaml"
SCRIPT = """
import numpy as np
import gt
m = gt.nn.Sequential(gt.nn.Linear(512, 2048), gt.nn.GELU(), gt.nn.Linear(2048, 512))
o = gt.optim.{}(m.parameters(), lr=.1)
for _ in range(3):
    with gt.signal.context("batch"):
        x = gt.from_numpy(np.ones((64, 512), "float32"))
    o.zero_grad()
    loss = m(x).square().mean()
    loss.backward()
    o.step()
    loss.item()
"""


pytestmark = pytest.mark.usefixtures("clean")


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_parameters_are_made_in_parts(optimizer: str, tmp_path: Path) -> None:
    script, cluster = tmp_path / "train.py", Cluster(tuple(range(8)))
    script.write_text(SCRIPT.format(optimizer))
    configs.load_config(FSDP)
    ran = record_script(str(script), [], cluster, Limits(), shapes_only=True)
    assert ran.error is None and len(ran.graphs) >= 2
    peaks = []
    for one in (ran.graphs[0], ran.graphs[-1]):
        context = Context(cluster.mesh)
        final = DEFAULT.run(one.graph, context)
        made = [n for n in final.nodes if n.op.creates and n.output.type.numel > 1 and n.output.type.ndim > 1]
        assert all(n.output.type.sharding is not None and n.output.type.sharding.is_split for n in made)
        assert made or one is not ran.graphs[0]
        assert context.memory is not None
        peaks.append(max(context.memory.peak_nbytes.values()))
    assert peaks[0] <= 1.2 * peaks[1], "nothing is whole that is not later"
