"""The search on whole scripts: how long a real model's step takes to plan, and that workers compute the same under it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import gt
from gt.cli import main
from gt.config import auto_shard, get_config, register_mesh
from gt.passes.plan import Cluster, plan_graph
from gt.runtime.launch import start_local
from gt.scripted import Limits, record_script

ROOT = Path(__file__).resolve().parents[2]
STEP = str(ROOT / "benchmarks" / "gpt2_step.py")


@pytest.fixture(autouse=True)
def _searching() -> Iterator[None]:
    auto_shard()
    yield
    get_config().clear()


@pytest.mark.parametrize("mesh", [{}, {"dp": 4, "tp": 2}], ids=["flat", "grid"])
def test_planning_gpt2_124m_with_a_search(mesh: dict[str, int]) -> None:
    """One full step, forward, backward and AdamW, on 8 workers. Takes 2 s and 6 s where nothing else runs."""
    if mesh:
        register_mesh(mesh)
    made = record_script(STEP, ["--batch", "64", "--steps", "2"], Cluster(tuple(range(8))), Limits(), shapes_only=True)
    assert made.error is None
    step = made.graphs[-1].graph
    assert step.options.auto == "search" and len(step.inputs) > 400
    began = time.process_time()
    plan = plan_graph(step, Cluster(tuple(range(8))))
    assert time.process_time() - began < 20.0
    assert all(dict(o.mesh.axes) == (mesh or {"w": 8}) for o in plan.outputs)
    split = [o for o in plan.outputs if o.is_split]
    assert len(split) < len(plan.outputs) / 4, "the batch is large: data parallel, nearly everything whole"
    kinds = {c.kind for c in plan.programs[0].collectives}
    assert "all_reduce" in kinds and plan.reasons and any("auto: " in line for lines in plan.reasons for line in lines)


def test_gt_plan_says_why(tmp_path: Path) -> None:
    script = tmp_path / "wide.py"
    script.write_text(
        "import gt\n"
        "model = gt.nn.Sequential(gt.nn.Linear(1024, 8192), gt.nn.ReLU(), gt.nn.Linear(8192, 1024))\n"
        "optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)\n"
        "for _ in range(3):\n"
        "    x = gt.from_numpy(__import__('numpy').ones((32, 1024), 'float32'))\n"
        "    optimizer.zero_grad()\n"
        "    loss = (model(x) ** 2).mean()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    print(loss.item())\n"
    )
    config = tmp_path / "auto.yaml"
    config.write_text("shard: auto\n")
    result = CliRunner().invoke(main, ["plan", str(script), "--workers", "4", "--config", str(config), "--shapes", "--why"])
    assert result.exit_code == 0, result.output
    last = result.output[result.output.rindex("\nflush") :]
    assert "0.weight" in last and "f32[8192@w, 1024]" in last and "f32[1024, 8192@w]" in last, "by columns, then by rows"
    assert "auto: splits dim 0 over w, cost 0 vs" in last and "wide.py:" in last


def train() -> list[float]:
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(64, 512), gt.nn.ReLU(), gt.nn.Linear(512, 64))
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-2)
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(5):
        x = gt.from_numpy(rng.standard_normal((16, 64)).astype("float32"))
        optimizer.zero_grad()
        loss = gt.nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_workers_train_the_same_under_a_search() -> None:
    """Two real workers: fast, and with so little memory that parameters and moments must be split."""
    alone = train()
    gt.disconnect()
    assert alone[-1] < alone[0]
    cluster = start_local(2, backend="torch")
    try:
        for memory_limit in (None, 700_000):
            auto_shard()
            gt.memory_limit(memory_limit)
            gt.connect(cluster.address)
            np.testing.assert_allclose(train(), alone, rtol=1e-5)
            gt.disconnect()
    finally:
        gt.disconnect()
        cluster.stop()
