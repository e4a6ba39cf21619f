"""The kernels of a GPU in a trace: within the runs that launched them, also where a run is a CUDA graph."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gt.cli import main
from gt.runtime.log_lines import Line, read_log
from tests.integration.gpus import needs_gpu
from tests.integration.programs import server, start, wait_for

STEPS = """
import sys, time
import numpy as np
import gt

gt.connect(sys.argv[1])
model = gt.nn.Linear(256, 256)
optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
x = gt.tensor(np.ones((64, 256), np.float32))
for step in range(10**9):
    optimizer.zero_grad()
    loss = (model(x) ** 2).mean()
    loss.backward()
    optimizer.step()
    loss.item()
    if step == 20:
        print("going", flush=True)
    time.sleep(0.02)
"""
APART_S = 2e-3  # how far the clocks of a GPU and of its host may be apart; steps are 20 ms apart


def traced(address: str, folder: Path) -> list[Line]:
    done = CliRunner().invoke(main, ["trace", address, "-s", "1", "--dir", str(folder)])
    assert done.exit_code == 0, done.output
    return read_log(max(folder.glob("*.log"), key=lambda log: log.stat().st_mtime)).lines


@needs_gpu
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("tier", "compile_after"), [("eager", "0"), ("graph", "5")])
def test_kernels_are_traced_within_their_runs(tier: str, compile_after: str, tmp_path: Path) -> None:
    found: list[Line] = []

    def is_reached() -> bool:
        found[:] = traced(there.address, tmp_path)
        return {x.fields["tier"] for x in found if x.event == "run"} == {tier}

    with server() as there:
        there.add_workers(1, backend="torch", GT_COMPILE_AFTER=compile_after)
        there.await_workers(1)
        with start(STEPS, tmp_path, there.address) as script:
            try:
                assert script.stdout is not None and script.stdout.readline() == "going\n"
                assert wait_for(is_reached, 120)
            finally:
                script.kill()
    runs = [(x.time - x.seconds - APART_S, x.time + APART_S) for x in found if x.event == "run"]
    kernels = [x for x in found if x.event == "kernel" and runs[0][1] < x.time < runs[-1][0]]  # not of runs that are in the trace in part
    assert {kernel.who for kernel in kernels} == {"worker0"} and any("gemm" in kernel.operation for kernel in kernels)
    of = [[i for i, (begun, ended) in enumerate(runs) if begun < x.time - x.seconds and x.time < ended] for x in kernels]
    assert all(len(numbers) == 1 for numbers in of), (runs, kernels)
    profiled = range(min(of)[0] + 1, max(of)[0])  # the first is in it in part
    counts = [of.count([i]) for i in profiled]
    assert len(counts) > 10 and len(set(counts)) == 1 and counts[0] >= 4, counts
