"""The compiled tier as a script asks for it: a ``compile: true`` signal at once, a hot program in time; equal values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.programs import output

pytestmark = pytest.mark.timeout(400)

SCRIPT = """
import json, sys, time
import numpy as np
import gt

how = sys.argv[1]
gt.register_config("signal", gt.SignalConfig(compile=True))

def step(scale):
    with gt.signal.context(how):
        y = (x * scale).exp().sin() + x
    return y.mean(dim=1).numpy()

from gt.runtime.executor import TorchEngine
programs, load = [], TorchEngine.load

def keep(engine, program):
    programs.append(load(engine, program))
    return programs[-1]

TorchEngine.load = keep

def tiers():
    return [p.tier for p in programs]

x = gt.from_numpy(np.linspace(-1, 1, 64 * 20000, dtype=np.float32).reshape(64, 20000))
values = []
if how == "signal":  # the same without it, first
    how = "eager"
    values = [step(0.1 * (i + 1)).tolist() for i in range(3)]
    how = "signal"
values += [step(0.1 * (i + 1)).tolist() for i in range(3)]
until = time.monotonic() + 240
while how == "hot" and "compiled" not in tiers() and time.monotonic() < until:
    for _ in range(20):
        step(0.5)  # a program is worth compiling once its runs have taken two seconds
    time.sleep(0.1)
if how == "hot":
    values += [step(0.1 * (i + 1)).tolist() for i in range(3)]
print(json.dumps([tiers(), values]))
"""


def test_compiled_programs_give_the_values_of_eager_ones(tmp_path: Path) -> None:
    """What is compiled differs from eager in the last bits at most."""
    found = {}
    for how, after in (("signal", "0"), ("hot", "3")):
        variables = {
            "GT_BACKEND": "torch", "GT_COMPILE_AFTER": after, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }  # fmt: skip
        found[how] = json.loads(
            output(SCRIPT, tmp_path, how, timeout_s=350, PYTHONWARNINGS="ignore", **variables)
        )
    assert found["signal"][0] == ["eager", "compiled"]  # before its second run: after three steps it is
    assert "compiled" in found["hot"][0]
    eager = found["signal"][1][:3]
    for got, want in zip([*found["signal"][1][3:], *found["hot"][1]], eager * 3, strict=True):
        assert got == pytest.approx(want, rel=1e-5, abs=1e-5)
